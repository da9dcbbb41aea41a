//! Platform webhooks through `kill -9` of the server: an event in flight is delivered again.

use std::{
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

/// A receiver that can be silent: then it reads a request and does not answer.
#[derive(Clone)]
struct Receiver {
    address: SocketAddr,
    /// Ids of the events of all requests.
    events: Arc<Mutex<Vec<String>>>,
    silent: Arc<AtomicBool>,
}

impl Receiver {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let receiver = Self {
            address: listener.local_addr().unwrap(),
            events: Arc::default(),
            silent: Arc::new(AtomicBool::new(true)),
        };
        let serving = receiver.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let receiver = serving.clone();
                // A connection that breaks off is part of the test.
                thread::spawn(move || receiver.serve(&stream.unwrap()));
            }
        });
        receiver
    }

    fn serve(&self, mut stream: &TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 || line == "\r\n" {
                break;
            }
            if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let event: Value = serde_json::from_slice(&body).unwrap();
        let id = event["id"].as_str().unwrap().to_owned();
        let silent = self.silent.load(Ordering::SeqCst);
        self.events.lock().push(id);
        if silent {
            // Until the client is killed.
            reader.read_line(&mut String::new())?;
            return Ok(());
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
    }
}

fn start(machine: &Machine) -> Gantry {
    machine.dev(&["--log-drain-networks", "127.0.0.0/8"])
}

#[test]
fn webhook_in_flight_is_sent_again_after_a_kill_of_the_server() {
    let machine = Machine::new();
    let receiver = Receiver::start();
    let gantry = start(&machine);
    let base = format!("/v2/organizations/{}/webhooks", gantry.organization);
    let body = json!({"data": {"type": "endpoint", "attributes": {
        "url": format!("http://localhost:{}/", receiver.address.port()),
        "event_types": [{"type": "*"}], "signing_secret": "correct signing horse",
    }}});
    let created = gantry.send("POST", &format!("{base}/endpoints"), Some(&body));
    let endpoint = created.expect(201)["data"]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let test = format!("{base}/endpoints/{endpoint}/test");
    let accepted = gantry.send("POST", &test, None).expect(201);
    let delivery = accepted["data"]["id"].as_str().unwrap().to_owned();
    until("a request", || {
        (receiver.events.lock().len() == 1).then_some(())
    });
    gantry.kill();
    receiver.silent.store(false, Ordering::SeqCst);

    // The claim of the killed process ends after a minute.
    let gantry = start(&machine);
    let path = format!("{base}/deliveries/{delivery}");
    let status = || gantry.get(&path).expect(200)["data"]["attributes"]["status"].clone();
    assert_eq!(status(), "pending");
    until("a second request", || {
        (receiver.events.lock().len() == 2).then_some(())
    });
    until("a recorded result", || {
        (status() == "success").then_some(())
    });
    let events = receiver.events.lock();
    assert_eq!(events[0], events[1]);
}
