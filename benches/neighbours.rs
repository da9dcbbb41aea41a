//! `cargo bench --bench neighbours`: the effect of a project at its limits on another project.
//!
//! One project answers short transactions of the kind of pgbench, alone and beside a project that
//! takes all the memory, processor time and disk it can get. Rounds are interleaved; printed are
//! medians of the 95th percentile and their ratio. `GANTRY_BENCH_ROUNDS` and `GANTRY_BENCH_SECONDS`
//! make it shorter or longer.

#![expect(clippy::print_stdout, reason = "a benchmark prints what it measured")]
#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use std::{
    env,
    error::Error,
    fs,
    os::unix::fs::PermissionsExt,
    sync::Arc,
    time::{Duration, Instant},
};

use gantry_base::{clock::Entropy, ids::ProjectRef};
use gantry_node::{
    clusters::{
        ClusterSpec, ControlGroups, CopyPriority, Home, LocalDriver, ResourceLimits, Resources,
        server::Host,
    },
    engines::Engine,
    supervisor::{Account, Launcher},
};
use tokio::task::JoinSet;
use tokio_postgres::{Client, NoTls};

const ROUNDS: u64 = 5;
const SECONDS: u64 = 8;
const CLIENTS: usize = 4;
const READY: Duration = Duration::from_mins(1);
const MB: u64 = 1 << 20;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Outcome<()> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(run())
}

fn number(name: &str, default: u64) -> u64 {
    env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

async fn run() -> Outcome<()> {
    let dir = tempfile::tempdir_in("/tmp")?;
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o711))?;
    let launcher = Launcher {
        program: env!("CARGO_BIN_EXE_gantry").into(),
        ..Launcher::default()
    };
    let host = Host {
        engine: Engine::find(None)?,
        launcher,
    };
    let home = Arc::new(Home::open(dir.path(), Account::for_servers()?)?);
    let limits = ResourceLimits {
        memory_bytes: 256 * MB,
        processes: 60,
        ..ResourceLimits::default()
    };
    let groups = ControlGroups::find(home.dir(), None);
    println!("bounded by {}", groups.name());
    let clusters = LocalDriver::open(home, host, Entropy::system())
        .with_resources(Resources::new(limits, groups));
    let outcome = compare(&clusters).await;
    // Also after an error, no server may remain.
    clusters.stop_all().await?;
    outcome
}

async fn compare(clusters: &LocalDriver) -> Outcome<()> {
    clusters.prepare().await?;
    let (quiet, greedy) = (
        project(clusters, 690_001).await?,
        project(clusters, 690_002).await?,
    );
    let setup = "create table accounts as select id, 0 as balance from generate_series(1, 10000) id; create unique index on accounts (id)";
    connect(clusters, &quiet)
        .await?
        .batch_execute(setup)
        .await?;
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for _ in 0..number("GANTRY_BENCH_ROUNDS", ROUNDS) {
        alone.push(p95(clusters, &quiet).await?);
        let mut load = JoinSet::new();
        for statement in LOADS {
            load.spawn(press(clusters.clone(), greedy.clone(), statement));
        }
        beside.push(p95(clusters, &quiet).await?);
        load.shutdown().await;
        clusters.stop(&greedy).await?;
        clusters.start(&greedy).await?;
        clusters.wait_ready(&greedy, READY).await?;
    }
    let (alone, beside) = (median(alone), median(beside));
    println!("p95 alone   {:8.2} ms", alone.as_secs_f64() * 1000.0);
    println!("p95 beside  {:8.2} ms", beside.as_secs_f64() * 1000.0);
    println!(
        "ratio       {:8.2}",
        beside.as_secs_f64() / alone.as_secs_f64()
    );
    Ok(())
}

/// Statements that use as much memory, processor time and disk as possible. Each runs in a loop.
const LOADS: [&str; 6] = [
    "do $$ declare a text := repeat('x', 150 * 1024 * 1024); begin perform length(a); end $$",
    "do $$ declare a text := repeat('x', 150 * 1024 * 1024); begin perform length(a); end $$",
    "select count(*) from generate_series(1, 3000000) a",
    "select count(*) from generate_series(1, 3000000) a",
    "select count(*) from (select a from generate_series(1, 2000000) a order by random()) b",
    "create unlogged table if not exists load (t text); insert into load select repeat('x', 1000) from generate_series(1, 50000); truncate load",
];

async fn press(clusters: LocalDriver, project: ProjectRef, statement: &'static str) {
    loop {
        // The kernel may have killed the server. It is restarted, as by the reconciler.
        let Ok(client) = connect(&clusters, &project).await else {
            let _ = clusters.start(&project).await;
            let _ = clusters.wait_ready(&project, READY).await;
            continue;
        };
        while client.batch_execute(statement).await.is_ok() {}
    }
}

/// The 95th percentile of a short transaction's time, over some seconds.
async fn p95(clusters: &LocalDriver, project: &ProjectRef) -> Outcome<Duration> {
    let until = Instant::now() + Duration::from_secs(number("GANTRY_BENCH_SECONDS", SECONDS));
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let session = connect(clusters, project).await?;
        clients.spawn(async move {
            let (mut times, mut id) = (Vec::new(), client);
            while Instant::now() < until {
                // Spread over the rows without a random number.
                id = (id * 7919 + 17) % 10_000 + 1;
                let begun = Instant::now();
                session
                    .batch_execute(&format!(
                        "update accounts set balance = balance + 1 where id = {id}"
                    ))
                    .await?;
                times.push(begun.elapsed());
            }
            Ok::<_, tokio_postgres::Error>(times)
        });
    }
    let mut times = Vec::new();
    while let Some(ended) = clients.join_next().await {
        times.extend(ended??);
    }
    times.sort();
    Ok(times
        .get(times.len() * 95 / 100)
        .copied()
        .unwrap_or_default())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

async fn project(clusters: &LocalDriver, uid: u32) -> Outcome<ProjectRef> {
    let major = clusters.engines().default_engine().major();
    let cluster = ClusterSpec {
        project: ProjectRef::generate(&Entropy::system()),
        uid,
        major,
    };
    clusters.create(&cluster, CopyPriority::Foreground).await?;
    clusters.start(&cluster.project).await?;
    clusters.wait_ready(&cluster.project, READY).await?;
    Ok(cluster.project)
}

async fn connect(clusters: &LocalDriver, project: &ProjectRef) -> Outcome<Client> {
    let mut config = clusters.config(project, "postgres")?;
    config.host_path(clusters.socket_path(project).parent().ok_or("no folder")?);
    let (client, connection) = config.connect(NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}
