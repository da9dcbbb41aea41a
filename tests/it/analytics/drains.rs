//! The operations on log drains: validation, redaction, permissions and audit entries.

use gantry::platform::tables::Table;
use serde_json::{Value, json};

use crate::support::{TestApp, client::Answer};

/// The path of the drains of the home project.
pub(super) fn drains(app: &TestApp) -> String {
    format!("/v2/projects/{}/analytics/log-drains", app.home.project)
}

/// The body of a request with these attributes.
pub(super) fn body(attributes: &Value) -> Value {
    json!({ "data": { "type": "log_drain", "attributes": attributes } })
}

fn loki() -> Value {
    json!({
        "name": "Loki",
        "description": "Ours",
        "backend_type": "loki",
        "config": { "url": "http://127.0.0.1:9/loki/api/v1/push", "username": "ada", "password": "hush" },
    })
}

async fn create(app: &TestApp, attributes: Value) -> Answer {
    app.post(&drains(app))
        .as_(&app.administrator)
        .json(&body(&attributes))
        .send()
        .await
}

async fn list(app: &TestApp) -> Value {
    let answer = app.get(&drains(app)).as_(&app.developer).send().await;
    answer.expect(200).json()["data"].clone()
}

#[tokio::test]
async fn log_drain_is_created_listed_updated_and_deleted() {
    let app = TestApp::new().await;
    let created = create(&app, loki()).await.expect(201).json();
    let id = created["data"]["id"].as_str().unwrap().to_owned();
    let expected = json!({
        "type": "log_drain",
        "id": id,
        "attributes": {
            "name": "Loki",
            "description": "Ours",
            "backend_type": "loki",
            "config": { "url": "http://127.0.0.1:9/loki/api/v1/push", "username": "ada", "password": "[redacted]" },
        },
    });
    assert_eq!(created, json!({ "data": expected }));
    assert_eq!(list(&app).await, json!([expected]));

    let at = format!("{}/{id}", drains(&app));
    let put = async |attributes: Value| {
        app.request("PUT", &at)
            .as_(&app.administrator)
            .json(&body(&attributes))
            .send()
            .await
    };
    // Only the type is required, and a redacted secret stays.
    put(json!({ "backend_type": "loki" })).await.expect(200);
    let config = created["data"]["attributes"]["config"].clone();
    let renamed = put(json!({ "backend_type": "loki", "name": "Other", "config": config }))
        .await
        .expect(200)
        .json();
    assert_eq!(renamed["data"]["attributes"]["name"], "Other");
    assert_eq!(renamed["data"]["attributes"]["description"], "Ours");
    assert_eq!(renamed["data"]["attributes"]["config"], config);
    // Another type needs its own settings.
    let missing = put(json!({ "backend_type": "datadog" })).await.expect(400);
    assert_eq!(
        missing.message(),
        "data.attributes.config.api_key: Required"
    );
    put(json!({ "backend_type": "datadog", "config": { "api_key": "k", "region": "EU" } }))
        .await
        .expect(200);

    let remove = || app.delete(&at).as_(&app.administrator).send();
    remove().await.expect(204);
    remove().await.expect(404);
    assert_eq!(list(&app).await, json!([]));
}

#[tokio::test]
async fn log_drain_secrets_are_sealed_redacted_and_bound_to_the_destination() {
    let app = TestApp::new().await;
    let drain = json!({
        "name": "Hook",
        "backend_type": "webhook",
        "config": {
            "url": "http://127.0.0.1:9/in?token=hush-1",
            "headers": { "authorization": "Bearer hush-2" },
        },
    });
    let created = create(&app, drain).await.expect(201).json();
    let id = created["data"]["id"].as_str().unwrap().to_owned();
    let shown = created["data"]["attributes"]["config"].clone();
    assert_eq!(
        shown,
        json!({
            "url": "http://127.0.0.1:9/in?[redacted]",
            "headers": { "authorization": "[redacted]" },
        })
    );
    let stored: Vec<u8> = app
        .app
        .db
        .query("select config from log_drains", &[])
        .await
        .unwrap()[0]
        .get(0);
    assert!(!stored.windows(4).any(|part| part == b"hush"));

    let at = format!("{}/{id}", drains(&app));
    let put = async |config: Value| {
        app.request("PUT", &at)
            .as_(&app.administrator)
            .json(&body(
                &json!({ "backend_type": "webhook", "config": config }),
            ))
            .send()
            .await
    };
    put(shown).await.expect(200);
    // A stored secret is never sent to another destination.
    let stolen = put(json!({
        "url": "http://127.0.0.2:9/",
        "headers": { "authorization": "[redacted]" },
    }))
    .await
    .expect(400);
    assert!(
        stolen
            .message()
            .starts_with("data.attributes.config.headers.authorization: [redacted] stands for"),
        "{}",
        stolen.message()
    );

    let sql = "select count(*) from audit_entries where operation like '%log-drain%'";
    let entries = app.app.db.query(sql, &[]).await.unwrap()[0].get::<_, i64>(0);
    assert_eq!(entries, 3, "creation, update and the rejected update");
    let sql = "select count(*) from audit_entries where audit_entries::text like '%hush%'";
    let leaks = app.app.db.query(sql, &[]).await.unwrap()[0].get::<_, i64>(0);
    assert_eq!(leaks, 0);
}

#[tokio::test]
async fn log_drain_with_private_destination_returns_400() {
    let app = TestApp::new().await;
    let cases = [
        ("webhook", json!({ "url": "http://10.0.0.1/" })),
        ("webhook", json!({ "url": "http://169.254.169.254/latest" })),
        ("webhook", json!({ "url": "http://[::1]:8080/" })),
        ("webhook", json!({ "url": "http://0x0a.1/" })),
        ("loki", json!({ "url": "http://192.168.1.1/" })),
        ("otlp", json!({ "endpoint": "http://[fd00::1]/" })),
        ("syslog", json!({ "host": "::1", "port": 6514 })),
    ];
    for (kind, config) in cases {
        let drain = json!({ "name": "x", "backend_type": kind, "config": config });
        let refused = create(&app, drain).await.expect(400);
        assert!(
            refused.message().contains("is not public"),
            "{config}: {}",
            refused.message()
        );
    }
    assert_eq!(list(&app).await, json!([]));
}

#[tokio::test]
async fn invalid_log_drain_returns_400() {
    let app = TestApp::new().await;
    let url = json!({ "url": "http://127.0.0.1:9/" });
    for (attributes, message) in [
        (
            json!({ "name": "x", "backend_type": "bigquery", "config": {} }),
            "data.attributes.backend_type: bigquery is not supported; use one of webhook, datadog, loki, otlp, s3, syslog",
        ),
        (
            json!({ "name": "", "backend_type": "webhook", "config": url }),
            "data.attributes.name",
        ),
        (
            json!({ "backend_type": "webhook", "config": url }),
            "data.attributes.name: Required",
        ),
        (
            json!({ "name": "x", "backend_type": "webhook" }),
            "data.attributes.config: Required",
        ),
        (
            json!({ "name": "x", "backend_type": "webhook", "config": [] }),
            "data.attributes.config: Invalid input",
        ),
        (
            json!({ "name": "x", "backend_type": "splunk", "config": {} }),
            "data.attributes.backend_type: Invalid input",
        ),
    ] {
        let refused = create(&app, attributes).await.expect(400);
        assert!(
            refused.message().starts_with(message),
            "{message}: {}",
            refused.message()
        );
    }
    for _ in 0..10 {
        create(&app, loki()).await.expect(201);
    }
    assert_eq!(
        create(&app, loki()).await.expect(400).message(),
        "A project can have 10 log drains; delete one first"
    );
}

#[tokio::test]
async fn log_drain_of_another_project_is_not_found() {
    let app = TestApp::new().await;
    let created = create(&app, loki()).await.expect(201).json();
    let id = created["data"]["id"].as_str().unwrap().to_owned();
    let at = format!(
        "/v2/projects/{}/analytics/log-drains/{id}",
        app.foreign.project
    );
    let change = body(&json!({ "backend_type": "loki", "name": "Stolen" }));
    app.request("PUT", &at)
        .as_(&app.stranger)
        .json(&change)
        .send()
        .await
        .expect(404);
    app.delete(&at).as_(&app.stranger).send().await.expect(404);
    app.get(&drains(&app))
        .as_(&app.stranger)
        .send()
        .await
        .expect(404);
    app.get(&drains(&app))
        .as_(&app.read_only)
        .send()
        .await
        .expect(403);
    app.post(&drains(&app))
        .as_(&app.developer)
        .json(&body(&loki()))
        .send()
        .await
        .expect(403);
    assert_eq!(list(&app).await[0]["attributes"]["name"], "Loki");
    assert_eq!(Table::LogDrains.name(), "log_drains");
}
