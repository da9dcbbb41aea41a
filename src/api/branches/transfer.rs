//! Application of migrations between a branch and its parent.

use std::collections::BTreeSet;

use super::{
    BranchRow, BranchStatus, creation_run, drift,
    ledger::{self, LedgerEntry, LedgerPlan},
    restore_points,
    run_outcome::{complete, exited, failed, set_status},
    runner::{OpenRun, RunState},
    runs::{self, RunKind, RunStep, StepStatus},
};
use crate::{
    api::{
        context::ApiContext,
        database::migrations::{
            MigrationLimits, NewMigration,
            replay::{ReplayFailure, ReplayRehearsal, read_all, rehearse, replay},
        },
    },
    base::error::Error,
    data_plane::{database_session::session::SessionLimits, projects::target},
    platform::access::Project,
};

/// Applies the migrations that a target lacks.
pub(super) async fn transfer(
    context: &ApiContext,
    run: &OpenRun,
    branch: &BranchRow,
    source: &Project,
    destination: &Project,
) -> Result<RunState, Error> {
    runs::set_step(context, &run.id, RunStep::Pull, StepStatus::Running).await?;
    let (theirs, own) = ledgers(context, run, branch, source, destination).await?;
    let fork: BTreeSet<String> = branch.fork.iter().cloned().collect();
    let mut plan = ledger::plan(&theirs, &own, &fork);
    if let Some(last) = &run.last {
        plan = plan.up_to(last);
    }
    exited(context, run, &[RunStep::Pull, RunStep::Health]).await?;
    let configured = if run.kind == RunKind::Merge {
        StepStatus::Paused
    } else {
        StepStatus::Exited
    };
    runs::set_step(context, &run.id, RunStep::Configure, configured).await?;
    if run.kind != RunKind::Merge {
        set_status(context, branch, BranchStatus::RunningMigrations).await?;
    }
    runs::set_step(context, &run.id, RunStep::Migrate, StepStatus::Running).await?;
    if let Some(version) = plan.conflicts.first() {
        let text = format!("migration {version} differs between the branch and its parent");
        failed(context, run, branch, &text).await?;
        return Ok(RunState::Finished);
    }
    log_plan(context, run, &plan).await?;
    if run.kind == RunKind::Merge
        && let Err(text) = prepare_merge(context, run, destination, &plan).await?
    {
        let text = format!("rehearsal failed, the parent is unchanged: {text}");
        failed(context, run, branch, &text).await?;
        return Ok(RunState::Finished);
    }
    if let Err(text) = apply(context, destination, &plan).await? {
        failed(context, run, branch, &text).await?;
        return Ok(RunState::Finished);
    }
    if run.kind.is_creation() && run.last.is_none() {
        drift::apply(context, run, branch).await?;
    }
    let fork = creation_run::fork(context, branch).await?;
    complete(context, run, branch, fork).await
}

/// Reads the ledgers of both sides. Migrations that were computed for the branch count only for a
/// branch that is made of it.
async fn ledgers(
    context: &ApiContext,
    run: &OpenRun,
    branch: &BranchRow,
    source: &Project,
    destination: &Project,
) -> Result<(Vec<LedgerEntry>, Vec<LedgerEntry>), Error> {
    let mut theirs = read_ledger(context, source).await?;
    let own = read_ledger(context, destination).await?;
    if !run.kind.is_creation() {
        return Ok((drift::without(branch, theirs), drift::without(branch, own)));
    }
    if theirs.is_empty() {
        drift::pull_schema(context, run, branch).await?;
        theirs = read_ledger(context, source).await?;
    }
    Ok((theirs, own))
}

/// Tries the migrations of a merge, and makes a restore point of the parent. The inner error is
/// that of the customer's SQL.
async fn prepare_merge(
    context: &ApiContext,
    run: &OpenRun,
    parent: &Project,
    plan: &LedgerPlan,
) -> Result<Result<(), String>, Error> {
    let tried = try_out(context, run, parent, plan).await?;
    if tried.is_ok()
        && !plan.missing.is_empty()
        && let Some(name) = restore_points::make(context, parent, &run.id).await?
    {
        let line = format!("restore point before the merge: {name}");
        runs::log_once(context, &run.id, &line).await?;
    }
    Ok(tried)
}

/// Tries the migrations of a merge. The inner error is that of the customer's SQL.
async fn try_out(
    context: &ApiContext,
    run: &OpenRun,
    destination: &Project,
    plan: &LedgerPlan,
) -> Result<Result<(), String>, Error> {
    let migrations: Vec<NewMigration> = plan.missing.iter().map(new_migration).collect();
    let database = target(context, destination).await?;
    let limits = MigrationLimits::default();
    let line = match rehearse(&database, &context.clock, &migrations, limits).await {
        Err(failure) => return sql_failure(failure).map(Err),
        Ok(ReplayRehearsal::AtOnce) => {
            "all migrations run in one transaction, which a failure undoes".to_owned()
        }
        Ok(ReplayRehearsal::Rehearsed {
            statements,
            untried_from,
        }) => {
            let rest = untried_from.map_or_else(String::new, |version| {
                format!("; not tried from {version} on, which cannot run in a transaction")
            });
            format!("rehearsed and rolled back: {statements} statements{rest}")
        }
    };
    runs::log(context, &run.id, &line).await?;
    Ok(Ok(()))
}

async fn log_plan(context: &ApiContext, run: &OpenRun, plan: &LedgerPlan) -> Result<(), Error> {
    let versions: Vec<&str> = plan.missing.iter().map(|entry| &*entry.version).collect();
    let line = format!(
        "migrations to apply: {} {}",
        versions.len(),
        versions.join(", ")
    );
    runs::log(context, &run.id, line.trim_end()).await?;
    for (versions, text) in [
        (
            &plan.out_of_order,
            "out_of_order: true, older than migrations already applied",
        ),
        (&plan.withdrawn, "rolled back there, and not applied again"),
    ] {
        if !versions.is_empty() {
            let line = format!("{text}: {}", versions.join(", "));
            runs::log(context, &run.id, &line).await?;
        }
    }
    Ok(())
}

/// Applies the migrations of a plan. The inner error is that of the customer's SQL, the outer one
/// that of a database that cannot be reached.
async fn apply(
    context: &ApiContext,
    destination: &Project,
    plan: &LedgerPlan,
) -> Result<Result<(), String>, Error> {
    let migrations: Vec<NewMigration> = plan.missing.iter().map(new_migration).collect();
    let database = target(context, destination).await?;
    let limits = MigrationLimits::default();
    match replay(&database, &context.clock, &migrations, limits).await {
        Ok(()) => Ok(Ok(())),
        Err(failure) => sql_failure(failure).map(Err),
    }
}

/// Returns the text of a failure of the customer's SQL, or another error as it is.
fn sql_failure(failure: ReplayFailure) -> Result<String, Error> {
    match &failure.error {
        Error::Sql(_) | Error::Invalid { .. } | Error::Rejected(_) | Error::TimedOut(_) => {
            let version = failure.version.as_deref().unwrap_or("history");
            Ok(format!("{version}: {}", failure.error.message()))
        }
        _ => Err(failure.error),
    }
}

fn new_migration(entry: &LedgerEntry) -> NewMigration {
    // On lines of their own: a statement may end with a comment.
    let query = entry.statements.join("\n;\n");
    NewMigration {
        query,
        name: entry.name.clone(),
        rollback: (!entry.rollback.is_empty()).then(|| entry.rollback.join(";\n")),
        created_by: entry.created_by.clone(),
        version: Some(entry.version.clone()),
        statements: Some(entry.statements.clone()),
        ..NewMigration::default()
    }
}

/// Reads the ledger of a project. Starts its server if it sleeps.
pub(super) async fn read_ledger(
    context: &ApiContext,
    project: &Project,
) -> Result<Vec<LedgerEntry>, Error> {
    let database = target(context, project).await?;
    let records = read_all(&database, SessionLimits::default()).await?;
    let entries = records.into_iter().map(|record| LedgerEntry {
        version: record.version,
        name: record.name,
        statements: record.statements.unwrap_or_default(),
        rollback: record.rollback.unwrap_or_default(),
        created_by: record.created_by,
    });
    Ok(entries.collect())
}
