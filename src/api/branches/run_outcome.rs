//! The end of runs: functions, status, and the record of a failure.

use std::collections::BTreeSet;

use super::{
    BranchRow, BranchStatus,
    creation_run::{advice, seed_branch},
    drift,
    runner::{OpenRun, RunState},
    runs::{self, RunKind, RunStep, StepStatus},
};
use crate::{
    api::context::ApiContext,
    data_plane::services::functions::{self, CopyScope},
    platform::{
        error::{Context, Error},
        tables::Table,
    },
};

/// Marks steps as done.
pub(super) async fn exited(
    context: &ApiContext,
    run: &OpenRun,
    steps: &[RunStep],
) -> Result<(), Error> {
    for step in steps {
        runs::set_step(context, &run.id, *step, StepStatus::Exited).await?;
    }
    Ok(())
}

/// Ends a run after its work.
pub(super) async fn complete(
    context: &ApiContext,
    run: &OpenRun,
    branch: &BranchRow,
    fork: BTreeSet<String>,
) -> Result<RunState, Error> {
    let now = context.clock.now();
    let fork: Vec<String> = fork.into_iter().collect();
    let sql = "update branches set fork = $2, updated_at = $3 where id = $1";
    context
        .db
        .query(sql, &[&branch.id, &fork, &now])
        .await
        .context("writing a branch")?;
    exited(context, run, &[RunStep::Migrate]).await?;
    set_status(context, branch, BranchStatus::MigrationsPassed).await?;
    if !seed_branch(context, run, branch).await? {
        return Ok(RunState::Finished);
    }
    deploy(context, run, branch).await?;
    set_status(context, branch, BranchStatus::FunctionsDeployed).await?;
    if run.kind == RunKind::Merge {
        drift::log_unrecorded(context, run, branch).await?;
    }
    runs::log(context, &run.id, "finished").await?;
    runs::finish(context, &run.id).await?;
    Ok(RunState::Finished)
}

/// Copies functions in the direction of the run. A merge copies those that the branch changed.
async fn deploy(context: &ApiContext, run: &OpenRun, branch: &BranchRow) -> Result<(), Error> {
    runs::set_step(context, &run.id, RunStep::Deploy, StepStatus::Running).await?;
    let (source, destination, scope) = match run.kind {
        RunKind::Merge => (&branch.project, &branch.parent, CopyScope::Changed),
        RunKind::Create | RunKind::Reset | RunKind::Push => {
            let source = if run.kind == RunKind::Push {
                &branch.parent
            } else {
                &branch.origin
            };
            (source, &branch.project, CopyScope::All)
        }
    };
    let copied = functions::copy(context, source, destination, scope).await?;
    if !copied.is_empty() {
        let line = format!("functions copied: {}", copied.join(", "));
        runs::log(context, &run.id, &line).await?;
    }
    exited(context, run, &[RunStep::Deploy]).await
}

/// Ends a run after a failed migration. After a merge the branch itself is as it was.
pub(super) async fn failed(
    context: &ApiContext,
    run: &OpenRun,
    branch: &BranchRow,
    text: &str,
) -> Result<(), Error> {
    let mut text = text.to_owned();
    if run.kind != RunKind::Merge {
        set_status(context, branch, BranchStatus::MigrationsFailed).await?;
    }
    if run.kind.is_creation() {
        text.push_str(advice(branch));
    }
    fail(context, run, RunStep::Migrate, &text).await
}

/// Ends a run with a failed step.
pub(super) async fn fail(
    context: &ApiContext,
    run: &OpenRun,
    step: RunStep,
    text: &str,
) -> Result<(), Error> {
    runs::set_step(context, &run.id, step, StepStatus::Dead).await?;
    runs::log(context, &run.id, text).await?;
    runs::finish(context, &run.id).await
}

/// Sets the progress of a branch.
pub(super) async fn set_status(
    context: &ApiContext,
    branch: &BranchRow,
    status: BranchStatus,
) -> Result<(), Error> {
    let now = context.clock.now();
    let sql = "update branches set status = $2, updated_at = $3 where id = $1 and status <> $2";
    context
        .db
        .query(sql, &[&branch.id, &status.name(), &now])
        .await
        .context("writing a branch's status")?;
    context.table_changed(Table::Branches);
    Ok(())
}
