//! `cargo bench --bench router`: `pgbench -S -c 2` through the router, beside the same against a server that listens on TCP and
//! against the project's own socket. Interleaved; medians, and their ratios. Then the memory of a session that waits.
//!
//! The router is that of a real `gantry dev`; the server on TCP has a project's configuration.

#![expect(clippy::print_stdout, reason = "a benchmark prints what it measured")]

use std::{
    error::Error,
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::{
        fs::{PermissionsExt, chown},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use gantry::clusters::{Account, Engine};
use tokio_postgres::{Client, NoTls};

const ROUNDS: usize = 5;
/// Seconds of each run.
const SECONDS: &str = "3";
const PASSWORD: &str = "correct horse";
/// Sessions that wait. The server takes thirty.
const IDLE: u32 = 25;
/// The configuration of a project's cluster.
const CONF: &str = include_str!("../src/clusters/recipes/project.conf");

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let dir = tempfile::tempdir_in("/tmp")?;
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o711))?;
    let engine = Engine::find(None)?;
    let gantry = Gantry::start(&dir.path().join("home"))?;
    let project = gantry.project()?;
    let direct = Server::start(&engine, &dir.path().join("direct"))?;

    let pgbench = |at: &Place, arguments: &[&str]| -> Outcome<String> {
        let mut command = Command::new("pgbench");
        command.args(["-n", "-h", &at.host, "-p", &at.port, "-U", &at.user]).args(arguments).arg("postgres");
        let output = command.env("PGPASSWORD", PASSWORD).env("PGSSLMODE", at.tls).env("PGOPTIONS", at.options).output()?;
        let said = String::from_utf8(output.stdout)?;
        if output.status.success() { Ok(said) } else { Err(format!("pgbench: {}", String::from_utf8_lossy(&output.stderr)).into()) }
    };
    let routed = |tls| Place {
        host: gantry.router.ip().to_string(),
        port: gantry.router.port().to_string(),
        user: format!("postgres.{project}"),
        tls,
        options: "",
    };
    let socket = gantry.home.join("run").join(&project);
    let places = [
        (
            "direct, TCP",
            Place { host: "127.0.0.1".to_owned(), port: direct.port.to_string(), user: "postgres".to_owned(), tls: "disable", options: "" },
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
    for (what, arguments) in
        [("queries", &["-S", "-c", "2", "-j", "2", "-T", SECONDS][..]), ("connections", &["-S", "-C", "-c", "2", "-j", "2", "-T", SECONDS])]
    {
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
            println!("  {name:<15} {median:8.0}   {:5.2} of direct TCP", median / medians[0]);
        }
    }
    idle(&gantry, &project)
}

/// What sessions that wait take of Gantry's memory.
fn idle(gantry: &Gantry, project: &str) -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let connect = || async {
        let mut config = tokio_postgres::Config::new();
        config
            .host(gantry.router.ip().to_string())
            .port(gantry.router.port())
            .user(format!("postgres.{project}"))
            .password(PASSWORD)
            .dbname("postgres");
        let (client, connection) = config.connect(NoTls).await?;
        tokio::spawn(connection);
        Ok::<Client, tokio_postgres::Error>(client)
    };
    runtime.block_on(async {
        // The runs before had two sessions at a time: what logging in takes once was taken.
        let before = gantry.memory()?;
        let mut sessions = Vec::new();
        for _ in 0..IDLE {
            let client = connect().await?;
            client.simple_query("select 1").await?;
            sessions.push(client);
        }
        println!("memory of a session that waits: {:.1} kB", f64::from(gantry.memory()?.saturating_sub(before)) / f64::from(IDLE));
        Ok(())
    })
}

fn rate(said: &str) -> Outcome<f64> {
    let rate = said.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok());
    rate.ok_or_else(|| format!("pgbench says no rate: {said}").into())
}

/// Where `pgbench` connects.
struct Place {
    host: String,
    port: String,
    user: String,
    tls: &'static str,
    options: &'static str,
}

fn free_port() -> Outcome<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// A `gantry dev`, stopped when dropped.
struct Gantry {
    child: Child,
    home: PathBuf,
    api: SocketAddr,
    router: SocketAddr,
    token: String,
    organization: String,
}

impl Gantry {
    fn start(home: &Path) -> Outcome<Self> {
        let (api, router) = (SocketAddr::from(([127, 0, 0, 1], free_port()?)), SocketAddr::from(([127, 0, 0, 1], free_port()?)));
        let mut child = Command::new(env!("CARGO_BIN_EXE_gantry"))
            .args(["dev", "--listen", &api.to_string(), "--db-listen", &router.to_string(), "--data-dir"])
            .arg(home)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        // Ready when it has said so.
        let mut greeting = Vec::new();
        let mut stdout = child.stdout.take().ok_or("no output")?;
        while !String::from_utf8_lossy(&greeting).contains("Ctrl-C") {
            let mut piece = [0; 1024];
            match stdout.read(&mut piece)? {
                0 => return Err("gantry dev ended".into()),
                n => greeting.extend_from_slice(&piece[..n]),
            }
        }
        let variables = fs::read_to_string(home.join("dev.env"))?;
        let value =
            |name: &str| variables.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned).ok_or("a variable is missing");
        Ok(Self { child, home: home.to_owned(), api, router, token: value("GANTRY_TOKEN=")?, organization: value("GANTRY_ORG=")? })
    }

    /// A project; connections wait until it is there.
    fn project(&self) -> Outcome<String> {
        let body = format!(r#"{{"name": "bench", "organization_slug": "{}", "db_pass": "{PASSWORD}"}}"#, self.organization);
        let mut stream = TcpStream::connect(self.api)?;
        write!(
            stream,
            "POST /v1/projects HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer {}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.token,
            body.len()
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (_, rest) = answer.split_once(r#""ref":""#).ok_or_else(|| answer.clone())?;
        Ok(rest.split('"').next().unwrap_or_default().to_owned())
    }

    /// Resident memory, in kB.
    fn memory(&self) -> Outcome<u32> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    }
}

impl Drop for Gantry {
    fn drop(&mut self) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
        }
        let _ = self.child.wait();
    }
}

/// A server that listens on TCP, configured like a project's, stopped when dropped.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start(engine: &Engine, dir: &Path) -> Outcome<Self> {
        let (account, port) = (Account::for_servers()?, free_port()?);
        let (data, password) = (dir.join("data"), dir.join("password"));
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
            command.current_dir("/").stdout(Stdio::null()).stderr(Stdio::null());
            command
        };
        let mut initdb = run("initdb");
        initdb.args(["--no-sync", "--locale=C", "-E", "UTF8", "-U", "postgres", "-A", "scram-sha-256", "--wal-segsize=1", "-D"]).arg(&data);
        if !initdb.arg("--pwfile").arg(&password).status()?.success() {
            return Err("initdb failed".into());
        }
        fs::write(data.join("postgresql.conf"), format!("{CONF}\nlisten_addresses = '127.0.0.1'\n"))?;
        let mut postgres = run("postgres");
        postgres.arg("-D").arg(&data).arg("-k").arg(dir).args(["-p", &port.to_string(), "-c", "logging_collector=on"]);
        let server = Self { child: postgres.spawn()?, port };
        while !fs::read_to_string(data.join("postmaster.pid")).is_ok_and(|text| text.contains("ready")) {
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
