//! Copies the files of a running cluster, which belong to a tenant and change meanwhile.
//!
//! Only names that PostgreSQL uses are copied. Every file is opened relative to an open folder,
//! without following links or blocking on pipes, and must be a plain file of the cluster's account.
//! A file that disappears or shrinks is normal: replay of the WAL since the begin of the backup
//! restores it.

use std::{
    ffi::CStr,
    fs::File,
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use rustix::{
    fs::{
        Dir, FileType, Mode, OFlags, ResolveFlags, SeekFrom, fstat, mkdirat, openat, openat2, seek,
    },
    io::Errno,
};

use crate::{
    clusters::{
        identity,
        online_copy::direct_io::{AlignedBuffer, DirectFile},
    },
    error::{ClusterError, Result},
    supervisor::ProcessOwner,
};

/// Largest file, in bytes: PostgreSQL splits relations into segments of 1 GiB.
const FILE_BYTES_MAX: u64 = 1 << 30;
/// Maximum number of files and folders.
const FILES_MAX: u64 = 500_000;
/// Bytes of a file between two checks of cancellation, speed and free space.
const CHUNK: usize = 4 << 20;
/// Size from which a file is written past the page cache, in bytes. Smaller files would each wait
/// for the disk.
const DIRECT_MIN: u64 = 1 << 20;
/// Space that a copy leaves free, in bytes.
const FREE_MIN: u64 = 256 << 20;
/// Space that remains free after a copy that shares its blocks, in bytes.
const FREE_MIN_SHARED: u64 = 64 << 20;
/// Size of `pg_control`, in bytes.
const CONTROL_BYTES: usize = 8192;
/// Attempts to read `pg_control` while the server rewrites it.
const CONTROL_ATTEMPTS: usize = 50;
const CONTROL_PAUSE: Duration = Duration::from_millis(20);

/// Folders of the data directory that a server expects, and that are empty in a copy.
const EMPTY: &[&CStr] = &[
    c"pg_dynshmem",
    c"pg_notify",
    c"pg_replslot",
    c"pg_serial",
    c"pg_snapshots",
    c"pg_stat",
    c"pg_stat_tmp",
    c"pg_subtrans",
    c"pg_tblspc",
    c"pg_logical",
    c"pg_logical/mappings",
    c"pg_logical/snapshots",
    c"pg_wal",
    c"pg_wal/archive_status",
];
/// Folders that are copied. Their subfolders are listed too.
const FOLDERS: &[&CStr] = &[
    c"global",
    c"pg_commit_ts",
    c"pg_multixact",
    c"pg_multixact/members",
    c"pg_multixact/offsets",
    c"pg_twophase",
    c"pg_xact",
];

/// Speed and cancellation of a copy, shared with the task that waits for it.
#[derive(Debug)]
pub(super) struct CopyControl {
    cancelled: AtomicBool,
    /// Bytes per second for files that cannot share blocks.
    bytes_per_sec: AtomicU64,
}

impl CopyControl {
    pub(super) fn new(bytes_per_sec: u64) -> Self {
        Self {
            cancelled: AtomicBool::new(false),
            bytes_per_sec: AtomicU64::new(bytes_per_sec),
        }
    }

    /// Stops the copy before its next chunk.
    pub(super) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    pub(super) fn bytes_per_sec(&self) -> u64 {
        self.bytes_per_sec.load(Ordering::Relaxed)
    }

    pub(super) fn set_bytes_per_sec(&self, speed: u64) {
        self.bytes_per_sec.store(speed, Ordering::Relaxed);
    }
}

/// Counts of a finished copy.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct CopyCounts {
    /// Files.
    pub(super) files: u64,
    /// Allocated bytes of the originals.
    pub(super) bytes: u64,
    /// Files that share blocks with their original.
    pub(super) shared: u64,
}

/// A copy in progress, from one data directory into a new one.
pub(super) struct Copier {
    from: OwnedFd,
    to: OwnedFd,
    /// Path of the original, for messages.
    path: PathBuf,
    /// Account of the original's files.
    source_uid: u32,
    owner: ProcessOwner,
    control: Arc<CopyControl>,
    bytes_max: u64,
    buffer: AlignedBuffer,
    counts: CopyCounts,
    entries: u64,
    /// Size of the original, until it was compared with the free space.
    expected_bytes: Option<u64>,
}

impl Copier {
    /// Opens the original, and creates `to`, which must not exist.
    pub(super) fn new(
        from: &Path,
        to: &Path,
        owners: (ProcessOwner, ProcessOwner),
        bytes_max: u64,
        control: Arc<CopyControl>,
    ) -> Result<Self> {
        let (source_owner, owner) = owners;
        let failed = |error| refused(from, &io::Error::from(error).to_string());
        rustix::fs::mkdir(to, Mode::RWXU).map_err(failed)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = |path: &Path| rustix::fs::open(path, flags, Mode::empty()).map_err(failed);
        Ok(Self {
            from: open(from)?,
            to: open(to)?,
            path: from.to_owned(),
            source_uid: source_owner.uid(),
            owner,
            control,
            bytes_max,
            buffer: AlignedBuffer::new(CHUNK),
            counts: CopyCounts::default(),
            entries: 0,
            expected_bytes: None,
        })
    }

    /// Compares a size with the free space before the first file that cannot share its blocks.
    pub(super) fn expect(&mut self, bytes: u64) {
        self.expected_bytes = Some(bytes);
    }

    fn check_space(&mut self) -> Result<()> {
        let Some(bytes) = self.expected_bytes.take() else {
            return Ok(());
        };
        let space = rustix::fs::fstatvfs(&self.to)
            .map_err(|error| refused(&self.path, &io::Error::from(error).to_string()))?;
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        match missing_space(bytes, free) {
            Some(text) => Err(refused(&self.path, &text)),
            None => Ok(()),
        }
    }

    /// Copies everything but the WAL and `pg_control`.
    pub(super) fn copy_files(&mut self) -> Result<()> {
        for name in EMPTY {
            self.make_folder(name)?;
        }
        self.copy_one(c"PG_VERSION")?;
        self.copy_one(c"pg_logical/replorigin_checkpoint")?;
        for name in FOLDERS {
            self.make_folder(name)?;
            self.copy_folder(name)?;
        }
        self.make_folder(c"base")?;
        for database in self.names(c"base")? {
            // Temporary files lie in another folder; databases have numbers.
            if database.to_bytes().iter().all(u8::is_ascii_digit) {
                let folder = joined(c"base", &database);
                self.make_folder(&folder)?;
                self.copy_folder(&folder)?;
            }
        }
        Ok(())
    }

    /// Copies `pg_control`. Repeats reading until its checksum is right.
    pub(super) fn copy_control(&mut self) -> Result<()> {
        const NAME: &CStr = c"global/pg_control";
        for _ in 0..CONTROL_ATTEMPTS {
            self.check_cancelled()?;
            let (file, _) = self
                .open(NAME)?
                .ok_or_else(|| refused(&self.path, "global/pg_control is missing"))?;
            let mut bytes = vec![0; CONTROL_BYTES];
            let read =
                read_at_most(&file, &mut bytes).map_err(|error| self.failed(NAME, &error))?;
            if read == CONTROL_BYTES && identity::is_valid_control(&bytes) {
                return self.write(NAME, &bytes);
            }
            std::thread::sleep(CONTROL_PAUSE);
        }
        Err(refused(
            &self.path,
            "global/pg_control has no valid checksum",
        ))
    }

    /// Copies a WAL segment, which must exist with this size.
    pub(super) fn copy_segment(&mut self, name: &str, bytes: u64) -> Result<()> {
        let path = joined(c"pg_wal", &c_string(name)?);
        let copied = self.copy_one(&path)?;
        if copied == Some(bytes) {
            return Ok(());
        }
        let text = format!("WAL segment {name} was removed before it was copied");
        Err(refused(&self.path, &text))
    }

    /// Writes a new file into the copy.
    pub(super) fn write(&mut self, name: &CStr, bytes: &[u8]) -> Result<()> {
        let file = self.create(name)?;
        io::Write::write_all(&mut &file, bytes).map_err(|error| self.failed(name, &error))
    }

    /// Copies the file of another folder, which only the operator can write.
    pub(super) fn adopt(&mut self, from: &Path, name: &CStr) -> Result<()> {
        let bytes = std::fs::read(from).map_err(|error| self.failed(name, &error))?;
        self.write(name, &bytes)
    }

    /// Hands the copy over to its owner and returns the counts.
    pub(super) fn finish(self) -> Result<CopyCounts> {
        let to = File::from(self.to);
        self.owner
            .own_file(&to)
            .map_err(|error| refused(&self.path, &error.to_string()))?;
        Ok(self.counts)
    }

    fn copy_folder(&mut self, folder: &CStr) -> Result<()> {
        for name in self.names(folder)? {
            if !is_excluded(folder, &name) {
                self.copy_one(&joined(folder, &name))?;
            }
        }
        Ok(())
    }

    /// Lists a folder. A missing folder is empty.
    fn names(&mut self, folder: &CStr) -> Result<Vec<std::ffi::CString>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let dir = match openat2(&self.from, folder, flags, Mode::empty(), resolve) {
            Ok(dir) => dir,
            Err(Errno::NOENT) => return Ok(Vec::new()),
            Err(error) => return Err(self.failed(folder, &error.into())),
        };
        let mut names = Vec::new();
        let listing = Dir::new(dir).map_err(|error| self.failed(folder, &error.into()))?;
        for entry in listing {
            let entry = entry.map_err(|error| self.failed(folder, &error.into()))?;
            self.entries += 1;
            if self.entries > FILES_MAX {
                let text = format!("it has more than {FILES_MAX} files");
                return Err(refused(&self.path, &text));
            }
            let is_folder = entry.file_type() == FileType::Directory;
            if !is_folder || folder == c"base" {
                names.push(entry.file_name().to_owned());
            }
        }
        Ok(names)
    }

    /// Copies one file, and returns its size. `None` if it is gone.
    fn copy_one(&mut self, name: &CStr) -> Result<Option<u64>> {
        self.check_cancelled()?;
        let Some((source, size)) = self.open(name)? else {
            return Ok(None);
        };
        let target = self.create(name)?;
        self.counts.files += 1;
        // Tried for each file: a failure costs only a microsecond.
        if rustix::fs::ioctl_ficlone(&target, &source).is_ok() {
            self.counts.shared += 1;
            let cloned = target
                .metadata()
                .map_err(|error| self.failed(name, &error))?;
            if cloned.len() > FILE_BYTES_MAX {
                return Err(self.too_large(name));
            }
            return Ok(Some(cloned.len()));
        }
        self.check_space()?;
        self.copy_data(&source, &target, size)
            .map_err(|error| self.failed(name, &error))?;
        Ok(Some(size))
    }

    /// Copies the first `size` bytes, without holes. Holes cost neither time nor space.
    fn copy_data(&mut self, source: &File, target: &File, size: u64) -> io::Result<()> {
        use std::os::unix::fs::FileExt;

        target.set_len(size)?;
        let mut target = if size < DIRECT_MIN {
            DirectFile::cached(target)
        } else {
            DirectFile::new(target)
        };
        let mut at = 0;
        while at < size {
            let start = match seek(source, SeekFrom::Data(at)) {
                Ok(start) => start,
                Err(Errno::NXIO) => break,
                Err(error) => return Err(error.into()),
            };
            let end = match seek(source, SeekFrom::Hole(start)) {
                Ok(end) => end.min(size),
                // The file was truncated meanwhile.
                Err(Errno::NXIO) => break,
                Err(error) => return Err(error.into()),
            };
            at = start;
            while at < end {
                let wanted = usize::try_from(end - at).unwrap_or(CHUNK).min(CHUNK);
                let buffer = self.buffer.first(wanted);
                let read = source.read_at(buffer, at)?;
                if read == 0 {
                    return Ok(());
                }
                target.write_all_at(&buffer[..read], at)?;
                at += read as u64;
                self.pause(read)?;
            }
        }
        Ok(())
    }

    /// Waits as long as the speed requires, and checks cancellation and free space.
    fn pause(&self, bytes: usize) -> io::Result<()> {
        if self.control.cancelled.load(Ordering::Relaxed) {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "cancelled"));
        }
        if bytes as u64 >= DIRECT_MIN {
            let space = rustix::fs::fstatvfs(&self.to)?;
            if space.f_bavail.saturating_mul(space.f_frsize) < FREE_MIN {
                return Err(io::Error::new(
                    io::ErrorKind::StorageFull,
                    format!("less than {} MB are free", FREE_MIN >> 20),
                ));
            }
        }
        let nanos =
            (bytes as u64).saturating_mul(1_000_000_000) / self.control.bytes_per_sec().max(1);
        // Short pauses add up: the scheduler would make each of them longer.
        if nanos > 100_000 {
            std::thread::sleep(Duration::from_nanos(nanos));
        }
        Ok(())
    }

    /// Opens a plain file of the original and returns its size. `None` if it is gone.
    fn open(&mut self, name: &CStr) -> Result<Option<(File, u64)>> {
        let flags =
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let file = match openat2(&self.from, name, flags, Mode::empty(), resolve) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP | Errno::NXIO) => return Err(self.not_plain(name)),
            Err(error) => return Err(self.failed(name, &error.into())),
        };
        let found = fstat(&file).map_err(|error| self.failed(name, &error.into()))?;
        let plain = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
        if !plain || found.st_uid != self.source_uid || found.st_nlink > 1 {
            return Err(self.not_plain(name));
        }
        let size = u64::try_from(found.st_size).unwrap_or(0);
        if size > FILE_BYTES_MAX {
            return Err(self.too_large(name));
        }
        let allocated = u64::try_from(found.st_blocks)
            .unwrap_or(0)
            .saturating_mul(512);
        self.counts.bytes = self.counts.bytes.saturating_add(allocated.min(size));
        if self.counts.bytes > self.bytes_max {
            let text = format!("it is larger than {} MB", self.bytes_max >> 20);
            return Err(refused(&self.path, &text));
        }
        Ok(Some((file, size)))
    }

    fn create(&self, name: &CStr) -> Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = openat(&self.to, name, flags, mode)
            .map(File::from)
            .map_err(|error| self.failed(name, &error.into()))?;
        self.owner
            .own_file(&file)
            .map_err(|error| self.failed(name, &error))?;
        Ok(file)
    }

    fn make_folder(&self, name: &CStr) -> Result<()> {
        mkdirat(&self.to, name, Mode::RWXU).map_err(|error| self.failed(name, &error.into()))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = openat(&self.to, name, flags, Mode::empty())
            .map_err(|error| self.failed(name, &error.into()))?;
        let owned = self.owner.own_file(&File::from(dir));
        owned.map_err(|error| self.failed(name, &error))
    }

    fn check_cancelled(&self) -> Result<()> {
        if self.control.cancelled.load(Ordering::Relaxed) {
            return Err(ClusterError::ShuttingDown);
        }
        Ok(())
    }

    fn failed(&self, name: &CStr, cause: &io::Error) -> ClusterError {
        refused(&self.path, &format!("{}: {cause}", name.to_string_lossy()))
    }

    fn not_plain(&self, name: &CStr) -> ClusterError {
        let text = "is not a plain file of the cluster's account";
        refused(&self.path, &format!("{} {text}", name.to_string_lossy()))
    }

    fn too_large(&self, name: &CStr) -> ClusterError {
        let limit = FILE_BYTES_MAX >> 20;
        let text = format!("{} is larger than {limit} MB", name.to_string_lossy());
        refused(&self.path, &text)
    }
}

/// Returns whether a file is rebuilt or discarded by the next start of a server.
fn is_excluded(folder: &CStr, name: &CStr) -> bool {
    let name = name.to_bytes();
    let is_temporary = name
        .strip_prefix(b"t")
        .is_some_and(|rest| rest.first().is_some_and(u8::is_ascii_digit) && rest.contains(&b'_'));
    is_temporary
        || name.starts_with(b"pg_internal.init")
        || name.starts_with(b"pgsql_tmp")
        || (folder == c"global" && name == b"pg_control")
}

/// Returns the free space that the copy of a cluster of `bytes` needs: a twentieth more for its WAL
/// and its rewritten tables, and what stays free.
pub fn copy_needs(bytes: u64, shares_blocks: bool) -> u64 {
    let (copied, free) = if shares_blocks {
        (0, FREE_MIN_SHARED)
    } else {
        (bytes, FREE_MIN)
    };
    copied.saturating_add(bytes / 20).saturating_add(free)
}

/// Returns the problem of copying a cluster of `bytes` into `free` bytes, if there is one.
fn missing_space(bytes: u64, free: u64) -> Option<String> {
    let needed = copy_needs(bytes, false);
    (needed > free).then(|| {
        let (needed, free) = (needed >> 20, free >> 20);
        format!("its copy needs {needed} MB, and {free} MB are free")
    })
}

fn read_at_most(file: &File, bytes: &mut [u8]) -> io::Result<usize> {
    use std::os::unix::fs::FileExt;

    let mut read = 0;
    while read < bytes.len() {
        match file.read_at(&mut bytes[read..], read as u64)? {
            0 => break,
            more => read += more,
        }
    }
    Ok(read)
}

fn joined(folder: &CStr, name: &CStr) -> std::ffi::CString {
    let mut path = folder.to_bytes().to_vec();
    path.push(b'/');
    path.extend_from_slice(name.to_bytes());
    // Neither part contains a NUL.
    std::ffi::CString::new(path).unwrap_or_default()
}

fn c_string(text: &str) -> Result<std::ffi::CString> {
    let converted = std::ffi::CString::new(text);
    converted.map_err(|_| ClusterError::Copy("a name contains a NUL".to_owned()))
}

fn refused(path: &Path, text: &str) -> ClusterError {
    tracing::warn!(path = %path.display(), text, "cluster cannot be copied");
    ClusterError::Copy(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_with_shared_blocks_needs_a_twentieth() {
        let mb = 1 << 20;
        assert_eq!(copy_needs(1000 * mb, true), (50 + 64) * mb);
        assert_eq!(copy_needs(1000 * mb, false), (1000 + 50 + 256) * mb);
    }

    #[test]
    fn missing_space_is_told_with_both_numbers() {
        let mb = 1 << 20;
        assert_eq!(missing_space(100 * mb, 361 * mb), None);
        assert_eq!(
            missing_space(100 * mb, 360 * mb).unwrap(),
            "its copy needs 361 MB, and 360 MB are free"
        );
        assert!(missing_space(u64::MAX, u64::MAX - 1).is_some());
    }
}
