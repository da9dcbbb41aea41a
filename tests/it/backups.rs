//! Backups of real clusters: points in time, undo, faults of the store, and interruptions.

mod continuing;
mod disk;
pub(crate) mod elsewhere;
mod faults;
mod moments;

use std::{sync::Arc, time::Duration};

use gantry::{
    app::Settings,
    control::{
        backups::{self, state::BackupOptions, upkeep},
        projects::Status,
    },
    platform::http::Transport,
};
use gantry_base::{
    clock::Clock,
    ids::{ProjectId, ProjectRef},
};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use crate::support::{
    TestApp,
    client::Answer,
    machine::{Machine, PATIENCE, SuperuserClients as _},
    settings,
};

/// Interval of looking at projects in these tests.
pub(crate) const LOOK: Duration = Duration::from_millis(200);

fn options(backups: BackupOptions) -> Settings {
    Settings {
        backups: BackupOptions {
            look: LOOK,
            ..backups
        },
        ..settings(Transport::default(), Uuid::from_u128(77))
    }
}

/// Returns an application that backs up its projects, in the time of the machine.
async fn backed_up(backups: BackupOptions) -> TestApp {
    backed_up_on(backups, Machine::new().await).await
}

/// Does [`backed_up`] with projects on this machine.
pub(crate) async fn backed_up_on(backups: BackupOptions, mut machine: Machine) -> TestApp {
    let mut app = TestApp::new().await;
    machine.clusters = machine.clusters.with_archives(true);
    app.node = app.another_in_real_time(options(backups), Arc::new(machine));
    app.node.start();
    app
}

async fn post(app: &TestApp, path: &str, body: &Value) -> Answer {
    app.post(path).as_(&app.owner).json(body).send().await
}

async fn get(app: &TestApp, path: &str) -> Answer {
    app.get(path).as_(&app.owner).send().await
}

fn at(project: &ProjectRef, rest: &str) -> String {
    format!("/v1/projects/{project}/database/backups{rest}")
}

async fn sql(app: &TestApp, project: &ProjectRef, query: &str) -> Value {
    let path = format!("/v1/projects/{project}/database/query");
    let answer = post(app, &path, &json!({"query": query})).await;
    answer.expect(201).json()
}

async fn id(app: &TestApp, project: &ProjectRef) -> ProjectId {
    let sql = "select id from projects where ref = $1";
    let rows = app.app.db.query(sql, &[&project.as_str()]).await.unwrap();
    ProjectId(rows[0].get(0))
}

/// Does the upkeep of backups until the project has `count` complete ones, and returns the list.
pub(crate) async fn until_complete(app: &TestApp, project: &ProjectRef, count: usize) -> Value {
    let complete = async {
        loop {
            backups::look(&app.app).await.unwrap();
            upkeep::round(&app.app).await.unwrap();
            let list = get(app, &at(project, "")).await.expect(200).json();
            let complete = list["backups"].as_array().unwrap().iter();
            let complete = complete.filter(|backup| backup["status"] == "COMPLETED");
            if complete.count() >= count {
                return list;
            }
            sleep(LOOK).await;
        }
    };
    timeout(PATIENCE, complete)
        .await
        .expect("no complete backup")
}

/// Waits until the window of the project includes a second.
pub(crate) async fn until_reached(app: &TestApp, project: &ProjectRef, second: i64) {
    let reached = async {
        loop {
            backups::look(&app.app).await.unwrap();
            let list = get(app, &at(project, "")).await.expect(200).json();
            let latest = &list["physical_backup_data"]["latest_physical_backup_date_unix"];
            if latest.as_i64().is_some_and(|latest| latest >= second) {
                return;
            }
            // A commit, so that an idle project need not wait for the minute.
            sql(app, project, "create table if not exists public.tick (n int); insert into public.tick values (1)").await;
            sleep(LOOK).await;
        }
    };
    timeout(PATIENCE, reached)
        .await
        .expect("the window did not move");
}

/// Waits until a restore has ended and the project is healthy. Returns the error of the restore.
pub(crate) async fn until_restored(app: &TestApp, project: &ProjectRef) -> Option<String> {
    app.until(project, Status::ActiveHealthy).await;
    let sql = "select error from restores r join projects p on p.id = r.project_id where p.ref = $1 order by r.id desc limit 1";
    let rows = app.app.db.query(sql, &[&project.as_str()]).await.unwrap();
    rows[0].get(0)
}

fn now() -> i64 {
    Clock::system().now().timestamp()
}

/// Waits until a whole second begins, and returns it.
pub(crate) async fn next_second() -> i64 {
    let begin = now();
    while now() == begin {
        sleep(Duration::from_millis(5)).await;
    }
    now()
}

#[tokio::test]
async fn restore_to_time_brings_back_data_and_keeps_todays_password() {
    let app = backed_up(BackupOptions::default()).await;
    let project = app.real_project().await;
    let empty = get(&app, &at(&project, "")).await.expect(200).json();
    assert_eq!(empty["walg_enabled"], true);
    let list = until_complete(&app, &project, 1).await;
    assert_eq!(list["pitr_enabled"], true);
    assert_eq!(list["backups"][0]["is_physical_backup"], true);
    let latest = now() + 1_000_000;
    let refused = post(
        &app,
        &at(&project, "/restore-pitr"),
        &json!({"recovery_time_target_unix": latest}),
    )
    .await
    .expect(400);
    let window = &list["physical_backup_data"];
    let earliest = window["earliest_physical_backup_date_unix"]
        .as_i64()
        .unwrap();
    let expected = format!("Recovery time target must be within range: {earliest} <= t <= ");
    assert!(
        refused.message().starts_with(&expected),
        "{}",
        refused.message()
    );

    sql(
        &app,
        &project,
        "create table public.notes (n int); insert into public.notes values (1)",
    )
    .await;
    let before = next_second().await;
    next_second().await;
    sql(&app, &project, "insert into public.notes values (2)").await;
    let password = json!({"password": "another correct horse"});
    let path = format!("/v1/projects/{project}/database/password");
    let changed = app
        .patch(&path)
        .as_(&app.owner)
        .json(&password)
        .send()
        .await;
    changed.expect(200);
    let verifier = "select rolpassword from pg_authid where rolname = 'postgres'";
    let admin = app.machine.clusters.admin_session(&project).await.unwrap();
    let today: String = admin.query_one(verifier, &[]).await.unwrap().get(0);
    drop(admin);
    until_reached(&app, &project, before).await;

    let body = json!({"recovery_time_target_unix": before});
    let accepted = post(&app, &at(&project, "/restore-pitr"), &body)
        .await
        .expect(201);
    assert_eq!(accepted.text(), "");
    let second = post(&app, &at(&project, "/restore-pitr"), &body).await;
    second.expect(409);
    assert_eq!(until_restored(&app, &project).await, None);
    let notes = sql(&app, &project, "select n from public.notes order by n").await;
    assert_eq!(notes, json!([{"n": 1}]));
    let admin = app.machine.clusters.admin_session(&project).await.unwrap();
    let restored: String = admin.query_one(verifier, &[]).await.unwrap().get(0);
    assert_eq!(restored, today, "the password of today stays");
    drop(admin);

    // The replaced cluster comes back as it was.
    let point = get(&app, &at(&project, "/restore-point"))
        .await
        .expect(200)
        .json();
    assert_eq!(point["status"], "AVAILABLE");
    let undo = json!({"name": point["name"]});
    post(&app, &at(&project, "/undo"), &undo).await.expect(201);
    assert_eq!(until_restored(&app, &project).await, None);
    let notes = sql(&app, &project, "select n from public.notes order by n").await;
    assert_eq!(notes, json!([{"n": 1}, {"n": 2}]));
    until_complete(&app, &project, 2).await;
}

#[tokio::test]
async fn undo_returns_to_a_restore_point() {
    let app = backed_up(BackupOptions::default()).await;
    let project = app.real_project().await;
    until_complete(&app, &project, 1).await;
    sql(
        &app,
        &project,
        "create table public.notes (n int); insert into public.notes values (1)",
    )
    .await;
    let path = at(&project, "/restore-point");
    let long = json!({"name": "x".repeat(21)});
    post(&app, &path, &long).await.expect(400);
    let none = get(&app, &path).await.expect(404);
    assert_eq!(none.message(), "Restore point not found");
    let made = post(&app, &path, &json!({"name": "before-import"})).await;
    assert_eq!(made.expect(201).json()["status"], "PENDING");
    sql(&app, &project, "insert into public.notes values (2)").await;
    let available = async {
        loop {
            backups::look(&app.app).await.unwrap();
            upkeep::round(&app.app).await.unwrap();
            let point = get(&app, &format!("{path}?name=before-import")).await;
            if point.expect(200).json()["status"] == "AVAILABLE" {
                return;
            }
            sleep(LOOK).await;
        }
    };
    timeout(PATIENCE, available).await.unwrap();
    post(&app, &at(&project, "/undo"), &json!({"name": "unknown"}))
        .await
        .expect(404);
    post(
        &app,
        &at(&project, "/undo"),
        &json!({"name": "before-import"}),
    )
    .await
    .expect(201);
    assert_eq!(until_restored(&app, &project).await, None);
    let notes = sql(&app, &project, "select n from public.notes").await;
    assert_eq!(notes, json!([{"n": 1}]));
}

#[tokio::test]
async fn restore_of_a_listed_backup_brings_back_its_state() {
    let app = backed_up(BackupOptions::default()).await;
    let project = app.real_project().await;
    let list = until_complete(&app, &project, 1).await;
    sql(&app, &project, "create table public.later (n int)").await;
    let backup = list["backups"][0]["id"].as_i64().unwrap();
    let path = at(&project, "/restore");
    post(&app, &path, &json!({"id": backup + 1000}))
        .await
        .expect(404);
    post(&app, &path, &json!({"id": backup})).await.expect(201);
    assert_eq!(until_restored(&app, &project).await, None);
    let tables = sql(
        &app,
        &project,
        "select count(*) from pg_tables where tablename = 'later'",
    )
    .await;
    assert_eq!(tables, json!([{"count": 0}]));
}

#[tokio::test]
async fn restore_of_a_paused_project_is_refused() {
    let app = backed_up(BackupOptions::default()).await;
    let project = app.real_project().await;
    let list = until_complete(&app, &project, 1).await;
    let pause = format!("/v1/projects/{project}/pause");
    app.post(&pause).as_(&app.owner).send().await.expect(200);
    app.until(&project, Status::Inactive).await;
    let body = json!({"id": list["backups"][0]["id"]});
    let refused = post(&app, &at(&project, "/restore"), &body)
        .await
        .expect(400);
    assert_eq!(
        refused.message(),
        "Failed to check for major version of database. Database appears to be unreachable"
    );
}

#[tokio::test]
async fn schedule_is_changed_three_times_a_day() {
    let app = TestApp::new().await;
    let path = app.at("/database/backups/schedule");
    let patch = |actor, text: &str| {
        let body = json!({"schedule_for": text});
        app.patch(&path).as_(actor).json(&body).send()
    };
    let default = get(&app, &path).await.expect(200).json();
    assert_eq!(default["schedule_for"].as_str().unwrap().len(), 8);
    let invalid = patch(&app.owner, "25:00:00").await.expect(400);
    assert_eq!(invalid.message(), "Invalid schedule_for format");
    patch(&app.read_only, "01:00:00").await.expect(403);
    patch(&app.stranger, "01:00:00").await.expect(404);
    for hour in ["01:00:00", "02:00:00", "03:00:00"] {
        let changed = patch(&app.developer, hour).await.expect(200).json();
        assert_eq!(changed["schedule_for"], hour);
    }
    patch(&app.owner, "04:00:00").await.expect(429);
    app.advance(24 * 3600);
    patch(&app.owner, "04:00:00").await.expect(200);
    let read = get(&app, &path).await.expect(200).json();
    assert_eq!(read["schedule_for"], "04:00:00");
}
