//! Pause, restore, restart and password change, with rows only and on real clusters.

use std::{fs, sync::Arc};

use gantry::control::projects::{Status, reconciler};
use gantry_base::ids::ProjectRef;
use gantry_node::clusters::ObservedState;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::support::{
    Node, TestApp,
    client::Answer,
    machine::{PATIENCE, SuperuserClients as _},
};

async fn ask(app: &TestApp, project: &ProjectRef, what: &str) -> Answer {
    app.post(&format!("/v1/projects/{project}/{what}"))
        .as_(&app.owner)
        .send()
        .await
}

async fn query(node: &Node, app: &TestApp, project: &ProjectRef, sql: &str) -> Answer {
    node.post(&format!("/v1/projects/{project}/database/query"))
        .as_(&app.owner)
        .json(&json!({"query": sql}))
        .send()
        .await
}

async fn observed(app: &TestApp, project: &ProjectRef) -> ObservedState {
    app.machine.clusters.observe(project).await.unwrap()
}

/// Sets the state of a project that no node operates.
async fn put(app: &TestApp, status: Status) {
    let desired = match status {
        Status::Pausing | Status::Inactive | Status::PauseFailed => "paused",
        _ => "active",
    };
    let sql =
        "update projects set desired = $2, status = $3, last_error = 'the reason' where ref = $1";
    app.app
        .db
        .query(sql, &[&app.home.project.as_str(), &desired, &status.name()])
        .await
        .unwrap();
}

async fn row(app: &TestApp) -> (String, String, i64) {
    let sql = "select desired, status, generation from projects where ref = $1";
    let row = &app
        .app
        .db
        .query(sql, &[&app.home.project.as_str()])
        .await
        .unwrap()[0];
    (row.get(0), row.get(1), row.get(2))
}

#[tokio::test]
async fn commands_are_rejected_in_other_states() {
    let app = TestApp::new().await;
    for (status, what, refusal) in [
        (
            Status::ActiveHealthy,
            "restore",
            "This project is no longer in a paused state, it is ACTIVE_HEALTHY",
        ),
        (
            Status::ActiveHealthy,
            "restore/cancel",
            "This project is not being restored, it is ACTIVE_HEALTHY",
        ),
        (
            Status::ComingUp,
            "pause",
            "This project cannot be paused, it is COMING_UP",
        ),
        (
            Status::Restoring,
            "pause",
            "This project cannot be paused, it is RESTORING",
        ),
        (
            Status::Pausing,
            "restore",
            "This project is not in a paused state yet, it is PAUSING",
        ),
        (
            Status::Inactive,
            "pause",
            "This project cannot be paused, it is INACTIVE",
        ),
        (
            Status::Inactive,
            "restart",
            "This project cannot be restarted, it is INACTIVE",
        ),
    ] {
        put(&app, status).await;
        let before = row(&app).await;
        assert_eq!(
            ask(&app, &app.home.project, what)
                .await
                .expect(400)
                .message(),
            refusal
        );
        assert_eq!(row(&app).await, before, "{what}");
    }
    for (status, what, desired, begun) in [
        (Status::ActiveHealthy, "pause", "paused", "PAUSING"),
        (Status::PauseFailed, "pause", "paused", "PAUSING"),
        (Status::Inactive, "restore", "active", "RESTORING"),
        (Status::RestoreFailed, "restore", "active", "RESTORING"),
        (Status::Restoring, "restore/cancel", "paused", "PAUSING"),
        (Status::ActiveUnhealthy, "restart", "active", "RESTARTING"),
    ] {
        put(&app, status).await;
        let generation = row(&app).await.2;
        assert_eq!(
            ask(&app, &app.home.project, what).await.expect(200).text(),
            ""
        );
        assert_eq!(
            row(&app).await,
            (desired.to_owned(), begun.to_owned(), generation + 1),
            "{what}"
        );
        assert_eq!(
            app.get(&app.at(""))
                .as_(&app.owner)
                .send()
                .await
                .expect(200)
                .json()["status"],
            begun
        );
    }
}

#[tokio::test]
async fn operations_on_paused_project_follow_the_contract() {
    let app = TestApp::new().await;
    let get = async |path: &str| app.get(&app.at(path)).as_(&app.owner).send().await;
    assert_eq!(
        get("/restore").await.expect(400).message(),
        "This project is not in a paused state."
    );
    put(&app, Status::Inactive).await;
    assert_eq!(
        get("/health?services=db").await.expect(400).message(),
        "No active services available"
    );
    for path in [
        "/database/context",
        "/database/migrations",
        "/types/typescript",
    ] {
        assert_eq!(
            get(path).await.expect(544).message(),
            "Connection terminated due to connection timeout"
        );
    }
    query(&app, &app, &app.home.project, "select 1")
        .await
        .expect(544);
    let password = app
        .patch(&app.at("/database/password"))
        .as_(&app.owner)
        .json(&json!({"password": "new one"}))
        .send()
        .await;
    assert_eq!(
        password.expect(400).message(),
        "Cannot reset password for non-active projects"
    );
    let listed = app
        .get("/v1/projects")
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(listed[0]["status"], "INACTIVE", "it is still there");
    // The stub reports version 17, so only that version can restore the data.
    let (major, sql) = (
        app.app.driver.engines().default_engine().major(),
        "update projects set engine = $2 where ref = $1",
    );
    app.app
        .db
        .query(sql, &[&app.home.project.as_str(), &"9.6"])
        .await
        .unwrap();
    assert_eq!(
        get("/restore").await.expect(200).json(),
        json!({"available_versions": []})
    );
    app.app
        .db
        .query(sql, &[&app.home.project.as_str(), &format!("{major}.0")])
        .await
        .unwrap();
    let version = json!({"version": app.app.driver.engines().default_engine().text(), "release_channel": "ga", "postgres_engine": major.to_string()});
    assert_eq!(
        get("/restore").await.expect(200).json(),
        json!({"available_versions": [version]})
    );

    for status in [Status::PauseFailed, Status::RestoreFailed] {
        put(&app, status).await;
        let health = get("/health?services=db").await.expect(200).json();
        assert_eq!(
            health[0],
            json!({"name": "db", "healthy": false, "status": "UNHEALTHY", "error": "the reason"})
        );
    }
    put(&app, Status::Pausing).await;
    let refused = app
        .delete(&app.at(""))
        .as_(&app.owner)
        .send()
        .await
        .expect(400)
        .message();
    assert_eq!(refused, "Project is pausing and is not ready for deletion");
    put(&app, Status::Inactive).await;
    app.delete(&app.at(""))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
}

#[tokio::test]
async fn pause_without_permission_is_rejected() {
    let app = TestApp::new().await;
    for what in ["pause", "restore", "restore/cancel", "restart"] {
        app.post(&app.at(&format!("/{what}")))
            .as_(&app.read_only)
            .send()
            .await
            .expect(403);
        app.post(&app.at(&format!("/{what}")))
            .as_(&app.stranger)
            .send()
            .await
            .expect(404);
    }
    assert_eq!(row(&app).await.2, 0);
}

#[tokio::test]
async fn pause_and_restore_are_audited() {
    let app = TestApp::new().await;
    ask(&app, &app.home.project, "pause").await.expect(200);
    ask(&app, &app.home.project, "pause").await.expect(400);
    let sql = "select status, before, after from audit_entries where operation = 'v1-pause-a-project' order by number";
    let rows = app.app.db.query(sql, &[]).await.unwrap();
    let entries: Vec<(i16, Option<String>, Option<String>)> = rows
        .iter()
        .map(|row| (row.get(0), row.get(1), row.get(2)))
        .collect();
    let text = |status: &str| Some(json!({ "status": status }).to_string());
    assert_eq!(
        entries,
        [
            (200, text("ACTIVE_HEALTHY"), text("PAUSING")),
            (400, None, None)
        ]
    );
}

#[tokio::test]
async fn pause_and_restore_keep_data() {
    let app = TestApp::running().await;
    let project = app.real_project().await;
    query(&app, &app, &project, "create table kept as select 42 as n")
        .await
        .expect(201);
    ask(&app, &project, "pause").await.expect(200);
    app.until(&project, Status::Inactive).await;
    assert_eq!(observed(&app, &project).await, ObservedState::Stopped);
    query(&app, &app, &project, "select 1").await.expect(544);

    ask(&app, &project, "restore").await.expect(200);
    // A query during the restore waits.
    assert_eq!(
        query(&app, &app, &project, "select n from kept")
            .await
            .expect(201)
            .json(),
        json!([{"n": 42}])
    );
    app.until(&project, Status::ActiveHealthy).await;

    let pid = app.machine.pid(&project).await;
    ask(&app, &project, "restart").await.expect(200);
    app.until(&project, Status::ActiveHealthy).await;
    assert_ne!(app.machine.pid(&project).await, pid);
    assert_eq!(
        query(&app, &app, &project, "select n from kept")
            .await
            .expect(201)
            .json(),
        json!([{"n": 42}])
    );

    ask(&app, &project, "pause").await.expect(200);
    app.until(&project, Status::Inactive).await;
    app.delete(&format!("/v1/projects/{project}"))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    app.until(&project, Status::Removed).await;
    assert_eq!(observed(&app, &project).await, ObservedState::Absent);
}

/// The last command determines the final state, regardless of the progress of the previous one.
#[tokio::test]
async fn latest_command_wins() {
    let app = TestApp::running().await;
    let project = app.real_project().await;
    for _ in 0..3 {
        ask(&app, &project, "pause").await.expect(200);
        app.until(&project, Status::Inactive).await;
        ask(&app, &project, "restore").await.expect(200);
        // A late cancellation finds a running project and pauses it.
        let cancelled = ask(&app, &project, "restore/cancel").await;
        if cancelled.status == 400 {
            ask(&app, &project, "pause").await.expect(200);
        }
        app.until(&project, Status::Inactive).await;
        assert_eq!(observed(&app, &project).await, ObservedState::Stopped);
        ask(&app, &project, "restore").await.expect(200);
        app.until(&project, Status::ActiveHealthy).await;
    }
}

#[tokio::test]
async fn pause_requested_during_downtime_is_executed_at_startup() {
    let mut app = TestApp::running().await;
    let (sleeper, waker) = (app.real_project().await, app.create_project("waker").await);
    app.until(&waker, Status::ActiveHealthy).await;
    ask(&app, &waker, "pause").await.expect(200);
    app.until(&waker, Status::Inactive).await;
    app.node.stop().await;
    ask(&app, &sleeper, "pause").await.expect(200);
    ask(&app, &waker, "restore").await.expect(200);

    let mut restarted = app.another(1, Arc::clone(&app.machine));
    restarted.start();
    restarted.until(&sleeper, Status::Inactive).await;
    restarted.until(&waker, Status::ActiveHealthy).await;
    assert_eq!(observed(&app, &sleeper).await, ObservedState::Stopped);
    query(&restarted, &app, &waker, "select 1")
        .await
        .expect(201);
    restarted.stop().await;
}

/// A project without its data cannot be restored. The failure is reported, and the same call
/// retries.
#[tokio::test]
async fn failed_restore_is_reported_and_retried() {
    let app = TestApp::running().await;
    let project = app.real_project().await;
    ask(&app, &project, "pause").await.expect(200);
    app.until(&project, Status::Inactive).await;
    let mislaid = app.machine.dir().join("mislaid");
    fs::rename(app.machine.home.project(&project), &mislaid).unwrap();
    ask(&app, &project, "restore").await.expect(200);
    let path = format!("/v1/projects/{project}");
    let mut changes = app.app.reconciler.changes();
    let failed = async {
        while app
            .get(&path)
            .as_(&app.owner)
            .send()
            .await
            .expect(200)
            .json()["status"]
            != "RESTORE_FAILED"
        {
            changes.changed().await.unwrap();
            app.advance(60);
            app.app.reconciler.wake();
        }
    };
    timeout(PATIENCE, failed).await.unwrap();
    let health = app
        .get(&format!("{path}/health?services=db"))
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(
        (&health[0]["status"], &health[0]["healthy"]),
        (&json!("UNHEALTHY"), &json!(false))
    );
    assert!(
        health[0]["error"]
            .as_str()
            .unwrap()
            .contains("does not exist"),
        "{health}"
    );
    query(&app, &app, &project, "select 1").await.expect(544);

    fs::rename(&mislaid, app.machine.home.project(&project)).unwrap();
    ask(&app, &project, "restore").await.expect(200);
    app.until(&project, Status::ActiveHealthy).await;
    let health = app
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
}

#[tokio::test]
async fn new_password_is_valid_when_the_call_returns() {
    let app = TestApp::running().await;
    let project = app.real_project().await;
    let verifier = async || -> String {
        let admin = app.machine.clusters.admin_session(&project).await.unwrap();
        admin
            .query_one(
                "select rolpassword from pg_authid where rolname = 'postgres'",
                &[],
            )
            .await
            .unwrap()
            .get(0)
    };
    let path = format!("/v1/projects/{project}/database/password");
    let first = verifier().await;
    for bad in [
        json!({"password": "abc"}),
        json!({}),
        json!({"password": "x".repeat(257)}),
    ] {
        app.patch(&path)
            .as_(&app.owner)
            .json(&bad)
            .send()
            .await
            .expect(400);
    }
    assert_eq!(verifier().await, first);
    let answer = app
        .patch(&path)
        .as_(&app.owner)
        .json(&json!({"password": "battery staple"}))
        .send()
        .await
        .expect(200);
    assert!(answer.json()["message"].is_string() && !answer.text().contains("staple"));
    let second = verifier().await;
    assert!(
        second != first && second.starts_with("SCRAM-SHA-256$"),
        "{second}"
    );
    let kept: Option<String> = app
        .app
        .db
        .query(
            "select password_verifier from projects where ref = $1",
            &[&project.as_str()],
        )
        .await
        .unwrap()[0]
        .get(0);
    assert_eq!(kept, None);
    let log: Value = app
        .app
        .db
        .query(
            "select coalesce(jsonb_agg(to_jsonb(e)), '[]') from audit_entries e",
            &[],
        )
        .await
        .unwrap()[0]
        .get(0);
    assert!(
        log.to_string().contains("v1-update-database-password")
            && !log.to_string().contains("staple"),
        "{log}"
    );
    app.patch(&path)
        .as_(&app.read_only)
        .json(&json!({"password": "battery staple"}))
        .send()
        .await
        .expect(403);
}

/// Roles with the grants of an older version receive the grants of this version.
#[tokio::test]
async fn outdated_project_receives_current_grants() {
    let mut app = TestApp::running().await;
    let (runs, sleeps) = (app.real_project().await, app.create_project("sleeps").await);
    app.until(&sleeps, Status::ActiveHealthy).await;
    let wide = "grant temporary on database postgres to public; grant execute on function lo_create(oid) to public";
    for project in [&runs, &sleeps] {
        app.machine
            .clusters
            .admin_session(project)
            .await
            .unwrap()
            .batch_execute(wide)
            .await
            .unwrap();
    }
    let owner = app.owner.clone();
    let more = async |node: &Node, project: &ProjectRef| {
        let reader = "'supabase_read_only_user'";
        let sql = format!(
            "select has_database_privilege({reader}, 'postgres', 'temporary') or has_function_privilege({reader}, 'lo_create(oid)', 'execute') as more"
        );
        let path = format!("/v1/projects/{project}/database/query");
        node.post(&path)
            .as_(&owner)
            .json(&json!({"query": sql}))
            .send()
            .await
            .expect(201)
            .json()[0]["more"]
            .clone()
    };
    assert_eq!(more(&app, &runs).await, true);
    ask(&app, &sleeps, "pause").await.expect(200);
    app.until(&sleeps, Status::Inactive).await;
    app.app
        .db
        .query("update projects set grants = 'older'", &[])
        .await
        .unwrap();
    app.node.stop().await;

    let mut newer = app.another(1, Arc::clone(&app.machine));
    reconciler::recover_on_startup(&newer.app).await.unwrap();
    newer.start();
    let outdated = async || -> i64 {
        let sql = "select count(*) from projects where ref = $1 and outdated";
        newer.app.db.query(sql, &[&runs.as_str()]).await.unwrap()[0].get(0)
    };
    let mut changes = newer.app.reconciler.changes();
    let granted = async {
        while outdated().await > 0 {
            changes.changed().await.unwrap();
        }
    };
    timeout(PATIENCE, granted).await.unwrap();
    assert_eq!(more(&newer, &runs).await, false);
    ask(&app, &sleeps, "restore").await.expect(200);
    newer.until(&sleeps, Status::ActiveHealthy).await;
    assert_eq!(more(&newer, &sleeps).await, false);
    newer.stop().await;
}
