//! Writes a snapshot of the installation whenever something changed.
//!
//! A look every five seconds reads the counters of changes, which PostgreSQL updates at most ten
//! seconds after a commit. A change is therefore in the store about fifteen seconds later
//! (decision 0145). Nothing is written while nothing changes, except for the sign of life.

use std::{
    collections::{BTreeMap, HashSet},
    path::PathBuf,
    time::Duration,
};

use chrono::{DateTime, SubsecRound, Utc};
use gantry_base::clock::{Clock, Ticks, ticks_of};
use metrics::{Counter, Gauge};
use parking_lot::Mutex;
use tokio::sync::Mutex as AsyncMutex;
use uuid::Uuid;

use super::{
    content::{self, About, ControlSnapshot, FORMAT, FolderContent, Node, SnapshotName},
    dump::{self, ChunkWriter},
    error::{InstallationError, Result, sql_error},
    fence::{LiveServer, RENEWAL, StoreEpoch},
    files,
    objects::InstallationStore,
};
use crate::platform::{
    db::Db,
    error::Context,
    telemetry::{Metric, Metrics},
};

/// The interval of looks.
pub const LOOK: Duration = Duration::from_secs(5);
/// Time after which a snapshot is taken although no counter changed, in milliseconds: counters are
/// lost when the control database crashes.
const FULL_PASS_MS: Ticks = 10 * 60_000;
/// The interval of removing contents that no snapshot has, in milliseconds.
const SWEEP_MS: Ticks = 60 * 60_000;
/// Key of the advisory lock of the process that writes. An arbitrary constant.
const WRITER_LOCK: i64 = 0x67_62_61_63_6b_75_70;
const APPLICATION: &str = "gantry backup lock";

/// An installation to keep in a store.
#[derive(Clone)]
pub struct KeptInstallation {
    /// The control database.
    pub db: Db,
    /// The data folder.
    pub home: PathBuf,
    /// Id of the node.
    pub node: Uuid,
    /// Name of the machine.
    pub host: String,
    /// The clock.
    pub clock: Clock,
    /// The store.
    pub store: InstallationStore,
}

/// The state between two looks.
#[derive(Debug, Default)]
struct KeeperState {
    /// Whether the store was compared with the installation.
    is_claimed: bool,
    epoch: u64,
    /// Contents that the store has and keeps.
    known: HashSet<String>,
    last: Option<(SnapshotName, ControlSnapshot)>,
    /// Whether a snapshot is written although its rows are those of the last one.
    forced: bool,
    folders: BTreeMap<String, FolderContent>,
    /// Whether the store has the files of the node.
    has_node: bool,
    changes: Option<i64>,
    renewed_at: Option<Ticks>,
    full_at: Ticks,
    swept_at: Option<Ticks>,
}

/// The outcome of the last looks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeeperHealth {
    /// Every change up to about fifteen seconds before this time is in the store.
    pub kept_at: Option<DateTime<Utc>>,
    /// Why the installation is not backed up, if it is not.
    pub problem: Option<String>,
}

/// A snapshot that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenSnapshot {
    /// Its name.
    pub name: SnapshotName,
    /// Number of rows.
    pub rows: u64,
    /// Bytes that were new in the store.
    pub written_bytes: u64,
}

const FAILURES: Metric = Metric::counter(
    "gantry_installation_backup_failures_total",
    "Backups of the installation that failed",
);
const AGE: Metric = Metric::gauge(
    "gantry_installation_backup_age_seconds",
    "Age of the last backup of the installation",
);

/// Metrics of backups of the installation.
pub const METRICS: &[&Metric] = &[&FAILURES, &AGE];

/// Keeps an installation in its store.
#[derive(Default)]
pub struct Keeper {
    state: AsyncMutex<KeeperState>,
    health: Mutex<KeeperHealth>,
    metrics: Option<KeeperMetrics>,
}

struct KeeperMetrics {
    failures: Counter,
    age: Gauge,
}

impl Keeper {
    /// Creates a keeper that counts.
    pub fn new(metrics: &Metrics) -> Self {
        Self {
            metrics: Some(KeeperMetrics {
                failures: metrics.counter(&FAILURES, &[]),
                age: metrics.gauge(&AGE, &[]),
            }),
            ..Self::default()
        }
    }

    /// The outcome of the last looks.
    pub fn health(&self) -> KeeperHealth {
        self.health.lock().clone()
    }

    /// Renews the sign of life, and writes a snapshot if something changed. A failure is logged
    /// once, and the next look tries again.
    pub async fn look(&self, kept: &KeptInstallation) -> Result<()> {
        let looked = self.look_once(kept).await;
        match &looked {
            Ok(kept_at) => {
                let mut health = self.health.lock();
                if health.problem.take().is_some() {
                    tracing::info!("the installation is backed up again");
                }
                health.kept_at = Some(*kept_at);
            }
            Err(error) => self.fail(error),
        }
        #[expect(clippy::cast_precision_loss, reason = "metrics are approximate")]
        if let (Some(metrics), Some(kept_at)) = (&self.metrics, self.health.lock().kept_at) {
            let age = (kept.clock.now() - kept_at).num_seconds();
            metrics.age.set(age as f64);
        }
        looked.map(drop)
    }

    /// Records why the installation is not backed up.
    pub fn fail(&self, error: &InstallationError) {
        if let Some(metrics) = &self.metrics {
            metrics.failures.increment(1);
        }
        let text = error.to_string();
        let mut health = self.health.lock();
        if health.problem.as_ref() != Some(&text) {
            tracing::error!(%error, "the installation is not backed up; retrying");
        }
        health.problem = Some(text);
    }

    async fn look_once(&self, kept: &KeptInstallation) -> Result<DateTime<Utc>> {
        let mut state = self.state.lock().await;
        let looked_at = kept.clock.now();
        let now = kept.clock.ticks();
        let renewal = ticks_of(RENEWAL);
        if state
            .renewed_at
            .is_none_or(|at| now.saturating_sub(at) >= renewal)
        {
            claim(kept, &mut state).await?;
            let live = LiveServer {
                node: kept.node,
                host: kept.host.clone(),
                renewed_at: looked_at,
            };
            live.renew(&kept.store).await?;
            state.renewed_at = Some(now);
        }
        let changes = dump::changes(&kept.db).await?;
        let is_due = now.saturating_sub(state.full_at) >= FULL_PASS_MS;
        if state.changes != Some(changes) || is_due {
            match write(kept, &mut state).await? {
                Written::Snapshot(_) | Written::Unchanged => {
                    state.changes = Some(changes);
                    state.full_at = now;
                }
                // Another node writes at this moment; its snapshot may be older than the change.
                Written::Busy => {}
            }
        }
        Ok(looked_at)
    }

    /// Writes a snapshot now. `None` if another process writes one at the same time.
    pub async fn write_now(&self, kept: &KeptInstallation) -> Result<Option<WrittenSnapshot>> {
        let mut state = self.state.lock().await;
        claim(kept, &mut state).await?;
        // The request asks for a snapshot of this moment.
        state.forced = true;
        match write(kept, &mut state).await? {
            Written::Snapshot(written) => Ok(Some(written)),
            Written::Unchanged | Written::Busy => Ok(None),
        }
    }

    /// Records that the server ends, so that a recovery need not wait.
    pub async fn end(&self, kept: &KeptInstallation) {
        if self.state.lock().await.renewed_at.is_none() {
            return;
        }
        if let Err(error) = LiveServer::end(&kept.store, kept.node).await {
            tracing::warn!(%error, "the store of backups still counts this server as running, for a minute");
        }
    }
}

/// Checks that the store belongs to this installation, and that this server may write there. The
/// first server of a store describes it.
async fn claim(kept: &KeptInstallation, state: &mut KeeperState) -> Result<()> {
    let doing = "reading the installation";
    let sql = "select id, store_epoch from installation";
    let rows = kept.db.query(sql, &[]).await.context(doing)?;
    let row = rows.first().ok_or("no row").context(doing)?;
    let (installation, epoch): (Uuid, i64) = (row.get(0), row.get(1));
    state.epoch = u64::try_from(epoch).unwrap_or(0);
    if !state.is_claimed {
        let ours = About {
            format: FORMAT,
            installation,
            key: kept.store.fingerprint().to_owned(),
        };
        match kept.store.about().await? {
            None => kept.store.put_about(&ours).await?,
            Some(found) if found == ours => {}
            Some(found) => return Err(foreign(&found, &ours)),
        }
    }
    state.is_claimed = true;
    StoreEpoch::check(&kept.store, state.epoch).await
}

/// Returns the error for a store of another installation.
fn foreign(found: &About, ours: &About) -> InstallationError {
    let text = if found.installation == ours.installation {
        format!(
            "the store has the backups of this installation under the sealing key {}, and the server has {}: set --sealing-key to the file of the \
             first, or give the server an empty store",
            found.key, ours.key
        )
    } else {
        format!(
            "the store has the backups of another installation, {}: give this server another bucket, prefix or folder, or recover that installation \
             with `gantry recover` into an empty data folder",
            found.installation
        )
    };
    InstallationError::Refused(text)
}

/// Reads what the store has, so that only new contents are stored. A damaged snapshot is ignored.
/// `newest` is the newest one, which the process did not write itself: its writer may have removed
/// every content that the snapshot does not name.
async fn read_last(
    kept: &KeptInstallation,
    state: &mut KeeperState,
    newest: Option<SnapshotName>,
) -> Result<()> {
    state.known.clear();
    state.last = None;
    state.folders.clear();
    state.has_node = false;
    if let Some(name) = newest {
        match ControlSnapshot::get(&kept.store, name).await {
            Ok(last) => {
                state.known.extend(last.chunks().cloned());
                state.last = Some((name, last));
            }
            Err(error) if error.is_damage() => {
                tracing::warn!(%error, "snapshot cannot be read; storing everything again");
            }
            Err(error) => return Err(error),
        }
    }
    match Node::get(&kept.store, kept.node).await {
        Ok(Some(node)) => {
            state.known.extend(node.chunks().cloned());
            state.folders = node.folders;
            state.has_node = true;
        }
        Ok(None) => {}
        Err(error) if error.is_damage() => {
            tracing::warn!(%error, "files in the store cannot be read; storing them again");
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

enum Written {
    Snapshot(WrittenSnapshot),
    /// The last snapshot has the same rows.
    Unchanged,
    /// Another process writes.
    Busy,
}

/// Writes the files of the node, then a snapshot, and expires earlier ones. One process at a time
/// does this: contents that no snapshot has yet would be swept away otherwise.
async fn write(kept: &KeptInstallation, state: &mut KeeperState) -> Result<Written> {
    let doing = "locking the backups of the installation";
    let connected = kept.db.dedicated(APPLICATION).await;
    let (client, connection) = connected.map_err(sql_error(doing))?;
    let driver = tokio::spawn(connection);
    let written = async {
        // The lock is released with the session, however this ends.
        let sql = "select pg_try_advisory_lock($1)";
        let row = client.query_one(sql, &[&WRITER_LOCK]).await;
        if !row.map_err(sql_error(doing))?.get::<_, bool>(0) {
            return Ok(Written::Busy);
        }
        write_locked(kept, state).await
    };
    let written = written.await;
    drop(client);
    driver.abort();
    written
}

async fn write_locked(kept: &KeptInstallation, state: &mut KeeperState) -> Result<Written> {
    StoreEpoch::check(&kept.store, state.epoch).await?;
    let mut names = SnapshotName::all(&kept.store).await?;
    let newest = names.last().copied();
    let ours = state.last.as_ref().map(|(name, _)| *name);
    if !state.has_node || newest != ours {
        read_last(kept, state, newest).await?;
    }
    // A row of a function is written after its files: files are stored for every row below.
    let mut writer = ChunkWriter::new(&kept.store, &mut state.known);
    let snapshot = dump::dump(&kept.db, &kept.clock, kept.node, &mut writer).await?;
    let folders = files::store(&kept.home, &state.folders, &mut writer).await?;
    let written_bytes = writer.written;
    write_node(kept, state, folders).await?;
    let last = state.last.as_ref();
    let is_same = last.is_some_and(|(_, last)| last.is_same(&snapshot));
    let forced = std::mem::take(&mut state.forced);
    if is_same && !forced {
        return Ok(Written::Unchanged);
    }
    let name = SnapshotName {
        epoch: state.epoch,
        number: names
            .last()
            .filter(|last| last.epoch == state.epoch)
            .map_or(1, |last| last.number + 1),
        taken_at: snapshot.taken_at.trunc_subsecs(0),
    };
    kept.store.put_json(&name.object(), &snapshot).await?;
    // Read back: a store that acknowledges what it does not have is found here.
    ControlSnapshot::get(&kept.store, name).await?;
    names.push(name);
    let written = WrittenSnapshot {
        name,
        rows: snapshot.rows(),
        written_bytes,
    };
    state.last = Some((name, snapshot));
    if let Err(error) = expire(kept, state, names).await {
        tracing::warn!(%error, "earlier snapshots of the installation could not be removed; retrying");
    }
    Ok(Written::Snapshot(written))
}

async fn write_node(
    kept: &KeptInstallation,
    state: &mut KeeperState,
    folders: BTreeMap<String, FolderContent>,
) -> Result<()> {
    if state.has_node && folders == state.folders {
        return Ok(());
    }
    let home = kept.home.clone();
    let node = Node {
        format: FORMAT,
        node: kept.node,
        host: kept.host.clone(),
        installed: super::objects::blocking(move || Ok(files::installed(&home))).await?,
        folders,
    };
    kept.store.put_json(&Node::object(kept.node), &node).await?;
    state.folders = node.folders;
    state.has_node = true;
    Ok(())
}

/// Removes snapshots that have expired, and every hour the contents that nothing names any more.
async fn expire(
    kept: &KeptInstallation,
    state: &mut KeeperState,
    names: Vec<SnapshotName>,
) -> Result<()> {
    let store = &kept.store;
    let expired = content::expired(&names, kept.clock.now());
    for name in &expired {
        store.delete(&name.object()).await?;
    }
    let now = kept.clock.ticks();
    if state
        .swept_at
        .is_some_and(|at| now.saturating_sub(at) < SWEEP_MS)
    {
        return Ok(());
    }
    let mut used = HashSet::new();
    for name in names.iter().filter(|name| !expired.contains(name)) {
        used.extend(ControlSnapshot::get(store, *name).await?.chunks().cloned());
    }
    for node in store.list(content::NODES).await? {
        let node = node
            .parse::<Uuid>()
            .context("reading the nodes of a store")?;
        let node = Node::get(store, node).await?;
        used.extend(node.iter().flat_map(Node::chunks).cloned());
    }
    let mut present = HashSet::new();
    for chunk in store.list(content::CHUNKS).await? {
        if used.contains(&chunk) {
            present.insert(chunk);
        } else {
            store.delete(&content::chunk_object(&chunk)).await?;
        }
    }
    // Contents that the store lost are stored again with the next snapshot.
    state.known = present;
    state.swept_at = Some(now);
    Ok(())
}
