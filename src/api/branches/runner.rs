//! Carries out action runs of the branches of this node.
//!
//! A pass reads the open runs that are due, and does what is left of each: whether the cluster is
//! there, and which migrations are missing, is read anew every time. A run that was interrupted at
//! any instruction is therefore continued by the next pass.

use std::{sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use gantry_base::repeat::Backoff;
use tokio::{sync::Semaphore, time::timeout};

use super::{
    branch_row::{BranchRow, BranchStatus, select_branches},
    creation_run::build,
    expiry_notice, notify,
    run_outcome::{exited, fail, set_status},
    runs::{self, OpenRun, RunKind, RunState, RunStep},
    transfer::transfer,
};
use crate::{
    api::{context::ApiContext, projects},
    control::projects::status_events,
    platform::{
        error::{Context, Error},
        tables::Table,
    },
};

/// Interval of passes without a notification, without and with open runs.
const INTERVAL: Duration = Duration::from_secs(30);
const INTERVAL_OPEN: Duration = Duration::from_secs(1);
/// Delay after a failed pass.
const RETRY: Duration = Duration::from_secs(1);
/// Runs that are carried out at the same time.
const RUNS_MAX: usize = 4;
/// Runs and expired branches that one pass reads.
const BATCH: i64 = 100;
/// Attempts to reach the databases of a run, before it fails.
const ATTEMPTS_MAX: i32 = 8;
/// Pauses between the attempts of a run.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_mins(1));

/// Runs passes. Never returns.
pub async fn run(context: ApiContext) {
    let permits = Arc::new(Semaphore::new(RUNS_MAX));
    loop {
        let pause = match pass(&context, &permits).await {
            Ok(true) => INTERVAL_OPEN,
            Ok(false) => INTERVAL,
            Err(error) => {
                tracing::warn!(%error, "reading the open runs of branches failed; retrying");
                RETRY
            }
        };
        // A timeout starts the next pass as well.
        let _ = timeout(pause, context.branch_runner.wake.notified()).await;
    }
}

/// Starts what is due. Returns whether runs are open.
async fn pass(context: &ApiContext, permits: &Arc<Semaphore>) -> Result<bool, Error> {
    if !context.lease.leads() {
        return Ok(false);
    }
    remove_expired(context).await?;
    notify(context);
    let sql = "select r.id, r.kind, r.migration_version, r.attempts, r.branch_id, r.not_before from action_runs r join projects p on p.id = r.project_id \
               where r.finished_at is null and p.node = $1 order by r.not_before limit $2";
    let now = context.clock.now();
    let rows = context
        .db
        .query(sql, &[&context.settings.node, &BATCH])
        .await
        .context("reading open runs")?;
    for row in &rows {
        if row.get::<_, DateTime<Utc>>(5) > now {
            continue;
        }
        let run = OpenRun::read(row)?;
        if !context.branch_runner.busy.lock().insert(run.id.clone()) {
            continue;
        }
        let Ok(permit) = Arc::clone(permits).acquire_owned().await else {
            return Ok(false);
        };
        let context = context.clone();
        tokio::spawn(async move {
            if let Err(error) = attempt(&context, &run).await {
                tracing::warn!(run = run.id, %error, "run of a branch failed; retrying");
            }
            context.branch_runner.busy.lock().remove(&run.id);
            drop(permit);
        });
    }
    Ok(!rows.is_empty())
}

/// Delivers notifications that are due, unless a delivery is under way. Does not wait for it.
fn notify(context: &ApiContext) {
    let Ok(permit) = Arc::clone(&context.branch_runner.notifying).try_acquire_owned() else {
        return;
    };
    let context = context.clone();
    tokio::spawn(async move {
        if let Err(error) = notify::deliver_due(&context).await {
            tracing::warn!(%error, "notifications about runs of branches failed; retrying");
        }
        if let Err(error) = expiry_notice::deliver_due(&context).await {
            tracing::warn!(%error, "notices of ends of branches failed; retrying");
        }
        drop(permit);
    });
}

/// Removes branches that have expired, a bounded number of them.
async fn remove_expired(context: &ApiContext) -> Result<(), Error> {
    let now = context.clock.now();
    let sql = select_branches!(
        "where c.node = $1 and not b.is_default and not b.persistent and c.desired <> 'removed' \
         and (least(b.deletion_scheduled_at, b.expires_at) <= $2 \
         or greatest(c.used_at, c.settled_at, c.created_at) <= $4) order by b.id limit $3"
    );
    let unused_life = context.api_settings.branches.unused_life;
    let unused_since: Option<DateTime<Utc>> = unused_life.map(|life| now - life);
    let rows = context
        .db
        .query(sql, &[&context.settings.node, &now, &BATCH, &unused_since])
        .await
        .context("reading expired branches")?;
    for row in &rows {
        let branch = BranchRow::read(row)?;
        let mut client = context.db.client().await?;
        let transaction = client.transaction().await.context("removing a branch")?;
        // Locked and read again: it may have become persistent, or may have been used.
        let sql = "select from branches b join projects c on c.id = b.project_id where b.id = $1 and not b.persistent \
                   and (least(b.deletion_scheduled_at, b.expires_at) <= $2 \
                   or greatest(c.used_at, c.settled_at, c.created_at) <= $3) for update of b";
        let due = transaction
            .query_opt(sql, &[&branch.id, &now, &unused_since])
            .await;
        if due.context("removing a branch")?.is_none() {
            continue;
        }
        projects::remove_in(&transaction, &branch.project, now).await?;
        let mut events = vec![branch.removed()];
        events.extend(status_events::changed(&transaction, &[branch.project.id]).await?);
        status_events::append(context, &transaction, &events).await?;
        transaction.commit().await.context("removing a branch")?;
        tracing::info!(branch = %branch.project.reference, "branch has expired");
        context.table_changed(Table::Branches);
        context.table_changed(Table::Projects);
        context.reconciler.wake();
    }
    Ok(())
}

/// Makes one attempt, and records a failure with the time of the next one.
async fn attempt(context: &ApiContext, run: &OpenRun) -> Result<(), Error> {
    let outcome = advance(context, run).await;
    let Err(error) = outcome else {
        return Ok(());
    };
    let attempts = run.attempts.saturating_add(1);
    if attempts >= ATTEMPTS_MAX {
        return give_up(context, run, &error).await;
    }
    let now = context.clock.now();
    let next = now + BACKOFF.pause(attempts);
    let sql =
        "update action_runs set attempts = $2, not_before = $3, updated_at = $4 where id = $1";
    context
        .db
        .query(sql, &[&run.id, &attempts, &next, &now])
        .await
        .context("recording a failed attempt")?;
    let line = format!("{}; trying again", error.message());
    runs::log(context, &run.id, &line).await?;
    Err(error)
}

/// Ends a run after its last attempt, at the step that failed.
async fn give_up(context: &ApiContext, run: &OpenRun, error: &Error) -> Result<(), Error> {
    let step = runs::running_step(context, &run.id).await?;
    let status = if step == RunStep::Deploy {
        BranchStatus::FunctionsFailed
    } else {
        BranchStatus::MigrationsFailed
    };
    if run.kind != RunKind::Merge {
        let sql = select_branches!("where b.id = $1");
        let rows = context.db.query(sql, &[&run.branch]).await;
        let rows = rows.context("reading the branch of a run")?;
        if let Some(row) = rows.first() {
            set_status(context, &BranchRow::read(row)?, status).await?;
        }
    }
    fail(context, run, step, &error.message()).await
}

async fn advance(context: &ApiContext, run: &OpenRun) -> Result<RunState, Error> {
    let sql = select_branches!("where b.id = $1 and c.desired <> 'removed'");
    let rows = context.db.query(sql, &[&run.branch]).await;
    let rows = rows.context("reading the branch of a run")?;
    let Some(row) = rows.first() else {
        runs::finish(context, &run.id).await?;
        return Ok(RunState::Finished);
    };
    let branch = BranchRow::read(row)?;
    match run.kind {
        RunKind::Create | RunKind::Reset => build(context, run, &branch).await,
        RunKind::Merge => {
            exited(context, run, &[RunStep::Clone]).await?;
            transfer(context, run, &branch, &branch.project, &branch.parent).await
        }
        RunKind::Push => {
            exited(context, run, &[RunStep::Clone]).await?;
            transfer(context, run, &branch, &branch.parent, &branch.project).await
        }
    }
}
