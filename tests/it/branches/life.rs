//! Expiry, notifications, rehearsals of merges, and parents without migrations.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use gantry::control::projects::Status;
use gantry_base::ids::ProjectRef;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    time::timeout,
};

use super::{branch, get, migrate, post, reference, seen, sql, until_finished, versions};
use crate::{
    events,
    support::{TestApp, client::Answer, machine::PATIENCE},
};

async fn patch(app: &TestApp, reference: &str, body: &Value) -> Answer {
    let call = app.patch(&format!("/v1/branches/{reference}"));
    call.as_(&app.owner).json(body).send().await
}

fn expiry(branch: &Value) -> DateTime<Utc> {
    branch["expires_at"].as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn branch_ends_at_its_time_and_a_persistent_one_does_not() {
    let app = TestApp::running().await;
    let parent = app.real_project().await.to_string();
    let now = app.clock.now();
    let path = format!("/v1/projects/{parent}/branches");
    for (body, field) in [
        (json!({"expires_at": now}), "expires_at"),
        (
            json!({"expires_at": now + TimeDelta::days(366)}),
            "expires_at",
        ),
        (
            json!({"expires_at": now + TimeDelta::days(1), "persistent": true}),
            "expires_at",
        ),
        (json!({"notify_url": "file:///etc/passwd"}), "notify_url"),
    ] {
        let mut body = body;
        body["branch_name"] = "x".into();
        let refused = post(&app, &path, &body).await.expect(400).message();
        assert!(refused.contains(field), "{refused}");
    }
    let usual = branch(&app, &parent, &json!({"branch_name": "usual"})).await;
    assert_eq!(expiry(&usual), now + TimeDelta::days(7));
    let short = json!({"branch_name": "short", "expires_at": now + TimeDelta::hours(2)});
    let short = branch(&app, &parent, &short).await;
    assert_eq!(expiry(&short), now + TimeDelta::hours(2));
    let kept = json!({"branch_name": "kept", "persistent": true});
    let kept = branch(&app, &parent, &kept).await;
    assert_eq!(kept.get("expires_at"), None);
    until_finished(&app).await;

    let later = json!({"expires_at": now + TimeDelta::days(30)});
    let later = patch(&app, &reference(&usual), &later)
        .await
        .expect(200)
        .json();
    assert_eq!(expiry(&later), now + TimeDelta::days(30));
    patch(
        &app,
        &reference(&kept),
        &json!({"expires_at": now + TimeDelta::days(1)}),
    )
    .await
    .expect(400);

    app.clock.advance(Duration::from_hours(3));
    // Any change starts a pass.
    app.app.branch_runner.wake();
    let gone: ProjectRef = reference(&short).parse().unwrap();
    app.until(&gone, Status::Removed).await;
    for other in [&usual, &kept] {
        assert_eq!(
            seen(&app, &reference(other)).await["status"],
            "FUNCTIONS_DEPLOYED"
        );
    }
}

/// Accepts one request, answers it with a status, and returns its head and body.
async fn receive(listener: &TcpListener, status: &str) -> (String, Value) {
    let received = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut text = Vec::new();
        loop {
            let mut part = [0; 4096];
            let count = stream.read(&mut part).await.unwrap();
            text.extend_from_slice(&part[..count]);
            let text = String::from_utf8_lossy(&text).into_owned();
            if let Some((head, body)) = text.split_once("\r\n\r\n")
                && let Ok(body) = serde_json::from_str(body)
            {
                let answer =
                    format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                stream.write_all(answer.as_bytes()).await.unwrap();
                return (head.to_lowercase(), body);
            }
        }
    };
    timeout(PATIENCE, received).await.unwrap()
}

#[tokio::test]
async fn end_of_a_run_is_sent_until_it_is_confirmed() {
    let app = TestApp::running().await;
    let parent = app.real_project().await.to_string();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let made = branch(
        &app,
        &parent,
        &json!({"branch_name": "b", "notify_url": url}),
    )
    .await;
    let (head, first) = receive(&listener, "503 Later").await;
    assert!(head.starts_with("post /hook"), "{head}");
    let run = first["data"]["action_run"]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(head.contains(&format!("webhook-id: {run}")), "{head}");
    until_attempts(&app, 1).await;
    app.clock.advance(Duration::from_secs(20));
    app.app.branch_runner.wake();
    let (_, second) = receive(&listener, "204 Thanks").await;
    assert_eq!(first, second);
    assert_eq!(second["type"], "run.completed");
    assert_eq!(second["data"]["project_ref"], made["project_ref"]);
    assert_eq!(second["data"]["branch"]["status"], "FUNCTIONS_DEPLOYED");
    assert_eq!(second["data"]["action_run"]["steps"][6]["status"], "exited");

    // An address that the operator does not permit is never connected to.
    let own = reference(&made);
    patch(&app, &own, &json!({"notify_url": "http://10.0.0.1/"}))
        .await
        .expect(200);
    let path = format!("/v1/branches/{own}/push");
    let push = post(&app, &path, &json!({})).await.expect(201).json();
    until_finished(&app).await;
    let push = push["workflow_run_id"].as_str().unwrap();
    let logs = format!("/v1/projects/{own}/actions/{push}/logs");
    let told = async {
        loop {
            let log = get(&app, &logs).await.expect(200).text().to_owned();
            if log.contains("is not a public address") {
                return;
            }
            app.clock.advance(Duration::from_mins(10));
            app.app.branch_runner.wake();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, told).await.unwrap();
}

#[tokio::test]
async fn end_of_a_branch_is_announced_a_day_and_an_hour_ahead_once() {
    let app = TestApp::running().await;
    let parent = app.real_project().await.to_string();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let now = app.clock.now();
    let end = now + TimeDelta::days(2);
    // Its owner has just chosen an end in the next day.
    let short = json!({"branch_name": "short", "expires_at": now + TimeDelta::hours(20)});
    let short = branch(&app, &parent, &short).await;
    let made = json!({"branch_name": "b", "expires_at": end});
    let made = branch(&app, &parent, &made).await;
    until_finished(&app).await;
    let later = json!({"expires_at": now + TimeDelta::days(9)});
    patch(&app, &reference(&short), &later).await.expect(200);
    let hook = json!({"notify_url": url});
    patch(&app, &reference(&made), &hook).await.expect(200);
    app.clock.advance(Duration::from_hours(30));
    app.app.branch_runner.wake();
    let (head, body) = receive(&listener, "500 Busy").await;
    assert_eq!(body["type"], "branch.expiring");
    let data = &body["data"];
    assert_eq!(
        (&data["project_ref"], &data["parent_project_ref"]),
        (&json!(reference(&made)), &json!(parent))
    );
    assert_eq!(data["branch"]["name"], "b");
    assert_eq!(data["reason"], "expires_at");
    let told: DateTime<Utc> = data["expires_at"].as_str().unwrap().parse().unwrap();
    assert_eq!(told, end);
    let events = events::names(&app).await;
    let expiring = |name: &&String| *name == "gantry.branch.expiring";
    assert_eq!(events.iter().filter(expiring).count(), 1, "{events:?}");
    let id = |head: &str| {
        let line = head.lines().find(|line| line.starts_with("webhook-id: "));
        line.unwrap().to_owned()
    };
    let first = id(&head);
    // Repeated with the same id until it is confirmed.
    until_announced(&app, true, 1, 86_400).await;
    app.clock.advance(Duration::from_mins(1));
    app.app.branch_runner.wake();
    let (head, again) = receive(&listener, "204 No Content").await;
    assert_eq!((id(&head), &again), (first.clone(), &body));
    until_announced(&app, false, 2, 86_400).await;

    // Another end is announced again.
    let later = json!({"expires_at": end + TimeDelta::hours(1)});
    patch(&app, &reference(&made), &later).await.expect(200);
    app.app.branch_runner.wake();
    let (head, other) = receive(&listener, "204 No Content").await;
    assert_ne!(id(&head), first);
    let told: DateTime<Utc> = other["data"]["expires_at"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    assert_eq!(told, end + TimeDelta::hours(1));
    until_announced(&app, false, 1, 86_400).await;

    app.clock.advance(Duration::from_mins(18 * 60 + 30));
    app.app.branch_runner.wake();
    let (_, last) = receive(&listener, "204 No Content").await;
    assert_eq!(last["data"]["expires_at"], other["data"]["expires_at"]);
    until_announced(&app, false, 1, 3600).await;
    let sql = "select count(*) from branches where announced_end is not null";
    let rows = app.app.db.query(sql, &[]).await.unwrap();
    assert_eq!(rows[0].get::<_, i64>(0), 1);
}

/// Waits until the notice of a branch has this state.
pub(super) async fn until_announced(app: &TestApp, is_open: bool, attempts: i32, lead_secs: i32) {
    let sql = "select from branches where (announce_at is not null) = $1 and announce_attempts = $2 \
               and announced_lead_secs = $3";
    let announced = async {
        while app
            .app
            .db
            .query(sql, &[&is_open, &attempts, &lead_secs])
            .await
            .unwrap()
            .is_empty()
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, announced).await.unwrap();
}

async fn until_attempts(app: &TestApp, count: i32) {
    let sql = "select from action_runs where notify_attempts = $1";
    let counted = async {
        while app.app.db.query(sql, &[&count]).await.unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, counted).await.unwrap();
}

async fn merge(app: &TestApp, parent: &str, own: &str) -> String {
    let path = format!("/v1/branches/{own}/merge");
    let run = post(app, &path, &json!({})).await.expect(201).json();
    until_finished(app).await;
    let run = run["workflow_run_id"].as_str().unwrap();
    let path = format!("/v1/projects/{parent}/actions/{run}/logs");
    get(app, &path).await.expect(200).text().to_owned()
}

#[tokio::test]
async fn failing_rehearsal_leaves_the_parent_as_it_is() {
    let app = TestApp::running().await;
    let parent = app.real_project().await.to_string();
    migrate(&app, &parent, "base", "create table public.base (id int)").await;
    let own = reference(&branch(&app, &parent, &json!({"branch_name": "b"})).await);
    until_finished(&app).await;
    // Cannot run in one transaction, so without a rehearsal the first would stay applied.
    migrate(&app, &own, "first", "create table public.first (id int)").await;
    migrate(&app, &own, "second", "create table public.second (id int)").await;
    let index = "create index concurrently base_id on public.base (id)";
    migrate(&app, &own, "third", index).await;
    sql(&app, &parent, "create table public.second (id int)")
        .await
        .expect(201);
    let log = merge(&app, &parent, &own).await;
    assert!(
        log.contains("rehearsal failed, the parent is unchanged"),
        "{log}"
    );
    assert!(log.contains("42P07"), "{log}");
    assert_eq!(versions(&app, &parent).await, ["base"]);
    sql(&app, &parent, "select from public.first")
        .await
        .expect(400);

    sql(&app, &parent, "drop table public.second")
        .await
        .expect(201);
    let log = merge(&app, &parent, &own).await;
    assert!(
        log.contains("rehearsed on a copy, which was removed (3 of 3 migrations"),
        "{log}"
    );
    assert_eq!(
        versions(&app, &parent).await,
        ["base", "first", "second", "third"]
    );
    sql(&app, &parent, "select from public.first")
        .await
        .expect(201);

    // Older than one that the parent has got since.
    migrate(&app, &own, "older", "create table public.older (id int)").await;
    // Both would get the version of this second.
    app.clock.advance(Duration::from_mins(1));
    migrate(&app, &parent, "newer", "create table public.newer (id int)").await;
    let log = merge(&app, &parent, &own).await;
    assert!(
        log.contains("rehearsed on a copy, which was removed (1 of 1 migrations"),
        "{log}"
    );
    assert!(
        log.contains("out_of_order: true, older than migrations already applied: 2"),
        "{log}"
    );
}

#[tokio::test]
async fn schema_of_a_parent_without_migrations_is_told_as_missing() {
    let app = TestApp::running().await;
    let parent = app.real_project().await.to_string();
    sql(&app, &parent, "create table public.notes (id int)")
        .await
        .expect(201);
    let own = reference(&branch(&app, &parent, &json!({"branch_name": "b"})).await);
    until_finished(&app).await;
    sql(&app, &own, "select from public.notes")
        .await
        .expect(400);
    let drift = &seen(&app, &own).await["unapplied_drift"];
    assert_eq!(drift["objects"], json!(["table public.notes"]), "{drift}");
}

#[tokio::test]
async fn schema_that_a_branch_lacks_without_the_kit_is_told_until_a_push_brings_it() {
    let app = TestApp::running().await;
    let parent = app.real_project().await.to_string();
    let base = "create table public.notes (id int); create function public.one() returns int language sql return 1";
    migrate(&app, &parent, "base", base).await;
    let same = reference(&branch(&app, &parent, &json!({"branch_name": "a"})).await);
    until_finished(&app).await;
    assert_eq!(seen(&app, &same).await.get("unapplied_drift"), None);

    let unrecorded = "create table public.loose (id int primary key); alter table public.notes add column extra text; \
        create or replace function public.one() returns int language sql return 2";
    sql(&app, &parent, unrecorded).await.expect(201);
    let own = reference(&branch(&app, &parent, &json!({"branch_name": "b"})).await);
    until_finished(&app).await;
    let drift = &seen(&app, &own).await["unapplied_drift"];
    assert_eq!(
        (&drift["objects"], &drift["count"]),
        (
            &json!([
                "function public.one() (differs)",
                "table public.loose",
                "column extra of public.notes"
            ]),
            &json!(3)
        )
    );
    let message = drift["message"].as_str().unwrap();
    assert!(message.contains("gantry service install diff"), "{message}");
    let runs = get(&app, &format!("/v1/projects/{own}/actions"))
        .await
        .expect(200)
        .json();
    let path = format!(
        "/v1/projects/{own}/actions/{}/logs",
        runs[0]["id"].as_str().unwrap()
    );
    let log = get(&app, &path).await.expect(200).text().to_owned();
    assert!(
        log.contains("unapplied_drift: 3 objects") && log.contains(message),
        "{log}"
    );

    // A migration that records the change later.
    let recorded = "create table if not exists public.loose (id int primary key); \
        alter table public.notes add column if not exists extra text; \
        create or replace function public.one() returns int language sql return 2";
    migrate(&app, &parent, "recorded", recorded).await;
    post(&app, &format!("/v1/branches/{own}/push"), &json!({}))
        .await
        .expect(201);
    until_finished(&app).await;
    assert_eq!(seen(&app, &own).await.get("unapplied_drift"), None);
}
