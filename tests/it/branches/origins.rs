//! Where branches come from: other branches, the schema of the parent, seeds; and restore points
//! of merges.

use std::sync::Arc;

use gantry::{
    api::branches::{
        BranchOptions,
        operator::{self, BranchScripts},
    },
    app::Settings,
    control::{
        backups::state::BackupOptions,
        projects::{Status, idle},
    },
    platform::http::Transport,
};
use gantry_base::ids::ProjectRef;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    branch, get, life::until_announced, migrate, post, reference, seen, sql, until_finished,
    versions,
};
use crate::{
    backups::{backed_up_on, next_second, until_complete},
    support::{TestApp, machine::Machine, settings},
};

async fn count(app: &TestApp, project: &str, table: &str) -> Value {
    let counted = sql(app, project, &format!("select count(*) as n from {table}")).await;
    counted.expect(201).json()[0]["n"].clone()
}

#[tokio::test]
async fn branch_of_a_branch_begins_as_its_origin_and_merges_into_the_parent() {
    let app = TestApp::running().await;
    let parent = app.real_project().await.to_string();
    migrate(&app, &parent, "base", "create table public.base (id int)").await;
    let first = reference(&branch(&app, &parent, &json!({"branch_name": "first"})).await);
    until_finished(&app).await;
    migrate(&app, &first, "own", "create table public.own (id int)").await;
    sql(&app, &first, "insert into public.own values (1)")
        .await
        .expect(201);

    let schema = branch(&app, &first, &json!({"branch_name": "schema"})).await;
    assert_eq!(schema["parent_project_ref"], *parent);
    assert_eq!(schema["source_project_ref"], *first);
    let data = branch(
        &app,
        &first,
        &json!({"branch_name": "data", "with_data": true}),
    )
    .await;
    until_finished(&app).await;
    let (schema, data) = (reference(&schema), reference(&data));
    assert_eq!(versions(&app, &schema).await, ["base", "own"]);
    assert_eq!(count(&app, &schema, "public.own").await, 0);
    assert_eq!(count(&app, &data, "public.own").await, 1);
    let listed = get(&app, &format!("/v1/projects/{parent}/branches")).await;
    assert_eq!(listed.expect(200).json().as_array().unwrap().len(), 4);

    // The origin ends. Its copies do not, and a reset begins from the parent.
    app.delete(&format!("/v1/branches/{first}"))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    let gone: ProjectRef = first.parse().unwrap();
    app.until(&gone, Status::Removed).await;
    assert_eq!(count(&app, &data, "public.own").await, 1);
    post(&app, &format!("/v1/branches/{schema}/merge"), &json!({}))
        .await
        .expect(201);
    until_finished(&app).await;
    assert_eq!(versions(&app, &parent).await, ["base", "own"]);
    post(&app, &format!("/v1/branches/{data}/reset"), &json!({}))
        .await
        .expect(201);
    until_finished(&app).await;
    assert_eq!(count(&app, &data, "public.own").await, 0);
}

#[tokio::test]
async fn paused_branch_is_shown_without_the_secret_of_its_keys() {
    let app = TestApp::running().await;
    let parent = app.real_project().await.to_string();
    let own = reference(&branch(&app, &parent, &json!({"branch_name": "b"})).await);
    until_finished(&app).await;
    let path = format!("/v1/branches/{own}");
    let shown = get(&app, &path).await.expect(200).json();
    assert!(shown["jwt_secret"].is_string(), "{shown}");

    post(&app, &format!("/v1/projects/{own}/pause"), &json!({}))
        .await
        .expect(200);
    let paused: ProjectRef = own.parse().unwrap();
    app.until(&paused, Status::Inactive).await;
    let shown = get(&app, &path).await.expect(200).json();
    assert_eq!(
        (&shown["status"], &shown["db_user"]),
        (&json!("INACTIVE"), &json!("postgres"))
    );
    assert_eq!(shown.get("jwt_secret"), None, "{shown}");
}

#[tokio::test]
async fn schema_of_the_parent_is_copied_without_rows_and_is_isolated() {
    let app = TestApp::running().await;
    let parent = app.real_project().await.to_string();
    migrate(&app, &parent, "base", "create table public.base (id int)").await;
    sql(
        &app,
        &parent,
        "insert into public.base values (1); create table public.unrecorded (id int)",
    )
    .await
    .expect(201);
    let both = json!({"branch_name": "x", "with_data": true, "schema_source": "parent"});
    let path = format!("/v1/projects/{parent}/branches");
    let refused = post(&app, &path, &both).await.expect(400).message();
    assert!(refused.contains("schema_source"), "{refused}");
    let body = json!({"branch_name": "b", "schema_source": "parent"});
    let own = reference(&branch(&app, &parent, &body).await);
    until_finished(&app).await;
    assert_eq!(count(&app, &own, "public.base").await, 0);
    assert_eq!(count(&app, &own, "public.unrecorded").await, 0);
    assert_eq!(versions(&app, &own).await, ["base"]);
    let view = seen(&app, &own).await;
    assert_eq!(
        (&view["with_data"], &view["schema_source"]),
        (&json!(false), &json!("parent"))
    );
    assert!(view["egress"] == "denied" || view["egress"] == "unenforced");
    assert!(view["copy"]["branch_point"].as_str().unwrap().contains('/'));
    let steps = view["copy"]["isolation"].as_array().unwrap();
    assert!(
        steps.iter().any(|step| step["name"] == "tables emptied"),
        "{view}"
    );
    let used = get(&app, &format!("/v1/projects/{own}/config/disk/util")).await;
    let used = used.expect(200).json();
    let bytes = |name: &str| used["metrics"][name].as_u64().unwrap();
    assert!(bytes("fs_shared_bytes") <= bytes("fs_used_bytes"), "{used}");
}

#[tokio::test]
async fn seed_runs_once_in_a_branch_without_data_and_again_after_a_reset() {
    let app = TestApp::running().await;
    let parent = app.real_project().await;
    migrate(
        &app,
        parent.as_str(),
        "base",
        "create table public.base (id int)",
    )
    .await;
    let scripts = [
        "insert into public.base values (1)".to_owned(),
        "insert into public.base values (2)".to_owned(),
    ];
    let set = async |scripts: &[String]| {
        let audit = gantry::platform::audit::Recorder::operator(
            "test",
            &app.app.entropy,
            "gantry branch seed",
        );
        let kind = BranchScripts::Seed;
        operator::set_scripts(&app.app.db, kind, &parent, scripts, &app.clock, audit).await
    };
    set(&scripts).await.unwrap();
    let stored = operator::scripts(&app.app.db, BranchScripts::Seed, &parent).await;
    assert_eq!(stored.unwrap(), scripts);
    set(&[String::new()]).await.unwrap_err();
    let own = reference(&branch(&app, parent.as_str(), &json!({"branch_name": "b"})).await);
    let kept = json!({"branch_name": "kept", "persistent": true});
    let kept = reference(&branch(&app, parent.as_str(), &kept).await);
    until_finished(&app).await;
    assert_eq!(count(&app, &own, "public.base").await, 2);
    assert_eq!(
        count(&app, &kept, "public.base").await,
        0,
        "not in a persistent branch"
    );
    post(&app, &format!("/v1/branches/{own}/push"), &json!({}))
        .await
        .expect(201);
    until_finished(&app).await;
    assert_eq!(count(&app, &own, "public.base").await, 2, "not by a push");
    post(&app, &format!("/v1/branches/{own}/reset"), &json!({}))
        .await
        .expect(201);
    until_finished(&app).await;
    assert_eq!(count(&app, &own, "public.base").await, 2);

    set(&["insert into public.nowhere values (1)".to_owned()])
        .await
        .unwrap();
    let bad = reference(&branch(&app, parent.as_str(), &json!({"branch_name": "bad"})).await);
    until_finished(&app).await;
    assert_eq!(seen(&app, &bad).await["status"], "MIGRATIONS_FAILED");
    assert_eq!(versions(&app, &bad).await, ["base"]);
}

#[tokio::test]
async fn merge_makes_a_restore_point_of_the_parent_if_it_changes_something() {
    let app = backed_up_on(BackupOptions::default(), Machine::new().await).await;
    let parent = app.real_project().await;
    until_complete(&app, &parent, 1).await;
    let parent = parent.to_string();
    migrate(&app, &parent, "base", "create table public.base (id int)").await;
    let own = reference(&branch(&app, &parent, &json!({"branch_name": "b"})).await);
    until_finished(&app).await;
    let merge = format!("/v1/branches/{own}/merge");
    post(&app, &merge, &json!({})).await.expect(201);
    until_finished(&app).await;
    let points = async || {
        let sql = "select name from restore_points";
        let rows = app.app.db.query(sql, &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect::<Vec<String>>()
    };
    assert!(points().await.is_empty(), "nothing was merged");
    migrate(&app, &own, "one", "create table public.one (id int)").await;
    // Versions are of whole seconds.
    next_second().await;
    migrate(&app, &own, "two", "create table public.two (id int)").await;
    let listed = get(&app, &format!("/v1/projects/{own}/database/migrations")).await;
    let listed = listed.expect(200).json();
    let version = listed[1]["version"].clone();
    let run = post(&app, &merge, &json!({"migration_version": version})).await;
    let run = run.expect(201).json()["workflow_run_id"]
        .as_str()
        .unwrap()
        .to_owned();
    until_finished(&app).await;
    assert_eq!(
        versions(&app, &parent).await,
        ["base", "one"],
        "up to the version"
    );
    let point = format!("merge-{}", &run[..14]);
    assert_eq!(points().await, std::slice::from_ref(&point));
    let log = get(&app, &format!("/v1/projects/{parent}/actions/{run}/logs")).await;
    let log = log.expect(200).text().to_owned();
    assert!(
        log.contains(&format!("restore point before the merge: {point}")),
        "{log}"
    );
    post(&app, &merge, &json!({"migration_version": "1"}))
        .await
        .expect(400);
}

#[tokio::test]
async fn branches_sleep_end_unused_and_are_counted_by_the_options() {
    let app = TestApp::new().await;
    let options = Settings {
        branches: BranchOptions {
            per_project_max: 2,
            unused_life: Some(chrono::TimeDelta::days(3)),
            ..BranchOptions::default()
        },
        ..settings(Transport::default(), Uuid::from_u128(7))
    };
    let mut app = app;
    app.node = app.another_with(options, Arc::new(Machine::new().await));
    app.node.start();
    let parent = app.real_project().await.to_string();
    let used = branch(&app, &parent, &json!({"branch_name": "used"})).await;
    let idle_branch = branch(&app, &parent, &json!({"branch_name": "idle"})).await;
    until_finished(&app).await;
    let path = format!("/v1/projects/{parent}/branches");
    let third = post(&app, &path, &json!({"branch_name": "c"})).await;
    let refused = third.expect(400).message();
    assert!(refused.contains("2 branches already"), "{refused}");

    app.advance(16 * 60);
    idle::stop_idle(&app.app).await.unwrap();
    let asleep = "select ref from projects where asleep order by id";
    let rows = app.app.db.query(asleep, &[]).await.unwrap();
    let asleep: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(
        asleep,
        [reference(&used), reference(&idle_branch)],
        "not the parent"
    );
    assert_eq!(
        seen(&app, &reference(&used)).await["preview_project_status"],
        "ACTIVE_HEALTHY"
    );

    app.advance(2 * 86_400);
    sql(&app, &reference(&used), "select 1").await.expect(201);
    let told = seen(&app, &reference(&used)).await;
    let until: chrono::DateTime<chrono::Utc> =
        told["unused_expires_at"].as_str().unwrap().parse().unwrap();
    assert!(
        until > app.clock.now() + chrono::TimeDelta::days(2),
        "{told}"
    );
    app.app.branch_runner.wake();
    // The other one; its end is only in the log.
    until_announced(&app, false, 0, 86_400).await;
    app.advance(86_400);
    app.app.branch_runner.wake();
    let gone: ProjectRef = reference(&idle_branch).parse().unwrap();
    app.until(&gone, Status::Removed).await;
    assert_eq!(
        seen(&app, &reference(&used)).await["status"],
        "FUNCTIONS_DEPLOYED"
    );
}
