//! Notifications about branches, such as about finished runs: a `POST` request to the `notify_url`
//! of the branch, with the header fields of the Standard Webhooks specification 1.0.0, unsigned.
//!
//! A notification is repeated until it is confirmed with a status of 2xx, a bounded number of
//! times. It may therefore arrive more than once; `webhook-id` is the id of the run.

use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use gantry_base::{ids::ProjectId, repeat::Backoff};
use http::{Method, Request, header};
use http_body_util::Full;
use serde_json::{Value, json};
use url::Url;

use super::runs::{self, RunStep};
use crate::{
    api::{context::ApiContext, projects::timestamp},
    platform::{
        error::{Context, Error},
        outbound::{OutboundError, UrlOwner, uses::BRANCH_NOTIFICATION},
    },
};

/// Notifications of one pass.
const BATCH: i64 = 20;
/// Attempts to deliver a notification.
pub(super) const ATTEMPTS_MAX: i32 = 6;
/// Pauses after failed attempts.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(15), Duration::from_mins(4));

/// Sends the notifications about finished runs that are due.
pub(super) async fn deliver_due(context: &ApiContext) -> Result<(), Error> {
    let now = context.clock.now();
    let sql = "select r.id, b.notify_url, r.notify_attempts, r.steps, r.created_at, r.finished_at, p.ref, b.id, b.name, b.status, p.id \
               from action_runs r join branches b on b.id = r.branch_id \
               join projects p on p.id = r.project_id \
               where r.notify_at <= $1 and p.node = $2 order by r.notify_at limit $3";
    let rows = context
        .db
        .query(sql, &[&now, &context.settings.node, &BATCH])
        .await
        .context("reading notifications")?;
    for row in &rows {
        let (run, attempts): (String, i32) = (row.get(0), row.get(2));
        let outcome = match row.get::<_, Option<&str>>(1) {
            Some(url) => {
                let owner = UrlOwner::Project(ProjectId(row.get(10)));
                send(context, owner, url, (&run, &message(row))).await
            }
            // Removed meanwhile.
            None => Ok(()),
        };
        let Err(problem) = outcome else {
            store(context, &run, None).await?;
            continue;
        };
        let attempts = attempts.saturating_add(1);
        if attempts < ATTEMPTS_MAX {
            store(context, &run, Some(attempts)).await?;
            continue;
        }
        store(context, &run, None).await?;
        let line = format!("notify_url got no notification: {problem}");
        runs::log(context, &run, &line).await?;
    }
    Ok(())
}

/// Records a failed attempt, or that no further one is made.
async fn store(context: &ApiContext, run: &str, attempts: Option<i32>) -> Result<(), Error> {
    let next = attempts.map(|attempts| next_attempt(context, attempts));
    let sql = "update action_runs set notify_at = $2, notify_attempts = coalesce($3, notify_attempts) where id = $1";
    context
        .db
        .query(sql, &[&run, &next, &attempts])
        .await
        .context("recording a notification")
        .map(drop)
}

/// Returns the time of the attempt after this number of failed ones.
pub(super) fn next_attempt(context: &ApiContext, attempts: i32) -> DateTime<Utc> {
    context.clock.now() + BACKOFF.pause(attempts)
}

/// Returns the body of a notification.
fn message(row: &tokio_postgres::Row) -> Value {
    let stored: Value = row.get(3);
    let finished = timestamp(row.get(5));
    let step = |step: RunStep| {
        let stored = &stored[step.name()];
        let status = stored["status"].as_str().unwrap_or("CREATED");
        json!({"name": step.name(), "status": status.to_lowercase(), "updated_at": stored["at"]})
    };
    let steps: Vec<Value> = RunStep::ALL.into_iter().map(step).collect();
    let failed = steps.iter().find(|step| step["status"] == "dead");
    let mut run = json!({
        "id": row.get::<_, &str>(0),
        "created_at": timestamp(row.get(4)),
    });
    if let Some(step) = failed {
        run["failure"] = json!({"step": step["name"]});
    }
    run["steps"] = steps.into();
    let (project, id): (&str, &str) = (row.get(6), row.get(0));
    json!({
        "type": "run.completed",
        "timestamp": finished,
        "data": {
            "project_ref": project,
            "details_url": format!("/v1/projects/{project}/actions/{id}"),
            "branch": {
                "id": row.get::<_, uuid::Uuid>(7),
                "name": row.get::<_, &str>(8),
                "status": row.get::<_, &str>(9),
            },
            "action_run": run,
        },
    })
}

/// Sends a notification. The error is one line without content of the response.
pub(super) async fn send(
    context: &ApiContext,
    owner: UrlOwner,
    url: &str,
    (id, body): (&str, &Value),
) -> Result<(), String> {
    let url = Url::parse(url).map_err(|error| error.to_string())?;
    let mut body = body.clone();
    if let Some(public) = &context.settings.public_url {
        let path = body["data"]["details_url"].as_str().unwrap_or_default();
        body["data"]["details_url"] = format!("{}{path}", public.trim_end_matches('/')).into();
    }
    let request = Request::builder()
        .method(Method::POST)
        .uri(url.as_str())
        .header(header::CONTENT_TYPE, "application/json")
        .header("webhook-id", id)
        .header(
            "webhook-timestamp",
            context.clock.now().timestamp().to_string(),
        )
        .body(Full::new(Bytes::from(body.to_string())))
        .map_err(|_| "the URL cannot be requested".to_owned())?;
    let client = &context.outbound;
    let sent = client.send(&BRANCH_NOTIFICATION, owner, request).await;
    let response = sent.map_err(problem)?;
    if response.status.is_success() {
        return Ok(());
    }
    Err(format!("it answered {}", response.status))
}

fn problem(error: OutboundError) -> String {
    match error {
        OutboundError::Refused(text) => text,
        OutboundError::TimedOut => "it did not answer in time".to_owned(),
        _ => "it cannot be reached".to_owned(),
    }
}
