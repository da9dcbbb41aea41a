//! The options of a store.

use std::{path::PathBuf, sync::Arc, time::Duration};

use datafusion::object_store::ObjectStore;

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
    /// Maximum size of the log on disk. Beyond it appends fail with [`super::StoreError::Full`].
    pub log_bytes: u64,
    /// Maximum memory of queued appends. Further callers wait.
    pub queue_bytes: u32,
    /// Maximum memory of log lines that queries have converted to columns.
    pub columnar_bytes: u64,
    /// Days after which lines are deleted, unless [`super::Store::retain`] sets another value for
    /// the project.
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
