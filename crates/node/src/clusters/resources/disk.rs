//! Disk space and inodes of a project's folders, measured without trusting their contents.

use std::{
    collections::HashSet, ffi::CStr, fs, fs::File, io, os::unix::fs::MetadataExt, path::Path,
};

use fiemap::{Fiemap, FiemapExtentFlags};
use rustix::{
    fd::{BorrowedFd, OwnedFd},
    fs::{AtFlags, Dir, FileType, Mode, OFlags, openat, statat},
    process::Pid,
};

use crate::proc_files::ProcessFiles;

/// Maximum depth of nested folders. PostgreSQL uses at most four levels.
const DEPTH_MAX: usize = 32;
/// Maximum number of open files that are examined, for all processes of a project together.
const OPEN_FILES_MAX: usize = 50_000;
/// Maximum number of extents that are examined, for all files together.
const EXTENTS_MAX: u64 = 1_000_000;
/// Size of a block in the results of `stat`, in bytes.
const BLOCK: u64 = 512;

/// Disk space and inodes in use.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct DiskUsage {
    /// Allocated space in bytes, without holes in files.
    pub bytes: u64,
    /// Files and folders.
    pub inodes: u64,
    /// Whether counting stopped at a limit: too many inodes, or folders nested too deeply.
    pub unbounded: bool,
}

impl DiskUsage {
    /// Returns the sum of two measurements.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            inodes: self.inodes.saturating_add(other.inodes),
            unbounded: self.unbounded || other.unbounded,
        }
    }
}

/// Measures the folder, counting at most `inodes_max` inodes. A missing folder is empty.
///
/// Links are not followed, even if a folder is replaced by a link meanwhile. Files may be created
/// and deleted during the walk.
pub fn measure(folder: &Path, inodes_max: u64) -> io::Result<DiskUsage> {
    walk(folder, inodes_max, |_, _| {})
}

/// Returns the bytes of the folder in blocks that other files share, as copies of a cluster do
/// where the file system permits it. Files that cannot be examined share nothing.
pub fn measure_shared(folder: &Path, inodes_max: u64) -> io::Result<u64> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let (mut shared, mut extents_left) = (0_u64, EXTENTS_MAX);
    walk(folder, inodes_max, |parent, name| {
        let Ok(file) = openat(parent, name, flags, Mode::empty()) else {
            return;
        };
        for extent in Fiemap::new(File::from(file)).map_while(Result::ok) {
            if extents_left == 0 {
                return;
            }
            extents_left -= 1;
            if extent.fe_flags.contains(FiemapExtentFlags::SHARED) {
                shared = shared.saturating_add(extent.fe_length);
            }
        }
    })?;
    Ok(shared)
}

/// Measures the folder as [`measure`], and calls `visit` with the folder and the name of each file.
fn walk(
    folder: &Path,
    inodes_max: u64,
    mut visit: impl FnMut(BorrowedFd<'_>, &CStr),
) -> io::Result<DiskUsage> {
    let mut usage = DiskUsage::default();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let top = match rustix::fs::open(folder, flags, Mode::empty()) {
        Ok(top) => top,
        Err(rustix::io::Errno::NOENT) => return Ok(usage),
        Err(error) => return Err(error.into()),
    };
    let mut open = vec![Dir::new(top)?];
    while let Some(dir) = open.last_mut() {
        let Some(entry) = dir.read() else {
            open.pop();
            continue;
        };
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let parent = dir.fd()?;
        // Removed meanwhile.
        let Ok(found) = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) else {
            continue;
        };
        usage.inodes += 1;
        usage.bytes = usage.bytes.saturating_add(
            u64::try_from(found.st_blocks)
                .unwrap_or(0)
                .saturating_mul(BLOCK),
        );
        if usage.inodes > inodes_max {
            return Ok(DiskUsage {
                unbounded: true,
                ..usage
            });
        }
        let kind = FileType::from_raw_mode(found.st_mode);
        if kind == FileType::RegularFile {
            visit(parent, name);
        }
        if kind == FileType::Directory {
            let Ok(inner): Result<OwnedFd, _> = openat(parent, name, flags, Mode::empty()) else {
                continue;
            };
            if open.len() == DEPTH_MAX {
                return Ok(DiskUsage {
                    unbounded: true,
                    ..usage
                });
            }
            open.push(Dir::new(inner)?);
        }
    }
    Ok(usage)
}

/// Measures files that these processes still have open after their deletion, on the file system of
/// `folder`.
pub fn measure_unnamed(processes: &[Pid], folder: &Path) -> io::Result<DiskUsage> {
    let device = fs::metadata(folder)?.dev();
    let mut usage = DiskUsage::default();
    let mut seen = HashSet::new();
    let mut looked = 0;
    for pid in processes {
        // The process has ended, or Gantry lacks the permission.
        for file in ProcessFiles::of(*pid)
            .open_files()
            .into_iter()
            .flatten()
            .flatten()
        {
            looked += 1;
            if looked > OPEN_FILES_MAX {
                return Ok(DiskUsage {
                    unbounded: true,
                    ..usage
                });
            }
            let Ok(found) = fs::metadata(file.path()) else {
                continue;
            };
            if found.is_file()
                && found.nlink() == 0
                && found.dev() == device
                && seen.insert(found.ino())
            {
                usage.bytes = usage
                    .bytes
                    .saturating_add(found.blocks().saturating_mul(BLOCK));
                usage.inodes += 1;
            }
        }
    }
    Ok(usage)
}

/// Returns free space and free inodes of the file system of `folder`.
pub fn free(folder: &Path) -> io::Result<(u64, u64)> {
    let found = rustix::fs::statvfs(folder)?;
    Ok((
        found.f_bavail.saturating_mul(found.f_frsize),
        found.f_favail,
    ))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn measure_counts_links_without_following_them() {
        let dir = tempfile::tempdir().unwrap();
        let (inside, outside) = (dir.path().join("inside"), dir.path().join("outside"));
        fs::create_dir_all(inside.join("a/b")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("large"), vec![1; 1 << 20]).unwrap();
        fs::write(inside.join("a/small"), vec![1; 8192]).unwrap();
        let before = measure(&inside, 100).unwrap();
        assert_eq!((before.inodes, before.unbounded), (3, false));
        assert!((8192..1 << 20).contains(&before.bytes), "{before:?}");

        symlink(&outside, inside.join("a/b/folder")).unwrap();
        symlink(outside.join("large"), inside.join("file")).unwrap();
        symlink(&inside, inside.join("loop")).unwrap();
        let after = measure(&inside, 100).unwrap();
        assert_eq!(after.inodes, 6);
        assert!(after.bytes < 1 << 20, "{after:?}");
        assert!(
            measure(&inside.join("loop"), 100).is_err(),
            "the top may not be a link either"
        );
        assert_eq!(
            measure(&dir.path().join("missing"), 100).unwrap(),
            DiskUsage::default()
        );
    }

    #[test]
    fn measure_stops_at_its_limits() {
        let dir = tempfile::tempdir().unwrap();
        for n in 0..20 {
            File::create(dir.path().join(n.to_string())).unwrap();
        }
        assert!(!measure(dir.path(), 20).unwrap().unbounded);
        let stopped = measure(dir.path(), 10).unwrap();
        assert_eq!((stopped.unbounded, stopped.inodes), (true, 11));

        let deep = tempfile::tempdir().unwrap();
        fs::create_dir_all(deep.path().join(vec!["d"; DEPTH_MAX + 5].join("/"))).unwrap();
        assert!(measure(deep.path(), 1000).unwrap().unbounded);
    }

    #[test]
    fn blocks_are_shared_only_by_files_that_were_cloned() {
        let dir = tempfile::tempdir().unwrap();
        let (own, copy) = (dir.path().join("own"), dir.path().join("copy"));
        fs::write(&own, vec![1; 1 << 20]).unwrap();
        File::open(&own).unwrap().sync_all().unwrap();
        assert_eq!(measure_shared(dir.path(), 100).unwrap(), 0);
        let (from, to) = (File::open(&own).unwrap(), File::create(&copy).unwrap());
        let expected = match rustix::fs::ioctl_ficlone(&to, &from) {
            Ok(()) => 2 << 20,
            // This file system shares no blocks.
            Err(_) => 0,
        };
        assert_eq!(measure_shared(dir.path(), 100).unwrap(), expected);
    }

    #[test]
    fn measure_ignores_holes_and_includes_unlinked_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let file = File::create(&path).unwrap();
        file.set_len(1 << 30).unwrap();
        assert!(measure(dir.path(), 10).unwrap().bytes < 1 << 20);
        fs::write(&path, vec![1; 1 << 20]).unwrap();
        let held = File::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let me = rustix::process::getpid();
        let unnamed = measure_unnamed(&[me], dir.path()).unwrap();
        assert!(unnamed.bytes >= 1 << 20, "{unnamed:?}");
        drop((file, held));
    }
}
