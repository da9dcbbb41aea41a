//! Removed projects that can be restored: their rows, names and data, and the end of the hold.

use std::sync::Arc;

use chrono::TimeDelta;
use gantry::{
    app::Settings,
    control::projects::{Status, held, upkeep},
    platform::http::Transport,
};
use gantry_base::ids::ProjectRef;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    support::{Node, TestApp, machine::Machine, settings},
    traps,
};

/// Days of the hold.
const DAYS: i64 = 7;

/// A node with real clusters that holds removed projects.
async fn holding(app: &TestApp) -> Node {
    let settings = Settings {
        hold: TimeDelta::days(DAYS),
        ..settings(Transport::default(), Uuid::from_u128(2))
    };
    let mut node = app.another_with(settings, Arc::new(Machine::new().await));
    node.start();
    node
}

async fn create(node: &Node, app: &TestApp, name: &str) -> ProjectRef {
    let project = app.create_project_on(node, name).await;
    node.until(&project, Status::ActiveHealthy).await;
    project
}

async fn read(node: &Node, app: &TestApp, path: &str) -> Value {
    node.get(path)
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json()
}

async fn sql(node: &Node, app: &TestApp, project: &ProjectRef, query: &str) -> Value {
    node.post(&format!("/v1/projects/{project}/database/query"))
        .as_(&app.owner)
        .json(&json!({"query": query}))
        .send()
        .await
        .expect(201)
        .json()
}

#[tokio::test]
async fn restore_of_removed_project_brings_back_data_keys_and_settings() {
    let app = TestApp::new().await;
    let mut node = holding(&app).await;
    let project = create(&node, &app, "precious").await;
    let path = format!("/v1/projects/{project}");
    sql(&node, &app, &project, "create table kept as select 42 as n").await;
    let secrets = format!("{path}/secrets");
    node.post(&secrets)
        .as_(&app.owner)
        .json(&json!([{"name": "MINE", "value": "x"}]))
        .send()
        .await
        .expect(201);
    let keys = format!("{path}/api-keys?reveal=true");
    let (keys_before, secrets_before) = (
        read(&node, &app, &keys).await,
        read(&node, &app, &secrets).await,
    );

    node.delete(&path).as_(&app.owner).send().await.expect(200);
    node.until(&project, Status::Removed).await;
    // The answers are those of a project that is gone.
    let gone = node.get(&path).as_(&app.owner).send().await.expect(400);
    assert_eq!(gone.message(), "Resource has been removed");
    node.get(&path).as_(&app.stranger).send().await.expect(404);
    let listed = read(&node, &app, "/v1/projects").await;
    let listed = listed.as_array().unwrap().iter();
    let names: Vec<_> = listed.map(|other| other["name"].clone()).collect();
    assert_eq!(names, ["stub"]);
    node.get(&keys).as_(&app.owner).send().await.expect(400);
    assert!(node.machine.data(&project).exists(), "the data is kept");
    let held = held::list(&node.app.db, None).await.unwrap();
    assert_eq!(held.len(), 1);
    assert_eq!(
        (&held[0].reference, held[0].name.as_str()),
        (&project, "precious")
    );

    let restore = format!("{path}/restore");
    node.post(&restore)
        .as_(&app.stranger)
        .send()
        .await
        .expect(404);
    node.post(&restore)
        .as_(&app.read_only)
        .send()
        .await
        .expect(403);
    node.post(&restore).as_(&app.owner).send().await.expect(200);
    node.until(&project, Status::ActiveHealthy).await;
    let found = sql(&node, &app, &project, "select n from kept").await;
    assert_eq!(found, json!([{"n": 42}]));
    assert_eq!(read(&node, &app, &keys).await, keys_before);
    assert_eq!(read(&node, &app, &secrets).await, secrets_before);
    assert!(held::list(&node.app.db, None).await.unwrap().is_empty());
    node.stop().await;
}

#[tokio::test]
async fn restore_of_removed_project_runs_no_code_of_the_tenant_as_the_platform() {
    let app = TestApp::new().await;
    let mut node = holding(&app).await;
    let project = create(&node, &app, "trapped").await;
    traps::plant(&node.machine, &project).await;
    let path = format!("/v1/projects/{project}");
    node.delete(&path).as_(&app.owner).send().await.expect(200);
    node.until(&project, Status::Removed).await;
    let restore = format!("{path}/restore");
    node.post(&restore).as_(&app.owner).send().await.expect(200);
    node.until(&project, Status::ActiveHealthy).await;
    traps::assert_not_sprung(&node.machine, &project, "a removal").await;
    node.stop().await;
}

#[tokio::test]
async fn name_of_removed_project_is_free_and_needed_for_its_restore() {
    let app = TestApp::new().await;
    let mut node = holding(&app).await;
    let first = create(&node, &app, "same").await;
    let path = format!("/v1/projects/{first}");
    node.delete(&path).as_(&app.owner).send().await.expect(200);
    node.until(&first, Status::Removed).await;
    let second = create(&node, &app, "same").await;
    let restore = format!("{path}/restore");
    let refused = node.post(&restore).as_(&app.owner).send().await.expect(400);
    assert_eq!(
        refused.message(),
        "Project with name same already exists in this organization; rename or delete it first"
    );
    let rename = json!({"name": "other"});
    node.patch(&format!("/v1/projects/{second}"))
        .as_(&app.owner)
        .json(&rename)
        .send()
        .await
        .expect(200);
    node.post(&restore).as_(&app.owner).send().await.expect(200);
    node.until(&first, Status::ActiveHealthy).await;
    node.stop().await;
}

#[tokio::test]
async fn data_of_removed_project_is_deleted_when_the_hold_ends() {
    let app = TestApp::new().await;
    let mut node = holding(&app).await;
    let project = create(&node, &app, "short").await;
    let path = format!("/v1/projects/{project}");
    node.delete(&path).as_(&app.owner).send().await.expect(200);
    node.until(&project, Status::Removed).await;
    upkeep::pass(&node.app.control).await;
    assert!(node.machine.data(&project).exists(), "not before its time");
    app.advance(u32::try_from(DAYS).unwrap() * 86_400 + 1);
    let restore = format!("{path}/restore");
    node.post(&restore).as_(&app.owner).send().await.expect(400);
    upkeep::pass(&node.app.control).await;
    node.until(&project, Status::Removed).await;
    let mut changes = node.app.reconciler.changes();
    while node.machine.data(&project).exists() {
        changes.changed().await.unwrap();
    }
    assert!(held::list(&node.app.db, None).await.unwrap().is_empty());
    node.stop().await;
}

/// A node that starts again neither deletes the data of held projects nor starts their servers.
#[tokio::test]
async fn restart_of_the_node_keeps_removed_projects() {
    let app = TestApp::new().await;
    let mut node = holding(&app).await;
    let project = create(&node, &app, "kept").await;
    let path = format!("/v1/projects/{project}");
    node.delete(&path).as_(&app.owner).send().await.expect(200);
    node.until(&project, Status::Removed).await;
    gantry::control::projects::reconciler::recover_on_startup(&node.app.control)
        .await
        .unwrap();
    assert!(node.machine.data(&project).exists());
    assert!(
        node.machine
            .clusters
            .running(&project)
            .await
            .unwrap()
            .is_none()
    );
    node.post(&format!("{path}/restore"))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    node.until(&project, Status::ActiveHealthy).await;
    node.stop().await;
}
