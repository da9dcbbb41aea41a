//! Idle pause: unused servers are stopped, and started again at the next use.
//!
//! The API reports a sleeping project as healthy. Every access to a project's server goes through
//! [`wake`], which records the use and starts the server if it sleeps. Open sessions count as use.

use std::time::Duration;

use chrono::TimeDelta;
use gantry_base::{
    ids::{ProjectId, ProjectRef},
    repeat,
};
use tokio_postgres::Row;

use super::{SETTLE_WAIT, Status, removed, status_events::StatusUpdate};
use crate::{
    control::{context::ControlContext, database_session::ConnectTarget},
    platform::error::{Context, Error},
};

/// The interval between searches for idle projects.
const LOOK: Duration = Duration::from_secs(30);
/// Projects stopped in one search.
const BATCH: i64 = 64;

/// Returns the connection target of a project. Waits for a server that is starting, and starts one
/// that sleeps.
pub async fn wake(
    context: &ControlContext,
    id: ProjectId,
    project: &ProjectRef,
) -> Result<ConnectTarget, Error> {
    note_use(context, id).await?;
    let mut changes = context.reconciler.changes();
    let ready = async {
        loop {
            changes.borrow_and_update();
            let rows = context
                .db
                .query(
                    "select status, asleep from projects where id = $1",
                    &[&id.0],
                )
                .await;
            let rows = rows.context("reading a project's status")?;
            let row = rows.first().ok_or(Error::NotFound)?;
            match Status::read(row, 0)? {
                Status::ActiveHealthy if row.get(1) => request_start(context, id).await?,
                Status::ActiveHealthy => {
                    let limit = context.session_limits.of(id);
                    let target = ConnectTarget::of(&context.driver, project);
                    return Ok(target.with_limit(limit));
                }
                Status::GoingDown | Status::Removed => return Err(removed()),
                Status::Pausing
                | Status::Inactive
                | Status::InitFailed
                | Status::PauseFailed
                | Status::RestoreFailed
                // Takes longer than a request waits.
                | Status::Upgrading => {
                    return Err(Error::DatabaseUnreachable);
                }
                Status::ComingUp
                | Status::ActiveUnhealthy
                | Status::Restoring
                | Status::Restarting => {}
            }
            changes.changed().await.context("waiting for a project")?;
        }
    };
    tokio::time::timeout(SETTLE_WAIT, ready)
        .await
        .unwrap_or(Err(Error::DatabaseUnreachable))
}

/// Records a use of the project: in memory, and in its row if idle projects or branches are
/// stopped, there at most once a minute.
pub async fn note_use(context: &ControlContext, id: ProjectId) -> Result<(), Error> {
    context.database_calls.note_use(id);
    let settings = &context.control_settings;
    if (settings.idle_pause_after.is_some() || settings.branch_idle_pause_after.is_some())
        && context.uses.must_record(id, context.clock.ticks())
    {
        write_use(context, id).await?;
    }
    Ok(())
}

async fn write_use(context: &ControlContext, id: ProjectId) -> Result<(), Error> {
    let sql = "update projects set used_at = $2 where id = $1";
    context
        .db
        .query(sql, &[&id.0, &context.clock.now()])
        .await
        .context("noting the use of a project")
        .map(drop)
}

/// Requests the start of a sleeping server. Does nothing if it was requested already.
async fn request_start(context: &ControlContext, project: ProjectId) -> Result<(), Error> {
    let sql = "update projects set asleep = false, status = 'RESTORING', generation = generation + 1, attempts = 0, not_before = $2, \
               updated_at = $2 where id = $1 and asleep and status = 'ACTIVE_HEALTHY'";
    let now = context.clock.now();
    let update = StatusUpdate {
        project,
        sql,
        params: &[&project.0, &now],
        doing: "waking a project",
    };
    update.execute(context, Vec::new()).await?;
    context.reconciler.notify();
    Ok(())
}

/// Stops idle servers periodically. Returns at once if idle pause is disabled.
pub async fn run(context: ControlContext) {
    let settings = &context.control_settings;
    if settings.idle_pause_after.is_none() && settings.branch_idle_pause_after.is_none() {
        return;
    }
    repeat::every(LOOK, || async {
        if let Err(error) = stop_idle(&context).await {
            tracing::warn!(%error, "cannot search for idle projects");
        }
    })
    .await;
}

/// Stops the server of every project and branch that was not used for the time in the settings.
pub async fn stop_idle(context: &ControlContext) -> Result<(), Error> {
    if !context.lease.leads() {
        return Ok(());
    }
    let now = context.clock.now();
    let since = |after: Option<Duration>| {
        let after = TimeDelta::from_std(after?).ok()?;
        now.checked_sub_signed(after)
    };
    let settings = &context.control_settings;
    let projects = since(settings.idle_pause_after);
    let branches = [projects, since(settings.branch_idle_pause_after)];
    let branches = branches.into_iter().flatten().max();
    let sql = "select id, ref, generation from projects where node = $1 and status = 'ACTIVE_HEALTHY' and not asleep \
               and password_verifier is null and settings_before is null \
               and greatest(used_at, settled_at, created_at) < case when exists \
               (select from branches b where b.project_id = projects.id and not b.is_default) \
               then $4::timestamptz else $2 end order by id limit $3";
    let rows = context
        .db
        .query(sql, &[&context.settings.node, &projects, &BATCH, &branches])
        .await
        .context("looking for unused projects")?;
    for row in &rows {
        let project: ProjectRef = row
            .get::<_, &str>(1)
            .parse()
            .context("reading a project's ref")?;
        match stop_if_unused(context, row, &project).await {
            Ok(true) => tracing::info!(%project, "idle server stopped"),
            Ok(false) => {}
            Err(error) => tracing::warn!(%project, %error, "idle server could not be stopped"),
        }
    }
    Ok(())
}

async fn stop_if_unused(
    context: &ControlContext,
    row: &Row,
    project: &ProjectRef,
) -> Result<bool, Error> {
    let id = ProjectId(row.get(0));
    // Excludes the reconciler; a concurrent wake-up waits.
    let Some(_hold) = context.reconciler.hold(id) else {
        return Ok(false);
    };
    // A client of the pooler may have no server connection for the moment. Calls of the database
    // are sent first.
    if context.postgres_proxy.has_pooled(id)
        || context.database_calls.is_busy(id)
        || context
            .driver
            .has_sessions(project)
            .await
            .context("looking for open sessions")?
    {
        write_use(context, id).await?;
        return Ok(false);
    }
    let lease = context.lease.check()?;
    // Recorded before the stop. After a crash in between, the server still runs and wakes at once.
    let sql = "update projects set asleep = true, updated_at = $4 where id = $1 and generation = $2 and status = 'ACTIVE_HEALTHY' \
               and exists (select from node_leases l where l.node = projects.node and l.generation = $3 for share) returning id";
    let written = context
        .db
        .query(
            sql,
            &[&id.0, &row.get::<_, i64>(2), &lease, &context.clock.now()],
        )
        .await;
    if written.context("putting a project to sleep")?.is_empty() {
        return Ok(false);
    }
    context
        .driver
        .stop(project)
        .await
        .context("stopping a cluster")?;
    Ok(true)
}
