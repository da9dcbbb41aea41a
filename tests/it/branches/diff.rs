//! Comparison of branches with the real kit.

use std::{process::Command, sync::Arc};

use gantry::{
    app::Settings,
    control::services::{schema_diff, state::ServiceOptions},
    platform::http::Transport,
};
use gantry_base::ids::ProjectRef;
use gantry_node::kits::shelf::KitShelf;
use serde_json::json;
use uuid::Uuid;

use super::{branch, get, migrate, post, reference, seen, sql, until_finished, versions};
use crate::{
    services::kits_named,
    support::{
        TestApp,
        machine::{Machine, engine, host},
        settings,
    },
};

/// Returns an application on a node that can compare schemas.
async fn with_kit() -> TestApp {
    kits_named("functions");
    let kits = kits_named(schema_diff::NAME);
    let mut app = TestApp::new().await;
    let options = Settings {
        services: ServiceOptions {
            shelf: KitShelf::new(None, kits),
            launcher: host().launcher,
            ..ServiceOptions::default()
        },
        ..settings(Transport::default(), Uuid::from_u128(12))
    };
    app.node = app.another_in_real_time(options, Arc::new(Machine::new().await));
    app.node.start();
    app
}

/// Returns the schema of a project as PostgreSQL's own program prints it.
fn dump(app: &TestApp, project: &str) -> String {
    let project: ProjectRef = project.parse().unwrap();
    let socket = app.machine.clusters.socket_path(&project);
    let mut command = Command::new(engine().program("pg_dump"));
    command
        .args([
            "-s",
            "--no-comments",
            "-n",
            "public",
            "-n",
            "app",
            "-U",
            "supabase_admin",
            "-h",
        ])
        .arg(socket.parent().unwrap())
        .arg("postgres");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    // Newer versions print a random key.
    lines.retain(|line| !line.starts_with("\\restrict") && !line.starts_with("\\unrestrict"));
    lines.join("\n")
}

const BASE: &str = "
    create schema app;
    create type app.mood as enum ('sad', 'happy');
    create table public.notes (id int primary key, body text, mood app.mood);
    create view public.titles as select id, left(body, 10) as title from public.notes;
    create function app.greet() returns text language sql as $$ select 'old' $$;";

const CHANGES: &str = "
    alter table public.notes add column owner uuid not null default gen_random_uuid();
    alter table public.notes alter column body set not null;
    create index notes_owner on public.notes (owner);
    alter table public.notes enable row level security;
    create policy own on public.notes to authenticated using (owner is not null);
    create or replace view public.titles as select id, left(body, 20) as title from public.notes;
    create or replace function app.greet() returns text language sql as $$ select 'new;''' $$;
    create table app.tags (id int generated always as identity primary key, name text unique);
    grant select on app.tags to anon;
    create function app.touch() returns trigger language plpgsql as $$ begin return new; end $$;
    create trigger touch before update on public.notes for each row execute function app.touch();
    alter type app.mood add value 'calm';
    create domain app.email as text check (value like '%@%')";

#[tokio::test]
async fn diff_applied_to_a_copy_of_the_parent_makes_it_equal_to_the_branch() {
    let app = with_kit().await;
    let parent = app.real_project().await.to_string();
    migrate(&app, &parent, "base", BASE).await;
    let own = reference(&branch(&app, &parent, &json!({"branch_name": "changed"})).await);
    let copy = json!({"branch_name": "copy", "with_data": true});
    let copy = reference(&branch(&app, &parent, &copy).await);
    until_finished(&app).await;
    let path = format!("/v1/branches/{own}/diff");
    let equal = get(&app, &path).await.expect(200);
    assert_eq!(equal.text(), "");
    assert_eq!(
        equal.header("content-type"),
        Some("text/plain; charset=utf-8")
    );

    sql(&app, &own, CHANGES).await.expect(201);
    let diff = get(&app, &path).await.expect(200).text().to_owned();
    assert_ne!(dump(&app, &copy), dump(&app, &own));
    // The parts are separated where a transaction must end.
    sql(&app, &copy, &diff).await.expect(201);
    assert_eq!(dump(&app, &copy), dump(&app, &own), "{diff}");
    let equal = get(&app, &format!("{path}?pgdelta=true")).await.expect(200);
    assert_ne!(equal.text(), "", "the parent itself was not changed");

    let only = get(&app, &format!("{path}?included_schemas=app")).await;
    let only = only.expect(200).text().to_owned();
    assert!(
        only.contains("app.tags") || only.contains("\"app\".\"tags\""),
        "{only}"
    );
    assert!(!only.contains("notes"), "{only}");
    let bad = get(&app, &format!("{path}?included_schemas=%2A")).await;
    bad.expect(400);
    let sockets = app.machine.home.socket_dir("");
    let left = std::fs::read_dir(sockets).unwrap().flatten();
    let left: Vec<_> = left
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    assert!(!left.iter().any(|name| name.contains(".diff.")), "{left:?}");
    assert_eq!(seen(&app, &own).await["status"], "FUNCTIONS_DEPLOYED");
}

#[tokio::test]
async fn parent_without_migrations_gets_one_of_its_whole_schema() {
    let app = with_kit().await;
    let parent = app.real_project().await.to_string();
    sql(&app, &parent, BASE).await.expect(201);
    sql(
        &app,
        &parent,
        "insert into public.notes values (1, 'kept', 'sad')",
    )
    .await
    .expect(201);
    let own = reference(&branch(&app, &parent, &json!({"branch_name": "b"})).await);
    until_finished(&app).await;
    assert_eq!(versions(&app, &parent).await, ["remote_schema"]);
    assert_eq!(versions(&app, &own).await, ["remote_schema"]);
    assert_eq!(dump(&app, &parent), dump(&app, &own));
    let rows = sql(&app, &parent, "select body from public.notes").await;
    assert_eq!(rows.expect(201).json(), json!([{"body": "kept"}]));
    // A second branch finds the migration.
    let second = reference(&branch(&app, &parent, &json!({"branch_name": "c"})).await);
    until_finished(&app).await;
    assert_eq!(versions(&app, &second).await, ["remote_schema"]);
    let path = format!("/v1/branches/{second}/diff");
    assert_eq!(get(&app, &path).await.expect(200).text(), "");
}

#[tokio::test]
async fn without_the_kit_the_answer_names_the_command_that_installs_it() {
    let app = TestApp::running().await;
    let parent = app.real_project().await.to_string();
    let own = reference(&branch(&app, &parent, &json!({"branch_name": "b"})).await);
    until_finished(&app).await;
    let path = format!("/v1/branches/{own}/diff");
    let missing = get(&app, &path).await.expect(501).message();
    assert!(missing.contains("gantry service install diff"), "{missing}");
    app.get(&path).as_(&app.stranger).send().await.expect(404);
    app.get(&path).as_(&app.read_only).send().await.expect(403);
}

#[tokio::test]
async fn drift_of_the_parent_is_in_the_branch_and_is_never_merged_back() {
    let app = with_kit().await;
    let parent = app.real_project().await.to_string();
    migrate(&app, &parent, "base", BASE).await;
    let unrecorded =
        "alter table public.notes add column extra text; create table app.drifted (id int)";
    sql(&app, &parent, unrecorded).await.expect(201);
    let own = reference(&branch(&app, &parent, &json!({"branch_name": "b"})).await);
    until_finished(&app).await;
    assert_eq!(versions(&app, &own).await, ["base", "remote_schema_drift"]);
    assert_eq!(dump(&app, &parent), dump(&app, &own));
    let runs = get(&app, &format!("/v1/projects/{own}/actions"))
        .await
        .expect(200)
        .json();
    let run = runs[0]["id"].as_str().unwrap();
    let log = get(&app, &format!("/v1/projects/{own}/actions/{run}/logs")).await;
    let log = log.expect(200).text().to_owned();
    assert!(
        log.contains("pull: the parent's schema differs from its migrations by"),
        "{log}"
    );

    app.clock.advance(std::time::Duration::from_mins(1));
    migrate(&app, &own, "tags", "create table public.tags (id int)").await;
    sql(&app, &own, "create table public.only_here (id int)")
        .await
        .expect(201);
    let merge = post(&app, &format!("/v1/branches/{own}/merge"), &json!({})).await;
    let run = merge.expect(201).json()["workflow_run_id"]
        .as_str()
        .unwrap()
        .to_owned();
    until_finished(&app).await;
    assert_eq!(versions(&app, &parent).await, ["base", "tags"]);
    let log = get(&app, &format!("/v1/projects/{parent}/actions/{run}/logs")).await;
    let log = log.expect(200).text().to_owned();
    assert!(log.contains("they are in the diff of the branch"), "{log}");
    app.clock.advance(std::time::Duration::from_mins(1));
    migrate(&app, &parent, "later", "create table public.later (id int)").await;
    post(&app, &format!("/v1/branches/{own}/push"), &json!({}))
        .await
        .expect(201);
    until_finished(&app).await;
    assert_eq!(
        versions(&app, &own).await,
        ["base", "remote_schema_drift", "tags", "later"]
    );

    post(&app, &format!("/v1/branches/{own}/reset"), &json!({}))
        .await
        .expect(201);
    until_finished(&app).await;
    assert_eq!(
        versions(&app, &own).await,
        ["base", "tags", "later", "remote_schema_drift"]
    );
    assert_eq!(dump(&app, &parent), dump(&app, &own));
}
