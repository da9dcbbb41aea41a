//! Two processes at the default deadline over a store that is slow, frozen, or restarted without
//! data: together they never admit more than the limit, and exactly the limit while the store
//! responds.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use gantry::{
    api::endpoints,
    platform::{
        db::Db,
        rate_limits::{
            CounterKey, CounterScope, Identifier, Memory, Options, RateLimiter, Shared,
            StoreMetrics, Window, per,
        },
    },
};
use gantry_base::{
    clock::{Clock, Entropy},
    ids::UserId,
};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use super::{
    gate::{Flow, Gate},
    support::{LONG_DEADLINE, Valkey},
};
use crate::support::postgres::database;

const HOUR: &[Window] = &[per(120, 3600)];
const KEY: CounterKey = CounterKey {
    identifier: Identifier::User(UserId(1)),
    scope: CounterScope::User,
    operation: 0,
};
const CLIENTS: usize = 24;
/// Pause of a client before an immediate retry.
const AGAIN: Duration = Duration::from_millis(20);

/// A store and two processes with a gate each.
struct World {
    gates: [Gate; 2],
    nodes: [Arc<RateLimiter>; 2],
    clock: Clock,
    valkey: Option<Valkey>,
}

impl World {
    async fn over_postgres() -> Self {
        let config = database().await;
        let gates = [(); 2].map(|()| Gate::before_postgres(&config));
        let dbs = gates.each_ref().map(|gate| {
            (
                Db::new(gate.config(&config)).unwrap(),
                "postgres".to_owned(),
            )
        });
        Self::over(gates, dbs, None).await
    }

    async fn over_valkey() -> Self {
        let (config, valkey) = (database().await, Valkey::start().await);
        let gates = [(); 2].map(|()| Gate::before(valkey.socket()));
        let dbs = gates.each_ref().map(|gate| {
            (
                Db::new(config.clone()).unwrap(),
                format!("redis+unix://{}", gate.socket().display()),
            )
        });
        Self::over(gates, dbs, Some(valkey)).await
    }

    async fn over(gates: [Gate; 2], stores: [(Db, String); 2], valkey: Option<Valkey>) -> Self {
        let clock = Clock::system();
        let nodes = stores.map(|(db, url)| {
            let options = Options {
                url: Some(url.into()),
                ..Options::default()
            };
            let store = options.store(&db).unwrap().unwrap();
            let operations = endpoints::all()
                .iter()
                .map(|endpoint| (endpoint.id, endpoint.limit));
            let process = Entropy::system().letters(20);
            let shared = Shared::new(
                store,
                process,
                options.deadline,
                clock.clone(),
                StoreMetrics::default(),
            );
            Arc::new(RateLimiter::new(
                operations,
                Memory::default(),
                Some(shared),
            ))
        });
        let world = Self {
            gates,
            nodes,
            clock,
            valkey,
        };
        // Waits for the first heartbeats of all processes, which take a second.
        for node in &world.nodes {
            let heard = async {
                while !node
                    .take(
                        CounterKey {
                            operation: 1,
                            ..KEY
                        },
                        HOUR,
                        world.clock.ticks(),
                    )
                    .await
                    .is_shared()
                {
                    sleep(AGAIN).await;
                }
            };
            timeout(LONG_DEADLINE, heard).await.expect("connected");
        }
        sleep(Duration::from_millis(1_500)).await;
        world
    }

    fn turn(&self, flow: Flow) {
        self.gates.iter().for_each(|gate| gate.turn(flow));
    }

    /// Starts clients of both processes that send requests until the window is exhausted or
    /// `patience` is over.
    fn drive(&self, admitted: &Arc<AtomicUsize>, patience: Duration) -> JoinSet<()> {
        let mut clients = JoinSet::new();
        for client in 0..CLIENTS {
            let (node, clock, admitted) = (
                self.nodes[client % 2].clone(),
                self.clock.clone(),
                admitted.clone(),
            );
            clients.spawn(async move {
                let until_used_up = async {
                    loop {
                        let verdict = node.take(KEY, HOUR, clock.ticks()).await;
                        admitted.fetch_add(usize::from(verdict.admitted), Ordering::Relaxed);
                        if !verdict.admitted && verdict.quota().reset_secs > 1 {
                            return;
                        }
                        if !verdict.admitted {
                            sleep(AGAIN).await;
                        }
                    }
                };
                // Some clients may not see the exhausted window.
                let _ = timeout(patience, until_used_up).await;
            });
        }
        clients
    }

    /// Waits until this many requests were admitted.
    async fn until(&self, admitted: &AtomicUsize, count: usize) {
        let reached = async {
            while admitted.load(Ordering::Relaxed) < count {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(LONG_DEADLINE, reached)
            .await
            .expect("admitted by a store that answers");
    }
}

async fn check_slow_store(world: World) {
    let admitted = Arc::new(AtomicUsize::new(0));
    world.turn(Flow::Slow);
    // Heartbeats measure the latency.
    sleep(Duration::from_secs(3)).await;
    world
        .drive(&admitted, Duration::from_mins(1))
        .join_all()
        .await;
    assert_eq!(admitted.load(Ordering::Relaxed), 120);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_are_exact_over_a_slow_postgres() {
    check_slow_store(World::over_postgres().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_are_exact_over_a_slow_valkey() {
    check_slow_store(World::over_valkey().await).await;
}

/// Interrupts the store in the middle of the window, for one or both processes, and restores it.
async fn check_interrupted_store(world: World, outage: Flow, of: &[usize]) {
    let admitted = Arc::new(AtomicUsize::new(0));
    world.turn(Flow::Slow);
    let clients = world.drive(&admitted, Duration::from_secs(8));
    world.until(&admitted, 40).await;
    for gate in of {
        world.gates[*gate].turn(outage);
    }
    sleep(Duration::from_secs(3)).await;
    let meanwhile = admitted.load(Ordering::Relaxed);
    world.turn(Flow::Open);
    clients.join_all().await;
    let after = admitted.load(Ordering::Relaxed);
    assert!(
        after <= 120,
        "{outage:?}: {meanwhile} admitted until the store was back, {after} in all"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_admit_no_more_while_postgres_is_frozen() {
    check_interrupted_store(World::over_postgres().await, Flow::Frozen, &[0, 1]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_admit_no_more_while_one_is_cut_off_from_postgres() {
    check_interrupted_store(World::over_postgres().await, Flow::Cut, &[1]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_admit_no_more_while_valkey_is_frozen() {
    check_interrupted_store(World::over_valkey().await, Flow::Frozen, &[0, 1]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_admit_no_more_while_one_is_cut_off_from_valkey() {
    check_interrupted_store(World::over_valkey().await, Flow::Cut, &[1]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_admit_no_more_after_valkey_was_killed_and_came_back_empty() {
    let mut world = World::over_valkey().await;
    let admitted = Arc::new(AtomicUsize::new(0));
    let clients = world.drive(&admitted, Duration::from_secs(6));
    world.until(&admitted, 20).await;
    let valkey = world.valkey.as_mut().unwrap();
    valkey.kill().await;
    valkey.start_again().await;
    clients.join_all().await;
    let after = admitted.load(Ordering::Relaxed);
    assert!(after <= 120, "{after} admitted");
}
