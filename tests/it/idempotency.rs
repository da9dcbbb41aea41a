//! Requests with an `Idempotency-Key`: concurrent ones, on two nodes, of different callers, and
//! over time. The contract tests send every operation twice.

use std::sync::Arc;

use chrono::TimeDelta;
use gantry::{
    api::organizations::members,
    platform::{
        access::Role,
        idempotency::{KEYS_MAX, cleanup},
    },
};
use serde_json::json;

use crate::support::{
    Actor, Node, TestApp,
    client::{Answer, Call},
    dawn,
    machine::Machine,
};

fn new_token(node: &Node, actor: &Actor, key: &str, name: &str) -> Call {
    let body = json!({"name": name, "permissions": ["database_read"]});
    node.post("/v1/tokens")
        .as_(actor)
        .header("idempotency-key", key)
        .json(&body)
}

async fn count(app: &TestApp, sql: &'static str) -> i64 {
    app.app.db.query(sql, &[]).await.unwrap()[0].get(0)
}

fn is_replayed(answer: &Answer) -> bool {
    answer.header("idempotency-replayed") == Some("true")
}

#[tokio::test]
async fn concurrent_requests_make_one_change_on_two_nodes() {
    const CREATED: &str = "select count(*) from tokens where name = 'twin'";
    let app = TestApp::new().await;
    let other = app.another(2, Arc::new(Machine::bare()));
    let calls = (0..12).map(|n| {
        let node = if n % 2 == 0 { &app.node } else { &other };
        new_token(node, &app.owner, "one", "twin").send()
    });
    let answers = futures_util::future::join_all(calls).await;
    let (made, running): (Vec<_>, Vec<_>) =
        answers.into_iter().partition(|answer| answer.status == 201);
    assert!(
        made.iter().all(|answer| answer.body == made[0].body),
        "{made:?}"
    );
    assert!(
        running.iter().all(|answer| answer.status == 409),
        "{running:?}"
    );
    assert_eq!(count(&app, CREATED).await, 1);
    let again = new_token(&other, &app.owner, "one", "twin").send().await;
    assert!(is_replayed(&again) && again.body == made[0].body);
    // The token works.
    let token = made[0].json()["token"].as_str().unwrap().to_owned();
    let known = app.get("/v1/projects").token(&token).send().await;
    known.expect(403);
}

#[tokio::test]
async fn concurrent_requests_with_one_key_and_other_content_get_409() {
    let app = TestApp::new().await;
    let calls = ["a", "b"].map(|name| new_token(&app, &app.owner, "one", name).send());
    let answers = futures_util::future::join_all(calls).await;
    let mut statuses = answers
        .iter()
        .map(|answer| answer.status.as_u16())
        .collect::<Vec<_>>();
    statuses.sort_unstable();
    assert_eq!(statuses, [201, 409], "{answers:?}");
    assert_eq!(
        count(&app, "select count(*) from tokens where name in ('a', 'b')").await,
        1
    );
}

#[tokio::test]
async fn key_of_another_caller_or_target_is_independent() {
    let app = TestApp::new().await;
    let [first, other] = [&app.owner, &app.stranger];
    let first = new_token(&app, first, "one", "x").send().await.expect(201);
    let other = new_token(&app, other, "one", "x").send().await.expect(201);
    assert!(!is_replayed(&other) && first.body != other.body);
    let second = app.stub(app.home.id, "second").await;
    for project in [&app.home.project, &second] {
        let rename = app
            .patch(&format!("/v1/projects/{project}"))
            .as_(&app.owner)
            .header("idempotency-key", "one")
            .json(&json!({"name": format!("new {project}")}));
        assert!(!is_replayed(&rename.send().await.expect(200)));
    }
}

#[tokio::test]
async fn replay_needs_the_permission_and_counts_against_the_limit() {
    let app = TestApp::new().await;
    let rename = || {
        app.patch(&format!("/v1/projects/{}", app.home.project))
            .as_(&app.administrator)
            .header("idempotency-key", "one")
            .json(&json!({"name": "renamed"}))
    };
    let first = rename().send().await.expect(200);
    let again = rename().send().await.expect(200);
    assert!(is_replayed(&again) && again.quota.remaining == first.quota.remaining - 1);
    let path = format!(
        "/v2/organizations/{}/members/{}",
        app.home.slug, app.administrator.gotrue_id
    );
    app.delete(&path).as_(&app.owner).send().await.expect(200);
    rename().send().await.expect(404);
}

#[tokio::test]
async fn deletion_is_replayed_to_its_caller_after_the_target_is_gone() {
    let app = TestApp::new().await;
    let leaver = &app.administrator;
    let organization = app.home.id;
    members::set(
        &app.app.db,
        organization,
        leaver.user,
        Role::Owner,
        dawn(),
        None,
    )
    .await
    .unwrap();
    let path = format!(
        "/v2/organizations/{}/members/{}",
        app.home.slug, leaver.gotrue_id
    );
    let leave = |actor: &Actor, key: &str| {
        app.delete(&path)
            .as_(actor)
            .header("idempotency-key", key)
            .send()
    };
    let first = leave(leaver, "one").await.expect(200);
    let again = leave(leaver, "one").await.expect(200);
    assert!(is_replayed(&again) && again.body == first.body);
    leave(leaver, "two").await.expect(404);
    leave(&app.owner, "one").await.expect(404);
    leave(&app.stranger, "one").await.expect(404);
}

#[tokio::test]
async fn rejected_request_leaves_its_key_for_the_corrected_one() {
    let app = TestApp::new().await;
    new_token(&app, &app.owner, "one", "")
        .send()
        .await
        .expect(400);
    let first = new_token(&app, &app.owner, "one", "x")
        .send()
        .await
        .expect(201);
    assert!(!is_replayed(&first));
    let other = new_token(&app, &app.owner, "one", "y")
        .send()
        .await
        .expect(409);
    assert!(
        other
            .message()
            .contains("Send a new key, or the first request unchanged")
    );
}

#[tokio::test]
async fn keys_expire_after_24_hours_and_are_deleted() {
    const KEYS: &str = "select count(*) from idempotency_keys";
    let app = TestApp::new().await;
    let first = new_token(&app, &app.owner, "one", "x")
        .send()
        .await
        .expect(201);
    app.advance(86_399);
    let again = new_token(&app, &app.owner, "one", "x")
        .send()
        .await
        .expect(201);
    assert!(is_replayed(&again) && again.body == first.body);
    app.advance(1);
    let anew = new_token(&app, &app.owner, "one", "y")
        .send()
        .await
        .expect(201);
    assert!(!is_replayed(&anew));
    cleanup::clean(&app.app.db, app.clock.now()).await.unwrap();
    assert_eq!(count(&app, KEYS).await, 1);
    let later = app.clock.now() + TimeDelta::hours(24);
    cleanup::clean(&app.app.db, later).await.unwrap();
    assert_eq!(count(&app, KEYS).await, 0);
}

#[tokio::test]
async fn answers_are_stored_sealed() {
    let app = TestApp::new().await;
    let answer = new_token(&app, &app.owner, "one", "x")
        .send()
        .await
        .expect(201);
    let token = answer.json()["token"].as_str().unwrap().to_owned();
    let rows = app
        .app
        .db
        .query(
            "select k::text, encode(answer, 'escape') from idempotency_keys k",
            &[],
        )
        .await
        .unwrap();
    let (row, stored): (String, String) = (rows[0].get(0), rows[0].get(1));
    assert!(!row.contains(&hex::encode(&token)) && !stored.contains(&token));
    assert!(!stored.contains("\"name\""));
}

#[tokio::test]
async fn keys_of_a_caller_are_bounded() {
    let app = TestApp::new().await;
    let sql = "insert into idempotency_keys (caller, target, key, digest, operation, request_id, \
                   attempt, step, at, expires_at) \
               select 'user ' || $1::bigint, '', 'k' || n, '', 'x', 'r', gen_random_uuid(), \
                   'answered', $2::timestamptz, $2::timestamptz + interval '1 day' \
               from generate_series(1, $3::bigint) n";
    let params: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
        [&app.owner.user.0, &app.clock.now(), &KEYS_MAX];
    app.app.db.query(sql, &params).await.unwrap();
    let full = new_token(&app, &app.owner, "one", "x")
        .send()
        .await
        .expect(400);
    assert!(full.message().contains("at most 10000 keys"), "{full:?}");
    new_token(&app, &app.stranger, "one", "x")
        .send()
        .await
        .expect(201);
}

/// A statement about the table would fail.
#[tokio::test]
async fn request_without_a_key_does_not_touch_the_table() {
    let app = TestApp::new().await;
    let client = app.app.db.client().await.unwrap();
    client
        .batch_execute("drop table idempotency_keys")
        .await
        .unwrap();
    let answer = app
        .post("/v1/tokens")
        .as_(&app.owner)
        .json(&json!({"name": "x", "permissions": ["database_read"]}))
        .send()
        .await
        .expect(201);
    assert!(answer.json()["token"].is_string());
}
