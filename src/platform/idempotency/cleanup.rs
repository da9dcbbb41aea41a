//! Deletes expired keys in batches.

use std::time::Duration;

use chrono::{DateTime, Utc};
use gantry_base::{clock::Clock, repeat};

use crate::platform::{
    db::Db,
    error::{Context, Error},
};

/// Pause between rounds.
const PAUSE: Duration = Duration::from_mins(5);
/// Maximum number of rows per statement. An answer has up to 1 MiB.
const ROWS_MAX: i64 = 1_000;
/// Maximum number of statements per round.
const BATCHES_MAX: usize = 100;

/// Runs until the process ends. Concurrent runs on several nodes are safe.
pub async fn run(db: Db, clock: Clock) {
    repeat::every(PAUSE, || async {
        if let Err(error) = clean(&db, clock.now()).await {
            tracing::warn!(%error, "expired idempotency keys could not be deleted; retrying in the next round");
        }
    })
    .await;
}

/// Deletes expired keys, up to `BATCHES_MAX` batches.
pub async fn clean(db: &Db, now: DateTime<Utc>) -> Result<(), Error> {
    let sql = "delete from idempotency_keys where (caller, target, key) in (select caller, target, key from idempotency_keys \
               where expires_at <= $1 order by expires_at limit $2 for update skip locked) returning 1";
    for _ in 0..BATCHES_MAX {
        let deleted = db.query(sql, &[&now, &ROWS_MAX]).await;
        let deleted = deleted.context("deleting expired idempotency keys")?;
        if i64::try_from(deleted.len()).is_ok_and(|count| count < ROWS_MAX) {
            break;
        }
    }
    Ok(())
}
