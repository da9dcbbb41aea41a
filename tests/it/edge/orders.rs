//! Certificates for custom hostnames, of a real authority: pebble, on this machine.

use std::{fs, net::SocketAddr, path::PathBuf, process::Stdio, sync::Arc};

use gantry::{
    app::Settings,
    domains::hostnames::{
        Host,
        acme::Authority,
        check::Seen,
        dns::{Dns, Looking},
        keeper,
    },
    edge,
    http::Transport,
    listener,
};
use hickory_resolver::proto::rr::{RData, RecordType, rdata::A};
use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    net::TcpListener,
    process::{Child, Command},
    task::JoinSet,
    time::timeout,
};
use uuid::Uuid;

use super::{Client, Echo, connect, trusting};
use crate::{
    domains::dns::NameServer,
    support::{Node, TestApp, machine::PATIENCE, settings},
};

const HOST: &str = "api.customer.test";

/// What DNS says of every name.
#[derive(Debug, Default)]
struct Said(Mutex<Seen>);

impl Dns for Said {
    fn look<'a>(&'a self, _: &'a Host, _: &'a str) -> Looking<'a> {
        let seen = self.0.lock().clone();
        Box::pin(async { Ok(seen) })
    }
}

/// An application with an authority, and an edge that the authority finds.
struct Town {
    app: TestApp,
    node: Node,
    said: Arc<Said>,
    https: SocketAddr,
    /// The authority's root.
    roots: PathBuf,
    settings: Settings,
    _pebble: Child,
    _names: NameServer,
    _echo: Echo,
    _tasks: JoinSet<()>,
}

fn free() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Town {
    /// Where the authority looks by HTTP it finds the edge, unless `deaf`.
    async fn new(deaf: bool) -> Self {
        let (app, names, echo) = (TestApp::new().await, NameServer::start().await, Echo::start().await);
        names.remember(HOST, RecordType::A, RData::A(A::new(127, 0, 0, 1)));
        let bind = async || TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (https, http) = (bind().await, bind().await);
        let ports = (if deaf { free() } else { http.local_addr().unwrap().port() }, https.local_addr().unwrap());
        let dir = app.machine.dir().to_owned();
        let (pebble, directory, management) = pebble(&dir, ports.0, ports.1.port(), names.address).await;
        let said = Arc::new(Said::default());
        let authority = Authority { directory, root: Some(dir.join("pebble-ca.pem")), contact: None, issuer: Some("pebble.test".into()) };
        let upstreams = [format!("rest=http://{}", echo.address).parse().unwrap()].into_iter().collect();
        let settings =
            Settings { upstreams, dns: said.clone(), authority: Some(authority), ..settings(Transport::default(), Uuid::from_u128(7)) };
        let node = app.another_with(settings.clone(), app.machine.clone());
        let mut tasks = edge::listen(&node.app, vec![https], vec![http], None).unwrap();
        // It hears what other nodes write, and says so.
        tasks.spawn(listener::run(node.app.clone()));
        let roots = dir.join("pebble-root.pem");
        let fetched = Command::new("curl").args(["-ksSf", "-o"]).arg(&roots).arg(format!("{management}/roots/0")).status().await.unwrap();
        assert!(fetched.success());
        Self { app, node, said, https: ports.1, roots, settings, _pebble: pebble, _names: names, _echo: echo, _tasks: tasks }
    }

    async fn ask(&self, what: &str) -> Value {
        let path = self.app.at(&format!("/custom-hostname{what}"));
        match what {
            "" => self.node.get(&path).as_(&self.app.owner).send().await.expect(200).json(),
            "/initialize" => {
                let call = self.node.post(&path).as_(&self.app.owner);
                call.json(&json!({ "custom_hostname": HOST })).send().await.expect(201).json()
            }
            _ => self.node.post(&path).as_(&self.app.owner).send().await.expect(201).json(),
        }
    }

    /// Asks for the hostname, and proves it.
    async fn prove(&self) {
        let told = self.ask("/initialize").await;
        let result = &told["data"]["result"];
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let seen = Seen {
            alias: Some(text(&result["custom_origin_server"])),
            texts: vec![text(&result["ownership_verification"]["value"])],
            ..Seen::default()
        };
        *self.said.0.lock() = seen;
        assert_eq!(self.ask("/reverify").await["status"], "3_challenge_verified");
    }

    /// Lets the keeper work until the hostname is at this step. What an authority refuses at random is tried again.
    async fn until(&self, node: &Node, step: &str) -> Value {
        for _ in 0..10 {
            keeper::pass(&node.app).await.unwrap();
            self.node.app.believe(true);
            let told = self.ask("").await;
            if told["status"] == step {
                return told;
            }
            self.app.advance(5 * 60);
        }
        panic!("not {step}: {}", self.ask("").await);
    }

    async fn count(&self, table: &str) -> i64 {
        let sql: &'static str = match table {
            "acme_begun" => "select count(*) from acme_begun",
            "acme_orders" => "select count(*) from acme_orders",
            other => panic!("{other}"),
        };
        self.app.app.db.query(sql, &[]).await.unwrap()[0].get(0)
    }
}

/// Starts pebble, with a certificate of its own authority. Returns its directory and where it is managed.
async fn pebble(dir: &std::path::Path, http: u16, tls: u16, names: SocketAddr) -> (Child, String, String) {
    let ca_key = KeyPair::generate().unwrap();
    let mut ca = CertificateParams::default();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    fs::write(dir.join("pebble-ca.pem"), ca.self_signed(&ca_key).unwrap().pem()).unwrap();
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(vec!["localhost".to_owned()]).unwrap().signed_by(&key, &Issuer::new(ca, ca_key)).unwrap();
    fs::write(dir.join("pebble.pem"), leaf.pem()).unwrap();
    fs::write(dir.join("pebble-key.pem"), key.serialize_pem()).unwrap();
    let (port, management) = (free(), free());
    let config = json!({"pebble": {
        "listenAddress": format!("127.0.0.1:{port}"), "managementListenAddress": format!("127.0.0.1:{management}"),
        "certificate": dir.join("pebble.pem"), "privateKey": dir.join("pebble-key.pem"), "httpPort": http, "tlsPort": tls,
        "ocspResponderURL": "", "externalAccountBindingRequired": false,
    }});
    fs::write(dir.join("pebble.json"), config.to_string()).unwrap();
    let mut command = Command::new("pebble");
    command.arg("-config").arg(dir.join("pebble.json")).args(["-dnsserver", &names.to_string()]);
    command.env("PEBBLE_VA_NOSLEEP", "1").env("PEBBLE_AUTHZREUSE", "0").stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().expect("pebble is installed by bin/test");
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let ready = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            if line.contains("ACME directory available") {
                return;
            }
        }
        panic!("pebble ended");
    };
    timeout(PATIENCE, ready).await.unwrap();
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    (child, format!("https://localhost:{port}/dir"), format!("https://localhost:{management}"))
}

#[tokio::test]
async fn a_proven_hostname_gets_a_certificate_and_is_served_when_it_is_activated() {
    let town = Town::new(false).await;
    town.prove().await;
    let told = town.until(&town.node, "4_origin_setup_completed").await;
    assert_eq!((&told["data"]["result"]["ssl"]["status"], &told["data"]["result"]["status"]), (&json!("active"), &json!("active")));
    assert_eq!(town.count("acme_orders").await, 0, "it is over");
    let rows = town.app.app.db.query("select sealed_key from hostname_certificates", &[]).await.unwrap();
    assert!(!String::from_utf8_lossy(rows[0].get(0)).contains("PRIVATE KEY"));
    let request = format!("GET /rest/v1/ HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
    let mut client = Client(connect(town.https, HOST, trusting(&town.roots)).await.unwrap());
    client.send(&request).await;
    assert_eq!(client.answer().await.status, 404, "not before it is activated");
    town.ask("/activate").await;
    client.send(&request).await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.saw("x-project-ref")), (200, Some(town.app.home.project.to_string())));

    // Renewed in time, without a word from anybody.
    let before = client.0.get_ref().1.peer_certificates().unwrap()[0].clone();
    let sql = "update hostname_certificates set renew_at = $1";
    town.app.app.db.query(sql, &[&town.app.clock.now()]).await.unwrap();
    town.app.advance(24 * 3600);
    for _ in 0..10 {
        keeper::pass(&town.node.app).await.unwrap();
        town.app.advance(2 * 3600);
    }
    let renewed = connect(town.https, HOST, trusting(&town.roots)).await.unwrap();
    assert_ne!(renewed.get_ref().1.peer_certificates().unwrap()[0], before);
    client.send(&request).await;
    assert_eq!(client.answer().await.status, 200, "the older connection goes on");

    town.node.delete(&town.app.at("/custom-hostname")).as_(&town.app.owner).send().await.expect(200);
    client.send(&request).await;
    assert_eq!(client.answer().await.status, 404);
    assert!(connect(town.https, HOST, trusting(&town.roots)).await.is_err());
}

#[tokio::test]
async fn what_the_authority_does_not_find_is_told_and_tried_by_tls() {
    let town = Town::new(true).await;
    town.prove().await;
    let told = town.until(&town.node, "2_initiated").await;
    let ssl = &told["data"]["result"]["ssl"];
    assert_eq!(ssl["status"], "validation_timed_out");
    assert!(ssl["validation_errors"][0]["message"].as_str().unwrap().contains("refused"), "{ssl}");
    assert_eq!(ssl["validation_records"].as_array().unwrap().len(), 1);
    let told = town.until(&town.node, "4_origin_setup_completed").await;
    assert!(told["data"]["result"]["ssl"]["validation_errors"].is_null());
    connect(town.https, HOST, trusting(&town.roots)).await.unwrap();
}

#[tokio::test]
async fn an_order_that_was_cut_off_is_finished_by_another_node() {
    let town = Town::new(false).await;
    town.prove().await;
    let working = town.node.app.clone();
    let worker = tokio::spawn(async move { keeper::pass(&working).await });
    let begun = async {
        while town.count("acme_orders").await == 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, begun).await.unwrap();
    worker.abort();
    let _ = worker.await;
    let other = town.app.another_with(town.settings.clone(), town.app.machine.clone());
    town.until(&other, "4_origin_setup_completed").await;
    assert_eq!(town.count("acme_begun").await, 1, "the order goes on, instead of another one");
}
