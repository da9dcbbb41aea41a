//! File operations that can be repeated, and reads with a bound.

use std::{
    ffi::OsString,
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

/// Turns the error of a file that does not exist into success.
pub fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Creates a folder with exactly this mode, ignoring the umask. An existing folder keeps its mode.
pub fn make_folder(path: &Path, mode: u32) -> io::Result<()> {
    match DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        made => made.and_then(|()| fs::set_permissions(path, Permissions::from_mode(mode))),
    }
}

/// Writes or replaces a file atomically, with exactly this mode. A reader never finds a partial
/// file, but after a loss of power the file may be the earlier one or empty.
pub fn replace(file: &Path, content: impl AsRef<[u8]>, mode: u32) -> io::Result<()> {
    let unfinished = unfinished(file);
    absent_is_fine(fs::remove_file(&unfinished))?;
    let mut new = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&unfinished)?;
    new.set_permissions(Permissions::from_mode(mode))?;
    new.write_all(content.as_ref())?;
    fs::rename(&unfinished, file)
}

/// The path under which a new version of a file is written before it is renamed to `file`.
pub fn unfinished(file: &Path) -> PathBuf {
    let mut name = OsString::from(file);
    name.push(".new");
    name.into()
}

/// Reads at most `bytes_max` bytes from the start of a file.
pub fn read_start(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    read_at_most(File::open(path)?, bytes_max)
}

/// Reads at most `bytes_max` bytes from an open file.
pub fn read_at_most(file: File, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(bytes_max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn replaced_file_has_its_mode_and_no_link_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (file, other) = (dir.path().join("a.conf"), dir.path().join("other"));
        fs::write(&other, "kept").unwrap();
        std::os::unix::fs::symlink(&other, unfinished(&file)).unwrap();
        for (text, bits) in [("one", 0o666), ("two", 0o600)] {
            replace(&file, text, bits).unwrap();
            assert_eq!(
                (fs::read_to_string(&file).unwrap().as_str(), mode(&file)),
                (text, bits)
            );
        }
        assert_eq!(fs::read_to_string(&other).unwrap(), "kept");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn existing_folder_keeps_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("folder");
        make_folder(&folder, 0o777).unwrap();
        make_folder(&folder, 0o700).unwrap();
        assert_eq!(mode(&folder), 0o777);
        fs::write(dir.path().join("file"), "").unwrap();
        assert!(make_folder(&dir.path().join("file"), 0o700).is_err());
    }

    #[test]
    fn reads_are_bounded_and_absent_files_can_be_removed() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "0123456789").unwrap();
        assert_eq!(read_start(&file, 4).unwrap(), b"0123");
        assert_eq!(read_start(&file, 40).unwrap().len(), 10);
        for _ in 0..2 {
            absent_is_fine(fs::remove_file(&file)).unwrap();
        }
        assert!(read_start(&file, 4).is_err());
        assert!(absent_is_fine(Err(io::ErrorKind::PermissionDenied.into())).is_err());
    }
}
