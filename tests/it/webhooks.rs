//! Database webhooks in a real project.

use gantry::{api::database::webhooks, platform::error::Error};
use serde_json::json;

use crate::{
    sql::{LIMITS, run, server},
    support::TestApp,
};

const TABLE: &str = "
    create table orders (id int primary key);
    create trigger told after insert or update or delete on orders for each row
        execute function supabase_functions.http_request('http://example.test/hook', 'POST', '{\"x-a\": \"1\"}', '{}', '500')";

#[tokio::test]
async fn concurrent_enable_webhooks_succeeds() {
    let app = TestApp::running().await;
    let project = app.real_project().await;
    let path = format!("/v1/projects/{project}/database/webhooks/enable");
    let enable = || async { app.post(&path).as_(&app.developer).send().await.expect(201) };
    let (first, second) = tokio::join!(enable(), enable());
    assert_eq!((first.text(), second.text()), ("", ""));
    enable().await;
    let query = async |sql: &str| {
        let path = format!("/v1/projects/{project}/database/query");
        app.post(&path)
            .as_(&app.owner)
            .json(&json!({"query": sql}))
            .send()
            .await
            .expect(201)
            .json()
    };
    assert_eq!(
        query("select version from supabase_functions.migrations").await,
        json!([{"version": "initial"}])
    );
    app.post(&path).as_(&app.read_only).send().await.expect(403);
}

#[tokio::test]
async fn webhook_is_sent_if_sender_is_installed() {
    let target = server().await;
    webhooks::enable(&target, LIMITS).await.unwrap();
    run(&target, TABLE).await.unwrap();
    // No sender is installed; writes succeed anyway.
    run(&target, "insert into orders values (1); delete from orders")
        .await
        .unwrap();
    let due = "select hook_table_id = 'orders'::regclass::int8 as here, hook_name, request_id from supabase_functions.hooks order by id";
    let unsent = json!({"here": true, "hook_name": "told", "request_id": null});
    assert_eq!(run(&target, due).await.unwrap(), json!([unsent, unsent]));

    // A stub of the extension that stores requests.
    let sender = "
        create schema net;
        create table net.sent (id bigint generated always as identity, url text, body jsonb, params jsonb, headers jsonb, timeout int);
        create function net.http_post(url text, body jsonb, params jsonb, headers jsonb, timeout_milliseconds int) returns bigint
            language sql as 'insert into net.sent (url, body, params, headers, timeout) values ($1, $2, $3, $4, $5) returning id'";
    run(&target, sender).await.unwrap();
    run(
        &target,
        "insert into orders values (2); update orders set id = 3",
    )
    .await
    .unwrap();
    let sent = run(&target, "select * from net.sent order by id")
        .await
        .unwrap();
    let call = |id, kind: &str, old| {
        json!({
            "id": id, "url": "http://example.test/hook", "params": {}, "headers": {"x-a": "1"}, "timeout": 500,
            "body": {"type": kind, "schema": "public", "table": "orders", "record": {"id": id + 1}, "old_record": old},
        })
    };
    assert_eq!(
        sent,
        json!([
            call(1, "INSERT", json!(null)),
            call(2, "UPDATE", json!({"id": 2}))
        ])
    );
    let requests = run(
        &target,
        "select request_id from supabase_functions.hooks order by id offset 2",
    )
    .await
    .unwrap();
    assert_eq!(requests, json!([{"request_id": 1}, {"request_id": 2}]));
}

#[tokio::test]
async fn enable_webhooks_keeps_existing_objects() {
    let target = server().await;
    run(
        &target,
        "create table supabase_functions.migrations (version text)",
    )
    .await
    .unwrap();
    let refused = webhooks::enable(&target, LIMITS).await.unwrap_err();
    assert!(
        matches!(&refused, Error::Sql(text) if text.contains("42P07")),
        "{refused}"
    );
    assert_eq!(
        run(
            &target,
            "select to_regclass('supabase_functions.hooks') as hooks"
        )
        .await
        .unwrap(),
        json!([{"hooks": null}]),
        "by half"
    );

    run(&target, "drop table supabase_functions.migrations")
        .await
        .unwrap();
    webhooks::enable(&target, LIMITS).await.unwrap();
    let own = "create or replace function supabase_functions.http_request() returns trigger language plpgsql as 'begin return null; end'";
    run(&target, own).await.unwrap();
    webhooks::enable(&target, LIMITS).await.unwrap();
    let kept = run(
        &target,
        "select prosrc from pg_proc where proname = 'http_request'",
    )
    .await
    .unwrap();
    assert_eq!(kept, json!([{"prosrc": "begin return null; end"}]));
}
