//! Requests with an `Idempotency-Key`: every operation that changes something is sent twice with
//! one key, also after a loss of its answer.

use std::collections::BTreeSet;

use gantry::{
    api::endpoints,
    platform::{
        http::Endpoint,
        idempotency::{Idempotency, cleanup},
    },
};
use serde_json::{Value, json};

use super::{Findings, call, spellings};
use crate::support::{TestApp, client::Answer};

/// Operations that need a running project or a step of another party. Their requests are rejected
/// without one, and are checked to leave their keys unused.
const REJECTED: &[&str] = &[
    "gantry-accept-invitation",
    "gantry-apply-project-config",
    "gantry-approve-a-request",
    "gantry-approve-oauth-request",
    "gantry-delete-service-identity-trust",
    "gantry-deny-a-request",
    "gantry-deny-oauth-request",
    "gantry-restore-tables",
    "gantry-restore-to-new-project",
    "gantry-revoke-oauth-authorization",
    "gantry-revoke-oauth-secret",
    "gantry-revoke-organization-oauth-authorization",
    "gantry-revoke-organization-oauth-authorizations",
    "v1-accept-invite-external-jit-access",
    "v1-activate-custom-hostname",
    "v1-apply-project-addon",
    "v1-authorize-jit-access",
    "v1-bulk-update-functions",
    "v1-cancel-a-project-restoration",
    "v1-claim-project-for-organization",
    "v1-create-a-branch",
    "v1-create-a-function",
    "v1-create-a-sso-provider",
    "v1-create-legacy-signing-key",
    "v1-create-login-role",
    "v1-create-project-api-key",
    "v1-create-project-signing-key",
    "v1-create-project-tpa-integration",
    "v1-create-restore-point",
    "v1-delete-a-branch",
    "v1-delete-a-function",
    "v1-delete-a-project",
    "v1-delete-a-sso-provider",
    "v1-delete-invite-external-jit-access",
    "v1-delete-jit-access",
    "v1-delete-login-roles",
    "v1-delete-project-api-key",
    "v1-delete-project-tpa-integration",
    "v1-deploy-a-function",
    "v1-disable-preview-branching",
    "v1-enable-database-webhook",
    "v1-merge-a-branch",
    "v1-patch-a-migration",
    "v1-patch-postgres-config",
    "v1-push-a-branch",
    "v1-remove-project-addon",
    "v1-remove-project-signing-key",
    "v1-reset-a-branch",
    "v1-restart-a-project",
    "v1-restore-a-branch",
    "v1-restore-a-project",
    "v1-restore-physical-backup",
    "v1-restore-pitr-backup",
    "v1-rollback-migrations",
    "v1-run-a-query",
    "v1-undo",
    "v1-update-a-branch-config",
    "v1-update-a-function",
    "v1-update-a-sso-provider",
    "v1-update-action-run-status",
    "v1-update-database-password",
    "v1-update-hostname-config",
    "v1-update-pooler-config",
    "v1-update-postgres-config",
    "v1-update-project-api-key",
    "v1-update-project-legacy-api-keys",
    "v1-update-project-signing-key",
    "v1-upgrade-postgres-version",
    "v1-verify-dns-config",
    "v2-create-a-branch",
    "v2-download-project-backup",
    "v2-organizations-slug-webhooks-deliveries-id-retry-post",
    "v2-projects-ref-webhooks-deliveries-id-retry-post",
    "v2-transfer-a-project",
];

/// Of these, the operations that are called on a running project.
const RUNNING: &[&str] = &[
    "v1-create-project-api-key",
    "v1-update-project-api-key",
    "v1-update-project-legacy-api-keys",
    "v1-create-project-signing-key",
    "v1-update-project-signing-key",
    "v1-create-login-role",
    "v1-run-a-query",
    "v1-enable-database-webhook",
    "v1-update-database-password",
    "v1-patch-postgres-config",
    "v1-update-postgres-config",
    "v1-create-a-function",
    "v1-update-a-function",
    "v1-create-a-branch",
    "v2-create-a-branch",
    "v1-update-a-branch-config",
    "v1-restore-a-branch",
    "v1-rollback-migrations",
    "v1-delete-login-roles",
    "v1-delete-project-api-key",
    "v1-delete-a-function",
    "v1-delete-a-branch",
];

/// Of these, as many succeed on every machine.
const RUNNING_MIN: usize = 10;

/// Rejects the recording of answers after the change. So the record of each key is the one that a
/// server leaves that is killed between the two.
const LOSE_ANSWERS: &str = "create function lose() returns trigger language plpgsql as $$ begin raise exception 'killed'; end $$; \
    create trigger lose before update on idempotency_keys for each row \
    when (new.step = 'answered' and old.step <> 'answered') execute function lose()";

/// A request to an operation that changes something.
pub(super) struct Change {
    pub(super) endpoint: &'static Endpoint,
    pub(super) kind: Idempotency,
    pub(super) path: String,
    pub(super) body: Option<Value>,
}

fn kind(endpoint: &Endpoint) -> Idempotency {
    endpoint.idempotency(&(endpoint.handler)())
}

/// Every operation that reads keys of this layer. Those that delete what others need are last.
pub(super) fn changing() -> Vec<&'static Endpoint> {
    let mut all: Vec<_> = endpoints::all()
        .iter()
        .copied()
        .filter(|endpoint| !matches!(kind(endpoint), Idempotency::Ignored | Idempotency::Own))
        .collect();
    all.sort_by_key(|endpoint| {
        (
            // The deletion of a protected project needs an approval.
            endpoint.id == "gantry-put-project-protection",
            endpoint.id == "v1-delete-a-project",
            // They forbid the hosts of the others.
            endpoint.id.ends_with("-outbound-hosts"),
            endpoint.method.name() == "DELETE",
        )
    });
    all
}

/// Sends a request of the owner and returns the JSON of its answer.
async fn prepare(app: &TestApp, method: &str, path: &str, body: &Value) -> Value {
    let answer = app
        .request(method, path)
        .as_(&app.owner)
        .json(body)
        .send()
        .await;
    if answer.body.is_empty() || !answer.status.is_success() {
        Value::Null
    } else {
        answer.json()
    }
}

/// The sample body of an operation, with the variables filled in.
fn sample(app: &TestApp, id: &str) -> Option<Value> {
    let endpoint = endpoints::all().iter().find(|one| one.id == id).unwrap();
    let body = (endpoint.handler)().sample.body?;
    let body = body
        .replace("{{GANTRY_ORG}}", app.home.slug.as_str())
        .replace("{{GANTRY_REF}}", app.home.project.as_str());
    Some(serde_json::from_str(&body).unwrap())
}

/// Creates what the operation changes, by another operation, and returns its id.
async fn created(app: &TestApp, path: &str, id: &str, pointer: &str) -> String {
    let body = sample(app, id).unwrap_or(json!({}));
    let made = prepare(app, "POST", path, &body).await;
    match made.pointer(pointer) {
        Some(Value::String(id)) => id.clone(),
        Some(other) => other.to_string(),
        None => "x1".to_owned(),
    }
}

/// A body that creates a webhook endpoint. Tests permit addresses of this machine.
fn webhook() -> Value {
    let attributes = json!({
        "url": "http://localhost:9/",
        "event_types": [{"type": "*"}],
        "signing_secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    });
    json!({"data": {"type": "endpoint", "attributes": attributes}})
}

/// Creates a webhook endpoint, and returns its id.
async fn webhook_endpoint(app: &TestApp, base: &str) -> String {
    let path = format!("{base}/webhooks/endpoints");
    let made = prepare(app, "POST", &path, &webhook()).await;
    made["data"]["id"].as_str().unwrap_or("x1").to_owned()
}

/// Returns the last placeholder of the path of an operation, and a body if its sample cannot be
/// sent.
async fn details(app: &TestApp, id: &str) -> (Option<String>, Option<Value>) {
    let org = format!("/v1/organizations/{}", app.home.slug);
    let applications = format!("{org}/oauth/apps");
    let application = || created(app, &applications, "gantry-create-oauth-application", "/id");
    let drains = app.at("/analytics/log-drains").replacen("/v1", "/v2", 1);
    let member = || Some(app.read_only.gotrue_id.to_string());
    let found = match id {
        "v2-update-log-drain" | "v2-delete-log-drain" => {
            created(app, &drains, "v2-create-log-drain", "/data/id").await
        }
        "v2-update-notebook" | "v2-delete-notebook" => {
            let path = app.at("/notebooks").replacen("/v1", "/v2", 1);
            created(app, &path, "v2-create-notebook", "/data/id").await
        }
        "v2-organizations-slug-webhooks-endpoints-post"
        | "v2-projects-ref-webhooks-endpoints-post" => return (None, Some(webhook())),
        "v2-organizations-slug-webhooks-endpoints-id-patch"
        | "v2-organizations-slug-webhooks-endpoints-id-delete"
        | "v2-organizations-slug-webhooks-endpoints-id-test-post" => {
            let base = format!("/v2/organizations/{}", app.home.slug);
            webhook_endpoint(app, &base).await
        }
        "v2-projects-ref-webhooks-endpoints-id-patch"
        | "v2-projects-ref-webhooks-endpoints-id-delete"
        | "v2-projects-ref-webhooks-endpoints-id-test-post" => {
            webhook_endpoint(app, &app.at("").replacen("/v1", "/v2", 1)).await
        }
        "gantry-revoke-token" | "gantry-create-child-token" => {
            created(app, "/v1/tokens", "gantry-create-token", "/id").await
        }
        "gantry-delete-service-identity" | "gantry-create-service-identity-trust" => {
            let path = format!("{org}/service-identities");
            created(app, &path, "gantry-create-service-identity", "/id").await
        }
        "gantry-update-oauth-application"
        | "gantry-delete-oauth-application"
        | "gantry-create-oauth-secret"
        | "gantry-revoke-organization-oauth-authorizations" => application().await,
        "gantry-delete-ingest-key" => {
            let path = app.at("/analytics/ingest-keys");
            created(app, &path, "gantry-create-ingest-key", "/id").await
        }
        "v1-update-project-api-key" | "v1-delete-project-api-key" => {
            let body = json!({"type": "secret", "name": format!("for_{}", &id[3..6])});
            let made = prepare(app, "POST", &app.at("/api-keys"), &body).await;
            made["id"].as_str().unwrap_or("x1").to_owned()
        }
        "v1-update-project-signing-key" => {
            let path = app.at("/config/auth/signing-keys");
            created(app, &path, "v1-create-project-signing-key", "/id").await
        }
        "v1-delete-project-tpa-integration" => {
            let path = app.at("/config/auth/third-party-auth");
            created(app, &path, "v1-create-project-tpa-integration", "/id").await
        }
        "v2-assign-organization-member-role" | "v2-remove-organization-members" => {
            return (member(), None);
        }
        "v1-delete-jit-access" => return (member(), None),
        "v1-update-jit-access" => {
            let roles = sample(app, id).map(|body| body["roles"].clone());
            return (None, Some(json!({"user_id": member(), "roles": roles})));
        }
        "v2-delete-organization-invitations" => {
            let path = format!("/v2/organizations/{}/members/invitations", app.home.slug);
            let body = sample(app, "v2-create-organization-invitations").unwrap();
            prepare(app, "POST", &path, &body).await;
            return (None, None);
        }
        "v1-delete-project-claim-token" => {
            prepare(app, "POST", &app.at("/claim-token"), &json!({})).await;
            return (None, None);
        }
        "v1-deactivate-vanity-subdomain-config" => {
            let path = app.at("/vanity-subdomain/activate");
            let body = sample(app, "v1-activate-vanity-subdomain-config").unwrap();
            prepare(app, "POST", &path, &body).await;
            return (None, None);
        }
        "v1-Delete hostname config" | "gantry-set-custom-hostname-hsts" => {
            prepare(app, "DELETE", &app.at("/vanity-subdomain"), &json!({})).await;
            let path = app.at("/custom-hostname/initialize");
            let body = sample(app, "v1-update-hostname-config").unwrap();
            prepare(app, "POST", &path, &body).await;
            return (None, None);
        }
        "v1-update-a-function" | "v1-delete-a-function" => {
            let slug = format!("for-{}", &id[3..6]);
            let mut body = sample(app, "v1-create-a-function").unwrap();
            body["slug"] = slug.clone().into();
            prepare(app, "POST", &app.at("/functions"), &body).await;
            slug
        }
        "v1-update-a-branch-config" | "v1-delete-a-branch" => {
            let body = json!({"branch_name": format!("for-{}", &id[3..6])});
            let made = prepare(app, "POST", &app.at("/branches"), &body).await;
            made["id"].as_str().unwrap_or("x1").to_owned()
        }
        "v1-restore-a-branch" => {
            let body = json!({"branch_name": "for-restore"});
            let made = prepare(app, "POST", &app.at("/branches"), &body).await;
            let id = made["id"].as_str().unwrap_or("x1").to_owned();
            prepare(
                app,
                "DELETE",
                &format!("/v1/branches/{id}?force=false"),
                &json!({}),
            )
            .await;
            id
        }
        _ => return (None, None),
    };
    (Some(found), None)
}

impl Change {
    pub(super) async fn of(app: &TestApp, endpoint: &'static Endpoint) -> Self {
        let (id, body) = details(app, endpoint.id).await;
        let body = body.or_else(|| sample(app, endpoint.id));
        let last = endpoint.path.split('/').rfind(|part| part.starts_with('{'));
        let filled = endpoint.path.split('/').map(|part| match part {
            _ if id.is_some() && Some(part) == last => id.clone().unwrap(),
            "{ref}" | "{branch_id_or_ref}" => app.home.project.to_string(),
            "{slug}" => app.home.slug.to_string(),
            name if name.starts_with('{') => "x1".to_owned(),
            literal => literal.to_owned(),
        });
        let path = filled.collect::<Vec<_>>().join("/");
        let query = (endpoint.handler)().sample.query;
        Self {
            endpoint,
            kind: kind(endpoint),
            path: [&path, query].concat(),
            body,
        }
    }

    async fn send(&self, app: &TestApp, key: &str) -> Answer {
        self.send_to(app, key, &self.path).await
    }

    async fn send_to(&self, app: &TestApp, key: &str, path: &str) -> Answer {
        let call = app
            .request(self.endpoint.method.name(), path)
            .as_(&app.owner)
            .header("idempotency-key", key);
        match &self.body {
            Some(body) => call.json(body).send().await,
            None => call.send().await,
        }
    }

    /// Sends the request again after a kill between its effect and the record of its answer.
    async fn check_after_loss(&self, app: &TestApp, first: &Answer) -> Result<(), String> {
        let again = self.send(app, self.endpoint.id).await;
        if self.kind == Idempotency::Recorded {
            return replayed(first, &again);
        }
        expect("running", &again, 409, Some("still running"))?;
        if again.header("retry-after") != Some("5") {
            return Err(format!("no Retry-After: {again:?}"));
        }
        app.advance(131);
        let again = self.send(app, self.endpoint.id).await;
        match self.kind {
            Idempotency::Marked => expect("marked", &again, 409, Some("is done, but its answer")),
            Idempotency::Announced => expect("announced", &again, 409, Some("the outcome")),
            _ => expect("repeatable", &again, first.status.as_u16(), None),
        }
    }
}

fn expect(name: &str, answer: &Answer, status: u16, text: Option<&str>) -> Result<(), String> {
    let has_text = text.is_none_or(|text| answer.message().contains(text));
    if answer.status == status && has_text {
        Ok(())
    } else {
        Err(format!("{name}: {answer:?}"))
    }
}

/// Compares everything but the headers that every response has of its own.
fn replayed(first: &Answer, again: &Answer) -> Result<(), String> {
    let of = |answer: &Answer| {
        let own = ["content-type", "cache-control", "pragma", "location"];
        let headers = own.map(|name| answer.header(name).map(str::to_owned));
        (answer.status, headers, answer.body.clone())
    };
    let is_marked = again.header("idempotency-replayed") == Some("true")
        && first.header("idempotency-replayed").is_none();
    if of(first) == of(again) && is_marked {
        Ok(())
    } else {
        Err(format!("first {first:?}, then {again:?}"))
    }
}

async fn count(app: &TestApp, sql: &'static str) -> i64 {
    app.app.db.query(sql, &[]).await.unwrap()[0].get(0)
}

const ENTRIES: &str = "select count(*) from audit_entries where status < 400";
const KEYS: &str = "select count(*) from idempotency_keys";

/// Sends the first request with a key. Returns `None` if it is rejected, which must leave no
/// record.
async fn first(app: &TestApp, change: &Change) -> Result<Option<Answer>, String> {
    let keys = count(app, KEYS).await;
    let first = change.send(app, change.endpoint.id).await;
    if first.status.is_success() {
        return Ok(Some(first));
    }
    if first.status.is_client_error() && count(app, KEYS).await != keys {
        return Err(format!("a rejected request is recorded: {first:?}"));
    }
    Ok(None)
}

#[tokio::test]
async fn repeated_request_gets_the_first_answer_from_every_operation() {
    let app = TestApp::new().await;
    let (mut found, mut rejected) = (Findings::default(), BTreeSet::new());
    for endpoint in changing() {
        let change = Change::of(&app, endpoint).await;
        let answer = match first(&app, &change).await {
            Ok(Some(answer)) => answer,
            Ok(None) => {
                rejected.insert(endpoint.id);
                continue;
            }
            Err(problem) => {
                found.add(endpoint, problem);
                continue;
            }
        };
        let entries = count(&app, ENTRIES).await;
        let again = change.send(&app, endpoint.id).await;
        if let Err(problem) = replayed(&answer, &again) {
            found.add(endpoint, problem);
        }
        if count(&app, ENTRIES).await != entries {
            found.add(endpoint, "the change was made twice");
        }
        // A deleted target is not found for any other request.
        let other = change.path.replace('?', "?other=1&");
        let other = if other == change.path {
            format!("{other}?other=1")
        } else {
            other
        };
        let other = change.send_to(&app, endpoint.id, &other).await;
        let is_gone = endpoint.id == "v1-delete-a-project" && other.status == 404;
        if !is_gone && let Err(problem) = expect("other", &other, 409, Some("another request")) {
            found.add(endpoint, problem);
        }
    }
    let _ = app.log.take_errors();
    found.verdict("repeated");
    let expected: BTreeSet<_> = REJECTED.iter().copied().collect();
    assert_eq!(rejected, expected, "requests that were rejected");
    app.advance(86_401);
    cleanup::clean(&app.app.db, app.clock.now()).await.unwrap();
    assert_eq!(count(&app, KEYS).await, 0);
}

#[tokio::test]
async fn repeated_request_is_truthful_after_a_kill_before_the_answer_of_every_operation() {
    let app = TestApp::new().await;
    let client = app.app.db.client().await.unwrap();
    client.batch_execute(LOSE_ANSWERS).await.unwrap();
    drop(client);
    let (mut found, mut checked) = (Findings::default(), 0);
    for endpoint in changing() {
        let change = Change::of(&app, endpoint).await;
        match first(&app, &change).await {
            Ok(None) => {}
            Ok(Some(answer)) => {
                checked += 1;
                if let Err(problem) = change.check_after_loss(&app, &answer).await {
                    found.add(endpoint, problem);
                }
            }
            Err(problem) => found.add(endpoint, problem),
        }
    }
    let _ = app.log.take_errors();
    found.verdict("repeated");
    assert!(
        checked + REJECTED.len() >= changing().len(),
        "{checked} operations"
    );
}

/// Calls the operations of a running project twice, after a loss of the answer if `is_lost`.
async fn check_running(is_lost: bool) {
    let mut app = TestApp::running().await;
    app.home.project = app.real_project().await;
    if is_lost {
        let client = app.app.db.client().await.unwrap();
        client.batch_execute(LOSE_ANSWERS).await.unwrap();
    }
    let (mut found, mut checked) = (Findings::default(), Vec::new());
    for endpoint in changing() {
        if !RUNNING.contains(&endpoint.id) {
            continue;
        }
        let change = Change::of(&app, endpoint).await;
        let answer = change.send(&app, endpoint.id).await;
        if !answer.status.is_success() {
            continue;
        }
        checked.push(endpoint.id);
        let outcome = if is_lost {
            change.check_after_loss(&app, &answer).await
        } else {
            replayed(&answer, &change.send(&app, endpoint.id).await)
        };
        if let Err(problem) = outcome {
            found.add(endpoint, problem);
        }
    }
    let _ = app.log.take_errors();
    app.node.stop().await;
    found.verdict("repeated");
    assert!(checked.len() >= RUNNING_MIN, "{checked:?}");
}

#[tokio::test]
async fn repeated_request_about_a_running_project_gets_the_first_answer() {
    check_running(false).await;
}

#[tokio::test]
async fn repeated_request_about_a_running_project_is_truthful_after_a_kill() {
    check_running(true).await;
}

#[tokio::test]
async fn invalid_key_is_rejected_by_every_operation() {
    let app = TestApp::new().await;
    let mut found = Findings::default();
    for endpoint in changing() {
        // The shared request of this operation only reads.
        if endpoint.id == "v1-run-a-query" {
            continue;
        }
        for spelling in spellings(endpoint) {
            let answer = call(&app, endpoint, spelling, &app.home)
                .as_(&app.owner)
                .header("idempotency-key", &"k".repeat(256))
                .send()
                .await;
            if let Err(problem) = expect("key", &answer, 400, Some("Idempotency-Key: expected")) {
                found.add(endpoint, problem);
            }
        }
    }
    found.verdict("repeated");
}
