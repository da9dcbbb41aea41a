//! Runs that make a branch, or make it anew: cluster, migrations.

use std::fmt::Write as _;

use gantry_node::clusters::CopyPhase;

use super::{
    branch_row::{BranchRow, BranchStatus},
    run_outcome::{complete, exited, set_status},
    runs::{self, OpenRun, RunState, RunStep, StepStatus},
    transfer::{common_versions, transfer},
};
use crate::{
    api::context::ApiContext,
    control::projects::{Status, status_events},
    platform::{
        error::{Context, Error},
        tables::Table,
    },
};

/// Waits for the cluster of a branch, then applies the migrations of its origin to an empty one.
pub(super) async fn build(
    context: &ApiContext,
    run: &OpenRun,
    branch: &BranchRow,
) -> Result<RunState, Error> {
    match branch.project_status {
        Status::ActiveHealthy => {}
        Status::InitFailed => return fail_creation(context, run, branch).await,
        _ => {
            log_phase(context, run, branch).await?;
            return Ok(RunState::Waiting);
        }
    }
    exited(context, run, &[RunStep::Clone]).await?;
    if !branch.is_copy() {
        return transfer(context, run, branch, &branch.origin, &branch.project).await;
    }
    log_isolation(context, run, branch).await?;
    let steps = [RunStep::Pull, RunStep::Health, RunStep::Configure];
    exited(context, run, &steps).await?;
    let fork = common_versions(context, branch).await?;
    complete(context, run, branch, fork).await
}

/// Shows the phase of a copy as steps of the run.
async fn log_phase(context: &ApiContext, run: &OpenRun, branch: &BranchRow) -> Result<(), Error> {
    let phase = branch.copy_phase.unwrap_or_default();
    if !branch.is_copy() || !phase.has_files() {
        runs::set_step(context, &run.id, RunStep::Clone, StepStatus::Running).await?;
    } else {
        let copied = [RunStep::Clone, RunStep::Pull, RunStep::Health];
        exited(context, run, &copied).await?;
        runs::set_step(context, &run.id, RunStep::Configure, StepStatus::Running).await?;
    }
    let Some(phase) = branch.copy_phase else {
        return Ok(());
    };
    let line = match phase {
        CopyPhase::Checkpoint => "the original writes a checkpoint",
        CopyPhase::Files => "copying files",
        CopyPhase::Isolation => "isolating the copy in quarantine",
        CopyPhase::Masking => "masking data",
        CopyPhase::Identity => "giving the copy its identity",
    };
    runs::log_once(context, &run.id, line).await
}

/// Ends a run after the last failed attempt to make its cluster. A branch that was to be
/// reset keeps its cluster.
async fn fail_creation(
    context: &ApiContext,
    run: &OpenRun,
    branch: &BranchRow,
) -> Result<RunState, Error> {
    let doing = "ending a run";
    let sql = "select coalesce(last_error, '') from projects where id = $1 and status = 'INIT_FAILED' and not_before = 'infinity'";
    let rows = context.db.query(sql, &[&branch.project.id.0]).await;
    let rows = rows.context(doing)?;
    let Some(row) = rows.first() else {
        // The reconciler tries again.
        return Ok(RunState::Waiting);
    };
    let step = match branch.copy_phase {
        Some(phase) if phase.has_files() => RunStep::Configure,
        _ => RunStep::Clone,
    };
    let kept = context.driver.exists(&branch.project.reference).await;
    let kept = kept.context(doing)?;
    let mut text = format!("the branch could not be made: {}", row.get::<_, &str>(0));
    if kept {
        text.push_str("; it stays as it was");
    } else {
        text.push_str("; a reset tries again");
    }
    runs::set_step(context, &run.id, step, StepStatus::Dead).await?;
    runs::log_once(context, &run.id, &text).await?;
    set_status(context, branch, BranchStatus::MigrationsFailed).await?;
    let now = context.clock.now();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    if kept {
        let sql = "update projects set rebuild = false, status = 'RESTORING', generation = generation + 1, attempts = 0, \
                   not_before = $2, updated_at = $2, last_error = null where id = $1 and status = 'INIT_FAILED'";
        let restored = transaction
            .execute(sql, &[&branch.project.id.0, &now])
            .await;
        restored.context(doing)?;
    }
    runs::finish_in(&transaction, &run.id, now).await?;
    let events = status_events::changed(&transaction, &[branch.project.id]).await?;
    status_events::append(context, &transaction, &events).await?;
    transaction.commit().await.context(doing)?;
    context.table_changed(Table::Projects);
    context.reconciler.wake();
    context.branch_runner.wake();
    Ok(RunState::Finished)
}

/// Writes the counts of the isolation of a copy into the log of the run.
async fn log_isolation(
    context: &ApiContext,
    run: &OpenRun,
    branch: &BranchRow,
) -> Result<(), Error> {
    let Some(report) = &branch.copy_report else {
        return Ok(());
    };
    let mut line = format!(
        "copied {} files, {} MB, up to {}; isolated:",
        report.files,
        report.bytes >> 20,
        report.lsn
    );
    for step in report.isolation.iter().filter(|step| step.count > 0) {
        let _ = write!(line, " {} {};", step.count, step.name);
    }
    runs::log_once(context, &run.id, &line).await
}
