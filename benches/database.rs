//! `cargo bench --bench database`: overhead of the API compared with the same SQL without it.
//!
//! `-- migrations` measures migrations only. Fails if a migration through the API takes more than
//! [`RATIO_MAX`] times `psql -1`.
//!
//! Compares five hundred small migrations with `psql -1`, once in one process and once with a
//! process each, and a query and the list of schemas with tokio-postgres on a fresh connection,
//! which each request uses as well. One project, one client, one request at a time. The variants
//! alternate, so that other load affects all of them. Prints medians over the rounds, and of the
//! ratio within a round. Gantry's server has its own thread. Its CPU time is read from the kernel.

#![expect(clippy::print_stdout, reason = "a benchmark prints what it measured")]

use std::{
    error::Error,
    fmt::Write as _,
    fs,
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    process::{Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use gantry::{
    api::{accounts, organizations, tokens},
    app::{App, Settings},
    control::projects::state::warm_pool::WarmPoolSize,
    platform::{
        context::PublishedLinks,
        db::Db,
        http::{Transport, server},
        rate_limits::{Memory, Options},
        sealing::SealingKey,
    },
};
use gantry_base::{
    clock::{Clock, Entropy},
    ids::ProjectRef,
};
use gantry_node::{
    clusters::{Control, Home, LocalDriver, OWNER_LOGIN, server::Host},
    engines::Engine,
    supervisor::{Account, Launcher},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_postgres::NoTls;

/// Measured rounds, and the total number of migrations.
const ROUNDS: usize = 5;
const MIGRATIONS: usize = 100;
/// Maximum ratio of a migration through the API to one by a `psql -1` of its own.
const RATIO_MAX: f64 = 1.3;
/// Queries per round.
const QUERIES: usize = 100;
/// Longest rate limit window of the measured operations.
const WINDOW: Duration = Duration::from_secs(181);
const PATIENCE: Duration = Duration::from_mins(1);
/// Maximum duration of the benchmark.
const RUN_MAX: Duration = Duration::from_mins(15);

const QUERY: &str = "select relname, relkind, relpages from pg_class order by relname limit 100";
/// The query with a function that is not known to be harmless: the protection of the project is
/// read.
const UNKNOWN_QUERY: &str =
    "select relname, relkind, pg_relation_filenode(oid) from pg_class order by relname limit 100";
/// SQL of `…/database/context` for a project with one database.
const CONTEXT: &str = "(select 'd', datname from pg_database where datallowconn and not datistemplate order by 2 limit 100) union all \
                       (select 's', nspname from pg_namespace where nspname not like 'pg\\_%' and nspname <> 'information_schema') order by 1, 2";

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Outcome<()> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?
        .block_on(run())
}

async fn run() -> Outcome<()> {
    let dir = tempfile::tempdir_in("/tmp")?;
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o711))?;
    let home = Arc::new(Home::open(
        &dir.path().join("home"),
        Account::for_servers()?,
    )?);
    let launcher = Launcher {
        program: env!("CARGO_BIN_EXE_gantry").into(),
        ..Launcher::default()
    };
    let host = Host {
        engine: Engine::find(None)?,
        launcher,
    };
    let control = Control::ensure(&home, &host, &Entropy::system()).await?;
    let clusters = LocalDriver::open(home, host, Entropy::system());
    let outcome = async {
        let bench = Bench::new(&control, clusters.clone()).await?;
        let outcome = tokio::time::timeout(RUN_MAX, bench.compare(dir.path()))
            .await
            .unwrap_or_else(|late| Err(late.into()));
        bench.app.reconciler.stop().await;
        outcome
    };
    let outcome = outcome.await;
    clusters.stop_all().await?;
    control.stop().await?;
    outcome
}

struct Bench {
    app: App,
    clusters: LocalDriver,
    clock: Clock,
    project: ProjectRef,
    token: String,
    server: Server,
}

/// Result of a round: milliseconds per request, in total and on the server's thread.
#[derive(Clone, Copy)]
struct Spent {
    wall: f64,
    processor: f64,
}

impl Bench {
    async fn new(control: &Control, clusters: LocalDriver) -> Outcome<Self> {
        clusters.prepare().await?;
        let (clock, entropy, db) = (
            Clock::manual(chrono::DateTime::UNIX_EPOCH),
            Entropy::system(),
            Db::new(control.config())?,
        );
        db.migrate().await?;
        let settings = Settings {
            transport: Transport::default(),
            project_domain: "localhost".into(),
            links: PublishedLinks::default(),
            node: uuid::Uuid::nil(),
            own_database: true,
            databases: None,
            prepared: WarmPoolSize::default(),
            service_proxy: gantry::proxy::service_proxy::Options::default(),
            services: gantry::control::services::state::ServiceOptions::default(),
            dns: std::sync::Arc::new(gantry::control::domains::hostnames::dns::DnsResolver::new(
                &[],
            )?),
            authority: None,
            idle_pause_after: None,
            hold: chrono::TimeDelta::zero(),
            project_uid_base: 700_000,
            new_table_grants: gantry::control::projects::new_table_grants::NewTableGrants::None,
            counting: Options::default(),
            sealing: SealingKey::new(&[7; 32])?,
            public_url: None,
            oauth: gantry::api::oauth::OAuthSettings::default(),
            provider: None,
            logs: gantry::api::logs::Options::default(),
            outbound: gantry_base::net::outbound::OutboundPolicy::default(),
            log_drains: gantry::api::log_drains::Options::default(),
            compute_sizes: gantry::control::projects::sizes::SizeTable::default(),
            project_disk_choice_max: 0,
            branches: gantry::api::branches::BranchOptions::default(),
            backups: gantry::control::backups::state::BackupOptions {
                enabled: false,
                ..Default::default()
            },
            fleet: gantry::control::fleet::state::NodeSettings::default(),
        };
        let (app, background) = App::new(
            settings,
            clock.clone(),
            entropy,
            db,
            Arc::new(clusters.clone()),
            clusters.home().clone(),
            Memory::default(),
        )?;
        background.spawn().detach_all();
        let owner = accounts::create(
            &app.db,
            &app.entropy,
            "bench@example.com",
            None,
            clock.now(),
            None,
        )
        .await?;
        let organization = organizations::create(
            &app.db,
            &app.entropy,
            "Bench",
            None,
            owner.id,
            clock.now(),
            None,
        )
        .await?;
        let minted = tokens::mint_classic(&app.entropy);
        tokens::create(&app.db, owner.id, "bench", &minted, clock.now(), None, None).await?;
        let server = Server::start(&app)?;
        let token = minted.expose().to_owned();
        let body = json!({"organization_slug": organization.slug(), "name": "bench", "db_pass": "correct horse"});
        let answer = Connection::open(server.address, &token)
            .await?
            .ask("POST", "/v1/projects", Some(&body))
            .await?;
        let project: ProjectRef = answer["ref"].as_str().ok_or("no ref")?.parse()?;
        let bench = Self {
            app,
            clusters,
            clock,
            project,
            token,
            server,
        };
        tokio::time::timeout(PATIENCE, bench.healthy()).await??;
        Ok(bench)
    }

    async fn healthy(&self) -> Outcome<()> {
        let mut changes = self.app.reconciler.changes();
        let sql = "select 1 from projects where ref = $1 and status = 'ACTIVE_HEALTHY'";
        while self
            .app
            .db
            .query(sql, &[&self.project.as_str()])
            .await?
            .is_empty()
        {
            changes.changed().await?;
        }
        Ok(())
    }

    async fn compare(&self, dir: &std::path::Path) -> Outcome<()> {
        let mut migrations: [Vec<Spent>; 3] = Default::default();
        let mut queries: [Vec<Spent>; 2] = Default::default();
        let mut judged: [Vec<Spent>; 2] = Default::default();
        let mut contexts: [Vec<Spent>; 2] = Default::default();
        let only_migrations = std::env::args().any(|argument| argument == "migrations");
        for round in 0..ROUNDS {
            migrations[0].push(self.through_the_api(round).await?);
            migrations[1].push(self.by_psql(dir, round, MIGRATIONS)?);
            migrations[2].push(self.by_psql(dir, round, 1)?);
            if only_migrations {
                continue;
            }
            let query = json!({"query": QUERY});
            queries[0].push(
                self.requests("POST", "/database/query", Some(&query))
                    .await?,
            );
            queries[1].push(self.fresh_connections(QUERY).await?);
            for (spent, body) in judged.iter_mut().zip([
                json!({"query": QUERY, "read_only": true}),
                json!({"query": UNKNOWN_QUERY}),
            ]) {
                spent.push(
                    self.requests("POST", "/database/query", Some(&body))
                        .await?,
                );
            }
            contexts[0].push(self.requests("GET", "/database/context", None).await?);
            contexts[1].push(self.fresh_connections(CONTEXT).await?);
        }
        println!(
            "{ROUNDS} interleaved rounds; medians; ms for each, the ratio to the API's, and of it the server's own processor time"
        );
        println!("{} migrations", ROUNDS * MIGRATIONS);
        print("applied through the API", &migrations[0], &migrations[0]);
        print(
            "psql -1, all of a round in one run",
            &migrations[1],
            &migrations[0],
        );
        print("psql -1, a run each", &migrations[2], &migrations[0]);
        let ratio = ratio(&migrations[2], &migrations[0]);
        if ratio > RATIO_MAX {
            return Err(format!(
                "the ratio to psql -1 is {ratio:.2}; at most {RATIO_MAX} is allowed"
            )
            .into());
        }
        if only_migrations {
            return Ok(());
        }
        println!("a query of 100 rows");
        print("POST …/database/query", &queries[0], &queries[0]);
        print("tokio-postgres, fresh connection", &queries[1], &queries[0]);
        print("read only, not judged", &judged[0], &queries[0]);
        print("judged, protection read", &judged[1], &queries[0]);
        println!("databases and schemas");
        print("GET …/database/context", &contexts[0], &contexts[0]);
        print(
            "tokio-postgres, fresh connection",
            &contexts[1],
            &contexts[0],
        );
        Ok(())
    }

    async fn through_the_api(&self, round: usize) -> Outcome<Spent> {
        let path = format!("/v1/projects/{}/database/migrations", self.project);
        let mut connection = Connection::open(self.server.address, &self.token).await?;
        self.measured(MIGRATIONS, async |n| {
            let body = json!({"query": format!("create table api_{round}_{n} (id int primary key)"), "name": "bench"});
            connection.ask("POST", &path, Some(&body)).await.map(drop)
        })
        .await
    }

    async fn requests(&self, method: &str, path: &str, body: Option<&Value>) -> Outcome<Spent> {
        let path = format!("/v1/projects/{}{path}", self.project);
        let mut connection = Connection::open(self.server.address, &self.token).await?;
        self.measured(QUERIES, async |_| {
            connection.ask(method, &path, body).await.map(drop)
        })
        .await
    }

    async fn fresh_connections(&self, sql: &str) -> Outcome<Spent> {
        let mut config = self.clusters.config(&self.project, "postgres")?;
        config.host_path(
            self.clusters
                .socket_path(&self.project)
                .parent()
                .ok_or("no folder")?,
        );
        self.measured(QUERIES, async |_| {
            let (client, connection) = config.connect(NoTls).await?;
            let connection = tokio::spawn(connection);
            client.simple_query(sql).await?;
            drop(client);
            Ok(connection.await??)
        })
        .await
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "a benchmark reads the real clock"
    )]
    #[expect(clippy::cast_precision_loss, reason = "a few hundred")]
    async fn measured(
        &self,
        times: usize,
        mut each: impl AsyncFnMut(usize) -> Outcome<()>,
    ) -> Outcome<Spent> {
        let (begun, before) = (Instant::now(), self.server.processor_time()?);
        for n in 0..times {
            // Resets the rate limits, so that no request is rejected.
            self.clock.advance(WINDOW);
            each(n).await?;
        }
        let (wall, processor) = (
            millis(begun.elapsed()),
            millis(self.server.processor_time()?.saturating_sub(before)),
        );
        Ok(Spent {
            wall: wall / times as f64,
            processor: processor / times as f64,
        })
    }

    /// Applies the same migrations with the same records by `psql`, `together` in one transaction.
    #[expect(
        clippy::disallowed_methods,
        reason = "a benchmark reads the real clock"
    )]
    #[expect(clippy::cast_precision_loss, reason = "a few hundred")]
    fn by_psql(&self, dir: &std::path::Path, round: usize, together: usize) -> Outcome<Spent> {
        let mut files = Vec::new();
        for first in (0..MIGRATIONS).step_by(together) {
            let mut script = String::new();
            for n in first..first + together {
                let query =
                    format!("create table psql_{together}_{round}_{n} (id int primary key)");
                write!(
                    script,
                    "{query}; insert into supabase_migrations.schema_migrations (version, statements, name)
                     values ('1{together:04}{round:04}{n:05}', array['{query}'], 'bench');"
                )?;
            }
            let file = dir.join(format!("{first}.sql"));
            fs::write(&file, script)?;
            files.push(file);
        }
        let socket = self.clusters.socket_path(&self.project);
        let begun = Instant::now();
        for file in &files {
            let mut psql = Command::new("psql");
            psql.args([
                "-X",
                "-q",
                "-1",
                "-v",
                "ON_ERROR_STOP=1",
                "-U",
                OWNER_LOGIN,
                "-d",
                "postgres",
                "-h",
            ])
            .env("PGOPTIONS", "-c role=postgres");
            psql.arg(socket.parent().ok_or("no folder")?)
                .arg("-f")
                .arg(file)
                .stdin(Stdio::null());
            let status = psql.status()?;
            if !status.success() {
                return Err(format!("psql ended with {status}").into());
            }
        }
        Ok(Spent {
            wall: millis(begun.elapsed()) / MIGRATIONS as f64,
            processor: 0.0,
        })
    }
}

fn print(name: &str, spent: &[Spent], of: &[Spent]) {
    let wall = median(spent.iter().map(|spent| spent.wall).collect());
    let ratio = ratio(spent, of);
    let processor = median(spent.iter().map(|spent| spent.processor).collect());
    let processor = if processor > 0.0 {
        format!("{processor:.3}")
    } else {
        String::new()
    };
    println!("  {name:36} {wall:9.2} {ratio:9.2} {processor:>9}");
}

/// Returns the median of `of` divided by `spent`, over the rounds.
fn ratio(spent: &[Spent], of: &[Spent]) -> f64 {
    let ratios = spent.iter().zip(of).map(|(spent, of)| of.wall / spent.wall);
    median(ratios.collect())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Gantry's server on its own thread.
struct Server {
    address: SocketAddr,
    thread: i32,
}

impl Server {
    fn start(app: &App) -> Outcome<Self> {
        let (api, (told, hears)) = (app.api(), std::sync::mpsc::channel());
        thread::Builder::new()
            .name("gantry".to_owned())
            .spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()?;
                runtime.block_on(async {
                    let listener = TcpListener::bind("127.0.0.1:0").await?;
                    let here = rustix::thread::gettid().as_raw_nonzero().get();
                    let _ = told.send((listener.local_addr()?, here));
                    server::serve(
                        listener,
                        None,
                        |peer| api.connection(peer),
                        tokio_util::sync::CancellationToken::new(),
                    )
                    .await;
                    std::io::Result::Ok(())
                })
            })?;
        let (address, thread) = hears.recv()?;
        Ok(Self { address, thread })
    }

    /// Returns the CPU time of the thread.
    fn processor_time(&self) -> Outcome<Duration> {
        let text = fs::read_to_string(format!("/proc/self/task/{}/schedstat", self.thread))?;
        Ok(Duration::from_nanos(
            text.split(' ').next().ok_or("no schedstat")?.parse()?,
        ))
    }
}

/// A keep-alive connection of a client.
struct Connection {
    stream: TcpStream,
    token: String,
    answer: Vec<u8>,
}

impl Connection {
    async fn open(address: SocketAddr, token: &str) -> Outcome<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            token: token.to_owned(),
            answer: Vec::new(),
        })
    }

    /// Sends a request and reads the response, which must be successful.
    async fn ask(&mut self, method: &str, path: &str, body: Option<&Value>) -> Outcome<Value> {
        let (token, body) = (&self.token, body.map(Value::to_string).unwrap_or_default());
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {token}\r\ncontent-type: application/json\r\n"
        );
        self.stream
            .write_all(format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes())
            .await?;
        self.answer.clear();
        loop {
            if self.stream.read_buf(&mut self.answer).await? == 0 {
                return Err("the server closed the connection".into());
            }
            let Some(end) = self
                .answer
                .windows(4)
                .position(|window| window == b"\r\n\r\n")
            else {
                continue;
            };
            let head = std::str::from_utf8(&self.answer[..end])?;
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "))
                .unwrap_or("0")
                .parse::<usize>()?;
            let Some(body) = self.answer.get(end + 4..end + 4 + length) else {
                continue;
            };
            if head.get(9..10).is_none_or(|class| class != "2") {
                return Err(
                    format!("{method} {path}: {head}\n{}", String::from_utf8_lossy(body)).into(),
                );
            }
            return Ok(if body.is_empty() {
                Value::Null
            } else {
                serde_json::from_slice(body)?
            });
        }
    }
}
