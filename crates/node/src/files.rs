//! Durable file operations.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, Seek, SeekFrom, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::Path,
};

use gantry_base::files::{absent_is_fine, make_folder, read_at_most, read_start, unfinished};
use rustix::fs::OFlags;

use crate::{
    error::{At, ClusterError, Result},
    supervisor::ProcessOwner,
};

/// Creates a directory with exactly this mode, ignoring the umask. An existing directory keeps its
/// mode.
pub(super) fn make_dir(path: &Path, mode: u32) -> Result<()> {
    make_folder(path, mode).at("creating", path)
}

/// Removes a directory tree, if it exists. Never follows symbolic links.
pub(super) fn remove_tree(path: &Path) -> Result<()> {
    absent_is_fine(fs::remove_dir_all(path)).at("removing", path)
}

/// Removes a file, if it exists.
pub(super) fn remove_file(path: &Path) -> Result<()> {
    absent_is_fine(fs::remove_file(path)).at("removing", path)
}

/// Creates a file durably, and sets its owner through the open file: a tenant can replace the name
/// at any time.
pub(super) fn write_new(
    path: &Path,
    content: impl AsRef<[u8]>,
    mode: u32,
    owner: ProcessOwner,
) -> Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)
        .at("writing", path)?;
    // Regardless of the umask.
    file.set_permissions(Permissions::from_mode(mode))
        .and_then(|()| file.write_all(content.as_ref()))
        .and_then(|()| file.sync_all())
        .at("writing", path)?;
    owner.own_file(&file).at("handing over", path)
}

/// Writes or replaces a file atomically and durably, with [`write_new`]. Follows no link that a
/// tenant may have made.
pub(super) fn replace(path: &Path, text: &str, mode: u32, owner: ProcessOwner) -> Result<()> {
    let unfinished = unfinished(path);
    remove_file(&unfinished)?;
    write_new(&unfinished, text, mode, owner)?;
    commit(&unfinished, path)
}

/// Copies a stopped data directory to `to`, which must not exist, and changes its owner. Rejects
/// links and other special files, which a tenant may have made.
///
/// If the file system supports it, the copy shares the original's blocks until either is changed
/// (reflink).
pub(super) fn copy_data(from: &Path, to: &Path, owner: ProcessOwner) -> Result<()> {
    DirBuilder::new()
        .mode(0o700)
        .create(to)
        .at("creating", to)?;
    for entry in fs::read_dir(from).at("listing", from)? {
        let entry = entry.at("listing", from)?;
        let source = entry.path();
        let target = to.join(entry.file_name());
        let kind = entry.file_type().at("examining", &source)?;
        if kind.is_dir() {
            copy_data(&source, &target, owner)?;
        } else if kind.is_file() {
            copy_file(&source, &target, owner)?;
        } else {
            let text = format!("{} is neither a file nor a folder", source.display());
            return Err(ClusterError::Copy(text));
        }
    }
    owner.own(to).at("handing over", to)
}

fn copy_file(from: &Path, to: &Path, owner: ProcessOwner) -> Result<()> {
    let mut source = File::open(from).at("reading", from)?;
    let mut target = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(to)
        .at("creating", to)?;
    // Tried for each file: the two may be on different file systems, and a failure costs only a
    // microsecond.
    if rustix::fs::ioctl_ficlone(&target, &source).is_err() {
        io::copy(&mut source, &mut target).at("copying", from)?;
    }
    owner.own_file(&target).at("handing over", to)
}

/// Returns whether files in `dir` can share blocks, by trying it.
pub(super) fn can_share_blocks(dir: &Path) -> Result<bool> {
    let original = dir.join("reflink-probe");
    let copy = dir.join("reflink-probe-copy");
    let tried = || -> io::Result<bool> {
        fs::write(&original, [1; 4096])?;
        Ok(rustix::fs::ioctl_ficlone(File::create(&copy)?, File::open(&original)?).is_ok())
    };
    let shares = tried().at("probing", &original);
    remove_file(&original)?;
    remove_file(&copy)?;
    shares
}

/// Writes all unwritten data of the file system of `path` to the disk, which is faster than a
/// thousand calls of `fsync`.
pub(super) fn sync_fs(path: &Path) -> Result<()> {
    let dir = File::open(path).at("opening", path)?;
    rustix::fs::syncfs(&dir).at("syncing", path)
}

/// Renames durably. This is the commit point of every creation and removal.
pub(super) fn commit(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).at("renaming", from)?;
    let parent = to.parent().unwrap_or(to);
    File::open(parent)
        .and_then(|dir| dir.sync_all())
        .at("syncing", parent)
}

/// Reads at most `bytes_max` bytes from the start of a file in a tenant's directory. Does not
/// follow links or block on pipes, which the tenant may have created.
pub fn read_untrusted(path: &Path, bytes_max: u64) -> io::Result<String> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "not a plain file",
        ));
    }
    Ok(text(&read_at_most(file, bytes_max)?))
}

/// Reads at most `bytes_max` bytes from the start of a file of the operator.
pub(super) fn read_bounded(path: &Path, bytes_max: u64) -> io::Result<String> {
    Ok(text(&read_start(path, bytes_max)?))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the last lines of a log on one line, without control characters. Empty without a log.
pub(super) fn tail(path: &Path) -> String {
    last_lines(path).join("; ")
}

/// Returns the last lines of a log, without control characters.
pub(super) fn last_lines(path: &Path) -> Vec<String> {
    const BYTES: u64 = 2048;
    const LINES: usize = 6;
    let text = File::open(path)
        .and_then(|file| read_end(file, BYTES))
        .unwrap_or_default()
        .replace(|c: char| c.is_control() && c != '\n', " ");
    let lines: Vec<_> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    let last = &lines[lines.len().saturating_sub(LINES)..];
    last.iter().copied().map(str::to_owned).collect()
}

/// Reads at most `bytes_max` bytes from the end of a file.
pub(super) fn read_end(mut file: File, bytes_max: u64) -> io::Result<String> {
    let end = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(end.saturating_sub(bytes_max)))?;
    Ok(text(&read_at_most(file, bytes_max)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tail_joins_the_last_lines() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        assert_eq!(tail(&log), "");
        fs::write(
            &log,
            (0..500)
                .map(|n| format!("line {n}\n"))
                .collect::<Vec<_>>()
                .join("\n"),
        )
        .unwrap();
        assert_eq!(
            tail(&log),
            "line 494; line 495; line 496; line 497; line 498; line 499"
        );
    }

    #[test]
    fn copy_is_identical_and_independent_with_and_without_reflink() {
        let dir = tempfile::tempdir().unwrap();
        can_share_blocks(dir.path()).unwrap();
        assert_eq!(
            fs::read_dir(dir.path()).unwrap().count(),
            0,
            "the probe leaves nothing"
        );
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir_all(from.join("base/1")).unwrap();
        let content: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
        fs::write(from.join("base/1/1249"), &content).unwrap();
        fs::write(from.join("empty"), "").unwrap();
        copy_data(&from, &to, ProcessOwner::new(0, 0)).unwrap();
        fs::write(from.join("base/1/1249"), "changed").unwrap();
        assert!(fs::read(to.join("base/1/1249")).unwrap() == content);
        assert_eq!(fs::read(to.join("empty")).unwrap(), b"");
        assert_eq!(
            fs::metadata(to.join("empty")).unwrap().permissions().mode() & 0o777,
            0o600
        );
    }

    #[test]
    fn read_untrusted_rejects_links_and_limits_size() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&file, "0123456789").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!(read_untrusted(&file, 4).unwrap(), "0123");
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        let huge = dir.path().join("huge");
        File::create(&huge).unwrap().set_len(1 << 40).unwrap();
        assert_eq!(read_untrusted(&huge, 4).unwrap(), "\0\0\0\0");
        for path in [link, pipe, dir.path().to_owned(), dir.path().join("absent")] {
            assert!(read_untrusted(&path, 4).is_err(), "{}", path.display());
        }
    }

    #[test]
    fn tail_removes_control_characters() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("log"), "a\x1b[2Jb\rc\n").unwrap();
        assert_eq!(tail(&dir.path().join("log")), "a [2Jb c");
    }
}
