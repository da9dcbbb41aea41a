//! `cargo bench --profile requests --bench deliveries`: calls of databases and deliveries of events
//! beside receivers that are slow or do not answer, by a real `gantry dev`.
//!
//! Two ratios of p95 in one run, in interleaved rounds: the calls of a project alone, and beside
//! 10,000 queued calls of another project to a slow receiver; and the delivery of an event alone,
//! and beside 1,000 endpoints of other organizations that accept connections and never answer.
//! `GANTRY_BENCH_CALLS`, `GANTRY_BENCH_ENDPOINTS` and `GANTRY_BENCH_SAMPLES` change the numbers.

#![expect(clippy::print_stdout, reason = "a benchmark prints what it measured")]
#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

#[expect(dead_code, reason = "other benchmarks use the rest")]
mod dev;

use std::{
    env,
    net::SocketAddr,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use dev::{Dev, Outcome};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinSet,
    time::{interval_at, timeout},
};

/// Rounds alone and beside the load.
const ROUNDS: usize = 3;
/// Time in which the slow receiver answers.
const SLOW: Duration = Duration::from_secs(1);
/// Longest time of a sample.
const PATIENCE: Duration = Duration::from_mins(1);
/// Endpoints of one organization.
const ENDPOINTS_OF_ORGANIZATION: usize = 20;
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

fn main() -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(run())
}

fn number(name: &str, default: usize) -> usize {
    let value = env::var(name).ok();
    value.and_then(|text| text.parse().ok()).unwrap_or(default)
}

async fn run() -> Outcome<()> {
    let place = tempfile::tempdir_in("/tmp")?;
    let quick = TcpListener::bind("127.0.0.1:0").await?;
    let slow = TcpListener::bind("127.0.0.1:0").await?;
    let silent = TcpListener::bind("127.0.0.1:0").await?;
    let ports = [&quick, &slow].map(|listener| listener.local_addr().map(|it| it.port()));
    let [quick_port, slow_port] = ports;
    let ports = format!("{},{}", quick_port?, slow_port?);
    let arguments = [
        "--outbound-networks",
        "127.0.0.0/8",
        "--functions-egress-ports",
        &ports,
    ];
    let gantry = Dev::start(place.path(), &arguments)?;
    let mut receivers = Receivers::start(quick, slow, silent)?;
    raise_limits(place.path())?;
    calls(&gantry, &mut receivers).await?;
    deliveries(&gantry, &mut receivers).await
}

/// Receivers on this machine, stopped when dropped.
struct Receivers {
    quick: SocketAddr,
    slow: SocketAddr,
    silent: SocketAddr,
    /// The times of requests to the quick receiver.
    received: mpsc::Receiver<Instant>,
    _tasks: JoinSet<()>,
}

/// The answer of a receiver to each request.
#[derive(Clone)]
enum Behaviour {
    Quick(mpsc::Sender<Instant>),
    Slow,
    Silent,
}

impl Receivers {
    fn start(quick: TcpListener, slow: TcpListener, silent: TcpListener) -> Outcome<Self> {
        let (sender, received) = mpsc::channel(1024);
        let addresses = [&quick, &slow, &silent].map(TcpListener::local_addr);
        let [quick_address, slow_address, silent_address] = addresses;
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(quick, Behaviour::Quick(sender)));
        tasks.spawn(serve(slow, Behaviour::Slow));
        tasks.spawn(serve(silent, Behaviour::Silent));
        Ok(Self {
            quick: quick_address?,
            slow: slow_address?,
            silent: silent_address?,
            received,
            _tasks: tasks,
        })
    }
}

async fn serve(listener: TcpListener, behaviour: Behaviour) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.spawn(answer_all(stream, behaviour.clone()));
        while connections.try_join_next().is_some() {}
    }
}

async fn answer_all(mut stream: TcpStream, behaviour: Behaviour) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(1..) = stream.read(&mut buffer).await {
        match &behaviour {
            Behaviour::Quick(received) => {
                let _ = received.try_send(Instant::now());
            }
            Behaviour::Slow => pause(SLOW).await,
            Behaviour::Silent => continue,
        }
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        if stream.write_all(answer).await.is_err() {
            break;
        }
    }
}

async fn pause(time: Duration) {
    let mut due = interval_at(tokio::time::Instant::now() + time, time);
    due.tick().await;
}

/// Raises the limits of operations of which the benchmark needs many.
fn raise_limits(home: &Path) -> Outcome<()> {
    for operation in [
        "v1-create-an-organization",
        "v1-run-a-query",
        "v2-organizations-slug-webhooks-endpoints-post",
        "v2-organizations-slug-webhooks-endpoints-id-test-post",
    ] {
        let status = Command::new(env!("CARGO_BIN_EXE_gantry"))
            .args([
                "limits",
                "set",
                "--requests",
                "1000000",
                "--operation",
                operation,
            ])
            .arg("--data-dir")
            .arg(home)
            .output()?;
        if !status.status.success() {
            return Err(String::from_utf8_lossy(&status.stderr).into_owned().into());
        }
    }
    Ok(())
}

/// Runs SQL in a project, and returns the body of the response.
fn sql(gantry: &Dev, project: &str, sql: &str) -> Outcome<String> {
    let body = format!(r#"{{"query": "{sql}"}}"#);
    let path = format!("/v1/projects/{project}/database/query");
    let answer = gantry.send("POST", &path, &body)?;
    if !answer.starts_with("HTTP/1.1 201") {
        return Err(answer.into());
    }
    Ok(answer)
}

async fn calls(gantry: &Dev, receivers: &mut Receivers) -> Outcome<()> {
    let (quiet, busy) = (
        gantry.project_named("quiet")?,
        gantry.project_named("busy")?,
    );
    for project in [&quiet, &busy] {
        let began = Instant::now();
        // The server may not be ready yet.
        while let Err(error) = sql(gantry, project, "create extension if not exists pg_net") {
            if began.elapsed() > PATIENCE {
                return Err(error);
            }
            pause(Duration::from_millis(100)).await;
        }
    }
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        call_times(gantry, &quiet, receivers, &mut alone).await?;
        let count = number("GANTRY_BENCH_CALLS", 10_000);
        let slow = receivers.slow;
        let queue = format!(
            "select count(net.http_get('http://{slow}/', timeout_milliseconds := 5000)) \
             from generate_series(1, {count})"
        );
        sql(gantry, &busy, &queue)?;
        call_times(gantry, &quiet, receivers, &mut beside).await?;
        let left = sql(gantry, &busy, "select count(*) from net.http_request_queue")?;
        if left.contains(r#""count":0"#) {
            return Err("the queue was empty before the measurement ended".into());
        }
        sql(gantry, &busy, "truncate net.http_request_queue")?;
    }
    print(
        "calls beside queued calls of another project",
        alone,
        beside,
    );
    Ok(())
}

/// Measures the time from the commit of a call to its arrival.
async fn call_times(
    gantry: &Dev,
    project: &str,
    receivers: &mut Receivers,
    times: &mut Vec<Duration>,
) -> Outcome<()> {
    let call = format!("select net.http_get('http://{}/')", receivers.quick);
    for _ in 0..number("GANTRY_BENCH_SAMPLES", 40) {
        let began = Instant::now();
        sql(gantry, project, &call)?;
        times.push(arrival(receivers, began).await?);
    }
    Ok(())
}

async fn arrival(receivers: &mut Receivers, began: Instant) -> Outcome<Duration> {
    let arrived = timeout(PATIENCE, receivers.received.recv()).await;
    let arrived = arrived.map_err(|_| "nothing arrived within a minute")?;
    Ok(arrived
        .ok_or("the receiver ended")?
        .saturating_duration_since(began))
}

async fn deliveries(gantry: &Dev, receivers: &mut Receivers) -> Outcome<()> {
    let own = endpoint(gantry, &gantry.organization, receivers.quick)?;
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        delivery_times(gantry, &own, receivers, &mut alone).await?;
    }
    let organizations = number("GANTRY_BENCH_ENDPOINTS", 1000) / ENDPOINTS_OF_ORGANIZATION;
    for number in 0..organizations {
        let body = format!(r#"{{"name": "dead {number}"}}"#);
        let answer = gantry.send("POST", "/v1/organizations", &body)?;
        let (_, rest) = answer
            .split_once(r#""slug":""#)
            .ok_or_else(|| answer.clone())?;
        let slug = rest.split('"').next().unwrap_or_default();
        for _ in 0..ENDPOINTS_OF_ORGANIZATION {
            // The attempt waits for 20 seconds.
            let dead = endpoint(gantry, slug, receivers.silent)?;
            send_event(gantry, &dead)?;
        }
    }
    for _ in 0..ROUNDS {
        delivery_times(gantry, &own, receivers, &mut beside).await?;
    }
    print(
        "deliveries beside endpoints that do not answer",
        alone,
        beside,
    );
    Ok(())
}

/// Creates an endpoint for all events, and returns its path.
fn endpoint(gantry: &Dev, organization: &str, receiver: SocketAddr) -> Outcome<String> {
    let path = format!("/v2/organizations/{organization}/webhooks/endpoints");
    let body = format!(
        r#"{{"data": {{"type": "endpoint", "attributes": {{"url": "http://{receiver}/", "enabled": true,
        "signing_secret": "{SECRET}", "event_types": [{{"type": "*"}}]}}}}}}"#
    );
    let answer = gantry.send("POST", &path, &body)?;
    let (_, rest) = answer
        .split_once(r#""id":""#)
        .ok_or_else(|| answer.clone())?;
    let id = rest.split('"').next().unwrap_or_default();
    Ok(format!("{path}/{id}"))
}

/// Sends a test event to an endpoint.
fn send_event(gantry: &Dev, endpoint: &str) -> Outcome<()> {
    let body = r#"{"data": {"type": "event", "attributes": {"type": "v1.project.paused"}}}"#;
    let answer = gantry.send("POST", &format!("{endpoint}/test"), body)?;
    if answer.starts_with("HTTP/1.1 2") {
        return Ok(());
    }
    Err(answer.into())
}

/// Measures the time from the request that causes an event to its arrival.
async fn delivery_times(
    gantry: &Dev,
    endpoint: &str,
    receivers: &mut Receivers,
    times: &mut Vec<Duration>,
) -> Outcome<()> {
    for _ in 0..number("GANTRY_BENCH_SAMPLES", 40) {
        let began = Instant::now();
        send_event(gantry, endpoint)?;
        times.push(arrival(receivers, began).await?);
    }
    Ok(())
}

fn print(name: &str, alone: Vec<Duration>, beside: Vec<Duration>) {
    let [alone, beside] = [alone, beside].map(|times| p95(times).as_secs_f64() * 1000.0);
    println!(
        "{name}, p95: alone {alone:.2} ms, beside {beside:.2} ms, ratio {:.2}",
        beside / alone
    );
}

fn p95(mut times: Vec<Duration>) -> Duration {
    times.sort();
    let index = times.len() * 95 / 100;
    times.get(index).copied().unwrap_or_default()
}
