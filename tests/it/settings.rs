//! Settings of a project's server, and servers that sleep while unused, on real clusters.

use std::{net::Ipv4Addr, sync::Arc, time::Duration};

use futures_util::future::join_all;
use gantry::{
    app::Settings,
    control::{
        database_access,
        projects::{self, Status, idle},
    },
    platform::http::Transport,
};
use gantry_base::ids::ProjectRef;
use gantry_node::clusters::ObservedState;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{Node, TestApp, client::Answer, machine::Machine, settings};

async fn ask(app: &TestApp, method: &str, project: &ProjectRef, body: &Value) -> Answer {
    app.request(
        method,
        &format!("/v1/projects/{project}/config/database/postgres"),
    )
    .as_(&app.owner)
    .json(body)
    .send()
    .await
}

async fn shown(node: &Node, app: &TestApp, project: &ProjectRef, name: &str) -> Value {
    let query = json!({"query": format!("select current_setting('{name}') as value")});
    let answer = node
        .post(&format!("/v1/projects/{project}/database/query"))
        .as_(&app.owner)
        .json(&query)
        .send()
        .await;
    answer.expect(201).json()[0]["value"].clone()
}

#[tokio::test]
async fn update_settings_applies_before_the_response() {
    let app = TestApp::running().await;
    let project = app.real_project().await;
    let get = async || {
        app.get(&format!("/v1/projects/{project}/config/database/postgres"))
            .as_(&app.owner)
            .send()
            .await
            .expect(200)
            .json()
    };
    assert_eq!(get().await, json!({}));

    // A running server reloads these settings without closing sessions.
    let pid = app.machine.pid(&project).await;
    let wanted = json!({"work_mem": "8MB", "statement_timeout": "45s"});
    assert_eq!(
        ask(&app, "PUT", &project, &wanted).await.expect(200).json(),
        wanted
    );
    assert_eq!(
        (get().await, shown(&app, &app, &project, "work_mem").await),
        (wanted, json!("8MB"))
    );
    assert_eq!(app.machine.pid(&project).await, pid);

    // Read at the start.
    let merged = json!({"work_mem": "8MB", "statement_timeout": "45s", "max_connections": 40});
    assert_eq!(
        ask(&app, "PATCH", &project, &json!({"max_connections": 40}))
            .await
            .expect(200)
            .json(),
        merged
    );
    assert_eq!(
        (
            get().await,
            shown(&app, &app, &project, "max_connections").await
        ),
        (merged.clone(), json!("40"))
    );
    let restarted = app.machine.pid(&project).await;
    assert_ne!(restarted, pid);

    // Applied at the next restart, if requested.
    ask(
        &app,
        "PATCH",
        &project,
        &json!({"max_connections": 50, "restart_database": false}),
    )
    .await
    .expect(200);
    assert_eq!(
        (
            app.machine.pid(&project).await,
            shown(&app, &app, &project, "max_connections").await
        ),
        (restarted, json!("40"))
    );
    app.post(&format!("/v1/projects/{project}/restart"))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    app.until(&project, Status::ActiveHealthy).await;
    assert_eq!(shown(&app, &app, &project, "max_connections").await, "50");

    assert_eq!(
        ask(&app, "PUT", &project, &json!({}))
            .await
            .expect(200)
            .json(),
        json!({})
    );
    assert_eq!(
        (
            shown(&app, &app, &project, "max_connections").await,
            shown(&app, &app, &project, "work_mem").await
        ),
        (json!("118"), json!("4MB"))
    );
}

#[tokio::test]
async fn invalid_settings_change_nothing() {
    let app = TestApp::running().await;
    let project = app.real_project().await;
    ask(&app, "PUT", &project, &json!({"max_connections": 40}))
        .await
        .expect(200);
    let pid = app.machine.pid(&project).await;
    for (wanted, why) in [
        (json!({"work_mem": "much"}), "work_mem"),
        (
            json!({"statement_timeout": "4 fortnights"}),
            "statement_timeout",
        ),
        (json!({"shared_buffers": "900GB"}), "shared_buffers"),
        (json!({"checkpoint_timeout": "1s"}), "checkpoint_timeout"),
        (json!({"fsync": false}), "fsync"),
        (json!({"max_connections": "40"}), "max_connections"),
    ] {
        let refused = ask(&app, "PATCH", &project, &wanted)
            .await
            .expect(400)
            .message();
        assert!(refused.contains(why), "{wanted}: {refused}");
    }
    assert_eq!(app.machine.pid(&project).await, pid);

    // Each value is valid, but the server does not start with them, so the previous ones are
    // restored.
    let refused = ask(&app, "PUT", &project, &json!({"max_connections": 3}))
        .await
        .expect(400)
        .message();
    assert!(
        refused.contains("did not start with these settings")
            && refused.contains("superuser_reserved_connections"),
        "{refused}"
    );
    app.until(&project, Status::ActiveHealthy).await;
    assert_eq!(shown(&app, &app, &project, "max_connections").await, "40");
    let kept = app
        .get(&format!("/v1/projects/{project}/config/database/postgres"))
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(kept, json!({"max_connections": 40}));
}

#[tokio::test]
async fn setting_that_prevents_the_start_is_reverted() {
    let app = TestApp::running().await;
    let project = app.real_project().await;
    ask(&app, "PUT", &project, &json!({"max_connections": 40}))
        .await
        .expect(200);
    ask(
        &app,
        "PATCH",
        &project,
        &json!({"max_connections": 3, "restart_database": false}),
    )
    .await
    .expect(200);
    // Another change meanwhile does not mark the pending setting as applied.
    ask(&app, "PATCH", &project, &json!({"work_mem": "8MB"}))
        .await
        .expect(200);
    assert_eq!(shown(&app, &app, &project, "work_mem").await, "8MB");
    let restart = async || {
        app.post(&format!("/v1/projects/{project}/restart"))
            .as_(&app.owner)
            .send()
            .await
            .expect(200);
        app.until(&project, Status::ActiveHealthy).await;
        let path = format!("/v1/projects/{project}/config/database/postgres");
        (
            shown(&app, &app, &project, "max_connections").await,
            app.get(&path)
                .as_(&app.owner)
                .send()
                .await
                .expect(200)
                .json(),
        )
    };
    assert_eq!(
        restart().await,
        (json!("40"), json!({"max_connections": 40}))
    );
    // Pending settings that started successfully are those that are restored.
    ask(
        &app,
        "PATCH",
        &project,
        &json!({"max_connections": 50, "restart_database": false}),
    )
    .await
    .expect(200);
    assert_eq!(
        restart().await,
        (json!("50"), json!({"max_connections": 50}))
    );
    ask(&app, "PATCH", &project, &json!({"max_connections": 3}))
        .await
        .expect(400);
    assert_eq!(
        restart().await,
        (json!("50"), json!({"max_connections": 50}))
    );
}

#[tokio::test]
async fn idle_server_stops_and_starts_at_next_use() {
    const AFTER: Duration = Duration::from_mins(10);
    let app = TestApp::new().await;
    let settings = Settings {
        idle_pause_after: Some(AFTER),
        ..settings(Transport::default(), Uuid::from_u128(2))
    };
    let mut node = app.another_with(settings, Arc::new(Machine::new().await));
    node.start();
    let project = app.create_project_on(&node, "sleeper").await;
    node.until(&project, Status::ActiveHealthy).await;
    let observed = async || node.machine.clusters.observe(&project).await.unwrap();

    app.advance(599);
    idle::stop_idle(&node.app).await.unwrap();
    assert!(
        matches!(observed().await, ObservedState::Running { .. }),
        "not yet"
    );
    assert_eq!(shown(&node, &app, &project, "work_mem").await, "4MB");
    app.advance(599);
    idle::stop_idle(&node.app).await.unwrap();
    assert!(
        matches!(observed().await, ObservedState::Running { .. }),
        "it was used since"
    );
    let session = node.machine.connect(&project, "postgres").await.unwrap();
    app.advance(601);
    idle::stop_idle(&node.app).await.unwrap();
    session
        .batch_execute("select 1")
        .await
        .expect("an open session is use");
    drop(session);
    app.advance(601);
    // The server detects the end of the session a moment later.
    while !matches!(observed().await, ObservedState::Stopped) {
        idle::stop_idle(&node.app).await.unwrap();
        app.advance(601);
    }

    // The project is reported as healthy, and reading its state does not wake the server.
    let path = format!("/v1/projects/{project}");
    assert_eq!(
        node.get(&path)
            .as_(&app.owner)
            .send()
            .await
            .expect(200)
            .json()["status"],
        "ACTIVE_HEALTHY"
    );
    let health = node
        .get(&format!("{path}/health?services=db"))
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(
        health[0],
        json!({"name": "db", "healthy": true, "status": "ACTIVE_HEALTHY"})
    );
    assert_eq!(observed().await, ObservedState::Stopped);

    // Concurrent requests all succeed.
    let answers = join_all((0..8).map(|_| shown(&node, &app, &project, "work_mem"))).await;
    assert!(answers.iter().all(|answer| answer == "4MB"));
    let target = projects::wake(
        &node.app,
        database_access::admission(&node.app, &project, Ipv4Addr::LOCALHOST.into())
            .await
            .unwrap()
            .unwrap()
            .id,
        &project,
    )
    .await
    .unwrap();
    assert_eq!(
        target.socket().path(),
        node.machine.clusters.socket_path(&project)
    );

    // A project with a sleeping server can be paused and restored.
    app.advance(601);
    while !matches!(observed().await, ObservedState::Stopped) {
        idle::stop_idle(&node.app).await.unwrap();
        app.advance(601);
    }
    node.post(&format!("{path}/pause"))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    node.until(&project, Status::Inactive).await;
    node.post(&format!("{path}/restore"))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    node.until(&project, Status::ActiveHealthy).await;
    assert_eq!(shown(&node, &app, &project, "work_mem").await, "4MB");
    node.stop().await;
}

#[tokio::test]
async fn health_accepts_every_spelling_of_services() {
    let app = TestApp::running().await;
    let project = app.real_project().await;
    for query in [
        "services=db,rest",
        "services=db&services=rest",
        "services[]=db&services[]=rest",
        "services%5B%5D=db&services=rest",
    ] {
        let health = app
            .get(&format!("/v1/projects/{project}/health?{query}"))
            .as_(&app.owner)
            .send()
            .await
            .expect(200)
            .json();
        let names: Vec<_> = health
            .as_array()
            .unwrap()
            .iter()
            .map(|service| service["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["db", "rest"], "{query}");
    }
    let health = format!("/v1/projects/{project}/health");
    assert_eq!(
        app.get(&health)
            .as_(&app.owner)
            .send()
            .await
            .expect(400)
            .message(),
        "services: Required"
    );
}
