//! `cargo bench --bench branches`: the cost of a branch, in ratios to what it is made of.
//!
//! With data: the time until the copy of a running cluster answers, compared with the start of an
//! empty cluster and with `cp -a` of the same folder; and the 95th percentile of the original's
//! transactions while it is copied, compared with before. Then, through the API: a branch with the
//! schema, compared with a new project and the same migrations; a merge without its migrations; and
//! a diff, if its kit is in the folder `GANTRY_BENCH_KITS` (as for `--services-dir`; by default
//! that of the tests). `GANTRY_BENCH_DIR` selects the file system, `GANTRY_BENCH_MEGABYTES` the
//! size of the original, and `GANTRY_BENCH_ROUNDS` the rounds, which are interleaved. Printed are
//! medians.

#![expect(clippy::print_stdout, reason = "a benchmark prints what it measured")]
#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

#[expect(dead_code, reason = "other benchmarks use the rest")]
mod dev;

use std::{
    env, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use gantry_base::{clock::Entropy, ids::ProjectRef};
use gantry_node::{
    clusters::{
        ClusterSpec, CopyPriority, CopyProgress, CopySpec, Home, LocalDriver, server::Host,
    },
    engines::Engine,
    supervisor::{Account, Launcher},
};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_postgres::{Client, NoTls};

use self::dev::{Dev, Outcome, PASSWORD};

const ROUNDS: u64 = 3;
const MEGABYTES: u64 = 500;
const CLIENTS: usize = 4;
/// Transactions of each client per second.
const RATE: u64 = 25;
const READY: Duration = Duration::from_mins(2);
/// Time over which the original is measured before it is copied.
const BEFORE: Duration = Duration::from_secs(5);
const MIGRATIONS: usize = 25;
/// Interval of looks for the end of a run: its length is an error of the measurement.
const LOOK: Duration = Duration::from_millis(250);

fn main() -> Outcome<()> {
    let parent = env::var_os("GANTRY_BENCH_DIR").map_or_else(|| "/tmp".into(), PathBuf::from);
    let dir = tempfile::tempdir_in(parent)?;
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o711))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(measure_copies(&dir.path().join("clusters")))?;
    drop(runtime);
    measure_api(&dir.path().join("dev"))
}

fn number(name: &str, default: u64) -> u64 {
    env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

/// Numbers of the rounds.
#[derive(Default)]
struct Copies {
    empty: Vec<f64>,
    answers: Vec<f64>,
    cp: Vec<f64>,
    before: Vec<f64>,
    during: Vec<f64>,
}

async fn measure_copies(dir: &Path) -> Outcome<()> {
    fs::create_dir(dir)?;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o711))?;
    let launcher = Launcher {
        program: env!("CARGO_BIN_EXE_gantry").into(),
        ..Launcher::default()
    };
    let host = Host {
        engine: Engine::find(None)?,
        launcher,
    };
    let home = Arc::new(Home::open(dir, Account::for_servers()?)?);
    let clusters = LocalDriver::open(home, host, Entropy::system());
    let outcome = compare_copies(&clusters, dir).await;
    // Also after an error, no server may remain.
    clusters.stop_all().await?;
    outcome
}

async fn compare_copies(clusters: &LocalDriver, dir: &Path) -> Outcome<()> {
    clusters.prepare().await?;
    let megabytes = number("GANTRY_BENCH_MEGABYTES", MEGABYTES);
    let source = spec(clusters, 0);
    create(clusters, &source).await?;
    fill(&connect(clusters, &source.project).await?, megabytes).await?;
    let mut copies = Copies::default();
    let rounds = number("GANTRY_BENCH_ROUNDS", ROUNDS);
    for round in 0..rounds {
        copies.round(clusters, &source.project, dir, round).await?;
    }
    let shares = clusters.shares_blocks().await?;
    println!("with data: {megabytes} MB, blocks shared: {shares}, {rounds} interleaved rounds");
    let empty = median(&mut copies.empty);
    let answers = median(&mut copies.answers);
    let cp = median(&mut copies.cp);
    let (before, during) = (median(&mut copies.before), median(&mut copies.during));
    println!("  empty cluster answers          {empty:9.0} ms");
    println!("  copy answers                   {answers:9.0} ms");
    println!("  ratio to the empty cluster     {:9.2}", answers / empty);
    println!("  cp -a of the folder, durable   {cp:9.0} ms");
    println!("  ratio to cp -a                 {:9.2}", answers / cp);
    println!("  p95 of the original before     {before:9.1} ms");
    println!("  p95 of the original during     {during:9.1} ms");
    println!("  ratio                          {:9.2}", during / before);
    Ok(())
}

impl Copies {
    async fn round(
        &mut self,
        clusters: &LocalDriver,
        source: &ProjectRef,
        dir: &Path,
        round: u64,
    ) -> Outcome<()> {
        let number = u32::try_from(round)? * 10;
        let empty = spec(clusters, number + 1);
        let begun = Instant::now();
        create(clusters, &empty).await?;
        self.empty.push(millis(begun));
        clusters.remove(&empty.project).await?;

        let quiet = Load::begin(clusters, source).await?;
        tokio::time::sleep(BEFORE).await;
        self.before.push(quiet.end().await?);
        let load = Load::begin(clusters, source).await?;
        let copy = CopySpec {
            cluster: spec(clusters, number + 2),
            source: source.clone(),
            marker: "bench".to_owned(),
            secrets: Vec::new(),
            masking: Vec::new(),
            schema_only: false,
            rebuild: None,
            bytes_max: 1 << 40,
            progress: CopyProgress::default(),
        };
        let begun = Instant::now();
        clusters.create_copy(&copy).await?;
        let copied = load.end().await?;
        clusters.start(&copy.cluster.project).await?;
        clusters.wait_ready(&copy.cluster.project, READY).await?;
        connect(clusters, &copy.cluster.project).await?;
        self.answers.push(millis(begun));
        self.during.push(copied);
        clusters.remove(&copy.cluster.project).await?;
        while clusters.empty_trash().await? > 0 {}

        // The same way as the copier's: blocks are shared where the file system can.
        let target = dir.join("cp");
        let begun = Instant::now();
        let data = clusters.home().data_directory(source);
        run(Command::new("cp")
            .args(["-a", "--reflink=auto"])
            .arg(&data)
            .arg(&target))?;
        run(Command::new("sync").arg("-f").arg(&target))?;
        self.cp.push(millis(begun));
        fs::remove_dir_all(&target)?;
        Ok(())
    }
}

/// Runs a program. Files that disappear during `cp` are no error of the measurement.
fn run(command: &mut Command) -> Outcome<()> {
    command.stderr(std::process::Stdio::null()).status()?;
    Ok(())
}

fn spec(clusters: &LocalDriver, number: u32) -> ClusterSpec {
    ClusterSpec {
        project: ProjectRef::generate(&Entropy::system()),
        uid: 691_000 + number,
        major: clusters.engines().default_engine().major(),
    }
}

/// Creates a cluster, and waits until it answers.
async fn create(clusters: &LocalDriver, cluster: &ClusterSpec) -> Outcome<()> {
    clusters.create(cluster, CopyPriority::Foreground).await?;
    clusters.start(&cluster.project).await?;
    clusters.wait_ready(&cluster.project, READY).await?;
    connect(clusters, &cluster.project).await.map(drop)
}

async fn fill(client: &Client, megabytes: u64) -> Outcome<()> {
    let setup =
        "create table accounts as select id, 0 as balance from generate_series(1, 10000) id;
                 create unique index on accounts (id);
                 create table filler (t text)";
    client.batch_execute(setup).await?;
    // About 1000 bytes a row.
    let sql = "insert into filler
               select repeat(md5(n::text), 30) from generate_series(1, 50000) n";
    for _ in 0..megabytes / 50 {
        client.batch_execute(sql).await?;
    }
    Ok(())
}

async fn connect(clusters: &LocalDriver, project: &ProjectRef) -> Outcome<Client> {
    let mut config = clusters.config(project, "postgres")?;
    config.host_path(clusters.socket_path(project).parent().ok_or("no folder")?);
    let (client, connection) = config.connect(NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// Clients with short transactions at a fixed rate.
struct Load {
    stop: Arc<AtomicBool>,
    clients: JoinSet<Result<Vec<Duration>, tokio_postgres::Error>>,
}

impl Load {
    async fn begin(clusters: &LocalDriver, project: &ProjectRef) -> Outcome<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for client in 0..CLIENTS {
            let session = connect(clusters, project).await?;
            let stop = Arc::clone(&stop);
            tasks.spawn(async move {
                let mut pace = tokio::time::interval(Duration::from_millis(1000 / RATE));
                let (mut times, mut id) = (Vec::new(), client);
                while !stop.load(Ordering::Relaxed) {
                    pace.tick().await;
                    // Spread over the rows without a random number.
                    id = (id * 7919 + 17) % 10_000 + 1;
                    let sql = format!("update accounts set balance = balance + 1 where id = {id}");
                    let begun = Instant::now();
                    session.batch_execute(&sql).await?;
                    times.push(begun.elapsed());
                }
                Ok(times)
            });
        }
        Ok(Self {
            stop,
            clients: tasks,
        })
    }

    /// Returns the 95th percentile in milliseconds.
    async fn end(mut self) -> Outcome<f64> {
        self.stop.store(true, Ordering::Relaxed);
        let mut times = Vec::new();
        while let Some(ended) = self.clients.join_next().await {
            times.extend(ended??);
        }
        times.sort();
        let p95 = times.get(times.len() * 95 / 100).copied();
        Ok(p95.unwrap_or_default().as_secs_f64() * 1000.0)
    }
}

/// Measures branches with the schema, merges and diffs through the API.
fn measure_api(dir: &Path) -> Outcome<()> {
    let kits = env::var("GANTRY_BENCH_KITS");
    let kits = kits.unwrap_or_else(|_| "/var/tmp/gantry-test-kits".to_owned());
    let without_spares = ["--spare-clusters", "0", "--warm-clusters", "0"];
    let dev = Dev::start(
        dir,
        &[&without_spares[..], &["--services-dir", &kits]].concat(),
    )?;
    let parent = new_project(&dev, dir, "parent")?;
    for n in 0..MIGRATIONS {
        migrate(&dev, &parent, n)?;
    }
    let (mut fresh, mut branches, mut merges, mut diffs) = (vec![], vec![], vec![], vec![]);
    for round in 0..number("GANTRY_BENCH_ROUNDS", ROUNDS) {
        let begun = Instant::now();
        let project = new_project(&dev, dir, &format!("fresh {round}"))?;
        for n in 0..MIGRATIONS {
            migrate(&dev, &project, n)?;
        }
        fresh.push(millis(begun));

        let begun = Instant::now();
        let body = json!({"branch_name": format!("bench-{round}")});
        let branch = call(
            &dev,
            "POST",
            &format!("/v1/projects/{parent}/branches"),
            &body,
        )?;
        let own = branch["project_ref"].as_str().ok_or("no ref")?.to_owned();
        until_finished(&dev, &own)?;
        branches.push(millis(begun));

        let merged = 100 + usize::try_from(round)?;
        let begun = Instant::now();
        migrate(&dev, &own, merged)?;
        let alone = millis(begun);
        let begun = Instant::now();
        call(
            &dev,
            "POST",
            &format!("/v1/branches/{own}/merge"),
            &json!({}),
        )?;
        until_finished(&dev, &parent)?;
        merges.push(millis(begun) - alone);

        let begun = Instant::now();
        let answer = dev.send("GET", &format!("/v1/branches/{own}/diff"), "")?;
        if answer.starts_with("HTTP/1.1 200") {
            diffs.push(millis(begun));
        }
        call(&dev, "DELETE", &format!("/v1/branches/{own}"), &json!({}))?;
        call(
            &dev,
            "DELETE",
            &format!("/v1/projects/{project}"),
            &json!({}),
        )?;
    }
    let (fresh, branch) = (median(&mut fresh), median(&mut branches));
    println!("with the schema: {MIGRATIONS} migrations");
    println!("  new project and migrations     {fresh:9.0} ms");
    println!("  branch                         {branch:9.0} ms");
    println!("  ratio                          {:9.2}", branch / fresh);
    println!(
        "merge, less its migration        {:9.0} ms",
        median(&mut merges)
    );
    if diffs.is_empty() {
        println!("diff                              its kit is not installed");
    } else {
        println!(
            "diff                             {:9.0} ms",
            median(&mut diffs)
        );
    }
    Ok(())
}

/// Sends a request, again while the rate limit is reached, and returns the JSON of its response.
fn call(dev: &Dev, method: &str, path: &str, body: &Value) -> Outcome<Value> {
    loop {
        let answer = dev.send(method, path, &body.to_string())?;
        if answer.starts_with("HTTP/1.1 429") {
            std::thread::sleep(Duration::from_secs(2));
            continue;
        }
        let (head, text) = answer.split_once("\r\n\r\n").ok_or("no response")?;
        if !head.starts_with("HTTP/1.1 2") {
            return Err(format!("{method} {path}: {answer}").into());
        }
        return Ok(serde_json::from_str(text).unwrap_or_default());
    }
}

/// Creates a project that answers.
fn new_project(dev: &Dev, dir: &Path, name: &str) -> Outcome<String> {
    let variables = fs::read_to_string(dir.join("dev.env"))?;
    let organization = variables
        .lines()
        .find_map(|line| line.strip_prefix("GANTRY_ORG="))
        .ok_or("no organization")?;
    let body = json!({"name": name, "organization_slug": organization, "db_pass": PASSWORD});
    let made = call(dev, "POST", "/v1/projects", &body)?;
    let reference = made["ref"].as_str().ok_or("no ref")?.to_owned();
    let path = format!("/v1/projects/{reference}/database/query");
    call(dev, "POST", &path, &json!({"query": "select 1"}))?;
    Ok(reference)
}

fn migrate(dev: &Dev, project: &str, number: usize) -> Outcome<()> {
    let query = format!(
        "create table public.t{number} (id int primary key, body text); create index on public.t{number} (body)"
    );
    let body = json!({"name": format!("t{number}"), "query": query});
    let path = format!("/v1/projects/{project}/database/migrations");
    call(dev, "POST", &path, &body).map(drop)
}

/// Waits until every step of the newest run of a project is done.
fn until_finished(dev: &Dev, project: &str) -> Outcome<()> {
    let deadline = Instant::now() + READY;
    let path = format!("/v1/projects/{project}/actions");
    loop {
        let runs = call(dev, "GET", &path, &json!({}))?;
        let steps = runs[0]["run_steps"].as_array().ok_or("no run")?;
        if steps.iter().any(|step| step["status"] == "DEAD") {
            return Err(format!("a step failed: {steps:?}").into());
        }
        let is_deployed = |step: &Value| step["name"] == "deploy" && step["status"] == "EXITED";
        if steps.iter().any(is_deployed) {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("not finished: {steps:?}").into());
        }
        std::thread::sleep(LOOK);
    }
}

fn millis(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
