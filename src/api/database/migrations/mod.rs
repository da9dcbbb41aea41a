//! Migrations of a project: history, application, rollback.
//!
//! The history is `supabase_migrations.schema_migrations` in the project's own database, which the
//! customer's command line also reads and writes (`behaviour.md` §8, `clients.md` §3). Each change
//! is one transaction that holds a lock on the history and contains both the customer's SQL and its
//! record.

pub mod operations;
pub mod rehearsal;
pub mod replay;
pub mod seed;

mod attempts;
mod history;
mod progress;
mod segmented;
mod version;

use std::time::Duration;

use gantry_base::clock::Clock;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::history::HistoryTransaction;
use crate::{
    control::database_session::{
        DATABASE, OWNER,
        segments::{MigrationPlan, SegmentCuts},
        session::{ConnectTarget, DatabaseSession, SessionLimits},
        statements::TransactionScript,
    },
    platform::error::{Context as _, Error},
};

/// An applied migration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Migration {
    /// Version. Versions sort as text in the order of application. Generated ones have 14 digits,
    /// `YYYYMMDDHHMMSS` in UTC.
    pub version: String,
    /// Name given by the author.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// An applied migration with all columns of the history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "V1GetMigrationResponse")]
pub struct MigrationRecord {
    /// Version. Versions sort as text in the order of application.
    pub version: String,
    /// Name given by the author.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// SQL of the migration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub statements: Option<Vec<String>>,
    /// SQL that reverts the migration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollback: Option<Vec<String>>,
    /// E-mail address of the user that applied it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_by: Option<String>,
    /// Idempotency key of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
}

/// A row of the history. A history created by the command line may have only the first three
/// columns.
#[derive(Deserialize)]
struct Row {
    version: String,
    name: Option<String>,
    statements: Option<Vec<Option<String>>>,
    rollback: Option<Vec<Option<String>>>,
    created_by: Option<String>,
    idempotency_key: Option<String>,
}

/// A migration to apply, or only to record.
#[derive(Debug, Clone, Default)]
pub struct NewMigration {
    /// SQL, any number of statements.
    pub query: String,
    /// Name given by the author.
    pub name: Option<String>,
    /// SQL that reverts the migration. It is only recorded.
    pub rollback: Option<String>,
    /// Idempotency key. A key is applied once.
    pub idempotency_key: Option<String>,
    /// E-mail address of the user.
    pub created_by: Option<String>,
    /// Version of a migration that another project has. Otherwise the next one is generated.
    pub version: Option<String>,
    /// The statements to record. Otherwise the query is recorded as one.
    pub statements: Option<Vec<String>>,
}

/// Properties of a migration to change. `None` keeps a property.
#[derive(Debug, Clone, Default)]
pub struct MigrationPatch {
    /// New name.
    pub name: Option<String>,
    /// New SQL that reverts the migration.
    pub rollback: Option<String>,
}

/// Result of applying a migration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppliedMigration {
    /// Recorded version.
    pub version: String,
    /// Whether an earlier request with the same key applied it.
    pub replayed: bool,
}

/// Limits of a change of the history.
#[derive(Debug, Clone, Copy)]
pub struct MigrationLimits {
    /// Limits of the whole session: waiting for locks, and every statement.
    pub session: SessionLimits,
    /// Maximum wait for one lock. Short, because later transactions in the lock queue wait as long.
    pub lock_timeout: Duration,
}

impl Default for MigrationLimits {
    /// Returns 4 s for a lock, as the command line (`behaviour.md` §8).
    fn default() -> Self {
        Self {
            session: SessionLimits::default(),
            lock_timeout: Duration::from_secs(4),
        }
    }
}

/// Lists the applied migrations by version. Returns an empty list without a history.
///
/// Errors: [`Error::DatabaseUnreachable`]; [`Error::Sql`] if the owner cannot read the history.
pub async fn list(target: &ConnectTarget, limits: SessionLimits) -> Result<Vec<Migration>, Error> {
    let mut session = DatabaseSession::open(target, OWNER, DATABASE, &[], limits).await?;
    let columns = history::history_columns(&mut session).await?;
    if columns.is_empty() {
        return Ok(Vec::new());
    }
    let name = if columns.contains("name") {
        "name"
    } else {
        "null"
    };
    let sql = format!(
        r#"select version, {name} from supabase_migrations.schema_migrations order by version collate "C""#
    );
    let rows = session.simple_query(&sql).await?.rows;
    Ok(rows.records().filter_map(listed).collect())
}

fn listed([version, name]: [Option<String>; 2]) -> Option<Migration> {
    Some(Migration {
        version: version?,
        name,
    })
}

/// Returns one applied migration.
///
/// Errors: [`Error::NotFound`]; [`Error::DatabaseUnreachable`]; [`Error::Sql`] if the owner cannot
/// read the history.
pub async fn get(
    target: &ConnectTarget,
    version: &str,
    limits: SessionLimits,
) -> Result<MigrationRecord, Error> {
    let mut session = DatabaseSession::open(target, OWNER, DATABASE, &[], limits).await?;
    if history::history_columns(&mut session).await?.is_empty() {
        return Err(Error::NotFound);
    }
    let sql = "select pg_catalog.to_jsonb(h) from supabase_migrations.schema_migrations h where version = $1";
    let rows = session.query(sql, &[Some(version)]).await?.rows;
    let row: Row = serde_json::from_str(&rows.values().next().ok_or(Error::NotFound)?)
        .context("reading a row of a history")?;
    Ok(row.into())
}

impl From<Row> for MigrationRecord {
    fn from(row: Row) -> Self {
        let texts = |list: Option<Vec<Option<String>>>| {
            list.map(|texts| texts.into_iter().flatten().collect())
        };
        Self {
            version: row.version,
            name: row.name,
            statements: texts(row.statements),
            rollback: texts(row.rollback),
            created_by: row.created_by,
            idempotency_key: row.idempotency_key,
        }
    }
}

/// Applies `migration` and records it.
///
/// A text that can run in one transaction is applied and recorded in one. Any other text is applied
/// in segments, each in one transaction with the record of its progress; an interrupted one is
/// continued by the next request with the same key, or without a key by the same text (decision
/// 0089).
///
/// The row is written first, so that settings changed by the SQL (role, encoding, search path, a
/// read-only transaction) cannot prevent the record.
///
/// Errors: [`Error::Sql`] with the server's message, after a rollback of the open transaction;
/// [`Error::Invalid`] for rejected SQL; [`Error::Conflict`] if the key was used for another
/// request, if the applied part of an interrupted migration changed, or if another migration is
/// being applied in segments; [`Error::DatabaseUnreachable`], in which case a second request with
/// the same key returns whether the first one was applied.
pub async fn apply(
    target: &ConnectTarget,
    clock: &Clock,
    migration: &NewMigration,
    limits: MigrationLimits,
) -> Result<AppliedMigration, Error> {
    let plan = MigrationPlan::parse(&migration.query, &SegmentCuts::default())?;
    if let Some(text) = plan.whole() {
        match apply_whole(target, clock, migration, limits, (&plan, &text)).await {
            Ok(Some(applied)) => return Ok(applied),
            // Interrupted as segments before, or PostgreSQL does not run it in one transaction.
            Ok(None) => {}
            Err(error) if segmented::needs_segments(&error) => {}
            Err(error) => return Err(error),
        }
    }
    drop(plan);
    segmented::apply(target, clock, migration, limits).await
}

/// Applies a migration in one transaction. Returns `None` if a part of it is already applied.
async fn apply_whole(
    target: &ConnectTarget,
    clock: &Clock,
    migration: &NewMigration,
    limits: MigrationLimits,
    (plan, text): (&MigrationPlan<'_>, &str),
) -> Result<Option<AppliedMigration>, Error> {
    let mut history = HistoryTransaction::begin(target, limits).await?;
    let request = migration.fingerprint("apply");
    if let Some(version) = history.find_replay(migration, &request).await? {
        return Ok(Some(AppliedMigration {
            version,
            replayed: true,
        }));
    }
    if history.has_progress && progress::find(&mut history, migration).await?.is_some() {
        return Ok(None);
    }
    let version = history.record(clock, migration, &request).await?;
    if plan.has_platform_row_security() {
        segmented::run_statements(&mut history, plan, &migration.query).await?;
    } else if let Err(error) = history.run(text).await {
        return Err(segmented::with_context(
            error,
            plan,
            history.session.failure_site(),
        ));
    }
    history.commit().await?;
    Ok(Some(AppliedMigration {
        version,
        replayed: false,
    }))
}

/// Records `migration` as applied without running it, for a change that was made in another way.
///
/// Errors: those of [`apply`].
pub async fn record(
    target: &ConnectTarget,
    clock: &Clock,
    migration: &NewMigration,
    limits: MigrationLimits,
) -> Result<AppliedMigration, Error> {
    let mut history = HistoryTransaction::begin(target, limits).await?;
    let request = migration.fingerprint("record");
    if let Some(version) = history.find_replay(migration, &request).await? {
        return Ok(AppliedMigration {
            version,
            replayed: true,
        });
    }
    let version = history.record(clock, migration, &request).await?;
    history.commit().await?;
    Ok(AppliedMigration {
        version,
        replayed: false,
    })
}

/// Changes name or rollback of a migration.
///
/// Errors: [`Error::NotFound`], and those of [`apply`].
pub async fn patch(
    target: &ConnectTarget,
    version: &str,
    patch: &MigrationPatch,
    limits: MigrationLimits,
) -> Result<(), Error> {
    let mut history = HistoryTransaction::begin(target, limits).await?;
    history.patch(version, patch).await?;
    history.commit().await
}

/// Reverts every migration from version `gte` on, the newest first, and removes them from the
/// history, in one transaction. No matching migration is not an error, so that a lost request can
/// be repeated.
///
/// Errors: [`Error::Rejected`] if a migration has no recorded rollback, and those of [`apply`].
pub async fn roll_back(
    target: &ConnectTarget,
    gte: &str,
    limits: MigrationLimits,
) -> Result<(), Error> {
    let mut history = HistoryTransaction::begin(target, limits).await?;
    let taken = history.remove_from(gte).await?;
    let without: Vec<_> = taken
        .iter()
        .filter(|(_, rollback)| rollback.is_none())
        .map(|(version, _)| version.as_str())
        .collect();
    if !without.is_empty() {
        return Err(Error::Rejected(
            format!(
                "No rollback is recorded for {}: nothing was rolled back. Record one with PATCH, an empty one if there is nothing to undo.",
                without.join(", ")
            )
            .into(),
        ));
    }
    // All texts are parsed before the first one runs.
    let field = |version: &str| format!("rollback of {version}");
    let texts: Vec<_> = taken
        .iter()
        .flat_map(|(version, texts)| texts.iter().flatten().map(move |text| (version, text)))
        .collect();
    let scripts = texts.iter().map(|(version, text)| {
        Ok((
            version,
            TransactionScript::parse("a rollback", &field(version), text)?,
        ))
    });
    for (version, script) in scripts.collect::<Result<Vec<_>, Error>>()? {
        history.run_as(&field(version), &script.text()).await?;
    }
    history.commit().await
}
