//! State of backups in this process, between looks.

use std::{
    collections::HashMap,
    io,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};

use gantry_base::{
    clock::{Clock, Entropy, Ticks},
    ids::{ProjectId, ProjectRef},
};
use gantry_logs::{LocalObjects, object_store::ObjectStore};
use gantry_node::clusters::{ArchiveWay, Home};
use metrics::{Counter, Gauge};
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, Notify};

use super::{
    archive_row::Archive,
    error::BackupError,
    prepared::PreparedClusters,
    ship_state::ShipState,
    store::{BackupStore, ProjectStore},
};
use crate::platform::{
    object_store::{Place, RequestTimeouts, S3},
    telemetry::{Metric, Metrics, PROJECT},
};

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

const STORE_ERRORS: Metric = Metric::counter(
    "gantry_backup_store_errors_total",
    "Requests to the store of backups that failed",
);
const FAILURES: Metric =
    Metric::counter("gantry_backup_failures_total", "Base backups that failed");
const LAG: Metric = Metric::gauge(
    "gantry_backup_lag_seconds",
    "Age of the oldest write-ahead log that is not in the store, of all projects",
);
const UNSHIPPED: Metric = Metric::gauge(
    "gantry_backup_unshipped_bytes",
    "Write-ahead log that is not in the store",
);
const LAST_BASE_AGE: Metric = Metric::gauge(
    "gantry_backup_last_base_age_seconds",
    "Age of the last base backup of the project with the oldest one",
);
const VERIFIED_AGE: Metric = Metric::gauge(
    "gantry_backup_verified_age_seconds",
    "Age of the last verification of the project with the oldest one",
);
const UNVERIFIED: Metric = Metric::gauge(
    "gantry_backup_unverified_projects",
    "Projects without a verification within the configured time",
);
pub(super) const EARLIEST: Metric = Metric::gauge(
    "gantry_backup_earliest_recoverable_timestamp_seconds",
    "Earliest time to which a project can be restored",
)
.with_labels(&[PROJECT]);
pub(super) const LATEST: Metric = Metric::gauge(
    "gantry_backup_latest_recoverable_timestamp_seconds",
    "Latest time to which a project can be restored",
)
.with_labels(&[PROJECT]);
pub(super) const UNRECOVERABLE: Metric = Metric::gauge(
    "gantry_backup_unrecoverable_seconds",
    "Time between the earliest and the latest time to which a project cannot be restored",
)
.with_labels(&[PROJECT]);

/// Metrics of backups.
pub const METRICS: &[&Metric] = &[
    &STORE_ERRORS,
    &FAILURES,
    &LAG,
    &UNSHIPPED,
    &LAST_BASE_AGE,
    &VERIFIED_AGE,
    &UNVERIFIED,
    &EARLIEST,
    &LATEST,
    &UNRECOVERABLE,
];

/// Handles of the metrics of backups.
pub(crate) struct BackupMetrics {
    /// Failed requests to the store.
    pub(crate) store_errors: Counter,
    /// Failed base backups.
    pub(crate) failed: Counter,
    pub(in crate::control) lag: Gauge,
    pub(in crate::control) waiting: Gauge,
    pub(crate) last_base_age: Gauge,
    pub(crate) verified_age: Gauge,
    /// Projects without a verification in time.
    pub(crate) unverified: Gauge,
}

impl BackupMetrics {
    fn new(metrics: &Metrics) -> Self {
        Self {
            store_errors: metrics.counter(&STORE_ERRORS, &[]),
            failed: metrics.counter(&FAILURES, &[]),
            lag: metrics.gauge(&LAG, &[]),
            waiting: metrics.gauge(&UNSHIPPED, &[]),
            last_base_age: metrics.gauge(&LAST_BASE_AGE, &[]),
            verified_age: metrics.gauge(&VERIFIED_AGE, &[]),
            unverified: metrics.gauge(&UNVERIFIED, &[]),
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
    pub(in crate::control) states: Mutex<HashMap<ProjectId, Arc<AsyncMutex<ShipState>>>>,
    /// Time at which idle projects were recorded last.
    pub(in crate::control) quiet_recorded: Mutex<Ticks>,
    pub(crate) table_restores: TableRestores,
    /// Clusters of projects that move to this node, with the files of a base backup.
    pub(super) prepared: PreparedClusters,
    /// Held while base backups are made, completed and removed.
    pub(in crate::control) upkeep: AsyncMutex<()>,
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
            table_restores: TableRestores::default(),
            prepared: PreparedClusters::default(),
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

    pub(in crate::control) fn state(&self, project: ProjectId) -> Arc<AsyncMutex<ShipState>> {
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

    /// Returns the archive of a project that is being written, and its objects. `None` if the
    /// cluster has no log yet.
    pub(crate) async fn opened(&self, project: ProjectId) -> Option<(Archive, ProjectStore)> {
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

/// Wakes the task that restores tables.
#[derive(Debug, Default)]
pub(crate) struct TableRestores(pub(in crate::control) Notify);
