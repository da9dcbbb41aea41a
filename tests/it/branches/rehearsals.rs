//! Rehearsals of merges and pushes on a copy of the project that they change.

use std::{fs, path::PathBuf};

use serde_json::{Value, json};

use super::{branch, get, migrate, post, reference, seen, sql, until_finished, versions};
use crate::support::TestApp;

/// Begins a merge or a push, and returns the log of its run.
async fn carried_out(app: &TestApp, own: &str, action: &str, changed: &str) -> String {
    let path = format!("/v1/branches/{own}/{action}");
    let run = post(app, &path, &json!({})).await.expect(201).json();
    until_finished(app).await;
    let run = run["workflow_run_id"].as_str().unwrap();
    let path = format!("/v1/projects/{changed}/actions/{run}/logs");
    get(app, &path).await.expect(200).text().to_owned()
}

/// Returns the folders of copies.
fn copies(app: &TestApp) -> Vec<PathBuf> {
    let entries = fs::read_dir(app.machine.dir().join("tmp")).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

#[tokio::test]
async fn migration_that_fails_with_the_data_of_the_parent_never_reaches_it() {
    let app = TestApp::running().await;
    let parent = app.real_project().await.to_string();
    migrate(&app, &parent, "notes", "create table public.notes (n int)").await;
    sql(&app, &parent, "insert into public.notes values (1), (1)")
        .await
        .expect(201);
    let own = reference(&branch(&app, &parent, &json!({"branch_name": "b"})).await);
    until_finished(&app).await;
    migrate(&app, &own, "log", "create table public.log (n int)").await;
    // Fails only with the rows of the parent.
    let unique = "alter table public.notes add unique (n)";
    migrate(&app, &own, "unique", unique).await;
    let log = carried_out(&app, &own, "merge", &parent).await;
    assert!(
        log.contains("rehearsal failed, the parent is unchanged") && log.contains("23505"),
        "{log}"
    );
    assert!(log.contains("trying 2 migrations on the copy"), "{log}");
    assert_eq!(versions(&app, &parent).await, ["notes"]);
    sql(&app, &parent, "select from public.log")
        .await
        .expect(400);
    assert_eq!(copies(&app), Vec::<PathBuf>::new());

    let distinct = "delete from public.notes where ctid = (select max(ctid) from public.notes)";
    sql(&app, &parent, distinct).await.expect(201);
    let log = carried_out(&app, &own, "merge", &parent).await;
    assert!(
        log.contains("rehearsed on a copy, which was removed (2 of 2 migrations"),
        "{log}"
    );
    assert_eq!(versions(&app, &parent).await, ["notes", "log", "unique"]);
    assert_eq!(copies(&app), Vec::<PathBuf>::new());
    let rows: Value = sql(&app, &parent, "select n from public.notes")
        .await
        .expect(201)
        .json();
    assert_eq!(rows, json!([{"n": 1}]));
    // Nothing is left to try.
    let log = carried_out(&app, &own, "merge", &parent).await;
    assert!(!log.contains("copy"), "{log}");
}

#[tokio::test]
async fn push_is_rehearsed_on_a_copy_of_the_branch() {
    let app = TestApp::running().await;
    let parent = app.real_project().await.to_string();
    migrate(&app, &parent, "notes", "create table public.notes (n int)").await;
    let own = reference(&branch(&app, &parent, &json!({"branch_name": "b"})).await);
    until_finished(&app).await;
    sql(&app, &own, "insert into public.notes values (1), (1)")
        .await
        .expect(201);
    let index = "create unique index concurrently notes_n on public.notes (n)";
    migrate(&app, &parent, "index", index).await;
    let log = carried_out(&app, &own, "push", &own).await;
    assert!(
        log.contains("rehearsal failed, the branch is unchanged") && log.contains("23505"),
        "{log}"
    );
    assert_eq!(versions(&app, &own).await, ["notes"]);
    let invalid = "select count(*) from pg_index where not indisvalid";
    let invalid = sql(&app, &own, invalid).await.expect(201).json();
    assert_eq!(invalid, json!([{"count": 0}]));
    assert_eq!(seen(&app, &own).await["status"], "MIGRATIONS_FAILED");

    sql(&app, &own, "truncate public.notes").await.expect(201);
    let log = carried_out(&app, &own, "push", &own).await;
    assert!(
        log.contains("rehearsed on a copy, which was removed (1 of 1 migrations"),
        "{log}"
    );
    assert_eq!(versions(&app, &own).await, ["notes", "index"]);
    assert_eq!(copies(&app), Vec::<PathBuf>::new());
}
