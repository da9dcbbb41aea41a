//! Drives what was observed of every project to what is wanted of it.
//!
//! The row says what is wanted, the disk and the process table say what is; each pass compares and acts where they
//! differ. Every step can be repeated, so a crash at any point only means the next pass does the rest.

use std::{
    collections::HashSet,
    sync::{Arc, OnceLock},
    time::Duration,
};

use chrono::{DateTime, TimeDelta, Utc};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::{
    sync::{
        Notify, OwnedSemaphorePermit, Semaphore,
        watch::{Receiver, Sender, channel},
    },
    time::MissedTickBehavior,
};
use tokio_postgres::Row;

use super::{Status, parameters, warm_pool, watch, watch::Watch};
use crate::{
    base::{
        db::Param,
        error::{Context, Error},
        ids::{ProjectId, ProjectRef},
    },
    data_plane::{
        clusters,
        clusters::{ClusterError, ClusterSpec, CopyPriority},
        context::DataPlaneContext,
        database_session,
        metrics::Step,
        temporary_access,
    },
    platform::tables::Table,
};

/// Projects worked on at once. Copying and starting are bound by two resources, so more would only queue (measured).
const WORKERS: usize = 4;
/// Rows taken in one pass; the rest follow in the next, which comes at once.
const BATCH: i64 = 256;
/// How often every running project is looked at, without being asked.
const FULL_PASS: Duration = Duration::from_secs(30);
/// How soon a pass follows one that failed.
const RETRY_PASS: Duration = Duration::from_secs(1);
/// How long a server may take to accept connections.
pub(crate) const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest pause between attempts, in seconds.
const BACKOFF_SECS_MAX: i64 = 60;
/// A server that dies sooner than this after it was announced has not recovered.
const STEADY: TimeDelta = TimeDelta::seconds(60);

/// The reconciler's bell and its news.
#[derive(Debug)]
pub struct Reconciler {
    wake: Notify,
    /// Something was put into the trash.
    trash: Notify,
    changes: Sender<u64>,
    /// Ends of servers.
    pub(crate) watch: Watch,
    busy: Mutex<HashSet<ProjectId>>,
    workers: Arc<Semaphore>,
    stopping: OnceLock<()>,
}

/// A project that somebody beside the reconciler works on.
pub(crate) struct Hold<'a> {
    reconciler: &'a Reconciler,
    project: ProjectId,
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.reconciler.busy.lock().remove(&self.project);
        // Something may have been wanted meanwhile.
        self.reconciler.heard();
    }
}

impl Default for Reconciler {
    fn default() -> Self {
        Self {
            wake: Notify::new(),
            trash: Notify::new(),
            changes: channel(0).0,
            watch: Watch::default(),
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
    cluster: ClusterSpec,
    status: Status,
    /// The number of the wish. What is written down for it stands only as long as nothing else was wished for.
    generation: i64,
    verifier: Option<String>,
    attempts: i32,
    /// What its server is to run with, by PostgreSQL's names.
    settings: Setting,
    /// Whether they were changed, and the server does not know yet.
    changed: bool,
    /// What it last started with.
    started: Setting,
    /// Whether its roles are to be given what this version gives.
    outdated: bool,
}

type Setting = Vec<(String, String)>;

impl Wanted {
    /// Whether its server, once it is up, was started with everything that is read at the start only.
    fn runs_with_all(&self) -> bool {
        self.status != Status::ActiveHealthy || !parameters::wait(&self.started, &self.settings)
    }
}

/// Rows that something is to be done for. The index `projects_unsettled_idx` has the same condition.
macro_rules! unsettled {
    ($what:literal, $rest:literal) => {
        concat!(
            "select ",
            $what,
            " from projects where node = $1 and (status not in ('ACTIVE_HEALTHY', 'INACTIVE', 'REMOVED') \
             or (status = 'ACTIVE_HEALTHY' and (password_verifier is not null or settings_before is not null or outdated)))",
            $rest
        )
    };
}

/// Writes down an outcome: of the last wish for project `$1`, which has the number `$2`, and under the lease with the
/// number `$3`. The lease is held on to until the row is written.
macro_rules! fenced {
    ($update:literal) => {
        concat!(
            $update,
            "id = $1 and generation = $2 and exists \
             (select from node_leases l where l.node = projects.node and l.generation = $3 for share)"
        )
    };
}

impl Reconciler {
    /// Asks for a pass now.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Another process changed some project.
    pub(crate) fn heard(&self) {
        self.changes.send_modify(|count| *count += 1);
        self.wake();
    }

    /// Tells whenever the status of some project changed.
    pub fn changes(&self) -> Receiver<u64> {
        self.changes.subscribe()
    }

    /// Whether some project is worked on.
    pub(crate) fn is_busy(&self) -> bool {
        !self.busy.lock().is_empty()
    }

    /// Keeps the reconciler's hands off a project until it is dropped. None if it has it in hand.
    pub(crate) fn hold(&self, project: ProjectId) -> Option<Hold<'_>> {
        self.busy.lock().insert(project).then_some(Hold {
            reconciler: self,
            project,
        })
    }

    /// Leave to work, once a worker is free. None when there is to be no new work.
    pub(crate) async fn begin(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed.
        let permit = self.workers.clone().acquire_owned().await.ok()?;
        self.stopping.get().is_none().then_some(permit)
    }

    /// Something was put into the trash.
    pub(crate) fn trash_filled(&self) {
        self.trash.notify_one();
    }

    /// Takes no new work, and returns when the work begun is done.
    pub async fn stop(&self) {
        // Only the first call sets it; stopping twice is the same as once.
        let _ = self.stopping.set(());
        self.wake();
        // All permits back means nobody works any more. The semaphore is never closed.
        let _ = self
            .workers
            .acquire_many(u32::try_from(WORKERS).unwrap_or(u32::MAX))
            .await;
    }
}

/// Runs until [`Reconciler::stop`].
pub async fn run(context: DataPlaneContext) {
    let mut full_pass = tokio::time::interval(FULL_PASS);
    full_pass.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut pause = Duration::ZERO;
    loop {
        let full = tokio::select! {
            biased;
            _ = full_pass.tick() => true,
            _ = tokio::time::timeout(pause, context.reconciler.wake.notified()) => false,
        };
        if context.reconciler.stopping.get().is_some() {
            return;
        }
        if !context.lease.leads() {
            // Whoever gets the lease is woken.
            pause = FULL_PASS;
            continue;
        }
        pause = pass(&context, full).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "could not read what is wanted of the projects");
            RETRY_PASS
        });
    }
}

/// Starts work on every project that needs some now, and returns how long until one may need some again.
async fn pass(context: &DataPlaneContext, full: bool) -> Result<Duration, Error> {
    let ended = context.reconciler.watch.take_ended();
    let looked = if full || !ended.is_empty() {
        mark_fallen(context, (!full).then_some(&ended)).await
    } else {
        Ok(())
    };
    if let Err(error) = looked {
        // Not before the control database answers.
        for project in ended {
            context.reconciler.watch.look_at(project);
        }
        return Err(error);
    }
    for project in unsettled(context).await? {
        if !context.reconciler.busy.lock().insert(project.id) {
            continue;
        }
        let Some(permit) = context.reconciler.begin().await else {
            break;
        };
        let context = context.clone();
        tokio::spawn(async move {
            let settled = settle(&context, &project).await;
            if let Err(error) = settled {
                postpone(&context, &project, &error).await;
            }
            context.reconciler.busy.lock().remove(&project.id);
            drop(permit);
            tell(&context);
            context.pool.wake();
            // Something else may have been wanted meanwhile.
            context.reconciler.wake();
        });
    }
    next_due(context).await
}

/// The status of some project changed.
fn tell(context: &DataPlaneContext) {
    context.table_changed(Table::Projects);
    context.reconciler.changes.send_modify(|count| *count += 1);
}

/// Projects whose row says that something is to be done, and whose turn it is.
async fn unsettled(context: &DataPlaneContext) -> Result<Vec<Wanted>, Error> {
    let sql = unsettled!(
        "id, ref, status, generation, password_verifier, attempts, account, engine, settings, settings_before is not null, \
         settings_started, outdated",
        " and (not_before <= $2 or not_before > $4) order by not_before, id limit $3"
    );
    // No pause is that long: a clock that was set back would make it so.
    let (now, beyond) = (
        context.clock.now(),
        context.clock.now() + TimeDelta::seconds(2 * BACKOFF_SECS_MAX),
    );
    let rows = context
        .db
        .query(sql, &[&context.settings.node, &now, &BATCH, &beyond])
        .await
        .context("reading unsettled projects")?;
    rows.iter().map(|row| read(context, row)).collect()
}

/// How long until the next attempt that was put off is due. Work that is due now wakes the reconciler when it ends.
async fn next_due(context: &DataPlaneContext) -> Result<Duration, Error> {
    let now = context.clock.now();
    let sql = unsettled!("min(not_before)", " and not_before > $2");
    let rows = context
        .db
        .query(sql, &[&context.settings.node, &now])
        .await
        .context("reading unsettled projects")?;
    let due: Option<DateTime<Utc>> = rows.first().and_then(|row| row.get(0));
    // Up to the millisecond: a pass a moment too early would find nothing.
    let pause = due.and_then(|due| (due - now + TimeDelta::milliseconds(1)).to_std().ok());
    Ok(pause.map_or(FULL_PASS, |pause| pause.min(FULL_PASS)))
}

/// Looks for projects, of these or of all, whose row says healthy, and whose server does not run. The row says so from now
/// on. Of those that run the end is waited for.
async fn mark_fallen(
    context: &DataPlaneContext,
    of: Option<&HashSet<ProjectId>>,
) -> Result<(), Error> {
    let of: Option<Vec<i64>> = of.map(|ids| ids.iter().map(|id| id.0).collect());
    let sql = "select id, ref, generation, falls, settled_at from projects \
               where node = $1 and status = 'ACTIVE_HEALTHY' and not asleep and ($2::bigint[] is null or id = any($2)) order by id";
    let rows = context
        .db
        .query(sql, &[&context.settings.node, &of])
        .await
        .context("reading healthy projects")?;
    for row in &rows {
        let project: ProjectRef = row
            .get::<_, &str>(1)
            .parse()
            .context("reading a project's ref")?;
        match context.driver.running(&project).await {
            Ok(Some(server)) => watch::begin(context, ProjectId(row.get(0)), server),
            Ok(None) => fell(context, row, &project).await?,
            // One project that cannot be looked at holds up no other.
            Err(error) => {
                tracing::warn!(%project, %error, "could not look for the project's server")
            }
        }
    }
    Ok(())
}

/// Writes down that a server ended by itself. It is started at once, unless it did the same shortly before: then ever later.
async fn fell(context: &DataPlaneContext, row: &Row, project: &ProjectRef) -> Result<(), Error> {
    let now = context.clock.now();
    let again = row
        .get::<_, Option<DateTime<Utc>>>(4)
        .is_some_and(|settled| now - settled < STEADY);
    let falls = if again {
        row.get::<_, i32>(3).saturating_add(1)
    } else {
        1
    };
    tracing::warn!(%project, falls, "the project's server is down; it will be started");
    let lease = context.lease.check()?;
    let sql = fenced!(
        "update projects set status = 'ACTIVE_UNHEALTHY', attempts = 0, falls = $4, not_before = $5, updated_at = $6, \
         last_error = 'the server ended by itself' where status = 'ACTIVE_HEALTHY' and "
    );
    let params: [Param<'_>; 6] = [
        &row.get::<_, i64>(0),
        &row.get::<_, i64>(2),
        &lease,
        &falls,
        &(now + backoff(falls - 1)),
        &now,
    ];
    context
        .db
        .query(sql, &params)
        .await
        .context("writing a project's status")?;
    tell(context);
    Ok(())
}

/// The pause before the next attempt, after so many: 0, 1, 2, 4 … 60 seconds.
fn backoff(attempts: i32) -> TimeDelta {
    TimeDelta::seconds((1_i64 << attempts.clamp(0, 7) >> 1).min(BACKOFF_SECS_MAX))
}

fn read(context: &DataPlaneContext, row: &Row) -> Result<Wanted, Error> {
    let id = ProjectId(row.get(0));
    let project: ProjectRef = row
        .get::<_, &str>(1)
        .parse()
        .context("reading a project's ref")?;
    let major = super::major(row.get(7))
        .ok_or("no version")
        .context("reading a project's version")?;
    Ok(Wanted {
        id,
        cluster: ClusterSpec {
            project,
            uid: uid(context, row.get::<_, Option<i64>>(6).unwrap_or(id.0))?,
            major,
        },
        status: Status::read(row, 2)?,
        generation: row.get(3),
        verifier: row.get(4),
        attempts: row.get(5),
        settings: settings(&row.get(8)),
        changed: row.get(9),
        started: settings(&row.get(10)),
        outdated: row.get(11),
    })
}

fn settings(row: &Value) -> Setting {
    let settings = row.as_object().into_iter().flatten();
    settings
        .map(|(name, value)| (name.clone(), parameters::text(value)))
        .collect()
}

/// The user id of a cluster: no other has the same.
pub(crate) fn uid(context: &DataPlaneContext, account: i64) -> Result<u32, Error> {
    let uid = u32::try_from(account).ok().and_then(|account| {
        context
            .data_plane_settings
            .project_uid_base
            .checked_add(account)
    });
    uid.ok_or("no user id left").context("choosing a user id")
}

/// Does what is left to do for one project. Each step looks before it acts.
async fn settle(context: &DataPlaneContext, project: &Wanted) -> Result<(), Error> {
    let (reference, mut went_back) = (&project.cluster.project, None);
    match project.status.goal() {
        Status::Removed => {
            timed(context, Step::Remove, context.driver.remove(reference)).await?;
            context.clean_up_removed(reference).await?;
            context.reconciler.trash_filled();
        }
        Status::Inactive => timed(context, Step::Stop, context.driver.stop(reference)).await?,
        _ => went_back = bring_up(context, project).await?,
    }
    announce(context, project, went_back).await?;
    // The next pass waits for the server's end, or finds that it ended already.
    context.reconciler.watch.look_at(project.id);
    Ok(())
}

/// Returns why the server runs with the settings it had before, if it does.
async fn bring_up(context: &DataPlaneContext, project: &Wanted) -> Result<Option<String>, Error> {
    let driver = &context.driver;
    let reference = &project.cluster.project;
    // Once a project was announced its data must be there: never replace what is missing with an empty cluster.
    let is_new = matches!(project.status, Status::ComingUp | Status::InitFailed);
    if is_new {
        let create = driver.create(&project.cluster, CopyPriority::Foreground);
        timed(context, Step::Create, create).await?;
    }
    // Cut off between the two, or after them, a restart begins anew: one too many is better than none.
    if project.status == Status::Restarting {
        timed(context, Step::Stop, driver.stop(reference)).await?;
    }
    let mut went_back = None;
    if let Err(error) = start(context, project, &project.settings).await {
        if project.started == project.settings {
            return Err(error);
        }
        driver.stop(reference).await.context("stopping a cluster")?;
        start(context, project, &project.started).await?;
        went_back = Some(format!(
            "the server did not start with these settings, and runs with those before: {error}"
        ));
    } else if project.changed && project.status == Status::ActiveHealthy {
        driver
            .reload(reference)
            .await
            .context("reloading settings")?;
    }
    if let Some(verifier) = &project.verifier {
        let set = driver.set_password(reference, database_session::OWNER, verifier);
        timed(context, Step::Password, set).await?;
    }
    // A new one is as its template is, and nobody was let in.
    if project.outdated || !is_new {
        catch_up(context, project).await?;
    }
    Ok(went_back)
}

/// Brings a server in line with what changed while it did not run, before anybody is told that it is there.
async fn catch_up(context: &DataPlaneContext, project: &Wanted) -> Result<(), Error> {
    let reference = &project.cluster.project;
    let admin = match context.driver.admin_session(reference).await {
        Err(ClusterError::Unsupported(_)) => return Ok(()),
        session => session.context("connecting to a cluster")?,
    };
    context
        .driver
        .repair_roles_over(&admin)
        .await
        .context("repairing the platform's roles")?;
    if project.outdated {
        context
            .driver
            .grant_roles(&admin)
            .await
            .context("granting what roles may do")?;
    }
    temporary_access::reconciler::revoke_expired(context, project.id, reference, &admin).await
}

/// Starts the server with these settings unless it runs, and waits until it accepts connections.
async fn start(
    context: &DataPlaneContext,
    project: &Wanted,
    settings: &Setting,
) -> Result<(), Error> {
    let driver = &context.driver;
    let reference = &project.cluster.project;
    if !settings.is_empty() || project.changed || !project.started.is_empty() {
        driver
            .configure(reference, settings)
            .await
            .context("writing settings")?;
    }
    timed(context, Step::Start, driver.start(reference)).await?;
    timed(
        context,
        Step::Ready,
        driver.wait_ready(reference, READY_TIMEOUT),
    )
    .await
}

/// Runs a step, if it is still ours to run, and tells the metrics how long it took if it succeeded.
async fn timed<T>(
    context: &DataPlaneContext,
    step: Step,
    work: impl Future<Output = clusters::Result<T>>,
) -> Result<T, Error> {
    context.lease.check()?;
    let begun = context.clock.ticks();
    let done = work.await.context(step.doing())?;
    context
        .data_plane_metrics
        .clusters
        .took(step, context.clock.ticks() - begun);
    Ok(done)
}

/// Writes down that the goal is reached. What was asked for meanwhile stands, and is next.
async fn announce(
    context: &DataPlaneContext,
    project: &Wanted,
    went_back: Option<String>,
) -> Result<(), Error> {
    // One statement: the verifier goes exactly when it is set, or nobody will ever need it.
    let lease = context.lease.check()?;
    let sql = fenced!(
        "update projects set status = $4, attempts = 0, last_error = $6, updated_at = $5, settled_at = $5, asleep = false, \
         settings = case when $6::text is null then settings else settings_started end, \
         settings_started = case when $6::text is null and $8 then settings else settings_started end, \
         settings_before = case when $4 = 'INACTIVE' then settings_before end, \
         grants = case when outdated and $4 = 'ACTIVE_HEALTHY' then $7 else grants end, outdated = outdated and $4 = 'INACTIVE', \
         password_verifier = case when $4 = 'INACTIVE' then password_verifier end where "
    );
    let (goal, now, grants) = (
        project.status.goal(),
        context.clock.now(),
        context.driver.grants_version(),
    );
    let started = goal == Status::ActiveHealthy && project.runs_with_all();
    let params: [Param<'_>; 8] = [
        &project.id.0,
        &project.generation,
        &lease,
        &goal.name(),
        &now,
        &went_back,
        &grants,
        &started,
    ];
    context
        .db
        .query(sql, &params)
        .await
        .context("announcing a project")?;
    tracing::info!(project = %project.cluster.project, status = goal.name(), "the project is settled");
    Ok(())
}

/// Writes down that an attempt failed, and when the next is due: after 1, 2, 4 … 60 seconds.
async fn postpone(context: &DataPlaneContext, project: &Wanted, error: &Error) {
    let attempts = project.attempts.saturating_add(1);
    tracing::warn!(project = %project.cluster.project, attempts, %error, "the project could not be settled; it will be retried");
    let status = project.status.after_failure(attempts);
    // Whoever has the lease now makes an attempt of its own.
    let Some(lease) = context.lease.generation() else {
        return;
    };
    let sql = fenced!(
        "update projects set attempts = $4, not_before = $5, last_error = $6, status = $7, updated_at = $8 where "
    );
    let (now, cause) = (context.clock.now(), error.to_string());
    let params: [Param<'_>; 8] = [
        &project.id.0,
        &project.generation,
        &lease,
        &attempts,
        &(now + backoff(attempts)),
        &cause,
        &status.name(),
        &now,
    ];
    if let Err(error) = context.db.query(sql, &params).await {
        tracing::warn!(%error, "a failed attempt could not be written down");
    }
}

/// Empties the trash whenever something was put there, a little at a time, beside everything else.
pub async fn empty_trash(context: DataPlaneContext) {
    loop {
        context.reconciler.trash.notified().await;
        loop {
            match context.driver.empty_trash().await {
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
pub async fn take_stock(context: &DataPlaneContext) -> Result<(), Error> {
    collect_garbage(context).await?;
    mark_outdated(context).await?;
    mark_fallen(context, None).await
}

/// Projects whose roles were given what another version of Gantry gives.
async fn mark_outdated(context: &DataPlaneContext) -> Result<(), Error> {
    let sql = "update projects set outdated = true where node = $1 and desired <> 'removed' and not outdated and grants is distinct from $2";
    context
        .db
        .query(
            sql,
            &[&context.settings.node, &context.driver.grants_version()],
        )
        .await
        .context("looking for older projects")
        .map(drop)
}

/// Removes what no row knows: half-made copies, and clusters whose row never came to be.
async fn collect_garbage(context: &DataPlaneContext) -> Result<(), Error> {
    let sql = "select ref from projects where node = $1 and status <> 'REMOVED'";
    let rows = context
        .db
        .query(sql, &[&context.settings.node])
        .await
        .context("reading the projects of this node")?;
    let mut known = rows
        .iter()
        .map(|row| row.get::<_, &str>(0).parse())
        .collect::<Result<HashSet<ProjectRef>, _>>()
        .context("reading a ref")?;
    known.extend(warm_pool::review(context).await?);
    context
        .driver
        .collect_garbage(&known)
        .await
        .context("clearing the data folder")?;
    context.reconciler.trash_filled();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_minute() {
        let seconds = [-1, 0, 1, 2, 3, 4, 5, 6, 7, 8, i32::MAX]
            .map(|attempts| backoff(attempts).num_seconds());
        assert_eq!(seconds, [0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60]);
    }
}
