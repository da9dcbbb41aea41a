//! All settings of a project as one document: plan, apply, drift, versions.

use std::sync::Arc;

use gantry::control::projects::{Status, reconciler::recover_on_startup};
use gantry_base::ids::ProjectRef;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::support::{TestApp, machine::PATIENCE};

async fn plan(app: &TestApp, body: &Value) -> Value {
    let call = app.post(&app.at("/config/plan")).as_(&app.owner).json(body);
    call.send().await.expect(200).json()
}

async fn apply(app: &TestApp, document: &Value, hash: &Value, status: u16) -> Value {
    let body = json!({"document": document, "hash": hash, "baseline": true});
    let call = app.post(&app.at("/config/apply")).as_(&app.owner);
    call.json(&body).send().await.expect(status).json()
}

/// Plans and applies a document.
async fn set(app: &TestApp, document: Value) -> Value {
    let hash = plan(app, &json!({"document": document})).await["hash"].clone();
    apply(app, &document, &hash, 200).await
}

async fn get(app: &TestApp, path: &str) -> Value {
    let answer = app.get(&app.at(path)).as_(&app.owner).send().await;
    answer.expect(200).json()
}

#[tokio::test]
async fn plan_names_changes_and_restarts_and_stores_nothing() {
    let app = TestApp::new().await;
    let before = get(&app, "/config/auth").await;
    let document = json!({
        "auth": {"jwt_exp": 60, "smtp_pass": "correct-horse", "site_url": "http://localhost:3000"},
        "api": {"max_rows": 5, "db_pool": 7},
        "storage": {"fileSizeLimit": 9},
        "database": {"ssl_enforced": true},
    });
    let plan = plan(&app, &json!({"document": document})).await;
    let changes: Vec<(&str, &str)> = plan["changes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| {
            (
                it["setting"].as_str().unwrap(),
                it["effect"].as_str().unwrap(),
            )
        })
        .collect();
    let expected = [
        ("api.db_pool", "restart"),
        ("api.max_rows", "reload"),
        ("auth.jwt_exp", "restart"),
        ("auth.smtp_pass", "restart"),
        ("database.ssl_enforced", "immediate"),
        ("storage.fileSizeLimit", "immediate"),
    ];
    assert_eq!(changes, expected);
    assert_eq!(plan["restarts"], json!(["auth", "rest"]));
    assert!(!plan.to_string().contains("correct-horse"));
    assert_eq!(get(&app, "/config/auth").await, before);
}

#[tokio::test]
async fn apply_changes_all_sections_or_none() {
    let app = TestApp::new().await;
    let document = json!({
        "auth": {"jwt_exp": 60},
        "api": {"max_rows": 5},
        "realtime": {"max_concurrent_users": 7},
        "storage": {"fileSizeLimit": 9},
        "database": {"allowed_cidrs": ["192.0.2.0/24"]},
    });
    set(&app, document.clone()).await;
    assert_eq!(get(&app, "/config/auth").await["jwt_exp"], 60);
    assert_eq!(get(&app, "/postgrest").await["max_rows"], 5);
    assert_eq!(get(&app, "/config/storage").await["fileSizeLimit"], 9);
    let exported = get(&app, "/config/document").await["document"].clone();
    assert_eq!(exported, document);
    let again = set(&app, document.clone()).await;
    assert_eq!(again["changes"], json!([]));
    for (bad, message) in [
        (
            json!({"storage": {"fileSizeLimit": 10}, "auth": {"jwt_exp": -1}}),
            "auth.jwt_exp: Too small: expected number to be >=0",
        ),
        (
            json!({"storage": {"fileSizeLimit": 10}, "auth": {"jwt_exp": "60"}}),
            "auth.jwt_exp: Invalid input: expected number, received string",
        ),
        (
            json!({"auth": {"nonsense": 1}}),
            "auth.nonsense: Unrecognized key",
        ),
        (json!({"nonsense": {}}), "nonsense: Unrecognized key"),
        (
            json!({"auth": 1}),
            "auth: Invalid input: expected object, received number",
        ),
        (
            json!({"database": {"allowed_cidrs": ["nowhere"]}}),
            "database.allowed_cidrs: Invalid string: must be networks such as 10.0.0.0/8",
        ),
    ] {
        let answer = apply(&app, &bad, &json!("0"), 400).await;
        assert_eq!(answer["message"], message);
    }
    assert_eq!(get(&app, "/config/document").await["document"], document);
}

#[tokio::test]
async fn apply_after_another_change_returns_409() {
    let app = TestApp::new().await;
    let document = json!({"auth": {"jwt_exp": 60}});
    let hash = plan(&app, &json!({"document": document})).await["hash"].clone();
    let other = json!({"auth": {"jwt_exp": 61}});
    apply(&app, &other, &hash, 409).await;
    let change = json!({"fileSizeLimit": 7});
    let call = app
        .request("PATCH", &app.at("/config/storage"))
        .as_(&app.owner);
    call.json(&change).send().await.expect(200);
    apply(&app, &document, &hash, 409).await;
    assert_eq!(get(&app, "/config/auth").await["jwt_exp"], 3600);
}

#[tokio::test]
async fn drift_names_settings_that_were_changed_after_a_document() {
    let app = TestApp::new().await;
    assert_eq!(get(&app, "/config/drift").await["applied_at"], Value::Null);
    set(
        &app,
        json!({"auth": {"jwt_exp": 60, "smtp_pass": "first-secret"}}),
    )
    .await;
    assert_eq!(get(&app, "/config/drift").await["settings"], json!([]));
    let change = json!({"jwt_exp": 90, "smtp_pass": "second-secret", "disable_signup": true});
    let call = app
        .request("PATCH", &app.at("/config/auth"))
        .as_(&app.owner);
    call.json(&change).send().await.expect(200);
    let drift = get(&app, "/config/drift").await;
    let names: Vec<&Value> = drift["settings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["setting"])
        .collect();
    assert_eq!(names, ["auth.jwt_exp", "auth.smtp_pass"]);
    assert_eq!(drift["settings"][0]["applied"], 60);
    assert_eq!(drift["settings"][1]["secret"], true);
    let health = get(&app, "/health?services=db&timeout_ms=10").await;
    let note = health[0]["error"].as_str().unwrap();
    assert!(note.contains("auth.jwt_exp, auth.smtp_pass"), "{note}");
}

#[tokio::test]
async fn versions_come_from_the_audit_log_and_can_be_restored() {
    let app = TestApp::new().await;
    set(
        &app,
        json!({"auth": {"jwt_exp": 60}, "storage": {"fileSizeLimit": 9}}),
    )
    .await;
    let patch = async |path: &str, change: Value| {
        let call = app.request("PATCH", &app.at(path)).as_(&app.owner);
        call.json(&change).send().await;
    };
    patch(
        "/config/auth",
        json!({"jwt_exp": 90, "password_min_length": 12, "smtp_pass": "s3cret-word"}),
    )
    .await;
    patch("/postgrest", json!({"max_rows": 3})).await;
    patch("/config/auth", json!({"smtp_pass": null, "jwt_exp": 120})).await;
    let versions = get(&app, "/config/versions").await;
    let versions = versions.as_array().unwrap();
    assert_eq!(versions.len(), 4);
    assert_eq!(versions[0]["operation"], "v1-update-auth-service-config");
    assert_eq!(versions[3]["operation"], "gantry-apply-project-config");
    let sql = "select username from users where id = $1";
    let rows = app.app.db.query(sql, &[&app.owner.user.0]).await.unwrap();
    assert_eq!(versions[0]["author"], rows[0].get::<_, &str>(0));
    let second = &versions[2];
    let change = &second["changes"][1];
    assert_eq!(change["setting"], "auth.password_min_length");
    assert_eq!(
        (&change["before"], &change["after"]),
        (&json!(6), &json!(12))
    );
    let first = versions[3]["version"].clone();
    let request = json!({"version": first});
    let back = plan(&app, &request).await;
    let names: Vec<&Value> = back["changes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["setting"])
        .collect();
    assert_eq!(
        names,
        ["api.max_rows", "auth.jwt_exp", "auth.password_min_length"]
    );
    assert_eq!(back["unavailable"], json!([]));
    let with_secret = plan(&app, &json!({"version": second["version"]})).await;
    assert_eq!(with_secret["unavailable"], json!(["auth.smtp_pass"]));
    let body = json!({"version": first, "hash": back["hash"]});
    let call = app
        .post(&app.at("/config/apply"))
        .as_(&app.owner)
        .json(&body);
    call.send().await.expect(200);
    assert_eq!(get(&app, "/config/auth").await["jwt_exp"], 60);
    assert_eq!(get(&app, "/postgrest").await["max_rows"], 1000);
    assert_eq!(get(&app, "/config/storage").await["fileSizeLimit"], 9);
    let none = json!({"version": 1_000_000});
    let call = app
        .post(&app.at("/config/plan"))
        .as_(&app.owner)
        .json(&none);
    call.send().await.expect(400);
}

#[tokio::test]
async fn documents_need_permission_for_every_section() {
    let app = TestApp::new().await;
    let body = json!({"document": {}, "hash": "0"});
    for (path, member, status) in [
        ("/config/plan", &app.developer, 200),
        ("/config/apply", &app.developer, 403),
        ("/config/apply", &app.read_only, 403),
        ("/config/plan", &app.stranger, 404),
    ] {
        let body = if path.ends_with("plan") {
            json!({"document": {}})
        } else {
            body.clone()
        };
        let call = app.post(&app.at(path)).as_(member).json(&body);
        call.send().await.expect(status);
    }
}

#[tokio::test]
async fn secrets_are_nowhere_in_clear() {
    let app = TestApp::new().await;
    let secret = "correct-horse-battery-staple";
    let document = json!({"auth": {
        "smtp_pass": secret, "external_github_enabled": true,
        "external_github_client_id": "id", "external_github_secret": secret,
    }});
    set(&app, document).await;
    let tables = "select table_name from information_schema.tables where table_schema = 'public'";
    let client = app.app.db.client().await.unwrap();
    let rows = client.query(tables, &[]).await.unwrap();
    assert!(rows.len() > 20);
    for row in rows {
        let name: &str = row.get(0);
        let sql = format!("select coalesce(string_agg(t::text, ''), '') from {name} t");
        let all = client.query(&sql, &[]).await.unwrap();
        let text: String = all[0].get(0);
        let hexadecimal = hex::encode(secret);
        assert!(
            !text.contains(secret) && !text.contains(&hexadecimal),
            "{name}"
        );
    }
    for path in [
        "/config/document?all=true",
        "/config/versions",
        "/config/drift",
        "/config/auth",
    ] {
        let answer = get(&app, path).await.to_string();
        assert!(!answer.contains(secret), "{path}");
    }
}

/// Applies a document, and ends before the server has started with it, as a killed process does.
async fn apply_and_die(app: &TestApp, project: &ProjectRef, document: Value) {
    let path = format!("/v1/projects/{project}/config");
    let planned = app.post(&format!("{path}/plan")).as_(&app.owner);
    let planned = planned.json(&json!({"document": document})).send().await;
    let hash = planned.expect(200).json()["hash"].clone();
    let apply = app.post(&format!("{path}/apply")).as_(&app.owner);
    let body = json!({"document": document, "hash": hash});
    let apply = apply.json(&body).send();
    let stored = async {
        let sql = "select from settings_fallbacks where after is not null";
        while app.app.db.query(sql, &[]).await.unwrap().is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        answer = apply => panic!("it did not wait for the server: {}", answer.text()),
        stored = timeout(PATIENCE, stored) => stored.unwrap(),
    }
}

async fn restart(app: &mut TestApp, project: &ProjectRef) {
    let machine = Arc::clone(&app.machine);
    let restarted = app.another(1, machine);
    app.node = restarted;
    recover_on_startup(&app.app).await.unwrap();
    app.node.start();
    app.until(project, Status::ActiveHealthy).await;
}

#[tokio::test]
async fn settings_of_a_killed_process_are_in_effect_as_a_whole_or_return() {
    let mut app = TestApp::running().await;
    let project = app.real_project().await;
    let shown = async |app: &TestApp| {
        let at = |path: &str| format!("/v1/projects/{project}{path}");
        let document = app.get(&at("/config/document")).as_(&app.owner);
        let document = document.send().await.expect(200).json()["document"].clone();
        let rows = "select from settings_fallbacks";
        let kept = app.app.db.query(rows, &[]).await.unwrap().len();
        (document, kept)
    };
    let change = app.patch(&format!("/v1/projects/{project}/config/auth"));
    let change = change.as_(&app.owner).json(&json!({"jwt_exp": 60}));
    change.send().await.expect(200);
    let before = json!({"auth": {"jwt_exp": 60}});

    app.node.kill();
    let refused = json!({
        "auth": {"jwt_exp": 120, "smtp_pass": "correct-horse"},
        "api": {"max_rows": 5},
        "storage": {"fileSizeLimit": 9},
        "database": {"allowed_cidrs": ["192.0.2.0/24"]},
        // Valid, but fewer than the server reserves.
        "postgres": {"max_connections": 3},
    });
    apply_and_die(&app, &project, refused).await;
    assert_eq!(shown(&app).await.0["auth"], json!({"jwt_exp": 120}));
    restart(&mut app, &project).await;
    assert_eq!(shown(&app).await, (before, 0));
    let auth = app.get(&format!("/v1/projects/{project}/config/auth"));
    let auth = auth.as_(&app.owner).send().await.expect(200).json();
    assert_eq!(auth["smtp_pass"], Value::Null);

    app.node.kill();
    let accepted = json!({
        "auth": {"jwt_exp": 130},
        "api": {"max_rows": 6},
        "database": {"allowed_cidrs": ["192.0.2.0/24"]},
        "postgres": {"max_connections": 45},
    });
    apply_and_die(&app, &project, accepted.clone()).await;
    restart(&mut app, &project).await;
    assert_eq!(shown(&app).await, (accepted, 0));
}
