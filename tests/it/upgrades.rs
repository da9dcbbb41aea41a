//! Upgrades of projects through the API.

use std::sync::Arc;

use gantry::{
    control::projects::{Status, upkeep},
    platform::http::Transport,
};
use gantry_base::ids::ProjectRef;
use gantry_node::{
    clusters::UpgradeSupport,
    engines::{Engine, Engines},
};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{
    Node, TestApp,
    machine::{Machine, SuperuserClients as _, engines},
    note_skipped, settings,
};

/// Returns two engines between which projects can be upgraded, the older one first.
pub(crate) fn upgrade_pair() -> Option<(Engine, Engine)> {
    let engines = engines();
    let mut all = engines.offered().to_vec();
    all.sort_by_key(Engine::major);
    let pair = all.iter().find_map(|old| {
        let new = all.iter().find(|new| {
            new.major() > old.major() && UpgradeSupport::of(old, new) == UpgradeSupport::Complete
        });
        Some((old.clone(), new?.clone()))
    });
    if pair.is_none() {
        note_skipped("no two engines with pg_upgrade");
    }
    pair
}

/// Returns a node that has both engines of an [`upgrade_pair`].
async fn node_with_two(app: &TestApp) -> Option<(Node, Engine, Engine)> {
    let (old, new) = upgrade_pair()?;
    let engines = engines();
    let machine = Arc::new(Machine::on(&engines).await);
    let settings = settings(Transport::default(), Uuid::from_u128(2));
    let mut node = app.another_with(settings, machine);
    node.start();
    // Makes the template of the new version, which takes seconds once.
    create(&node, app, &new).await;
    Some((node, old, new))
}

async fn create(node: &Node, app: &TestApp, engine: &Engine) -> ProjectRef {
    let mut wanted = app.new_project(&format!("on {}", engine.major()));
    wanted["postgres_engine"] = json!(engine.major().to_string());
    let created = node
        .post("/v1/projects")
        .as_(&app.owner)
        .json(&wanted)
        .send()
        .await
        .expect(201)
        .json();
    let project = created["ref"].as_str().unwrap().parse().unwrap();
    node.until(&project, Status::ActiveHealthy).await;
    project
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

async fn read(node: &Node, app: &TestApp, path: &str) -> Value {
    node.get(path)
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json()
}

#[tokio::test]
async fn upgrade_by_owner_moves_the_project_to_the_new_version() {
    let app = TestApp::new().await;
    let Some((mut node, old, new)) = node_with_two(&app).await else {
        return;
    };
    let project = create(&node, &app, &old).await;
    let path = format!("/v1/projects/{project}");
    sql(&node, &app, &project, "create table kept as select 42 as n").await;

    let none = read(&node, &app, &format!("{path}/upgrade/status")).await;
    assert_eq!(none, json!({"databaseUpgradeStatus": null}));
    let eligibility = read(&node, &app, &format!("{path}/upgrade/eligibility")).await;
    assert_eq!(eligibility["eligible"], true, "{eligibility}");
    let major = new.major().to_string();
    let targets = eligibility["target_upgrade_versions"].as_array().unwrap();
    assert!(
        targets
            .iter()
            .any(|target| target["postgres_version"] == major)
    );

    let upgrade = format!("{path}/upgrade");
    let wanted = json!({"target_version": major});
    node.post(&upgrade)
        .as_(&app.stranger)
        .json(&wanted)
        .send()
        .await
        .expect(404);
    node.post(&upgrade)
        .as_(&app.read_only)
        .json(&wanted)
        .send()
        .await
        .expect(403);
    let other = json!({"target_version": "12"});
    let refused = node
        .post(&upgrade)
        .as_(&app.owner)
        .json(&other)
        .send()
        .await
        .expect(400);
    assert!(
        refused.message().contains("cannot be upgraded to 12"),
        "{}",
        refused.message()
    );
    let begun = node
        .post(&upgrade)
        .as_(&app.owner)
        .json(&wanted)
        .send()
        .await
        .expect(201);
    let tracking = begun.json()["tracking_id"].as_str().unwrap().to_owned();
    let again = node
        .post(&upgrade)
        .as_(&app.owner)
        .json(&wanted)
        .send()
        .await
        .expect(400);
    assert!(
        again.message().contains("it is UPGRADING"),
        "{}",
        again.message()
    );

    node.until(&project, Status::ActiveHealthy).await;
    let status = read(
        &node,
        &app,
        &format!("{path}/upgrade/status?tracking_id={tracking}"),
    )
    .await;
    let status = &status["databaseUpgradeStatus"];
    assert_eq!(
        (
            &status["status"],
            &status["progress"],
            &status["target_version"]
        ),
        (
            &json!(1),
            &json!("9_completed_upgrade"),
            &json!(new.major())
        )
    );
    let detail = read(&node, &app, &path).await;
    assert_eq!(detail["database"]["postgres_engine"], major);
    let found = sql(
        &node,
        &app,
        &project,
        "select n, current_setting('server_version_num')::int / 10000 as major from kept",
    )
    .await;
    assert_eq!(found, json!([{"n": 42, "major": new.major()}]));
    // The statistics and the copy from before are dealt with later.
    upkeep::pass(&node.app.control).await;
    let before = node.machine.home.project(&project).join("before-1");
    assert!(before.exists());
    app.advance(25 * 3600);
    upkeep::pass(&node.app.control).await;
    assert!(!before.exists());
    node.stop().await;
}

#[tokio::test]
async fn upgrade_with_blockers_is_rejected_and_a_failed_one_runs_the_old_version() {
    let app = TestApp::new().await;
    let Some((mut node, old, new)) = node_with_two(&app).await else {
        return;
    };
    let project = create(&node, &app, &old).await;
    let path = format!("/v1/projects/{project}");
    sql(&node, &app, &project, "create table blocked (f regproc)").await;
    let eligibility = node
        .get(&format!("{path}/upgrade/eligibility"))
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(
        (
            &eligibility["eligible"],
            &eligibility["objects_to_be_dropped"]
        ),
        (
            &json!(false),
            &json!(["column public.blocked.f of type regproc"])
        )
    );
    let wanted = json!({"target_version": new.major().to_string()});
    let refused = node
        .post(&format!("{path}/upgrade"))
        .as_(&app.owner)
        .json(&wanted)
        .send()
        .await
        .expect(400);
    assert!(
        refused.message().contains("public.blocked.f"),
        "{}",
        refused.message()
    );

    // The object appears after the check.
    sql(&node, &app, &project, "drop table blocked").await;
    let admin = node.machine.clusters.admin_session(&project).await.unwrap();
    admin
        .batch_execute("create type public.hidden as (f regproc); create type public.more as (h public.hidden); create table public.deep (m public.more)")
        .await
        .unwrap();
    drop(admin);
    node.post(&format!("{path}/upgrade"))
        .as_(&app.owner)
        .json(&wanted)
        .send()
        .await
        .expect(201);
    node.until(&project, Status::ActiveHealthy).await;
    let status = node
        .get(&format!("{path}/upgrade/status"))
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json();
    let status = &status["databaseUpgradeStatus"];
    assert_eq!(
        (&status["status"], &status["error"]),
        (&json!(2), &json!("5_data_upgrade_completion_failed")),
        "{status}"
    );
    let version = "select current_setting('server_version_num')::int / 10000 as major";
    let found = sql(&node, &app, &project, version).await;
    assert_eq!(found, json!([{"major": old.major()}]));
    node.stop().await;
}

/// A machine with one engine offers no upgrade.
#[tokio::test]
async fn project_on_the_only_version_is_not_eligible() {
    let app = TestApp::new().await;
    let engines = Engines::only(engines().default_engine().clone());
    let machine = Arc::new(Machine::on(&engines).await);
    let mut node = app.another_with(settings(Transport::default(), Uuid::from_u128(2)), machine);
    node.start();
    let project = create(&node, &app, engines.default_engine()).await;
    let eligibility = node
        .get(&format!("/v1/projects/{project}/upgrade/eligibility"))
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(
        (
            &eligibility["eligible"],
            &eligibility["target_upgrade_versions"]
        ),
        (&json!(false), &json!([]))
    );
    assert_eq!(
        eligibility["current_app_version"],
        eligibility["latest_app_version"]
    );
    node.stop().await;
}
