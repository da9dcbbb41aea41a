//! The log lines of all projects: stores, appends and shutdown.

use std::{fs::File, io::ErrorKind, path::PathBuf, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use futures_util::{FutureExt, StreamExt, stream};
use gantry_base::{
    clock::{Clock, Entropy},
    ids::ProjectRef,
};
use gantry_logs::{
    Logs,
    engine::Bounds,
    event::Event,
    store::{self, Batch, BatchKey, ReaderOffset, Store, StoreError},
};
use gantry_node::clusters::Home;
use tokio::{
    sync::{Mutex, OwnedRwLockReadGuard, RwLock, watch},
    time::timeout,
};
use uuid::Uuid;

use super::{ingest::recent::BatchLocks, objects};
use crate::platform::{
    error::{Context, Error},
    object_store,
};

/// Maximum number of processes on one data folder that write logs.
const PROCESSES_MAX: usize = 64;
/// Maximum number of concurrent writes, each of one project.
pub(super) const WRITES_MAX: usize = 16;
/// Maximum number of concurrent ingest requests. Bounds memory together with the size of a request.
const ROWS_MAX: usize = 512;
/// Delay before a failed write is retried.
const RETRY: Duration = Duration::from_secs(1);
/// Retry interval sent to clients while there is no capacity.
const FULL: Duration = Duration::from_secs(10);
/// Maximum duration of draining the queues at shutdown.
const DRAIN: Duration = Duration::from_secs(10);

/// Location and retention of log lines.
#[derive(Debug, Clone)]
pub struct Options {
    /// Folder of this node. `None` selects `logs` in the data folder.
    pub folder: Option<PathBuf>,
    /// Retention of lines, in days.
    pub retention_days: u16,
    /// Object store for log files. `None` stores them in the folder.
    pub place: Option<object_store::Place>,
    /// Limits on queries.
    pub query_bounds: Bounds,
    /// Maximum size of a project's lines that wait for its drains, in bytes.
    pub drain_backlog_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            folder: None,
            retention_days: 30,
            place: None,
            query_bounds: Bounds::default(),
            drain_backlog_bytes: 128 * 1024 * 1024,
        }
    }
}

/// The logs of all projects and the queues in front of them.
pub struct Analytics {
    options: Options,
    node: Uuid,
    home: Arc<Home>,
    pub(super) clock: Clock,
    entropy: Entropy,
    pub(super) stores: Mutex<Stores>,
    pub(super) batch_locks: BatchLocks,
    appended: watch::Sender<u64>,
    stop: watch::Sender<bool>,
    /// Shutdown signal for tasks that still have lines to append.
    at_work: Arc<RwLock<()>>,
}

/// The open stores.
#[derive(Default)]
pub(super) struct Stores {
    open_store: Option<Arc<OpenStore>>,
    /// Stores of earlier process names on this data folder, until their lines are in files.
    before: Option<Arc<OpenStore>>,
}

impl Stores {
    pub(super) fn all(&self) -> impl Iterator<Item = Arc<OpenStore>> {
        self.open_store.iter().chain(&self.before).cloned()
    }
}

/// A store and its query engine.
pub(super) struct OpenStore {
    slot: usize,
    pub(super) store: Arc<Store>,
    pub(super) logs: Logs,
    /// Lock of the process name, held while the store is open.
    _named: File,
}

/// Notifies a task to drain its queue and stop.
pub(super) struct ShutdownSignal {
    pub(super) stop: watch::Receiver<bool>,
    pub(super) _at_work: Option<OwnedRwLockReadGuard<()>>,
}

impl ShutdownSignal {
    pub(super) fn begun(&self) -> bool {
        *self.stop.borrow()
    }

    /// Waits at most `timeout` for shutdown. Returns whether it was requested.
    pub(super) async fn within(&mut self, pause: Duration) -> bool {
        // The sender lives as long as the application.
        let _ = timeout(pause, self.stop.wait_for(|stop| *stop)).await;
        self.begun()
    }
}

impl Analytics {
    /// Creates the logs without opening a store.
    pub fn new(
        options: Options,
        node: Uuid,
        home: Arc<Home>,
        clock: Clock,
        entropy: Entropy,
    ) -> Self {
        Self {
            options,
            node,
            home,
            clock,
            entropy,
            stores: Mutex::default(),
            batch_locks: BatchLocks::default(),
            appended: watch::channel(0).0,
            stop: watch::channel(false).0,
            at_work: Arc::default(),
        }
    }

    /// Opens the stores on first use.
    pub async fn ready(&self) -> Result<(), Error> {
        self.open_store().await.map(drop)
    }

    pub(super) async fn open_store(&self) -> Result<Arc<OpenStore>, Error> {
        let mut stores = self.stores.lock().await;
        if let Some(open_store) = &stores.open_store {
            return Ok(open_store.clone());
        }
        let (slot, named) = self.slot()?;
        let made = Arc::new(self.open(slot, named).await?);
        stores.open_store = Some(made.clone());
        Ok(made)
    }

    /// Opens the store on first use, and returns all open stores.
    pub(crate) async fn stores(&self) -> Result<Vec<Arc<Store>>, Error> {
        self.ready().await?;
        let stores = self.stores.lock().await;
        Ok(stores.all().map(|it| it.store.clone()).collect())
    }

    /// Whether a store is open.
    pub(crate) async fn is_open(&self) -> bool {
        self.stores.lock().await.open_store.is_some()
    }

    /// Whether this process reads the logs of PostgreSQL servers. The process with the first name
    /// does, because reader offsets are stored under that name. When it exits, another process
    /// takes the name and continues at the stored offsets.
    pub(super) async fn reads_servers(&self) -> Result<bool, Error> {
        if self.open_store().await?.slot == 0 {
            return Ok(true);
        }
        let Some(named) = self.named(0)? else {
            return Ok(false);
        };
        let mut stores = self.stores.lock().await;
        let first = Arc::new(self.open(0, named).await?);
        stores.before = stores.open_store.replace(first);
        Ok(true)
    }

    async fn open(&self, slot: usize, named: File) -> Result<OpenStore, Error> {
        let shared = self
            .options
            .folder
            .clone()
            .unwrap_or_else(|| self.home.dir().join("logs"));
        let own = if slot == 0 {
            shared.clone()
        } else {
            shared.join(format!("beside-{slot}"))
        };
        let node = format!("{}-{slot}", self.node.simple());
        // Files that one process creates are visible to all processes.
        let local = shared.join("objects");
        let objects = match &self.options.place {
            None => None,
            Some(place) => {
                let (place, node, folder, local) =
                    (place.clone(), node.clone(), own.clone(), local.clone());
                let opening = objects::StoreParameters {
                    place,
                    node,
                    folder,
                    local,
                    clock: self.clock.clone(),
                    entropy: self.entropy.clone(),
                };
                Some(objects::open(opening).await.context("opening the logs")?)
            }
        };
        let mut options = store::Options::new(own, node);
        (options.objects, options.files) = (objects, Some(local));
        options.retention_days = self.options.retention_days.into();
        options.tail_project_bytes = self.options.drain_backlog_bytes;
        options.seed = u64::from_le_bytes(self.entropy.bytes());
        let store = Arc::new(Store::open(options).await.context("opening the logs")?);
        let bounds = self.options.query_bounds;
        let logs = Logs::new(store.clone(), bounds).context("opening the logs")?;
        Ok(OpenStore {
            slot,
            store,
            logs,
            _named: named,
        })
    }

    /// Acquires the first process name that is free on this data folder. A later process reuses the
    /// name and finds the lines written under it.
    fn slot(&self) -> Result<(usize, File), Error> {
        for slot in 0..PROCESSES_MAX {
            if let Some(named) = self.named(slot)? {
                return Ok((slot, named));
            }
        }
        Err(Error::internal(
            "opening the logs",
            "too many processes write logs in this data folder",
        ))
    }

    fn named(&self, slot: usize) -> Result<Option<File>, Error> {
        self.home
            .try_lock(&format!("logs-{slot}.lock"))
            .context("locking the logs")
    }

    /// Appends lines of one project together with the reader offset. The lines are durable on
    /// return.
    pub(super) async fn append(
        &self,
        project: &ProjectRef,
        events: Vec<Event>,
        offset: Option<ReaderOffset>,
    ) -> Result<(), Error> {
        let batch = Batch {
            project: project.to_string(),
            events,
            reader_offset: offset,
        };
        self.open_store()
            .await?
            .store
            .append(batch)
            .await
            .map_err(append_error)?;
        self.appended.send_modify(|count| *count += 1);
        Ok(())
    }

    /// Appends a batch that is repeated with the same key. The lines are durable on return.
    pub(super) async fn append_with_key(
        &self,
        project: &ProjectRef,
        events: Vec<Event>,
        key: &BatchKey,
    ) -> Result<(), Error> {
        let batch = Batch {
            project: project.to_string(),
            events,
            reader_offset: None,
        };
        let now = self.clock.now().timestamp_micros();
        let store = &self.open_store().await?.store;
        let appended = store.append_with_key(batch, key, now).await;
        appended.map_err(append_error)?;
        self.appended.send_modify(|count| *count += 1);
        Ok(())
    }

    /// Whether an open store has a batch with this key.
    pub(super) async fn has_batch(
        &self,
        project: &ProjectRef,
        key: &BatchKey,
    ) -> Result<bool, Error> {
        let stores = self.stores().await?;
        Ok(stores
            .iter()
            .any(|store| store.has_batch(project.as_str(), key)))
    }

    /// Appends lines of several projects. Retries until it succeeds or the server stops.
    pub(super) async fn keep_all<T: Send + Sync>(
        &self,
        rows: &[(ProjectRef, Vec<T>)],
        event: impl Fn(&T) -> Event + Send + Sync,
        shutdown: &ShutdownSignal,
    ) {
        let writes: Vec<_> = rows
            .iter()
            .map(|(project, rows)| self.keep_rows(project, rows, &event, shutdown).boxed())
            .collect();
        stream::iter(writes)
            .buffer_unordered(WRITES_MAX)
            .collect::<()>()
            .await;
    }

    async fn keep_rows<T: Send + Sync>(
        &self,
        project: &ProjectRef,
        rows: &[T],
        event: &(impl Fn(&T) -> Event + Send + Sync),
        shutdown: &ShutdownSignal,
    ) {
        let mut stop = shutdown.stop.clone();
        for rows in rows.chunks(ROWS_MAX) {
            while let Err(error) = self
                .append(project, rows.iter().map(event).collect(), None)
                .await
            {
                tracing::warn!(%project, lines = rows.len(), %error, "log lines could not be stored; retrying");
                if *stop.borrow() {
                    break;
                }
                let _ = timeout(RETRY, stop.wait_for(|stop| *stop)).await;
            }
        }
    }

    /// Removes the lines of a deleted project.
    pub async fn delete_project(&self, project: &ProjectRef) -> Result<(), Error> {
        self.append(
            project,
            Vec::new(),
            Some(reader_offset(project, String::new())),
        )
        .await?;
        let all: Vec<_> = self.stores.lock().await.all().collect();
        for open_store in all {
            open_store
                .store
                .forget(project.as_str())
                .await
                .context("forgetting log lines")?;
        }
        Ok(())
    }

    /// Runs due maintenance of files. Stores that are not open need none.
    pub async fn upkeep(&self, now: DateTime<Utc>) {
        let all: Vec<_> = self.stores.lock().await.all().collect();
        for open_store in all {
            open_store.store.upkeep(now.timestamp_micros()).await;
        }
    }

    /// Returns a receiver that is notified after lines were appended.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.appended.subscribe()
    }

    pub(super) fn shutdown(&self) -> ShutdownSignal {
        ShutdownSignal {
            stop: self.stop.subscribe(),
            _at_work: self.at_work.clone().try_read_owned().ok(),
        }
    }

    /// Drains the queues, then closes the stores. All sources must have stopped.
    pub async fn close(&self) {
        self.stop.send_replace(true);
        if timeout(DRAIN, self.at_work.write()).await.is_err() {
            tracing::warn!("log lines were lost at shutdown: storing them took too long");
        }
        *self.stores.lock().await = Stores::default();
    }
}

/// Returns the offset up to which the logs of a server are read; an empty one if it is removed.
pub(super) fn reader_offset(project: &ProjectRef, value: String) -> ReaderOffset {
    ReaderOffset {
        name: reader_offset_name(project),
        value,
    }
}

/// Returns the name under which the offset is stored.
pub(super) fn reader_offset_name(project: &ProjectRef) -> String {
    format!("postgres/{project}")
}

/// Converts the error of an append to one for the client.
fn append_error(error: StoreError) -> Error {
    match error {
        StoreError::TooLarge { .. } => Error::TooLarge {
            bytes_max: store::BATCH_BYTES_MAX,
        },
        StoreError::Full { .. } => Error::Unavailable {
            what: "There is no room for log lines".into(),
            retry: FULL,
        },
        StoreError::Io(error)
            if matches!(
                error.kind(),
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded
            ) =>
        {
            Error::Unavailable {
                what: "The disk for log lines is full".into(),
                retry: FULL,
            }
        }
        error => Error::internal("keeping log lines", error),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use http::StatusCode;

    use super::*;
    use crate::platform::http::respond;

    #[test]
    fn append_to_a_full_disk_or_log_returns_503_with_retry_after() {
        let full_disk = io::Error::from(ErrorKind::StorageFull);
        let quota = io::Error::from(ErrorKind::QuotaExceeded);
        for error in [
            StoreError::Io(full_disk),
            StoreError::Io(quota),
            StoreError::Full { bytes: 1 },
        ] {
            let error = append_error(error);
            assert_eq!(respond::status(&error), StatusCode::SERVICE_UNAVAILABLE);
            let Error::Unavailable { retry, .. } = error else {
                panic!("{error:?}");
            };
            assert_eq!(retry, FULL);
        }
        let broken = append_error(StoreError::Io(io::Error::other("broken")));
        let status = respond::status(&broken);
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    }
}
