//! Reading the log: pages for users, newest first, and exports in ascending order.

use chrono::{DateTime, Utc};
use serde_json::value::RawValue;
use tokio_postgres::Row;
use uuid::Uuid;

use super::{AuditEntry, Chain, Hash};
use crate::platform::{
    db::Db,
    error::{Context, Error},
};

/// Entries of one export.
pub const EXPORT_MAX: i64 = 1_000;

/// Conditions for the entries of a page.
#[derive(Debug, Default)]
pub struct AuditFilter {
    /// Entries with a lower number.
    pub before: Option<i64>,
    /// Entries of this user.
    pub actor: Option<Uuid>,
    /// Entries of this operation.
    pub operation: Option<String>,
    /// Entries of this slug or ref.
    pub subject: Option<String>,
    /// `true`: successful requests. `false`: rejected or failed ones.
    pub succeeded: Option<bool>,
    /// Entries at or after this time.
    pub since: Option<DateTime<Utc>>,
    /// Entries before this time.
    pub until: Option<DateTime<Utc>>,
    /// Number of entries, at most.
    pub limit: i64,
}

macro_rules! entries {
    ($rest:literal) => {
        concat!(
            "select chain, number, at, actor, token, address, request_id, operation, subject, status, before, after, previous, hash, client \
             from audit_entries where chain = $1 ",
            $rest
        )
    };
}

/// Returns entries of a chain, newest first.
pub async fn page(db: &Db, chain: Chain, filter: &AuditFilter) -> Result<Vec<AuditEntry>, Error> {
    let sql = entries!(
        "and ($2::bigint is null or number < $2) and ($3::uuid is null or actor = $3) and ($4::text is null or operation = $4) \
         and ($5::text is null or subject = $5) and ($6::boolean is null or (status < 400) = $6) \
         and ($7::timestamptz is null or at >= $7) and ($8::timestamptz is null or at < $8) order by number desc limit $9"
    );
    let AuditFilter {
        before,
        actor,
        operation,
        subject,
        succeeded,
        since,
        until,
        limit,
    } = filter;
    let chain = chain.to_string();
    let rows = db
        .query(
            sql,
            &[
                &chain, before, actor, operation, subject, succeeded, since, until, limit,
            ],
        )
        .await;
    rows.context("reading the audit log")?
        .iter()
        .map(read)
        .collect()
}

/// Exports at most [`EXPORT_MAX`] entries of a chain after the number `after`, in ascending order.
/// Returns lines of JSON and the number of the last entry.
pub async fn export(db: &Db, chain: Chain, after: i64) -> Result<(Vec<u8>, i64), Error> {
    let sql = entries!("and number > $2 order by number limit $3");
    let rows = db
        .query(sql, &[&chain.to_string(), &after, &EXPORT_MAX])
        .await
        .context("reading the audit log")?;
    let mut lines = Vec::new();
    let mut last = after;
    for row in &rows {
        let entry = read(row)?;
        last = entry.number;
        serde_json::to_writer(&mut lines, &entry).context("writing the audit log")?;
        lines.push(b'\n');
    }
    Ok((lines, last))
}

fn read(row: &Row) -> Result<AuditEntry, Error> {
    let json = |column| {
        let text: Option<String> = row.get(column);
        text.map(RawValue::from_string)
            .transpose()
            .context("reading the audit log")
    };
    Ok(AuditEntry {
        chain: row.get(0),
        number: row.get(1),
        at: row.get(2),
        actor: row.get(3),
        token: row.get(4),
        address: row.get(5),
        request_id: row.get(6),
        operation: row.get(7),
        subject: row.get(8),
        status: row.get(9),
        before: json(10)?,
        after: json(11)?,
        client: row.get(14),
        previous: Hash::read(row.get(12))?,
        hash: Hash::read(row.get(13))?,
    })
}
