//! A transaction that changes the history of migrations.

use std::{collections::HashSet, time::Duration};

use gantry_base::clock::Clock;
use sha2::{Digest, Sha256};
use tokio::time::{Instant, sleep};

use super::{MigrationLimits, MigrationPatch, NewMigration, version};
use crate::{
    control::database_session::{
        DATABASE, OWNER,
        session::{ConnectTarget, DatabaseSession},
    },
    platform::error::{Context as _, Error},
};

/// Advisory lock of the history of one project: "gantry" in ASCII.
const LOCK: i64 = 0x6761_6e74_7279;
/// Advisory lock of a migration that is applied in segments. Its session holds it over all its
/// transactions; other changes of the history hold it shared, and never wait for it inside a
/// statement: `create index concurrently` waits for all statements of other sessions.
pub(super) const SEGMENTS_LOCK: i64 = LOCK + 1;
/// Time between two attempts to acquire [`SEGMENTS_LOCK`].
const POLL_INTERVAL: Duration = Duration::from_millis(50);

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

/// Columns that a history created by the command line may lack.
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

/// Fingerprints of requests by idempotency key. A separate table, because the columns of the
/// history belong to the command line; without a foreign key, which would prevent truncating the
/// history. A row is valid while the history contains its key.
const CREATE_REQUESTS: &str = "
    create table if not exists supabase_migrations.gantry_requests (idempotency_key text primary key, fingerprint text not null)";

/// Returns the columns of the history table, or an empty set without a table.
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
    Ok(answer.rows.values().collect())
}

impl NewMigration {
    /// Returns a hash that identifies the request, independent of its user.
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

/// An open transaction with an exclusive lock on the history. Dropping it rolls back.
pub(super) struct HistoryTransaction {
    pub(super) session: DatabaseSession,
    limits: MigrationLimits,
    /// Transaction id, to detect SQL that ends the transaction and begins another.
    pub(super) id: String,
    /// Whether the database has the table of progress.
    pub(super) has_progress: bool,
}

impl HistoryTransaction {
    /// Opens the transaction, acquires the lock and creates the history if it is missing.
    pub(super) async fn begin(
        target: &ConnectTarget,
        limits: MigrationLimits,
    ) -> Result<Self, Error> {
        let session = DatabaseSession::open(target, OWNER, DATABASE, &[], limits.session).await?;
        Self::begin_on(session, limits).await
    }

    /// Like [`HistoryTransaction::begin`], for a migration in segments: no other change of the
    /// history runs until the session ends.
    pub(super) async fn begin_exclusive(
        target: &ConnectTarget,
        limits: MigrationLimits,
    ) -> Result<Self, Error> {
        let mut session =
            DatabaseSession::open(target, OWNER, DATABASE, &[], limits.session).await?;
        let acquire = format!("select pg_catalog.pg_try_advisory_lock({SEGMENTS_LOCK})");
        let deadline = Instant::now() + limits.session.time;
        while first(&mut session, &acquire).await?.as_deref() != Some("t") {
            wait_for_segments(deadline).await?;
        }
        Self::begin_on(session, limits).await
    }

    async fn begin_on(
        mut session: DatabaseSession,
        limits: MigrationLimits,
    ) -> Result<Self, Error> {
        // Read committed independently of the customer's default, so that changes of the previous
        // lock holder are visible. After the lock was acquired, waits for other locks are short,
        // because later transactions queue behind them.
        let begin = format!(
            "begin isolation level read committed read write;
             select case when pg_catalog.pg_try_advisory_xact_lock_shared({SEGMENTS_LOCK})
                    then pg_catalog.pg_advisory_xact_lock({LOCK})::text is not null end;
             set lock_timeout = {}",
            limits.lock_timeout.as_millis()
        );
        let deadline = Instant::now() + limits.session.time;
        while first(&mut session, &begin).await?.is_none() {
            session.batch_execute("rollback").await?;
            wait_for_segments(deadline).await?;
        }
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
        let sql = "select pg_catalog.pg_current_xact_id(),
                          pg_catalog.to_regclass('supabase_migrations.gantry_progress') is not null";
        let rows = session.simple_query(sql).await?.rows;
        let [Some(id), has_progress] = rows
            .records()
            .next()
            .ok_or("it has none")
            .context("naming a transaction")?
        else {
            return Err("it is null").context("naming a transaction");
        };
        Ok(Self {
            session,
            limits,
            id,
            has_progress: has_progress.as_deref() == Some("t"),
        })
    }

    /// Returns the version under which this request was applied before.
    pub(super) async fn find_replay(
        &mut self,
        migration: &NewMigration,
        fingerprint: &str,
    ) -> Result<Option<String>, Error> {
        let Some(key) = migration.idempotency_key.as_deref() else {
            return Ok(None);
        };
        self.session.batch_execute(CREATE_REQUESTS).await?;
        // In a history without the table of requests, only the SQL can be compared.
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

    /// Returns the version of a migration that is applied now.
    async fn next_version(&mut self, clock: &Clock) -> Result<String, Error> {
        let latest = first(
            &mut self.session,
            r#"select version from supabase_migrations.schema_migrations
               where version ~ '^[0-9]{14}$' order by version collate "C" desc limit 1"#,
        );
        version::next(clock.now(), latest.await?.as_deref())
    }

    /// Inserts the migration's row and returns its version.
    pub(super) async fn record(
        &mut self,
        clock: &Clock,
        migration: &NewMigration,
        fingerprint: &str,
    ) -> Result<String, Error> {
        let version = match &migration.version {
            Some(version) => version.clone(),
            None => self.next_version(clock).await?,
        };
        let statements = match &migration.statements {
            Some(statements) => serde_json::to_string(statements),
            None => serde_json::to_string(&[&migration.query]),
        };
        let statements = statements.context("recording a migration")?;
        let insert = "insert into supabase_migrations.schema_migrations
                          (version, statements, name, created_by, idempotency_key, rollback)
                      values ($1, array(
                          select e.value from pg_catalog.json_array_elements_text($2::json)
                          with ordinality as e (value, number) order by e.number
                      ), $3, $4, $5, case when $6::text is not null then array[$6::text] end)";
        let values = [
            Some(version.as_str()),
            Some(&statements),
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

    /// Updates a migration's row.
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

    /// Deletes every migration from version `gte` on. Returns versions and rollbacks, the newest
    /// first.
    ///
    /// Versions other than numbers, such as `init`, have no position in the order and are kept.
    pub(super) async fn remove_from(
        &mut self,
        gte: &str,
    ) -> Result<Vec<(String, Option<Vec<String>>)>, Error> {
        let delete = r#"with gone as (
                            delete from supabase_migrations.schema_migrations
                            where version ~ '^[0-9]+$' and version collate "C" >= $1 returning version, rollback
                        ) select version, pg_catalog.to_json(pg_catalog.array_remove(rollback, null)) from gone
                          order by version collate "C" desc"#;
        let rows = self.session.query(delete, &[Some(gte)]).await?.rows;
        rows.records().map(parse_removed).collect()
    }

    /// Runs a customer's SQL.
    pub(super) async fn run(&mut self, text: &str) -> Result<(), Error> {
        let ran = self.session.batch_execute(text).await;
        ran.map_err(|error| self.with_hint(error))?;
        self.ensure_open().await
    }

    /// Runs a customer's SQL and names it in errors.
    pub(super) async fn run_as(&mut self, name: &str, text: &str) -> Result<(), Error> {
        self.run(text).await.map_err(|error| match error {
            Error::Sql(text) => Error::Sql(format!("{text}CONTEXT:  {name}\n")),
            other => other,
        })
    }

    /// Checks that the SQL did not end the transaction.
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
        self.commit_open().await
    }

    /// Commits and keeps the session.
    pub(super) async fn commit_open(&mut self) -> Result<(), Error> {
        match self.session.batch_execute("commit").await?.as_str() {
            "COMMIT" => Ok(()),
            _ => Err(Error::Rejected("The migration was rolled back".into())),
        }
    }

    /// Adds the exceeded limit to a timeout error.
    pub(super) fn with_hint(&self, error: Error) -> Error {
        let Error::Sql(text) = error else {
            return error;
        };
        let hint = match sql_state(&text) {
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

/// Returns the SQLSTATE of an error text of the API.
pub(super) fn sql_state(text: &str) -> Option<&str> {
    text.split(": ").nth(1).map(str::trim)
}

/// Waits until the next attempt to acquire [`SEGMENTS_LOCK`].
async fn wait_for_segments(deadline: Instant) -> Result<(), Error> {
    if Instant::now() + POLL_INTERVAL >= deadline {
        return Err(Error::Conflict(
            "Another migration of this project is still being applied; send the request again later"
                .into(),
        ));
    }
    sleep(POLL_INTERVAL).await;
    Ok(())
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

/// Returns the first value of the result.
pub(super) async fn first(
    session: &mut DatabaseSession,
    sql: &str,
) -> Result<Option<String>, Error> {
    let rows = session.simple_query(sql).await?.rows;
    Ok(rows.values().next())
}
