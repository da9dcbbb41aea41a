//! The state of an open store.

use std::{
    collections::HashMap,
    fs,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64},
    },
    thread::JoinHandle,
};

use datafusion::object_store::ObjectStore;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::{
    codec::Record, counters::Counters, disk::Disk, error::StoreError, index::Index,
    known_files::KnownFiles, listing::DamagedFiles, options::Options, pins::ViewPins,
    tail_state::Tails, upkeep_state::Upkeep, verified::ChecksumCache,
};

/// State shared by the store, its writer thread and its queries.
#[derive(Debug)]
pub(super) struct StoreState {
    pub(super) options: Options,
    pub(super) objects: Arc<dyn ObjectStore>,
    pub(super) index: Mutex<Index>,
    pub(super) pins: Arc<ViewPins>,
    pub(super) counters: Counters,
    /// Memory reserved by all [`super::index::ColumnarCache`]s, in bytes.
    pub(super) columnar_memory: Arc<AtomicU64>,
    pub(super) checksums: Arc<ChecksumCache>,
    pub(super) damaged: DamagedFiles,
    pub(super) known: KnownFiles,
    /// The time of the last maintenance, in microseconds since 1970.
    pub(super) last_upkeep: AtomicI64,
}

impl StoreState {
    pub(super) fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock()
    }
}

/// A node's log and the shared files of all projects.
#[derive(Debug)]
pub struct Store {
    pub(super) shared: Arc<StoreState>,
    pub(super) disk: Arc<dyn Disk>,
    pub(super) upkeep: tokio::sync::Mutex<Upkeep>,
    pub(super) tails: Tails,
    pub(super) retention: Mutex<Arc<HashMap<String, u32>>>,
    /// Bytes of queued appends.
    pub(super) queue_memory: Arc<Semaphore>,
    pub(super) jobs: Option<mpsc::Sender<WriteJob>>,
    pub(super) writer: Option<JoinHandle<()>>,
    /// The lock file of the directory, locked while the store is open.
    pub(super) lock: Option<fs::File>,
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

/// A request to the writer thread.
pub(super) enum WriteJob {
    /// Makes a record durable.
    Append {
        record: Record,
        payload: Vec<u8>,
        /// Releases the queue memory of the payload on drop.
        queued: OwnedSemaphorePermit,
        reply: oneshot::Sender<Result<(), StoreError>>,
    },
    /// Seals the active segment, so that it can be flushed to files.
    Seal {
        reply: oneshot::Sender<Result<(), StoreError>>,
    },
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

impl Store {
    /// Sets the retention in days of individual projects. Other projects use
    /// [`Options::retention_days`].
    pub fn retain(&self, days: HashMap<String, u32>) {
        *self.retention.lock() = Arc::new(days);
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
