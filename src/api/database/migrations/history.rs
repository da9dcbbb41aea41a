//! A change to the history: one transaction, alone with it.

use std::collections::HashSet;

use sha2::{Digest, Sha256};

use super::{MigrationLimits, MigrationPatch, NewMigration, version};
use crate::{
    base::{
        clock::Clock,
        error::{Context as _, Error},
    },
    data_plane::database_session::{
        DATABASE, OWNER,
        session::{ConnectTarget, DatabaseSession},
    },
};

/// Serialises the migrations of one project: "gantry" in ASCII.
const LOCK: i64 = 0x6761_6e74_7279;

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
    (
        "idempotency_key",
        "text constraint schema_migrations_idempotency_key_key unique",
    ),
    ("rollback", "text[]"),
];

/// What was asked under a key. Beside the history, whose columns are not ours to add to; without a foreign key, which
/// would keep the command line from truncating it. A row counts while the history has its key.
const CREATE_REQUESTS: &str = "
    create table if not exists supabase_migrations.gantry_requests (idempotency_key text primary key, fingerprint text not null)";

/// Columns of the history table; none if there is no table.
pub(super) async fn history_columns(
    session: &mut DatabaseSession,
) -> Result<HashSet<String>, Error> {
    let answer = session
        .simple_query(
            "select a.attname from pg_catalog.pg_attribute a
             join pg_catalog.pg_class c on c.oid = a.attrelid join pg_catalog.pg_namespace n on n.oid = c.relnamespace
             where n.nspname = 'supabase_migrations' and c.relname = 'schema_migrations'
             and a.attnum > 0 and not a.attisdropped",
        )
        .await?;
    Ok(answer
        .rows
        .texts()
        .into_iter()
        .flatten()
        .flatten()
        .collect())
}

impl NewMigration {
    /// Tells this request from any other that may come with the same key. Who asks does not matter.
    pub(super) fn fingerprint(&self, operation: &str) -> String {
        let mut hash = Sha256::new();
        for part in [
            Some(operation),
            Some(&self.query),
            self.name.as_deref(),
            self.rollback.as_deref(),
        ] {
            hash.update(
                part.map_or(u64::MAX, |text| text.len() as u64)
                    .to_le_bytes(),
            );
            hash.update(part.unwrap_or_default());
        }
        hex::encode(hash.finalize())
    }
}

/// An open transaction in which nobody else changes the history. Dropping it undoes everything.
pub(super) struct HistoryTransaction {
    pub(super) session: DatabaseSession,
    limits: MigrationLimits,
    /// The transaction: a text that ends it and begins another must not pass unnoticed.
    id: String,
}

impl HistoryTransaction {
    /// Opens the transaction, waits for its history and sees that the history is there.
    pub(super) async fn begin(
        target: &ConnectTarget,
        limits: MigrationLimits,
    ) -> Result<Self, Error> {
        let mut session =
            DatabaseSession::open(target, OWNER, DATABASE, &[], limits.session).await?;
        // Read committed, whatever the customer's default is: what the one before us wrote must be seen after the wait.
        // From the second on no one waits long for a lock, and no one behind us in its queue.
        let begin = format!(
            "begin isolation level read committed read write;
             select pg_catalog.pg_advisory_xact_lock({LOCK});
             set lock_timeout = {}",
            limits.lock_timeout.as_millis()
        );
        session.batch_execute(&begin).await?;
        let columns = history_columns(&mut session).await?;
        if columns.is_empty() {
            session.batch_execute(CREATE_HISTORY).await?;
        } else {
            for (column, definition) in LATER_COLUMNS
                .iter()
                .filter(|(column, _)| !columns.contains(*column))
            {
                session.batch_execute(&format!("alter table supabase_migrations.schema_migrations add column {column} {definition}")).await?;
            }
        }
        let id = first(&mut session, "select pg_catalog.pg_current_xact_id()")
            .await?
            .ok_or("it has none")
            .context("naming a transaction")?;
        Ok(Self {
            session,
            limits,
            id,
        })
    }

    /// The version under which this very request was carried out before.
    pub(super) async fn find_replay(
        &mut self,
        migration: &NewMigration,
        fingerprint: &str,
    ) -> Result<Option<String>, Error> {
        let Some(key) = migration.idempotency_key.as_deref() else {
            return Ok(None);
        };
        self.session.batch_execute(CREATE_REQUESTS).await?;
        // A history that came here without our table says only what was run.
        let answer = self
            .session
            .query(
                "select h.version, coalesce(r.fingerprint = $2, h.statements = array[$3::text])
                 from supabase_migrations.schema_migrations h left join supabase_migrations.gantry_requests r using (idempotency_key)
                 where h.idempotency_key = $1",
                &[Some(key), Some(fingerprint), Some(&migration.query)],
            )
            .await?;
        let Some(row) = answer.rows.texts().into_iter().next() else {
            return Ok(None);
        };
        match <[_; 2]>::try_from(row) {
            Ok([Some(version), Some(same)]) if same == "t" => Ok(Some(version)),
            _ => Err(Error::Conflict(
                "This Idempotency-Key was used for another migration".into(),
            )),
        }
    }

    /// Writes the migration's row and answers its version.
    pub(super) async fn record(
        &mut self,
        clock: &Clock,
        migration: &NewMigration,
        fingerprint: &str,
    ) -> Result<String, Error> {
        let latest = first(
            &mut self.session,
            r#"select version from supabase_migrations.schema_migrations
               where version ~ '^[0-9]{14}$' order by version collate "C" desc limit 1"#,
        );
        let version = version::next(clock.now(), latest.await?.as_deref())?;
        let insert = "insert into supabase_migrations.schema_migrations
                          (version, statements, name, created_by, idempotency_key, rollback)
                      values ($1, array[$2::text], $3, $4, $5, case when $6::text is not null then array[$6::text] end)";
        let values = [
            Some(version.as_str()),
            Some(&migration.query),
            migration.name.as_deref(),
            migration.created_by.as_deref(),
            migration.idempotency_key.as_deref(),
            migration.rollback.as_deref(),
        ];
        if self.session.query(insert, &values).await?.tag != "INSERT 0 1" {
            return Err("a rule or trigger on the history swallowed the row")
                .context("recording a migration");
        }
        if let Some(key) = migration.idempotency_key.as_deref() {
            let insert = "insert into supabase_migrations.gantry_requests values ($1, $2)
                          on conflict (idempotency_key) do update set fingerprint = excluded.fingerprint";
            self.session
                .query(insert, &[Some(key), Some(fingerprint)])
                .await?;
        }
        Ok(version)
    }

    /// Changes a migration's row.
    pub(super) async fn patch(
        &mut self,
        version: &str,
        patch: &MigrationPatch,
    ) -> Result<(), Error> {
        let update = "update supabase_migrations.schema_migrations set name = coalesce($2, name),
                          rollback = case when $3::text is not null then array[$3::text] else rollback end
                      where version = $1";
        let answer = self
            .session
            .query(
                update,
                &[
                    Some(version),
                    patch.name.as_deref(),
                    patch.rollback.as_deref(),
                ],
            )
            .await?;
        if answer.tag == "UPDATE 1" {
            Ok(())
        } else {
            Err(Error::NotFound)
        }
    }

    /// Removes every migration from version `gte` on. Answers versions and rollbacks, the newest first.
    ///
    /// Versions that are no numbers are the customer's own (`init`) and have no place in the order.
    pub(super) async fn remove_from(
        &mut self,
        gte: &str,
    ) -> Result<Vec<(String, Option<Vec<String>>)>, Error> {
        let delete = r#"with gone as (
                            delete from supabase_migrations.schema_migrations
                            where version ~ '^[0-9]+$' and version collate "C" >= $1 returning version, rollback
                        ) select version, pg_catalog.to_json(pg_catalog.array_remove(rollback, null)) from gone
                          order by version collate "C" desc"#;
        let rows = self.session.query(delete, &[Some(gte)]).await?.rows.texts();
        rows.into_iter()
            .filter_map(|row| <[_; 2]>::try_from(row).ok())
            .map(parse_removed)
            .collect()
    }

    /// Runs a customer's text.
    pub(super) async fn run(&mut self, text: &str) -> Result<(), Error> {
        let ran = self.session.batch_execute(text).await;
        ran.map_err(|error| self.with_hint(error))?;
        self.ensure_open().await
    }

    /// Runs a customer's text; an error says which one it was.
    pub(super) async fn run_as(&mut self, name: &str, text: &str) -> Result<(), Error> {
        self.run(text).await.map_err(|error| match error {
            Error::Sql(text) => Error::Sql(format!("{text}CONTEXT:  {name}\n")),
            other => other,
        })
    }

    /// Whether what ran left the transaction as it was.
    pub(super) async fn ensure_open(&mut self) -> Result<(), Error> {
        let current = "select pg_catalog.pg_current_xact_id_if_assigned()";
        if self.session.in_transaction()
            && first(&mut self.session, current).await?.as_ref() == Some(&self.id)
        {
            return Ok(());
        }
        Err(Error::Rejected(
            "The migration ended the transaction it ran in: it may be applied in part. Look at the schema and the history before going on."
                .into(),
        ))
    }

    pub(super) async fn commit(mut self) -> Result<(), Error> {
        match self.session.batch_execute("commit").await?.as_str() {
            "COMMIT" => Ok(()),
            _ => Err(Error::Rejected("The migration was rolled back".into())),
        }
    }

    /// Adds what the bound was to an error that comes of one.
    pub(super) fn with_hint(&self, error: Error) -> Error {
        let Error::Sql(text) = error else {
            return error;
        };
        let hint = match text.split(": ").nth(1).map(str::trim) {
            Some("55P03") => format!(
                "HINT:  a migration waits at most {} ms for a lock\n",
                self.limits.lock_timeout.as_millis()
            ),
            Some("57014") => format!(
                "HINT:  a migration has {} ms in all\n",
                self.limits.session.time.as_millis()
            ),
            _ => String::new(),
        };
        Error::Sql(text + &hint)
    }
}

fn parse_removed(
    [version, rollback]: [Option<String>; 2],
) -> Result<(String, Option<Vec<String>>), Error> {
    let rollback = rollback
        .map(|texts| serde_json::from_str(&texts))
        .transpose()
        .context("reading a rollback")?;
    Ok((version.unwrap_or_default(), rollback))
}

/// The first value of the answer.
async fn first(session: &mut DatabaseSession, sql: &str) -> Result<Option<String>, Error> {
    Ok(session
        .simple_query(sql)
        .await?
        .rows
        .texts()
        .into_iter()
        .flatten()
        .flatten()
        .next())
}
