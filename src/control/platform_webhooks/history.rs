//! The history of an endpoint: its deliveries, one for each attempt, newest first.

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Map, Value};
use tokio_postgres::Row;
use uuid::Uuid;

use super::endpoint::WebhookScope;
use crate::platform::{
    db::Db,
    error::{Context, Error, WebhookProblem},
};

/// Time for which deliveries are listed and can be retried.
pub const KEPT: TimeDelta = TimeDelta::days(14);
/// Deliveries of an endpoint that are kept. Older ones are removed earlier.
const KEPT_MAX: i64 = 5_000;
/// Rows that one statement removes.
const REMOVED_MAX: i64 = 5_000;

/// A delivery: an attempt, or a skipped one.
#[derive(Debug)]
pub struct WebhookDelivery {
    /// Id.
    pub id: Uuid,
    /// The endpoint.
    pub endpoint: Uuid,
    /// Id of the event, equal for all attempts.
    pub event_id: Uuid,
    /// `pending`, `success`, `failure` or `skipped`.
    pub status: String,
    /// Status of the response; 0 without one.
    pub response_code: i32,
    /// Header fields of the response.
    pub response_headers: Map<String, Value>,
    /// Body of the response.
    pub response_body: Option<String>,
    /// Code of the failure.
    pub error_code: Option<String>,
    /// Text of the failure.
    pub error_message: Option<String>,
    /// Time of the attempt; of a pending one the earliest time.
    pub attempted_at: DateTime<Utc>,
    /// The event as delivered.
    pub event: Value,
}

/// A statement that reads deliveries `d` for [`read`].
macro_rules! select_deliveries {
    ($rest:literal) => {
        concat!(
            "select d.id, d.endpoint_id, d.event_id, d.status, d.response_code, \
             d.response_headers, d.response_body, d.error_code, d.error_message, d.attempted_at, \
             v.body from webhook_deliveries d join webhook_events v on v.id = d.event_id ",
            $rest
        )
    };
}

fn read(row: &Row) -> Result<WebhookDelivery, Error> {
    let doing = "reading a delivery of a webhook";
    let headers: Option<&str> = row.get(5);
    let headers = headers.map(serde_json::from_str).transpose();
    Ok(WebhookDelivery {
        id: row.get(0),
        endpoint: row.get(1),
        event_id: row.get(2),
        status: row.get(3),
        response_code: row.get(4),
        response_headers: headers.context(doing)?.unwrap_or_default(),
        response_body: row.get(6),
        error_code: row.get(7),
        error_message: row.get(8),
        attempted_at: row.get(9),
        event: serde_json::from_str(row.get(10)).context(doing)?,
    })
}

/// The part of the history that a page begins at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HistoryCursor {
    /// The newest delivery.
    Newest,
    /// Deliveries that are older than this one.
    After(Uuid),
    /// Deliveries that are newer than this one.
    Before(Uuid),
}

/// A page of the history.
#[derive(Debug)]
pub struct HistoryPage {
    /// The deliveries, newest first.
    pub deliveries: Vec<WebhookDelivery>,
    /// Whether there are newer ones.
    pub has_newer: bool,
    /// Whether there are older ones.
    pub has_older: bool,
}

/// Reads a page of the history of an endpoint.
///
/// Errors: [`Error::Invalid`] if the cursor names no delivery of the endpoint.
pub async fn page(
    db: &Db,
    endpoint: Uuid,
    cursor: HistoryCursor,
    size: i64,
    now: DateTime<Utc>,
) -> Result<HistoryPage, Error> {
    let doing = "listing deliveries of a webhook";
    let since = now - KEPT;
    let (named, field, is_before) = match cursor {
        HistoryCursor::Newest => (None, "", false),
        HistoryCursor::After(id) => (Some(id), "page[after]", false),
        HistoryCursor::Before(id) => (Some(id), "page[before]", true),
    };
    let mut number = i64::MAX;
    if let Some(id) = named {
        let sql = "select number from webhook_deliveries where endpoint_id = $1 and id = $2";
        let rows = db.query(sql, &[&endpoint, &id]).await.context(doing)?;
        let row = rows.first().ok_or_else(|| {
            let problem = "names no delivery of this endpoint; start again without it";
            Error::invalid(field, problem)
        })?;
        number = row.get(0);
    }
    let sql = if is_before {
        select_deliveries!(
            "where d.endpoint_id = $1 and d.number > $2 and d.attempted_at > $3 \
             order by d.number limit $4"
        )
    } else {
        select_deliveries!(
            "where d.endpoint_id = $1 and d.number < $2 and d.attempted_at > $3 \
             order by d.number desc limit $4"
        )
    };
    let rows = db
        .query(sql, &[&endpoint, &number, &since, &(size + 1)])
        .await
        .context(doing)?;
    let deliveries: Result<Vec<_>, Error> = rows.iter().map(read).collect();
    let mut deliveries = deliveries?;
    let size = usize::try_from(size).unwrap_or_default();
    let has_more = deliveries.len() > size;
    deliveries.truncate(size);
    if is_before {
        deliveries.reverse();
    }
    Ok(HistoryPage {
        deliveries,
        has_newer: if is_before { has_more } else { named.is_some() },
        has_older: if is_before { true } else { has_more },
    })
}

/// Reads a delivery of an endpoint of this scope.
pub async fn delivery(
    db: &Db,
    scope: WebhookScope,
    id: Uuid,
    now: DateTime<Utc>,
) -> Result<WebhookDelivery, Error> {
    let sql = select_deliveries!(
        "join webhook_endpoints e on e.id = d.endpoint_id \
         where d.id = $1 and e.organization_id = $2 and e.project_id is not distinct from $3 \
         and d.attempted_at > $4"
    );
    let (organization, project) = scope.columns();
    let since = now - KEPT;
    let rows = db
        .query(sql, &[&id, &organization, &project, &since])
        .await
        .context("reading a delivery of a webhook")?;
    let row = rows.first();
    row.map_or(Err(Error::Webhook(WebhookProblem::DeliveryNotFound)), read)
}

/// Removes deliveries after their time, those beyond the number that is kept, and events without
/// deliveries.
pub async fn remove_expired(db: &Db, now: DateTime<Utc>) -> Result<(), Error> {
    let doing = "removing deliveries of webhooks";
    let since = now - KEPT;
    let sql = "delete from webhook_deliveries where id in ( \
               select id from webhook_deliveries where status <> 'pending' and attempted_at <= $1 \
               order by attempted_at limit $2) returning 1";
    let is_full = |rows: &[Row]| i64::try_from(rows.len()).is_ok_and(|it| it >= REMOVED_MAX);
    while is_full(
        &db.query(sql, &[&since, &REMOVED_MAX])
            .await
            .context(doing)?,
    ) {}
    let sql = "delete from webhook_deliveries where id in ( \
               select old.id from (select endpoint_id from webhook_deliveries \
                   group by endpoint_id having count(*) > $1) as long \
               cross join lateral (select d.id from webhook_deliveries d \
                   where d.endpoint_id = long.endpoint_id and d.status <> 'pending' \
                   order by d.number desc offset $1) as old \
               limit $2) returning 1";
    while is_full(
        &db.query(sql, &[&KEPT_MAX, &REMOVED_MAX])
            .await
            .context(doing)?,
    ) {}
    let sql = "delete from webhook_events where id in (select v.id from webhook_events v \
               where not exists (select from webhook_deliveries d where d.event_id = v.id) \
               limit $1) returning 1";
    while is_full(&db.query(sql, &[&REMOVED_MAX]).await.context(doing)?) {}
    Ok(())
}
