//! Deletes expired rows of exchanges in batches, so that tables stay small.

use chrono::{DateTime, TimeDelta, Utc};

use crate::{
    api::tokens,
    platform::{
        db::Db,
        error::{Context, Error},
    },
};

/// Maximum number of rows per statement.
const ROWS_MAX: i64 = 5_000;
/// Maximum number of batches per kind and round.
const BATCHES_MAX: usize = 50;
/// Retention of expired tokens of service identities, for support questions.
const RETENTION: TimeDelta = TimeDelta::days(7);

/// Deletes records of exchanged tokens that have expired, and tokens of service identities that
/// expired some time ago.
pub async fn clean(db: &Db, now: DateTime<Utc>) -> Result<(), Error> {
    let sql = "delete from exchanged_tokens where (trust_id, digest) in \
                   (select trust_id, digest from exchanged_tokens where expires_at <= $1 limit $2) \
               returning 1";
    for _ in 0..BATCHES_MAX {
        let deleted = db.query(sql, &[&now, &ROWS_MAX]).await;
        let deleted = deleted.context("deleting records of exchanged tokens")?;
        if i64::try_from(deleted.len()).is_ok_and(|count| count < ROWS_MAX) {
            break;
        }
    }
    for _ in 0..BATCHES_MAX {
        if tokens::delete_of_services(db, now - RETENTION, ROWS_MAX).await? < ROWS_MAX {
            break;
        }
    }
    Ok(())
}
