//! `cargo bench --bench creation`: how long a project's cluster takes from nothing to its first connection, beside
//! `initdb` alone, which it never runs. Interleaved; medians, and their ratio.

#![expect(clippy::print_stdout, reason = "a benchmark prints what it measured")]

use std::{
    error::Error,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use gantry::{
    clock::Entropy,
    clusters::{Account, Cluster, Embedded, Engine, Home, Launcher, Pace, server::Host},
    ids::ProjectRef,
};

const ROUNDS: usize = 11;
const PATIENCE: Duration = Duration::from_mins(1);

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(run())
}

async fn run() -> Outcome<()> {
    let dir = tempfile::tempdir_in("/tmp")?;
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o711))?;
    let account = Account::for_servers()?;
    let home = Arc::new(Home::open(&dir.path().join("home"), account.clone())?);
    let launcher = Launcher { program: env!("CARGO_BIN_EXE_gantry").into(), ..Launcher::default() };
    let host = Host { engine: Engine::find(None)?, launcher };
    let entropy = Entropy::system();
    let clusters = Embedded::open(home, host.clone(), entropy.clone());
    clusters.prepare().await?;

    let mut steps: [Vec<f64>; 3] = Default::default();
    for uid in 700_000..700_000 + u32::try_from(ROUNDS)? {
        let cluster = Cluster { project: ProjectRef::generate(&entropy), uid };
        let outcome = async {
            let [created, accepting] = create(&clusters, &cluster).await?;
            steps[0].push(created);
            steps[1].push(accepting);
            Ok(())
        };
        let outcome: Outcome<()> = outcome.await;
        clusters.stop(&cluster.project).await?;
        outcome?;
        steps[2].push(initdb(&host.engine, &dir.path().join(format!("initdb-{uid}")), &account)?);
    }
    let [created, accepting, initdb] = steps.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    });
    println!("medians of {ROUNDS} interleaved rounds");
    println!("copied with its own identity  {created:7.0} ms");
    println!("accepting connections         {accepting:7.0} ms");
    println!("initdb --no-sync alone        {initdb:7.0} ms");
    println!("ratio                         {:7.2}", accepting / initdb);
    Ok(())
}

/// Milliseconds until the data directory is there, and until the server accepts connections.
#[expect(clippy::disallowed_methods, reason = "a benchmark reads the real clock")]
async fn create(clusters: &Embedded, cluster: &Cluster) -> Outcome<[f64; 2]> {
    let started = Instant::now();
    clusters.create(cluster, Pace::Now).await?;
    let created = millis(started);
    clusters.start(&cluster.project).await?;
    clusters.wait_ready(&cluster.project, PATIENCE).await?;
    Ok([created, millis(started)])
}

/// Milliseconds of the fastest `initdb` there is.
#[expect(clippy::disallowed_methods, reason = "a benchmark reads the real clock")]
fn initdb(engine: &Engine, data: &Path, account: &Account) -> Outcome<f64> {
    use std::os::unix::process::CommandExt;

    std::fs::create_dir(data)?;
    let mut initdb = Command::new(engine.program("initdb"));
    initdb.args(["--no-sync", "--locale=C", "-E", "UTF8", "-D"]).arg(data).stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
    if Account::current()?.uid == 0 {
        std::os::unix::fs::chown(data, Some(account.uid), Some(account.gid))?;
        initdb.uid(account.uid).gid(account.gid);
    }
    let started = Instant::now();
    let status = initdb.status()?;
    if status.success() { Ok(millis(started)) } else { Err(format!("initdb ended with {status}").into()) }
}

fn millis(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}
