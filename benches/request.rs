//! `cargo bench --profile requests --bench request`: processor time of a request, compared with
//! bare hyper and bare axum.
//!
//! Each server has its own thread, and the kernel counts its processor time. One client calls all
//! in turns over a few persistent connections, so that other load on the machine affects all.
//! Prints medians over the rounds: of the processor time of a request, and of the ratio within a
//! round.

#![expect(clippy::print_stdout, reason = "a benchmark prints what it measured")]

use std::{
    convert::Infallible, error::Error, fs, net::SocketAddr, os::unix::fs::PermissionsExt,
    sync::Arc, thread, time::Duration,
};

use axum::{Router, routing::get, serve::ListenerExt};
use bytes::Bytes;
use gantry::{
    api::{accounts, endpoints, organizations, tokens},
    app::{App, Settings},
    control::projects::state::warm_pool::WarmPoolSize,
    platform::{
        access::{OauthScope, Organization, Permission, needs},
        context::PublishedLinks,
        db::Db,
        http::{Api, Endpoint, Json, Tag, Transport, Verb, mount, server},
        rate_limits::{
            Memory, Options, PolicyContext, STANDARD,
            overrides::{self, OverrideTarget},
        },
        sealing::SealingKey,
    },
    web,
};
use gantry_base::{
    clock::{Clock, Entropy},
    ids::UserId,
};
use gantry_node::{
    clusters::{Control, Home, LocalDriver, server::Host},
    engines::Engine,
    supervisor::{Account, Launcher},
};
use http_body_util::Full;
use hyper::{Response, body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

/// Callers, each with a token: more than fit in the processor caches.
const USERS: usize = 1_000;
const PROJECTS: usize = 10;
const CONNECTIONS: usize = 8;
/// Requests a round sends to each server, below the limit of each user: 100.
const REQUESTS: usize = 20_000;
const ROUNDS: usize = 15;
/// The longest window of the measured operations.
const WINDOW: Duration = Duration::from_secs(61);

const TINY: &str = "{\"ready\":true}";

/// The executable's, for all the servers.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

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
    let home = Arc::new(Home::open(dir.path(), Account::for_servers()?)?);
    let launcher = Launcher {
        program: env!("CARGO_BIN_EXE_gantry").into(),
        ..Launcher::default()
    };
    let host = Host {
        engine: Engine::find(None)?,
        launcher,
    };
    let control = Control::ensure(&home, &host, &Entropy::system()).await?;
    let outcome = compare(&control, home, host).await;
    control.stop().await?;
    outcome
}

/// An operation that does nothing behind the complete guard, for an organization.
static GATE: Endpoint = Endpoint {
    id: "bench-gate",
    summary: "Answer",
    tag: Tag::Organizations,
    method: Verb::Get,
    path: "/v1/organizations/{slug}/bench",
    aliases: &[],
    access: needs(
        &[&[Permission::OrganizationAdminRead]],
        OauthScope::OrganizationsRead,
    ),
    limit: &STANDARD,
    handler: || mount(tiny),
};

/// The operation that it replaces, with its counters and metrics.
const IN_PLACE_OF: &str = "v1-get-an-organization";
/// An operation with a limit of one request.
const SHUT: &str = "v1-list-organization-members";

#[derive(serde::Serialize, schemars::JsonSchema)]
struct Ready {
    ready: bool,
}

async fn tiny(_: Organization) -> Result<Json<Ready>, gantry::platform::error::Error> {
    Ok(Json(Ready { ready: true }))
}

async fn compare(control: &Control, home: Arc<Home>, host: Host) -> Outcome<()> {
    let (clock, entropy) = (
        Clock::manual(chrono::DateTime::UNIX_EPOCH),
        Entropy::system(),
    );
    let db = Db::new(control.config())?;
    db.migrate().await?;
    let settings = Settings {
        transport: Transport::default(),
        project_domain: "localhost".into(),
        databases: None,
        links: PublishedLinks::default(),
        node: uuid::Uuid::nil(),
        own_database: true,
        project_uid_base: 700_000,
        new_table_grants: gantry::control::projects::new_table_grants::NewTableGrants::None,
        prepared: WarmPoolSize::default(),
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
    let (app, _background) = App::new(
        settings,
        clock.clone(),
        entropy.clone(),
        db.clone(),
        Arc::new(LocalDriver::open(home.clone(), host, entropy)),
        home,
        Memory::default(),
    )?;
    let callers = callers(&app).await?;

    shut(&app).await?;

    let list: Vec<_> = endpoints::all()
        .iter()
        .map(|endpoint| {
            if endpoint.id == IN_PLACE_OF {
                &GATE
            } else {
                *endpoint
            }
        })
        .collect();
    let state = std::sync::Arc::new(app.context.clone());
    let api = Api::new(
        &app.platform,
        state,
        &list,
        &endpoints::UNKNOWN,
        &web::served(),
    );
    let whole = |name| Server::gantry(name, api.clone());
    let mut contests = [
        Contest::new("bare hyper", Server::hyper()?, "/", &["200"], &callers),
        Contest::new(
            "bare axum",
            Server::axum(Router::new().route("/", get(|| async { TINY })))?,
            "/",
            &["200"],
            &callers,
        ),
        Contest::new(
            "gate",
            whole("gate")?,
            "/v1/organizations/{slug}/bench",
            &["200"],
            &callers,
        ),
        Contest::new(
            "refused with 429",
            whole("refused")?,
            "/v1/organizations/{slug}/members",
            &["429", "200"],
            &callers[..100],
        ),
        Contest::new(
            "GET /v1/projects, unchanged",
            whole("projects")?,
            "/v1/projects",
            &["200"],
            &callers,
        ),
    ];
    for round in 0..=ROUNDS {
        clock.advance(WINDOW);
        for contest in &mut contests {
            // Cache entries expire within a window, so every caller is read again.
            contest.ask_all(USERS).await?;
            let spent = contest.round().await?;
            // The first warms up the processor.
            if round > 0 {
                contest.spent.push(spent);
            }
        }
    }
    println!(
        "{ROUNDS} interleaved rounds of {REQUESTS} requests over {CONNECTIONS} connections, {USERS} callers; medians"
    );
    println!(
        "{:30} {:>12} {:>12} {:>12}",
        "", "µs a request", "of hyper", "of axum"
    );
    for contest in &contests {
        let of = |other: &Contest| {
            median(
                other
                    .spent
                    .iter()
                    .zip(&contest.spent)
                    .map(|(other, own)| other / own)
                    .collect(),
            )
        };
        let (hyper, axum) = (of(&contests[0]), of(&contests[1]));
        println!(
            "{:30} {:12.2} {hyper:12.2} {axum:12.2}",
            contest.name,
            median(contest.spent.clone())
        );
    }
    Ok(())
}

/// Lets each caller make one request of [`SHUT`] in a window.
async fn shut(app: &App) -> Outcome<()> {
    let about = OverrideTarget {
        operation: Some(SHUT.to_owned()),
        ..OverrideTarget::default()
    };
    overrides::set(&app.db, &about, 1, "bench", app.clock.now(), None).await?;
    tokio::spawn(overrides::run(app.platform.clone()));
    let number = app
        .limits
        .policies()
        .operation(SHUT)
        .ok_or("no such operation")?;
    while app
        .limits
        .policy(number, PolicyContext::default())
        .windows()[0]
        .requests
        != 1
    {
        tokio::task::yield_now().await;
    }
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A server, and its requests.
struct Contest {
    name: &'static str,
    server: Server,
    statuses: &'static [&'static str],
    requests: Arc<Vec<Vec<u8>>>,
    spent: Vec<f64>,
}

impl Contest {
    fn new(
        name: &'static str,
        server: Server,
        path: &str,
        statuses: &'static [&'static str],
        callers: &[(String, String)],
    ) -> Self {
        let request = |(slug, token): &(String, String)| {
            let path = path.replace("{slug}", slug);
            format!("GET {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {token}\r\n\r\n")
                .into_bytes()
        };
        Self {
            name,
            server,
            statuses,
            requests: Arc::new(callers.iter().map(request).collect()),
            spent: Vec::new(),
        }
    }

    /// Processor time of the server's thread for a request, in microseconds.
    #[expect(clippy::cast_precision_loss, reason = "nanoseconds of a few seconds")]
    async fn round(&self) -> Outcome<f64> {
        let before = self.server.processor_time()?;
        self.ask_all(REQUESTS).await?;
        Ok((self.server.processor_time()? - before) as f64 / 1e3 / REQUESTS as f64)
    }

    /// Sends so many requests, of each caller in turn, and reads the answers.
    async fn ask_all(&self, many: usize) -> Outcome<()> {
        // Keeps the client awake: wake-ups would be charged to the servers.
        let awake = tokio::spawn(async {
            loop {
                tokio::task::yield_now().await;
            }
        });
        let mut connections = JoinSet::new();
        for connection in 0..CONNECTIONS {
            let (requests, address, statuses) =
                (self.requests.clone(), self.server.address, self.statuses);
            connections.spawn(async move {
                let mut stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                let mut answer = Vec::with_capacity(8192);
                for n in (connection..many).step_by(CONNECTIONS) {
                    ask(
                        &mut stream,
                        &requests[n % requests.len()],
                        statuses,
                        &mut answer,
                    )
                    .await?;
                }
                Outcome::Ok(())
            });
        }
        while let Some(done) = connections.join_next().await {
            done??;
        }
        awake.abort();
        Ok(())
    }
}

/// A server on a thread of its own.
#[derive(Clone, Copy)]
struct Server {
    address: SocketAddr,
    thread: i32,
}

impl Server {
    fn hyper() -> Outcome<Self> {
        Self::start("hyper", |listener| async move {
            loop {
                let (stream, _) = listener.accept().await?;
                let _ = stream.set_nodelay(true);
                let answer = service_fn(|_: hyper::Request<Incoming>| async {
                    Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(
                        TINY.as_bytes(),
                    ))))
                });
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), answer),
                );
            }
        })
    }

    fn axum(router: Router) -> Outcome<Self> {
        Self::start("axum", |listener| async move {
            let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
            axum::serve(
                listener,
                router.into_make_service_with_connect_info::<SocketAddr>(),
            )
            .await
        })
    }

    fn gantry(name: &str, api: Api) -> Outcome<Self> {
        Self::start(name, |listener| async move {
            server::serve(
                listener,
                None,
                |peer| api.connection(peer),
                tokio_util::sync::CancellationToken::new(),
            )
            .await;
            Ok(())
        })
    }

    fn start<F: Future<Output = std::io::Result<()>>>(
        name: &str,
        serve: impl FnOnce(TcpListener) -> F + Send + 'static,
    ) -> Outcome<Self> {
        let (sender, receiver) = std::sync::mpsc::channel();
        // Named for profilers.
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()?;
                runtime.block_on(async {
                    let listener = TcpListener::bind("127.0.0.1:0").await?;
                    let here = rustix::thread::gettid().as_raw_nonzero().get();
                    let _ = sender.send((listener.local_addr()?, here));
                    serve(listener).await
                })
            })?;
        let (address, thread) = receiver.recv()?;
        Ok(Self { address, thread })
    }

    /// Nanoseconds this server's thread has run.
    fn processor_time(&self) -> Outcome<u64> {
        let text = fs::read_to_string(format!("/proc/self/task/{}/schedstat", self.thread))?;
        Ok(text.split(' ').next().ok_or("no schedstat")?.parse()?)
    }
}

/// Users with a token and an organization with projects each: slug and token.
async fn callers(app: &App) -> Outcome<Vec<(String, String)>> {
    let mut callers = Vec::new();
    for n in 0..USERS {
        let owner = accounts::create(
            &app.db,
            &app.entropy,
            &format!("user{n}@example.com"),
            None,
            app.clock.now(),
            None,
        )
        .await?;
        let organization = organizations::create(
            &app.db,
            &app.entropy,
            "Bench",
            None,
            owner.id,
            app.clock.now(),
            None,
        )
        .await?;
        let slug = organization.slug().to_string();
        insert_projects(&app.db, &slug).await?;
        callers.push((slug, token(app, owner.id).await?));
    }
    // As autovacuum would have by the time there are many: without statistics the planner guesses.
    app.db.client().await?.batch_execute("analyze").await?;
    Ok(callers)
}

async fn token(app: &App, owner: UserId) -> Outcome<String> {
    let minted = tokens::mint_classic(&app.entropy);
    tokens::create(
        &app.db,
        owner,
        "bench",
        &minted,
        app.clock.now(),
        None,
        None,
    )
    .await?;
    Ok(minted.expose().to_owned())
}

/// Inserts rows of projects without clusters.
async fn insert_projects(db: &Db, slug: &str) -> Outcome<()> {
    let sql = "insert into projects (ref, organization_id, name, region, instance_size, engine, release_channel, node, desired, status, not_before, created_at, updated_at) \
               select translate(substr(md5(o.slug || n) || md5(n::text), 1, 20), '0123456789', 'ghijklmnop'), o.id, 'project ' || n, 'us-east-1', 'nano', '15.18', 'ga', \
               '00000000-0000-0000-0000-000000000000', 'active', 'ACTIVE_HEALTHY', now(), now(), now() \
               from organizations o, generate_series(1, $2) n where o.slug = $1";
    db.query(sql, &[&slug, &i32::try_from(PROJECTS)?]).await?;
    Ok(())
}

/// Sends a request and reads the whole answer, which must have one of the statuses.
async fn ask(
    connection: &mut TcpStream,
    request: &[u8],
    statuses: &[&str],
    answer: &mut Vec<u8>,
) -> Outcome<()> {
    answer.clear();
    connection.write_all(request).await?;
    loop {
        if connection.read_buf(answer).await? == 0 {
            return Err("the server closed the connection".into());
        }
        let Some(end) = answer.windows(4).position(|window| window == b"\r\n\r\n") else {
            continue;
        };
        let head = std::str::from_utf8(&answer[..end])?;
        if !head
            .get(9..12)
            .is_some_and(|status| statuses.contains(&status))
        {
            return Err(format!("not {statuses:?}: {head}").into());
        }
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "))
            .ok_or("no content-length")?
            .parse::<usize>()?;
        if answer.len() >= end + 4 + length {
            return Ok(());
        }
    }
}
