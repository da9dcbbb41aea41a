//! Log ingestion: ingest keys and both protocols.

use chrono::TimeDelta;
use serde_json::{Value, json};

use super::ask;
use crate::support::{Node, TestApp, dawn};

pub(super) async fn key(app: &TestApp, name: &str) -> (String, i64) {
    let made = app
        .post(&app.at("/analytics/ingest-keys"))
        .as_(&app.administrator)
        .json(&json!({ "name": name }))
        .send()
        .await
        .expect(201);
    (
        made.json()["key"].as_str().unwrap().to_owned(),
        made.json()["id"].as_i64().unwrap(),
    )
}

#[tokio::test]
async fn ingested_lines_are_queryable_after_response() {
    let app = TestApp::new().await;
    let (key, _) = key(&app, "Vector").await;
    let line = |message: &str| json!({ "event_message": message, "timestamp": dawn(), "metadata": { "level": "error", "status": 500 } });
    for (path, body) in [
        (
            "/api/logs?source_name=gotrue.logs.prod",
            json!([line("a"), line("b")]),
        ),
        ("/logs?source_name=gotrue.logs.prod", line("c")),
        (
            "/api/events?source_name=gotrue.logs.prod",
            json!({ "batch": [line("d")] }),
        ),
        ("/api/logs/vector?source_name=auth_logs", json!([line("e")])),
    ] {
        let answer = app
            .post(path)
            .header("x-api-key", &key)
            .json(&body)
            .send()
            .await
            .expect(200);
        assert_eq!(answer.json(), json!({ "message": "Logged!" }));
    }
    let otlp = json!({ "resourceLogs": [{ "scopeLogs": [{ "logRecords": [{
        "timeUnixNano": dawn().timestamp_nanos_opt().unwrap().to_string(), "severityNumber": 17, "body": { "stringValue": "f" },
    }] }] }] });
    let answer = app
        .post("/v1/logs")
        .header("x-api-key", &key)
        .header("x-source", "auth_logs")
        .json(&otlp)
        .send()
        .await
        .expect(200);
    assert_eq!(answer.json(), json!({}));
    let sql = "select event_message, severity_text, source from logs order by event_message";
    let found = ask(&app, &app.owner, &app.home.project, sql, dawn()).await;
    let expected: Vec<Value> = ["a", "b", "c", "d", "e", "f"]
        .map(|it| json!({ "event_message": it, "severity_text": "ERROR", "source": "auth_logs" }))
        .into();
    assert_eq!(found, expected);
}

#[tokio::test]
async fn ingest_requires_key_and_key_is_shown_once() {
    let app = TestApp::new().await;
    let ((first, id), path) = (key(&app, "one").await, app.at("/analytics/ingest-keys"));
    let post = |key: &str| {
        app.post("/api/logs?source_name=auth_logs")
            .header("x-api-key", key)
            .json(&json!({ "message": "m" }))
    };
    app.post("/api/logs?source_name=auth_logs")
        .json(&json!({}))
        .send()
        .await
        .expect(401);
    for wrong in [
        "",
        "gik_",
        format!("gik_{}", "0".repeat(40)).as_str(),
        app.owner.token.as_str(),
    ] {
        post(wrong).send().await.expect(401);
    }
    post(&first).send().await.expect(200);
    app.post("/api/logs?source_name=nothing")
        .header("x-api-key", &first)
        .json(&json!({}))
        .send()
        .await
        .expect(400);
    app.post("/api/logs?source_name=management_logs")
        .header("x-api-key", &first)
        .json(&json!({}))
        .send()
        .await
        .expect(400);
    app.post("/api/logs?source_name=auth_logs")
        .header("x-api-key", &first)
        .body("x".repeat(5 << 20))
        .send()
        .await
        .expect(413);

    app.post(&path)
        .as_(&app.developer)
        .json(&json!({ "name": "x" }))
        .send()
        .await
        .expect(403);
    app.get(&path).as_(&app.read_only).send().await.expect(403);
    let listed = app.get(&path).as_(&app.developer).send().await.expect(200);
    assert_eq!(
        (&listed.json()[0]["name"], &listed.json()[0]["last_used_at"]),
        (&json!("one"), &json!("2026-11-21T09:15:03Z"))
    );
    assert!(
        !listed.text().contains(&first)
            && first.ends_with(
                listed.json()[0]["hint"]
                    .as_str()
                    .unwrap()
                    .trim_start_matches('…')
            )
    );
    for _ in 1..10 {
        key(&app, "more").await;
    }
    app.post(&path)
        .as_(&app.owner)
        .json(&json!({ "name": "x" }))
        .send()
        .await
        .expect(400);
    app.delete(&format!("{path}/{id}"))
        .as_(&app.administrator)
        .send()
        .await
        .expect(200);
    app.delete(&format!("{path}/{id}"))
        .as_(&app.administrator)
        .send()
        .await
        .expect(404);
    post(&first).send().await.expect(401);
}

#[tokio::test]
async fn processes_share_log_files_of_data_folder() {
    let app = TestApp::new().await;
    let (key, _) = key(&app, "Vector").await;
    let other = app.another(1, app.machine.clone());
    let found = async |node: &Node| {
        ask(
            node,
            &app.owner,
            &app.home.project,
            "select event_message from logs",
            dawn(),
        )
        .await
    };
    // The first process uses the first name, and the other one a separate folder.
    assert!(found(&app).await.is_empty() && found(&other).await.is_empty());
    let line = json!({ "event_message": "a", "timestamp": dawn() });
    app.post("/api/logs?source_name=auth_logs")
        .header("x-api-key", &key)
        .json(&line)
        .send()
        .await
        .expect(200);
    assert_eq!(
        (found(&app).await.len(), found(&other).await.len()),
        (1, 0),
        "it is in no file yet"
    );
    for later in [0, 61] {
        app.app
            .analytics
            .upkeep(dawn() + TimeDelta::seconds(later))
            .await;
    }
    assert_eq!((found(&app).await.len(), found(&other).await.len()), (1, 1));
}

#[tokio::test]
async fn ingest_accepts_key_as_bearer_token() {
    let app = TestApp::new().await;
    let (key, _) = key(&app, "collector").await;
    let line = json!({ "event_message": "m", "timestamp": dawn() });
    for (token, status) in [(key.as_str(), 200), ("gik_", 401), (&app.owner.token, 401)] {
        app.post("/api/logs?source_name=auth_logs")
            .header("authorization", &format!("Bearer {token}"))
            .json(&line)
            .send()
            .await
            .expect(status);
    }
}

#[tokio::test]
async fn repeated_batch_with_ids_is_stored_once() {
    let app = TestApp::new().await;
    let (key, _) = key(&app, "Vector").await;
    let line = |id: &str| json!({ "id": id, "event_message": id, "timestamp": dawn() });
    let without_id = json!({ "event_message": "c", "timestamp": dawn() });
    for body in [
        json!([line("a"), line("b")]),
        json!([line("a"), line("b")]),
        json!([line("b")]),
        json!([without_id]),
        json!([without_id]),
    ] {
        app.post("/api/logs?source_name=auth_logs")
            .header("x-api-key", &key)
            .json(&body)
            .send()
            .await
            .expect(200);
    }
    let sql = "select event_message as m, count() as n from logs group by m order by m";
    let found = ask(&app, &app.owner, &app.home.project, sql, dawn()).await;
    let expected = [("a", 1), ("b", 2), ("c", 2)].map(|(m, n)| json!({ "m": m, "n": n }));
    assert_eq!(found, expected);
}

#[tokio::test]
async fn repeated_batch_with_ids_is_stored_once_across_restart() {
    let app = TestApp::new().await;
    let (key, _) = key(&app, "Vector").await;
    let post = async || {
        let line = json!({ "id": "a", "event_message": "a", "timestamp": dawn() });
        app.post("/api/logs?source_name=auth_logs")
            .header("x-api-key", &key)
            .json(&json!([line]))
            .send()
            .await
            .expect(200);
    };
    post().await;
    // The store is opened again before and after the segment of the batch became a file.
    app.app.analytics.close().await;
    post().await;
    for later in [0, 61, 122] {
        let now = dawn() + TimeDelta::seconds(later);
        app.app.analytics.upkeep(now).await;
    }
    app.app.analytics.close().await;
    post().await;
    let sql = "select event_message as m, count() as n from logs group by m";
    let found = ask(&app, &app.owner, &app.home.project, sql, dawn()).await;
    assert_eq!(found, [json!({ "m": "a", "n": 1 })]);
}

#[tokio::test]
async fn unknown_service_is_queryable_under_its_name() {
    let app = TestApp::new().await;
    let (key, _) = key(&app, "collector").await;
    let otlp = json!({ "resourceLogs": [{
        "resource": { "attributes": [{ "key": "service.name", "value": { "stringValue": "checkout" } }] },
        "scopeLogs": [{ "logRecords": [{
            "timeUnixNano": dawn().timestamp_nanos_opt().unwrap().to_string(), "body": { "stringValue": "m" },
        }] }],
    }] });
    app.post("/v1/logs")
        .header("x-api-key", &key)
        .json(&otlp)
        .send()
        .await
        .expect(200);
    let sql = "select source from logs where source = 'checkout'";
    let found = ask(&app, &app.owner, &app.home.project, sql, dawn()).await;
    assert_eq!(found, [json!({ "source": "checkout" })]);
}
