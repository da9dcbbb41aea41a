//! The store goes away in the middle, and comes back.

use std::{path::Path, time::Duration};

use axum::http::StatusCode;
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    sync::watch,
    task::JoinSet,
    time::Instant,
};

use super::support::{Node, Valkey, options};
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
        assert!(!response.status().is_server_error(), "{}", response.status());
        assert!(response.headers().contains_key("x-ratelimit-reset") && response.headers().contains_key("ratelimit"));
        admitted += usize::from(response.status().is_success());
    }
    // This process alone is exact too, and goes on from the request that the store counted.
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
    an_outage_is_survived(&node, async || valkey.signal(Signal::STOP), async || valkey.signal(Signal::CONT)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_valkey_is_done_without() {
    let valkey = Valkey::start().await;
    let node = Node::new(&database().await, &options(&valkey.url(), QUICK));
    let valkey = tokio::sync::Mutex::new(valkey);
    an_outage_is_survived(&node, async || valkey.lock().await.kill().await, async || valkey.lock().await.start_again().await).await;
}

/// Stands between a node and PostgreSQL, whose cluster other tests use too, and can stop it for this node alone.
struct Gate {
    dir: TempDir,
    state: watch::Sender<Flow>,
    _tasks: JoinSet<()>,
}

#[derive(Clone, Copy, PartialEq)]
enum Flow {
    Open,
    Frozen,
    Cut,
}

impl Gate {
    fn before(server: &Path) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join(".s.PGSQL.5432")).unwrap();
        let (state, flow) = watch::channel(Flow::Open);
        let server = server.join(".s.PGSQL.5432");
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut links = JoinSet::new();
            loop {
                let (client, _) = listener.accept().await.unwrap();
                if *flow.borrow() == Flow::Cut {
                    continue;
                }
                let (from, to) = client.into_split();
                let (back, on) = UnixStream::connect(&server).await.unwrap().into_split();
                links.spawn(Self::pass(from, on, flow.clone()));
                links.spawn(Self::pass(back, to, flow.clone()));
            }
        });
        Self { dir, state, _tasks: tasks }
    }

    async fn pass(mut from: impl AsyncReadExt + Unpin, mut to: impl AsyncWriteExt + Unpin, mut flow: watch::Receiver<Flow>) {
        let mut buffer = vec![0; 1 << 16];
        loop {
            let read = tokio::select! {
                read = from.read(&mut buffer) => read.unwrap_or(0),
                Ok(_) = flow.wait_for(|flow| *flow == Flow::Cut) => 0,
            };
            // While frozen, nothing gets through and nothing is lost.
            let gone = flow.wait_for(|flow| *flow != Flow::Frozen).await.is_err();
            if gone || read == 0 || to.write_all(&buffer[..read]).await.is_err() {
                return;
            }
        }
    }

    fn config(&self, behind: &tokio_postgres::Config) -> tokio_postgres::Config {
        let mut config = tokio_postgres::Config::new();
        config.host_path(self.dir.path()).port(5432).user(behind.get_user().unwrap()).dbname(behind.get_dbname().unwrap());
        config
    }
}

async fn an_outage_of_postgres_is_survived(outage: Flow) {
    let config = database().await;
    let [tokio_postgres::config::Host::Unix(socket)] = config.get_hosts() else { panic!("one socket") };
    let gate = Gate::before(socket);
    let node = Node::new(&gate.config(&config), &options("postgres", QUICK));
    let turn = async |flow| {
        gate.state.send_replace(flow);
    };
    an_outage_is_survived(&node, async || turn(outage).await, async || turn(Flow::Open).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_postgres_is_done_without() {
    an_outage_of_postgres_is_survived(Flow::Frozen).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_postgres_that_cut_its_connections_is_done_without() {
    an_outage_of_postgres_is_survived(Flow::Cut).await;
}
