//! Installation and verification of the pooler's kit: `PgBouncer` with its libraries, from packages
//! of Debian. Each package is pinned with its digest, so no mirror is trusted, and all files
//! together are pinned with one, so that an installation can be verified later.

use std::{
    fs, io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    process::Stdio,
};

use crate::engines::{debian, registry::Registry};
use gantry_base::clock::Entropy;
use sha2::{Digest, Sha256};
use tokio::{process::Command, time::timeout};

use crate::kits::{
    Service,
    install::{PROBE_TIMEOUT, blocking, commit, make_folder},
    kit::{InstalledKit, KitError, at},
    shelf::UNFINISHED,
};

/// The pinned packages.
const PACKAGES: &str = include_str!("pooler_packages.txt");
/// Name of the program.
const PROGRAM: &str = "pgbouncer";
/// Version of the kit: that of the program, and the number of the list of packages.
pub const VERSION: &str = "1.24.1-1";
/// Largest number of files of the kit.
const FILES_MAX: usize = 500;
/// Largest file of the kit, in bytes.
const FILE_BYTES_MAX: u64 = 32 << 20;

/// Returns the pinned SHA-256 of the kit's files, in hex.
fn pinned_tree() -> Option<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Some("1e39faadc04959c3053de6fa87bda89a18cbee68b1abfee3b012c8b134ae64d5"),
        "aarch64" => Some("d1c0db604e2c354d939e35c00f4aacfdb765b61f26297de9bb72b865cbb653d3"),
        _ => None,
    }
}

/// Returns whether the kit can be installed on this machine.
pub fn is_installable() -> bool {
    pinned_tree().is_some()
}

/// Installs the pinned packages into `<kits>/pooler/<version>`. An existing installation is kept.
pub async fn install(
    kits: &Path,
    registry: &Registry,
    entropy: &Entropy,
) -> Result<InstalledKit, KitError> {
    let folder = kits.join(Service::Pooler.name());
    let place = folder.join(VERSION);
    if place.exists() {
        return InstalledKit::open(Service::Pooler, VERSION, &place);
    }
    let unfinished = folder.join(format!("{UNFINISHED}unpacking-{}", entropy.letters(8)));
    let (stage, kits) = (unfinished.clone(), kits.to_owned());
    blocking(move || {
        make_folder(&kits)?;
        make_folder(&folder)?;
        make_folder(&stage)
    })
    .await?;
    let mirrors = debian::mirrors(Path::new("/"));
    let unpacked = debian::unpack_program(PACKAGES, PROGRAM, (&mirrors, registry), &unfinished);
    let mut outcome = unpacked
        .await
        .map_err(|error| KitError::Rejected(error.to_string()));
    if outcome.is_ok() {
        let stage = unfinished.clone();
        outcome = blocking(move || check_tree(&stage)).await;
    }
    if outcome.is_ok() {
        outcome = probe(&unfinished).await;
    }
    blocking(move || {
        let committed = outcome.and_then(|()| commit(&unfinished, &place));
        // Present only after a failure.
        let _ = fs::remove_dir_all(&unfinished);
        committed?;
        InstalledKit::open(Service::Pooler, VERSION, &place)
    })
    .await
}

/// Checks the files of an installed kit against the pinned digest.
pub fn verify(kit: &InstalledKit) -> Result<(), KitError> {
    if kit.version != VERSION {
        return Err(KitError::Rejected(format!(
            "pooler {} is not pinned in this version of Gantry, so it cannot be verified",
            kit.version
        )));
    }
    check_tree(&kit.folder)
}

fn check_tree(folder: &Path) -> Result<(), KitError> {
    let found = tree_digest(folder)?;
    if pinned_tree() == Some(found.as_str()) {
        return Ok(());
    }
    Err(KitError::Rejected(format!(
        "the files in {} are not the pinned ones; remove the folder and install it again with: \
         gantry service install pooler",
        folder.display()
    )))
}

/// Runs the program once, so that another processor is reported at the installation.
async fn probe(folder: &Path) -> Result<(), KitError> {
    let manifest = crate::kits::manifest::Manifest::built_in(Service::Pooler);
    let loader = manifest.map(|manifest| folder.join(manifest.program));
    let loader = loader.unwrap_or_else(|| folder.to_owned());
    let mut command = Command::new(&loader);
    command
        .arg("--library-path")
        .arg(folder.join("libs"))
        .arg(folder.join("bin").join(PROGRAM))
        .arg("--version")
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    let failed = |why: String| KitError::Rejected(format!("{PROGRAM} does not run: {why}"));
    let status = timeout(PROBE_TIMEOUT, command.status())
        .await
        .map_err(|_| failed("it printed no version in time".to_owned()))?
        .map_err(|error| failed(error.to_string()))?;
    if status.success() {
        Ok(())
    } else {
        Err(failed(status.to_string()))
    }
}

/// Returns the SHA-256 of all files and links of a folder with their paths, in hex.
fn tree_digest(folder: &Path) -> Result<String, KitError> {
    let mut digest = Sha256::new();
    for path in entries(folder)? {
        let kind = fs::symlink_metadata(&path).map_err(at(&path))?.file_type();
        let content = if kind.is_symlink() {
            let target = fs::read_link(&path).map_err(at(&path))?;
            target.as_os_str().as_bytes().to_vec()
        } else {
            read_bounded(&path).map_err(at(&path))?
        };
        let name = path.strip_prefix(folder).unwrap_or(&path);
        digest.update(name.as_os_str().as_bytes());
        digest.update([0, u8::from(kind.is_symlink())]);
        digest.update((content.len() as u64).to_be_bytes());
        digest.update(content);
    }
    Ok(hex::encode(digest.finalize()))
}

/// Returns the paths of all files and links of a folder, sorted.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, KitError> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(path) = folders.pop() {
        for entry in fs::read_dir(&path).map_err(at(&path))? {
            let entry = entry.map_err(at(&path))?;
            let kind = entry.file_type().map_err(at(&path))?;
            if kind.is_dir() {
                folders.push(entry.path());
            } else if files.len() < FILES_MAX && (kind.is_file() || kind.is_symlink()) {
                files.push(entry.path());
            } else {
                return Err(KitError::Unsafe {
                    path: entry.path(),
                    why: "is no file, or one of too many".to_owned(),
                });
            }
        }
    }
    files.sort();
    Ok(files)
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    use io::Read;
    let mut content = Vec::new();
    fs::File::open(path)?
        .take(FILE_BYTES_MAX)
        .read_to_end(&mut content)?;
    Ok(content)
}

#[cfg(test)]
mod tests {
    use crate::kits::pooler::*;

    #[test]
    fn changed_file_or_link_changes_the_digest() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("bin")).unwrap();
        let program = folder.path().join("bin/pgbouncer");
        fs::write(&program, "1").unwrap();
        let first = tree_digest(folder.path()).unwrap();
        fs::write(&program, "2").unwrap();
        let second = tree_digest(folder.path()).unwrap();
        assert_ne!(first, second);
        std::os::unix::fs::symlink("x", folder.path().join("link")).unwrap();
        let third = tree_digest(folder.path()).unwrap();
        assert_ne!(second, third);
        let error = check_tree(folder.path()).unwrap_err().to_string();
        assert!(error.contains("gantry service install pooler"), "{error}");
    }

    #[test]
    fn version_is_that_of_the_packages_for_both_architectures() {
        for architecture in ["amd64", "arm64"] {
            let upstream = VERSION.split('-').next().unwrap();
            let name = format!("/pgbouncer_{upstream}-");
            let found = PACKAGES
                .lines()
                .any(|line| line.starts_with(architecture) && line.contains(&name));
            assert!(found, "{architecture}");
        }
    }
}
