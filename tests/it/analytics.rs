//! Logs of projects: ingestion, queries, storage and usage counts.

mod asking;
mod counting;
mod damaged;
mod deliveries;
mod delivery_faults;
mod drains;
mod ingest;
mod s3;
mod servers;
mod stored;

use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use gantry_base::ids::ProjectRef;
use serde_json::Value;

use crate::support::{Actor, Node, client::Answer};
/// Returns the path of a query with `sql` over the hours around a time.
/// The path that asks `sql` of a project, about the hours around a time.
fn question(project: &ProjectRef, operation: &str, sql: &str, at: DateTime<Utc>) -> String {
    let text = |at: DateTime<Utc>| at.to_rfc3339_opts(SecondsFormat::Millis, true);
    let query = form_urlencoded::Serializer::new(String::new())
        .append_pair("sql", sql)
        .append_pair("iso_timestamp_start", &text(at - TimeDelta::hours(12)))
        .append_pair("iso_timestamp_end", &text(at + TimeDelta::hours(1)))
        .finish();
    format!("/v1/projects/{project}/analytics/endpoints/{operation}?{query}")
}

/// Returns the rows of a response without an error.
#[track_caller]
fn rows(answer: &Answer) -> Vec<Value> {
    let body = answer.json();
    assert!(body["error"].is_null(), "{body}");
    body["result"].as_array().unwrap().clone()
}

/// Returns the rows of `sql` around a time, in the newer dialect.
async fn ask(
    node: &Node,
    actor: &Actor,
    project: &ProjectRef,
    sql: &str,
    at: DateTime<Utc>,
) -> Vec<Value> {
    rows(
        &node
            .get(&question(project, "logs", sql, at))
            .as_(actor)
            .send()
            .await
            .expect(200),
    )
}
