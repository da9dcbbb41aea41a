//! `cargo bench --bench request`: an authenticated `GET /v1/projects` through everything, against a bare axum handler
//! that returns the same bytes.
//!
//! Both servers run in this process and are asked in turns, over one kept-alive connection each, so that whatever else
//! the machine does falls on both. What is printed are medians over the rounds, and their ratio.

#![expect(clippy::print_stdout, reason = "a benchmark prints what it measured")]

use std::{
    error::Error,
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{Router, http::header, routing::get};
use gantry::{
    accounts,
    app::{App, Settings},
    clock::{Clock, Entropy},
    clusters::{Account, Control, Embedded, Engine, Home, Launcher, server::Host},
    db::Db,
    http::{Links, Transport},
    ids::UserId,
    limits::{Memory, Options},
    organizations, tokens,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// Callers, so that none reaches a limit within a round.
const USERS: usize = 50;
const PROJECTS: usize = 10;
/// Requests a round sends to each server: below the limit of each user.
const REQUESTS: usize = USERS * 100;
const ROUNDS: usize = 15;
/// The longest window of the operation.
const WINDOW: Duration = Duration::from_secs(61);

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(run())
}

async fn run() -> Outcome<()> {
    let dir = tempfile::tempdir_in("/tmp")?;
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o711))?;
    let home = Arc::new(Home::open(dir.path(), Account::for_servers()?)?);
    let launcher = Launcher { program: env!("CARGO_BIN_EXE_gantry").into(), ..Launcher::default() };
    let host = Host { engine: Engine::find(None)?, launcher };
    let control = Control::ensure(&home, &host, &Entropy::system()).await?;
    let outcome = compare(&control, home, host).await;
    control.stop().await?;
    outcome
}

async fn compare(control: &Control, home: Arc<Home>, host: Host) -> Outcome<()> {
    let (clock, entropy) = (Clock::manual(chrono::DateTime::UNIX_EPOCH), Entropy::system());
    let db = Db::new(control.config())?;
    db.migrate().await?;
    let settings = Settings {
        transport: Transport::default(),
        project_domain: "localhost".into(),
        links: Links::default(),
        node: uuid::Uuid::nil(),
        project_uid_base: 700_000,
        counting: Options::default(),
    };
    let (app, _background) =
        App::new(settings, clock.clone(), entropy.clone(), db.clone(), Embedded::open(home, host, entropy), Memory::default())?;
    let requests = callers(&app).await?;

    let whole = serve(app.router()).await?;
    let body = ask(&mut TcpStream::connect(whole).await?, &requests[0]).await?;
    let bytes = body.clone();
    let handler = move || async move { ([(header::CONTENT_TYPE, "application/json; charset=utf-8")], bytes) };
    let bare = serve(Router::new().route("/v1/projects", get(handler))).await?;

    let (mut whole, mut bare) = (TcpStream::connect(whole).await?, TcpStream::connect(bare).await?);
    let mut rounds = [Vec::new(), Vec::new()];
    for _ in 0..=ROUNDS {
        clock.advance(WINDOW);
        rounds[0].push(round(&mut whole, &requests).await?);
        rounds[1].push(round(&mut bare, &requests).await?);
    }
    // The first round fills caches and prepares statements.
    let [whole, bare] = rounds.map(|mut times| {
        times.remove(0);
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    });
    println!(
        "GET /v1/projects, {PROJECTS} projects, {} bytes, one connection; medians of {ROUNDS} interleaved rounds of {REQUESTS}",
        body.len()
    );
    println!("bare axum  {bare:7.1} µs a request");
    println!("gantry     {whole:7.1} µs a request");
    println!("ratio      {:7.2}", whole / bare);
    Ok(())
}

/// Users with a token and an organization with projects each: the request of each, as bytes.
async fn callers(app: &App) -> Outcome<Vec<Vec<u8>>> {
    let mut requests = Vec::new();
    for n in 0..USERS {
        let owner = accounts::create(&app.db, &app.entropy, &format!("user{n}@example.com"), None, app.clock.now()).await?;
        let organization = organizations::create(&app.db, &app.entropy, "Bench", None, owner.id, app.clock.now()).await?;
        insert_projects(&app.db, organization.slug().as_str()).await?;
        requests.push(request(app, owner.id).await?);
    }
    // As autovacuum would have by the time there are many: without statistics the planner guesses.
    app.db.client().await?.batch_execute("analyze").await?;
    Ok(requests)
}

async fn request(app: &App, owner: UserId) -> Outcome<Vec<u8>> {
    let minted = tokens::mint_classic(&app.entropy);
    tokens::create(&app.db, owner, "bench", &minted, app.clock.now(), None).await?;
    Ok(format!("GET /v1/projects HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {}\r\n\r\n", minted.expose()).into_bytes())
}

/// Rows only: no cluster is made for them.
async fn insert_projects(db: &Db, slug: &str) -> Outcome<()> {
    let sql = "insert into projects (ref, organization_id, name, region, instance_size, engine, release_channel, node, desired, status, not_before, created_at, updated_at) \
               select translate(substr(md5(o.slug || n) || md5(n::text), 1, 20), '0123456789', 'ghijklmnop'), o.id, 'project ' || n, 'us-east-1', 'nano', '15.18', 'ga', \
               '00000000-0000-0000-0000-000000000000', 'active', 'ACTIVE_HEALTHY', now(), now(), now() \
               from organizations o, generate_series(1, $2) n where o.slug = $1";
    db.query(sql, &[&slug, &i32::try_from(PROJECTS)?]).await?;
    Ok(())
}

async fn serve(router: Router) -> Outcome<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, router.into_make_service_with_connect_info::<SocketAddr>()).await });
    Ok(address)
}

/// Mean time of a request in one round, in microseconds.
#[expect(clippy::disallowed_methods, clippy::cast_precision_loss, reason = "a benchmark reads the real clock")]
async fn round(connection: &mut TcpStream, requests: &[Vec<u8>]) -> Outcome<f64> {
    let started = Instant::now();
    for n in 0..REQUESTS {
        ask(connection, &requests[n % requests.len()]).await?;
    }
    Ok(started.elapsed().as_secs_f64() * 1e6 / REQUESTS as f64)
}

/// Sends a request and reads the answer's body, which must be a 200.
async fn ask(connection: &mut TcpStream, request: &[u8]) -> Outcome<Vec<u8>> {
    connection.write_all(request).await?;
    let mut answer = Vec::with_capacity(8192);
    loop {
        if connection.read_buf(&mut answer).await? == 0 {
            return Err("the server closed the connection".into());
        }
        let Some(end) = answer.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let head = std::str::from_utf8(&answer[..end])?;
        if !head.starts_with("HTTP/1.1 200") {
            return Err(format!("not a 200: {head}").into());
        }
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).ok_or("no content-length")?.parse::<usize>()?;
        if answer.len() >= end + 4 + length {
            return Ok(answer.split_off(end + 4));
        }
    }
}
