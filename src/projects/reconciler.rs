//! Drives what was observed of every project to what is wanted of it.
//!
//! The row says what is wanted, the disk and the process table say what is; each pass compares and acts where they
//! differ. Every step can be repeated, so a crash at any point only means the next pass does the rest.

use std::{
    collections::HashSet,
    sync::{Arc, OnceLock},
    time::Duration,
};

use chrono::TimeDelta;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, watch};
use tokio_postgres::Row;

use super::Status;
use crate::{
    app::App,
    clusters::Cluster,
    database,
    error::{Context, Error},
    ids::{ProjectId, ProjectRef},
};

/// Projects worked on at once. Copying and starting are bound by two resources, so more would only queue (measured).
const WORKERS: usize = 4;
/// Rows taken in one pass; the rest follow in the next, which comes at once.
const BATCH: i64 = 256;
/// How often every running project is looked at, without being asked.
const FULL_PASS: Duration = Duration::from_secs(30);
/// How soon a pass follows one that left something to retry.
const RETRY_PASS: Duration = Duration::from_secs(1);
/// How long a server may take to accept connections.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// Attempts after which the project is shown as failed. It is retried all the same.
const ATTEMPTS_SHOWN: i32 = 5;
/// Longest pause between attempts, in seconds.
const BACKOFF_SECS_MAX: i64 = 60;

/// The reconciler's bell and its news.
#[derive(Debug)]
pub struct Reconciler {
    wake: Notify,
    /// Something was put into the trash.
    trash: Notify,
    changes: watch::Sender<u64>,
    busy: Mutex<HashSet<ProjectId>>,
    workers: Arc<Semaphore>,
    stopping: OnceLock<()>,
}

impl Default for Reconciler {
    fn default() -> Self {
        Self {
            wake: Notify::new(),
            trash: Notify::new(),
            changes: watch::channel(0).0,
            busy: Mutex::default(),
            workers: Arc::new(Semaphore::new(WORKERS)),
            stopping: OnceLock::new(),
        }
    }
}

/// What a pass reads of a project.
#[derive(Debug)]
struct Wanted {
    id: ProjectId,
    cluster: Cluster,
    active: bool,
    status: Status,
    verifier: Option<String>,
    attempts: i32,
}

impl Reconciler {
    /// Asks for a pass now.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Tells whenever the status of some project changed.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Takes no new work, and returns when the work begun is done.
    pub async fn stop(&self) {
        // Only the first call sets it; stopping twice is the same as once.
        let _ = self.stopping.set(());
        self.wake();
        // All permits back means nobody works any more. The semaphore is never closed.
        let _ = self.workers.acquire_many(u32::try_from(WORKERS).unwrap_or(u32::MAX)).await;
    }
}

/// Runs until [`Reconciler::stop`].
pub async fn run(app: App) {
    let mut full = true;
    loop {
        let pause = match pass(&app, full).await {
            Ok(0) => FULL_PASS,
            Ok(_) => RETRY_PASS,
            Err(error) => {
                tracing::warn!(%error, "could not read what is wanted of the projects");
                RETRY_PASS
            }
        };
        full = tokio::time::timeout(pause, app.reconciler.wake.notified()).await.is_err() && pause == FULL_PASS;
        if app.reconciler.stopping.get().is_some() {
            return;
        }
    }
}

/// Starts work on every project that needs some, and returns how many there were.
async fn pass(app: &App, full: bool) -> Result<usize, Error> {
    let mut wanted = unsettled(app).await?;
    if full {
        wanted.extend(mark_fallen(app).await?);
    }
    let count = wanted.len();
    for project in wanted {
        if !app.reconciler.busy.lock().insert(project.id) {
            continue;
        }
        let permit = app.reconciler.workers.clone().acquire_owned().await.context("waiting for a worker")?;
        if app.reconciler.stopping.get().is_some() {
            break;
        }
        let app = app.clone();
        tokio::spawn(async move {
            let settled = settle(&app, &project).await;
            if let Err(error) = settled {
                postpone(&app, &project, &error).await;
            }
            app.reconciler.busy.lock().remove(&project.id);
            drop(permit);
            app.forget("projects");
            app.reconciler.changes.send_modify(|count| *count += 1);
            // Something else may have been wanted meanwhile.
            app.reconciler.wake();
        });
    }
    Ok(count)
}

/// Projects whose row says that something is to be done, and whose turn it is.
async fn unsettled(app: &App) -> Result<Vec<Wanted>, Error> {
    let sql = "select id, ref, desired, status, password_verifier, attempts from projects \
               where node = $1 and status not in ('ACTIVE_HEALTHY', 'REMOVED') and not_before <= $2 order by not_before, id limit $3";
    let rows = app.db.query(sql, &[&app.settings.node, &app.clock.now(), &BATCH]).await.context("reading unsettled projects")?;
    rows.iter().map(|row| read(app, row)).collect()
}

/// Projects whose row says healthy, and whose server does not run. The row says so from now on.
async fn mark_fallen(app: &App) -> Result<Vec<Wanted>, Error> {
    let sql = "select id, ref, desired, status, password_verifier, attempts from projects \
               where node = $1 and status = 'ACTIVE_HEALTHY' order by id";
    let rows = app.db.query(sql, &[&app.settings.node]).await.context("reading healthy projects")?;
    let mut fallen = Vec::new();
    for row in &rows {
        let mut project = read(app, row)?;
        if !app.clusters.runs(&project.cluster.project).await.context("looking for a project's server")? {
            tracing::warn!(project = %project.cluster.project, "the project's server is down; starting it");
            // In both places: an attempt that fails writes back what it was given.
            project.status = Status::ActiveUnhealthy;
            set_status(app, project.id, project.status).await?;
            fallen.push(project);
        }
    }
    Ok(fallen)
}

fn read(app: &App, row: &Row) -> Result<Wanted, Error> {
    let id = ProjectId(row.get(0));
    let project: ProjectRef = row.get::<_, &str>(1).parse().context("reading a project's ref")?;
    let uid = u32::try_from(id.0)
        .ok()
        .and_then(|id| app.settings.project_uid_base.checked_add(id))
        .ok_or("no user id left")
        .context("choosing a user id")?;
    Ok(Wanted {
        id,
        cluster: Cluster { project, uid },
        active: row.get::<_, &str>(2) == "active",
        status: Status::read(row, 3)?,
        verifier: row.get(4),
        attempts: row.get(5),
    })
}

/// Does what is left to do for one project. Each step looks before it acts.
async fn settle(app: &App, project: &Wanted) -> Result<(), Error> {
    let cluster = &project.cluster;
    if !project.active {
        app.clusters.remove(&cluster.project).await.context("removing a cluster")?;
        set_status(app, project.id, Status::Removed).await?;
        app.reconciler.trash.notify_one();
        return Ok(());
    }
    // Once a project was announced its data must be there: never replace what is missing with an empty cluster.
    if matches!(project.status, Status::ComingUp | Status::InitFailed) {
        app.clusters.create(cluster).await.context("making a cluster")?;
    }
    app.clusters.start(&cluster.project).await.context("starting a cluster")?;
    app.clusters.wait_ready(&cluster.project, READY_TIMEOUT).await.context("waiting for a cluster")?;
    if let Some(verifier) = &project.verifier {
        app.clusters.set_password(&cluster.project, database::OWNER, verifier).await.context("setting a password")?;
    }
    // One statement: the verifier goes exactly when the project is announced. A removal asked for meanwhile stands.
    let sql = "update projects set status = 'ACTIVE_HEALTHY', password_verifier = null, attempts = 0, last_error = null, updated_at = $2 \
               where id = $1 and desired = 'active'";
    app.db.query(sql, &[&project.id.0, &app.clock.now()]).await.context("announcing a project")?;
    tracing::info!(project = %cluster.project, "the project is healthy");
    Ok(())
}

/// Writes down that an attempt failed, and when the next is due: after 1, 2, 4 … 60 seconds.
async fn postpone(app: &App, project: &Wanted, error: &Error) {
    let attempts = project.attempts.saturating_add(1);
    tracing::warn!(project = %project.cluster.project, attempts, %error, "the project could not be settled; it will be retried");
    let pause = TimeDelta::seconds((1_i64 << attempts.clamp(1, 7) >> 1).min(BACKOFF_SECS_MAX));
    let status = match project.status {
        Status::ComingUp if attempts >= ATTEMPTS_SHOWN => Status::InitFailed,
        other => other,
    };
    let sql = "update projects set attempts = $2, not_before = $3, last_error = $4, status = $5, updated_at = $6 \
               where id = $1 and (desired = 'active') = $7";
    let now = app.clock.now();
    let written =
        app.db.query(sql, &[&project.id.0, &attempts, &(now + pause), &error.to_string(), &status.name(), &now, &project.active]).await;
    if let Err(error) = written {
        tracing::warn!(%error, "a failed attempt could not be written down");
    }
}

async fn set_status(app: &App, id: ProjectId, status: Status) -> Result<(), Error> {
    let sql = "update projects set status = $2, updated_at = $3 where id = $1 and (desired = 'active' or $2 in ('GOING_DOWN', 'REMOVED'))";
    app.db.query(sql, &[&id.0, &status.name(), &app.clock.now()]).await.context("writing a project's status")?;
    Ok(())
}

/// Empties the trash whenever something was put there, a little at a time, beside everything else.
pub async fn empty_trash(app: App) {
    loop {
        app.reconciler.trash.notified().await;
        loop {
            match app.clusters.empty_trash().await {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(%error, "the trash could not be emptied; it will be at the next removal");
                    break;
                }
            }
        }
    }
}

/// Brings what is written down and what is there in line, before anybody is answered: the last process may have ended
/// anywhere, and servers with it.
pub async fn take_stock(app: &App) -> Result<(), Error> {
    collect_garbage(app).await?;
    mark_fallen(app).await.map(drop)
}

/// Removes what no row knows: half-made copies, and clusters whose row never came to be.
async fn collect_garbage(app: &App) -> Result<(), Error> {
    let sql = "select ref from projects where node = $1 and status <> 'REMOVED'";
    let rows = app.db.query(sql, &[&app.settings.node]).await.context("reading the projects of this node")?;
    let known =
        rows.iter().map(|row| row.get::<_, &str>(0).parse()).collect::<Result<HashSet<ProjectRef>, _>>().context("reading a ref")?;
    app.clusters.collect_garbage(&known).await.context("clearing the data folder")?;
    app.reconciler.trash.notify_one();
    Ok(())
}
