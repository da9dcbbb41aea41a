//! Carries out action runs of the branches of this node.
//!
//! A pass reads the open runs that are due, and does what is left of each: whether the cluster is
//! there, and which migrations are missing, is read anew every time. A run that was interrupted at
//! any instruction is therefore continued by the next pass.

use std::{
    collections::{BTreeSet, HashSet},
    fmt::Write as _,
    sync::Arc,
    time::Duration,
};

use chrono::{DateTime, TimeDelta, Utc};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, Semaphore},
    time::timeout,
};
use tokio_postgres::Row;
use uuid::Uuid;

use super::{
    BranchRow, BranchStatus,
    ledger::{self, LedgerEntry, LedgerPlan},
    notify,
    runs::{self, RunKind, RunStep, StepStatus},
    select_branches,
};
use crate::{
    api::{
        context::ApiContext,
        database::migrations::{
            MigrationLimits, NewMigration, record,
            replay::{ReplayFailure, ReplayRehearsal, read_all, rehearse, replay},
        },
        projects,
    },
    base::error::{Context, Error},
    data_plane::{
        clusters::CopyReport,
        database_session::session::SessionLimits,
        projects::{Status, target},
        services::{
            functions,
            functions::CopyScope,
            schema_diff::{self, SchemaPair},
        },
    },
    platform::{access::Project, tables::Table},
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
/// Longest pause between two attempts, in seconds.
const PAUSE_SECS_MAX: i64 = 60;

/// Name of the migration that makes the whole schema of a parent.
const REMOTE_SCHEMA: &str = "remote_schema";

/// State of the runs of this process.
pub struct BranchRunner {
    wake: Notify,
    busy: Mutex<HashSet<String>>,
    /// Held while notifications are delivered.
    pub(super) notifying: Arc<Semaphore>,
}

impl Default for BranchRunner {
    fn default() -> Self {
        Self {
            wake: Notify::new(),
            busy: Mutex::default(),
            notifying: Arc::new(Semaphore::new(1)),
        }
    }
}

impl BranchRunner {
    /// Starts a pass.
    pub fn wake(&self) {
        self.wake.notify_one();
    }
}

/// An open run.
struct OpenRun {
    id: String,
    kind: RunKind,
    last: Option<String>,
    attempts: i32,
    branch: Uuid,
}

impl OpenRun {
    fn read(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            id: row.get(0),
            kind: RunKind::read(row.get(1))?,
            last: row.get(2),
            attempts: row.get(3),
            branch: row.get(4),
        })
    }
}

/// Whether a run has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RunState {
    Finished,
    /// The reconciler is at work; its notification starts the next pass.
    Waiting,
}

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
    notify::deliver(context);
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

/// Removes branches that have expired, a bounded number of them.
async fn remove_expired(context: &ApiContext) -> Result<(), Error> {
    let now = context.clock.now();
    let sql = select_branches!(
        "where c.node = $1 and not b.is_default and not b.persistent and least(b.deletion_scheduled_at, b.expires_at) <= $2 \
         and c.desired <> 'removed' order by b.id limit $3"
    );
    let rows = context
        .db
        .query(sql, &[&context.settings.node, &now, &BATCH])
        .await
        .context("reading expired branches")?;
    for row in &rows {
        let branch = BranchRow::read(row)?;
        let mut client = context.db.client().await?;
        let transaction = client.transaction().await.context("removing a branch")?;
        // Locked and read again: it may have become persistent.
        let sql = "select from branches where id = $1 and not persistent and least(deletion_scheduled_at, expires_at) <= $2 for update";
        let due = transaction.query_opt(sql, &[&branch.id, &now]).await;
        if due.context("removing a branch")?.is_none() {
            continue;
        }
        projects::remove_in(&transaction, &branch.project, now).await?;
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
        if run.kind != RunKind::Merge {
            let sql =
                "update branches set status = 'MIGRATIONS_FAILED', updated_at = $2 where id = $1";
            context
                .db
                .query(sql, &[&run.branch, &context.clock.now()])
                .await
                .context("writing a branch's status")?;
        }
        return fail(context, run, RunStep::Health, &error.message()).await;
    }
    let pause = TimeDelta::seconds((1_i64 << attempts.clamp(0, 6)).min(PAUSE_SECS_MAX));
    let now = context.clock.now();
    let sql =
        "update action_runs set attempts = $2, not_before = $3, updated_at = $4 where id = $1";
    context
        .db
        .query(sql, &[&run.id, &attempts, &(now + pause), &now])
        .await
        .context("recording a failed attempt")?;
    let line = format!("{}; trying again", error.message());
    runs::log(context, &run.id, &line).await?;
    Err(error)
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

/// Waits for the cluster of a branch, then applies the parent's migrations to an empty one.
async fn build(context: &ApiContext, run: &OpenRun, branch: &BranchRow) -> Result<RunState, Error> {
    if branch.project_status != Status::ActiveHealthy {
        runs::set_step(context, &run.id, RunStep::Clone, StepStatus::Running).await?;
        return Ok(RunState::Waiting);
    }
    if branch.with_data {
        exited(context, run, &[RunStep::Clone]).await?;
        log_isolation(context, run, branch).await?;
        exited(
            context,
            run,
            &[RunStep::Pull, RunStep::Health, RunStep::Configure],
        )
        .await?;
        let parent = read_ledger(context, &branch.parent).await?;
        let own = read_ledger(context, &branch.project).await?;
        return complete(context, run, branch, ledger::common(&parent, &own)).await;
    }
    exited(context, run, &[RunStep::Clone]).await?;
    transfer(context, run, branch, &branch.parent, &branch.project).await
}

/// Writes the counts of the isolation of a copy into the log of the run.
async fn log_isolation(
    context: &ApiContext,
    run: &OpenRun,
    branch: &BranchRow,
) -> Result<(), Error> {
    let sql = "select copy_report from branches where id = $1 and copy_report is not null";
    let rows = context.db.query(sql, &[&branch.id]).await;
    let rows = rows.context("reading the report of a copy")?;
    let Some(row) = rows.first() else {
        return Ok(());
    };
    let report: CopyReport =
        serde_json::from_value(row.get(0)).context("reading the report of a copy")?;
    let mut line = format!(
        "copied {} files, {} MB, up to {}; isolated:",
        report.files,
        report.bytes >> 20,
        report.lsn
    );
    for step in report.isolation.iter().filter(|step| step.count > 0) {
        let _ = write!(line, " {} {};", step.count, step.name);
    }
    runs::log(context, &run.id, &line).await
}

/// Applies the migrations that a target lacks.
async fn transfer(
    context: &ApiContext,
    run: &OpenRun,
    branch: &BranchRow,
    source: &Project,
    destination: &Project,
) -> Result<RunState, Error> {
    runs::set_step(context, &run.id, RunStep::Pull, StepStatus::Running).await?;
    let mut theirs = read_ledger(context, source).await?;
    let own = read_ledger(context, destination).await?;
    if matches!(run.kind, RunKind::Create | RunKind::Reset) && theirs.is_empty() {
        pull_schema(context, run, branch).await?;
        theirs = read_ledger(context, source).await?;
    }
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
        && let Err(text) = try_out(context, run, destination, &plan).await?
    {
        let text = format!("rehearsal failed, the parent is unchanged: {text}");
        failed(context, run, branch, &text).await?;
        return Ok(RunState::Finished);
    }
    if let Err(text) = apply(context, destination, &plan).await? {
        failed(context, run, branch, &text).await?;
        return Ok(RunState::Finished);
    }
    let own = read_ledger(context, destination).await?;
    complete(context, run, branch, ledger::common(&theirs, &own)).await
}

/// Gives a parent without migrations one that makes its whole schema, named `remote_schema`: it is
/// recorded in the parent, and then applied to the empty branch like any other.
///
/// Without the kit that compares schemas, only the log says that the schema is missing.
async fn pull_schema(context: &ApiContext, run: &OpenRun, branch: &BranchRow) -> Result<(), Error> {
    if !schema_diff::is_installed(context).await {
        let line = "the parent's schema is not in its migrations, and is left out; with the kit of: gantry service install diff, a reset adds it";
        return runs::log(context, &run.id, line).await;
    }
    let pair = SchemaPair {
        project: branch.project.reference.clone(),
        source: target(context, &branch.project).await?,
        desired: target(context, &branch.parent).await?,
        schemas: None,
    };
    let sql = match schema_diff::compare(context, &pair).await {
        Ok(sql) if sql.is_empty() => return Ok(()),
        Ok(sql) => sql,
        Err(error @ (Error::Rejected(_) | Error::TimedOut(_) | Error::NotBuilt(_))) => {
            let line = format!("the parent's schema is left out: {}", error.message());
            return runs::log(context, &run.id, &line).await;
        }
        Err(error) => return Err(error),
    };
    let migration = NewMigration {
        query: sql,
        name: Some(REMOTE_SCHEMA.to_owned()),
        ..NewMigration::default()
    };
    let parent = target(context, &branch.parent).await?;
    let limits = MigrationLimits::default();
    let made = record(&parent, &context.clock, &migration, limits).await?;
    let line = format!(
        "the parent had no migrations; its schema is now migration {} {REMOTE_SCHEMA}",
        made.version
    );
    runs::log(context, &run.id, &line).await
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
            "out of order, older than migrations already applied",
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

async fn exited(context: &ApiContext, run: &OpenRun, steps: &[RunStep]) -> Result<(), Error> {
    for step in steps {
        runs::set_step(context, &run.id, *step, StepStatus::Exited).await?;
    }
    Ok(())
}

/// Ends a run after its work.
async fn complete(
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
    exited(context, run, &[RunStep::Seed]).await?;
    deploy(context, run, branch).await?;
    set_status(context, branch, BranchStatus::FunctionsDeployed).await?;
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
            (&branch.parent, &branch.project, CopyScope::All)
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
async fn failed(
    context: &ApiContext,
    run: &OpenRun,
    branch: &BranchRow,
    text: &str,
) -> Result<(), Error> {
    if run.kind != RunKind::Merge {
        set_status(context, branch, BranchStatus::MigrationsFailed).await?;
    }
    fail(context, run, RunStep::Migrate, text).await
}

async fn fail(context: &ApiContext, run: &OpenRun, step: RunStep, text: &str) -> Result<(), Error> {
    runs::set_step(context, &run.id, step, StepStatus::Dead).await?;
    runs::log(context, &run.id, text).await?;
    runs::finish(context, &run.id).await
}

async fn set_status(
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
