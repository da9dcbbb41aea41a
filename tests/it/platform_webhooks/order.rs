//! Order, repeated attempts, and several nodes.

use std::sync::Arc;

use gantry::control::platform_webhooks;
use serde_json::{Value, json};

use super::{
    PAUSED, create, deliveries, emit_project, faults::Silent, of_organization, of_project, pass,
    patch, statuses, url,
};
use crate::support::{
    TestApp,
    collector::{Collected, Collector},
    machine::Machine,
};

fn number(request: &Collected) -> u64 {
    request.json()["payload"]["number"].as_u64().unwrap()
}

async fn emit_number(app: &TestApp, number: u64) {
    emit_project(app, PAUSED, &json!({"number": number})).await;
}

#[tokio::test]
async fn failed_event_is_tried_five_times_before_the_next_one() {
    let app = TestApp::new().await;
    let collector = Collector::start().await;
    let base = of_organization(&app);
    let id = create(&app, &base, &url(&collector, "/x"), &["*"]).await;
    collector.judge(|body| {
        let event: Value = serde_json::from_slice(body).unwrap();
        if event["payload"]["number"] == 0 {
            503
        } else {
            204
        }
    });
    for number in 0..3 {
        emit_number(&app, number).await;
    }
    pass(&app.node).await;
    for (attempts, pause) in [(1, 10), (2, 30), (3, 90), (4, 270)] {
        assert_eq!(collector.collected().len(), 0);
        let listed = deliveries(&app, &base, id).await;
        let failed = listed
            .iter()
            .filter(|it| it["attributes"]["status"] == "failure");
        assert_eq!(failed.count(), attempts);
        app.advance(pause - 1);
        pass(&app.node).await;
        collector.until_rejected(attempts).await;
        let same = statuses(&app, &base, id).await;
        assert_eq!(same.iter().filter(|it| *it == "failure").count(), attempts);
        app.advance(1);
        pass(&app.node).await;
        collector.until_rejected(attempts + 1).await;
    }
    let sent: Vec<_> = collector.collected().iter().map(number).collect();
    assert_eq!(sent, [1, 2]);
    let listed = deliveries(&app, &base, id).await;
    assert_eq!(listed.len(), 7);
    let events: std::collections::BTreeSet<_> = listed
        .iter()
        .filter(|it| it["attributes"]["status"] == "failure")
        .map(|it| it["attributes"]["event_id"].as_str().unwrap())
        .collect();
    assert_eq!(events.len(), 1, "all attempts are of one event");
    app.advance(3600);
    pass(&app.node).await;
    assert_eq!(deliveries(&app, &base, id).await.len(), 7);
}

#[tokio::test]
async fn test_does_not_wait_for_a_failing_queue() {
    let app = TestApp::new().await;
    let collector = Collector::start().await;
    let base = of_organization(&app);
    let id = create(&app, &base, &url(&collector, "/x"), &["*"]).await;
    collector.answer([500]);
    emit_number(&app, 0).await;
    pass(&app.node).await;
    let path = format!("{base}/endpoints/{id}/test");
    app.post(&path).as_(&app.owner).send().await.expect(201);
    pass(&app.node).await;
    let sent = collector.collected();
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].json()["payload"]["is_test"], true);
    app.advance(10);
    pass(&app.node).await;
    assert_eq!(collector.collected().len(), 2);
}

#[tokio::test]
async fn two_nodes_deliver_each_event_once_and_in_order() {
    let app = TestApp::new().await;
    let other = app.another(2, Arc::new(Machine::bare()));
    let collector = Collector::start().await;
    let paths = ["/a", "/b", "/c"];
    for path in paths {
        create(&app, &of_project(&app), &url(&collector, path), &["*"]).await;
    }
    for number in 0..20 {
        emit_number(&app, number).await;
    }
    let both = tokio::join!(pass(&app.node), pass(&other));
    assert_eq!(both, ((), ()));
    let sent = collector.collected();
    for path in paths {
        let to = sent.iter().filter(|it| it.path == path);
        let numbers: Vec<_> = to.map(number).collect();
        assert_eq!(numbers, (0..20).collect::<Vec<_>>(), "{path}");
    }
}

#[tokio::test]
async fn attempt_of_a_killed_node_is_repeated_by_another() {
    let app = TestApp::new().await;
    let silent = Silent::start().await;
    let base = of_organization(&app);
    let id = create(&app, &base, &silent.url(), &["*"]).await;
    emit_number(&app, 0).await;
    let control = app.app.control.clone();
    let first = tokio::spawn(async move { platform_webhooks::pass(&control).await });
    let request = silent.next().await;
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    assert_eq!(statuses(&app, &base, id).await, ["pending"]);

    // The receiver had the request, so that it gets the event again: at least once.
    let other = app.another(2, Arc::new(Machine::bare()));
    pass(&other).await;
    assert_eq!(
        statuses(&app, &base, id).await,
        ["pending"],
        "the claim holds"
    );
    app.advance(60);
    let control = other.app.control.clone();
    let second = tokio::spawn(async move { platform_webhooks::pass(&control).await });
    let repeated = silent.next().await;
    assert_eq!(repeated.header("webhook-id"), request.header("webhook-id"));
    repeated
        .answer("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        .await;
    second.await.unwrap().unwrap();
    assert_eq!(statuses(&app, &base, id).await, ["success"]);
}

#[tokio::test]
async fn late_result_of_a_lost_claim_is_not_recorded() {
    let app = TestApp::new().await;
    let silent = Silent::start().await;
    let base = of_organization(&app);
    let id = create(&app, &base, &silent.url(), &["*"]).await;
    emit_number(&app, 0).await;
    let control = app.app.control.clone();
    let first = tokio::spawn(async move { platform_webhooks::pass(&control).await });
    let slow = silent.next().await;
    app.advance(60);
    let other = app.another(2, Arc::new(Machine::bare()));
    let control = other.app.control.clone();
    let second = tokio::spawn(async move { platform_webhooks::pass(&control).await });
    let taken_over = silent.next().await;
    slow.answer("HTTP/1.1 500 -\r\ncontent-length: 0\r\n\r\n")
        .await;
    first.await.unwrap().unwrap();
    assert_eq!(statuses(&app, &base, id).await, ["pending"]);
    taken_over.answer("HTTP/1.1 204 -\r\n\r\n").await;
    second.await.unwrap().unwrap();
    assert_eq!(statuses(&app, &base, id).await, ["success"]);
}

#[tokio::test]
async fn queue_is_bounded_and_further_events_stay_in_the_log() {
    let app = TestApp::new().await;
    let collector = Collector::start().await;
    let base = of_organization(&app);
    create(&app, &base, &url(&collector, "/x"), &["*"]).await;
    collector.answer([500]);
    for number in 0..130 {
        emit_number(&app, number).await;
    }
    pass(&app.node).await;
    let sql = "select (select count(*) from webhook_deliveries where status = 'pending'), \
               (select position from webhook_endpoints)";
    let row = &app.app.db.query(sql, &[]).await.unwrap()[0];
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (100, 100));
    app.advance(10);
    pass(&app.node).await;
    let sent: Vec<_> = collector.collected().iter().map(number).collect();
    assert_eq!(sent, (0..130).collect::<Vec<_>>());
}

#[tokio::test]
async fn disabled_endpoint_skips_its_queue_and_gets_no_later_events() {
    let app = TestApp::new().await;
    let collector = Collector::start().await;
    let base = of_project(&app);
    let id = create(&app, &base, &url(&collector, "/x"), &["*"]).await;
    collector.answer([500]);
    emit_number(&app, 0).await;
    pass(&app.node).await;
    // Not copied from the log yet, but made before.
    emit_number(&app, 1).await;
    let set_enabled = async |enabled: bool| {
        app.patch(&format!("{base}/endpoints/{id}"))
            .as_(&app.owner)
            .json(&patch(&json!({"enabled": enabled})))
            .send()
            .await
            .expect(200)
    };
    set_enabled(false).await;
    let expected = ["failure", "skipped", "skipped"];
    assert_eq!(statuses(&app, &base, id).await, expected);
    emit_number(&app, 2).await;
    app.advance(60);
    pass(&app.node).await;
    // Between the last pass and the change.
    emit_number(&app, 3).await;
    set_enabled(true).await;
    emit_number(&app, 4).await;
    pass(&app.node).await;
    let sent: Vec<_> = collector.collected().iter().map(number).collect();
    assert_eq!(sent, [4]);
    let skipped = &deliveries(&app, &base, id).await[1]["attributes"];
    assert_eq!(skipped["error_code"], "endpoint_disabled");
    assert_eq!(skipped["response_code"], 0);
}

#[tokio::test]
async fn endpoint_of_a_project_follows_it_to_another_organization() {
    let app = TestApp::new().await;
    let collector = Collector::start().await;
    let base = of_project(&app);
    create(&app, &base, &url(&collector, "/x"), &["*"]).await;
    // The log of the target has events already.
    super::emit(
        &app,
        app.foreign.id,
        PAUSED,
        Some(&app.home.project),
        &json!({"number": 9}),
    )
    .await;
    emit_number(&app, 0).await;
    let mut client = app.app.db.client().await.unwrap();
    let transaction = client.transaction().await.unwrap();
    let sql = "select id from projects where ref = $1";
    let project = app.home.project.as_str();
    let id: i64 = transaction
        .query_one(sql, &[&project])
        .await
        .unwrap()
        .get(0);
    let (entropy, now) = (&app.app.entropy, app.clock.now());
    platform_webhooks::queue::follow_projects(&transaction, &[id], app.foreign.id, entropy, now)
        .await
        .unwrap();
    transaction.commit().await.unwrap();
    super::emit(
        &app,
        app.foreign.id,
        PAUSED,
        Some(&app.home.project),
        &json!({"number": 1}),
    )
    .await;
    pass(&app.node).await;
    let sent: Vec<_> = collector.collected().iter().map(number).collect();
    assert_eq!(sent, [0, 1]);
}
