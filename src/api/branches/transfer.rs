//! Application of migrations between a branch and its parent.

use std::collections::BTreeSet;

use super::{
    branch_row::{BranchRow, BranchStatus},
    drift,
    ledger::{self, LedgerEntry, LedgerPlan, read_ledger},
    rehearsal::{rehearse, sql_failure},
    run_outcome::{complete, exited, failed, set_status},
    runs::{self, OpenRun, RunKind, RunState, RunStep, StepStatus},
    unapplied_drift,
};
use crate::{
    api::{
        context::ApiContext,
        database::migrations::{MigrationLimits, NewMigration, replay::replay},
    },
    control::{backups::points, projects::target},
    platform::{access::Project, error::Error},
};

/// Characters of the id of a run in the name of its restore point, which has at most 20.
const POINT_ID_CHARS: usize = 14;

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
    let migrations: Vec<NewMigration> = plan.missing.iter().map(new_migration).collect();
    // A new branch has nothing to lose.
    if !run.kind.is_creation()
        && let Err(text) = rehearse(context, run, destination, &migrations).await?
    {
        let unchanged = match run.kind {
            RunKind::Merge => "parent",
            _ => "branch",
        };
        let text = format!("rehearsal failed, the {unchanged} is unchanged: {text}");
        failed(context, run, branch, &text).await?;
        return Ok(RunState::Finished);
    }
    if run.kind == RunKind::Merge && !migrations.is_empty() {
        make_restore_point(context, run, destination).await?;
    }
    if let Err(text) = apply(context, destination, &migrations).await? {
        failed(context, run, branch, &text).await?;
        return Ok(RunState::Finished);
    }
    if run.kind.is_creation() && run.last.is_none() {
        drift::apply(context, run, branch).await?;
    }
    if run.kind == RunKind::Push {
        unapplied_drift::refresh(context, run, branch).await?;
    }
    let fork = common_versions(context, branch).await?;
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

/// Makes a restore point of the parent before a merge that changes it, unless its log is not
/// archived. A merge that was interrupted uses the point that it made.
async fn make_restore_point(
    context: &ApiContext,
    run: &OpenRun,
    parent: &Project,
) -> Result<(), Error> {
    if !context.backups.options.enabled {
        return Ok(());
    }
    let id: String = run.id.chars().take(POINT_ID_CHARS).collect();
    let name = format!("merge-{id}");
    let line = match points::find(context, parent, Some(&name)).await? {
        Some(_) => format!("restore point before the merge: {name}"),
        None => match points::create(context, parent, &name, None).await {
            Ok(_) => format!("restore point before the merge: {name}"),
            Err(Error::Rejected(reason)) => {
                format!("no restore point before the merge: {reason}")
            }
            Err(error) => return Err(error),
        },
    };
    runs::log_once(context, &run.id, &line).await
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

/// Applies migrations. The inner error is that of the customer's SQL, the outer one
/// that of a database that cannot be reached.
async fn apply(
    context: &ApiContext,
    destination: &Project,
    migrations: &[NewMigration],
) -> Result<Result<(), String>, Error> {
    let database = target(context, destination).await?;
    let limits = MigrationLimits::default();
    match replay(&database, &context.clock, migrations, limits).await {
        Ok(()) => Ok(Ok(())),
        Err(failure) => sql_failure(failure).map(Err),
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

/// Returns the versions that the branch and its parent have in common.
pub(super) async fn common_versions(
    context: &ApiContext,
    branch: &BranchRow,
) -> Result<BTreeSet<String>, Error> {
    let parent = read_ledger(context, &branch.parent).await?;
    let own = read_ledger(context, &branch.project).await?;
    Ok(ledger::common(&parent, &drift::without(branch, own)))
}
