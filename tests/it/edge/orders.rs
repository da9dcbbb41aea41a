//! Certificates of custom hostnames, issued by a local Pebble server.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
};

use chrono::TimeDelta;
use gantry::{
    app::Settings,
    control::{
        domains::hostnames::{
            Host,
            dns::{Dns, DnsFuture, DnsResolver, Propagation},
            hostname_reconciler,
            required_records::DnsRecords,
            state::CertificateAuthority,
        },
        proxies,
    },
    platform::{http::Transport, notifications},
    proxy::service_proxy::{self, ServiceProxyListeners},
};
use gantry_base::clock::Clock;
use hickory_resolver::proto::rr::{RData, RecordType, rdata::A};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{net::TcpListener, process::Command, task::JoinSet, time::timeout};
use uuid::Uuid;

use super::{Client, Echo, connect, trusting};
use crate::{
    domains::dns::NameServer,
    support::{
        Node, TestApp,
        machine::PATIENCE,
        pebble::{Pebble, free},
        settings,
        suggestions::Suggestions,
    },
};

pub(super) const HOST: &str = "api.customer.test";

/// DNS records of every name.
#[derive(Debug, Default)]
pub(super) struct Said {
    pub(super) seen: Mutex<DnsRecords>,
    /// Zones for delegation tests.
    pub(super) zone: Mutex<Option<Arc<DnsResolver>>>,
}

impl Dns for Said {
    fn look<'a>(&'a self, _: &'a Host, _: &'a str) -> DnsFuture<'a> {
        let seen = self.seen.lock().clone();
        Box::pin(async { Ok(seen) })
    }

    fn alias<'a>(&'a self, name: &'a str) -> DnsFuture<'a, Option<String>> {
        let zone = self.zone.lock().clone();
        Box::pin(async move {
            if let Some(zone) = zone {
                zone.alias(name).await
            } else {
                Ok(None)
            }
        })
    }

    fn told<'a>(&'a self, name: &'a str, text: &'a str) -> DnsFuture<'a, Propagation> {
        let zone = self.zone.lock().clone();
        Box::pin(async move {
            if let Some(zone) = zone {
                zone.told(name, text).await
            } else {
                Ok(Propagation::NotYet)
            }
        })
    }

    fn addresses<'a>(&'a self, _: &'a str) -> DnsFuture<'a, Vec<IpAddr>> {
        Box::pin(async { Ok(vec![Ipv4Addr::LOCALHOST.into()]) })
    }
}

/// An application with a certificate authority that can reach its proxy.
pub(super) struct Town {
    pub(super) app: TestApp,
    pub(super) node: Node,
    pub(super) said: Arc<Said>,
    pub(super) https: SocketAddr,
    /// Root certificate of the authority.
    pub(super) roots: PathBuf,
    pub(super) settings: Settings,
    pub(super) pebble: Pebble,
    _names: Option<NameServer>,
    _echo: Echo,
    _tasks: JoinSet<()>,
}

impl Town {
    /// Starts the authority and the proxy. With `deaf`, HTTP-01 challenges do not reach the proxy.
    pub(super) async fn new(deaf: bool) -> Self {
        let names = NameServer::start().await;
        names.remember(HOST, RecordType::A, RData::A(A::new(127, 0, 0, 1)));
        let address = names.address;
        Self {
            _names: Some(names),
            ..Self::over(deaf, async |_, _, _| address).await
        }
    }

    /// Starts an authority that suggests renewal windows.
    pub(super) async fn suggesting() -> (Self, Suggestions) {
        let mut town = Self::new(false).await;
        let suggestions = Suggestions::before(town.app.machine.dir(), town.pebble.port).await;
        let authority = CertificateAuthority {
            directory: suggestions.directory.clone(),
            ..town.settings.authority.clone().unwrap()
        };
        town.settings.authority = Some(authority);
        // The proxy belongs to the other node, which receives this node's notifications.
        town.node = town
            .app
            .another_with(town.settings.clone(), town.app.machine.clone());
        (town, suggestions)
    }

    /// Starts with settings built for the data folder and the project, and another name server for
    /// the authority.
    pub(super) async fn over(
        deaf: bool,
        change: impl AsyncFnOnce(&Path, &str, &mut Settings) -> SocketAddr,
    ) -> Self {
        let app = TestApp::new().await;
        let echo = Echo::start().await;
        let bind = async || TcpListener::bind("127.0.0.1:0").await.unwrap();
        let https = bind().await;
        let http = bind().await;
        let ports = (
            if deaf {
                free()
            } else {
                http.local_addr().unwrap().port()
            },
            https.local_addr().unwrap(),
        );
        let dir = app.machine.dir().to_owned();
        // Certificates of the authority begin now, and name servers reject updates with another
        // time.
        app.clock.step_wall(TimeDelta::seconds(
            (Clock::system().now() - app.clock.now()).num_seconds(),
        ));
        let said = Arc::new(Said::default());
        let authority = CertificateAuthority {
            directory: String::new(),
            root: Some(dir.join("pebble-ca.pem")),
            contact: None,
            issuer: Some("pebble.test".into()),
            zone: None,
            wildcard: false,
        };
        let upstreams = [format!("rest=http://{}", echo.address).parse().unwrap()]
            .into_iter()
            .collect();
        let mut settings = Settings {
            service_proxy: service_proxy::Options {
                upstreams,
                ports: service_proxy::Ports {
                    http: ports.0,
                    https: ports.1.port(),
                },
                ..service_proxy::Options::default()
            },
            dns: said.clone(),
            authority: Some(authority),
            ..settings(Transport::default(), Uuid::from_u128(7))
        };
        let names = change(&dir, app.home.project.as_str(), &mut settings).await;
        let pebble = Pebble::start(&dir, ports.0, ports.1.port(), names).await;
        if let Some(authority) = &mut settings.authority {
            authority.directory.clone_from(&pebble.directory);
        }
        let node = app.another_with(settings.clone(), app.machine.clone());
        let mut tasks = service_proxy::listen(
            &proxies::service_proxy(&node.app),
            ServiceProxyListeners {
                https: vec![https],
                http: vec![http],
                ..ServiceProxyListeners::default()
            },
            None,
        )
        .unwrap();
        // Subscribes to notifications of other nodes.
        tasks.spawn(notifications::run(node.app.platform.clone()));
        let roots = dir.join("pebble-root.pem");
        let fetched = Command::new("curl")
            .args(["-ksSf", "-o"])
            .arg(&roots)
            .arg(format!("{}/roots/0", pebble.management))
            .status()
            .await
            .unwrap();
        assert!(fetched.success());
        Self {
            app,
            node,
            said,
            https: ports.1,
            roots,
            settings,
            pebble,
            _names: None,
            _echo: echo,
            _tasks: tasks,
        }
    }

    pub(super) async fn ask(&self, what: &str) -> Value {
        let path = self.app.at(&format!("/custom-hostname{what}"));
        match what {
            "" | "/checks" => self
                .node
                .get(&path)
                .as_(&self.app.owner)
                .send()
                .await
                .expect(200)
                .json(),
            "/initialize" => {
                let call = self.node.post(&path).as_(&self.app.owner);
                call.json(&json!({ "custom_hostname": HOST }))
                    .send()
                    .await
                    .expect(201)
                    .json()
            }
            _ => self
                .node
                .post(&path)
                .as_(&self.app.owner)
                .send()
                .await
                .expect(201)
                .json(),
        }
    }

    /// Requests the hostname and publishes the required records.
    pub(super) async fn prove(&self) {
        let told = self.ask("/initialize").await;
        let result = &told["data"]["result"];
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let seen = DnsRecords {
            alias: Some(text(&result["custom_origin_server"])),
            texts: vec![text(&result["ownership_verification"]["value"])],
            ..DnsRecords::default()
        };
        *self.said.seen.lock() = seen;
        assert_eq!(
            self.ask("/reverify").await["status"],
            "3_challenge_verified"
        );
    }

    /// Runs the reconciler until the hostname has this status. Pebble rejects random requests,
    /// which are retried.
    pub(super) async fn until(&self, node: &Node, step: &str) -> Value {
        for _ in 0..10 {
            hostname_reconciler::pass(&node.app).await.unwrap();
            self.node.app.set_subscribed(true);
            let told = self.ask("").await;
            if told["status"] == step {
                return told;
            }
            self.app.advance(5 * 60);
        }
        panic!("not {step}: {}", self.ask("").await);
    }

    pub(super) async fn count(&self, table: &str) -> i64 {
        let sql: &'static str = match table {
            "acme_begun" => "select count(*) from acme_begun",
            "acme_orders" => "select count(*) from acme_orders",
            other => panic!("{other}"),
        };
        self.app.app.db.query(sql, &[]).await.unwrap()[0].get(0)
    }
}

#[tokio::test]
async fn verified_hostname_is_certified_and_served_after_activation() {
    let town = Town::new(false).await;
    town.prove().await;
    let told = town.until(&town.node, "4_origin_setup_completed").await;
    assert_eq!(
        (
            &told["data"]["result"]["ssl"]["status"],
            &told["data"]["result"]["status"]
        ),
        (&json!("active"), &json!("active"))
    );
    assert_eq!(town.count("acme_orders").await, 0, "it is over");
    let rows = town
        .app
        .app
        .db
        .query("select sealed_key from hostname_certificates", &[])
        .await
        .unwrap();
    assert!(!String::from_utf8_lossy(rows[0].get(0)).contains("PRIVATE KEY"));
    let request = format!("GET /rest/v1/ HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
    let mut client = Client(
        connect(town.https, HOST, trusting(&town.roots))
            .await
            .unwrap(),
    );
    client.send(&request).await;
    assert_eq!(
        client.answer().await.status,
        404,
        "not before it is activated"
    );
    town.ask("/activate").await;
    client.send(&request).await;
    let answer = client.answer().await;
    assert_eq!(
        (answer.status, answer.saw("x-project-ref")),
        (200, Some(town.app.home.project.to_string()))
    );
    assert!(
        !answer.head.contains("strict-transport-security"),
        "the name is its owner's"
    );
    for (secs, status) in [(-1, 400), (63_072_001, 400), (31_536_000, 200)] {
        let call = town
            .node
            .request("PUT", &town.app.at("/custom-hostname/hsts"))
            .as_(&town.app.owner);
        call.json(&json!({ "max_age_secs": secs }))
            .send()
            .await
            .expect(status);
    }
    client.send(&request).await;
    assert!(
        client
            .answer()
            .await
            .head
            .contains("strict-transport-security: max-age=31536000"),
        "who opted for it"
    );

    // Renewed without any request.
    let before = client.0.get_ref().1.peer_certificates().unwrap()[0].clone();
    let sql = "update hostname_certificates set renew_at = $1";
    town.app
        .app
        .db
        .query(sql, &[&town.app.clock.now()])
        .await
        .unwrap();
    town.app.advance(24 * 3600);
    for _ in 0..10 {
        hostname_reconciler::pass(&town.node.app).await.unwrap();
        town.app.advance(2 * 3600);
    }
    let renewed = connect(town.https, HOST, trusting(&town.roots))
        .await
        .unwrap();
    assert_ne!(renewed.get_ref().1.peer_certificates().unwrap()[0], before);
    assert_eq!(
        town.pebble.said("set VALID by completed challenge"),
        2,
        "what was proven to the authority was given up"
    );
    client.send(&request).await;
    assert_eq!(
        client.answer().await.status,
        200,
        "the older connection goes on"
    );

    town.node
        .delete(&town.app.at("/custom-hostname"))
        .as_(&town.app.owner)
        .send()
        .await
        .expect(200);
    client.send(&request).await;
    assert_eq!(client.answer().await.status, 404);
    assert!(
        connect(town.https, HOST, trusting(&town.roots))
            .await
            .is_err()
    );
}

#[tokio::test]
async fn failed_http_challenge_is_reported_and_retried_by_tls() {
    let town = Town::new(true).await;
    town.prove().await;
    let told = town.until(&town.node, "2_initiated").await;
    let ssl = &told["data"]["result"]["ssl"];
    assert_eq!(ssl["status"], "validation_timed_out");
    assert!(
        ssl["validation_errors"][0]["message"]
            .as_str()
            .unwrap()
            .contains("refused"),
        "{ssl}"
    );
    assert_eq!(ssl["validation_records"].as_array().unwrap().len(), 1);
    let events = crate::events::names(&town.app).await;
    assert_eq!(events, ["gantry.hostname.failed"]);
    let told = town.until(&town.node, "4_origin_setup_completed").await;
    assert!(told["data"]["result"]["ssl"]["validation_errors"].is_null());
    connect(town.https, HOST, trusting(&town.roots))
        .await
        .unwrap();
}

#[tokio::test]
async fn interrupted_order_is_resumed_by_another_node() {
    let town = Town::new(false).await;
    town.prove().await;
    let working = town.node.app.clone();
    let worker = tokio::spawn(async move { hostname_reconciler::pass(&working).await });
    let begun = async {
        while town.count("acme_orders").await == 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, begun).await.unwrap();
    worker.abort();
    let _ = worker.await;
    let other = town
        .app
        .another_with(town.settings.clone(), town.app.machine.clone());
    town.until(&other, "4_origin_setup_completed").await;
    assert_eq!(
        town.count("acme_begun").await,
        1,
        "the order goes on, instead of another one"
    );
}

/// Returns the checks as `name status`, and one of them.
pub(super) fn checked(told: &Value, name: &str) -> (Vec<String>, Value) {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let checks = told["checks"].as_array().unwrap();
    let one = checks
        .iter()
        .find(|check| check["name"] == name)
        .unwrap()
        .clone();
    (
        checks
            .iter()
            .map(|check| format!("{} {}", text(&check["name"]), text(&check["status"])))
            .collect(),
        one,
    )
}

#[tokio::test]
async fn checks_report_each_stage_up_to_the_certificate() {
    let town = Town::new(false).await;
    town.prove().await;
    let (all, https) = checked(&town.ask("/checks").await, "https");
    let before = [
        "cname passed",
        "txt passed",
        "caa passed",
        "http passed",
        "https waiting",
        "certificate waiting",
        "chain skipped",
    ];
    assert_eq!(all, before);
    assert_eq!(
        https["observed"],
        format!(
            "127.0.0.1 can be connected to at port {}",
            town.https.port()
        )
    );
    town.until(&town.node, "4_origin_setup_completed").await;
    let (all, certificate) = checked(&town.ask("/checks").await, "certificate");
    let passed = [
        "cname passed",
        "txt passed",
        "caa passed",
        "http passed",
        "https passed",
        "certificate passed",
        "chain passed",
    ];
    assert_eq!(all, passed);
    let observed = certificate["observed"].as_str().unwrap();
    assert!(
        observed.starts_with(&format!("for {HOST}, by CN=Pebble Intermediate CA")),
        "{observed}"
    );
    // Another server at the port is detected.
    let (port, _serving) = super::once(|mut stream| async move {
        let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, b"HTTP/1.1 200 OK\r\n\r\nwelcome")
            .await;
    })
    .await;
    let ports = service_proxy::Ports {
        http: port.port(),
        https: free(),
    };
    let elsewhere = Settings {
        service_proxy: service_proxy::Options {
            ports,
            ..town.settings.service_proxy.clone()
        },
        ..town.settings.clone()
    };
    let node = town.app.another_with(elsewhere, town.app.machine.clone());
    let told = node
        .get(&town.app.at("/custom-hostname/checks"))
        .as_(&town.app.owner)
        .send()
        .await
        .expect(200)
        .json();
    let (all, http) = checked(&told, "http");
    assert_eq!(
        all[3..],
        [
            "http failed",
            "https failed",
            "certificate passed",
            "chain passed"
        ]
    );
    assert_eq!(
        http["observed"],
        format!(
            "127.0.0.1 answers at port {}, and not as this server",
            port.port()
        )
    );
    // A chain without the authority's own certificate.
    let sql = "update hostname_certificates set chain = split_part(chain, '-----END CERTIFICATE-----', 1) || '-----END CERTIFICATE-----'";
    town.app.app.db.query(sql, &[]).await.unwrap();
    let (all, chain) = checked(&town.ask("/checks").await, "chain");
    assert_eq!(
        (all[6].as_str(), &chain["observed"]),
        (
            "chain failed",
            &json!("the certificate of the authority itself is missing")
        )
    );
}
