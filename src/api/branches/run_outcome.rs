//! The end of runs: seed, functions, status, and the record of a failure.

use std::collections::BTreeSet;

use super::{
    branch_row::{BranchRow, BranchStatus, SchemaSource},
    drift,
    runs::{self, OpenRun, RunKind, RunState, RunStep, StepStatus},
};
use crate::{
    api::{context::ApiContext, database::migrations::seed::seed},
    control::{
        database_session::session::SessionLimits,
        projects::target,
        services::functions::{self, CopyScope},
    },
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

/// Runs the seed of the parent in a new branch without data. Returns whether the run can go on:
/// otherwise it has ended.
async fn seed_branch(
    context: &ApiContext,
    run: &OpenRun,
    branch: &BranchRow,
) -> Result<bool, Error> {
    let is_seeded = !branch.with_data && !branch.persistent && run.kind.is_creation();
    let sql = "select scripts from branch_seeds where project_id = $1";
    let rows = context.db.query(sql, &[&branch.parent.id.0]).await;
    let rows = rows.context("reading the seed of a project")?;
    let Some(row) = rows.first().filter(|_| is_seeded) else {
        exited(context, run, &[RunStep::Seed]).await?;
        return Ok(true);
    };
    runs::set_step(context, &run.id, RunStep::Seed, StepStatus::Running).await?;
    let scripts: Vec<String> = row.get(0);
    let database = target(context, &branch.project).await?;
    match seed(&database, &scripts, SessionLimits::default()).await {
        Ok(_) => {
            let line = format!("seeded by {} scripts", scripts.len());
            runs::log_once(context, &run.id, &line).await?;
            exited(context, run, &[RunStep::Seed]).await?;
            Ok(true)
        }
        Err(
            error @ (Error::Sql(_)
            | Error::Invalid { .. }
            | Error::Rejected(_)
            | Error::TimedOut(_)),
        ) => {
            set_status(context, branch, BranchStatus::MigrationsFailed).await?;
            let text = format!("seed: {}", error.message());
            fail(context, run, RunStep::Seed, &text).await?;
            Ok(false)
        }
        Err(error) => Err(error),
    }
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

/// Returns advice for a branch with failed migrations.
fn advice(branch: &BranchRow) -> &'static str {
    if branch.schema_source == SchemaSource::Migrations && !branch.with_data {
        "; repair the history, or set schema_source to parent and reset the branch"
    } else {
        ""
    }
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
