//! Platform webhooks: endpoints, and deliveries of events to them.

mod deliveries;
mod endpoints;
mod faults;
mod order;
mod pages;

use gantry::{control::platform_webhooks, platform::webhook_signature::WebhookKey};
use gantry_base::ids::{OrganizationId, ProjectRef};
use http::HeaderMap;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{
    Node, TestApp,
    collector::{Collected, Collector},
};

pub(crate) const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
pub(crate) const PAUSED: &str = "v1.project.paused";
pub(crate) const RESTARTED: &str = "v1.project.restarted";
pub(crate) const MEMBER_ADDED: &str = "v1.organization.member.added";

/// Path of the webhooks of the home organization.
pub(crate) fn of_organization(app: &TestApp) -> String {
    format!("/v2/organizations/{}/webhooks", app.home.slug)
}

/// Path of the webhooks of the home project.
pub(crate) fn of_project(app: &TestApp) -> String {
    format!("/v2/projects/{}/webhooks", app.home.project)
}

/// URL of a receiver on this machine, by name.
pub(crate) fn url(collector: &Collector, path: &str) -> String {
    collector.url(path).replace("127.0.0.1", "localhost")
}

/// The body that creates an endpoint.
pub(crate) fn endpoint(url: &str, types: &[&str]) -> Value {
    let types: Vec<_> = types.iter().map(|name| json!({"type": name})).collect();
    json!({"data": {"type": "endpoint", "attributes": {
        "url": url, "event_types": types, "signing_secret": SECRET,
    }}})
}

/// The body that changes an endpoint.
pub(crate) fn patch(attributes: &Value) -> Value {
    json!({"data": {"type": "endpoint", "attributes": attributes}})
}

/// Creates an endpoint, and returns its id.
pub(crate) async fn create(app: &TestApp, base: &str, url: &str, types: &[&str]) -> Uuid {
    let answer = app
        .post(&format!("{base}/endpoints"))
        .as_(&app.owner)
        .json(&endpoint(url, types))
        .send()
        .await
        .expect(201);
    answer.json()["data"]["id"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap()
}

/// Appends an event to the log of an organization.
pub(crate) async fn emit(
    app: &TestApp,
    organization: OrganizationId,
    name: &str,
    project: Option<&ProjectRef>,
    payload: &Value,
) {
    let sql = "with head as (
                   insert into event_heads as h (organization_id, number) values ($1, 1)
                   on conflict (organization_id) do update set number = h.number + 1
                   returning number
               )
               insert into events
                   (organization_id, number, id, type, at, project_ref, actor, payload)
               select $1, number, gen_random_uuid(), $2, $3, $4, $5, $6 from head";
    let now = app.clock.now();
    let project = project.map(ProjectRef::as_str);
    let payload = payload.to_string();
    let actor = app.owner.gotrue_id;
    let db = &app.app.db;
    db.query(
        sql,
        &[&organization.0, &name, &now, &project, &actor, &payload],
    )
    .await
    .unwrap();
}

/// Appends an event about the home project.
pub(crate) async fn emit_project(app: &TestApp, name: &str, payload: &Value) {
    emit(app, app.home.id, name, Some(&app.home.project), payload).await;
}

/// Makes all due attempts on a node.
pub(crate) async fn pass(node: &Node) {
    platform_webhooks::pass(&node.app.control).await.unwrap();
}

/// Returns the deliveries of an endpoint, newest first.
pub(crate) async fn deliveries(app: &TestApp, base: &str, endpoint: Uuid) -> Vec<Value> {
    let answer = app
        .get(&format!(
            "{base}/endpoints/{endpoint}/deliveries?page[size]=100"
        ))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    answer.json()["data"].as_array().unwrap().clone()
}

/// Returns the statuses of the deliveries of an endpoint, oldest first.
pub(crate) async fn statuses(app: &TestApp, base: &str, endpoint: Uuid) -> Vec<String> {
    let listed = deliveries(app, base, endpoint).await;
    let status = |delivery: &Value| {
        delivery["attributes"]["status"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    listed.iter().rev().map(status).collect()
}

/// Checks that a request has the signature of this secret, alone or among others.
pub(crate) fn is_signed_by(request: &Collected, secret: &str) -> bool {
    let mut headers = HeaderMap::new();
    let timestamp = request.header("webhook-timestamp").parse().unwrap();
    let id = request.header("webhook-id");
    let key = [WebhookKey::new(secret.as_bytes())];
    gantry::platform::webhook_signature::add_headers(
        &mut headers,
        &key,
        (id, timestamp),
        &request.raw,
    );
    let expected = headers["webhook-signature"].to_str().unwrap();
    let sent = request.header("webhook-signature");
    sent.split(' ').any(|signature| signature == expected)
}
