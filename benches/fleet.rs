//! `cargo bench --bench fleet`: SQL over HTTP and sessions at a node that does not hold the
//! project, against a project that it holds, interleaved.
//!
//! Two real `gantry dev` share the control database of a third.

#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
#![expect(clippy::print_stdout, reason = "a benchmark prints what it measured")]

mod dev;
mod pgbench;

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use dev::{Dev, Outcome, PASSWORD, free_port};
use pgbench::{median, rate};

const ROUNDS: usize = 5;
/// Duration of a run, in seconds.
const SECONDS: &str = "3";
/// Requests for SQL over HTTP: fewer than the limit of a minute.
const REQUESTS: usize = 100;
/// Time for the nodes to find each other.
const DISCOVERY_MAX: Duration = Duration::from_secs(30);

fn main() -> Outcome<()> {
    let dir = tempfile::tempdir_in("/tmp")?;
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o711))?;
    let home = |name: &str| dir.path().join(name);
    let control = home("control");
    let _control = Dev::start(&control, &[])?;
    let socket = control.join("run/control").display().to_string();
    psql(&socket, "create database fleet")?;
    let url = format!("postgres://gantry@{}/fleet", socket.replace('/', "%2F"));
    let key = home("first").join("sealing-key").display().to_string();
    let port = free_port()?.to_string();
    let databases = format!("127.0.0.1:{port}");
    let node = ["--database-url", &url, "--fleet-listen", "127.0.0.1:0"];
    let first = [
        &node[..],
        &["--node-name", "first", "--db-listen", &databases],
    ]
    .concat();
    let first = Dev::start(&home("first"), &first)?;
    let local = first.project()?;
    let second = [&node[..], &["--node-name", "second", "--sealing-key", &key]].concat();
    let second = Dev::start(&home("second"), &second)?;
    let remote = second.project_named("remote")?;
    let user = |project: &str| format!("postgres.{project}");
    until_reached(|| query(&first, &local).is_ok() && query(&first, &remote).is_ok())?;

    let (mut here, mut there) = (Vec::new(), Vec::new());
    for _ in 0..REQUESTS {
        here.push(query(&first, &local)?);
        there.push(query(&first, &remote)?);
    }
    let [here, there] = [here, there].map(median);
    println!(
        "SQL over HTTP: {:.2} ms here, {:.2} ms at another node: {:.2} ×",
        here * 1e3,
        there * 1e3,
        there / here
    );
    for clients in ["1", "16"] {
        let arguments = ["-S", "-c", clients, "-T", SECONDS];
        let (mut here, mut there) = (Vec::new(), Vec::new());
        for project in [&local, &remote] {
            pgbench(&port, &user(project), &["-i", "-q"])?;
        }
        for _ in 0..ROUNDS {
            here.push(rate(&pgbench(&port, &user(&local), &arguments)?)?);
            there.push(rate(&pgbench(&port, &user(&remote), &arguments)?)?);
        }
        let [here, there] = [here, there].map(median);
        println!(
            "sessions, {clients:>2} clients: {there:.0} per second through another node, {:.2} of {here:.0} here",
            there / here
        );
    }
    println!("memory of a node: {} kB", second.memory()?);
    Ok(())
}

/// Waits until something works.
fn until_reached(mut works: impl FnMut() -> bool) -> Outcome<()> {
    let begun = Instant::now();
    while !works() {
        if begun.elapsed() > DISCOVERY_MAX {
            return Err("the nodes do not find each other".into());
        }
        thread::sleep(Duration::from_secs(2));
    }
    Ok(())
}

/// Returns the duration of a query over HTTP, in seconds.
fn query(node: &Dev, project: &str) -> Outcome<f64> {
    let path = format!("/v1/projects/{project}/database/query");
    let begun = Instant::now();
    let answer = node.send("POST", &path, r#"{"query": "select 1"}"#)?;
    if answer.starts_with("HTTP/1.1 201") {
        Ok(begun.elapsed().as_secs_f64())
    } else {
        Err(answer.into())
    }
}

fn psql(socket: &str, sql: &str) -> Outcome<()> {
    let place = ["-h", socket, "-U", "gantry", "-d", "postgres", "-c", sql];
    run(Command::new("psql").args(place)).map(drop)
}

fn pgbench(port: &str, user: &str, arguments: &[&str]) -> Outcome<String> {
    let place = ["-n", "-h", "127.0.0.1", "-p", port, "-U", user];
    run(Command::new("pgbench")
        .args(place)
        .args(arguments)
        .arg("postgres")
        .env("PGPASSWORD", PASSWORD)
        .env("PGSSLMODE", "disable"))
}

fn run(command: &mut Command) -> Outcome<String> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(String::from_utf8(output.stdout)?);
    }
    let program = command.get_program().display().to_string();
    Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr)).into())
}
