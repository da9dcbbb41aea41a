//! Action runs: the log of one change of a branch, and its remaining work.

use chrono::{DateTime, Utc};
use gantry_base::{clock::Entropy, ids::ProjectId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio_postgres::{Row, Transaction};
use uuid::Uuid;

use crate::{
    api::{context::ApiContext, projects::timestamp},
    platform::{
        db,
        error::{Context, Error},
    },
};

/// Maximum length of the log of a run, in characters.
const LOG_MAX: usize = 100_000;

/// Maximum length of a line of the log, in characters.
const LINE_MAX: usize = 4000;

/// The change that a run makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunKind {
    /// Creates a branch.
    Create,
    /// Applies a branch's migrations to its parent.
    Merge,
    /// Applies the parent's migrations to a branch.
    Push,
    /// Makes a branch anew.
    Reset,
}

impl RunKind {
    /// Name in the control database.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Merge => "merge",
            Self::Push => "push",
            Self::Reset => "reset",
        }
    }

    /// Whether it makes the cluster of the branch.
    pub(super) const fn is_creation(self) -> bool {
        matches!(self, Self::Create | Self::Reset)
    }

    fn read(name: &str) -> Result<Self, Error> {
        let all = [Self::Create, Self::Merge, Self::Push, Self::Reset];
        let found = all.into_iter().find(|kind| kind.name() == name);
        found.ok_or(name.to_owned()).context("reading a run's kind")
    }
}

/// A step of a run. The order is that of execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names of the contract")]
pub enum RunStep {
    Clone,
    Pull,
    Health,
    Configure,
    Migrate,
    Seed,
    Deploy,
}

impl RunStep {
    /// Every step.
    pub const ALL: [Self; 7] = [
        Self::Clone,
        Self::Pull,
        Self::Health,
        Self::Configure,
        Self::Migrate,
        Self::Seed,
        Self::Deploy,
    ];

    /// Name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Clone => "clone",
            Self::Pull => "pull",
            Self::Health => "health",
            Self::Configure => "configure",
            Self::Migrate => "migrate",
            Self::Seed => "seed",
            Self::Deploy => "deploy",
        }
    }
}

/// Status of a step on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[expect(missing_docs, reason = "the names of the contract")]
pub enum StepStatus {
    Created,
    Dead,
    Exited,
    Paused,
    Removing,
    Restarting,
    Running,
}

impl StepStatus {
    /// Name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Created => "CREATED",
            Self::Dead => "DEAD",
            Self::Exited => "EXITED",
            Self::Paused => "PAUSED",
            Self::Removing => "REMOVING",
            Self::Restarting => "RESTARTING",
            Self::Running => "RUNNING",
        }
    }

    fn read(name: &str) -> Self {
        let all = [
            Self::Dead,
            Self::Exited,
            Self::Paused,
            Self::Removing,
            Self::Restarting,
            Self::Running,
        ];
        let found = all.into_iter().find(|status| status.name() == name);
        found.unwrap_or(Self::Created)
    }
}

/// An action run on the wire.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ActionRunResponse")]
pub struct RunView {
    id: String,
    branch_id: String,
    run_steps: Vec<StepView>,
    workdir: Option<String>,
    check_run_id: Option<i64>,
    created_at: String,
    updated_at: String,
}

/// A step on the wire.
#[derive(Debug, Serialize, JsonSchema)]
struct StepView {
    name: RunStep,
    status: StepStatus,
    created_at: String,
    updated_at: String,
}

/// An open run.
pub(super) struct OpenRun {
    pub(super) id: String,
    pub(super) kind: RunKind,
    /// The last migration to apply.
    pub(super) last: Option<String>,
    /// Failed attempts.
    pub(super) attempts: i32,
    pub(super) branch: Uuid,
}

impl OpenRun {
    pub(super) fn read(row: &Row) -> Result<Self, Error> {
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
pub(super) enum RunState {
    /// It has ended.
    Finished,
    /// The reconciler is at work; its notification starts the next pass.
    Waiting,
}

/// A new run.
#[derive(Debug, Clone, Copy)]
pub(super) struct NewRun<'a> {
    pub(super) kind: RunKind,
    /// The project that it changes.
    pub(super) project: ProjectId,
    pub(super) branch: Uuid,
    pub(super) migration_version: Option<&'a str>,
}

/// Inserts a run and returns its id.
///
/// Errors: [`Error::Conflict`] while another run changes the project.
pub(super) async fn begin(
    transaction: &Transaction<'_>,
    entropy: &Entropy,
    new: NewRun<'_>,
    now: DateTime<Utc>,
) -> Result<String, Error> {
    let id = hex::encode(entropy.bytes::<16>());
    let mut steps = Map::new();
    for step in RunStep::ALL {
        let created = json!({"status": StepStatus::Created.name(), "at": timestamp(now)});
        steps.insert(step.name().to_owned(), created);
    }
    let sql = "insert into action_runs (id, project_id, branch_id, kind, migration_version, steps, not_before, created_at, updated_at) \
               values ($1, $2, $3, $4, $5, $6, $7, $7, $7)";
    transaction
        .execute(
            sql,
            &[
                &id,
                &new.project.0,
                &new.branch,
                &new.kind.name(),
                &new.migration_version,
                &Value::Object(steps),
                &now,
            ],
        )
        .await
        .map_err(|error| match db::violated(&error) {
            Some("action_runs_open_key") => Error::Conflict(
                "Another run is changing this project; wait until it has finished".into(),
            ),
            _ => Error::internal("writing an action run", error),
        })?;
    Ok(id)
}

/// Sets the status of a step. Does nothing if it has this status.
pub(super) async fn set_step(
    context: &ApiContext,
    run: &str,
    step: RunStep,
    status: StepStatus,
) -> Result<(), Error> {
    let now = context.clock.now();
    let value = json!({"status": status.name(), "at": timestamp(now)});
    let sql = "update action_runs set steps = jsonb_set(steps, array[$2], $3), updated_at = $4 \
               where id = $1 and steps -> $2 ->> 'status' is distinct from $5";
    context
        .db
        .query(sql, &[&run, &step.name(), &value, &now, &status.name()])
        .await
        .context("writing a step")
        .map(drop)
}

/// Appends a line to the log of a run. A full log is not extended.
pub(super) async fn log(context: &ApiContext, run: &str, line: &str) -> Result<(), Error> {
    append(context, run, line, "").await
}

/// Appends a line to the log of a run, unless the log has it: for work that is repeated after an
/// interruption.
pub(super) async fn log_once(context: &ApiContext, run: &str, line: &str) -> Result<(), Error> {
    append(context, run, line, line).await
}

/// Appends a line unless the log contains the other text. An empty text is in no log.
async fn append(context: &ApiContext, run: &str, line: &str, unless: &str) -> Result<(), Error> {
    let now = context.clock.now();
    let plain = |text: &str| -> String {
        let text = text.chars().filter(|c| *c != '\0');
        text.take(LINE_MAX).collect()
    };
    let line = format!("{} {}\n", timestamp(now), plain(line));
    let limit = i32::try_from(LOG_MAX).unwrap_or(i32::MAX);
    let sql = "update action_runs set logs = left(logs || $2, $3), updated_at = $4 \
               where id = $1 and ($5 = '' or strpos(logs, $5) = 0)";
    context
        .db
        .query(sql, &[&run, &line, &limit, &now, &plain(unless)])
        .await
        .context("writing the log of a run")
        .map(drop)
}

/// Returns the step of a run that is under way.
pub(super) async fn running_step(context: &ApiContext, run: &str) -> Result<RunStep, Error> {
    let sql = "select steps from action_runs where id = $1";
    let rows = context.db.query(sql, &[&run]).await;
    let rows = rows.context("reading an action run")?;
    let steps: Value = rows.first().map_or(Value::Null, |row| row.get(0));
    let is_running = |step: &RunStep| steps[step.name()]["status"] == StepStatus::Running.name();
    let found = RunStep::ALL.into_iter().find(is_running);
    Ok(found.unwrap_or(RunStep::Health))
}

/// Marks a run as finished.
pub(super) async fn finish(context: &ApiContext, run: &str) -> Result<(), Error> {
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context("finishing a run")?;
    finish_in(&transaction, run, context.clock.now()).await?;
    transaction.commit().await.context("finishing a run")?;
    // Its end may have to be sent.
    context.branch_runner.wake();
    Ok(())
}

/// Marks a run as finished, within a transaction.
pub(super) async fn finish_in(
    transaction: &Transaction<'_>,
    run: &str,
    now: DateTime<Utc>,
) -> Result<(), Error> {
    let sql = "update action_runs r set finished_at = $2::timestamptz, updated_at = $2, \
               notify_at = case when exists (select from branches b where b.id = r.branch_id \
               and b.notify_url is not null) then $2::timestamptz end \
               where id = $1 and finished_at is null";
    let finished = transaction.execute(sql, &[&run, &now]).await;
    finished.context("finishing a run").map(drop)
}

/// Lists the runs of a project, newest first.
pub(super) async fn list(
    context: &ApiContext,
    project: ProjectId,
    offset: i64,
    limit: i64,
) -> Result<Vec<RunView>, Error> {
    let sql = "select id, branch_id, steps, created_at, updated_at from action_runs where project_id = $1 \
               order by created_at desc, id limit $2 offset $3";
    let rows = context
        .db
        .query(sql, &[&project.0, &limit, &offset])
        .await
        .context("listing action runs")?;
    Ok(rows.iter().map(view).collect())
}

/// Returns the number of runs of a project.
pub(super) async fn count(context: &ApiContext, project: ProjectId) -> Result<i64, Error> {
    let sql = "select count(*) from action_runs where project_id = $1";
    let rows = context.db.query(sql, &[&project.0]).await;
    let rows = rows.context("counting action runs")?;
    Ok(rows.first().map_or(0, |row| row.get(0)))
}

/// Returns a run of a project.
pub(super) async fn get(
    context: &ApiContext,
    project: ProjectId,
    run: &str,
) -> Result<RunView, Error> {
    let sql = "select id, branch_id, steps, created_at, updated_at from action_runs where project_id = $1 and id = $2";
    let rows = context.db.query(sql, &[&project.0, &run]).await;
    let rows = rows.context("reading an action run")?;
    rows.first().map(view).ok_or(Error::NotFound)
}

/// Returns the log of a run.
pub(super) async fn logs(
    context: &ApiContext,
    project: ProjectId,
    run: &str,
) -> Result<String, Error> {
    let sql = "select logs from action_runs where project_id = $1 and id = $2";
    let rows = context.db.query(sql, &[&project.0, &run]).await;
    let rows = rows.context("reading the log of a run")?;
    rows.first().map(|row| row.get(0)).ok_or(Error::NotFound)
}

fn view(row: &Row) -> RunView {
    let created: DateTime<Utc> = row.get(3);
    let steps: Value = row.get(2);
    let step = |step: RunStep| {
        let stored = &steps[step.name()];
        StepView {
            name: step,
            status: StepStatus::read(stored["status"].as_str().unwrap_or_default()),
            created_at: timestamp(created),
            updated_at: stored["at"]
                .as_str()
                .map_or_else(|| timestamp(created), str::to_owned),
        }
    };
    RunView {
        id: row.get(0),
        branch_id: row.get::<_, Uuid>(1).to_string(),
        run_steps: RunStep::ALL.into_iter().map(step).collect(),
        workdir: None,
        check_run_id: None,
        created_at: timestamp(created),
        updated_at: timestamp(row.get(4)),
    }
}
