//! The files of the log, behind a seam: tests cut the power.

use std::{
    fmt::Debug,
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};

/// A folder of files that are only ever written at their end.
pub(super) trait Disk: Debug + Send + Sync {
    /// The names of the files.
    fn list(&self) -> io::Result<Vec<String>>;
    /// An empty file in place of whatever has the name.
    fn create(&self, name: &str) -> io::Result<Arc<dyn LogFile>>;
    /// A file that is there.
    fn open(&self, name: &str) -> io::Result<Arc<dyn LogFile>>;
    /// Removes a file. One that is not there is as good as removed.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Waits until what was created and removed stays so.
    fn sync(&self) -> io::Result<()>;
}

/// One file.
pub(super) trait LogFile: Debug + Send + Sync {
    /// Writes at an offset, which is where the file ends.
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Waits until what was written stays.
    fn sync(&self) -> io::Result<()>;
    /// Reads exactly so much. Also works after the file was removed.
    fn read(&self, offset: u64, count: usize) -> io::Result<Vec<u8>>;
    /// How long it is.
    fn length(&self) -> io::Result<u64>;
}

/// A real folder.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    handle: File,
}

impl Folder {
    /// Opens a folder, which is made if need be.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        fs::create_dir_all(path)?;
        if let Some(parent) = path.parent() {
            sync_folder(parent)?;
        }
        Ok(Self {
            path: path.to_owned(),
            handle: File::open(path)?,
        })
    }
}

/// Waits until what a folder lists stays so.
pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

impl Disk for Folder {
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
            done => done,
        }
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
