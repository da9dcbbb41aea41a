//! Application of migrations of another project, with their versions.

use gantry_base::clock::Clock;

use super::{
    MigrationLimits, MigrationRecord, NewMigration, Row, history, history::HistoryTransaction,
    rehearsal, segmented,
};
use crate::{
    control::database_session::{
        DATABASE, OWNER,
        segments::{MigrationPlan, SegmentCuts, SegmentKind},
        session::{ConnectTarget, DatabaseSession, SessionLimits},
    },
    platform::error::{Context as _, Error},
};

/// Maximum number of migrations of a history that is read as a whole.
const MIGRATIONS_MAX: usize = 10_000;

/// Returns the whole history by version. Empty without a history.
///
/// Errors: [`Error::Rejected`] if it has more than 10 000 migrations;
/// [`Error::DatabaseUnreachable`]; [`Error::Sql`] if the owner cannot read it.
pub async fn read_all(
    target: &ConnectTarget,
    limits: SessionLimits,
) -> Result<Vec<MigrationRecord>, Error> {
    let mut session = DatabaseSession::open(target, OWNER, DATABASE, &[], limits).await?;
    if history::history_columns(&mut session).await?.is_empty() {
        return Ok(Vec::new());
    }
    let sql = format!(
        r#"select pg_catalog.to_jsonb(h) from supabase_migrations.schema_migrations h
           order by version collate "C" limit {}"#,
        MIGRATIONS_MAX + 1
    );
    let rows = session.simple_query(&sql).await?.rows;
    if rows.len() > MIGRATIONS_MAX {
        return Err(Error::Rejected(
            format!("The history has more than {MIGRATIONS_MAX} migrations").into(),
        ));
    }
    let mut records = Vec::with_capacity(rows.len());
    for text in rows.values() {
        let row: Row = serde_json::from_str(&text).context("reading a row of a history")?;
        records.push(row.into());
    }
    Ok(records)
}

/// A migration that failed, and its error.
#[derive(Debug)]
pub struct ReplayFailure {
    /// Version of the migration. `None` if no migration had begun.
    pub version: Option<String>,
    /// The error.
    pub error: Error,
}

impl ReplayFailure {
    fn of(version: &str) -> impl Fn(Error) -> Self {
        move |error| Self {
            version: Some(version.to_owned()),
            error,
        }
    }
}

/// Applies migrations and records each under its own version.
///
/// All run in one transaction if each of them can; otherwise each on its own, and those before a
/// failed one stay applied.
pub async fn replay(
    target: &ConnectTarget,
    clock: &Clock,
    migrations: &[NewMigration],
    limits: MigrationLimits,
) -> Result<(), ReplayFailure> {
    match replay_at_once(target, clock, migrations, limits).await {
        Ok(true) => return Ok(()),
        Ok(false) => {}
        Err(failure) if segmented::needs_segments(&failure.error) => {}
        Err(failure) => return Err(failure),
    }
    for migration in migrations {
        let version = migration.version.as_deref().unwrap_or_default();
        super::apply(target, clock, migration, limits)
            .await
            .map_err(ReplayFailure::of(version))?;
    }
    Ok(())
}

/// Returns `false` if a migration cannot run in a transaction.
async fn replay_at_once(
    target: &ConnectTarget,
    clock: &Clock,
    migrations: &[NewMigration],
    limits: MigrationLimits,
) -> Result<bool, ReplayFailure> {
    let mut plans = Vec::with_capacity(migrations.len());
    for migration in migrations {
        let version = migration.version.as_deref().unwrap_or_default();
        let plan = MigrationPlan::parse(&migration.query, &SegmentCuts::default())
            .map_err(ReplayFailure::of(version))?;
        let Some(text) = plan.whole() else {
            return Ok(false);
        };
        plans.push((version, migration, plan, text));
    }
    let unbegun = |error| ReplayFailure {
        version: None,
        error,
    };
    let begun = HistoryTransaction::begin(target, limits).await;
    let mut history = begun.map_err(unbegun)?;
    for (version, migration, plan, text) in &plans {
        let fingerprint = migration.fingerprint("apply");
        let recorded = history.record(clock, migration, &fingerprint).await;
        recorded.map_err(ReplayFailure::of(version))?;
        let ran = if plan.has_platform_row_security() {
            segmented::run_statements(&mut history, plan, &migration.query).await
        } else {
            let ran = history.run(text).await;
            ran.map_err(|error| {
                segmented::with_context(error, plan, history.session.failure_site())
            })
        };
        ran.map_err(ReplayFailure::of(version))?;
        // A migration may change settings of the session; the next one expects a new session.
        let reset = history.session.batch_execute(RESET).await;
        reset.map_err(ReplayFailure::of(version)).map(drop)?;
        let lock_timeout = format!("set lock_timeout = {}", limits.lock_timeout.as_millis());
        let set = history.session.batch_execute(&lock_timeout).await;
        set.map_err(ReplayFailure::of(version)).map(drop)?;
    }
    history.commit().await.map_err(unbegun)?;
    Ok(true)
}

/// How far migrations can be tried before they are applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplayRehearsal {
    /// All run in one transaction, which is undone as a whole if one fails.
    AtOnce,
    /// The statements were run and rolled back.
    Rehearsed {
        /// Number of statements.
        statements: usize,
        /// Version with the first statement that cannot run in a transaction. It and those after
        /// it were not tried, because they may need each other.
        untried_from: Option<String>,
    },
}

/// Tries migrations that [`replay`] cannot apply at once: in a transaction that is rolled back.
///
/// Errors: as those of [`replay`], which then need not be called.
pub async fn rehearse(
    target: &ConnectTarget,
    clock: &Clock,
    migrations: &[NewMigration],
    limits: MigrationLimits,
) -> Result<ReplayRehearsal, ReplayFailure> {
    let mut plans = Vec::with_capacity(migrations.len());
    for migration in migrations {
        let version = migration.version.as_deref().unwrap_or_default();
        let plan = MigrationPlan::parse(&migration.query, &SegmentCuts::default())
            .map_err(ReplayFailure::of(version))?;
        plans.push((version, migration, plan));
    }
    if plans.iter().all(|(_, _, plan)| plan.whole().is_some()) {
        return Ok(ReplayRehearsal::AtOnce);
    }
    let unbegun = |error| ReplayFailure {
        version: None,
        error,
    };
    let begun = HistoryTransaction::begin(target, limits).await;
    let mut history = begun.map_err(unbegun)?;
    let held = rehearsal::hold_sequences(&mut history.session).await;
    held.map_err(|error| unbegun(history.with_hint(error)))?;
    let (mut statements, mut untried_from) = (0, None);
    for (version, migration, plan) in &plans {
        let fingerprint = migration.fingerprint("apply");
        let recorded = history.record(clock, migration, &fingerprint).await;
        recorded.map_err(ReplayFailure::of(version))?;
        let ran = rehearse_plan(&mut history, plan).await;
        let ran = ran.map_err(ReplayFailure::of(version))?;
        statements += ran.statements;
        if !ran.complete {
            untried_from = Some((*version).to_owned());
            break;
        }
        let reset = history.session.batch_execute(RESET).await;
        reset.map_err(ReplayFailure::of(version)).map(drop)?;
    }
    let undone = history.session.batch_execute("rollback").await;
    undone.map_err(unbegun)?;
    Ok(ReplayRehearsal::Rehearsed {
        statements,
        untried_from,
    })
}

/// The part of a migration that was tried.
struct RehearsedPart {
    statements: usize,
    complete: bool,
}

/// Runs the statements of a migration up to the first one that cannot run in a transaction.
async fn rehearse_plan(
    history: &mut HistoryTransaction,
    plan: &MigrationPlan<'_>,
) -> Result<RehearsedPart, Error> {
    let mut statements = 0;
    for segment in &plan.segments {
        let rolled_back = matches!(
            segment.kind,
            SegmentKind::Explicit {
                rolled_back: true,
                ..
            }
        );
        if rolled_back {
            let savepoint = history.session.batch_execute("savepoint gantry_segment");
            savepoint.await?;
        }
        for part in &segment.statements {
            let ran = rehearsal::rehearse_statement(history, plan, segment, part).await?;
            if ran.is_err() {
                return Ok(RehearsedPart {
                    statements,
                    complete: false,
                });
            }
            statements += 1;
        }
        if rolled_back {
            let undone = history.session.batch_execute("rollback to gantry_segment");
            undone.await?;
        }
    }
    Ok(RehearsedPart {
        statements,
        complete: true,
    })
}

/// Restores the settings of the session inside its transaction.
const RESET: &str = "reset all; reset session authorization; set role postgres";
