//! An outage of the store and the recovery.

use std::time::Duration;

use http::StatusCode;
use rustix::process::Signal;
use tokio::time::Instant;

use super::{
    gate::{Flow, Gate},
    support::{Node, Valkey, options},
};
use crate::support::postgres::database;

/// Checks a node during an outage of its store and after it. `stop` starts the outage, `resume`
/// ends it.
async fn check_outage(node: &Node, stop: impl AsyncFnOnce(), resume: impl AsyncFnOnce()) {
    node.until_shared().await;
    assert_eq!(node.ask().await.status(), StatusCode::OK);
    stop().await;
    let (mut slowest, mut admitted) = (Duration::ZERO, 0);
    for _ in 0..300 {
        let asked = Instant::now();
        let response = node.ask().await;
        slowest = slowest.max(asked.elapsed());
        assert!(
            !response.status().is_server_error(),
            "{}",
            response.status()
        );
        assert!(
            response.headers().contains_key("x-ratelimit-reset")
                && response.headers().contains_key("ratelimit")
        );
        admitted += usize::from(response.status().is_success());
    }
    // The only process continues from the request that the store counted.
    assert_eq!(admitted, 119);
    // The deadline is 50 ms, with a margin for a busy machine. Without a deadline it would be at
    // least two seconds.
    assert!(slowest < Duration::from_millis(1_900), "{slowest:?}");
    assert!(node.decided_by("this process alone") > 200);
    resume().await;
    node.until_shared().await;
}

const QUICK: Duration = Duration::from_millis(50);

#[tokio::test(flavor = "multi_thread")]
async fn frozen_valkey_falls_back_to_local_counters() {
    let valkey = Valkey::start().await;
    let node = Node::new(&database().await, &options(&valkey.url(), QUICK));
    check_outage(
        &node,
        async || valkey.signal(Signal::STOP),
        async || valkey.signal(Signal::CONT),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_valkey_falls_back_to_local_counters() {
    let valkey = Valkey::start().await;
    let node = Node::new(&database().await, &options(&valkey.url(), QUICK));
    let valkey = tokio::sync::Mutex::new(valkey);
    check_outage(
        &node,
        async || valkey.lock().await.kill().await,
        async || valkey.lock().await.start_again().await,
    )
    .await;
}

async fn check_outage_of_postgres(outage: Flow) {
    let config = database().await;
    let gate = Gate::before_postgres(&config);
    let node = Node::new(&gate.config(&config), &options("postgres", QUICK));
    let turn = async |flow| gate.turn(flow);
    check_outage(
        &node,
        async || turn(outage).await,
        async || turn(Flow::Open).await,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn frozen_postgres_falls_back_to_local_counters() {
    check_outage_of_postgres(Flow::Frozen).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn disconnected_postgres_falls_back_to_local_counters() {
    check_outage_of_postgres(Flow::Cut).await;
}
