//! A project's migrations: which have been applied, applying one, and taking back.
//!
//! They stand in `supabase_migrations.schema_migrations` inside the project's own database, which the customer's
//! command line reads and writes too (`behaviour.md` §8, `clients.md` §3). Every change happens in a history: one
//! transaction, alone with the history, with the customer's SQL and its record in it or neither.

pub mod operations;
pub mod rehearsal;

mod history;
mod version;

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::history::HistoryTransaction;
use crate::{
    base::{
        clock::Clock,
        error::{Context as _, Error},
    },
    data_plane::database_session::{
        DATABASE, OWNER,
        session::{ConnectTarget, DatabaseSession, SessionLimits},
        statements::TransactionScript,
    },
};

/// An applied migration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Migration {
    /// Sorts as text in the order of application. Ours are 14 digits, `YYYYMMDDHHMMSS` in UTC.
    pub version: String,
    /// What its author called it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// An applied migration with everything the history knows about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "V1GetMigrationResponse")]
pub struct MigrationRecord {
    /// Sorts as text in the order of application.
    pub version: String,
    /// What its author called it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its SQL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub statements: Option<Vec<String>>,
    /// SQL that takes it back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollback: Option<Vec<String>>,
    /// Who applied it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_by: Option<String>,
    /// The key of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
}

/// A row of the history as the server prints it: the command line's has no more than the first three columns.
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
    /// What its author calls it.
    pub name: Option<String>,
    /// SQL that takes it back. Only recorded.
    pub rollback: Option<String>,
    /// The same key is applied once.
    pub idempotency_key: Option<String>,
    /// Who applies it.
    pub created_by: Option<String>,
}

/// What changes about a migration that is in the history. What is `None` stays.
#[derive(Debug, Clone, Default)]
pub struct MigrationPatch {
    /// Its name.
    pub name: Option<String>,
    /// SQL that takes it back.
    pub rollback: Option<String>,
}

/// What became of a migration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppliedMigration {
    /// The version it is recorded as.
    pub version: String,
    /// Whether an earlier request with the same key had applied it.
    pub replayed: bool,
}

/// What changing the history may take.
#[derive(Debug, Clone, Copy)]
pub struct MigrationLimits {
    /// In all: waiting for its history, and every statement.
    pub session: SessionLimits,
    /// Waiting for one lock. Whoever comes after us in the lock's queue waits as long, so it is short.
    pub lock_timeout: Duration,
}

impl Default for MigrationLimits {
    /// 4 s for a lock, as the command line has it (`behaviour.md` §8).
    fn default() -> Self {
        Self {
            session: SessionLimits::default(),
            lock_timeout: Duration::from_secs(4),
        }
    }
}

/// Every applied migration, by version. Empty if there is no history yet.
///
/// Errors: [`Error::DatabaseUnreachable`]; [`Error::Sql`] if the history is not ours to read.
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
    let rows = session.simple_query(&sql).await?.rows.texts();
    Ok(rows.into_iter().filter_map(listed).collect())
}

fn listed(row: Vec<Option<String>>) -> Option<Migration> {
    let [version, name] = row.try_into().ok()?;
    Some(Migration {
        version: version?,
        name,
    })
}

/// One applied migration.
///
/// Errors: [`Error::NotFound`]; [`Error::DatabaseUnreachable`]; [`Error::Sql`] if the history is not ours to read.
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
    let found = session
        .query(sql, &[Some(version)])
        .await?
        .rows
        .texts()
        .into_iter()
        .flatten()
        .flatten()
        .next();
    let row: Row = serde_json::from_str(&found.ok_or(Error::NotFound)?)
        .context("reading a row of a history")?;
    let texts =
        |list: Option<Vec<Option<String>>>| list.map(|texts| texts.into_iter().flatten().collect());
    Ok(MigrationRecord {
        version: row.version,
        name: row.name,
        statements: texts(row.statements),
        rollback: texts(row.rollback),
        created_by: row.created_by,
        idempotency_key: row.idempotency_key,
    })
}

/// Applies `migration` and records it, both or neither.
///
/// The row is written first, in the same transaction, so nothing the text sets — role, encoding, search path, a
/// read-only transaction — can keep it from being recorded. Texts that would end the transaction, or that cannot run
/// in one, are refused before anything runs.
///
/// Errors: [`Error::Sql`] as the server says, with nothing applied; [`Error::Invalid`] for a text that is refused;
/// [`Error::Conflict`] if the key was used for another request; [`Error::DatabaseUnreachable`], where a second request
/// with the same key tells whether the first was applied.
pub async fn apply(
    target: &ConnectTarget,
    clock: &Clock,
    migration: &NewMigration,
    limits: MigrationLimits,
) -> Result<AppliedMigration, Error> {
    let script = TransactionScript::parse("a migration", "query", &migration.query)?;
    let mut history = HistoryTransaction::begin(target, limits).await?;
    let request = migration.fingerprint("apply");
    if let Some(version) = history.find_replay(migration, &request).await? {
        return Ok(AppliedMigration {
            version,
            replayed: true,
        });
    }
    let version = history.record(clock, migration, &request).await?;
    history.run(&script.text()).await?;
    history.commit().await?;
    Ok(AppliedMigration {
        version,
        replayed: false,
    })
}

/// Records `migration` as applied and runs nothing: for a change that was made in another way.
///
/// Errors: as of [`apply`].
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
/// Errors: [`Error::NotFound`]; else as of [`apply`].
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

/// Takes back every migration from version `gte` on, the newest first, and removes them from the history: all or none.
/// Nothing to take back is no error, so that a request whose answer was lost can be sent again.
///
/// Errors: [`Error::Rejected`] if one of them has no rollback recorded; else as of [`apply`].
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
    // Each is read before the first one runs.
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
