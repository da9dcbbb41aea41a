//! The queues of endpoints.
//!
//! An endpoint follows the log of its organization. Events that it is subscribed to are copied into
//! its queue while that has room; further ones stay in the log. A copy has an id of its own, and a
//! pending row for its first attempt. The next event is tried after the earlier one was accepted
//! or failed for good. Tests and retries by hand do not wait for the queue.

use chrono::{DateTime, Utc};
use gantry_base::{clock::Entropy, ids::OrganizationId};
use tokio_postgres::{Row, Transaction};
use uuid::Uuid;

use crate::{
    control::context::ControlContext,
    platform::{
        error::{Context, Error},
        events::{Event, EventEnvelope},
    },
};

/// Events in the queue of an endpoint, at most.
pub const QUEUE_MAX: i64 = 100;
/// Tests and retries by hand that wait, at most.
const MANUAL_MAX: i64 = 20;
/// Endpoints of one page of a search.
const BATCH: i64 = 256;

/// The condition that event `v` is after the position of endpoint `e`, and one of its events.
macro_rules! is_for_endpoint {
    () => {
        "v.organization_id = e.organization_id and v.number > e.position \
         and ('*' = any(e.event_types) or v.type = any(e.event_types)) \
         and (e.project_id is null \
              or v.project_ref = (select p.ref from projects p where p.id = e.project_id))"
    };
}

/// Statements that set the time of the next attempt of endpoint `$1` from its rows.
macro_rules! next_due {
    () => {
        "(select d.attempted_at from webhook_deliveries d \
          join webhook_events v on v.id = d.event_id \
          where d.endpoint_id = $1 and d.status = 'pending' \
          order by d.attempt is not null, v.number, d.number limit 1)"
    };
}
pub(super) use next_due;

/// Queues events of the logs for all endpoints that have room.
pub(super) async fn queue_all(context: &ControlContext) -> Result<(), Error> {
    let doing = "looking for events of webhooks";
    // Most events concern few endpoints: the others move on with one statement.
    let sql = concat!(
        "update webhook_endpoints e set position = h.number from event_heads h \
         where h.organization_id = e.organization_id and e.position < h.number \
         and (not e.enabled or not exists (select from events v where v.number <= h.number and ",
        is_for_endpoint!(),
        "))"
    );
    context.db.query(sql, &[]).await.context(doing)?;
    let sql = "select e.id from webhook_endpoints e \
               join event_heads h on h.organization_id = e.organization_id \
               where e.enabled and e.position < h.number and e.id > $1 \
               and (select count(*) from webhook_deliveries d where d.endpoint_id = e.id \
                    and d.status = 'pending' and d.attempt is not null) < $2 \
               order by e.id limit $3";
    let mut after = Uuid::nil();
    loop {
        let rows = context.db.query(sql, &[&after, &QUEUE_MAX, &BATCH]).await;
        let rows = rows.context(doing)?;
        let Some(last) = rows.last() else {
            return Ok(());
        };
        after = last.get(0);
        for row in &rows {
            let endpoint: Uuid = row.get(0);
            // A failure does not affect other endpoints.
            if let Err(error) = queue(context, endpoint).await {
                tracing::warn!(%endpoint, %error, "failed to queue events of a webhook; retrying");
            }
        }
    }
}

async fn queue(context: &ControlContext, endpoint: Uuid) -> Result<(), Error> {
    let doing = "queueing events of a webhook";
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let now = context.clock.now();
    queue_in(&transaction, endpoint, &context.entropy, now).await?;
    transaction.commit().await.context(doing)
}

/// Queues the events of one endpoint. Does nothing if another transaction has its row.
pub async fn queue_in(
    transaction: &Transaction<'_>,
    endpoint: Uuid,
    entropy: &Entropy,
    now: DateTime<Utc>,
) -> Result<(), Error> {
    let doing = "queueing events of a webhook";
    let sql = "select h.number, o.slug, \
               (select count(*) from webhook_deliveries d where d.endpoint_id = e.id \
                and d.status = 'pending' and d.attempt is not null) \
               from webhook_endpoints e join organizations o on o.id = e.organization_id \
               join event_heads h on h.organization_id = e.organization_id \
               where e.id = $1 and e.enabled for update of e skip locked";
    let row = transaction.query_opt(sql, &[&endpoint]).await;
    let Some(row) = row.context(doing)? else {
        return Ok(());
    };
    let (head, slug): (i64, &str) = (row.get(0), row.get(1));
    let room = QUEUE_MAX - row.get::<_, i64>(2);
    let sql = concat!(
        "select v.number, v.id, v.type, v.at, v.project_ref, v.actor, v.payload \
         from webhook_endpoints e join events v on ",
        is_for_endpoint!(),
        " where e.id = $1 and v.number <= $2 order by v.number limit $3"
    );
    let rows = transaction
        .query(sql, &[&endpoint, &head, &room.max(0)])
        .await
        .context(doing)?;
    let is_all = i64::try_from(rows.len()).is_ok_and(|found| found < room);
    let last = rows.last().map(|row| row.get::<_, i64>(0));
    let position = last.filter(|_| !is_all).or(is_all.then_some(head));
    let copies = rows.iter().map(|row| {
        let mut envelope = read(row).envelope(slug);
        envelope.id = entropy.uuid_v7(now);
        envelope
    });
    let copies: Vec<EventEnvelope> = copies.collect();
    insert(transaction, endpoint, &copies, Some(1), entropy, now).await?;
    let sql = "update webhook_endpoints set position = coalesce($2, position), \
               due_at = case when $3 then coalesce(due_at, $4) else due_at end where id = $1";
    transaction
        .execute(sql, &[&endpoint, &position, &!copies.is_empty(), &now])
        .await
        .context(doing)
        .map(drop)
}

fn read(row: &Row) -> Event {
    Event {
        number: row.get(0),
        id: row.get(1),
        name: row.get(2),
        at: row.get(3),
        project: row.get(4),
        actor: row.get(5),
        payload: row.get(6),
    }
}

/// Inserts events with a pending attempt each. Returns the ids of the deliveries.
async fn insert(
    transaction: &Transaction<'_>,
    endpoint: Uuid,
    events: &[EventEnvelope],
    attempt: Option<i16>,
    entropy: &Entropy,
    now: DateTime<Utc>,
) -> Result<Vec<Uuid>, Error> {
    let doing = "queueing events of a webhook";
    let mut ids = Vec::with_capacity(events.len());
    for event in events {
        let body = serde_json::to_string(event).context(doing)?;
        let sql = "insert into webhook_events (id, endpoint_id, body) values ($1, $2, $3)";
        transaction
            .execute(sql, &[&event.id, &endpoint, &body])
            .await
            .context(doing)?;
        ids.push(
            insert_attempt(
                transaction,
                endpoint,
                event.id,
                attempt,
                entropy,
                (now, now),
            )
            .await?,
        );
    }
    Ok(ids)
}

/// Inserts an attempt that is pending until `at`. Returns its id.
pub(super) async fn insert_attempt(
    transaction: &Transaction<'_>,
    endpoint: Uuid,
    event: Uuid,
    attempt: Option<i16>,
    entropy: &Entropy,
    (now, at): (DateTime<Utc>, DateTime<Utc>),
) -> Result<Uuid, Error> {
    let id = entropy.uuid_v7(now);
    let sql = "insert into webhook_deliveries \
               (id, endpoint_id, event_id, attempt, status, attempted_at) \
               values ($1, $2, $3, $4, 'pending', $5)";
    transaction
        .execute(sql, &[&id, &endpoint, &event, &attempt, &at])
        .await
        .context("queueing an attempt of a webhook")?;
    Ok(id)
}

/// An event of a test or retry by hand.
#[derive(Debug)]
pub enum ManualEvent {
    /// A new event.
    Test(EventEnvelope),
    /// An event that was delivered, or failed.
    Repeated(Uuid),
}

/// Queues a single attempt, before the events of the queue. The row of the endpoint is locked.
/// Returns the id of the delivery.
///
/// Errors: [`Error::Rejected`] if too many of them wait.
pub async fn queue_manual(
    transaction: &Transaction<'_>,
    endpoint: Uuid,
    event: ManualEvent,
    entropy: &Entropy,
    now: DateTime<Utc>,
) -> Result<Uuid, Error> {
    let doing = "queueing an attempt of a webhook";
    let sql = "select count(*) from webhook_deliveries \
               where endpoint_id = $1 and status = 'pending' and attempt is null";
    let row = transaction.query_one(sql, &[&endpoint]).await;
    if row.context(doing)?.get::<_, i64>(0) >= MANUAL_MAX {
        let text = format!("{MANUAL_MAX} tests and retries of this endpoint wait; try again later");
        return Err(Error::Rejected(text.into()));
    }
    let id = match event {
        ManualEvent::Test(event) => {
            let ids = insert(transaction, endpoint, &[event], None, entropy, now).await?;
            ids.first().copied().unwrap_or_default()
        }
        ManualEvent::Repeated(event) => {
            insert_attempt(transaction, endpoint, event, None, entropy, (now, now)).await?
        }
    };
    let sql = "update webhook_endpoints set due_at = least(due_at, $2) where id = $1";
    transaction
        .execute(sql, &[&endpoint, &now])
        .await
        .context(doing)?;
    Ok(id)
}

/// Skips all events up to now, when an endpoint is disabled or enabled. Queued ones stay in the
/// history as skipped. The row of the endpoint is locked.
pub async fn skip_all(
    transaction: &Transaction<'_>,
    endpoint: Uuid,
    now: DateTime<Utc>,
) -> Result<(), Error> {
    let doing = "skipping events of a webhook";
    let sql = "update webhook_deliveries set status = 'skipped', attempted_at = $2, \
               error_code = 'endpoint_disabled', error_message = 'the endpoint was disabled' \
               where endpoint_id = $1 and status = 'pending'";
    transaction
        .execute(sql, &[&endpoint, &now])
        .await
        .context(doing)?;
    let sql = "update webhook_endpoints e set due_at = null, position = greatest(e.position, \
               (select h.number from event_heads h where h.organization_id = e.organization_id)) \
               where id = $1";
    transaction
        .execute(sql, &[&endpoint])
        .await
        .context(doing)
        .map(drop)
}

/// Lets the endpoints of projects follow the log of another organization, in the transaction that
/// transfers the projects and before it appends its events. Events of the former one are queued.
pub async fn follow_projects(
    transaction: &Transaction<'_>,
    projects: &[i64],
    target: OrganizationId,
    entropy: &Entropy,
    now: DateTime<Utc>,
) -> Result<(), Error> {
    let doing = "transferring the webhooks of a project";
    let sql = "select id from webhook_endpoints where project_id = any($1) order by id for update";
    let rows = transaction.query(sql, &[&projects]).await.context(doing)?;
    for row in &rows {
        queue_in(transaction, row.get(0), entropy, now).await?;
    }
    let sql = "update webhook_endpoints set organization_id = $2, position = coalesce( \
               (select number from event_heads where organization_id = $2), 0) \
               where project_id = any($1)";
    transaction
        .execute(sql, &[&projects, &target.0])
        .await
        .context(doing)
        .map(drop)
}
