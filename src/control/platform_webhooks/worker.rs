//! Claims endpoints with a due attempt, and makes the attempts.
//!
//! A claim is a random id in the row of the endpoint, with a time at which it ends. So one node
//! at a time sends to an endpoint, every node takes part, and another one takes over after a node
//! was killed.

use std::{sync::Arc, time::Duration};

use chrono::{DateTime, TimeDelta, Utc};
use gantry_base::{clock::Ticks, repeat::pause_until};
use tokio::{sync::Semaphore, task::JoinSet, time::timeout};
use uuid::Uuid;

use super::{attempt, history, queue};
use crate::{
    control::context::ControlContext,
    platform::error::{Context, Error},
};

/// Concurrent attempts of a node: with endpoints that accepted the last event, and with others.
const PROVEN_MAX: usize = 64;
const UNPROVEN_MAX: usize = 32;
/// Concurrent attempts with the endpoints of an organization, of both kinds and all nodes.
const ORGANIZATION_MAX: i64 = 8;
/// Duration of a claim. Longer than an attempt takes.
const CLAIM: TimeDelta = TimeDelta::seconds(60);
/// Longest pause between searches: other nodes queue attempts as well.
const SEARCH_INTERVAL: Duration = Duration::from_secs(5);
/// Interval of the removal of old deliveries, in milliseconds.
const REMOVAL_INTERVAL: Ticks = 3_600_000;

/// Attempts of one kind.
struct Lane {
    /// Whether the last attempt of their endpoints succeeded.
    proven: bool,
    places: Arc<Semaphore>,
}

/// The attempts of this process.
struct Worker {
    context: ControlContext,
    lanes: [Lane; 2],
    attempts: JoinSet<()>,
}

/// Delivers events until the process ends.
pub async fn run(context: ControlContext) {
    let mut worker = Worker::new(context);
    let mut next_removal = 0;
    loop {
        let context = &worker.context;
        if context.clock.ticks() >= next_removal {
            next_removal = context.clock.ticks() + REMOVAL_INTERVAL;
            if let Err(error) = history::remove_expired(&context.db, context.clock.now()).await {
                tracing::warn!(%error, "failed to remove old deliveries of webhooks; retrying in an hour");
            }
        }
        if let Err(error) = worker.begin().await {
            tracing::warn!(%error, "failed to look for events of webhooks; retrying");
        }
        worker.rest().await;
    }
}

/// Makes all attempts that are due, and returns when they have ended.
pub async fn pass(context: &ControlContext) -> Result<(), Error> {
    let mut worker = Worker::new(context.clone());
    loop {
        worker.begin().await?;
        if worker.attempts.join_next().await.is_none() {
            return Ok(());
        }
    }
}

impl Worker {
    fn new(context: ControlContext) -> Self {
        let lane = |proven, places| Lane {
            proven,
            places: Arc::new(Semaphore::new(places)),
        };
        Self {
            context,
            lanes: [lane(true, PROVEN_MAX), lane(false, UNPROVEN_MAX)],
            attempts: JoinSet::new(),
        }
    }

    /// Queues new events, and begins attempts that are due while there are places for them.
    async fn begin(&mut self) -> Result<(), Error> {
        queue::queue_all(&self.context).await?;
        for lane in &self.lanes {
            let claim = self.context.entropy.uuid();
            for endpoint in claim_due(&self.context, lane, claim).await? {
                // There is a place: claims take no more than are free.
                let place = lane.places.clone().try_acquire_owned();
                let context = self.context.clone();
                self.attempts.spawn(async move {
                    let _place = place;
                    if let Err(error) = attempt::make(&context, endpoint, claim).await {
                        tracing::warn!(%endpoint, %error, "an attempt of a webhook was not recorded; it is repeated when its claim ends");
                    }
                });
            }
        }
        Ok(())
    }

    /// Waits until an attempt ends or becomes due, or events may have been added.
    async fn rest(&mut self) {
        let pause = pause_until_due(&self.context).await;
        let pause = pause.unwrap_or(SEARCH_INTERVAL);
        let woken = async {
            tokio::select! {
                Some(_) = self.attempts.join_next() => {}
                () = self.context.platform_webhooks.bell.notified() => {}
            }
        };
        // Woken or not, it is searched again.
        let _ = timeout(pause, woken).await;
        while self.attempts.try_join_next().is_some() {}
    }
}

/// Claims endpoints with a due attempt, those that wait longest first.
async fn claim_due(context: &ControlContext, lane: &Lane, claim: Uuid) -> Result<Vec<Uuid>, Error> {
    let free = i64::try_from(lane.places.available_permits()).unwrap_or(i64::MAX);
    if free == 0 {
        return Ok(Vec::new());
    }
    let sql = "with due as ( \
                   select id, due_at, row_number() over \
                   (partition by organization_id order by due_at, id) + ( \
                       select count(*) from webhook_endpoints b \
                       where b.organization_id = e.organization_id and b.claimed_until > $1 \
                   ) as place from webhook_endpoints e \
                   where e.due_at <= $1 and coalesce(e.claimed_until <= $1, true) \
                   and e.proven = $2 \
               ), chosen as ( \
                   select e.id from webhook_endpoints e join due on due.id = e.id \
                   where due.place <= $3 and coalesce(e.claimed_until <= $1, true) \
                   order by due.due_at, e.id limit $4 for update of e skip locked \
               ) \
               update webhook_endpoints e set claim = $5, claimed_until = $6 \
               from chosen where e.id = chosen.id returning e.id";
    let now = context.clock.now();
    let until = now + CLAIM;
    let rows = context
        .db
        .query(
            sql,
            &[&now, &lane.proven, &ORGANIZATION_MAX, &free, &claim, &until],
        )
        .await
        .context("claiming webhook endpoints")?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Returns the time until the next attempt is due.
async fn pause_until_due(context: &ControlContext) -> Result<Duration, Error> {
    let sql = "select min(greatest(due_at, claimed_until)) from webhook_endpoints \
               where greatest(due_at, claimed_until) > $1 and due_at is not null";
    let now = context.clock.now();
    let rows = context.db.query(sql, &[&now]).await;
    let rows = rows.context("looking for the next attempt of a webhook")?;
    let due: Option<DateTime<Utc>> = rows.first().and_then(|row| row.get(0));
    Ok(due.map_or(SEARCH_INTERVAL, |due| {
        pause_until(due, now, SEARCH_INTERVAL)
    }))
}
