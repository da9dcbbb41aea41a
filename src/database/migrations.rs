//! A project's migrations: which have been applied, and applying one.
//!
//! They stand in `supabase_migrations.schema_migrations` inside the project's own database, which the customer's
//! command line reads and writes too (`behaviour.md` §8, `clients.md` §3).

use std::collections::HashSet;

use chrono::{DateTime, NaiveDateTime, TimeDelta, Utc};
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    DATABASE, OWNER,
    session::{Limits, Session, Target},
    statements,
};
use crate::{
    clock::Clock,
    error::{Context as _, Error},
};

/// Serialises the migrations of one project: "gantry" in ASCII.
const LOCK: i64 = 0x6761_6e74_7279;

/// An applied migration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Migration {
    /// Sorts as text in the order of application. Ours are 14 digits, `YYYYMMDDHHMMSS` in UTC.
    pub version: String,
    /// What its author called it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// A migration to apply.
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

/// What became of a migration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// The version it is recorded as.
    pub version: String,
    /// Whether an earlier request with the same key had applied it.
    pub replayed: bool,
}

/// Every applied migration, by version. Empty if there is no history yet.
///
/// Errors: [`Error::DatabaseUnreachable`]; [`Error::Sql`] if the history is not ours to read.
pub async fn list(target: &Target, limits: Limits) -> Result<Vec<Migration>, Error> {
    let mut session = Session::open(target, OWNER, DATABASE, &[], limits).await?;
    let columns = history_columns(&mut session).await?;
    if columns.is_empty() {
        return Ok(Vec::new());
    }
    let name = if columns.contains("name") { "name" } else { "null" };
    let sql = format!(r#"select version, {name} from supabase_migrations.schema_migrations order by version collate "C""#);
    let rows = session.simple(&sql).await?.rows.texts();
    Ok(rows.into_iter().filter_map(migration).collect())
}

fn migration(row: Vec<Option<String>>) -> Option<Migration> {
    let [version, name] = row.try_into().ok()?;
    Some(Migration { version: version?, name })
}

/// Applies `migration` and records it, both or neither.
///
/// The row is written first, in the same transaction, so nothing the text sets — role, encoding, search path, a
/// read-only transaction — can keep it from being recorded. Texts that would end the transaction are refused.
///
/// Errors: [`Error::Sql`] as the server says, with nothing applied; [`Error::Invalid`] if the text starts or ends
/// transactions; [`Error::Conflict`] if the key was used for another text; [`Error::DatabaseUnreachable`], where a
/// second request with the same key tells whether the first was applied.
pub async fn apply(target: &Target, clock: &Clock, migration: &NewMigration, limits: Limits) -> Result<Applied, Error> {
    let script = statements::transactional(&migration.query)?;
    let mut session = Session::open(target, OWNER, DATABASE, &[], limits).await?;
    begin(&mut session).await?;
    if let Some(version) = applied_before(&mut session, migration).await? {
        return Ok(Applied { version, replayed: true });
    }
    let version = next_version(clock.now(), latest_version(&mut session).await?.as_deref())?;
    let transaction = record(&mut session, &version, migration).await?;
    session.script(&script).await?;
    if !session.in_transaction() || current_transaction(&mut session).await? != Some(transaction) {
        return Err(Error::Rejected(
            "The migration ended the transaction it ran in: it may be applied in part. Look at the schema and the history before going on."
                .into(),
        ));
    }
    if session.script("commit").await? != "COMMIT" {
        return Err(Error::Rejected("The migration was rolled back".into()));
    }
    Ok(Applied { version, replayed: false })
}

/// Opens the transaction, waits for its turn and sees that the history is there.
async fn begin(session: &mut Session) -> Result<(), Error> {
    // Read committed, whatever the customer's default is: what the one before us wrote must be seen after the wait.
    session.script("begin isolation level read committed read write").await?;
    session.script(&format!("select pg_catalog.pg_advisory_xact_lock({LOCK})")).await?;
    // From here on no one waits long for a lock, and no one behind us in its queue (`behaviour.md` §8: the command line's value).
    session.script("set lock_timeout = '4s'").await?;
    let columns = history_columns(session).await?;
    if columns.is_empty() {
        session.script(CREATE_HISTORY).await?;
        return Ok(());
    }
    for (column, definition) in LATER_COLUMNS {
        if !columns.contains(column) {
            session.script(&format!("alter table supabase_migrations.schema_migrations add column {column} {definition}")).await?;
        }
    }
    Ok(())
}

const CREATE_HISTORY: &str = "
    create schema if not exists supabase_migrations;
    create table supabase_migrations.schema_migrations (
        version text primary key,
        statements text[],
        name text,
        created_by text,
        idempotency_key text constraint schema_migrations_idempotency_key_key unique,
        rollback text[]
    )";

/// What a history lacks that the command line created, which writes version, statements and name.
const LATER_COLUMNS: [(&str, &str); 5] = [
    ("statements", "text[]"),
    ("name", "text"),
    ("created_by", "text"),
    ("idempotency_key", "text constraint schema_migrations_idempotency_key_key unique"),
    ("rollback", "text[]"),
];

/// Columns of the history table; none if there is no table.
async fn history_columns(session: &mut Session) -> Result<HashSet<String>, Error> {
    let answer = session
        .simple(
            "select a.attname from pg_catalog.pg_attribute a
             join pg_catalog.pg_class c on c.oid = a.attrelid join pg_catalog.pg_namespace n on n.oid = c.relnamespace
             where n.nspname = 'supabase_migrations' and c.relname = 'schema_migrations'
             and a.attnum > 0 and not a.attisdropped",
        )
        .await?;
    Ok(answer.rows.texts().into_iter().flatten().flatten().collect())
}

/// The version under which this very migration was applied before.
async fn applied_before(session: &mut Session, migration: &NewMigration) -> Result<Option<String>, Error> {
    let Some(key) = migration.idempotency_key.as_deref() else {
        return Ok(None);
    };
    let answer = session
        .query(
            "select version, statements = array[$2::text] from supabase_migrations.schema_migrations where idempotency_key = $1",
            &[Some(key), Some(&migration.query)],
        )
        .await?;
    let Some(row) = answer.rows.texts().into_iter().next() else {
        return Ok(None);
    };
    match <[_; 2]>::try_from(row) {
        Ok([Some(version), Some(same)]) if same == "t" => Ok(Some(version)),
        _ => Err(Error::Conflict("This Idempotency-Key was used for another migration".into())),
    }
}

async fn latest_version(session: &mut Session) -> Result<Option<String>, Error> {
    let answer = session
        .simple(
            r#"select version from supabase_migrations.schema_migrations
               where version ~ '^[0-9]{14}$' order by version collate "C" desc limit 1"#,
        )
        .await?;
    Ok(answer.rows.texts().into_iter().flatten().flatten().next())
}

/// `now` as a version, or the next one after `latest` if that is not greater: several in one second, a clock that was
/// set back, a file dated in the future.
fn next_version(now: DateTime<Utc>, latest: Option<&str>) -> Result<String, Error> {
    const FORM: &str = "%Y%m%d%H%M%S";
    let version = now.format(FORM).to_string();
    let Some(latest) = latest.filter(|latest| *latest >= version.as_str()) else {
        return Ok(version);
    };
    let next = match NaiveDateTime::parse_from_str(latest, FORM) {
        Ok(time) => time.checked_add_signed(TimeDelta::seconds(1)).map(|time| time.format(FORM).to_string()),
        // 14 digits that are no date, such as 20261399000000: only the order matters.
        Err(_) => latest.parse::<u64>().ok().map(|number| format!("{:014}", number + 1)),
    };
    next.filter(|next| next.len() == 14 && next.as_str() > latest)
        .ok_or_else(|| Error::Rejected(format!("No version is left after {latest}; remove it from the history").into()))
}

/// Writes the row and answers the transaction it stands in.
async fn record(session: &mut Session, version: &str, migration: &NewMigration) -> Result<String, Error> {
    let answer = session
        .query(
            "insert into supabase_migrations.schema_migrations
                 (version, statements, name, created_by, idempotency_key, rollback)
             values ($1, array[$2::text], $3, $4, $5, case when $6::text is not null then array[$6::text] end)
             returning pg_catalog.pg_current_xact_id()",
            &[
                Some(version),
                Some(&migration.query),
                migration.name.as_deref(),
                migration.created_by.as_deref(),
                migration.idempotency_key.as_deref(),
                migration.rollback.as_deref(),
            ],
        )
        .await?;
    let transaction = answer.rows.texts().into_iter().flatten().flatten().next();
    transaction.ok_or("a rule or trigger on the history swallowed the row").context("recording a migration")
}

async fn current_transaction(session: &mut Session) -> Result<Option<String>, Error> {
    let answer = session.simple("select pg_catalog.pg_current_xact_id_if_assigned()").await?;
    Ok(answer.rows.texts().into_iter().flatten().flatten().next())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(version: &str) -> DateTime<Utc> {
        NaiveDateTime::parse_from_str(version, "%Y%m%d%H%M%S").unwrap().and_utc()
    }

    #[test]
    fn a_version_is_the_time_in_utc() {
        assert_eq!(next_version(at("20261101091503"), None).unwrap(), "20261101091503");
        assert_eq!(next_version(at("20261101091503"), Some("20261101091502")).unwrap(), "20261101091503");
    }

    #[test]
    fn ten_in_one_second_are_ten_versions() {
        let mut versions: Vec<String> = Vec::new();
        for _ in 0..10 {
            versions.push(next_version(at("20261231235955"), versions.last().map(String::as_str)).unwrap());
        }
        assert_eq!(versions[9], "20270101000004");
        assert!(versions.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn a_clock_set_back_does_not_reorder() {
        assert_eq!(next_version(at("20261101091503"), Some("20271231235959")).unwrap(), "20280101000000");
    }

    #[test]
    fn versions_that_are_no_dates_are_passed_too() {
        assert_eq!(next_version(at("20261101091503"), Some("20261399999999")).unwrap(), "20261400000000");
        assert_eq!(next_version(at("20261101091503"), Some("00000000000042")).unwrap(), "20261101091503");
        for last in ["99999999999999", "99991231235959"] {
            assert!(next_version(at("20261101091503"), Some(last)).is_err(), "{last}");
        }
    }
}
