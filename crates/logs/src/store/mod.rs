//! Keeps lines.
//!
//! What is appended is durable in the log of this node before it is acknowledged. [`Store::upkeep`], which the caller runs every
//! second or so, turns the log into files of an object store, one for each project and day, merges small files and removes old
//! ones. A file's name says which segments of whose log it was made of; that alone decides which files count, so that
//! what is done twice after a crash is there once. Several nodes share the files; what is in a node's log only that node reads.

mod codec;
mod disk;
mod files;
mod index;
mod log;
mod names;
mod objects;
mod upkeep;
mod view;
mod writer;

#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    fs, io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use datafusion::{
    arrow::error::ArrowError,
    object_store::{self, ObjectStore},
    parquet::errors::ParquetError,
};
use futures_util::StreamExt;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Semaphore, mpsc, oneshot};

pub use self::{
    codec::ROW_BYTES_MAX,
    view::{FileEntry, View},
};
use self::{
    codec::Record,
    disk::{Disk, Folder},
    index::Index,
    log::Before,
    names::Named,
    objects::LocalObjects,
    upkeep::Upkeep,
    view::Pins,
    writer::{Job, Writer},
};
use crate::event::Event;

/// What one append takes in the log at most, in bytes.
pub const BATCH_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Marks that are remembered at most.
pub const MARKS_MAX: usize = 64 * 1024;
/// A mark's name and value in bytes at most.
pub const MARK_BYTES_MAX: usize = 4096;
/// Appends that wait for the disk at most; more wait for these.
const QUEUE: usize = 1024;

/// Where lines are kept, and within which bounds.
#[derive(Debug, Clone)]
pub struct Options {
    /// A folder of this node alone.
    pub folder: PathBuf,
    /// Names what this node writes among what others write. No two nodes that share an object store have the same.
    pub node: String,
    /// Where files are kept. `None`: on this machine. It must keep what it says it has, and show it at once.
    pub objects: Option<Arc<dyn ObjectStore>>,
    /// The folder of files where there is no object store, on the same file system as `folder`: nodes of one machine share it.
    /// `None`: in `folder`.
    pub files: Option<PathBuf>,
    /// Size at which a segment of the log becomes files: also about what making them takes in memory, a few times over.
    pub seal_bytes: u64,
    /// Age at which it does: so long do other nodes wait for lines.
    pub seal_after: Duration,
    /// What the log may take on disk while files cannot be made; then appends are refused.
    pub log_bytes: u64,
    /// What appends that wait for the disk may take in memory; more wait for these.
    pub queue_bytes: u32,
    /// What of the log is kept laid out in memory because it was read, at most.
    pub laid_out_bytes: u64,
    /// Days for which the lines of a project are kept, unless [`Store::retain`] says otherwise.
    pub retention_days: u32,
    /// How long a file that others took over stays for readers that found it: longer than the longest query.
    pub grace: Duration,
    /// Small files of a project and day that are merged at once.
    pub merge_files: usize,
    /// What is merged into one file at most, as it was in the log: also about what merging takes in memory, a few times over.
    pub merge_bytes: u64,
    /// How often all files are looked through for what is old or small.
    pub sweep_every: Duration,
}

impl Options {
    /// Options that fit most.
    pub fn new(folder: impl Into<PathBuf>, node: impl Into<String>) -> Self {
        Self {
            folder: folder.into(),
            node: node.into(),
            objects: None,
            files: None,
            seal_bytes: 16 * 1024 * 1024,
            seal_after: Duration::from_mins(1),
            log_bytes: 1024 * 1024 * 1024,
            queue_bytes: 32 * 1024 * 1024,
            laid_out_bytes: 64 * 1024 * 1024,
            retention_days: 7,
            grace: Duration::from_mins(5),
            merge_files: 8,
            merge_bytes: 64 * 1024 * 1024,
            sweep_every: Duration::from_hours(1),
        }
    }
}

/// Lines of one project that are kept together or not at all.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    /// Whose they are.
    pub project: String,
    /// The lines.
    pub events: Vec<Event>,
    /// What is remembered with them.
    pub mark: Option<Mark>,
}

/// How far a reader came: remembered with the lines it read, so that each is kept once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// Whose it is, such as the file that is read.
    pub name: String,
    /// What it says: the reader's own matter. An empty one is forgotten.
    pub value: String,
}

/// Lines could not be kept or read.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The disk failed. What was appended is not kept.
    #[error("the disk failed under log lines")]
    Io(#[from] io::Error),
    /// The object store failed.
    #[error("the object store failed under log lines")]
    Objects(#[from] object_store::Error),
    /// Lines do not fit their columns.
    #[error("laying out log lines")]
    Layout(#[from] ArrowError),
    /// A file cannot be written or read.
    #[error("a file of log lines cannot be written or read")]
    Parquet(#[from] ParquetError),
    /// The log is damaged where it was durable.
    #[error(
        "{file} of the log of lines is damaged at byte {offset}: restore it, or move it and all later ones away and lose their lines"
    )]
    Corrupt {
        /// The file's name.
        file: String,
        /// Where.
        offset: u64,
    },
    /// Another process has the folder.
    #[error("another process keeps log lines in {0}")]
    Locked(PathBuf),
    /// Files could not be made of what was appended, for so long that there is no room left. To be tried again.
    #[error("{bytes} bytes of log lines wait for the object store: there is no room for more")]
    Full {
        /// The bound.
        bytes: u64,
    },
    /// More at once than is taken.
    #[error("{what} of {size}: the most is {max}")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// How large.
        size: usize,
        /// What is allowed.
        max: usize,
    },
    /// A project or a node is named by what is no name.
    #[error("{0:?} is no name of a project or a node")]
    Name(String),
    /// The store is being closed.
    #[error("the store of log lines is closed")]
    Closed,
}

/// What a store did and has, for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Lines that were acknowledged since it was opened.
    pub rows: u64,
    /// Bytes these took in the log.
    pub bytes: u64,
    /// Times the disk was waited for.
    pub syncs: u64,
    /// Lines that are in no file yet.
    pub pending_rows: u64,
    /// Segments of the log.
    pub segments: u64,
    /// Bytes of the log on disk.
    pub log_bytes: u64,
    /// How long the oldest line has waited for its file, in microseconds.
    pub lag: i64,
    /// Files that were made.
    pub files: u64,
    /// Files that were merged into others.
    pub merged: u64,
    /// Files that were removed.
    pub removed: u64,
    /// Times that the disk or the object store failed.
    pub failures: u64,
}

/// A number that only grows.
#[derive(Debug, Default)]
struct Counter(AtomicU64);

impl Counter {
    fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
struct Counters {
    rows: Counter,
    bytes: Counter,
    syncs: Counter,
    files: Counter,
    merged: Counter,
    removed: Counter,
    failures: Counter,
}

/// What the parts of a store have in common.
#[derive(Debug)]
struct Shared {
    options: Options,
    objects: Arc<dyn ObjectStore>,
    index: Mutex<Index>,
    pins: Arc<Pins>,
    counters: Counters,
    /// Bytes of the log that are kept laid out.
    laid_out: Arc<AtomicU64>,
}

impl Shared {
    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock()
    }

    /// What an object store says of its files under a path.
    async fn list(
        &self,
        under: Option<&object_store::path::Path>,
    ) -> Result<Vec<Named>, StoreError> {
        let mut found = self.objects.list(under);
        let mut files = Vec::new();
        while let Some(meta) = found.next().await {
            let meta = meta?;
            files.extend(Named::parse(&meta.location, meta.size));
        }
        Ok(files)
    }
}

/// The lines of all projects.
#[derive(Debug)]
pub struct Store {
    shared: Arc<Shared>,
    disk: Arc<dyn Disk>,
    upkeep: tokio::sync::Mutex<Upkeep>,
    retention: Mutex<Arc<HashMap<String, u32>>>,
    room: Arc<Semaphore>,
    jobs: Option<mpsc::Sender<Job>>,
    writer: Option<JoinHandle<()>>,
    /// Held as long as the folder is ours.
    lock: Option<fs::File>,
}

impl Store {
    /// Opens what is kept.
    pub async fn open(options: Options) -> Result<Self, StoreError> {
        names::check(&options.node)?;
        let made = options.clone();
        let open = move || {
            fs::create_dir_all(&made.folder)?;
            let lock = fs::File::create(made.folder.join("lock"))?;
            lock.try_lock()
                .map_err(|_| StoreError::Locked(made.folder.clone()))?;
            let disk = Folder::open(&made.folder.join("log"))?;
            let objects = if let Some(objects) = made.objects {
                objects
            } else {
                let files = made.files.unwrap_or_else(|| made.folder.join("objects"));
                Arc::new(LocalObjects::open(&files, made.folder.join("staging"))?)
            };
            Ok::<_, StoreError>((lock, disk, objects))
        };
        let (lock, disk, objects) = tokio::task::spawn_blocking(open)
            .await
            .map_err(io::Error::other)??;
        let mut store = Self::over(options, Arc::new(disk), objects).await?;
        store.lock = Some(lock);
        Ok(store)
    }

    /// Opens what is kept on a disk and in an object store.
    async fn over(
        mut options: Options,
        disk: Arc<dyn Disk>,
        objects: Arc<dyn ObjectStore>,
    ) -> Result<Self, StoreError> {
        // Places in a segment are numbers of 32 bits.
        options.seal_bytes = options.seal_bytes.min(1024 * 1024 * 1024);
        let reading = Arc::clone(&disk);
        let (index, last) = tokio::task::spawn_blocking(move || log::recover(&*reading))
            .await
            .map_err(io::Error::other)??;
        let room = Arc::new(Semaphore::new(options.queue_bytes as usize));
        let shared = Arc::new(Shared {
            options,
            objects,
            index: Mutex::new(index),
            pins: Arc::default(),
            counters: Counters::default(),
            laid_out: Arc::default(),
        });
        let before = match last {
            Some(last) => last,
            // A new folder: segments that files were made of before, in a folder that is lost, do not come again.
            None => Before {
                number: Self::last_of_files(&shared).await?,
                length: 0,
            },
        };
        let (jobs, waiting) = mpsc::channel(QUEUE);
        let (for_writer, on) = (Arc::clone(&shared), Arc::clone(&disk));
        let writer = tokio::task::spawn_blocking(move || Writer::begin(for_writer, on, before))
            .await
            .map_err(io::Error::other)??;
        let writer = std::thread::Builder::new()
            .name("gantry-logs".into())
            .spawn(move || writer.run(waiting))?;
        Ok(Self {
            shared,
            disk,
            upkeep: tokio::sync::Mutex::default(),
            retention: Mutex::default(),
            room,
            jobs: Some(jobs),
            writer: Some(writer),
            lock: None,
        })
    }

    async fn last_of_files(shared: &Shared) -> Result<u64, StoreError> {
        let files = shared.list(None).await?;
        Ok(files
            .iter()
            .filter(|file| file.name.node == shared.options.node)
            .map(|file| file.name.last)
            .max()
            .unwrap_or(0))
    }

    /// Keeps lines. When this returns they are durable. When it fails they are not kept, but for one case: the disk failed, and the
    /// process ends before anything else could be kept. May wait for others. Texts, attributes and lines beyond their bounds are cut as [`crate::event`] says.
    pub async fn append(&self, batch: Batch) -> Result<(), StoreError> {
        let Batch {
            project,
            events,
            mark,
        } = batch;
        if events.is_empty() && mark.is_none() {
            return Ok(());
        }
        names::check(&project)?;
        if let Some(mark) = &mark {
            bounded("a mark", mark.name.len() + mark.value.len(), MARK_BYTES_MAX)?;
            let marks = &self.shared.index().marks;
            bounded(
                "marks",
                marks.len()
                    + usize::from(!marks.contains_key(&mark.name) && !mark.value.is_empty()),
                MARKS_MAX,
            )?;
        }
        let (record, payload) = codec::lines(&project, &events, mark.as_ref());
        drop(events);
        bounded("lines in bytes", payload.len(), BATCH_BYTES_MAX)?;
        self.write(record, payload).await
    }

    async fn write(&self, record: Record, payload: Vec<u8>) -> Result<(), StoreError> {
        let bytes = u32::try_from(payload.len())
            .unwrap_or(u32::MAX)
            .min(self.shared.options.queue_bytes);
        let room = Arc::clone(&self.room)
            .acquire_many_owned(bytes)
            .await
            .map_err(|_| StoreError::Closed)?;
        self.ask(|done| Job::Append {
            record,
            payload,
            room,
            done,
        })
        .await
    }

    async fn ask(
        &self,
        job: impl FnOnce(oneshot::Sender<Result<(), StoreError>>) -> Job,
    ) -> Result<(), StoreError> {
        let (done, answer) = oneshot::channel();
        let jobs = self.jobs.as_ref().ok_or(StoreError::Closed)?;
        jobs.send(job(done)).await.map_err(|_| StoreError::Closed)?;
        answer.await.map_err(|_| StoreError::Closed)?
    }

    /// The mark last kept under a name.
    pub fn mark(&self, name: &str) -> Option<Mark> {
        self.shared.index().marks.get(name).map(|value| Mark {
            name: name.to_owned(),
            value: value.clone(),
        })
    }

    /// Sets for how many days the lines of some projects are kept; those of all others as the options say.
    pub fn retain(&self, days: HashMap<String, u32>) {
        *self.retention.lock() = Arc::new(days);
    }

    /// Removes a project's lines: those of this node's log and all files. What other nodes have in their logs stays until they are
    /// told as well. Does not wait for readers.
    pub async fn forget(&self, project: &str) -> Result<(), StoreError> {
        names::check(project)?;
        // No file is being made or merged meanwhile.
        let _upkeep = self.upkeep.lock().await;
        let (record, payload) = codec::forget(project);
        self.write(record, payload).await?;
        let under = names::project_folder(project);
        let found = self
            .shared
            .objects
            .list(Some(&under))
            .map(|meta| meta.map(|meta| meta.location))
            .boxed();
        let mut removed = self.shared.objects.delete_stream(found);
        while let Some(done) = removed.next().await {
            match done {
                Ok(_) => self.shared.counters.removed.add(1),
                Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// What the store did and has. `now`: as for [`Self::upkeep`].
    pub fn stats(&self, now: i64) -> Stats {
        let counters = &self.shared.counters;
        let index = self.shared.index();
        Stats {
            rows: counters.rows.get(),
            bytes: counters.bytes.get(),
            syncs: counters.syncs.get(),
            pending_rows: index.segments.iter().map(|segment| segment.rows).sum(),
            segments: index.segments.len() as u64,
            log_bytes: index.bytes(),
            lag: index
                .segments
                .iter()
                .find_map(|segment| segment.since)
                .map_or(0, |since| now.saturating_sub(since).max(0)),
            files: counters.files.get(),
            merged: counters.merged.get(),
            removed: counters.removed.get(),
            failures: counters.failures.get(),
        }
    }
}

impl Drop for Store {
    /// Waits for what is being written, so that the folder is free when this is gone.
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

fn bounded(what: &'static str, size: usize, max: usize) -> Result<(), StoreError> {
    if size <= max {
        Ok(())
    } else {
        Err(StoreError::TooLarge { what, size, max })
    }
}
