//! The key that the secrets of a project's vault are sealed with.
//!
//! A file beside the data directory: neither a dump nor a copy of the data directory contains it.
//! The server's account reads it, and the sandbox permits nothing else.

use std::path::{Path, PathBuf};

use gantry_base::clock::Entropy;

use crate::{error::Result, files, supervisor::ProcessOwner};

/// Length of a key in bytes.
const KEY_BYTES: usize = 32;

/// The key file of the cluster with this data directory.
pub(super) fn path(data: &Path) -> PathBuf {
    data.with_file_name("vault.key")
}

/// Creates the key of the cluster with this data directory durably, unless it exists.
pub(super) fn create(data: &Path, owner: ProcessOwner, entropy: &Entropy) -> Result<()> {
    let key = path(data);
    if key.exists() {
        return Ok(());
    }
    // Complete before it has its name: a key that is cut off would make all secrets unreadable.
    let unfinished = key.with_extension(entropy.letters(8));
    files::write_new(&unfinished, entropy.bytes::<KEY_BYTES>(), 0o400, owner)?;
    files::commit(&unfinished, &key)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    #[test]
    fn key_is_created_once() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let owner = ProcessOwner::new(0, 0);
        let entropy = Entropy::seeded(1);
        create(&data, owner, &entropy).unwrap();
        let key = fs::read(path(&data)).unwrap();
        assert_eq!(key.len(), KEY_BYTES);
        assert_eq!(
            path(&data).metadata().unwrap().permissions().mode() & 0o777,
            0o400
        );
        create(&data, owner, &entropy).unwrap();
        assert_eq!(fs::read(path(&data)).unwrap(), key);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
