//! Compute sizes and documents of settings on real clusters: restarts, and roll-backs of servers
//! that do not start.

use std::sync::Arc;

use gantry::{
    control::projects::{InstanceSize, Status},
    platform::http::Transport,
};
use gantry_base::ids::ProjectRef;
use gantry_node::clusters::ResourceLimits;
use serde_json::{Value, json};

use crate::support::{
    TestApp,
    machine::{By, Machine},
};

async fn running() -> (TestApp, ProjectRef) {
    let machine = Machine::within(ResourceLimits::default(), By::Groups).await;
    let mut app = TestApp::with(Transport::default(), Arc::new(machine)).await;
    app.node.start();
    let project = app.real_project().await;
    (app, project)
}

async fn shown(app: &TestApp, project: &ProjectRef, name: &str) -> Value {
    let query = json!({"query": format!("select current_setting('{name}') as value")});
    let path = format!("/v1/projects/{project}/database/query");
    let answer = app.post(&path).as_(&app.owner).json(&query).send().await;
    answer.expect(201).json()[0]["value"].clone()
}

async fn resize(app: &TestApp, project: &ProjectRef, size: InstanceSize) {
    let variant = format!("ci_{}", size.code());
    let body = json!({"addon_type": "compute_instance", "addon_variant": variant});
    let path = format!("/v1/projects/{project}/billing/addons");
    let call = app.request("PATCH", &path).as_(&app.owner).json(&body);
    call.send().await.expect(200);
    app.until(project, Status::ActiveHealthy).await;
}

async fn size(app: &TestApp, project: &ProjectRef) -> Value {
    let path = format!("/v1/projects/{project}/billing/addons");
    let answer = app.get(&path).as_(&app.owner).send().await.expect(200);
    answer.json()["selected_addons"][0]["variant"]["id"].clone()
}

/// Larger than the memory of every machine that runs these tests.
const TOO_LARGE: InstanceSize = InstanceSize::X48;

#[tokio::test]
async fn resize_restarts_the_server_with_its_connections_memory_and_workers() {
    let (app, project) = running().await;
    let pid = app.machine.pid(&project).await;
    assert_eq!(shown(&app, &project, "max_connections").await, "118");
    resize(&app, &project, InstanceSize::Small).await;
    assert_ne!(app.machine.pid(&project).await, pid);
    assert_eq!(size(&app, &project).await, "ci_small");
    for (name, value) in [
        ("max_connections", "153"),
        ("shared_buffers", "256MB"),
        ("max_worker_processes", "8"),
        ("effective_cache_size", "1536MB"),
    ] {
        assert_eq!(shown(&app, &project, name).await, value, "{name}");
    }
    let groups = app.machine.clusters.resources().unwrap().groups().clone();
    if let Some(folder) = groups.folders(project.as_str()).first() {
        let limit = ["memory.max", "memory.limit_in_bytes"]
            .iter()
            .find_map(|file| std::fs::read_to_string(folder.join(file)).ok());
        assert_eq!(limit.unwrap().trim(), (2_u64 << 30).to_string());
    }
    // A setting of the owner comes before that of the size.
    let path = format!("/v1/projects/{project}/config/database/postgres");
    let change = json!({"max_connections": 40});
    let call = app.request("PATCH", &path).as_(&app.owner).json(&change);
    call.send().await.expect(200);
    assert_eq!(shown(&app, &project, "max_connections").await, "40");
    assert_eq!(shown(&app, &project, "shared_buffers").await, "256MB");
    let path = format!("/v1/projects/{project}/billing/addons/ci_small");
    app.delete(&path).as_(&app.owner).send().await.expect(200);
    app.until(&project, Status::ActiveHealthy).await;
    assert_eq!(size(&app, &project).await, "ci_micro");
    assert_eq!(shown(&app, &project, "shared_buffers").await, "16MB");
    assert_eq!(shown(&app, &project, "max_connections").await, "40");
}

#[tokio::test]
async fn size_that_does_not_start_is_rolled_back() {
    let (app, project) = running().await;
    resize(&app, &project, TOO_LARGE).await;
    assert_eq!(size(&app, &project).await, "ci_micro");
    assert_eq!(shown(&app, &project, "max_connections").await, "118");
}

#[tokio::test]
async fn document_waits_for_the_server_and_is_reverted_if_it_does_not_start() {
    let (app, project) = running().await;
    let at = |rest: &str| format!("/v1/projects/{project}{rest}");
    let apply = async |document: Value, status: u16| {
        let body = json!({"document": document});
        let call = app.post(&at("/config/plan")).as_(&app.owner).json(&body);
        let plan = call.send().await.expect(200).json();
        let body = json!({"document": document, "hash": plan["hash"]});
        let call = app.post(&at("/config/apply")).as_(&app.owner).json(&body);
        call.send().await.expect(status).json()
    };
    let document = json!({
        "postgres": {"work_mem": "8MB", "max_connections": 40},
        "storage": {"fileSizeLimit": 9},
    });
    let plan = apply(document.clone(), 200).await;
    assert_eq!(plan["restarts"], json!(["database"]));
    assert_eq!(shown(&app, &project, "max_connections").await, "40");
    assert_eq!(shown(&app, &project, "work_mem").await, "8MB");
    let export = async || {
        let answer = app
            .get(&at("/config/document"))
            .as_(&app.owner)
            .send()
            .await;
        answer.expect(200).json()["document"].clone()
    };
    assert_eq!(export().await, document);
    let refused = json!({
        "auth": {"jwt_exp": 60},
        "compute": {"size": TOO_LARGE.code()},
        "database": {"allowed_cidrs": ["192.0.2.0/24"]},
        "storage": {"fileSizeLimit": 10},
    });
    let answer = apply(refused, 400).await;
    let message = answer["message"].as_str().unwrap();
    assert!(
        message.contains("did not start with these settings"),
        "{message}"
    );
    assert_eq!(export().await, document, "all sections are reverted");
    assert_eq!(shown(&app, &project, "work_mem").await, "8MB");
    // Checked by PostgreSQL before anything is stored.
    let body = json!({"document": {"postgres": {"work_mem": "much"}}});
    let call = app.post(&at("/config/plan")).as_(&app.owner).json(&body);
    let problem = call.send().await.expect(400).json();
    assert!(
        problem["message"].as_str().unwrap().contains("work_mem"),
        "{problem}"
    );
}
