//! `cargo bench --bench clusters`: the cost of a project, on real clusters through the real API.
//!
//! First the time from the request for a project to its first SQL response: with a warm server,
//! with prepared files, without either, and for comparison `initdb` with a first start. The rounds
//! are interleaved; printed are ratios of medians. Then the memory of idle projects, and the time
//! to restart all of them after a kill. `GANTRY_BENCH_ROUNDS` and `GANTRY_BENCH_PROJECTS` make it
//! shorter.

#![expect(clippy::print_stdout, reason = "a benchmark prints what it measured")]

mod processes;

use std::{
    error::Error,
    fs,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{body::Body, http::Request};
use gantry::{
    api::{accounts, organizations, tokens},
    app::{App, Settings},
    control::projects::{lease, state::warm_pool::WarmPoolSize},
    platform::{
        context::PublishedLinks,
        db::Db,
        http::{Api, Transport},
        rate_limits::{Memory, Options},
        sealing::SealingKey,
    },
};
use gantry_base::clock::{Clock, Entropy};
use gantry_node::{
    clusters::{Control, Home, LocalDriver, server::Host},
    engines::Engine,
    supervisor::{Account, Launcher},
};
use http_body_util::BodyExt;
use processes::{
    available, kill_under, own_processor_time, processes_under, processor_time, proportional,
};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tower::ServiceExt;
use uuid::Uuid;

const ROUNDS: usize = 11;
const PROJECTS: usize = 100;
/// Polling interval for changes without an event.
const POLL: Duration = Duration::from_millis(5);
/// Longer than any window of the rate limits.
const WINDOW: Duration = Duration::from_mins(10);

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(run())
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
    let home = Arc::new(Home::open(
        &dir.path().join("control"),
        Account::for_servers()?,
    )?);
    let control = Control::ensure(&home, &host, &Entropy::system()).await?;
    let bench = Bench {
        dir: dir.path().to_owned(),
        host,
        db: Db::new(control.config())?,
    };
    let outcome = async {
        bench.db.migrate().await?;
        let owner = bench.owner().await?;
        bench.compare_creation(&owner).await?;
        bench.measure_idle(&owner).await
    };
    let outcome = outcome.await;
    // Also after an error, no process may remain.
    kill_under(dir.path());
    control.stop().await?;
    outcome
}

struct Bench {
    dir: PathBuf,
    host: Host,
    db: Db,
}

/// The caller and its organization.
struct Owner {
    token: String,
    slug: String,
}

/// A Gantry server with its own data folder.
struct Node {
    app: App,
    api: Api,
    home: Arc<Home>,
    clock: Clock,
    tasks: JoinSet<()>,
}

impl Bench {
    async fn owner(&self) -> Outcome<Owner> {
        let (entropy, now) = (Entropy::system(), Clock::system().now());
        let account =
            accounts::create(&self.db, &entropy, "bench@example.com", None, now, None).await?;
        let organization =
            organizations::create(&self.db, &entropy, "Bench", None, account.id, now, None).await?;
        let minted = tokens::mint_classic(&entropy);
        tokens::create(&self.db, account.id, "bench", &minted, now, None, None).await?;
        Ok(Owner {
            token: minted.expose().to_owned(),
            slug: organization.slug().to_string(),
        })
    }

    async fn node(&self, name: &str, number: u128, prepared: WarmPoolSize) -> Outcome<Node> {
        let home = Home::open(&self.dir.join(name), Account::for_servers()?)?;
        let home = Arc::new(home.with_templates(self.dir.join("templates"))?);
        self.node_in(home, number, prepared).await
    }

    async fn node_in(
        &self,
        home: Arc<Home>,
        number: u128,
        prepared: WarmPoolSize,
    ) -> Outcome<Node> {
        let (clock, entropy) = (Clock::manual(Clock::system().now()), Entropy::system());
        let clusters = LocalDriver::open(home.clone(), self.host.clone(), entropy.clone());
        clusters.prepare().await?;
        let settings = Settings {
            transport: Transport::default(),
            project_domain: "localhost".into(),
            databases: None,
            links: PublishedLinks::default(),
            node: Uuid::from_u128(number),
            own_database: true,
            project_uid_base: 700_000,
            new_table_grants: gantry::control::projects::new_table_grants::NewTableGrants::None,
            prepared,
            idle_pause_after: None,
            hold: chrono::TimeDelta::zero(),
            counting: Options::default(),
            service_proxy: gantry::proxy::service_proxy::Options::default(),
            services: gantry::control::services::state::ServiceOptions::default(),
            dns: std::sync::Arc::new(gantry::control::domains::hostnames::dns::DnsResolver::new(
                &[],
            )?),
            authority: None,
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
            self.db.clone(),
            Arc::new(clusters),
            home.clone(),
            Memory::default(),
        )?;
        lease::claim(&app).await?;
        Ok(Node {
            api: app.api(),
            app,
            home,
            clock,
            tasks: background.spawn(),
        })
    }

    async fn compare_creation(&self, owner: &Owner) -> Outcome<()> {
        let rounds = number("GANTRY_BENCH_ROUNDS", ROUNDS);
        let mut contests = [
            (
                "with a spare server",
                self.node(
                    "spare",
                    1,
                    WarmPoolSize {
                        folders: 0,
                        servers: 1,
                    },
                )
                .await?,
                Vec::new(),
            ),
            (
                "with prepared files",
                self.node(
                    "warm",
                    2,
                    WarmPoolSize {
                        folders: 1,
                        servers: 0,
                    },
                )
                .await?,
                Vec::new(),
            ),
            (
                "with nothing prepared",
                self.node("cold", 3, WarmPoolSize::default()).await?,
                Vec::new(),
            ),
        ];
        let mut baseline = Vec::new();
        for round in 0..=rounds {
            for (_, node, times) in &mut contests {
                let millis = node.create_once(owner, round).await?;
                // The first round fills caches.
                if round > 0 {
                    times.push(millis);
                }
            }
            let millis = self
                .initdb_and_start(&self.dir.join(format!("initdb-{round}")))
                .await?;
            if round > 0 {
                baseline.push(millis);
            }
        }
        println!(
            "{rounds} interleaved rounds, medians: from the request for a project to its first answer to SQL"
        );
        let base = median(&mut baseline);
        for (name, node, times) in &mut contests {
            let millis = median(times);
            println!("  {name:<30} {millis:7.0} ms {:7.2}", millis / base);
            node.app.reconciler.stop().await;
            node.tasks.shutdown().await;
            node.app.lease.release();
        }
        println!(
            "  {:<30} {base:7.0} ms {:7.2}",
            "initdb --no-sync, pg_ctl start", 1.0
        );
        Ok(())
    }

    /// Milliseconds of the fastest first start without Gantry.
    #[expect(
        clippy::disallowed_methods,
        reason = "a benchmark reads the real clock"
    )]
    async fn initdb_and_start(&self, data: &Path) -> Outcome<f64> {
        let account = Account::for_servers()?;
        fs::create_dir(data)?;
        std::os::unix::fs::chown(data, Some(account.uid), Some(account.gid))?;
        let started = Instant::now();
        self.server_program("initdb", data, &["--no-sync", "--locale=C", "-E", "UTF8"])
            .await?;
        let options = format!("-c listen_addresses= -k {}", data.display());
        self.server_program(
            "pg_ctl",
            data,
            &["start", "-w", "-l", "/dev/null", "-o", &options],
        )
        .await?;
        let elapsed = millis(started);
        self.server_program("pg_ctl", data, &["stop", "-m", "immediate"])
            .await?;
        fs::remove_dir_all(data)?;
        Ok(elapsed)
    }

    async fn server_program(&self, name: &str, data: &Path, arguments: &[&str]) -> Outcome<()> {
        let account = Account::for_servers()?;
        let mut command = Command::new(self.host.engine.program(name));
        command
            .arg("-D")
            .arg(data)
            .args(arguments)
            .current_dir("/")
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if Account::current()?.uid == 0 {
            command.uid(account.uid).gid(account.gid);
        }
        let status = tokio::process::Command::from(command).status().await?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("{name} ended with {status}").into())
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "there are not as many")]
    async fn measure_idle(&self, owner: &Owner) -> Outcome<()> {
        let count = number("GANTRY_BENCH_PROJECTS", PROJECTS);
        let mut node = self.node("many", 4, WarmPoolSize::default()).await?;
        let before = available()?;
        for n in 0..count {
            node.create(owner, &format!("idle {n}")).await?;
        }
        settle_down().await;
        let shared = proportional(&processes_under(node.home.dir()));
        let each = |megabytes: f64| megabytes / count as f64;
        println!("{count} idle projects, each");
        println!(
            "  {:<30} {:7.1} MB",
            "less MemAvailable",
            each(before - available()?)
        );
        println!(
            "  {:<30} {:7.1} MB",
            "its share of server memory",
            each(shared)
        );

        node.app.reconciler.stop().await;
        node.tasks.shutdown().await;
        node.app.lease.release();
        let home = node.home.clone();
        drop(node);
        kill_under(home.dir());
        let own = own_processor_time()?;
        let elapsed = self.restart_all(home.clone(), count).await?;
        let servers: f64 = processes_under(home.dir())
            .into_iter()
            .filter_map(processor_time)
            .sum();
        let own = own_processor_time()? - own;
        println!("all {count} started after kill -9 of everything, each");
        println!("  {:<30} {:7.1} ms", "processor time", each(servers + own));
        println!("  {:<30} {:7.1} ms", "of it, Gantry's", each(own));
        println!("  {:<30} {:7.1} ms", "wall-clock time", each(elapsed));
        kill_under(home.dir());
        Ok(())
    }

    /// Milliseconds until every project of the folder is healthy again.
    #[expect(
        clippy::disallowed_methods,
        reason = "a benchmark reads the real clock"
    )]
    async fn restart_all(&self, home: Arc<Home>, count: usize) -> Outcome<f64> {
        let started = Instant::now();
        let mut node = self.node_in(home, 4, WarmPoolSize::default()).await?;
        node.until_rows(
            "select 1 from projects where node = $1 and status = 'ACTIVE_HEALTHY'",
            count,
        )
        .await?;
        let elapsed = millis(started);
        node.app.reconciler.stop().await;
        node.tasks.shutdown().await;
        node.app.lease.release();
        Ok(elapsed)
    }
}

impl Node {
    /// Milliseconds until a new project answers SQL. Removes the project and waits until the pool
    /// is full again.
    async fn create_once(&self, owner: &Owner, round: usize) -> Outcome<f64> {
        let wanted = usize::from(
            self.app.control_settings.prepared.folders + self.app.control_settings.prepared.servers,
        );
        self.until_rows("select 1 from prepared_clusters where node = $1", wanted)
            .await?;
        settle_down().await;
        let (elapsed, project) = self.create(owner, &format!("round {round}")).await?;
        self.send(owner, "DELETE", &format!("/v1/projects/{project}"), None)
            .await?;
        self.until_rows(
            "select 1 from projects where node = $1 and status <> 'REMOVED'",
            0,
        )
        .await?;
        while fs::read_dir(self.home.dir().join("trash"))?
            .next()
            .is_some()
        {
            tokio::time::sleep(POLL).await;
        }
        Ok(elapsed)
    }

    /// Creates a project and immediately queries its database, as a script would.
    #[expect(
        clippy::disallowed_methods,
        reason = "a benchmark reads the real clock"
    )]
    async fn create(&self, owner: &Owner, name: &str) -> Outcome<(f64, String)> {
        // The clock is moved by hand, so that no limit is reached.
        self.clock.advance(WINDOW);
        let name = format!("{name} on {}", self.app.settings.node);
        let body = json!({"name": name, "organization_slug": owner.slug, "db_pass": "correct horse battery staple"});
        let started = Instant::now();
        let created = self
            .send(owner, "POST", "/v1/projects", Some(&body))
            .await?;
        let project = created["ref"].as_str().ok_or("no ref")?.to_owned();
        let query = json!({"query": "select 1 as one"});
        self.send(
            owner,
            "POST",
            &format!("/v1/projects/{project}/database/query"),
            Some(&query),
        )
        .await?;
        Ok((millis(started), project))
    }

    async fn send(
        &self,
        owner: &Owner,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Outcome<Value> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("authorization", format!("Bearer {}", owner.token));
        let request = match body {
            Some(body) => request
                .header("content-type", "application/json")
                .body(Body::from(body.to_string()))?,
            None => request.body(Body::empty())?,
        };
        let response = match self.api.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        let status = response.status();
        let bytes = response
            .into_body()
            .collect()
            .await
            .map_err(|error| error.to_string())?
            .to_bytes();
        if status.is_success() {
            return Ok(serde_json::from_slice(&bytes)?);
        }
        Err(format!(
            "{method} {path} answered {status}: {}",
            String::from_utf8_lossy(&bytes)
        )
        .into())
    }

    async fn until_rows(&self, sql: &'static str, count: usize) -> Outcome<()> {
        while self
            .app
            .db
            .query(sql, &[&self.app.settings.node])
            .await?
            .len()
            != count
        {
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }
}

/// Waits until the servers are idle after their start.
async fn settle_down() {
    tokio::time::sleep(Duration::from_millis(300)).await;
}

fn number(variable: &str, default: usize) -> usize {
    std::env::var(variable)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn millis(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}
