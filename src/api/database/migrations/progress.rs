//! Progress of a migration that is applied in segments.
//!
//! The table is beside the history, in the customer's database and owned by the same role, so that
//! a segment and its record are one transaction.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{NewMigration, history::HistoryTransaction};
use crate::platform::error::{Context as _, Error};

/// One row for each unfinished migration: the request, the number of applied bytes of its text with
/// their SHA-256, and the statement outside of a transaction that may have begun to run.
const CREATE_PROGRESS: &str = "
    create table if not exists supabase_migrations.gantry_progress (
        request text primary key, applied bigint not null, digest text not null, attempt text)";

/// Progress of one migration.
pub(super) struct MigrationProgress {
    request: String,
    /// Number of bytes of the text that are applied.
    pub(super) applied: usize,
    /// Hash of the applied bytes.
    hash: Sha256,
    /// Statement outside of a transaction that may have begun to run.
    pub(super) attempt: Option<StandaloneAttempt>,
}

/// A statement outside of a transaction, with the state of the database before its first run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StandaloneAttempt {
    /// SHA-256 of the statement.
    pub(super) statement: String,
    /// Object id of its table, index, partition or database, if that existed.
    pub(super) object: Option<String>,
    /// Name of the index that it creates.
    pub(super) name: Option<String>,
    /// Whether an interruption leaves invalid indexes.
    pub(super) builds_indexes: bool,
    /// Object ids of the indexes that existed: of the table, or for `reindex` the invalid ones.
    pub(super) indexes: Vec<String>,
}

/// Returns the name of a request: its key, or the hash of the request without a key.
fn request_name(migration: &NewMigration) -> String {
    match &migration.idempotency_key {
        Some(key) => format!("key {key}"),
        None => format!("sql {}", migration.fingerprint("apply")),
    }
}

/// Returns the progress of an unfinished migration.
///
/// Errors: [`Error::Conflict`] if the applied part of the text has changed.
pub(super) async fn find(
    history: &mut HistoryTransaction,
    migration: &NewMigration,
) -> Result<Option<MigrationProgress>, Error> {
    let request = request_name(migration);
    let sql = "select applied, digest, attempt from supabase_migrations.gantry_progress where request = $1";
    let rows = history.session.query(sql, &[Some(&request)]).await?.rows;
    let Some(row) = rows.texts().into_iter().next() else {
        return Ok(None);
    };
    let Ok([Some(applied), Some(digest), attempt]) = <[_; 3]>::try_from(row) else {
        return Err("a column is missing").context("reading the progress of a migration");
    };
    let prefix = applied
        .parse()
        .ok()
        .and_then(|applied: usize| migration.query.get(..applied));
    let hash = Sha256::new_with_prefix(prefix.unwrap_or_default());
    let (Some(prefix), true) = (prefix, hex::encode(hash.clone().finalize()) == digest) else {
        return Err(Error::Conflict(
            "A part of this migration is applied, and that part of its text has changed since. Send the text with that part \
             unchanged, or delete its row from supabase_migrations.gantry_progress to start over."
                .into(),
        ));
    };
    let attempt = attempt
        .map(|text| serde_json::from_str(&text))
        .transpose()
        .context("reading the progress of a migration")?;
    Ok(Some(MigrationProgress {
        request,
        applied: prefix.len(),
        hash,
        attempt,
    }))
}

impl MigrationProgress {
    /// Returns the progress of the request, which begins if there is none.
    pub(super) async fn find_or_begin(
        history: &mut HistoryTransaction,
        migration: &NewMigration,
    ) -> Result<Self, Error> {
        history.session.batch_execute(CREATE_PROGRESS).await?;
        if let Some(found) = find(history, migration).await? {
            return Ok(found);
        }
        let begun = Self {
            request: request_name(migration),
            applied: 0,
            hash: Sha256::new(),
            attempt: None,
        };
        let sql = "insert into supabase_migrations.gantry_progress values ($1, 0, $2, null)";
        let digest = hex::encode(begun.hash.clone().finalize());
        let values = [Some(begun.request.as_str()), Some(&digest)];
        expect_row(
            &history.session.query(sql, &values).await?.tag,
            "INSERT 0 1",
        )?;
        Ok(begun)
    }

    /// Records a statement that is about to run outside of a transaction.
    pub(super) async fn record_attempt(
        &mut self,
        history: &mut HistoryTransaction,
        attempt: StandaloneAttempt,
    ) -> Result<(), Error> {
        let text = serde_json::to_string(&attempt).context("writing an attempt")?;
        let sql = "update supabase_migrations.gantry_progress set attempt = $3 where request = $1 and applied = $2::bigint";
        let applied = self.applied.to_string();
        let values = [Some(self.request.as_str()), Some(&applied), Some(&text)];
        expect_row(&history.session.query(sql, &values).await?.tag, "UPDATE 1")?;
        self.attempt = Some(attempt);
        Ok(())
    }

    /// Records the text up to `end` as applied. [`MigrationProgress::advance`] follows the commit.
    pub(super) async fn record(
        &self,
        history: &mut HistoryTransaction,
        text: &str,
        end: usize,
    ) -> Result<(), Error> {
        let hash = self.hash.clone().chain_update(&text[self.applied..end]);
        let sql = "update supabase_migrations.gantry_progress set applied = $3::bigint, digest = $4, attempt = null
                   where request = $1 and applied = $2::bigint";
        let (before, after) = (self.applied.to_string(), end.to_string());
        let digest = hex::encode(hash.finalize());
        let values = [
            Some(self.request.as_str()),
            Some(&before),
            Some(&after),
            Some(&digest),
        ];
        expect_row(&history.session.query(sql, &values).await?.tag, "UPDATE 1")
    }

    /// Removes the row of a migration that is complete.
    pub(super) async fn remove(&self, history: &mut HistoryTransaction) -> Result<(), Error> {
        let sql = "delete from supabase_migrations.gantry_progress where request = $1 and applied = $2::bigint";
        let before = self.applied.to_string();
        let values = [Some(self.request.as_str()), Some(&before)];
        expect_row(&history.session.query(sql, &values).await?.tag, "DELETE 1")
    }

    /// Follows a committed record.
    pub(super) fn advance(&mut self, text: &str, end: usize) {
        self.hash.update(&text[self.applied..end]);
        self.applied = end;
        self.attempt = None;
    }
}

/// Rejects a change of another number of rows, by another session or a trigger.
fn expect_row(tag: &str, expected: &str) -> Result<(), Error> {
    if tag == expected {
        return Ok(());
    }
    Err(Error::Conflict(
        "The progress of this migration was changed by another session; look at the schema before going on".into(),
    ))
}
