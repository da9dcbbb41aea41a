//! The store goes away in the middle, and comes back.

use std::time::Duration;

use http::StatusCode;
use rustix::process::Signal;
use tokio::time::Instant;

use super::{
    gate::{Flow, Gate},
    support::{Node, Valkey, options},
};
use crate::support::postgres::database;

/// What a node does while its store is away and after: `stop` makes it go away, `resume` lets it come back.
async fn an_outage_is_survived(node: &Node, stop: impl AsyncFnOnce(), resume: impl AsyncFnOnce()) {
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
    // The only process goes on from the request that the store counted.
    assert_eq!(admitted, 119);
    // The deadline is 50 ms here; the rest is for a busy machine. Without a deadline it would be two seconds, or for ever.
    assert!(slowest < Duration::from_millis(1_900), "{slowest:?}");
    assert!(node.decided_by("this process alone") > 200);
    resume().await;
    node.until_shared().await;
}

const QUICK: Duration = Duration::from_millis(50);

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_valkey_is_done_without() {
    let valkey = Valkey::start().await;
    let node = Node::new(&database().await, &options(&valkey.url(), QUICK));
    an_outage_is_survived(
        &node,
        async || valkey.signal(Signal::STOP),
        async || valkey.signal(Signal::CONT),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_valkey_is_done_without() {
    let valkey = Valkey::start().await;
    let node = Node::new(&database().await, &options(&valkey.url(), QUICK));
    let valkey = tokio::sync::Mutex::new(valkey);
    an_outage_is_survived(
        &node,
        async || valkey.lock().await.kill().await,
        async || valkey.lock().await.start_again().await,
    )
    .await;
}

async fn an_outage_of_postgres_is_survived(outage: Flow) {
    let config = database().await;
    let gate = Gate::before_postgres(&config);
    let node = Node::new(&gate.config(&config), &options("postgres", QUICK));
    let turn = async |flow| gate.turn(flow);
    an_outage_is_survived(
        &node,
        async || turn(outage).await,
        async || turn(Flow::Open).await,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_postgres_is_done_without() {
    an_outage_of_postgres_is_survived(Flow::Frozen).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_postgres_that_cut_its_connections_is_done_without() {
    an_outage_of_postgres_is_survived(Flow::Cut).await;
}
