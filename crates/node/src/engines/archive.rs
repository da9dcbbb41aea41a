//! Installs an engine from a portable archive that the operator unpacked.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
};

use gantry_base::clock::Entropy;
use sha2::Digest;

use super::engine::Engine;
use crate::{
    background::blocking,
    engines::{
        install::{put_in_place, unfinished_folder},
        manifest::{EngineManifest, InstalledPackage},
    },
    error::{At, ClusterError, Result},
    files,
};

/// Maximum number of files of an engine, and their size in bytes. The vendor's archive with all
/// extensions has about 1 GiB.
const UNPACKED_FILES_MAX: usize = 100_000;
const UNPACKED_BYTES_MAX: u64 = 8 << 30;

/// Installs a portable archive of PostgreSQL that the operator unpacked: a folder with `bin`, `lib`
/// and `share`, which it copies to `<engines>/<version>-archive`. An existing installation is kept.
pub async fn install(engines: &Path, from: &Path, major: u16, entropy: &Entropy) -> Result<Engine> {
    let from = from.canonicalize().at("opening", from)?;
    let bin = Engine::find(Some(&from.join("bin")))?;
    if bin.major() != major {
        return Err(refused(format!(
            "{} holds PostgreSQL {}, not {major}",
            from.display(),
            bin.text()
        )));
    }
    let place = engines.join(format!("{}-archive", bin.text()));
    let copied = unfinished_folder(engines, entropy)?;
    let record = EngineManifest {
        source: "archive".to_owned(),
        version: bin.text().to_owned(),
        programs: "bin".into(),
        runtime: None,
        packages: Vec::new(),
        folder: copied.clone(),
    };
    blocking(move || {
        let mut budget = ArchiveBudget::default();
        let made = copy_archive(&from, &from, &copied, &mut budget).and_then(|()| {
            let digest = budget.digest();
            let name = from.display().to_string();
            let record = EngineManifest {
                packages: vec![InstalledPackage {
                    name,
                    version: record.version.clone(),
                    digest,
                }],
                ..record
            };
            put_in_place(&record, &copied, &place)
        });
        files::remove_tree(&copied)?;
        made
    })
    .await
}

/// Size, count and digest of the files of an archive.
#[derive(Default)]
struct ArchiveBudget {
    files: usize,
    bytes: u64,
    hash: sha2::Sha256,
}

impl ArchiveBudget {
    /// Counts a file of this size. Fails if the archive is too large.
    fn count(&mut self, path: &Path, bytes: u64) -> Result<()> {
        self.files += 1;
        self.bytes += bytes;
        if self.files > UNPACKED_FILES_MAX || self.bytes > UNPACKED_BYTES_MAX {
            return Err(refused(format!(
                "{} exceeds the limit of an engine: {UNPACKED_FILES_MAX} files, {} GiB",
                path.display(),
                UNPACKED_BYTES_MAX >> 30
            )));
        }
        Ok(())
    }

    fn digest(&self) -> String {
        format!("sha256:{}", hex::encode(self.hash.clone().finalize()))
    }
}

/// Copies a folder of an archive. A link must lead to a place within the archive `root`.
fn copy_archive(root: &Path, from: &Path, to: &Path, budget: &mut ArchiveBudget) -> Result<()> {
    files::make_dir(to, 0o700)?;
    let mut entries: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(from).at("listing", from)? {
        entries.push(entry.at("listing", from)?.path());
    }
    // The digest must not depend on the order of the file system.
    entries.sort();
    for source in entries {
        let Some(name) = source.file_name() else {
            continue;
        };
        let target = to.join(name);
        let found = fs::symlink_metadata(&source).at("examining", &source)?;
        budget.count(root, found.len())?;
        budget.hash.update(name.as_encoded_bytes());
        if found.is_dir() {
            copy_archive(root, &source, &target, budget)?;
        } else if found.is_symlink() {
            let link = fs::read_link(&source).at("reading", &source)?;
            let leads = source.canonicalize().at("following", &source)?;
            if link.is_absolute() || !leads.starts_with(root) {
                return Err(refused(format!(
                    "{} leads outside of the archive",
                    source.display()
                )));
            }
            budget.hash.update(link.as_os_str().as_encoded_bytes());
            symlink(&link, &target).at("linking", &target)?;
        } else if found.is_file() && found.permissions().mode() & 0o6000 == 0 {
            let content = fs::read(&source).at("reading", &source)?;
            budget.hash.update(&content);
            fs::write(&target, content).at("writing", &target)?;
            let mode = found.permissions().mode() & 0o777;
            fs::set_permissions(&target, Permissions::from_mode(mode)).at("opening up", &target)?;
        } else {
            return Err(refused(format!(
                "{} is neither a file nor a folder, or changes the user id",
                source.display()
            )));
        }
    }
    Ok(())
}

fn refused(why: String) -> ClusterError {
    ClusterError::NotInstalled(why)
}
