//! Log drains through `kill -9` of the server and outages of the target: every acknowledged line
//! arrives at least once.

use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::machine::{Gantry, Machine, until};

/// Lines of one request.
const BATCH: usize = 20;
/// Kills of the server.
const ROUNDS: usize = 4;

/// A webhook that can be down: then it reads a request and closes the connection.
#[derive(Clone)]
struct Hook {
    address: SocketAddr,
    received: Arc<Mutex<BTreeSet<String>>>,
    down: Arc<AtomicBool>,
    interrupted: Arc<AtomicBool>,
}

impl Hook {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let hook = Self {
            address: listener.local_addr().unwrap(),
            received: Arc::default(),
            down: Arc::default(),
            interrupted: Arc::default(),
        };
        let serving = hook.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let hook = serving.clone();
                // A connection that breaks off is part of the test.
                thread::spawn(move || hook.serve(&stream.unwrap()));
            }
        });
        hook
    }

    fn serve(&self, mut stream: &TcpStream) -> std::io::Result<()> {
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
            if self.down.load(Ordering::SeqCst) {
                self.interrupted.store(true, Ordering::SeqCst);
                return Ok(());
            }
            let lines: Value = serde_json::from_slice(&body).unwrap();
            let messages = lines.as_array().unwrap().iter();
            let messages = messages.map(|line| line["event_message"].as_str().unwrap().to_owned());
            self.received.lock().extend(messages);
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
        }
    }

    fn count(&self) -> usize {
        self.received.lock().len()
    }
}

fn start(machine: &Machine) -> Gantry {
    machine.dev(&["--outbound-networks", "127.0.0.0/8"])
}

/// Adds lines. Returns whether they were acknowledged.
fn append(gantry: &Gantry, key: &str, messages: &[String]) -> bool {
    let lines: Vec<_> = messages
        .iter()
        .map(|message| json!({ "event_message": message }))
        .collect();
    let body = Value::from(lines).to_string();
    let send = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(gantry.address)?;
        write!(
            stream,
            "POST /api/logs?source_name=auth_logs HTTP/1.1\r\nhost: a\r\nx-api-key: {key}\r\n\
             content-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    };
    send().is_ok_and(|text| text.starts_with("HTTP/1.1 200"))
}

#[test]
fn log_drain_delivers_every_acknowledged_line_through_kills_of_both_sides() {
    let machine = Machine::new();
    let hook = Hook::start();
    let mut gantry = start(&machine);
    let project = gantry.create("drained");
    let path = format!("/v1/projects/{project}/analytics/ingest-keys");
    let created = gantry.send("POST", &path, Some(&json!({ "name": "k" })));
    let key = created.expect(201)["key"].as_str().unwrap().to_owned();
    let drain = json!({ "data": { "type": "log_drain", "attributes": {
        "name": "hook", "backend_type": "webhook",
        "config": { "url": format!("http://{}/", hook.address) },
    } } });
    let path = format!("/v2/projects/{project}/analytics/log-drains");
    gantry.send("POST", &path, Some(&drain)).expect(201);

    let mut acknowledged = Vec::new();
    let mut number = 0;
    for round in 0..ROUNDS {
        let mut add = |gantry: &Gantry, batches: usize| {
            for _ in 0..batches {
                let messages: Vec<_> = (number..number + BATCH)
                    .map(|n| format!("line-{n:06}"))
                    .collect();
                number += BATCH;
                if append(gantry, &key, &messages) {
                    acknowledged.extend(messages);
                }
            }
        };
        let before = hook.count();
        add(&gantry, 30);
        if round % 2 == 0 {
            // Killed while a delivery is under way.
            until("a delivery", || (hook.count() > before).then_some(()));
            add(&gantry, 30);
        } else {
            // The target goes down in a delivery, and the server is killed meanwhile.
            hook.down.store(true, Ordering::SeqCst);
            hook.interrupted.store(false, Ordering::SeqCst);
            add(&gantry, 30);
            until("an interrupted delivery", || {
                hook.interrupted.load(Ordering::SeqCst).then_some(())
            });
        }
        gantry.kill();
        hook.down.store(false, Ordering::SeqCst);
        gantry = start(&machine);
    }
    assert!(acknowledged.len() >= ROUNDS * 60 * BATCH / 2);
    until("every acknowledged line", || {
        let received = hook.received.lock();
        acknowledged
            .iter()
            .all(|line| received.contains(line))
            .then_some(())
    });
    let path = format!("/v1/projects/{project}/analytics/log-drains/health");
    until("a drain without a lag", || {
        let health = gantry.get(&path).expect(200)[0].clone();
        (health["state"] == "healthy" && health["lag"] == 0 && health["dropped"] == 0).then_some(())
    });
}
