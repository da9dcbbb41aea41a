//! `cargo bench --bench pooler`: `pgbench -S` with 32 clients through the pooler's port, against
//! the pooler's own socket and the project's socket, in each protocol mode, interleaved; then 500
//! clients on 15 server connections against 15 clients, with the same number of transactions in a
//! second; the first connection to a stopped pooler; and memory.
//!
//! The pooler is that of a real `gantry dev`, which installs it from packages of Debian.

#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
#![expect(clippy::print_stdout, reason = "a benchmark prints what it measured")]

mod dev;
mod pgbench;

use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Command, time::Instant};

use dev::{Dev, Outcome, PASSWORD, free_port};
use pgbench::{median, rate};

const ROUNDS: usize = 5;
/// Duration of a run, in seconds.
const SECONDS: &str = "3";
/// Server connections of the pool.
const POOL: &str = "15";
/// Transactions in a second of all clients, when latencies are compared: without a bound, more
/// clients only wait for each other.
const RATE: &str = "2000";

fn main() -> Outcome<()> {
    let dir = tempfile::tempdir_in("/tmp")?;
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o711))?;
    let home = dir.path().join("home");
    let (direct, pooled) = (free_port()?, free_port()?);
    let gantry = Dev::start(
        &home,
        &[
            "--db-listen",
            &format!("127.0.0.1:{direct},127.0.0.1:{pooled}"),
            "--pooler-port",
            &pooled.to_string(),
        ],
    )?;
    let project = gantry.project()?;
    let bench = PoolerBench {
        socket: home.join("run").join(&project).display().to_string(),
        pooler: home
            .join(format!("run/{project}.pooler/i"))
            .display()
            .to_string(),
        user: format!("postgres.{project}"),
        pooled: pooled.to_string(),
        direct: direct.to_string(),
    };
    // The first connection waits for the project.
    bench.of_port(&bench.direct, &["-i", "-q", "-s", "1"])?;
    let size = r#"{"addon_type": "compute_instance", "addon_variant": "ci_medium"}"#;
    let path = format!("/v1/projects/{project}/billing/addons");
    let resized = gantry.send("PATCH", &path, size)?;
    if !resized.starts_with("HTTP/1.1 200") {
        return Err(resized.into());
    }
    let path = format!("/v1/projects/{project}/config/database/pooler");
    let body = format!(r#"{{"default_pool_size": {POOL}}}"#);
    let changed = gantry.send("PATCH", &path, &body)?;
    if !changed.starts_with("HTTP/1.1 200") {
        return Err(format!("the pooler is not installed: {changed}").into());
    }
    bench.first_connection()?;
    for mode in ["simple", "extended", "prepared"] {
        let arguments = ["-S", "-M", mode, "-c", "32", "-j", "2", "-T", SECONDS];
        let (mut through, mut bare, mut straight) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            through.push(rate(&bench.of_port(&bench.pooled, &arguments)?)?);
            bare.push(rate(&bench.of_pooler(&arguments)?)?);
            straight.push(rate(&bench.of_socket(&arguments)?)?);
        }
        let [through, bare, straight] = [through, bare, straight].map(median);
        println!(
            "{mode:<9} {through:7.0} per second pooled: {:.2} of the pooler's socket, {:.2} of the server's \
             (the pooler's is {:.2} of the server's)",
            through / bare,
            through / straight,
            bare / straight
        );
    }
    bench.many(dir.path())?;
    println!("memory of the pooler: {}", memory(&project)?);
    println!("memory of Gantry: {} kB", gantry.memory()?);
    Ok(())
}

/// A project and the ways to it.
struct PoolerBench {
    socket: String,
    pooler: String,
    user: String,
    pooled: String,
    direct: String,
}

impl PoolerBench {
    fn of_port(&self, port: &str, arguments: &[&str]) -> Outcome<String> {
        pgbench(
            &["-h", "127.0.0.1", "-p", port, "-U", &self.user],
            arguments,
            "",
        )
    }

    fn of_socket(&self, arguments: &[&str]) -> Outcome<String> {
        let place = ["-h", &self.socket, "-p", "5432", "-U", "gantry_owner"];
        pgbench(&place, arguments, "-c role=postgres")
    }

    fn of_pooler(&self, arguments: &[&str]) -> Outcome<String> {
        let place = ["-h", &self.pooler, "-p", "6543", "-U", "postgres"];
        pgbench(&place, arguments, "")
    }

    /// Reports the time of the first connection, which starts the pooler, and of the next ones.
    fn first_connection(&self) -> Outcome<()> {
        let connect = |port: &str| -> Outcome<f64> {
            let begun = Instant::now();
            let done = Command::new("psql")
                .args([
                    "-h",
                    "127.0.0.1",
                    "-p",
                    port,
                    "-U",
                    &self.user,
                    "-qAtc",
                    "select 1",
                ])
                .arg("postgres")
                .env("PGPASSWORD", PASSWORD)
                .env("PGSSLMODE", "disable")
                .output()?;
            if !done.status.success() {
                return Err(String::from_utf8_lossy(&done.stderr).into());
            }
            Ok(begun.elapsed().as_secs_f64() * 1000.0)
        };
        let direct = connect(&self.direct)?;
        let first = connect(&self.pooled)?;
        let next = connect(&self.pooled)?;
        println!(
            "connection: direct {direct:.0} ms, first pooled {first:.0} ms, next {next:.0} ms"
        );
        Ok(())
    }

    /// Reports the latencies of 15 and of 500 clients on 15 server connections.
    fn many(&self, folder: &Path) -> Outcome<()> {
        let mut latencies = Vec::new();
        for clients in [POOL, "500"] {
            let log = folder.join(format!("log-{clients}"));
            let prefix = log.display().to_string();
            let arguments = [
                "-S",
                "-M",
                "prepared",
                "-c",
                clients,
                "-j",
                "2",
                "-T",
                "10",
                "-R",
                RATE,
                "-l",
                "--log-prefix",
                &prefix,
            ];
            let said = self.of_port(&self.pooled, &arguments)?;
            let mut times = Vec::new();
            for entry in fs::read_dir(folder)?.flatten() {
                if entry
                    .file_name()
                    .to_string_lossy()
                    .starts_with(&format!("log-{clients}."))
                {
                    let text = fs::read_to_string(entry.path())?;
                    let time = |line: &str| line.split(' ').nth(2)?.parse::<f64>().ok();
                    times.extend(text.lines().filter_map(time));
                }
            }
            times.sort_by(f64::total_cmp);
            let p99 = times.get(times.len() * 99 / 100).ok_or("no latencies")? / 1000.0;
            println!(
                "{clients} clients: {:.0} per second, p99 {p99:.1} ms",
                rate(&said)?
            );
            latencies.push(p99);
        }
        println!(
            "p99 of 500 clients to that of {POOL}: {:.1}",
            latencies[1] / latencies[0]
        );
        Ok(())
    }
}

fn pgbench(place: &[&str], arguments: &[&str], options: &str) -> Outcome<String> {
    let output = Command::new("pgbench")
        .arg("-n")
        .args(place)
        .args(arguments)
        .arg("postgres")
        .env("PGPASSWORD", PASSWORD)
        .env("PGSSLMODE", "disable")
        .env("PGOPTIONS", options)
        .output()?;
    if output.status.success() {
        return Ok(String::from_utf8(output.stdout)?);
    }
    Err(format!("pgbench: {}", String::from_utf8_lossy(&output.stderr)).into())
}

/// Returns the memory of the pooler of a project: of its own, and shared with other poolers.
fn memory(project: &str) -> Outcome<String> {
    let name = format!("{project}.pooler");
    for entry in fs::read_dir("/proc")?.flatten() {
        let Ok(command) = fs::read_to_string(entry.path().join("cmdline")) else {
            continue;
        };
        if !command.contains(&name) {
            continue;
        }
        let text = fs::read_to_string(entry.path().join("smaps_rollup"))?;
        let value = |field: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(field));
            line.unwrap_or_default().trim().to_owned()
        };
        return Ok(format!(
            "{} of its own, {} resident",
            value("Private_Dirty:"),
            value("Rss:")
        ));
    }
    Err("the pooler does not run".into())
}
