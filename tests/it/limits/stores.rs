//! The stores: exact counts over three nodes, and the end of windows.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use gantry::{
    api::endpoints,
    platform::{
        db::Db,
        rate_limits::{
            CounterKey, CounterScope, Identifier, LimitDecision, Memory, RateLimiter, Shared,
            StoreMetrics, Window, per, reclaim,
        },
    },
};
use gantry_base::{
    clock::{Clock, Entropy},
    ids::UserId,
};
use tokio::{task::JoinSet, time::sleep};

use super::support::{LONG_DEADLINE, Valkey, options};
use crate::support::postgres::database;

const HOUR: &[Window] = &[per(120, 3600)];
const SHORT: &[Window] = &[per(1, 1)];
const SEVEN: &[Window] = &[per(7, 3600)];
const BOTH: &[Window] = &[per(10, 3600), per(1, 2)];

/// Returns the counters of one node.
fn node(config: &tokio_postgres::Config, url: &str, deadline: Duration) -> RateLimiter {
    let store = options(url, deadline)
        .store(&Db::new(config.clone()).unwrap())
        .unwrap()
        .unwrap();
    let operations = endpoints::all()
        .iter()
        .map(|endpoint| (endpoint.id, endpoint.limit));
    RateLimiter::new(
        operations,
        Memory::default(),
        Some(Shared::new(
            store,
            Entropy::system().letters(20),
            deadline,
            Clock::system(),
            StoreMetrics::default(),
        )),
    )
}

fn key(user: i64) -> CounterKey {
    CounterKey {
        identifier: Identifier::User(UserId(user)),
        scope: CounterScope::User,
        operation: 0,
    }
}

/// Returns three nodes on one store.
async fn trio(url: &str) -> (tokio_postgres::Config, Vec<Arc<RateLimiter>>) {
    let config = database().await;
    let nodes = (0..3)
        .map(|_| Arc::new(node(&config, url, LONG_DEADLINE)))
        .collect::<Vec<_>>();
    for node in &nodes {
        // Connecting takes longer than a request waits.
        while !connected(node).await {}
    }
    (config, nodes)
}

/// Returns whether the store responds: the key is counted there and not in the node.
async fn connected(node: &RateLimiter) -> bool {
    let (key, windows) = (
        CounterKey {
            scope: CounterScope::Unresolved,
            ..key(i64::MAX)
        },
        &[per(1_000_000, 3600)],
    );
    let shared = node.take(key, windows, 0).await.is_shared();
    sleep(Duration::from_millis(5)).await;
    shared
}

/// Takes each key `times` times from each node concurrently. Returns all decisions.
async fn drive(
    nodes: &[Arc<RateLimiter>],
    keys: &[CounterKey],
    windows: &'static [Window],
    times: usize,
) -> Vec<(CounterKey, LimitDecision)> {
    let mut tasks = JoinSet::new();
    for node in nodes {
        for _ in 0..4 {
            for key in keys.iter().copied() {
                let node = node.clone();
                tasks.spawn(async move {
                    let mut said = Vec::with_capacity(times / 4);
                    for _ in 0..times / 4 {
                        said.push((key, node.take(key, windows, 1_000).await));
                    }
                    said
                });
            }
        }
    }
    tasks.join_all().await.concat()
}

async fn three_nodes_are_exact(url: &str) {
    let (_config, nodes) = trio(url).await;

    // One key under load: exactly the quota is admitted, and each remaining number is reported
    // once.
    let said = drive(&nodes, &[key(1)], HOUR, 100).await;
    let remaining: Vec<u32> = said
        .iter()
        .filter(|(_, v)| v.admitted)
        .map(|(_, v)| v.quota().remaining)
        .collect();
    assert_eq!(remaining.len(), 120);
    assert_eq!(
        remaining.into_iter().collect::<BTreeSet<_>>(),
        (0..120).collect()
    );
    assert!(
        said.iter()
            .all(|(_, v)| v.admitted || v.quota().remaining == 0)
    );
    assert!(
        said.iter()
            .all(|(_, v)| (3_590..=3_600).contains(&v.quota().reset_secs))
    );

    // Many keys concurrently in different orders: no deadlock, and each count is exact.
    let keys: Vec<_> = (100..140).map(key).collect();
    let said = drive(&nodes, &keys, SEVEN, 8).await;
    for key in keys {
        assert_eq!(
            said.iter().filter(|(k, v)| *k == key && v.admitted).count(),
            7
        );
    }

    // Both windows count or neither: a request that the second refuses is not counted in the hour.
    let said = drive(&nodes, &[key(2)], BOTH, 40).await;
    let admitted: Vec<_> = said.iter().filter(|(_, v)| v.admitted).collect();
    let taken = nodes[0].peek(&[(key(2), BOTH)], 0).await[0].as_slice()[0];
    assert_eq!(
        taken.limit - taken.remaining,
        u32::try_from(admitted.len()).unwrap()
    );
    // A slow machine may reach a second window, but not a third.
    assert!((1..=3).contains(&admitted.len()), "{}", admitted.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn three_nodes_are_exact_over_postgres() {
    three_nodes_are_exact("postgres").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_nodes_are_exact_over_valkey() {
    let valkey = Valkey::start().await;
    three_nodes_are_exact(&valkey.url()).await;
}

async fn check_window_end(url: &str) {
    let (_config, nodes) = trio(url).await;
    let clock = Clock::system();
    let windows = &[per(2, 1)];
    let take = async |node: usize| nodes[node].take(key(1), windows, clock.ticks()).await;
    assert_eq!(take(0).await.quota().remaining, 1);
    assert_eq!(take(1).await.quota().remaining, 0);
    let refused = take(2).await;
    assert!(!refused.admitted);
    assert_eq!(refused.quota().reset_secs, 1);
    sleep(Duration::from_secs(refused.quota().reset_secs.into())).await;
    assert_eq!(take(2).await.quota().remaining, 1, "whole again");
}

#[tokio::test(flavor = "multi_thread")]
async fn window_ends_over_postgres() {
    check_window_end("postgres").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn window_ends_over_valkey() {
    let valkey = Valkey::start().await;
    check_window_end(&valkey.url()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn valkey_repairs_a_window_without_expiry() {
    let valkey = Valkey::start().await;
    let (_config, nodes) = trio(&valkey.url()).await;
    let operation = endpoints::all()[0].id;
    for (user, command) in [(1, "SET %s 120"), (2, "SET %s 120 PX 86400000")] {
        let name = format!("gantry:limit:{{{operation}/u{user}/-}}:0");
        valkey.say(&command.replace("%s", &name)).await;
        let verdict = nodes[0].take(key(user), HOUR, 0).await;
        assert_eq!(
            (verdict.admitted, verdict.quota().reset_secs),
            (false, 3600)
        );
        let left: i64 = valkey
            .say(&format!("PTTL {name}"))
            .await
            .lines()
            .next()
            .unwrap()[1..]
            .parse()
            .unwrap();
        assert!((3_590_000..=3_600_000).contains(&left), "{left}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ended_counters_are_deleted_and_live_ones_kept() {
    let (config, nodes) = trio("postgres").await;
    for user in 0..5_000 {
        let windows = if user % 100 == 0 { HOUR } else { SHORT };
        nodes[0].take(key(user), windows, 0).await;
    }
    sleep(Duration::from_millis(1_100)).await;
    let db = Db::new(config).unwrap();
    reclaim(&db).await.unwrap();
    let live: i64 = db
        .query(
            "select count(*) from limit_counters where key like '%/-'",
            &[],
        )
        .await
        .unwrap()[0]
        .get(0);
    assert_eq!(live, 50);
    assert_eq!(
        nodes[1].take(key(100), HOUR, 0).await.quota().remaining,
        118
    );
}
