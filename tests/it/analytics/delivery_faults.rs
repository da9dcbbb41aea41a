//! Deliveries of log drains through faults: several processes, long outages, a target that is
//! killed, and TLS.

use std::{
    collections::BTreeSet,
    fs::OpenOptions,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, Command, Stdio},
    sync::Arc,
};

use chrono::TimeDelta;
use gantry::{
    api::{log_drains, logs},
    platform::http::Transport,
};
use rustls::{ServerConfig, pki_types::PrivateKeyDer};
use serde_json::{Value, json};
use tokio::{io::AsyncReadExt as _, net::TcpListener, task::JoinSet, time::timeout};
use tokio_rustls::TlsAcceptor;
use uuid::Uuid;

use super::{
    deliveries::{append_on, create_on, health_on as health, messages, numbered, texts},
    ingest,
};
use crate::support::{Node, TestApp, collector::Collector, dawn, machine::PATIENCE, settings};

fn delivers(node: &Node) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    tasks.spawn(log_drains::run(node.app.context.clone()));
    tasks
}

#[tokio::test]
async fn processes_deliver_their_own_lines_once_and_those_of_an_ended_process() {
    let app = TestApp::new().await;
    let (key, _) = ingest::key(&app, "tests").await;
    let collector = Collector::start().await;
    let other = app.another(1, app.machine.clone());
    let (mut one_delivers, _other_delivers) = (delivers(&app), delivers(&other));
    let config = json!({ "url": collector.url("/") });
    create_on(&app, &app, "webhook", config).await;
    // Both processes have a store and know the drain before the first line.
    append_on(&app, &key, &["first of one"]).await;
    append_on(&other, &key, &["first of other"]).await;
    other.app.drains.wake();
    collector
        .until(|requests| messages(requests).len() == 2)
        .await;
    let sent = numbered(0..400);
    for (at, line) in sent.iter().enumerate() {
        let node = if at % 2 == 0 { &app.node } else { &other };
        append_on(node, &key, &[line]).await;
    }
    let collected = collector
        .until(|requests| messages(requests).len() >= 402)
        .await;
    let delivered: BTreeSet<_> = messages(&collected).into_iter().collect();
    assert!(sent.iter().all(|line| delivered.contains(line)));
    assert_eq!(messages(&collected).len(), 402, "each line by one process");

    // Both have saved their positions.
    health(&app, &app, |health| health["delivered"] == 402).await;
    // The first process ends with undelivered lines. The next one under its name delivers them.
    one_delivers.shutdown().await;
    append_on(&app, &key, &["left behind"]).await;
    app.app.analytics.close().await;
    let next = app.another(1, app.machine.clone());
    let _next_delivers = delivers(&next);
    append_on(&next, &key, &["of the next"]).await;
    next.app.drains.wake();
    let collected = collector
        .until(|requests| messages(requests).len() >= 404)
        .await;
    let delivered: BTreeSet<_> = messages(&collected).into_iter().collect();
    assert!(delivered.contains("left behind") && delivered.contains("of the next"));
    assert_eq!(messages(&collected).len(), 404);
}

#[tokio::test]
async fn lines_beyond_the_backlog_are_dropped_and_counted() {
    const LINES: u64 = 1_000;
    let app = TestApp::new().await;
    let mut options = settings(Transport::default(), Uuid::from_u128(2));
    options.logs = logs::Options {
        drain_backlog_bytes: 20_000,
        ..logs::Options::default()
    };
    let node = app.another_with(options, app.machine.clone());
    let (key, _) = ingest::key(&app, "tests").await;
    let collector = Collector::start().await;
    collector.away(true);
    let _delivers = delivers(&node);
    create_on(&node, &app, "webhook", json!({ "url": collector.url("/") })).await;
    append_on(&node, &key, &["first"]).await;
    collector.until_rejected(1).await;
    let sent = numbered(1..1_000);
    for (turn, lines) in sent.chunks(50).enumerate() {
        append_on(&node, &key, &texts(lines)).await;
        // The lines become files, and are spooled for the drain.
        for seconds in [0, 61] {
            let turn = i64::try_from(turn).unwrap();
            let now = dawn() + TimeDelta::seconds(200 * turn + seconds);
            node.app.analytics.upkeep(now).await;
        }
    }
    collector.away(false);
    let all = |health: &Value| {
        let number = |name: &str| health[name].as_u64().unwrap_or_default();
        number("delivered") + number("dropped") == LINES
    };
    let health = health(&node, &app, all).await;
    let dropped = health["dropped"].as_u64().unwrap();
    assert!((1..LINES).contains(&dropped), "{health}");
    let delivered: BTreeSet<_> = messages(&collector.collected()).into_iter().collect();
    assert_eq!(delivered.len() as u64 + dropped, LINES);
    assert!(delivered.contains(sent.last().unwrap()), "the newest stay");
    let metrics = node.app.metrics.render();
    let counted =
        format!(r#"gantry_log_drain_lines_total{{type="webhook",outcome="dropped"}} {dropped}"#);
    assert!(metrics.contains(&counted), "{metrics}");
}

/// The address of the target process, and the file to which it adds received messages.
const TARGET_ADDRESS: &str = "GANTRY_TEST_TARGET_ADDRESS";
const TARGET_FILE: &str = "GANTRY_TEST_TARGET_FILE";

/// The target of the test below, in a process of its own: adds the messages of each request to a
/// file before it answers. Without the address, it does nothing.
#[test]
fn target_process() {
    let Ok(address) = std::env::var(TARGET_ADDRESS) else {
        return;
    };
    let file = std::env::var(TARGET_FILE).unwrap();
    let listener = std::net::TcpListener::bind(address).unwrap();
    for stream in listener.incoming() {
        let file = file.clone();
        // A connection that breaks off is part of the test.
        std::thread::spawn(move || receive(&stream.unwrap(), &file));
    }
}

fn receive(mut stream: &TcpStream, file: &str) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let lines: Value = serde_json::from_slice(&body).unwrap();
        let mut text = String::new();
        for line in lines.as_array().unwrap() {
            text.push_str(line["event_message"].as_str().unwrap());
            text.push('\n');
        }
        let mut received = OpenOptions::new().append(true).create(true).open(file)?;
        received.write_all(text.as_bytes())?;
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
    }
}

fn start_target(address: &str, file: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "analytics::delivery_faults::target_process"])
        .env(TARGET_ADDRESS, address)
        .env(TARGET_FILE, file)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_target_receives_every_acknowledged_line_at_least_once() {
    const ROUNDS: usize = 3;
    let app = TestApp::new().await;
    let (key, _) = ingest::key(&app, "tests").await;
    let _delivers = delivers(&app);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("received");
    let file_name = file.to_str().unwrap();
    let received = || std::fs::read_to_string(&file).unwrap_or_default();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    create_on(
        &app,
        &app,
        "webhook",
        json!({ "url": format!("http://{address}/") }),
    )
    .await;
    let mut target = start_target(&address, file_name);
    let mut sent = Vec::new();
    for round in 0..ROUNDS {
        let before = received().lines().count();
        for batch in 0..20 {
            let first = round * 1_000 + batch * 50;
            let lines = numbered(first..first + 50);
            append_on(&app, &key, &texts(&lines)).await;
            sent.extend(lines);
        }
        // Killed while deliveries are under way.
        let begun = async {
            while received().lines().count() == before {
                tokio::task::yield_now().await;
            }
        };
        timeout(PATIENCE, begun).await.unwrap();
        target.kill().unwrap();
        target.wait().unwrap();
        let lines = numbered(round * 1_000 + 990..round * 1_000 + 991);
        append_on(&app, &key, &texts(&lines)).await;
        target = start_target(&address, file_name);
    }
    health(&app, &app, |health| {
        health["lag"] == 0 && health["state"] == "healthy"
    })
    .await;
    target.kill().unwrap();
    target.wait().unwrap();
    let text = received();
    let found: BTreeSet<&str> = text.lines().collect();
    let lost: Vec<_> = (sent.iter())
        .filter(|line| !found.contains(line.as_str()))
        .collect();
    assert!(lost.is_empty(), "{lost:?}");
}

/// Returns a server for a self-signed certificate of 127.0.0.1, and the certificate.
fn tls_server() -> (TlsAcceptor, String) {
    let certified = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(certified.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key)
        .unwrap();
    (TlsAcceptor::from(Arc::new(config)), certified.cert.pem())
}

#[tokio::test]
async fn syslog_drain_sends_over_tls_to_a_trusted_certificate_only() {
    let app = TestApp::new().await;
    let (key, _) = ingest::key(&app, "tests").await;
    let _delivers = delivers(&app);
    let (acceptor, certificate) = tls_server();
    let (_, other_certificate) = tls_server();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (received, mut batches) = tokio::sync::mpsc::unbounded_channel();
    let mut server = JoinSet::new();
    server.spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            // A client that does not trust the certificate breaks off.
            let Ok(mut stream) = acceptor.accept(stream).await else {
                continue;
            };
            let mut text = String::new();
            if stream.read_to_string(&mut text).await.is_ok() && !text.is_empty() {
                received.send(text).unwrap();
            }
        }
    });
    let config =
        |certificate: &str| json!({ "host": "127.0.0.1", "port": port, "ca_cert": certificate });
    let id = create_on(&app, &app, "syslog", config(&other_certificate)).await;
    append_on(&app, &key, &["one"]).await;
    let failing = health(&app, &app, |health| health["state"] == "failing").await;
    let error = failing["error"].as_str().unwrap();
    assert!(error.contains("certificate"), "{error}");
    assert!(batches.try_recv().is_err());
    let change = json!({ "backend_type": "syslog", "config": config(&certificate) });
    app.request("PUT", &format!("{}/{id}", super::drains::drains(&app)))
        .as_(&app.administrator)
        .json(&super::drains::body(&change))
        .send()
        .await
        .expect(200);
    app.app.drains.wake();
    let batch = timeout(PATIENCE, batches.recv()).await.unwrap().unwrap();
    let (count, message) = batch.split_once(' ').unwrap();
    assert_eq!(count.parse::<usize>().unwrap(), message.len());
    let head = format!(
        "<131>1 2026-11-21T09:15:03.000000Z {} auth_logs - - - ",
        app.home.project
    );
    let line: Value = serde_json::from_str(message.strip_prefix(&head).unwrap()).unwrap();
    assert_eq!(line["event_message"], "one");
    health(&app, &app, |health| health["delivered"] == 1).await;
}
