//! Simulated requests and recorded calls of tokens.

use serde_json::{Value, json};
use tokio::time::timeout;

use super::{draft, projects, scoped};
use crate::support::{TestApp, machine::PATIENCE};

#[tokio::test]
async fn simulation_returns_outcome_and_reason() {
    let app = TestApp::new().await;
    let (_, made) = scoped(
        &app,
        &app.developer,
        draft(projects(&[&app.home.project]), &["project_admin_read"]),
    )
    .await;
    let simulate = async |request: Value| {
        let answer = app
            .post("/v1/tokens/simulate")
            .as_(&app.developer)
            .json(&request)
            .send()
            .await
            .expect(200)
            .json();
        (answer["rule"].as_str().unwrap().to_owned(), answer)
    };
    let by_id =
        |method: &str, path: String| json!({"token_id": made.0, "method": method, "path": path});
    let (rule, answer) = simulate(by_id("GET", app.at(""))).await;
    assert_eq!(rule, "permissions");
    assert_eq!(
        answer,
        json!({
            "allowed": true,
            "rule": "permissions",
            "operation": "v1-get-project",
            "accepted_permissions": [["project_admin_read"]],
            "missing_permissions": [],
            "role": "developer",
        })
    );
    let (rule, answer) = simulate(by_id("GET", app.at("/api-keys?reveal=true"))).await;
    assert_eq!(
        (&*rule, &answer["status"], &answer["case"]),
        ("missing_permissions", &json!(403), &json!("`reveal=true`"))
    );
    assert_eq!(
        answer["missing_permissions"],
        json!(["api_gateway_keys_read", "api_gateway_keys_secret_read"])
    );
    assert_eq!(
        answer["message"],
        "Missing required permission(s): api_gateway_keys_read, api_gateway_keys_secret_read"
    );
    for (method, path, expected) in [
        ("DELETE", app.at(""), "role"),
        (
            "GET",
            format!("/v1/projects/{}", app.foreign.project),
            "not_visible",
        ),
        ("GET", "/v1/nonsense".to_owned(), "unknown_route"),
        ("GET", "/v1/profile".to_owned(), "account_only"),
        ("GET", "/v1/tokens".to_owned(), "unscoped_only"),
        ("GET", "/v1/compatibility".to_owned(), "public"),
        (
            "GET",
            "/v1/projects/available-regions".to_owned(),
            "any_token",
        ),
    ] {
        let (rule, answer) = simulate(by_id(method, path.clone())).await;
        assert_eq!(rule, expected, "{method} {path}");
        assert_eq!(
            answer["allowed"],
            matches!(expected, "public" | "any_token"),
            "{method} {path}"
        );
    }

    let body = |read_only: bool| {
        json!({
            "project_refs": [app.home.project], "permissions": ["database_read"],
            "method": "POST", "path": app.at("/database/query"), "body": {"read_only": read_only},
        })
    };
    assert_eq!(
        (simulate(body(true)).await.0, simulate(body(false)).await.0),
        ("permissions".to_owned(), "missing_permissions".to_owned())
    );
    let mut elsewhere = body(true);
    (elsewhere["networks"], elsewhere["address"]) = (json!(["192.0.2.0/24"]), json!("192.0.3.1"));
    assert_eq!(simulate(elsewhere.clone()).await.0, "credential");
    elsewhere["address"] = json!("192.0.2.1");
    assert_eq!(simulate(elsewhere).await.0, "permissions");

    let another =
        json!({"token_id": app.owner.token_id.0, "method": "GET", "path": "/v1/projects"});
    app.post("/v1/tokens/simulate")
        .as_(&app.developer)
        .json(&another)
        .send()
        .await
        .expect(404);
    app.advance(7 * 86_400);
    assert_eq!(
        simulate(by_id("GET", app.at(""))).await.0,
        "credential",
        "it has expired"
    );
}

/// Waits until this many rows of use are written.
async fn wait_for_recorded_calls(app: &TestApp, rows: i64) {
    let written = async {
        while app
            .app
            .db
            .query("select count(*) from token_calls", &[])
            .await
            .unwrap()[0]
            .get::<_, i64>(0)
            < rows
        {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, written)
        .await
        .expect("what was called is not written");
}

#[tokio::test]
async fn usage_proposes_the_smallest_sufficient_token() {
    let mut app = TestApp::new().await;
    let wide = draft(
        projects(&[&app.home.project]),
        &[
            "project_admin_read",
            "database_read",
            "api_gateway_keys_read",
            "storage_read",
        ],
    );
    let (token, id) = scoped(&app, &app.owner, wide).await;
    app.get(&app.at("")).token(&token).send().await.expect(200);
    app.get(&app.at("")).token(&token).send().await.expect(200);
    app.get(&app.at("/api-keys"))
        .token(&token)
        .send()
        .await
        .expect(200);
    // Rejected calls are not recorded.
    app.get(&app.at("/config/auth"))
        .token(&token)
        .send()
        .await
        .expect(403);
    app.get("/v1/profile")
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    // Nothing is written before the background task starts; then all calls are.
    app.node.start();
    wait_for_recorded_calls(&app, 3).await;

    let usage = app
        .get(&format!("/v1/tokens/{}/usage", id.0))
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(
        usage,
        json!({
            "days": 30,
            "operations": [
                {
                    "operation": "v1-get-project", "days": 1, "last_used_on": "2026-11-21",
                    "accepted_permissions": [["project_admin_read"]],
                },
                {
                    "operation": "v1-get-project-api-keys", "case": "otherwise", "days": 1, "last_used_on": "2026-11-21",
                    "accepted_permissions": [["api_gateway_keys_read"]],
                },
            ],
            "permissions": ["api_gateway_keys_read", "project_admin_read"],
            "unused_permissions": ["database_read", "storage_read"],
            "needs_account": false,
        })
    );
    let classic = app
        .get(&format!("/v1/tokens/{}/usage", app.owner.token_id.0))
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(
        (
            &classic["needs_account"],
            &classic["permissions"],
            &classic["unused_permissions"]
        ),
        (&json!(true), &json!([]), &json!([]))
    );

    let path = format!("/v1/tokens/{}/usage?days=1", id.0);
    app.advance(86_400);
    assert_eq!(
        app.get(&path)
            .as_(&app.owner)
            .send()
            .await
            .expect(200)
            .json()["operations"],
        json!([]),
        "yesterday's"
    );
    app.get(&path).as_(&app.developer).send().await.expect(404);
    app.get(&path.replace("=1", "=91"))
        .as_(&app.owner)
        .send()
        .await
        .expect(400);
}
