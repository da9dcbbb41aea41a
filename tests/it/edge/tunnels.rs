//! WebSockets: upgrade, relayed bytes, and closing after changes.

use std::time::Duration;

use gantry::{platform::tables::Table, proxy::service_proxy};
use gantry_node::kits::Service;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    task::JoinSet,
    time::timeout,
};

use super::{Client, Gate, once, read_head};
use crate::support::machine::PATIENCE;

const WISH: &str = "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
                    Sec-WebSocket-Version: 13\r\n";
const GRANT: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                       Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

#[tokio::test]
async fn websocket_relays_bytes_until_one_side_closes() {
    let gate = Gate::new().await;
    let (address, _service) = once(async |mut stream| {
        let head = read_head(&mut stream).await.to_lowercase();
        assert!(
            head.starts_with("get /websocket?vsn=1.0.0 http/1.1\r\n"),
            "{head}"
        );
        assert!(
            head.contains("connection: upgrade\r\n") && head.contains("upgrade: websocket\r\n"),
            "{head}"
        );
        assert!(
            head.contains("sec-websocket-key: dghlihnhbxbszsbub25jzq==\r\n")
                && head.contains("x-project-ref"),
            "{head}"
        );
        // The first bytes are sent together with the upgrade response.
        stream.write_all(&[GRANT, b"hello"].concat()).await.unwrap();
        let (mut from, mut to) = stream.split();
        tokio::io::copy(&mut from, &mut to).await.unwrap();
    })
    .await;
    gate.point(Service::Realtime, address).await;
    let host = gate.host();
    let mut client = gate.client().await;
    client
        .send(&format!(
            "GET /realtime/v1/websocket?vsn=1.0.0 HTTP/1.1\r\nHost: {host}\r\n{WISH}\r\n"
        ))
        .await;
    let answer = client.answer().await;
    assert_eq!(answer.status, 101);
    assert!(
        answer
            .head
            .contains("sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=\r\n"),
        "{}",
        answer.head
    );
    let mut hello = [0; 5];
    client.0.read_exact(&mut hello).await.unwrap();
    assert_eq!(&hello, b"hello");
    assert_eq!(gate.counted("gantry_edge_websockets"), 1);
    for message in (0..200)
        .map(|n| format!("message {n}"))
        .chain(["a".repeat(300_000)])
    {
        // Concurrently in both directions.
        let (mut from, mut to) = tokio::io::split(&mut client.0);
        let mut back = vec![0; message.len()];
        let said = async {
            to.write_all(message.as_bytes()).await?;
            to.flush().await
        };
        timeout(PATIENCE, async {
            tokio::try_join!(said, from.read_exact(&mut back))
        })
        .await
        .unwrap()
        .unwrap();
        assert!(back == message.as_bytes());
    }
    client.0.shutdown().await.unwrap();
    assert!(client.is_closed().await);
}

#[tokio::test]
async fn other_upgrades_are_rejected() {
    let gate = Gate::new().await;
    let host = gate.host();
    for wish in [
        "Upgrade: websocket\r\n",
        "Connection: upgrade\r\n",
        "Connection: upgrade\r\nUpgrade: h2c\r\n",
    ] {
        let mut client = gate.client().await;
        client
            .send(&format!(
                "GET /rest/v1/ HTTP/1.1\r\nHost: {host}\r\n{wish}\r\n"
            ))
            .await;
        let answer = client.answer().await;
        assert_eq!(
            (
                answer.status,
                answer.saw("upgrade"),
                answer.saw("connection")
            ),
            (200, None, None),
            "{wish}"
        );
    }
    for (said, status) in [
        ("HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\nno", 403),
        (
            "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: other\r\n\r\n",
            502,
        ),
        ("", 502),
    ] {
        let (address, _service) = once(async move |mut stream| {
            read_head(&mut stream).await;
            stream.write_all(said.as_bytes()).await.unwrap();
        })
        .await;
        gate.point(Service::Realtime, address).await;
        let mut client = gate.client().await;
        client
            .send(&format!(
                "GET /realtime/v1/ HTTP/1.1\r\nHost: {host}\r\n{WISH}\r\n"
            ))
            .await;
        assert_eq!(client.answer().await.status, status);
        assert!(client.is_closed().await);
    }
}

#[tokio::test]
async fn shutdown_closes_websockets() {
    let gate = Gate::new().await;
    let (address, mut service) = once(async |mut stream| {
        read_head(&mut stream).await;
        stream.write_all(GRANT).await.unwrap();
        assert_eq!(stream.read(&mut [0; 1]).await.unwrap_or(0), 0);
    })
    .await;
    gate.point(Service::Realtime, address).await;
    let host = gate.host();
    let mut client = gate.client().await;
    client
        .send(&format!(
            "GET /realtime/v1/ HTTP/1.1\r\nHost: {host}\r\n{WISH}\r\n"
        ))
        .await;
    assert_eq!(client.answer().await.status, 101);
    gate.node.app.service_proxy.stop();
    assert!(client.is_closed().await);
    timeout(PATIENCE, service.join_next())
        .await
        .unwrap()
        .unwrap()
        .unwrap();
}

/// Time within which an invalid WebSocket is closed.
const SECOND: Duration = Duration::from_secs(1);

/// An upstream that accepts every WebSocket and echoes its bytes.
struct Granting {
    gate: Gate,
    _service: JoinSet<()>,
}

impl Granting {
    async fn new(gate: Gate) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        gate.point(Service::Realtime, listener.local_addr().unwrap())
            .await;
        let mut service = JoinSet::new();
        service.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                connections.spawn(async move {
                    read_head(&mut stream).await;
                    stream.write_all(GRANT).await.unwrap();
                    let (mut from, mut to) = stream.split();
                    let _ = tokio::io::copy(&mut from, &mut to).await;
                });
            }
        });
        Self {
            gate,
            _service: service,
        }
    }

    async fn open(&self, host: &str, query: &str) -> Client {
        let mut client = self.gate.client_of(host).await;
        client
            .send(&format!(
                "GET /realtime/v1/websocket{query} HTTP/1.1\r\nHost: {host}\r\n{WISH}\r\n"
            ))
            .await;
        assert_eq!(client.answer().await.status, 101, "{host}");
        assert!(client.is_open().await);
        client
    }

    async fn vanity(&self, name: &str) {
        let call = self
            .gate
            .node
            .post(&self.gate.app.at("/vanity-subdomain/activate"))
            .as_(&self.gate.app.owner);
        call.json(&json!({ "vanity_subdomain": name }))
            .send()
            .await
            .expect(201);
    }

    /// Sets the desired state of the project, as another node does.
    async fn want(&self, desired: &str, status: &str) {
        let sql = "update projects set desired = $2, status = $3 where ref = $1";
        self.gate
            .app
            .app
            .db
            .query(sql, &[&self.gate.project.as_str(), &desired, &status])
            .await
            .unwrap();
        self.gate.node.app.table_changed(Table::Projects);
    }
}

impl Client {
    /// Returns whether bytes are echoed.
    async fn is_open(&mut self) -> bool {
        self.send("still there?").await;
        let mut back = [0; 12];
        timeout(PATIENCE, self.0.read_exact(&mut back))
            .await
            .is_ok_and(|read| read.is_ok())
    }

    /// Returns whether the WebSocket is closed within a second.
    async fn ends(&mut self) -> bool {
        let ended = timeout(SECOND, self.0.read(&mut [0; 1])).await;
        ended.is_ok_and(|read| !matches!(read, Ok(1..)))
    }
}

#[tokio::test]
async fn removed_name_closes_its_websockets() {
    let town = Granting::new(Gate::new().await).await;
    town.vanity("shop").await;
    let mut by_name = town.open("shop.example.test", "").await;
    let mut by_reference = town.open(&town.gate.host(), "").await;
    town.gate
        .node
        .delete(&town.gate.app.at("/vanity-subdomain"))
        .as_(&town.gate.app.owner)
        .send()
        .await
        .expect(200);
    assert!(by_name.ends().await);
    assert!(
        by_reference.is_open().await,
        "its own name leads there still"
    );
    // The name belongs to another project now.
    town.vanity("shop").await;
    let mut by_name = town.open("shop.example.test", "").await;
    let other = town.gate.app.stub(town.gate.app.home.id, "other").await;
    let sql = "update vanity_subdomains set project_id = (select id from projects where ref = $1)";
    town.gate
        .app
        .app
        .db
        .query(sql, &[&other.as_str()])
        .await
        .unwrap();
    town.gate.node.app.table_changed(Table::VanitySubdomains);
    assert!(by_name.ends().await && by_reference.is_open().await);
}

#[tokio::test]
async fn deleted_project_closes_its_websockets() {
    for (desired, status) in [("paused", "PAUSING"), ("removed", "GOING_DOWN")] {
        let town = Granting::new(Gate::new().await).await;
        let mut client = town.open(&town.gate.host(), "").await;
        let sibling = town.gate.app.stub(town.gate.app.home.id, "sibling").await;
        town.gate.node.app.table_changed(Table::Projects);
        let sql = "insert into project_upstreams select s.id, u.service, u.url from project_upstreams u, projects s where s.ref = $1";
        town.gate
            .app
            .app
            .db
            .query(sql, &[&sibling.as_str()])
            .await
            .unwrap();
        town.gate.node.app.table_changed(Table::ProjectUpstreams);
        let mut other = town.open(&format!("{sibling}.example.test"), "").await;
        town.want(desired, status).await;
        assert!(client.ends().await, "{desired}");
        assert!(other.is_open().await, "{desired}");
    }
}

#[tokio::test]
async fn revoked_key_closes_its_websockets() {
    let options = service_proxy::Options {
        check_keys: true,
        ..service_proxy::Options::default()
    };
    let town = Granting::new(Gate::with(|_| None, options).await).await;
    let gate = &town.gate;
    let host = town.gate.host();
    let keys = gate.keys(&gate.app.at("")).await;
    let of = |kind: &str| keys.iter().find(|key| key["type"] == kind).unwrap();
    let with = |kind: &str| format!("?apikey={}", of(kind)["api_key"].as_str().unwrap());
    let mut revoked = town.open(&host, &with("secret")).await;
    let mut kept = town.open(&host, &with("publishable")).await;
    let id = of("secret")["id"].as_str().unwrap();
    gate.node
        .delete(&gate.app.at(&format!("/api-keys/{id}")))
        .as_(&gate.app.owner)
        .send()
        .await
        .expect(200);
    assert!(revoked.ends().await);
    assert!(kept.is_open().await);
    // Without the check, revoked keys close nothing; enabling it closes WebSockets without a valid
    // key.
    gate.set_key_check(Some(false)).await;
    let mut without = town.open(&host, "").await;
    gate.set_key_check(Some(true)).await;
    assert!(without.ends().await);
    assert!(kept.is_open().await);
}
