//! Deletes expired OAuth rows in batches, so that tables stay small.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use gantry_base::{clock::Clock, repeat};

use super::{CODE_LIFETIME, REQUEST_LIFETIME, registration};
use crate::{
    api::service_identities,
    platform::{
        db::Db,
        error::{Context, Error},
    },
};

/// Pause between rounds.
const PAUSE: Duration = Duration::from_mins(5);
/// Maximum number of rows per statement.
const ROWS_MAX: i64 = 5_000;
/// Maximum number of batches per kind and round.
const BATCHES_MAX: usize = 50;
/// Retention of expired rows. A replay after this time finds nothing, which is also rejected.
const RETENTION: TimeDelta = TimeDelta::days(7);
/// Retention of revoked grants, for support questions.
const GRANT_RETENTION: TimeDelta = TimeDelta::days(90);
/// Lifetime of a self-registered application without an approval.
const UNUSED_LIFETIME: TimeDelta = TimeDelta::days(30);

/// Runs until the process ends. Concurrent runs on several nodes are safe.
pub async fn run(db: Db, clock: Clock) {
    repeat::every(PAUSE, || async {
        if let Err(error) = clean(&db, clock.now()).await {
            tracing::warn!(%error, "expired OAuth rows could not be deleted; retrying in the next round");
        }
    })
    .await;
}

/// Deletes expired rows, also those of token exchanges, up to `BATCHES_MAX` batches of each kind.
pub async fn clean(db: &Db, now: DateTime<Utc>) -> Result<(), Error> {
    service_identities::cleanup::clean(db, now).await?;
    for (sql, before) in [
        (
            "delete from oauth_requests where id in (select id from oauth_requests where created_at <= $1 limit $2) returning 1",
            now - REQUEST_LIFETIME,
        ),
        (
            "delete from oauth_codes where digest in (select digest from oauth_codes where created_at <= $1 limit $2) returning 1",
            now - CODE_LIFETIME - RETENTION,
        ),
        (
            "delete from oauth_access_tokens where id in (select id from oauth_access_tokens where expires_at <= $1 limit $2) returning 1",
            now - RETENTION,
        ),
        (
            "delete from oauth_refresh_tokens where id in (select id from oauth_refresh_tokens where expires_at <= $1 limit $2) returning 1",
            now - RETENTION,
        ),
        // Revoked grants with their tokens, then grants without any token or code.
        (
            "delete from oauth_grants where id in (select id from oauth_grants where revoked_at <= $1 limit $2) returning 1",
            now - GRANT_RETENTION,
        ),
        (
            "delete from oauth_grants where id in (select id from oauth_grants g where created_at <= $1 \
             and not exists (select 1 from oauth_refresh_tokens r where r.grant_id = g.id) \
             and not exists (select 1 from oauth_access_tokens a where a.grant_id = g.id) \
             and not exists (select 1 from oauth_codes c where c.grant_id = g.id) limit $2) returning 1",
            now - RETENTION,
        ),
        (
            "delete from oauth_applications where id in (select id from oauth_applications where deleted_at <= $1 limit $2) returning 1",
            now - GRANT_RETENTION,
        ),
    ] {
        for _ in 0..BATCHES_MAX {
            let deleted = db
                .query(sql, &[&before, &ROWS_MAX])
                .await
                .context("deleting expired OAuth rows")?;
            if i64::try_from(deleted.len()).is_ok_and(|count| count < ROWS_MAX) {
                break;
            }
        }
    }
    for _ in 0..BATCHES_MAX {
        let mut client = db.client().await?;
        let transaction = client
            .transaction()
            .await
            .context("deleting expired OAuth rows")?;
        let deleted =
            registration::delete_unused(&transaction, None, now - UNUSED_LIFETIME, ROWS_MAX)
                .await?;
        transaction
            .commit()
            .await
            .context("deleting expired OAuth rows")?;
        if deleted < ROWS_MAX {
            break;
        }
    }
    Ok(())
}
