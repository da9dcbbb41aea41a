//! Removal of old events. Numbers never start again.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use gantry_base::repeat;

use crate::platform::{
    context::PlatformContext,
    db::Db,
    error::{Context, Error},
};

/// Time for which events are kept, in days.
pub const KEPT_DAYS: i64 = 30;
/// Events that are kept for one organization. Older ones are removed earlier.
pub const KEPT_MAX: i64 = 100_000;
/// Events of one organization that one statement removes.
const REMOVED_MAX: i64 = 5_000;
/// Interval of passes.
const INTERVAL: Duration = Duration::from_mins(10);
/// Statements of one pass.
const STATEMENTS_MAX: usize = 100;

/// Removes old events periodically. Never returns.
pub async fn run(context: PlatformContext) {
    repeat::every(INTERVAL, || async {
        for _ in 0..STATEMENTS_MAX {
            match remove_expired(&context.db, context.clock.now()).await {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(%error, "old events could not be removed; retrying");
                    break;
                }
            }
        }
    })
    .await;
}

/// Removes events that were kept for long enough, a bounded number of them. Returns how many.
pub async fn remove_expired(db: &Db, now: DateTime<Utc>) -> Result<u64, Error> {
    // Up to a number, never by time alone: the rest has no gaps even if clocks of nodes differ.
    let sql = "with old as (
                   select organization_id, number from events where at < $1 order by at limit $3
               ), due as (
                   select organization_id, max(number) as number from (
                       select * from old
                       union all
                       select organization_id, number - $2 from event_heads where number > $2
                   ) ends group by organization_id
               ), removed as (
                   select e.organization_id, e.number from due d
                   cross join lateral (
                       select x.organization_id, x.number from events x
                       where x.organization_id = d.organization_id and x.number <= d.number
                       order by x.number limit $3
                   ) e
               )
               delete from events e using removed r
               where e.organization_id = r.organization_id and e.number = r.number
               returning 1";
    let due = now - TimeDelta::days(KEPT_DAYS);
    let rows = db.query(sql, &[&due, &KEPT_MAX, &REMOVED_MAX]).await;
    let rows = rows.context("removing events")?;
    Ok(rows.len() as u64)
}
