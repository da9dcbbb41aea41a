//! Log queries: time ranges, response format, rate limits and isolation of projects.

use gantry::platform::http::Transport;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{ask, question};
use crate::support::{TestApp, dawn, settings};

#[tokio::test]
async fn management_requests_are_logged_per_project() {
    let mut app = TestApp::new().await;
    app.node.start();
    for _ in 0..3 {
        app.get(&app.at("/api-keys"))
            .as_(&app.owner)
            .header("user-agent", "curl/8")
            .send()
            .await
            .expect(200);
    }
    app.get(&app.at("/api-keys"))
        .as_(&app.stranger)
        .send()
        .await
        .expect(404);
    app.get(&format!("/v1/projects/{}", app.foreign.project))
        .as_(&app.stranger)
        .send()
        .await
        .expect(200);
    app.app.analytics.close().await;
    let sql = "select log_attributes['operation'] as operation, log_attributes['request.path'] as path, count() as n, \
               any(log_attributes['request.headers.user_agent']) as agent from logs where source = 'management_logs' group by operation, path";
    let found = ask(&app, &app.owner, &app.home.project, sql, dawn()).await;
    let path = app.at("/api-keys");
    assert_eq!(
        found,
        [
            json!({ "operation": "v1-get-project-api-keys", "path": path, "n": 3, "agent": "curl/8" })
        ]
    );
}

#[tokio::test]
async fn invalid_statement_returns_error_in_body() {
    let app = TestApp::new().await;
    let project = &app.home.project;
    for (operation, sql) in [
        ("logs", "select nonsense from"),
        ("logs", "delete from logs"),
        ("logs", "select * from pg_catalog.pg_class"),
        ("logs.all", "select nothing from edge_logs"),
        ("logs.all", "select id from logs; select 1"),
    ] {
        let body = app
            .get(&question(project, operation, sql, dawn()))
            .as_(&app.read_only)
            .send()
            .await
            .expect(200)
            .json();
        assert!(
            body.get("result").is_none() && body["error"].is_string(),
            "{sql}: {body}"
        );
    }
    let nothing = app
        .get(&app.at("/endpoints/logs.all?iso_timestamp_start="))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    assert_eq!(nothing.json(), json!({ "result": [] }));
    assert_eq!(
        (
            nothing.header("x-gantry-scanned-rows"),
            nothing.header("x-gantry-scanned-bytes")
        ),
        (Some("0"), Some("0"))
    );
    let start = "iso_timestamp_start=2026-11-19T00:00:00Z";
    let long = app
        .get(&app.at(&format!("/endpoints/logs.all?{start}")))
        .as_(&app.owner)
        .send()
        .await
        .expect(400);
    assert_eq!(
        long.json()["message"],
        "iso_timestamp_start: must not be more than 24 hours before iso_timestamp_end"
    );
}

#[tokio::test]
async fn full_queue_of_log_queries_returns_429_with_retry_after() {
    let app = TestApp::new().await;
    let mut options = settings(Transport::default(), Uuid::from_u128(2));
    options.logs.query_bounds.waiting_project = 0;
    let node = app.another_with(options, app.machine.clone());
    let project = &app.home.project;
    let paths = [
        question(project, "logs", "select id from logs", dawn()),
        question(project, "logs.all", "select id from edge_logs", dawn()),
        app.at("/analytics/endpoints/usage.api-counts"),
    ];
    for path in paths {
        let answer = node.get(&path).as_(&app.owner).send().await.expect(429);
        assert_eq!(answer.header("retry-after"), Some("5"), "{path}");
        let message = answer.json()["message"].as_str().unwrap().to_owned();
        assert!(
            !message.is_empty() && !message.contains("Backend"),
            "{message}"
        );
    }
}

#[tokio::test]
async fn log_endpoints_share_rate_limits_by_dialect() {
    let app = TestApp::new().await;
    let remaining = async |path: &str| {
        app.get(&app.at(path))
            .as_(&app.owner)
            .send()
            .await
            .expect(200)
            .quota
    };
    assert_eq!(remaining("/endpoints/logs.all").await.remaining, 29);
    assert_eq!(
        remaining("/analytics/endpoints/logs.all").await.remaining,
        28
    );
    let newer = remaining("/analytics/endpoints/logs").await;
    assert_eq!((newer.limit, newer.remaining), (10, 9));
}

#[tokio::test]
async fn project_removal_deletes_lines() {
    let app = TestApp::new().await;
    let project = &app.home.project;
    let made = app
        .post(&app.at("/analytics/ingest-keys"))
        .as_(&app.owner)
        .json(&json!({ "name": "x" }))
        .send()
        .await
        .expect(201);
    let key = made.json()["key"].as_str().unwrap().to_owned();
    let line = json!({ "event_message": "m", "timestamp": dawn() });
    app.post("/api/logs?source_name=auth_logs")
        .header("x-api-key", &key)
        .json(&line)
        .send()
        .await
        .expect(200);
    let sql = "select event_message from logs";
    assert_eq!(
        ask(&app, &app.owner, project, sql, dawn()).await,
        [json!({ "event_message": "m" })]
    );
    assert_eq!(
        ask(&app, &app.stranger, &app.foreign.project, sql, dawn()).await,
        [] as [Value; 0]
    );
    app.app.analytics.delete_project(project).await.unwrap();
    assert_eq!(
        ask(&app, &app.owner, project, sql, dawn()).await,
        [] as [Value; 0]
    );
}
