//! What is over goes away, some of it at a time, so that tables stay as large as what can still matter.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use super::{CODE_LIFETIME, REQUEST_LIFETIME, registration};
use crate::base::{
    clock::Clock,
    db::Db,
    error::{Context, Error},
};

/// Pause between rounds.
const PAUSE: Duration = Duration::from_mins(5);
/// Rows that go in one statement.
const ROWS_MAX: i64 = 5_000;
/// Statements of each kind in one round.
const BATCHES_MAX: usize = 50;
/// How long what is over is kept: a replay after that finds nothing, which refuses it as well.
const RETENTION: TimeDelta = TimeDelta::days(7);
/// How long what ended is kept, for who asks why.
const GRANT_RETENTION: TimeDelta = TimeDelta::days(90);
/// How long an application that registered itself waits for the first who approves it.
const UNUSED_LIFETIME: TimeDelta = TimeDelta::days(30);

/// Runs until the process ends. Several nodes may: each takes what is there.
pub async fn run(db: Db, clock: Clock) {
    let mut tick = tokio::time::interval(PAUSE);
    loop {
        tick.tick().await;
        if let Err(error) = clean(&db, clock.now()).await {
            tracing::warn!(%error, "what is over of OAuth was not cleared; it will be tried again");
        }
    }
}

/// One round.
pub async fn clean(db: &Db, now: DateTime<Utc>) -> Result<(), Error> {
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
        // What ended, with what was issued for it; and what nothing live is left of.
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
            let gone = db
                .query(sql, &[&before, &ROWS_MAX])
                .await
                .context("clearing what is over of OAuth")?;
            if i64::try_from(gone.len()).is_ok_and(|gone| gone < ROWS_MAX) {
                break;
            }
        }
    }
    for _ in 0..BATCHES_MAX {
        let mut client = db.client().await?;
        let transaction = client
            .transaction()
            .await
            .context("clearing what is over of OAuth")?;
        let gone = registration::delete_unused(&transaction, None, now - UNUSED_LIFETIME, ROWS_MAX)
            .await?;
        transaction
            .commit()
            .await
            .context("clearing what is over of OAuth")?;
        if gone < ROWS_MAX {
            break;
        }
    }
    Ok(())
}
