//! `cargo bench --bench backups`: the cost of backups and restores, in ratios measured in one run.
//!
//! Transactions like those of TPC-B with archiving, compared with `--no-backups`; a restore to a
//! point in time, compared with `cp -a` of the same folder and a start of the server, which replays
//! the log of its last minutes; and an undo, compared with a restart. `GANTRY_BENCH_DIR` selects
//! the file system, `GANTRY_BENCH_MEGABYTES` the size of the project, `GANTRY_BENCH_SECONDS` the
//! time of each load, and `GANTRY_BENCH_ROUNDS` the rounds, which are interleaved. Printed are
//! medians. A build for tests is enough: `cargo bench --profile dev --bench backups`.

#![expect(clippy::print_stdout, reason = "a benchmark prints what it measured")]
#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

#[expect(dead_code, reason = "other benchmarks use the rest")]
mod dev;

use std::{
    env, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use self::dev::{Dev, Outcome};

const ROUNDS: u64 = 3;
const MEGABYTES: u64 = 100;
const SECONDS: u64 = 10;
/// Transactions in one request: the measurement is of the server, not of HTTP.
const BATCH: u64 = 200;
/// Time limit of a step that is waited for.
const PATIENCE: Duration = Duration::from_mins(10);
/// Interval of looks for the end of a step: its length is an error of the measurement.
const LOOK: Duration = Duration::from_millis(250);

const TABLES: &str =
    "create table public.accounts (id int primary key, balance int not null, filler text);
    create table public.tellers (id int primary key, balance int not null);
    create table public.branches (id int primary key, balance int not null);
    create table public.history (teller int, branch int, account int, delta int, at timestamptz);
    insert into public.branches values (1, 0);
    insert into public.tellers select n, 0 from generate_series(1, 10) n";

fn main() -> Outcome<()> {
    let parent = env::var_os("GANTRY_BENCH_DIR").map_or_else(|| "/tmp".into(), PathBuf::from);
    let dir = tempfile::tempdir_in(parent)?;
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o711))?;
    let (with, without) = (dir.path().join("with"), dir.path().join("without"));
    let archiving = Bench::begin(&with, &["--backups-interval", "1"])?;
    let plain = Bench::begin(&without, &["--no-backups"])?;
    archiving.until_backed_up()?;
    measure_load(&archiving, &plain)?;
    drop(plain);
    measure_restores(&archiving, dir.path())
}

fn number(name: &str, default: u64) -> u64 {
    env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

/// A server with one project.
struct Bench {
    dev: Dev,
    dir: PathBuf,
    project: String,
}

impl Bench {
    fn begin(dir: &Path, arguments: &[&str]) -> Outcome<Self> {
        fs::create_dir(dir)?;
        fs::set_permissions(dir, fs::Permissions::from_mode(0o711))?;
        let dev = Dev::start(dir, arguments)?;
        let project = dev.project()?;
        let dir = dir.to_owned();
        let bench = Self { dev, dir, project };
        bench.sql(TABLES)?;
        let rows = number("GANTRY_BENCH_MEGABYTES", MEGABYTES) * 1000;
        bench.sql(&format!(
            "insert into public.accounts select n, 0, repeat(md5(n::text), 30) from generate_series(1, {rows}) n"
        ))?;
        Ok(bench)
    }

    fn path(&self, rest: &str) -> String {
        format!("/v1/projects/{}{rest}", self.project)
    }

    /// Sends a request, again while the rate limit is reached. Returns the JSON of its response.
    fn call(&self, method: &str, rest: &str, body: &Value) -> Outcome<Value> {
        loop {
            let answer = self.dev.send(method, &self.path(rest), &body.to_string())?;
            if answer.starts_with("HTTP/1.1 429") {
                std::thread::sleep(Duration::from_secs(2));
                continue;
            }
            let (head, text) = answer.split_once("\r\n\r\n").ok_or("no response")?;
            if !head.starts_with("HTTP/1.1 2") {
                return Err(format!("{method} {rest}: {answer}").into());
            }
            return Ok(serde_json::from_str(text).unwrap_or_default());
        }
    }

    fn sql(&self, query: &str) -> Outcome<Value> {
        self.call("POST", "/database/query", &json!({"query": query}))
    }

    /// Waits until a condition holds.
    fn until(what: &str, holds: impl Fn() -> Outcome<bool>) -> Outcome<()> {
        let deadline = Instant::now() + PATIENCE;
        while !holds()? {
            if Instant::now() > deadline {
                return Err(format!("{what}: not in time").into());
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    fn latest(&self) -> Outcome<i64> {
        let list = self.call("GET", "/database/backups", &Value::Null)?;
        let latest = &list["physical_backup_data"]["latest_physical_backup_date_unix"];
        Ok(latest.as_i64().unwrap_or(0))
    }

    fn until_backed_up(&self) -> Outcome<()> {
        Self::until("the first backup", || Ok(self.latest()? > 0))
    }

    /// Waits until the status is that of a running project again.
    fn until_healthy(&self) -> Outcome<()> {
        let project = || self.call("GET", "", &Value::Null);
        Self::until("a healthy project", || {
            Ok(project()?["status"] == "ACTIVE_HEALTHY")
        })?;
        self.sql("select 1").map(drop)
    }

    /// Returns transactions per second.
    fn load(&self) -> Outcome<f64> {
        let rows = number("GANTRY_BENCH_MEGABYTES", MEGABYTES) * 1000;
        let time = Duration::from_secs(number("GANTRY_BENCH_SECONDS", SECONDS));
        let batch = format!(
            "do $$ declare account int; delta int; begin for n in 1..{BATCH} loop
                 account := 1 + floor(random() * {rows});
                 delta := floor(random() * 1000) - 500;
                 update public.accounts set balance = balance + delta where id = account;
                 update public.tellers set balance = balance + delta where id = 1 + n % 10;
                 update public.branches set balance = balance + delta where id = 1;
                 insert into public.history values (1 + n % 10, 1, account, delta, now());
                 commit;
             end loop; end $$"
        );
        let begun = Instant::now();
        let mut done = 0;
        while begun.elapsed() < time {
            self.sql(&batch)?;
            done += BATCH;
        }
        #[expect(clippy::cast_precision_loss, reason = "a measurement")]
        Ok(done as f64 / begun.elapsed().as_secs_f64())
    }
}

fn measure_load(archiving: &Bench, plain: &Bench) -> Outcome<()> {
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..number("GANTRY_BENCH_ROUNDS", ROUNDS) {
        without.push(plain.load()?);
        with.push(archiving.load()?);
    }
    let (with, without) = (median(&mut with), median(&mut without));
    println!("transactions like those of TPC-B, one client");
    println!("  without backups                {without:9.0} /s");
    println!("  with archiving                 {with:9.0} /s");
    println!("  ratio                          {:9.2}", with / without);
    Ok(())
}

fn measure_restores(bench: &Bench, dir: &Path) -> Outcome<()> {
    let mut numbers = Restores::default();
    for round in 0..number("GANTRY_BENCH_ROUNDS", ROUNDS) {
        numbers.round(bench, dir, round)?;
    }
    let megabytes = number("GANTRY_BENCH_MEGABYTES", MEGABYTES);
    let (copy, restart) = (median(&mut numbers.copy), median(&mut numbers.restart));
    let (restore, undo) = (median(&mut numbers.restore), median(&mut numbers.undo));
    println!("restore of {megabytes} MB and its log");
    println!("  cp -a of the folder, durable   {copy:9.0} ms");
    println!("  restart of the server          {restart:9.0} ms");
    println!("  restore to a point in time     {restore:9.0} ms");
    println!(
        "  ratio to cp -a and restart     {:9.2}",
        restore / (copy + restart)
    );
    println!("  undo                           {undo:9.0} ms");
    println!("  ratio to a restart             {:9.2}", undo / restart);
    Ok(())
}

/// Numbers of the rounds.
#[derive(Default)]
struct Restores {
    copy: Vec<f64>,
    restart: Vec<f64>,
    restore: Vec<f64>,
    undo: Vec<f64>,
}

impl Restores {
    fn round(&mut self, bench: &Bench, dir: &Path, round: u64) -> Outcome<()> {
        let data = bench.dir.join("projects").join(&bench.project);
        let target = dir.join(format!("cp-{round}"));
        let begun = Instant::now();
        run(Command::new("cp")
            .args(["-a", "--reflink=auto"])
            .arg(&data)
            .arg(&target))?;
        run(Command::new("sync").arg("-f").arg(&target))?;
        self.copy.push(millis(begun));
        fs::remove_dir_all(&target)?;

        let begun = Instant::now();
        bench.call("POST", "/restart", &json!({}))?;
        bench.until_healthy()?;
        self.restart.push(millis(begun));

        // After the load and the first backup of the cluster, so that there is log to replay.
        let now = bench.sql("select extract(epoch from now())::bigint as now")?;
        let moment = now[0]["now"].as_i64().ok_or("no time")?;
        Bench::until("the log", || {
            bench.sql("insert into public.history values (0, 0, 0, 0, now())")?;
            Ok(bench.latest()? > moment)
        })?;
        let begun = Instant::now();
        let body = json!({"recovery_time_target_unix": moment});
        bench.call("POST", "/database/backups/restore-pitr", &body)?;
        bench.until_healthy()?;
        self.restore.push(millis(begun));

        let point = bench.call("GET", "/database/backups/restore-point", &Value::Null)?;
        let begun = Instant::now();
        bench.call(
            "POST",
            "/database/backups/undo",
            &json!({"name": point["name"]}),
        )?;
        bench.until_healthy()?;
        self.undo.push(millis(begun));
        let before = bench.latest()?;
        Bench::until("a backup of the cluster", || Ok(bench.latest()? > before))
    }
}

/// Runs a program. Files that disappear during `cp` are no error of the measurement.
fn run(command: &mut Command) -> Outcome<()> {
    command.stderr(std::process::Stdio::null()).status()?;
    Ok(())
}

fn millis(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
