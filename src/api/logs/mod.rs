//! A project's logs and usage: lines are taken from where they arise, kept in order, and asked for by SQL.
//!
//! Sources put what they have into bounded queues and never wait; what takes from the queues keeps lines in batches, and every
//! queue is drained before the server stops. [`gantry_logs`] keeps and answers.

mod asking;
mod edge;
pub mod ingest;
pub mod keys;
pub mod management;
mod metrics;
mod objects;
pub mod operations;
mod postgres;
mod queue;
mod requests;
pub mod usage;
pub mod window;

use std::{fs::File, path::PathBuf, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use futures_util::{FutureExt, StreamExt, stream};
use gantry_logs::{
    Logs,
    engine::Bounds,
    event::Event,
    store::{self, Batch, ReaderOffset, Store, StoreError},
};
use tokio::{
    sync::{Mutex, OwnedRwLockReadGuard, RwLock, watch},
    task::JoinSet,
    time::timeout,
};
use uuid::Uuid;

use crate::{
    api::context::ApiContext,
    base::{
        clock::{Clock, Entropy},
        error::{Context, Error},
        ids::ProjectRef,
        object_store,
    },
    data_plane::clusters::Home,
};

/// Processes on one data folder that keep lines at the same time.
const PROCESSES_MAX: usize = 64;
/// Projects whose lines are written at the same time.
const WRITES_MAX: usize = 16;
/// Requests that are kept at once: the largest there are fit.
const ROWS_MAX: usize = 512;
/// How soon a failed write is repeated.
const RETRY: Duration = Duration::from_secs(1);
/// How often is looked for what has to be done about files.
const UPKEEP: Duration = Duration::from_secs(1);
/// When senders may try again while there is no room.
const FULL: Duration = Duration::from_secs(10);
/// What draining the queues may take when the server stops.
const DRAIN: Duration = Duration::from_secs(10);

/// Where lines are kept, and for how long.
#[derive(Debug, Clone)]
pub struct Options {
    /// A folder of this node's. None: `logs` in the data folder.
    pub folder: Option<PathBuf>,
    /// Days that lines are kept.
    pub retention_days: u16,
    /// The object store that keeps files. None: the folder does.
    pub place: Option<object_store::Place>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            folder: None,
            retention_days: 30,
            place: None,
        }
    }
}

/// The logs of all projects, and the queues in front of them.
pub struct Analytics {
    options: Options,
    node: Uuid,
    home: Arc<Home>,
    clock: Clock,
    entropy: Entropy,
    stores: Mutex<Stores>,
    kept: watch::Sender<u64>,
    stop: watch::Sender<bool>,
    /// Read by whoever still has lines to keep.
    at_work: Arc<RwLock<()>>,
}

/// What is open.
#[derive(Default)]
struct Stores {
    opened: Option<Arc<Opened>>,
    /// What this process kept lines in under the name it had before, until they are in files.
    before: Option<Arc<Opened>>,
}

impl Stores {
    fn all(&self) -> impl Iterator<Item = Arc<Opened>> {
        self.opened.iter().chain(&self.before).cloned()
    }
}

/// A store, and how it is asked.
struct Opened {
    slot: usize,
    store: Arc<Store>,
    logs: Logs,
    /// Makes this process's name its own.
    _named: File,
}

/// Tells a task when to drain its queue and end.
struct Ending {
    stop: watch::Receiver<bool>,
    _at_work: Option<OwnedRwLockReadGuard<()>>,
}

impl Ending {
    fn begun(&self) -> bool {
        *self.stop.borrow()
    }

    /// Waits for the end, at most so long. Tells whether it came.
    async fn within(&mut self, pause: Duration) -> bool {
        // The sender lives as long as the application.
        let _ = timeout(pause, self.stop.wait_for(|stop| *stop)).await;
        self.begun()
    }
}

impl Analytics {
    /// Nothing is opened yet.
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
            kept: watch::channel(0).0,
            stop: watch::channel(false).0,
            at_work: Arc::default(),
        }
    }

    /// Opens the logs, if nobody did.
    pub async fn ready(&self) -> Result<(), Error> {
        self.opened().await.map(drop)
    }

    async fn opened(&self) -> Result<Arc<Opened>, Error> {
        let mut stores = self.stores.lock().await;
        if let Some(opened) = &stores.opened {
            return Ok(opened.clone());
        }
        let (slot, named) = self.slot()?;
        let made = Arc::new(self.open(slot, named).await?);
        stores.opened = Some(made.clone());
        Ok(made)
    }

    /// Whether this process reads what servers log. The one with the first name does, as how far they were read is kept under it: when that
    /// one ends, another takes its name and goes on where it was.
    async fn reads_servers(&self) -> Result<bool, Error> {
        if self.opened().await?.slot == 0 {
            return Ok(true);
        }
        let Some(named) = self.named(0)? else {
            return Ok(false);
        };
        let mut stores = self.stores.lock().await;
        let first = Arc::new(self.open(0, named).await?);
        stores.before = stores.opened.replace(first);
        Ok(true)
    }

    async fn open(&self, slot: usize, named: File) -> Result<Opened, Error> {
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
        // What one process has made files of, all see.
        let local = shared.join("objects");
        let objects = match &self.options.place {
            None => None,
            Some(place) => {
                let (place, node, folder, local) =
                    (place.clone(), node.clone(), own.clone(), local.clone());
                let opening = objects::Opening {
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
        let store = Arc::new(Store::open(options).await.context("opening the logs")?);
        let logs = Logs::new(store.clone(), Bounds::default()).context("opening the logs")?;
        Ok(Opened {
            slot,
            store,
            logs,
            _named: named,
        })
    }

    /// The first name that no other process on this data folder has: what was written under it is found again by the next.
    fn slot(&self) -> Result<(usize, File), Error> {
        for slot in 0..PROCESSES_MAX {
            if let Some(named) = self.named(slot)? {
                return Ok((slot, named));
            }
        }
        Err(Error::internal(
            "opening the logs",
            "too many processes use this data folder",
        ))
    }

    fn named(&self, slot: usize) -> Result<Option<File>, Error> {
        self.home
            .try_lock(&format!("logs-{slot}.lock"))
            .context("locking the logs")
    }

    /// Keeps lines of one project, together with how far their reader came. They are durable when this returns.
    async fn keep(
        &self,
        project: &ProjectRef,
        events: Vec<Event>,
        mark: Option<ReaderOffset>,
    ) -> Result<(), Error> {
        let batch = Batch {
            project: project.to_string(),
            events,
            reader_offset: mark,
        };
        self.opened()
            .await?
            .store
            .append(batch)
            .await
            .map_err(|error| match error {
                StoreError::TooLarge { .. } => Error::TooLarge {
                    bytes_max: store::BATCH_BYTES_MAX,
                },
                StoreError::Full { .. } => Error::Unavailable {
                    what: "There is no room for log lines".into(),
                    retry: FULL,
                },
                error => Error::internal("keeping log lines", error),
            })?;
        self.kept.send_modify(|count| *count += 1);
        Ok(())
    }

    /// The same for lines of several projects, again and again until they are kept, or the server stops.
    async fn keep_all<T: Send + Sync>(
        &self,
        rows: &[(ProjectRef, Vec<T>)],
        event: impl Fn(&T) -> Event + Send + Sync,
        ending: &Ending,
    ) {
        let writes: Vec<_> = rows
            .iter()
            .map(|(project, rows)| self.keep_rows(project, rows, &event, ending).boxed())
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
        ending: &Ending,
    ) {
        let mut stop = ending.stop.clone();
        for rows in rows.chunks(ROWS_MAX) {
            while let Err(error) = self
                .keep(project, rows.iter().map(event).collect(), None)
                .await
            {
                tracing::warn!(%project, lines = rows.len(), %error, "log lines could not be kept");
                if *stop.borrow() {
                    break;
                }
                let _ = timeout(RETRY, stop.wait_for(|stop| *stop)).await;
            }
        }
    }

    /// Removes what is kept of a project, which is gone.
    pub async fn forget(&self, project: &ProjectRef) -> Result<(), Error> {
        self.keep(project, Vec::new(), Some(postgres::forgotten(project)))
            .await?;
        let all: Vec<_> = self.stores.lock().await.all().collect();
        for opened in all {
            opened
                .store
                .forget(project.as_str())
                .await
                .context("forgetting log lines")?;
        }
        Ok(())
    }

    /// Does what is due about files at a time. What was not opened yet has nothing to be looked after.
    pub async fn upkeep(&self, now: DateTime<Utc>) {
        let all: Vec<_> = self.stores.lock().await.all().collect();
        for opened in all {
            opened.store.upkeep(now.timestamp_micros()).await;
        }
    }

    /// Tells whenever lines were kept.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.kept.subscribe()
    }

    fn ending(&self) -> Ending {
        Ending {
            stop: self.stop.subscribe(),
            _at_work: self.at_work.clone().try_read_owned().ok(),
        }
    }

    /// Drains the queues, then lets go of the logs. Whatever fills the queues has ended.
    pub async fn close(&self) {
        self.stop.send_replace(true);
        if timeout(DRAIN, self.at_work.write()).await.is_err() {
            tracing::warn!("some log lines were not kept before the server stopped");
        }
        *self.stores.lock().await = Stores::default();
    }
}

/// Starts what takes from the queues, and what reads the projects' servers' logs.
pub fn spawn(context: &ApiContext, tasks: &mut JoinSet<()>) {
    let ending = || context.analytics.ending();
    tasks.spawn(edge::run(context.clone(), ending()));
    tasks.spawn(management::run(context.clone(), ending()));
    tasks.spawn(postgres::run(context.clone(), ending()));
    tasks.spawn(upkeep(context.clone()));
}

/// Makes files of what was kept, and removes what is old.
async fn upkeep(context: ApiContext) {
    let mut tick = tokio::time::interval(UPKEEP);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        context.analytics.upkeep(context.clock.now()).await;
    }
}
