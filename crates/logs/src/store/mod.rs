//! Durable storage of log lines.
//!
//! [`Store::append`] returns after a batch is durable in the write-ahead log of the node.
//! [`Store::upkeep`], called about once a second, flushes the log to Parquet files in an object
//! store (one file per project and day), merges small files and deletes expired ones. The name of a
//! file records the node and the log segments that it was made from. Names alone decide which files
//! are valid, so a flush repeated after a crash creates no duplicates. Nodes share the files; the
//! log of a node is read by that node only.

mod batch_keys;
mod checksums;
mod codec;
mod counters;
mod damage;
mod disk;
mod files;
mod index;
mod known_files;
mod log;
mod merge_policy;
mod names;
pub(crate) mod objects;
mod recovery;
mod repair;
mod spool;
mod sweep;
mod tail;
mod upkeep;
mod verified;
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
        atomic::{AtomicI64, AtomicU64},
    },
    thread::JoinHandle,
    time::Duration,
};

use datafusion::{
    arrow::error::ArrowError,
    object_store::{self, ObjectStore},
    parquet::errors::ParquetError,
};
use futures_util::{StreamExt, TryStreamExt};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Semaphore, mpsc, oneshot};

pub(crate) use self::verified::TAIL_BYTES;
pub use self::{
    batch_keys::{BATCH_KEYS_PROJECT_MAX, BatchKey},
    checksums::Damage,
    codec::ROW_BYTES_MAX,
    recovery::LogDamage,
    repair::{FileDamage, RepairSource, RepairedFile, StoreFolders, StoreReport},
    tail::{TailBatch, TailLimit, TailState},
    view::{FileEntry, View},
};
use self::{
    codec::Record,
    counters::Counters,
    damage::DamagedFiles,
    disk::{Disk, DiskDirectory},
    index::Index,
    known_files::KnownFiles,
    log::SegmentEnd,
    objects::LocalObjects,
    tail::Tails,
    upkeep::Upkeep,
    verified::ChecksumCache,
    view::ViewPins,
    writer::{LogWriter, WriteJob},
};
use crate::event::Event;

/// Maximum size of one append in the log, in bytes.
pub const BATCH_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Maximum number of stored reader offsets.
pub const READER_OFFSETS_MAX: usize = 64 * 1024;
/// Maximum size of the name and the value of a reader offset, in bytes.
pub const READER_OFFSET_BYTES_MAX: usize = 4096;
/// Maximum number of queued appends. Further callers wait.
const QUEUE_MAX: usize = 1024;

/// Locations and limits of a store.
#[derive(Debug, Clone)]
pub struct Options {
    /// The data directory of this node. Must not be shared.
    pub folder: PathBuf,
    /// The name of this node in file names. Must be unique among the nodes of an object store.
    pub node: String,
    /// The object store for files; `None` stores them on the local disk. It must be durable and
    /// strongly consistent.
    pub objects: Option<Arc<dyn ObjectStore>>,
    /// The directory for files if `objects` is `None`. It must be on the same file system as
    /// `folder`, and nodes of one machine can share it. `None` selects a subdirectory of `folder`.
    pub files: Option<PathBuf>,
    /// Size at which a log segment is flushed to files. A flush uses a small multiple of it in
    /// memory.
    pub seal_bytes: u64,
    /// Age at which a log segment is flushed. Other nodes see lines after this time.
    pub seal_after: Duration,
    /// Maximum size of the log on disk. Beyond it appends fail with [`StoreError::Full`].
    pub log_bytes: u64,
    /// Maximum memory of queued appends. Further callers wait.
    pub queue_bytes: u32,
    /// Maximum memory of log lines that queries have converted to columns.
    pub columnar_bytes: u64,
    /// Days after which lines are deleted, unless [`Store::retain`] sets another value for the
    /// project.
    pub retention_days: u32,
    /// Time for which a superseded file stays available to readers. Must exceed the longest query.
    pub grace: Duration,
    /// Number of small files of a project and day that triggers a merge.
    pub merge_files: usize,
    /// Maximum size of a merged file, measured as size in the log. A merge uses a small multiple of
    /// it in memory.
    pub merge_bytes: u64,
    /// Maximum size of the lines of one project that are kept for readers of its tail after they
    /// were flushed. The oldest are dropped.
    pub tail_project_bytes: u64,
    /// As [`Self::tail_project_bytes`], of all projects together.
    pub tail_bytes: u64,
    /// Interval between scans of all files for expired and mergeable ones.
    pub sweep_every: Duration,
    /// A number that clients cannot predict. It protects the recovery of a damaged log from log
    /// lines that imitate its format.
    pub seed: u64,
}

impl Options {
    /// Creates options with defaults suitable for production.
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
            columnar_bytes: 64 * 1024 * 1024,
            retention_days: 7,
            grace: Duration::from_mins(5),
            merge_files: 8,
            merge_bytes: 64 * 1024 * 1024,
            tail_project_bytes: 128 * 1024 * 1024,
            tail_bytes: 1024 * 1024 * 1024,
            sweep_every: Duration::from_hours(1),
            seed: 0,
        }
    }
}

/// Lines of one project that are appended atomically.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    /// The project of the lines.
    pub project: String,
    /// The lines.
    pub events: Vec<Event>,
    /// A reader offset that is stored atomically with the lines.
    pub reader_offset: Option<ReaderOffset>,
}

/// The position of a reader in its input. Stored together with the lines read up to it, which gives
/// exactly-once ingestion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReaderOffset {
    /// The name of the reader, for example of the file it reads.
    pub name: String,
    /// The position, opaque to the store. An empty value deletes the offset.
    pub value: String,
}

/// The reason why lines could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The disk failed. The lines of the append are not stored.
    #[error("the disk that stores log lines failed")]
    Io(#[from] io::Error),
    /// The object store failed.
    #[error("the object store of log lines failed")]
    Objects(#[from] object_store::Error),
    /// Lines could not be converted to columns.
    #[error("log lines cannot be converted to columns")]
    Layout(#[from] ArrowError),
    /// A Parquet file could not be written or read.
    #[error("a Parquet file of log lines cannot be written or read")]
    Parquet(#[from] ParquetError),
    /// Another process uses the directory.
    #[error("another process uses the log directory {0}: stop it or use another directory")]
    Locked(PathBuf),
    /// The log is full because the object store was unavailable for too long. The append can be
    /// retried.
    #[error(
        "the log is full: {bytes} bytes of log lines wait for the object store, retry when it is \
         available"
    )]
    Full {
        /// The limit in bytes.
        bytes: u64,
    },
    /// An argument exceeds its limit.
    #[error("{what} is {size}, the limit is {max}")]
    TooLarge {
        /// The limited quantity.
        what: &'static str,
        /// The actual value.
        size: usize,
        /// The limit.
        max: usize,
    },
    /// The name of a project or node contains invalid characters.
    #[error("{0:?} is not a valid name of a project or node: use letters, digits, - and _")]
    Name(String),
    /// The store is shutting down.
    #[error("the store of log lines is closed")]
    Closed,
}

/// Counters and gauges for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Lines acknowledged since the store was opened.
    pub rows: u64,
    /// Size of these lines in the log, in bytes.
    pub bytes: u64,
    /// Number of disk flushes.
    pub syncs: u64,
    /// Lines in the log that are not in files yet.
    pub pending_rows: u64,
    /// Number of log segments.
    pub segments: u64,
    /// Size of the log on disk, in bytes.
    pub log_bytes: u64,
    /// Age of the oldest line that is not in a file yet, in microseconds.
    pub lag: i64,
    /// Number of files written.
    pub files: u64,
    /// Number of files merged into others.
    pub merged: u64,
    /// Number of files deleted.
    pub removed: u64,
    /// Number of failures of the disk or the object store.
    pub failures: u64,
    /// Number of damaged files that are left out of answers.
    pub damaged_files: u64,
    /// Number of damaged segments of the log, including those that were set aside.
    pub damaged_segments: u64,
    /// Bytes of acknowledged frames in the log that could not be read since the store was opened.
    pub dropped_bytes: u64,
}

/// State shared by the store, its writer thread and its queries.
#[derive(Debug)]
struct StoreState {
    options: Options,
    objects: Arc<dyn ObjectStore>,
    index: Mutex<Index>,
    pins: Arc<ViewPins>,
    counters: Counters,
    /// Memory reserved by all [`index::ColumnarCache`]s, in bytes.
    columnar_memory: Arc<AtomicU64>,
    checksums: Arc<ChecksumCache>,
    damaged: DamagedFiles,
    known: KnownFiles,
    /// The time of the last maintenance, in microseconds since 1970.
    last_upkeep: AtomicI64,
}

impl StoreState {
    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock()
    }
}

/// A node's log and the shared files of all projects.
#[derive(Debug)]
pub struct Store {
    shared: Arc<StoreState>,
    disk: Arc<dyn Disk>,
    upkeep: tokio::sync::Mutex<Upkeep>,
    tails: Tails,
    retention: Mutex<Arc<HashMap<String, u32>>>,
    /// Bytes of queued appends.
    queue_memory: Arc<Semaphore>,
    jobs: Option<mpsc::Sender<WriteJob>>,
    writer: Option<JoinHandle<()>>,
    /// The lock file of the directory, locked while the store is open.
    lock: Option<fs::File>,
}

impl Store {
    /// Opens a store and recovers its log.
    pub async fn open(options: Options) -> Result<Self, StoreError> {
        names::check_name(&options.node)?;
        let folder = options.folder.clone();
        let files = options.files.clone();
        let objects = options.objects.clone();
        let open = move || {
            fs::create_dir_all(&folder)?;
            let lock = fs::File::create(folder.join("lock"))?;
            lock.try_lock()
                .map_err(|_| StoreError::Locked(folder.clone()))?;
            let disk = DiskDirectory::open(&folder.join("log"))?;
            let objects = if let Some(objects) = objects {
                objects
            } else {
                let files = files.unwrap_or_else(|| folder.join("objects"));
                Arc::new(LocalObjects::open(&files, folder.join("staging"))?)
            };
            let known = KnownFiles::open(&folder, &objects.to_string())?;
            Ok::<_, StoreError>((lock, disk, objects, known))
        };
        let (lock, disk, objects, known) = tokio::task::spawn_blocking(open)
            .await
            .map_err(io::Error::other)??;
        let mut store = Self::open_parts(options, Arc::new(disk), objects, known).await?;
        store.lock = Some(lock);
        Ok(store)
    }

    /// Opens a store that knows no files.
    #[cfg(test)]
    async fn open_with(
        options: Options,
        disk: Arc<dyn Disk>,
        objects: Arc<dyn ObjectStore>,
    ) -> Result<Self, StoreError> {
        Self::open_parts(options, disk, objects, KnownFiles::default()).await
    }

    /// Opens a store over a disk and an object store.
    async fn open_parts(
        mut options: Options,
        disk: Arc<dyn Disk>,
        objects: Arc<dyn ObjectStore>,
        known: KnownFiles,
    ) -> Result<Self, StoreError> {
        // Positions in a segment are 32-bit numbers.
        options.seal_bytes = options.seal_bytes.min(1024 * 1024 * 1024);
        let log = Arc::clone(&disk);
        let recovered = tokio::task::spawn_blocking(move || recovery::recover(&*log))
            .await
            .map_err(io::Error::other)??;
        let counters = Counters::default();
        counters.add_recovered(&recovered, &*disk)?;
        let queue_memory = Arc::new(Semaphore::new(options.queue_bytes as usize));
        let shared = Arc::new(StoreState {
            options,
            objects,
            index: Mutex::new(recovered.index),
            pins: Arc::default(),
            counters,
            columnar_memory: Arc::default(),
            checksums: Arc::default(),
            damaged: DamagedFiles::default(),
            known,
            last_upkeep: AtomicI64::new(i64::MIN),
        });
        let last = match recovered.last {
            Some(last) => last,
            // The log directory is new or was lost. Segment numbers must exceed those in existing
            // file names.
            None => SegmentEnd {
                number: Self::last_flushed_segment(&shared).await?,
                length: 0,
            },
        };
        let (jobs, queue) = mpsc::channel(QUEUE_MAX);
        let state = Arc::clone(&shared);
        let log = Arc::clone(&disk);
        let highest = recovered.highest;
        let start = move || {
            let writer = LogWriter::start(Arc::clone(&state), Arc::clone(&log), last, highest)?;
            let tails = Tails::recover(&state, &*log)?;
            Ok::<_, StoreError>((writer, tails))
        };
        let (writer, tails) = tokio::task::spawn_blocking(start)
            .await
            .map_err(io::Error::other)??;
        let writer = std::thread::Builder::new()
            .name("gantry-logs".into())
            .spawn(move || writer.run(queue))?;
        Ok(Self {
            shared,
            disk,
            upkeep: tokio::sync::Mutex::default(),
            tails,
            retention: Mutex::default(),
            queue_memory,
            jobs: Some(jobs),
            writer: Some(writer),
            lock: None,
        })
    }

    /// Returns the last segment in the file names of this node.
    async fn last_flushed_segment(shared: &StoreState) -> Result<u64, StoreError> {
        let mut last = 0;
        let listing = shared.list(None).await?;
        for file in listing.files.iter().chain(&listing.damaged) {
            if file.name.node == shared.options.node {
                last = last.max(file.name.last);
            }
        }
        Ok(last)
    }

    /// Appends lines and waits until they are durable. On failure they are not stored, with one
    /// exception: the disk fails and the process ends before the next append. Waits while the queue
    /// is full. Truncates texts and drops attributes beyond the limits of [`crate::event`].
    pub async fn append(&self, batch: Batch) -> Result<(), StoreError> {
        let Batch {
            project,
            events,
            reader_offset,
        } = batch;
        if events.is_empty() && reader_offset.is_none() {
            return Ok(());
        }
        names::check_name(&project)?;
        if let Some(reader_offset) = &reader_offset {
            self.check_reader_offset(reader_offset)?;
        }
        let (record, payload) = codec::lines(&project, &events, reader_offset.as_ref());
        drop(events);
        check_limit("size of a batch in bytes", payload.len(), BATCH_BYTES_MAX)?;
        self.write(record, payload).await?;
        self.tails.notify(&project);
        Ok(())
    }

    fn check_reader_offset(&self, reader_offset: &ReaderOffset) -> Result<(), StoreError> {
        let ReaderOffset { name, value } = reader_offset;
        check_limit(
            "size of a reader offset in bytes",
            name.len() + value.len(),
            READER_OFFSET_BYTES_MAX,
        )?;
        if batch_keys::is_batch_key(reader_offset) {
            return Ok(());
        }
        let known = &self.shared.index().reader_offsets;
        let adds_one = !known.contains_key(name) && !value.is_empty();
        check_limit(
            "number of reader offsets",
            known.len() + usize::from(adds_one),
            READER_OFFSETS_MAX,
        )
    }

    async fn write(&self, record: Record, payload: Vec<u8>) -> Result<(), StoreError> {
        let queue_bytes = self.shared.options.queue_bytes;
        let bytes = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        let queued = Arc::clone(&self.queue_memory)
            .acquire_many_owned(bytes.min(queue_bytes))
            .await
            .map_err(|_| StoreError::Closed)?;
        self.submit(|reply| WriteJob::Append {
            record,
            payload,
            queued,
            reply,
        })
        .await
    }

    /// Sends a job to the writer thread and waits for its result.
    async fn submit(
        &self,
        job: impl FnOnce(oneshot::Sender<Result<(), StoreError>>) -> WriteJob,
    ) -> Result<(), StoreError> {
        let (reply, result) = oneshot::channel();
        let jobs = self.jobs.as_ref().ok_or(StoreError::Closed)?;
        jobs.send(job(reply))
            .await
            .map_err(|_| StoreError::Closed)?;
        result.await.map_err(|_| StoreError::Closed)?
    }

    /// Returns the last stored offset of a reader.
    pub fn reader_offset(&self, name: &str) -> Option<ReaderOffset> {
        let index = self.shared.index();
        let value = index.reader_offsets.get(name)?;
        Some(ReaderOffset {
            name: name.to_owned(),
            value: value.clone(),
        })
    }

    /// Sets the retention in days of individual projects. Other projects use
    /// [`Options::retention_days`].
    pub fn retain(&self, days: HashMap<String, u32>) {
        *self.retention.lock() = Arc::new(days);
    }

    /// Deletes a project's lines from the log of this node and from all files. Lines in the logs of
    /// other nodes stay until this is called there. Does not wait for readers.
    pub async fn forget(&self, project: &str) -> Result<(), StoreError> {
        names::check_name(project)?;
        // Excludes concurrent flushes and merges.
        let _upkeep = self.upkeep.lock().await;
        let (record, payload) = codec::forget(project);
        self.write(record, payload).await?;
        self.close_tail(project).await?;
        let directory = names::project_folder(project);
        self.shared.known.remove_under(&directory);
        self.shared.known.sync()?;
        let paths = self
            .shared
            .objects
            .list(Some(&directory))
            .map_ok(|meta| meta.location)
            .boxed();
        let mut deletions = self.shared.objects.delete_stream(paths);
        while let Some(deletion) = deletions.next().await {
            match deletion {
                Ok(_) => self.shared.counters.removed.add(1),
                Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Returns counters and gauges. `now` is the time that is passed to [`Self::upkeep`].
    pub fn stats(&self, now: i64) -> Stats {
        let counters = &self.shared.counters;
        let index = self.shared.index();
        let oldest = index.segments.iter().find_map(|segment| segment.first_seen);
        Stats {
            rows: counters.rows.get(),
            bytes: counters.bytes.get(),
            syncs: counters.syncs.get(),
            pending_rows: index.segments.iter().map(|segment| segment.rows).sum(),
            segments: index.segments.len() as u64,
            log_bytes: index.bytes(),
            lag: oldest.map_or(0, |oldest| now.saturating_sub(oldest).max(0)),
            files: counters.files.get(),
            merged: counters.merged.get(),
            removed: counters.removed.get(),
            failures: counters.failures.get(),
            damaged_files: self.shared.damaged.count(),
            damaged_segments: counters.damaged_segments.get(),
            dropped_bytes: counters.dropped_bytes.get(),
        }
    }
}

impl Drop for Store {
    /// Waits for pending writes, so that the directory can be reopened immediately.
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

fn check_limit(what: &'static str, size: usize, max: usize) -> Result<(), StoreError> {
    if size <= max {
        Ok(())
    } else {
        Err(StoreError::TooLarge { what, size, max })
    }
}
