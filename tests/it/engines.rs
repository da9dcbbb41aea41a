//! Several PostgreSQL versions side by side.

use std::sync::Arc;

use gantry::{
    app::Settings,
    clock::Entropy,
    clusters::{Pace, install},
    http::Transport,
    projects::{Status, pool::Wanted},
};
use serde_json::json;
use uuid::Uuid;

use crate::support::{
    TestApp,
    machine::{Machine, cluster, engines},
    settings,
};

#[tokio::test]
async fn a_project_runs_on_the_version_it_was_asked_for_on() {
    let engines = engines().await;
    let machine = Arc::new(Machine::on(&engines).await);
    let app = TestApp::new().await;
    let settings = Settings { prepared: Wanted { folders: 1, servers: 0 }, ..settings(Transport::default(), Uuid::from_u128(2)) };
    let mut node = app.another_with(settings, machine);
    node.start();
    for engine in engines.all() {
        let major = engine.major().to_string();
        let mut wanted = app.new_project(&format!("on {major}"));
        wanted["postgres_engine"] = json!(major);
        wanted["release_channel"] = json!(engine.channel());
        let created = node.post("/v1/projects").as_(&app.owner).json(&wanted).send().await.expect(201).json();
        let project = created["ref"].as_str().unwrap().parse().unwrap();
        node.until(&project, Status::ActiveHealthy).await;
        let path = format!("/v1/projects/{project}");
        let query = json!({"query": "select current_setting('server_version') as version"});
        let seen = node.post(&format!("{path}/database/query")).as_(&app.owner).json(&query).send().await.expect(201).json();
        let seen = seen[0]["version"].as_str().unwrap().split(' ').next().unwrap().to_owned();
        let database = node.get(&path).as_(&app.owner).send().await.expect(200).json()["database"].clone();
        assert_eq!((&database["version"], &database["postgres_engine"]), (&json!(seen), &json!(major)));

        // Also after a stop and a start, which tell the version by the data.
        node.post(&format!("{path}/pause")).as_(&app.owner).send().await.expect(200);
        node.until(&project, Status::Inactive).await;
        let versions = node.get(&format!("{path}/restore")).as_(&app.owner).send().await.expect(200).json();
        assert_eq!(versions["available_versions"][0]["version"], engine.text());
        node.post(&format!("{path}/restore")).as_(&app.owner).send().await.expect(200);
        node.until(&project, Status::ActiveHealthy).await;
    }
    let available: Vec<_> = engines.all().iter().map(|engine| engine.major().to_string()).collect();
    for (field, value, available) in [("postgres_engine", "12", available.join(", ")), ("release_channel", "alpha", "ga".to_owned())] {
        let mut wanted = app.new_project("refused");
        wanted[field] = json!(value);
        let refused = node.post("/v1/projects").as_(&app.owner).json(&wanted).send().await.expect(400).message();
        assert!(refused.contains(&format!("{value} is not installed here; available: {available}")), "{refused}");
    }
    node.stop().await;
}

/// Whoever made a project on a version that was removed since is told what to do, and loses nothing.
#[tokio::test]
async fn a_version_that_is_gone_is_named() {
    let machine = Machine::new().await;
    let mut cluster = cluster(1);
    cluster.major = 99;
    let refused = machine.clusters.create(&cluster, Pace::Now).await.unwrap_err().to_string();
    assert_eq!(refused, "PostgreSQL 99 is not installed; install it with: gantry engine install 99");
}

#[tokio::test]
async fn what_cannot_be_installed_is_refused_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let refused = install::install(&dir.path().join("engines"), 98, &Entropy::system()).await.unwrap_err().to_string();
    assert!(!refused.contains('\n'), "{refused}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
