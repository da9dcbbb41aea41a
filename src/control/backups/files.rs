//! Reading the files of a cluster from outside. They belong to a tenant, which may replace them by
//! links or pipes at any time.

use std::{
    ffi::CString,
    fs::File,
    io::{self, Read},
    os::fd::OwnedFd,
    path::Path,
};

use gantry_node::clusters::{ArchiveWay, archive_way::SPOOL, identity::ControlState};
use rustix::{
    fs::{
        AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, fstat, open, openat2, renameat, statat,
        unlinkat,
    },
    io::Errno,
};

/// Maximum number of names that are read from a folder.
const NAMES_MAX: usize = 100_000;
/// Folder of segments, and that of their status.
pub(super) const WAL: &str = "pg_wal";
const STATUS: &str = "pg_wal/archive_status";
const READY: &str = ".ready";
const DONE: &str = ".done";

/// Time of the last change, in seconds and nanoseconds.
pub(super) type Modified = (i64, i64);

/// An open data directory.
#[derive(Debug)]
pub(super) struct ClusterFiles {
    data: OwnedFd,
    uid: u32,
    way: ArchiveWay,
}

impl ClusterFiles {
    /// Opens a data directory. `None` if it does not exist.
    pub(super) fn open(data: &Path, way: ArchiveWay) -> io::Result<Option<Self>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let data = match open(data, flags, Mode::empty()) {
            Ok(data) => data,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let uid = fstat(&data)?.st_uid;
        Ok(Some(Self { data, uid, way }))
    }

    /// Reads `global/pg_control`. `None` during a write, or if it is damaged.
    pub(super) fn control(&self) -> io::Result<Option<ControlState>> {
        let bytes = self.read("global/pg_control", ControlState::BYTES)?;
        Ok(bytes.and_then(|bytes| ControlState::read(&bytes)))
    }

    /// Reads a file of at most `bytes_max`. `None` if it does not exist.
    ///
    /// Errors: [`io::ErrorKind::InvalidData`] if it is larger, or not a plain file of the cluster.
    pub(super) fn read(&self, path: &str, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
        let flags =
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let file = match openat2(&self.data, path, flags, Mode::empty(), resolve) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let found = fstat(&file)?;
        let plain = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
        let size = u64::try_from(found.st_size).unwrap_or(u64::MAX);
        if !plain || found.st_uid != self.uid || found.st_nlink > 1 || size > bytes_max {
            let text = format!("{path} is not a plain file of the cluster");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
        file.take(bytes_max).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }

    /// Returns the time of the last change of a file or folder. `None` if it does not exist.
    pub(super) fn modified(&self, path: &str) -> Option<Modified> {
        let found = statat(&self.data, path, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let nanos = i64::try_from(found.st_mtime_nsec).unwrap_or(0);
        Some((found.st_mtime, nanos))
    }

    /// Returns the names in a folder. A missing folder is empty.
    pub(super) fn names(&self, folder: &str) -> io::Result<Vec<String>> {
        let Some(dir) = self.open_folder(folder)? else {
            return Ok(Vec::new());
        };
        let mut names = Vec::new();
        for entry in Dir::new(dir)? {
            let entry = entry?;
            if names.len() >= NAMES_MAX {
                let text = format!("{folder} has more than {NAMES_MAX} entries");
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
            if let Ok(name) = entry.file_name().to_str() {
                names.push(name.to_owned());
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn open_folder(&self, folder: &str) -> io::Result<Option<OwnedFd>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        match openat2(&self.data, folder, flags, Mode::empty(), resolve) {
            Ok(dir) => Ok(Some(dir)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// Finished segments that the server handed over. Each is released after it is in the store.
pub(super) trait FinishedSegments {
    /// The folder with the contents.
    fn folder(&self) -> &'static str;

    /// A folder that changes with every new segment.
    fn changing(&self) -> &'static str;

    /// Returns the names of all, in order: segments, and small files that need not be stored.
    fn finished(&self) -> io::Result<Vec<String>>;

    /// Lets the server forget a segment.
    fn release(&self, name: &str) -> io::Result<()>;
}

impl FinishedSegments for ClusterFiles {
    fn folder(&self) -> &'static str {
        match self.way {
            ArchiveWay::Spool => SPOOL,
            ArchiveWay::Status => WAL,
        }
    }

    fn changing(&self) -> &'static str {
        match self.way {
            ArchiveWay::Spool => SPOOL,
            ArchiveWay::Status => STATUS,
        }
    }

    fn finished(&self) -> io::Result<Vec<String>> {
        let names = self.names(self.changing())?;
        Ok(match self.way {
            ArchiveWay::Spool => names
                .into_iter()
                .filter(|name| !name.starts_with('.') && !name.starts_with("archtemp."))
                .collect(),
            ArchiveWay::Status => names
                .iter()
                .filter_map(|name| name.strip_suffix(READY).map(str::to_owned))
                .collect(),
        })
    }

    fn release(&self, name: &str) -> io::Result<()> {
        let Some(dir) = self.open_folder(self.changing())? else {
            return Ok(());
        };
        let released = match self.way {
            ArchiveWay::Spool => unlinkat(&dir, c_string(name)?.as_c_str(), AtFlags::empty()),
            ArchiveWay::Status => {
                let (from, to) = (format!("{name}{READY}"), format!("{name}{DONE}"));
                renameat(&dir, from.as_str(), &dir, to.as_str())
            }
        };
        match released {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn c_string(name: &str) -> io::Result<CString> {
    CString::new(name).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    fn cluster(way: ArchiveWay) -> (tempfile::TempDir, ClusterFiles) {
        let dir = tempfile::tempdir().unwrap();
        for folder in [SPOOL, WAL, STATUS] {
            fs::create_dir(dir.path().join(folder)).unwrap();
        }
        let files = ClusterFiles::open(dir.path(), way).unwrap().unwrap();
        (dir, files)
    }

    const FIRST: &str = "000000010000000000000001";
    const SECOND: &str = "000000010000000000000002";

    #[test]
    fn both_ways_list_and_release_segments() {
        for way in [ArchiveWay::Spool, ArchiveWay::Status] {
            let (dir, files) = cluster(way);
            for name in [SECOND, FIRST] {
                fs::write(dir.path().join(files.folder()).join(name), name).unwrap();
                if way == ArchiveWay::Status {
                    fs::write(dir.path().join(STATUS).join(format!("{name}.ready")), "").unwrap();
                }
            }
            fs::write(dir.path().join(SPOOL).join("archtemp.1"), "half").unwrap();
            assert_eq!(files.finished().unwrap(), [FIRST, SECOND]);
            let before = files.modified(files.changing());
            files.release(FIRST).unwrap();
            files.release(FIRST).unwrap();
            assert_eq!(files.finished().unwrap(), [SECOND]);
            assert_ne!(files.modified(files.changing()), before);
            if way == ArchiveWay::Status {
                assert!(
                    dir.path()
                        .join(STATUS)
                        .join(format!("{FIRST}.done"))
                        .exists()
                );
            }
        }
    }

    #[test]
    fn links_pipes_and_large_files_are_rejected() {
        let (dir, files) = cluster(ArchiveWay::Spool);
        let spool = dir.path().join(SPOOL);
        fs::write(dir.path().join("secret"), "secret").unwrap();
        symlink(dir.path().join("secret"), spool.join("link")).unwrap();
        symlink("/etc", dir.path().join("folder")).unwrap();
        fs::hard_link(dir.path().join("secret"), spool.join("hard")).unwrap();
        let pipe = rustix::fs::mknodat(
            rustix::fs::CWD,
            spool.join("pipe"),
            FileType::Fifo,
            Mode::RUSR,
            0,
        );
        pipe.unwrap();
        fs::write(spool.join("large"), [0; 100]).unwrap();
        for name in ["link", "hard", "pipe", "large", "../secret", "."] {
            let read = files.read(&format!("{SPOOL}/{name}"), 50);
            assert!(read.is_err(), "{name}: {read:?}");
        }
        assert!(files.read("folder/passwd", 1 << 20).is_err());
        assert!(files.names("folder").is_err());
        assert_eq!(files.read("missing", 50).unwrap(), None);
        assert_eq!(
            files
                .read(&format!("{SPOOL}/large"), 100)
                .unwrap()
                .unwrap()
                .len(),
            100
        );
        assert!(
            ClusterFiles::open(&dir.path().join("none"), ArchiveWay::Spool)
                .unwrap()
                .is_none()
        );
    }
}
