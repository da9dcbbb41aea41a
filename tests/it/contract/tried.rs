//! Dry runs: the request to every operation that changes something changes nothing with
//! `dry_run=true`, and the control database afterwards without it.

use std::collections::BTreeMap;

use gantry::platform::idempotency::Idempotency;
use serde_json::{Value, json};

use super::{
    Findings,
    repeated::{Change, changing},
};
use crate::support::{TestApp, client::Answer};

/// Returns a digest of the rows of each table of the control database.
async fn content(app: &TestApp) -> BTreeMap<String, String> {
    let client = app.app.db.client().await.unwrap();
    let sql = "select quote_ident(tablename) from pg_tables where schemaname = 'public'";
    let mut tables: Vec<String> = Vec::new();
    for row in client.query(sql, &[]).await.unwrap() {
        tables.push(row.get(0));
    }
    let digest = |table: &String| {
        format!(
            "select '{table}', coalesce(md5(string_agg(t::text, ',' order by t::text)), '') from {table} t"
        )
    };
    let digests: Vec<_> = tables.iter().map(digest).collect();
    let rows = client.query(&digests.join(" union all "), &[]).await;
    let rows = rows.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

async fn send(app: &TestApp, change: &Change, dry_run: bool) -> Answer {
    let path = match (dry_run, change.path.contains('?')) {
        (false, _) => change.path.clone(),
        (true, true) => format!("{}&dry_run=true", change.path),
        (true, false) => format!("{}?dry_run=true", change.path),
    };
    let call = app.request(change.endpoint.method.name(), &path);
    let call = call.as_(&app.owner);
    match &change.body {
        Some(body) => call.json(body).send().await,
        None => call.send().await,
    }
}

/// Compares the answer to a dry run with the one to the request itself.
fn compare(change: &Change, tried: &Answer, real: &Answer) -> Result<(), String> {
    let is_one_transaction = matches!(change.kind, Idempotency::Recorded | Idempotency::Marked);
    let is_refused = tried.status == 400 && tried.message().contains("cannot be tried");
    if is_refused || !is_one_transaction {
        let is_refused = tried.status.is_client_error() || tried.status.is_server_error();
        return is_refused.then_some(()).ok_or(format!("tried: {tried:?}"));
    }
    if !real.status.is_success() {
        let is_same = tried.status == real.status && tried.message() == real.message();
        return is_same
            .then_some(())
            .ok_or(format!("tried {tried:?}, then {real:?}"));
    }
    let is_marked = tried.header("dry-run") == Some("true");
    if tried.status != 200 || !is_marked || tried.json()["dry_run"] != json!(true) {
        return Err(format!("tried {tried:?}, then {real:?}"));
    }
    Ok(())
}

#[tokio::test]
async fn dry_run_of_every_operation_changes_nothing() {
    let app = TestApp::new().await;
    let (mut found, mut tried_count) = (Findings::default(), 0);
    // The keys of a project are created by the first request that needs them.
    let keys = app.get(&app.at("/api-keys")).as_(&app.owner).send().await;
    keys.expect(200);
    for endpoint in changing() {
        let change = Change::of(&app, endpoint).await;
        let before = content(&app).await;
        let tried = send(&app, &change, true).await;
        let after = content(&app).await;
        for (table, digest) in &before {
            if after.get(table) != Some(digest) {
                found.add(endpoint, format!("{table} has changed: {tried:?}"));
            }
        }
        let real = send(&app, &change, false).await;
        if let Err(problem) = compare(&change, &tried, &real) {
            found.add(endpoint, problem);
        }
        tried_count += usize::from(tried.status == 200);
    }
    let _ = app.log.take_errors();
    found.verdict("tried");
    assert!(tried_count >= 60, "{tried_count}");
}

#[tokio::test]
async fn dry_run_answers_the_change_its_events_and_the_approval_that_it_needs() {
    let app = TestApp::new().await;
    let path = app.at("?dry_run=true");
    let rename = app.patch(&path).as_(&app.administrator);
    let answer = rename.json(&json!({"name": "renamed"})).send().await;
    assert_eq!(
        answer.expect(200).json(),
        json!({"dry_run": true, "status": 200, "before": {"name": "stub"},
            "after": {"name": "renamed"}, "events": [], "approval": null})
    );
    let protection = app.at("/protection");
    let protect = app.request("PUT", &protection).as_(&app.owner);
    let protect = protect.json(&json!({"protected": true})).send().await;
    protect.expect(200);
    let answer = app.delete(&path).as_(&app.administrator).send().await;
    let answer = answer.expect(200).json();
    assert_eq!(answer["approval"], "deletes the project");
    let events: Vec<Value> = answer["events"].as_array().unwrap().clone();
    assert!(events.contains(&json!("v1.project.removed")), "{answer}");
    let approvals = app.get(&app.at("/approvals")).as_(&app.owner).send().await;
    assert_eq!(approvals.expect(200).json(), json!([]));
}

#[tokio::test]
async fn dry_run_is_refused_like_the_request_itself() {
    let app = TestApp::new().await;
    let path = app.at("?dry_run=true");
    app.delete(&path)
        .as_(&app.read_only)
        .send()
        .await
        .expect(403);
    app.delete(&path)
        .as_(&app.stranger)
        .send()
        .await
        .expect(404);
    let rename = app.patch(&path).as_(&app.owner);
    rename.json(&json!({"name": ""})).send().await.expect(400);
    // Any value but false is a dry run, so that no client changes something by a spelling.
    for value in ["true", "1", "yes", ""] {
        let path = app.at(&format!("?dry_run={value}"));
        let answer = app.delete(&path).as_(&app.owner).send().await.expect(200);
        assert_eq!(answer.json()["dry_run"], true, "{value}");
    }
    let query = app.post(&app.at("/database/query?dry_run=true"));
    let query = query.as_(&app.owner).json(&json!({"query": "select 1"}));
    let message = query.send().await.expect(400).message();
    assert!(message.contains("cannot be tried"), "{message}");
}
