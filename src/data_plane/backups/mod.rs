//! Backups of projects: the write-ahead log and base backups in a store, and recovery from them.
//!
//! - [`wal`] reads the log; `files` reads a tenant's files; `shipper` ships the log to the store.
//! - [`archive`] is an unbroken log, and [`chain`] several that continue each other; `base` makes
//!   base backups, and [`manifest`] describes one.
//! - [`schedule`] and [`window`] have the rules; `upkeep` makes, completes, expires and verifies.
//! - [`restore`] builds a cluster; `settle` carries out the restore of a project, and [`tables`]
//!   that of single tables.
//!
//! Only the process with the lease of the data folder ships, makes and restores. All others read
//! the rows.

pub mod archive;
mod base;
pub mod chain;
pub mod export;
mod files;
pub mod health;
pub mod manifest;
pub mod points;
pub mod restore;
pub mod schedule;
pub(crate) mod settle;
mod shipper;
pub mod store;
pub mod tables;
pub mod target;
pub mod upkeep;
pub mod wal;
pub mod window;

use std::{
    collections::HashMap,
    io,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures_util::{StreamExt, stream};
use gantry_base::{
    clock::{Clock, Entropy, Ticks},
    ids::{ProjectId, ProjectRef},
};
use gantry_logs::{LocalObjects, object_store::ObjectStore};
use gantry_node::{
    clusters::{ArchiveWay, Home},
    error::ClusterError,
};
use metrics::{Counter, Gauge};
use parking_lot::Mutex;
use tokio::{sync::Mutex as AsyncMutex, time::MissedTickBehavior};

pub use self::{restore::Moment, store::BackupStore, target::RequestedMoment};
use self::{
    shipper::{Looked, ShipState},
    store::ProjectStore,
};
use crate::{
    data_plane::{context::DataPlaneContext, projects},
    platform::{
        error::{Context, Error},
        object_store::{Place, RequestTimeouts, S3},
        telemetry::Metrics,
    },
};

/// Maximum number of projects of which the log is shipped at the same time.
const SHIPPED_AT_ONCE: usize = 4;
/// Turns of a project in which its whole log is shipped, before an exchange.
const TURNS_MAX: usize = 1000;
/// The interval of recording that idle projects are archived, in milliseconds.
const QUIET_RECORD_MS: Ticks = 60_000;

/// Answer to a request while backups are switched off.
pub(crate) const SWITCHED_OFF: &str =
    "Backups are switched off: the operator has to start the server without --no-backups";
/// Answer to a second restore.
pub(crate) const RESTORE_RUNNING: &str = "A restore of this project is in progress";

/// An error of a backup or a restore. Every message is one complete line.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The store failed.
    #[error("{doing} {object} in the store of backups: {cause}")]
    Store {
        /// The operation, as a participle.
        doing: &'static str,
        /// Name of the object.
        object: String,
        /// Error of the store.
        cause: Box<gantry_logs::object_store::Error>,
    },
    /// An object does not exist.
    #[error("{0} is missing in the store of backups")]
    Missing(String),
    /// An object is not what was written.
    #[error("{object} is damaged: {problem}")]
    Damaged {
        /// Name of the object.
        object: String,
        /// The problem.
        problem: String,
    },
    /// A part of the write-ahead log is not in the store.
    #[error("the archived write-ahead log has a gap at {0}")]
    Gap(String),
    /// The key of a project cannot be used.
    #[error("the key of the backups cannot be used: {0}")]
    Key(String),
    /// The state of the project or of its backups forbids the operation.
    #[error("{0}")]
    Refused(String),
    /// A local file cannot be read or written.
    #[error("reading or writing a file of a cluster: {0}")]
    Files(io::Error),
    /// A cluster cannot be copied or recovered.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The control database failed.
    #[error(transparent)]
    Platform(#[from] Error),
    /// Backups are switched off.
    #[error("backups are switched off by the operator")]
    Unconfigured,
    /// The process is shutting down.
    #[error("shutting down")]
    ShuttingDown,
}

/// Settings of the operator for backups.
#[derive(Debug, Clone)]
pub struct BackupOptions {
    /// Whether projects are backed up.
    pub enabled: bool,
    /// Object store. `None`: the folder.
    pub place: Option<Place>,
    /// Folder of backups. `None`: `backups` in the data folder.
    pub folder: Option<PathBuf>,
    /// Days to which a project can be taken back.
    pub retention_days: u16,
    /// Complete base backups that are kept in any case.
    pub retention_count: usize,
    /// Log of a project that waits for the store at most, in bytes.
    pub backlog_bytes_max: u64,
    /// Hours for which a replaced cluster is kept.
    pub undo_hours: u16,
    /// Days after which a backup is verified again.
    pub verify_days: u16,
    /// Interval of looking at projects.
    pub look: Duration,
}

impl Default for BackupOptions {
    fn default() -> Self {
        Self {
            enabled: true,
            place: None,
            folder: None,
            retention_days: 7,
            retention_count: 2,
            backlog_bytes_max: 1 << 30,
            undo_hours: 24,
            verify_days: 7,
            look: Duration::from_secs(5),
        }
    }
}

/// Metrics of backups.
pub(crate) struct BackupMetrics {
    /// Failed requests to the store.
    pub(crate) store_errors: Counter,
    /// Failed base backups.
    pub(crate) failed: Counter,
    lag: Gauge,
    waiting: Gauge,
    pub(crate) last_base_age: Gauge,
    pub(crate) verified_age: Gauge,
    /// Projects without a verification in time.
    pub(crate) unverified: Gauge,
}

impl BackupMetrics {
    fn new(metrics: &Metrics) -> Self {
        let gauge = |name| metrics.gauge(name, &[]);
        Self {
            store_errors: metrics.counter("gantry_backup_store_errors_total", &[]),
            failed: metrics.counter("gantry_backup_failures_total", &[]),
            lag: gauge("gantry_backup_lag_seconds"),
            waiting: gauge("gantry_backup_unshipped_bytes"),
            last_base_age: gauge("gantry_backup_last_base_age_seconds"),
            verified_age: gauge("gantry_backup_verified_age_seconds"),
            unverified: gauge("gantry_backup_unverified_projects"),
        }
    }
}

/// State of backups in this process.
pub struct Backups {
    /// Settings of the operator.
    pub options: BackupOptions,
    pub(crate) metrics: BackupMetrics,
    store: OnceLock<BackupStore>,
    /// Why nothing may be written any more.
    ended: OnceLock<String>,
    source: StoreSource,
    states: Mutex<HashMap<ProjectId, Arc<AsyncMutex<ShipState>>>>,
    /// Time at which idle projects were recorded last.
    quiet_recorded: Mutex<Ticks>,
    pub(crate) table_restores: tables::TableRestores,
    /// Held while base backups are made, completed and removed.
    upkeep: AsyncMutex<()>,
}

/// The parts from which the store is made.
struct StoreSource {
    folder: PathBuf,
    clock: Clock,
    entropy: Entropy,
}

/// A project with a log that is shipped.
#[derive(Debug, Clone)]
pub(crate) struct WatchedProject {
    pub(crate) id: ProjectId,
    pub(crate) reference: ProjectRef,
    pub(crate) way: ArchiveWay,
}

impl Backups {
    /// Creates the state. The store is opened at its first use.
    pub(crate) fn new(
        options: BackupOptions,
        home: &Home,
        clock: &Clock,
        entropy: &Entropy,
        metrics: &Metrics,
    ) -> Self {
        let folder = options.folder.clone();
        Self {
            metrics: BackupMetrics::new(metrics),
            store: OnceLock::new(),
            ended: OnceLock::new(),
            source: StoreSource {
                folder: folder.unwrap_or_else(|| home.dir().join("backups")),
                clock: clock.clone(),
                entropy: entropy.clone(),
            },
            options,
            states: Mutex::default(),
            quiet_recorded: Mutex::default(),
            table_restores: tables::TableRestores::default(),
            upkeep: AsyncMutex::default(),
        }
    }

    /// Returns the store of backups.
    ///
    /// Errors: [`BackupError::Unconfigured`] if backups are switched off; [`BackupError::Files`].
    pub fn store(&self) -> Result<&BackupStore, BackupError> {
        if !self.options.enabled {
            return Err(BackupError::Unconfigured);
        }
        if let Some(reason) = self.ended.get() {
            return Err(BackupError::Refused(reason.clone()));
        }
        if let Some(store) = self.store.get() {
            return Ok(store);
        }
        let source = &self.source;
        let objects = open_objects(
            self.options.place.clone(),
            &source.folder,
            "unfinished",
            source.clock.clone(),
            source.entropy.clone(),
        )
        .map_err(BackupError::Files)?;
        let store = BackupStore::new(objects, source.entropy.clone());
        Ok(self.store.get_or_init(|| store))
    }

    /// Whether there are backups that outlive the data folder `home`.
    pub(crate) fn leaves_home(&self, home: &Path) -> bool {
        let is_elsewhere = self.options.place.is_some() || !self.source.folder.starts_with(home);
        self.options.enabled && is_elsewhere
    }

    /// Stops writing to the store: another server has it now.
    pub(crate) fn end(&self, reason: String) {
        if self.ended.set(reason).is_ok() {
            self.states.lock().clear();
        }
    }

    /// Deletes all objects of a project, its key first. Does nothing if backups are switched off.
    pub(crate) async fn purge(&self, project: &ProjectRef) -> Result<(), BackupError> {
        match self.store() {
            Ok(store) => store.delete_project(project).await,
            Err(BackupError::Unconfigured) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn state(&self, project: ProjectId) -> Arc<AsyncMutex<ShipState>> {
        let mut states = self.states.lock();
        Arc::clone(states.entry(project).or_default())
    }

    /// Exchanges the files of a project. No log is shipped meanwhile, and what is known about the
    /// files is forgotten.
    pub(crate) async fn exchange<T>(
        &self,
        project: ProjectId,
        exchange: impl Future<Output = T>,
    ) -> T {
        let state = self.state(project);
        let mut state = state.lock().await;
        state.forget();
        exchange.await
    }

    /// Ships the whole log of a project now. Returns whether everything is in the store.
    pub(crate) async fn ship_all(
        &self,
        context: &DataPlaneContext,
        project: &WatchedProject,
    ) -> bool {
        if !self.options.enabled {
            return false;
        }
        let state = self.state(project.id);
        let mut state = state.lock().await;
        for _ in 0..TURNS_MAX {
            match shipper::look(context, self, project, &mut state).await {
                Looked::Quiet | Looked::Shipped => return true,
                Looked::Unfinished => {}
                Looked::Waiting => return false,
            }
        }
        false
    }

    /// Returns the archive of a project that is being written, and its objects. `None` if the
    /// cluster has no log yet.
    pub(crate) async fn opened(
        &self,
        project: ProjectId,
    ) -> Option<(archive::Archive, ProjectStore)> {
        let state = self.state(project);
        let state = state.lock().await;
        let (archive, store) = state.opened()?;
        Some((archive.clone(), store.clone()))
    }

    /// Returns why the log of a project is not archived, if it is not.
    pub async fn problem(&self, project: ProjectId) -> Option<String> {
        let state = self.states.lock().get(&project).cloned()?;
        let state = state.lock().await;
        state.problem.clone()
    }
}

/// Opens an object store, or else a folder. Files in progress lie in its folder `unfinished`, of
/// which each process has its own.
pub fn open_objects(
    place: Option<Place>,
    folder: &Path,
    unfinished: &str,
    clock: Clock,
    entropy: Entropy,
) -> io::Result<Arc<dyn ObjectStore>> {
    if let Some(place) = place {
        let timeouts = RequestTimeouts::default();
        return Ok(Arc::new(S3::new(place, clock, entropy, timeouts)?));
    }
    std::fs::create_dir_all(folder)?;
    let objects = LocalObjects::open(&folder.join("objects"), folder.join(unfinished))?;
    Ok(Arc::new(objects))
}

/// Ships the log of all projects periodically. Returns at once if backups are switched off.
pub async fn run(context: DataPlaneContext) {
    if !context.backups.options.enabled {
        return;
    }
    let mut tick = tokio::time::interval(context.backups.options.look);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        if let Err(error) = look(&context).await {
            tracing::warn!(%error, "cannot look for write-ahead log to archive");
        }
    }
}

/// Ships what is new in all projects of this node. A failure of one does not affect the others.
pub async fn look(context: &DataPlaneContext) -> Result<(), Error> {
    let backups = &context.backups;
    if !context.lease.leads() {
        backups.states.lock().clear();
        return Ok(());
    }
    let projects = watched(context).await?;
    let ids: Vec<ProjectId> = projects.iter().map(|project| project.id).collect();
    backups.states.lock().retain(|id, _| ids.contains(id));
    let looks = projects.into_iter().map(|project| async move {
        let state = backups.state(project.id);
        let mut state = state.lock().await;
        let mut looked = shipper::look(context, backups, &project, &mut state).await;
        for _ in 0..TURNS_MAX {
            if looked != Looked::Unfinished {
                break;
            }
            looked = shipper::look(context, backups, &project, &mut state).await;
        }
        let quiet = state.archive().filter(|_| looked == Looked::Quiet);
        let age = state.archive().filter(|_| looked != Looked::Quiet);
        let age = age.map_or(0, |archive| {
            (context.clock.now() - archive.shipped_at).num_seconds()
        });
        (quiet.map(|archive| archive.id), age, state.waiting_bytes)
    });
    let looked: Vec<(Option<i64>, i64, u64)> = stream::iter(looks)
        .buffer_unordered(SHIPPED_AT_ONCE)
        .collect()
        .await;
    let lag = looked.iter().map(|(_, age, _)| *age).max().unwrap_or(0);
    let waiting: u64 = looked.iter().map(|(_, _, bytes)| *bytes).sum();
    #[expect(clippy::cast_precision_loss, reason = "metrics are approximate")]
    {
        backups.metrics.lag.set(lag as f64);
        backups.metrics.waiting.set(waiting as f64);
    }
    let quiet: Vec<i64> = looked.iter().filter_map(|(quiet, _, _)| *quiet).collect();
    record_quiet(context, &quiet).await
}

/// Records, once a minute, that everything of idle projects is in the store.
async fn record_quiet(context: &DataPlaneContext, archives: &[i64]) -> Result<(), Error> {
    let now = context.clock.ticks();
    {
        let mut recorded = context.backups.quiet_recorded.lock();
        if now.saturating_sub(*recorded) < QUIET_RECORD_MS || archives.is_empty() {
            return Ok(());
        }
        *recorded = now;
    }
    let sql = "update archives set shipped_at = $2 where id = any($1) and ended_at is null and shipped_at < $2";
    // A commit during the look may not have been seen.
    let before = context.clock.now() - context.backups.options.look;
    context
        .db
        .query(sql, &[&archives, &before])
        .await
        .context("recording archives")
        .map(drop)
}

/// Reads the projects of this node with a cluster.
pub(crate) async fn watched(context: &DataPlaneContext) -> Result<Vec<WatchedProject>, Error> {
    let sql = "select id, ref, engine from projects
               where node = $1 and desired <> 'removed' and status not in ('COMING_UP', 'INIT_FAILED') order by id";
    let rows = context
        .db
        .query(sql, &[&context.settings.node])
        .await
        .context("reading the projects of this node")?;
    rows.iter()
        .map(|row| {
            let reference: &str = row.get(1);
            let major = projects::major(row.get(2)).unwrap_or(0);
            Ok(WatchedProject {
                id: ProjectId(row.get(0)),
                reference: reference.parse().context("reading a project's ref")?,
                way: settle::way_of(context, major),
            })
        })
        .collect()
}
