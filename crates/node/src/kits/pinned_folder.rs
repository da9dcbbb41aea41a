//! Folders of which all files are pinned together with one digest.

use std::{
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use gantry_base::files::read_start;
use sha2::{Digest, Sha256};

use crate::kits::kit::{KitError, at};

/// Bounds of a folder.
#[derive(Debug, Clone, Copy)]
pub(super) struct FolderBounds {
    /// Largest number of files and links.
    pub(super) files: usize,
    /// Largest part of a file that is read, in bytes.
    pub(super) file_bytes: u64,
}

/// Checks all files of a kit against the pinned digest.
///
/// Errors: [`KitError::Rejected`] with the command that installs the kit again.
pub(super) fn check(
    folder: &Path,
    bounds: FolderBounds,
    pinned: Option<&str>,
    kit: &str,
) -> Result<(), KitError> {
    let found = digest(folder, bounds)?;
    if pinned == Some(found.as_str()) {
        return Ok(());
    }
    Err(KitError::Rejected(format!(
        "the files in {} are not the pinned ones; remove the folder and install it again with: \
         gantry service install {kit}",
        folder.display()
    )))
}

/// Returns the SHA-256 of all files and links of a folder with their paths, in hex.
///
/// Errors: [`KitError::Unsafe`] for another special file, or too many.
pub(super) fn digest(folder: &Path, bounds: FolderBounds) -> Result<String, KitError> {
    let mut digest = Sha256::new();
    for path in entries(folder, bounds)? {
        let kind = fs::symlink_metadata(&path).map_err(at(&path))?.file_type();
        let content = if kind.is_symlink() {
            let target = fs::read_link(&path).map_err(at(&path))?;
            target.as_os_str().as_bytes().to_vec()
        } else {
            read_start(&path, bounds.file_bytes).map_err(at(&path))?
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
fn entries(folder: &Path, bounds: FolderBounds) -> Result<Vec<PathBuf>, KitError> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(path) = folders.pop() {
        for entry in fs::read_dir(&path).map_err(at(&path))? {
            let entry = entry.map_err(at(&path))?;
            let kind = entry.file_type().map_err(at(&path))?;
            if kind.is_dir() {
                folders.push(entry.path());
            } else if files.len() < bounds.files && (kind.is_file() || kind.is_symlink()) {
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

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: FolderBounds = FolderBounds {
        files: 3,
        file_bytes: 100,
    };

    #[test]
    fn changed_added_and_linked_files_change_the_digest() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path();
        fs::create_dir(folder.join("bin")).unwrap();
        let mut found = vec![digest(folder, BOUNDS).unwrap()];
        let mut assert_changed = || {
            let new = digest(folder, BOUNDS).unwrap();
            assert!(!found.contains(&new));
            found.push(new);
        };
        fs::write(folder.join("bin/program"), "1").unwrap();
        assert_changed();
        fs::write(folder.join("bin/program"), "2").unwrap();
        assert_changed();
        fs::write(folder.join("empty"), "").unwrap();
        assert_changed();
        std::os::unix::fs::symlink("bin/program", folder.join("link")).unwrap();
        assert_changed();
        fs::write(folder.join("one of too many"), "").unwrap();
        assert!(digest(folder, BOUNDS).is_err());
    }

    #[test]
    fn other_digest_is_rejected_with_the_command_that_installs() {
        let folder = tempfile::tempdir().unwrap();
        let found = digest(folder.path(), BOUNDS).unwrap();
        check(folder.path(), BOUNDS, Some(&found), "diff").unwrap();
        for pinned in [None, Some("0")] {
            let error = check(folder.path(), BOUNDS, pinned, "diff").unwrap_err();
            assert!(error.to_string().contains("gantry service install diff"));
        }
    }
}
