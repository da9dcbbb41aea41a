//! `cargo bench --bench router`: `pgbench -S -c 2` through the PostgreSQL proxy, against a server
//! on TCP, and against the project's socket. Interleaved; medians, and their ratios. Then the
//! memory of an idle session.
//!
//! The proxy is that of a real `gantry dev`; the server on TCP has a project's configuration.

#![expect(clippy::print_stdout, reason = "a benchmark prints what it measured")]

mod dev;

use std::{
    fs,
    net::SocketAddr,
    os::unix::{
        fs::{PermissionsExt, chown},
        process::CommandExt,
    },
    path::Path,
    process::{Child, Command, Stdio},
};

use dev::{Dev, Outcome, PASSWORD, free_port};
use gantry_node::{engines::Engine, supervisor::Account};
use tokio_postgres::{Client, NoTls};

const ROUNDS: usize = 5;
/// Duration of a run, in seconds.
const SECONDS: &str = "3";
/// Number of idle sessions.
const IDLE: u32 = 25;
/// Configuration of a project's cluster.
const CONF: &str = include_str!("../crates/node/src/clusters/recipes/project.conf");

fn main() -> Outcome<()> {
    let dir = tempfile::tempdir_in("/tmp")?;
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o711))?;
    let engine = Engine::find(None)?;
    let home = dir.path().join("home");
    let router = SocketAddr::from(([127, 0, 0, 1], free_port()?));
    let gantry = Dev::start(&home, &["--db-listen", &router.to_string()])?;
    let project = gantry.project()?;
    let direct = Server::start(&engine, &dir.path().join("direct"))?;

    let pgbench = |at: &Place, arguments: &[&str]| -> Outcome<String> {
        let mut command = Command::new("pgbench");
        command
            .args(["-n", "-h", &at.host, "-p", &at.port, "-U", &at.user])
            .args(arguments)
            .arg("postgres");
        let output = command
            .env("PGPASSWORD", PASSWORD)
            .env("PGSSLMODE", at.tls)
            .env("PGOPTIONS", at.options)
            .output()?;
        let said = String::from_utf8(output.stdout)?;
        if output.status.success() {
            Ok(said)
        } else {
            Err(format!("pgbench: {}", String::from_utf8_lossy(&output.stderr)).into())
        }
    };
    let routed = |tls| Place {
        host: router.ip().to_string(),
        port: router.port().to_string(),
        user: format!("postgres.{project}"),
        tls,
        options: "",
    };
    let socket = home.join("run").join(&project);
    let places = [
        (
            "direct, TCP",
            Place {
                host: "127.0.0.1".to_owned(),
                port: direct.port.to_string(),
                user: "postgres".to_owned(),
                tls: "disable",
                options: "",
            },
        ),
        ("router", routed("disable")),
        ("router, TLS", routed("require")),
        (
            "direct, socket",
            Place {
                host: socket.display().to_string(),
                port: "5432".to_owned(),
                user: "gantry_owner".to_owned(),
                tls: "disable",
                options: "-c role=postgres",
            },
        ),
    ];
    for (_, place) in &places[..2] {
        pgbench(place, &["-i", "-q", "-s", "1"])?;
    }
    for (what, arguments) in [
        ("queries", &["-S", "-c", "2", "-j", "2", "-T", SECONDS][..]),
        (
            "connections",
            &["-S", "-C", "-c", "2", "-j", "2", "-T", SECONDS],
        ),
    ] {
        let mut rates: [Vec<f64>; 4] = Default::default();
        for _ in 0..ROUNDS {
            for ((_, place), rates) in places.iter().zip(&mut rates) {
                rates.push(rate(&pgbench(place, arguments)?)?);
            }
        }
        let medians = rates.map(|mut rates| {
            rates.sort_by(f64::total_cmp);
            rates[ROUNDS / 2]
        });
        println!("{what} per second, medians of {ROUNDS} interleaved rounds");
        for ((name, _), median) in places.iter().zip(medians) {
            println!(
                "  {name:<15} {median:8.0}   {:5.2} of direct TCP",
                median / medians[0]
            );
        }
    }
    idle(&gantry, router, &project)
}

/// Reports the memory of Gantry per idle session.
fn idle(gantry: &Dev, router: SocketAddr, project: &str) -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let connect = || async {
        let mut config = tokio_postgres::Config::new();
        config
            .host(router.ip().to_string())
            .port(router.port())
            .user(format!("postgres.{project}"))
            .password(PASSWORD)
            .dbname("postgres");
        let (client, connection) = config.connect(NoTls).await?;
        tokio::spawn(connection);
        Ok::<Client, tokio_postgres::Error>(client)
    };
    runtime.block_on(async {
        // The previous runs had two concurrent sessions, so one-time allocations of a login are
        // done.
        let before = gantry.memory()?;
        let mut sessions = Vec::new();
        for _ in 0..IDLE {
            let client = connect().await?;
            client.simple_query("select 1").await?;
            sessions.push(client);
        }
        println!(
            "memory of a session that waits: {:.1} kB",
            f64::from(gantry.memory()?.saturating_sub(before)) / f64::from(IDLE)
        );
        Ok(())
    })
}

fn rate(said: &str) -> Outcome<f64> {
    let rate = said
        .lines()
        .find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok());
    rate.ok_or_else(|| format!("pgbench says no rate: {said}").into())
}

/// Destination of `pgbench`.
struct Place {
    host: String,
    port: String,
    user: String,
    tls: &'static str,
    options: &'static str,
}

/// A server on TCP with a project's configuration, stopped on drop.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start(engine: &Engine, dir: &Path) -> Outcome<Self> {
        let account = Account::for_servers()?;
        let port = free_port()?;
        let data = dir.join("data");
        let password = dir.join("password");
        fs::create_dir(dir)?;
        fs::create_dir(&data)?;
        fs::write(&password, PASSWORD)?;
        let as_root = Account::current()?.uid == 0;
        if as_root {
            for path in [dir, &data, &password] {
                chown(path, Some(account.uid), Some(account.gid))?;
            }
        }
        let run = |program: &str| {
            let mut command = Command::new(engine.program(program));
            if as_root {
                command.uid(account.uid).gid(account.gid);
            }
            command
                .current_dir("/")
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            command
        };
        let mut initdb = run("initdb");
        initdb
            .args([
                "--no-sync",
                "--locale=C",
                "-E",
                "UTF8",
                "-U",
                "postgres",
                "-A",
                "scram-sha-256",
                "--wal-segsize=1",
                "-D",
            ])
            .arg(&data);
        if !initdb.arg("--pwfile").arg(&password).status()?.success() {
            return Err("initdb failed".into());
        }
        fs::write(
            data.join("postgresql.conf"),
            format!("{CONF}\nlisten_addresses = '127.0.0.1'\n"),
        )?;
        let mut postgres = run("postgres");
        postgres.arg("-D").arg(&data).arg("-k").arg(dir).args([
            "-p",
            &port.to_string(),
            "-c",
            "logging_collector=on",
        ]);
        let server = Self {
            child: postgres.spawn()?,
            port,
        };
        while !fs::read_to_string(data.join("postmaster.pid"))
            .is_ok_and(|text| text.contains("ready"))
        {
            std::thread::yield_now();
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
