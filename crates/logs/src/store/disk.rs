//! The file system interface of the log. Tests replace it to simulate power loss.

use std::{
    fmt::Debug,
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::error::StoreError;

/// A directory of append-only files.
pub(super) trait Disk: Debug + Send + Sync {
    /// Returns the file names.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Creates an empty file, replacing an existing one.
    fn create(&self, name: &str) -> io::Result<Arc<dyn LogFile>>;
    /// Opens an existing file.
    fn open(&self, name: &str) -> io::Result<Arc<dyn LogFile>>;
    /// Removes a file. Succeeds if the file does not exist.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Renames a file, replacing an existing one.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Waits until creations, removals and renames are durable.
    fn sync(&self) -> io::Result<()>;
}

/// An append-only file.
pub(super) trait LogFile: Debug + Send + Sync {
    /// Writes at the end of the file, which is at `offset`.
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Waits until writes are durable.
    fn sync(&self) -> io::Result<()>;
    /// Reads exactly `count` bytes. Succeeds even after the file was removed.
    fn read(&self, offset: u64, count: usize) -> io::Result<Vec<u8>>;
    /// Returns the length in bytes.
    fn length(&self) -> io::Result<u64>;
}

/// A directory of the file system.
#[derive(Debug)]
pub(super) struct DiskDirectory {
    path: PathBuf,
    handle: File,
}

impl DiskDirectory {
    /// Opens a directory and creates it if it does not exist.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        fs::create_dir_all(path)?;
        if let Some(parent) = path.parent() {
            sync_directory(parent)?;
        }
        Ok(Self {
            path: path.to_owned(),
            handle: File::open(path)?,
        })
    }
}

/// Locks a data directory until the returned file is closed.
pub(super) fn lock_folder(folder: &Path) -> Result<File, StoreError> {
    let lock = File::create(folder.join("lock"))?;
    lock.try_lock()
        .map_err(|_| StoreError::Locked(folder.to_owned()))?;
    Ok(lock)
}

/// Runs work on a thread that may block.
pub(super) async fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(io::Error::other)
}

/// Waits until the entries of a directory are durable.
pub(super) fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

impl Disk for DiskDirectory {
    fn list(&self) -> io::Result<Vec<String>> {
        fs::read_dir(&self.path)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect()
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn LogFile>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(self.path.join(name))?;
        Ok(Arc::new(file))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn LogFile>> {
        Ok(Arc::new(File::open(self.path.join(name))?))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.path.join(name)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path.join(from), self.path.join(to))
    }

    fn sync(&self) -> io::Result<()> {
        self.handle.sync_all()
    }
}

impl LogFile for File {
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn read(&self, offset: u64, count: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; count];
        self.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }
}
