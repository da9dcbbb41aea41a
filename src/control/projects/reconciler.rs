//! Drives every cluster of this node to the desired state in its project's row.
//!
//! Each pass compares the rows with the clusters and acts on differences. Every step is idempotent,
//! so after a crash the next pass completes the work.

/// Adds a fence to an update of project `$1`: its generation must still be `$2`, and this process
/// must hold the lease with generation `$3` until the transaction ends.
macro_rules! fenced {
    ($update:literal) => {
        concat!(
            $update,
            "id = $1 and generation = $2 and exists \
             (select from node_leases l where l.node = projects.node and l.generation = $3 for share)"
        )
    };
}

mod copy;
mod crashed;
pub(in crate::control) mod hand_over;
mod outcome;
pub(in crate::control) mod plan;
mod recovery;
mod roles;
mod start;
mod upgrade;

use std::time::Duration;

use chrono::{DateTime, Utc};
use gantry_base::{
    ids::{ProjectId, ProjectRef},
    repeat::pause_until,
};
use gantry_node::clusters::{ClusterSpec, CopyPriority};
use tokio::time::MissedTickBehavior;
use tokio_postgres::Row;

pub use self::recovery::{empty_trash, recover_on_startup};
use self::{
    hand_over::HandOver,
    outcome::{record_failure, record_success},
    start::{StartSettings, start},
};
use super::Status;
pub use super::state::reconciler::Reconciler;
use crate::{
    control::{
        backups::settle::{self, OpenRestore},
        context::ControlContext,
        database_session,
        metrics::Step,
        projects::reconciler::{
            crashed::mark_all_crashed,
            plan::{BACKOFF, ClusterPlan, timed, uid},
        },
        services::pooler,
    },
    platform::{
        error::{Context, Error},
        tables::Table,
    },
};

/// Rows read in one pass. The next pass follows at once if there are more.
const BATCH: i64 = 256;
/// The interval between checks of all running projects.
const FULL_PASS: Duration = Duration::from_secs(30);
/// The pause after a failed pass.
const RETRY_PASS: Duration = Duration::from_secs(1);

/// Selects rows with work to do. The index `projects_unsettled_idx` has the same condition.
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

/// Runs until [`Reconciler::stop`].
pub async fn run(context: ControlContext) {
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
            // The task is woken when this process acquires the lease.
            pause = FULL_PASS;
            continue;
        }
        pause = pass(&context, full).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read the desired state of projects");
            RETRY_PASS
        });
    }
}

/// Starts work on every project that is due, and returns the time until the next one is due.
async fn pass(context: &ControlContext, full: bool) -> Result<Duration, Error> {
    let ended = context.reconciler.watch.take_ended();
    let looked = if full || !ended.is_empty() {
        mark_all_crashed(context, (!full).then_some(&ended)).await
    } else {
        Ok(())
    };
    if let Err(error) = looked {
        // Checked again when the control database is reachable.
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
                record_failure(&context, &project, &error).await;
            }
            context.reconciler.busy.lock().remove(&project.id);
            drop(permit);
            notify_changed(&context);
            context.pool.wake();
            // The desired state may have changed meanwhile.
            context.reconciler.wake();
        });
    }
    next_due(context).await
}

/// Invalidates caches of projects, and announces that a status changed.
fn notify_changed(context: &ControlContext) {
    context.table_changed(Table::Projects);
    context.reconciler.changes.send_modify(|count| *count += 1);
}

/// Reads the projects with work that is due.
async fn unsettled(context: &ControlContext) -> Result<Vec<ClusterPlan>, Error> {
    let sql = unsettled!(
        "id, ref, status, generation, password_verifier, attempts, account, engine, settings, settings_before is not null, \
         settings_started, outdated, new_table_grants = 'api', rebuild, copy_of, \
         (select s.ref from projects s where s.id = projects.copy_of), organization_id, \
         instance_size, started_size, held_until is not null, \
         exists (select from restores r where r.project_id = projects.id and r.source_id is not null and r.finished_at is null)",
        " and (not_before <= $2 or not_before > $4) and not_before <> 'infinity' \
          order by not_before, id limit $3"
    );
    // A later time than any pause means that the clock was set back: the row is due.
    let now = context.clock.now();
    let beyond = now + 2 * BACKOFF.max;
    let rows = context
        .db
        .query(sql, &[&context.settings.node, &now, &BATCH, &beyond])
        .await
        .context("reading unsettled projects")?;
    rows.iter().map(|row| read(context, row)).collect()
}

/// Returns the time until the next delayed attempt is due. Work in progress wakes the reconciler
/// when it ends.
async fn next_due(context: &ControlContext) -> Result<Duration, Error> {
    let now = context.clock.now();
    let sql = unsettled!(
        "min(not_before)",
        " and not_before > $2 and not_before <> 'infinity'"
    );
    let rows = context
        .db
        .query(sql, &[&context.settings.node, &now])
        .await
        .context("reading unsettled projects")?;
    let due: Option<DateTime<Utc>> = rows.first().and_then(|row| row.get(0));
    Ok(due.map_or(FULL_PASS, |due| pause_until(due, now, FULL_PASS)))
}

fn read(context: &ControlContext, row: &Row) -> Result<ClusterPlan, Error> {
    let id = ProjectId(row.get(0));
    let project: ProjectRef = row
        .get::<_, &str>(1)
        .parse()
        .context("reading a project's ref")?;
    let major = super::major(row.get(7))
        .ok_or("no version")
        .context("reading a project's version")?;
    Ok(ClusterPlan {
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
        settings: StartSettings::new(context, row.get(17), &row.get(8)),
        changed: row.get(9),
        started: StartSettings::new(context, row.get(18), &row.get(10)),
        outdated: row.get(11),
        grants_on_new_tables: row.get(12),
        creation: copy::ClusterCreation {
            rebuild: row.get(13),
            source: copy::CopySource::read(row, 14)?,
            from_backup: row.get(20),
        },
        is_held: row.get(19),
    })
}

/// Brings one project to its desired state.
async fn settle(context: &ControlContext, project: &ClusterPlan) -> Result<(), Error> {
    let reference = &project.cluster.project;
    let mut fallback_reason = None;
    // Its clients wait until this is dropped.
    let _paused = match project.status {
        status if status.restarts_server() => pooler::pause(context, project.id, reference).await,
        _ => None,
    };
    let hand_over = HandOver {
        project: project.id,
        cluster: &project.cluster,
        generation: project.generation,
        is_active: true,
    };
    if project.status == Status::Restarting && hand_over.carry_out(context).await? {
        return Ok(());
    }
    match project.status.goal() {
        Status::Removed if project.is_held => {
            settle::cancel(context, project.id).await?;
            timed(context, Step::Stop, context.driver.stop(reference)).await?;
            settle::archive_end(context, project.id, &project.cluster).await;
        }
        Status::Removed => {
            timed(context, Step::Remove, context.driver.remove(reference)).await?;
            settle::cancel(context, project.id).await?;
            context
                .backups
                .purge(reference)
                .await
                .context("deleting backups")?;
            context.clean_up_removed(reference).await?;
            context.reconciler.trash_filled();
        }
        Status::Inactive => {
            settle::cancel(context, project.id).await?;
            timed(context, Step::Stop, context.driver.stop(reference)).await?;
        }
        _ if project.status == Status::Upgrading => {
            fallback_reason = upgrade::settle(context, project).await?;
        }
        _ => fallback_reason = bring_up(context, project).await?,
    }
    record_success(context, project, fallback_reason).await?;
    // The next pass watches the server's process, or finds that it has exited.
    context.reconciler.watch.look_at(project.id);
    Ok(())
}

/// Creates and starts a cluster. If the server does not start with new settings, starts it with the
/// previous settings and returns the reason.
async fn bring_up(
    context: &ControlContext,
    project: &ClusterPlan,
) -> Result<Option<String>, Error> {
    let driver = &context.driver;
    let reference = &project.cluster.project;
    // Only a new project may get an empty cluster: missing data of others must not be replaced.
    let is_new =
        project.creation.rebuild || matches!(project.status, Status::ComingUp | Status::InitFailed);
    if project.creation.rebuild {
        // Up to its end, the replaced cluster can be restored.
        if project.creation.source.is_none() {
            timed(context, Step::Stop, driver.stop(reference)).await?;
        }
        settle::archive_end(context, project.id, &project.cluster).await;
    }
    match &project.creation.source {
        // An existing cluster stays until its copy is complete.
        Some(source) if is_new => copy::create(context, project, source).await?,
        None if is_new && !project.creation.from_backup => {
            if project.creation.rebuild {
                timed(context, Step::Remove, driver.remove(reference)).await?;
            }
            let create = driver.create(&project.cluster, CopyPriority::Foreground);
            timed(context, Step::Create, create).await?;
        }
        _ => {}
    }
    if project.creation.rebuild {
        context.reconciler.trash_filled();
    }
    let mut restore = OpenRestore::of(context, project.id).await?;
    if let Some(open) = &mut restore {
        context.lease.check()?;
        if !open
            .carry_out(context, project.id, &project.cluster)
            .await?
        {
            restore = None;
        }
    }
    // An interrupted restart is repeated: one restart too many is better than none.
    if project.status == Status::Restarting {
        timed(context, Step::Stop, driver.stop(reference)).await?;
    }
    let mut fallback_reason = None;
    if let Err(error) = start(context, project, &project.settings).await {
        if project.started == project.settings {
            return Err(error);
        }
        driver.stop(reference).await.context("stopping a cluster")?;
        start(context, project, &project.started).await?;
        fallback_reason = Some(format!(
            "the server did not start with these settings, and runs with the previous settings: {error}"
        ));
    } else if project.changed && project.status == Status::ActiveHealthy {
        driver
            .reload(reference)
            .await
            .context("reloading settings")?;
    }
    let restored = restore
        .as_ref()
        .and_then(|restore| restore.verifier.as_ref());
    if let Some(verifier) = project.verifier.as_ref().or(restored) {
        let set = driver.set_password(reference, database_session::OWNER, verifier);
        timed(context, Step::Password, set).await?;
    }
    if is_new && project.grants_on_new_tables {
        let admin = driver
            .superuser_session(reference)
            .await
            .context("connecting to a cluster")?;
        driver
            .grant_on_new_tables(&admin)
            .await
            .context("granting privileges on new tables")?;
    }
    // A new cluster has the current roles of its template.
    if project.outdated || !is_new {
        roles::update(context, project).await?;
    }
    if let Some(restore) = restore {
        restore.finish(context, project.id, None).await?;
    }
    Ok(fallback_reason)
}
