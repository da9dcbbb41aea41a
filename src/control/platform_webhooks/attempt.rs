//! One attempt: reads the next delivery of a claimed endpoint, sends it, and records the result.
//!
//! The result is recorded only while the claim is held. A node that is killed in between leaves
//! the attempt pending, and another one repeats it with the same event id.

use bytes::Bytes;
use chrono::{DateTime, TimeDelta, Utc};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde_json::{Map, Value};
use tokio_postgres::Transaction;
use uuid::Uuid;

use super::{
    endpoint::{WebhookEndpoint, select_endpoints},
    queue::{insert_attempt, next_due},
    send::{self, Received, SendError},
    state::AttemptResult,
};
use crate::{
    control::context::ControlContext,
    platform::{
        db::Db,
        error::{Context, Error},
        webhook_signature,
    },
};

/// Pauses before the second and each further attempt, in seconds. After the last one an event has
/// failed.
const PAUSES: [i64; 4] = [10, 30, 90, 270];
/// Longest body of a response that is stored, in bytes. The rest is cut off.
const BODY_KEPT_MAX: usize = 16 << 10;
/// Header fields of a response that are stored, in bytes of names and values.
const HEADERS_KEPT_MAX: usize = 8 << 10;

/// The next attempt of an endpoint.
struct DueAttempt {
    delivery: Uuid,
    /// From 1; absent for an attempt that is not repeated.
    attempt: Option<i16>,
    event: Uuid,
    body: String,
}

/// The result of an attempt, as stored.
struct Outcome {
    result: AttemptResult,
    response_code: i32,
    /// JSON of the header fields.
    headers: Option<String>,
    body: Option<String>,
    error: Option<(&'static str, String)>,
}

/// Makes the next attempt of an endpoint. Releases the claim afterwards.
pub(super) async fn make(
    context: &ControlContext,
    endpoint: Uuid,
    claim: Uuid,
) -> Result<(), Error> {
    let now = context.clock.now();
    let sql = select_endpoints!("where e.id = $1 and e.claim = $2");
    let rows = context.db.query(sql, &[&endpoint, &claim]).await;
    let rows = rows.context("reading a webhook endpoint")?;
    let Some(row) = rows.first() else {
        return Ok(());
    };
    let endpoint = WebhookEndpoint::read(row, &context.settings.sealing)?;
    let Some(due) = next(&context.db, endpoint.id, now).await? else {
        return release(context, endpoint.id, claim).await;
    };
    let sent = send(context, &endpoint, &due, now).await;
    let outcome = Outcome::of(sent);
    context.platform_webhooks.count(outcome.result);
    record(context, endpoint.id, claim, (&due, &outcome, now)).await
}

/// Reads the next delivery, if it is due: those by hand first, then the queue in its order.
async fn next(db: &Db, endpoint: Uuid, now: DateTime<Utc>) -> Result<Option<DueAttempt>, Error> {
    let sql = "select d.id, d.attempt, v.id, v.body, d.attempted_at from webhook_deliveries d \
               join webhook_events v on v.id = d.event_id \
               where d.endpoint_id = $1 and d.status = 'pending' \
               order by d.attempt is not null, v.number, d.number limit 1";
    let rows = db.query(sql, &[&endpoint]).await;
    let rows = rows.context("reading the queue of a webhook")?;
    let row = rows
        .first()
        .filter(|row| row.get::<_, DateTime<Utc>>(4) <= now);
    Ok(row.map(|row| DueAttempt {
        delivery: row.get(0),
        attempt: row.get(1),
        event: row.get(2),
        body: row.get(3),
    }))
}

async fn send(
    context: &ControlContext,
    endpoint: &WebhookEndpoint,
    due: &DueAttempt,
    now: DateTime<Utc>,
) -> Result<Received, SendError> {
    let mut headers = endpoint.secrets.header_map();
    let json = HeaderValue::from_static("application/json");
    headers.insert(header::CONTENT_TYPE, json);
    let keys = endpoint.secrets.keys(now);
    let request = (&*due.event.to_string(), now.timestamp());
    webhook_signature::add_headers(&mut headers, &keys, request, due.body.as_bytes());
    send::post(context, endpoint, headers, due.body.clone().into()).await
}

impl Outcome {
    fn of(sent: Result<Received, SendError>) -> Self {
        match sent {
            Ok((status, headers, body)) => Self::answered(status, &headers, body.as_ref()),
            Err(error) => Self {
                result: error.result,
                response_code: 0,
                headers: None,
                body: None,
                error: Some((error_code(error.result), error.text)),
            },
        }
    }

    fn answered(status: StatusCode, headers: &HeaderMap, body: Option<&Bytes>) -> Self {
        let is_success = status.is_success();
        let hint = if status.is_redirection() {
            "; redirects are not followed"
        } else {
            ""
        };
        let result = if is_success {
            AttemptResult::Success
        } else {
            AttemptResult::Rejected
        };
        let text = || format!("the receiver answered {}{hint}", status.as_u16());
        Self {
            result,
            response_code: status.as_u16().into(),
            headers: Some(kept_headers(headers)),
            body: body.map(|body| kept_text(body, BODY_KEPT_MAX)),
            error: (!is_success).then(|| (error_code(result), text())),
        }
    }

    fn status(&self) -> &'static str {
        match self.result {
            AttemptResult::Success => "success",
            _ => "failure",
        }
    }
}

/// Returns the `error_code` of a failed attempt.
const fn error_code(result: AttemptResult) -> &'static str {
    match result {
        AttemptResult::Success => "",
        AttemptResult::Rejected => "unexpected_status",
        AttemptResult::TimedOut => "timeout",
        AttemptResult::Refused => "address_refused",
        AttemptResult::Failed => "connection_failed",
    }
}

/// Returns the header fields as JSON object, as far as they are stored.
fn kept_headers(headers: &HeaderMap) -> String {
    let mut fields = Map::new();
    let mut bytes = 0;
    for (name, value) in headers {
        bytes += name.as_str().len() + value.len();
        if bytes > HEADERS_KEPT_MAX {
            break;
        }
        let text = kept_text(value.as_bytes(), HEADERS_KEPT_MAX);
        fields.insert(name.as_str().to_owned(), text.into());
    }
    Value::Object(fields).to_string()
}

/// Returns a text that PostgreSQL can store: bytes that are not UTF-8, and zero bytes, are
/// replaced.
fn kept_text(bytes: &[u8], bytes_max: usize) -> String {
    let kept = bytes.get(..bytes_max).unwrap_or(bytes);
    String::from_utf8_lossy(kept).replace('\0', "\u{fffd}")
}

/// Stores the result, and the next attempt after a failure. Does nothing if the endpoint was
/// deleted, or if another node has its claim.
async fn record(
    context: &ControlContext,
    endpoint: Uuid,
    claim: Uuid,
    (due, outcome, started): (&DueAttempt, &Outcome, DateTime<Utc>),
) -> Result<(), Error> {
    let doing = "recording an attempt of a webhook";
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let sql = "select enabled from webhook_endpoints where id = $1 and claim = $2 for update";
    let row = transaction.query_opt(sql, &[&endpoint, &claim]).await;
    let Some(row) = row.context(doing)? else {
        return Ok(());
    };
    let sql = "update webhook_deliveries set status = $2, attempted_at = $3, response_code = $4, \
               response_headers = $5, response_body = $6, error_code = $7, error_message = $8 \
               where id = $1";
    let (code, text) = outcome.error.clone().unzip();
    transaction
        .execute(
            sql,
            &[
                &due.delivery,
                &outcome.status(),
                &started,
                &outcome.response_code,
                &outcome.headers,
                &outcome.body,
                &code,
                &text,
            ],
        )
        .await
        .context(doing)?;
    let is_success = outcome.result == AttemptResult::Success;
    if let Some((attempt, pause)) = next_attempt(due.attempt).filter(|_| !is_success)
        && row.get(0)
    {
        let now = context.clock.now();
        let times = (now, now + pause);
        let (event, entropy) = (due.event, &context.entropy);
        insert_attempt(&transaction, endpoint, event, Some(attempt), entropy, times).await?;
    }
    release_in(&transaction, endpoint, claim, Some(is_success)).await?;
    transaction.commit().await.context(doing)
}

/// Returns the number of the next attempt and the pause before it. `None` after the last one.
fn next_attempt(attempt: Option<i16>) -> Option<(i16, TimeDelta)> {
    let attempt = attempt?;
    let pause = PAUSES.get(usize::try_from(attempt - 1).ok()?)?;
    Some((attempt + 1, TimeDelta::seconds(*pause)))
}

/// Releases a claim without an attempt.
async fn release(context: &ControlContext, endpoint: Uuid, claim: Uuid) -> Result<(), Error> {
    let doing = "releasing a webhook endpoint";
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    // Locked by a statement of its own: the next one sees all rows of earlier holders of the lock.
    let sql = "select from webhook_endpoints where id = $1 and claim = $2 for update";
    let locked = transaction.query_opt(sql, &[&endpoint, &claim]).await;
    locked.context(doing)?;
    release_in(&transaction, endpoint, claim, None).await?;
    transaction.commit().await.context(doing)
}

async fn release_in(
    transaction: &Transaction<'_>,
    endpoint: Uuid,
    claim: Uuid,
    is_success: Option<bool>,
) -> Result<(), Error> {
    let sql = concat!(
        "update webhook_endpoints set claim = null, claimed_until = null, \
         proven = coalesce($3, proven), due_at = ",
        next_due!(),
        " where id = $1 and claim = $2"
    );
    transaction
        .execute(sql, &[&endpoint, &claim, &is_success])
        .await
        .context("releasing a webhook endpoint")
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_end_after_the_fifth_and_manual_ones_are_not_repeated() {
        let mut pauses = Vec::new();
        let mut attempt = 1;
        while let Some((next, pause)) = next_attempt(Some(attempt)) {
            pauses.push(pause.num_seconds());
            attempt = next;
        }
        assert_eq!((attempt, pauses), (5, vec![10, 30, 90, 270]));
        assert_eq!(next_attempt(None), None);
    }

    #[test]
    fn response_is_stored_within_bounds() {
        let mut headers = HeaderMap::new();
        headers.insert("x-a", HeaderValue::from_bytes(b"\xff").unwrap());
        let long = HeaderValue::from_bytes(&[b'a'; HEADERS_KEPT_MAX]).unwrap();
        headers.insert("x-long", long);
        let body = Bytes::from(vec![0; BODY_KEPT_MAX + 1]);
        let outcome = Outcome::answered(StatusCode::FOUND, &headers, Some(&body));
        assert_eq!(outcome.headers.as_deref(), Some("{\"x-a\":\"\u{fffd}\"}"));
        let text = outcome.body.unwrap();
        assert_eq!(text.chars().count(), BODY_KEPT_MAX);
        assert!(!text.contains('\0'));
        let (code, text) = outcome.error.unwrap();
        assert_eq!(code, "unexpected_status");
        assert_eq!(
            text,
            "the receiver answered 302; redirects are not followed"
        );
    }

    #[test]
    fn only_2xx_is_a_success() {
        for (status, expected) in [(199, "failure"), (200, "success"), (299, "success")] {
            let status = StatusCode::from_u16(status).unwrap();
            let outcome = Outcome::answered(status, &HeaderMap::new(), None);
            assert_eq!(outcome.status(), expected, "{status}");
            assert_eq!(outcome.error.is_none(), expected == "success");
        }
    }
}
