//! Creations and resets that fail: the run ends, tells the reason, and can be repeated.

use std::{sync::Arc, time::Duration};

use gantry::control::projects::reconciler::recover_on_startup;
use gantry_base::ids::ProjectRef;
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{branch, get, migrate, post, reference, seen, sql, until_finished};
use crate::support::{TestApp, machine::PATIENCE};

/// Sets the masking of a project, as the operator does.
async fn mask(app: &TestApp, project: &str, rules: &[&str]) {
    let sql = "insert into branch_maskings (project_id, rules, updated_at)
               select id, $2, now() from projects where ref = $1
               on conflict (project_id) do update set rules = $2";
    app.app.db.query(sql, &[&project, &rules]).await.unwrap();
}

/// Waits until no run is open, while time passes for the pauses between attempts.
async fn until_finished_in_time(app: &TestApp) {
    let open = "select from action_runs where finished_at is null";
    let finished = async {
        while !app.app.db.query(open, &[]).await.unwrap().is_empty() {
            app.clock.advance(Duration::from_secs(5));
            app.app.reconciler.wake();
            app.app.branch_runner.wake();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE * 2, finished).await.unwrap();
}

/// Returns the steps by status, and the log, of the newest run of a project.
async fn last_run(app: &TestApp, project: &str) -> (Value, String) {
    let runs = get(app, &format!("/v1/projects/{project}/actions")).await;
    let run = runs.expect(200).json()[0].clone();
    let id = run["id"].as_str().unwrap();
    let logs = get(app, &format!("/v1/projects/{project}/actions/{id}/logs")).await;
    let steps = run["run_steps"].as_array().unwrap().iter();
    let statuses = steps.map(|step| {
        (
            step["name"].as_str().unwrap().to_owned(),
            step["status"].clone(),
        )
    });
    (
        Value::Object(statuses.collect()),
        logs.expect(200).text().to_owned(),
    )
}

async fn with_rows(app: &TestApp) -> String {
    let parent = app.real_project().await.to_string();
    migrate(app, &parent, "notes", "create table public.notes (id int)").await;
    sql(app, &parent, "insert into public.notes values (1)")
        .await
        .expect(201);
    parent
}

async fn rows(app: &TestApp, project: &str) -> Value {
    let counted = sql(app, project, "select count(*) as n from public.notes").await;
    counted.expect(201).json()[0]["n"].clone()
}

#[tokio::test]
async fn masking_that_fails_is_told_and_the_branch_never_answers() {
    let app = TestApp::running().await;
    let parent = with_rows(&app).await;
    mask(&app, &parent, &["update public.notes set id = 1 / 0"]).await;
    let own = reference(
        &branch(
            &app,
            &parent,
            &json!({"branch_name": "b", "with_data": true}),
        )
        .await,
    );
    until_finished(&app).await;
    let view = seen(&app, &own).await;
    assert_eq!(view["status"], "MIGRATIONS_FAILED");
    assert_eq!(view["preview_project_status"], "INIT_FAILED");
    let (steps, log) = last_run(&app, &own).await;
    assert_eq!(
        (&steps["clone"], &steps["configure"]),
        (&json!("EXITED"), &json!("DEAD")),
        "{steps}"
    );
    assert_eq!(steps["migrate"], "CREATED");
    assert!(log.contains("masking rule 1 failed: 22012"), "{log}");
    assert!(log.contains("a reset tries again"), "{log}");
    sql(&app, &own, "select 1").await.expect(544);
    // No attempt is made again by itself: each would cost the parent a checkpoint.
    app.clock.advance(Duration::from_hours(1));
    app.app.reconciler.wake();
    let attempts = "select from projects where ref = $1 and not_before = 'infinity'";
    assert_eq!(app.app.db.query(attempts, &[&own]).await.unwrap().len(), 1);

    mask(&app, &parent, &["update public.notes set id = 7"]).await;
    post(&app, &format!("/v1/branches/{own}/reset"), &json!({}))
        .await
        .expect(201);
    until_finished(&app).await;
    let view = seen(&app, &own).await;
    assert_eq!(view["status"], "FUNCTIONS_DEPLOYED", "{view}");
    assert_eq!(view["copy"]["masked"], true, "{view}");
    let masked = sql(&app, &own, "select id from public.notes")
        .await
        .expect(201);
    assert_eq!(masked.json(), json!([{"id": 7}]));

    // A reset that fails leaves the branch as it was.
    sql(&app, &own, "insert into public.notes values (8)")
        .await
        .expect(201);
    mask(&app, &parent, &["select 1 / 0"]).await;
    // The runs are ordered by time.
    app.clock.advance(Duration::from_mins(1));
    post(&app, &format!("/v1/branches/{own}/reset"), &json!({}))
        .await
        .expect(201);
    until_finished(&app).await;
    let (_, log) = last_run(&app, &own).await;
    assert!(log.contains("it stays as it was"), "{log}");
    assert_eq!(rows(&app, &own).await, 2);
    let view = seen(&app, &own).await;
    assert_eq!(view["preview_project_status"], "ACTIVE_HEALTHY");
}

#[tokio::test]
async fn paused_parent_ends_the_run_and_a_reset_after_its_restore_succeeds() {
    let mut app = TestApp::running().await;
    let parent = with_rows(&app).await;
    // The pause is recorded before the copy can begin.
    app.node.kill();
    let own = reference(
        &branch(
            &app,
            &parent,
            &json!({"branch_name": "b", "with_data": true}),
        )
        .await,
    );
    post(&app, &format!("/v1/projects/{parent}/pause"), &json!({}))
        .await
        .expect(200);
    let machine = Arc::clone(&app.machine);
    app.node = app.another(1, machine);
    recover_on_startup(&app.app).await.unwrap();
    app.node.start();
    until_finished_in_time(&app).await;
    let (steps, log) = last_run(&app, &own).await;
    assert_eq!(steps["clone"], "DEAD", "{steps}");
    assert!(log.contains("does not run; restore it"), "{log}");
    post(&app, &format!("/v1/projects/{parent}/restore"), &json!({}))
        .await
        .expect(200);
    assert_eq!(rows(&app, &parent).await, 1);
    post(&app, &format!("/v1/branches/{own}/reset"), &json!({}))
        .await
        .expect(201);
    until_finished_in_time(&app).await;
    assert_eq!(rows(&app, &own).await, 1);
}

#[tokio::test]
async fn parent_that_crashes_during_the_copy_is_copied_after_its_restart() {
    let app = TestApp::running().await;
    let parent = with_rows(&app).await;
    let filler = "create table public.filler as select repeat(md5(n::text), 60) t from generate_series(1, 40000) n";
    sql(&app, &parent, filler).await.expect(201);
    let project: ProjectRef = parent.parse().unwrap();
    let pid = app.machine.pid(&project).await;
    let own = reference(
        &branch(
            &app,
            &parent,
            &json!({"branch_name": "b", "with_data": true}),
        )
        .await,
    );
    let copying = "select from branches where copy_phase = 'files'";
    let begun = async {
        while app.app.db.query(copying, &[]).await.unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    // A quick copy is past this phase before it is seen.
    let _ = timeout(Duration::from_secs(10), begun).await;
    kill_process(pid, Signal::KILL).unwrap();
    until_finished_in_time(&app).await;
    assert_eq!(rows(&app, &own).await, 1);
    assert_eq!(rows(&app, &parent).await, 1);
    assert_eq!(seen(&app, &own).await["status"], "FUNCTIONS_DEPLOYED");
}

#[tokio::test]
async fn failed_migration_of_a_new_branch_is_told_with_the_way_out() {
    let app = TestApp::running().await;
    let parent = with_rows(&app).await;
    migrate(
        &app,
        &parent,
        "broken",
        "create table public.later (id int)",
    )
    .await;
    let broken = "update supabase_migrations.schema_migrations set statements = array['select nope'] where name = 'broken'";
    sql(&app, &parent, broken).await.expect(201);
    let own = reference(&branch(&app, &parent, &json!({"branch_name": "b"})).await);
    until_finished(&app).await;
    assert_eq!(seen(&app, &own).await["status"], "MIGRATIONS_FAILED");
    let (steps, log) = last_run(&app, &own).await;
    assert_eq!(
        (&steps["migrate"], &steps["seed"]),
        (&json!("DEAD"), &json!("CREATED"))
    );
    assert!(
        log.contains("42703") && log.contains("schema_source"),
        "{log}"
    );

    let patched = app.patch(&format!("/v1/branches/{own}")).as_(&app.owner);
    patched
        .json(&json!({"schema_source": "parent"}))
        .send()
        .await
        .expect(200);
    post(&app, &format!("/v1/branches/{own}/reset"), &json!({}))
        .await
        .expect(201);
    until_finished(&app).await;
    let view = seen(&app, &own).await;
    assert_eq!(
        (&view["status"], &view["schema_source"]),
        (&json!("FUNCTIONS_DEPLOYED"), &json!("parent"))
    );
    assert_eq!(rows(&app, &own).await, 0);
    sql(&app, &own, "select from public.later")
        .await
        .expect(201);
}
