//! Opening of a store.

use std::{
    fs,
    sync::{Arc, atomic::AtomicI64},
};

use datafusion::object_store::ObjectStore;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc};

use super::{
    counters::Counters,
    disk::{Disk, DiskDirectory, in_background, lock_folder},
    error::StoreError,
    known_files::KnownFiles,
    listing::DamagedFiles,
    log::SegmentEnd,
    names::check_name,
    objects::LocalObjects,
    options::Options,
    recovery,
    state::{Store, StoreState},
    tail_state::Tails,
    writer::LogWriter,
};

/// Maximum number of queued appends. Further callers wait.
const QUEUE_MAX: usize = 1024;

impl Store {
    /// Opens a store and recovers its log.
    pub async fn open(options: Options) -> Result<Self, StoreError> {
        check_name(&options.node)?;
        let folder = options.folder.clone();
        let files = options.files.clone();
        let objects = options.objects.clone();
        let open = move || {
            fs::create_dir_all(&folder)?;
            let lock = lock_folder(&folder)?;
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
        let (lock, disk, objects, known) = in_background(open).await??;
        let mut store = Self::open_parts(options, Arc::new(disk), objects, known).await?;
        store.lock = Some(lock);
        Ok(store)
    }

    /// Opens a store that knows no files.
    #[cfg(test)]
    pub(super) async fn open_with(
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
        let recovered = in_background(move || recovery::recover(&*log)).await??;
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
            let tails = Tails::recover(&state.index(), &*log)?;
            Ok::<_, StoreError>((writer, tails))
        };
        let (writer, tails) = in_background(start).await??;
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
}
