//! Calls that databases make: `pg_net_logs`, and the operation that lists the last ones.

use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use gantry_base::ids::ProjectRef;
use gantry_logs::event::{Attributes, Event, Source};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::{
    analytics::ShutdownSignal,
    query, queue,
    requests::{number, text},
    window::Window,
};
use crate::{
    api::context::ApiContext,
    control::database_calls::call_log::EndedCall,
    platform::{
        access::{OauthScope as S, Permission as P, Project, needs},
        error::Error,
        http::{Endpoint, Json, Query, Tag, Verb, mount},
        rate_limits::ANALYTICS,
    },
};

/// Range of the listed calls.
const RANGE: TimeDelta = TimeDelta::hours(24);
/// Default and largest number of listed calls.
const CALLS_DEFAULT: u16 = 100;
const CALLS_MAX: u16 = 500;
/// Range in which a target is judged, and time of failures after which it is listed.
const JUDGED_RANGE: TimeDelta = TimeDelta::hours(2);
const FAILING_AFTER: TimeDelta = TimeDelta::hours(1);

/// Appends calls until the senders have stopped and the queue is empty. Runs once per process.
pub(super) async fn run(context: ApiContext, mut shutdown: ShutdownSignal) {
    let mut batch = Vec::new();
    while queue::next(&context.database_calls.log, &mut batch, &mut shutdown).await {
        let rows = batch
            .drain(..)
            .map(|call| (call.project.clone(), (context.entropy.uuid(), call)));
        context
            .analytics
            .keep_all(
                &queue::by_project(rows),
                |(id, call)| event(*id, call),
                &shutdown,
            )
            .await;
    }
}

/// Returns the log line of a call.
fn event(id: Uuid, call: &EndedCall) -> Event {
    let target = &call.target;
    let mut all = Attributes::default();
    if let Some(error) = &call.error {
        text(&mut all, "error", error);
    }
    text(&mut all, "identifier", call.project.as_str());
    let level = if call.is_success() { "info" } else { "error" };
    text(&mut all, "level", level);
    for (key, value) in [
        ("request.host", &target.host),
        ("request.method", &target.method),
        ("request.path", &target.path),
    ] {
        text(&mut all, key, value);
    }
    let took = i64::try_from(call.took_millis).unwrap_or(i64::MAX);
    number(&mut all, "response.origin_time", took);
    if let Some(status) = call.status {
        number(&mut all, "response.status_code", status.into());
    }
    let end = match (call.status, &call.error) {
        (Some(status), _) => status.to_string(),
        (None, error) => error.clone().unwrap_or_default(),
    };
    Event::new(
        id.to_string(),
        call.at.timestamp_micros(),
        Source::PgNet,
        format!("{} {}{} | {end}", target.method, target.host, target.path),
        all,
    )
}

pub(super) static LIST: Endpoint = Endpoint {
    id: "gantry-list-database-calls",
    summary: "List the last HTTP calls of a project's database",
    tag: Tag::Gantry,
    method: Verb::Get,
    path: "/v1/projects/{ref}/database/calls",
    aliases: &[],
    access: needs(&[&[P::AnalyticsLogsRead]], S::AnalyticsRead),
    limit: &ANALYTICS,
    handler: || mount(list),
};

#[derive(Debug, Deserialize, JsonSchema)]
struct CallsQuery {
    /// Number of calls, 1 to 500. Default: 100.
    limit: Option<u16>,
}

/// Calls with `pg_net`, database webhooks among them, of the last 24 hours.
#[derive(Debug, Serialize, JsonSchema)]
struct DatabaseCallList {
    /// The last calls, the latest first.
    calls: Vec<DatabaseCall>,
    /// Hosts without a successful call that have failed for an hour or longer.
    failing: Vec<FailingHost>,
}

/// A call that ended. Queries, header fields and bodies are not recorded.
#[derive(Debug, Serialize, JsonSchema)]
struct DatabaseCall {
    /// Time when it was begun.
    at: String,
    method: String,
    /// Host, with a port that is not that of the scheme.
    host: String,
    path: String,
    /// Status of the response.
    status: Option<i64>,
    /// The reason why there is no response.
    error: Option<String>,
    duration_ms: i64,
}

/// A host to which all recent calls failed: without a response, or with a status of 400 or above.
#[derive(Debug, Serialize, JsonSchema)]
struct FailingHost {
    host: String,
    /// Time of the first of the failures, or an earlier one.
    since: String,
    /// Number of failures since then.
    failures: i64,
}

async fn list(
    project: Project,
    context: ApiContext,
    Query(query): Query<CallsQuery>,
) -> Result<Json<DatabaseCallList>, Error> {
    let limit = query.limit.unwrap_or(CALLS_DEFAULT);
    if !(1..=CALLS_MAX).contains(&limit) {
        let problem = format!("must be from 1 to {CALLS_MAX}");
        return Err(Error::invalid("limit", problem));
    }
    Ok(Json(DatabaseCallList {
        calls: last_calls(&context, &project.reference, limit).await?,
        failing: failing_hosts(&context, &project.reference).await?,
    }))
}

/// Returns the range of this length before now.
fn before_now(context: &ApiContext, range: TimeDelta) -> Window {
    let now = context.clock.now();
    Window::around(now - range, now)
}

async fn last_calls(
    context: &ApiContext,
    project: &ProjectRef,
    limit: u16,
) -> Result<Vec<DatabaseCall>, Error> {
    let sql = format!(
        "select toUnixTimestamp64Micro(timestamp) as at, \
         log_attributes['request.method'] as method, \
         log_attributes['request.host'] as host, log_attributes['request.path'] as path, \
         log_attributes['error'] as error, \
         toInt32OrZero(log_attributes['response.status_code']) as status, \
         toInt32OrZero(log_attributes['response.origin_time']) as took \
         from logs where source = 'pg_net_logs' order by at desc limit {limit}"
    );
    let answer = query::count(context, project, sql, before_now(context, RANGE)).await?;
    let mut calls = Vec::with_capacity(answer.rows.len());
    for row in &answer.rows {
        let (status, error) = (integer(row, "status"), string(row, "error"));
        calls.push(DatabaseCall {
            at: time(integer(row, "at")),
            method: string(row, "method"),
            host: string(row, "host"),
            path: string(row, "path"),
            status: (status > 0).then_some(status),
            error: (!error.is_empty()).then_some(error),
            duration_ms: integer(row, "took"),
        });
    }
    Ok(calls)
}

/// Returns the hosts of which all calls since the last success failed, for an hour or longer.
async fn failing_hosts(
    context: &ApiContext,
    project: &ProjectRef,
) -> Result<Vec<FailingHost>, Error> {
    let sql = "select host, countIf(failed = 0) as successes, countIf(failed = 1) as failures, \
               min(at) as first, max(at) as last \
               from (select log_attributes['request.host'] as host, \
               toUnixTimestamp64Micro(timestamp) as at, \
               if(log_attributes['level'] = 'error', 1, 0) as failed \
               from logs where source = 'pg_net_logs') as calls \
               group by host order by host limit 500";
    let window = before_now(context, JUDGED_RANGE);
    let answer = query::count(context, project, sql.to_owned(), window).await?;
    let mut failing = Vec::new();
    for row in &answer.rows {
        let (first, last) = (integer(row, "first"), integer(row, "last"));
        let is_long = last - first >= FAILING_AFTER.num_microseconds().unwrap_or(i64::MAX);
        if integer(row, "successes") == 0 && is_long {
            failing.push(FailingHost {
                host: string(row, "host"),
                since: time(first),
                failures: integer(row, "failures"),
            });
        }
    }
    Ok(failing)
}

fn integer(row: &Map<String, Value>, name: &str) -> i64 {
    row.get(name).and_then(Value::as_i64).unwrap_or_default()
}

fn string(row: &Map<String, Value>, name: &str) -> String {
    let text = row.get(name).and_then(Value::as_str);
    text.unwrap_or_default().to_owned()
}

/// Returns a time in microseconds as text.
fn time(micros: i64) -> String {
    let at = DateTime::<Utc>::from_timestamp_micros(micros).unwrap_or_default();
    at.to_rfc3339_opts(SecondsFormat::Millis, true)
}

#[cfg(test)]
mod tests {
    use gantry_logs::event::Severity;

    use super::*;
    use crate::control::database_calls::call_log::CallTarget;

    #[test]
    fn call_becomes_a_line() {
        let call = |status, error: Option<&str>| EndedCall {
            at: "2026-11-21T09:15:03Z".parse().unwrap(),
            project: "abcdefghijklmnopqrst".parse().unwrap(),
            target: CallTarget {
                method: "POST".to_owned(),
                host: "a.test".to_owned(),
                path: "/hook".to_owned(),
            },
            status,
            error: error.map(str::to_owned),
            took_millis: 7,
        };
        for (status, error, line, severity) in [
            (Some(201), None, "POST a.test/hook | 201", Severity::Info),
            (Some(500), None, "POST a.test/hook | 500", Severity::Error),
            (None, Some("no"), "POST a.test/hook | no", Severity::Error),
        ] {
            let event = event(Uuid::nil(), &call(status, error));
            assert_eq!((event.source, &*event.message), (Source::PgNet, line));
            assert_eq!(Severity::of(&event.attributes), severity, "{line}");
        }
    }
}
