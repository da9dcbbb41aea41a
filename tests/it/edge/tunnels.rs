//! WebSockets: asked for in one way only, then bytes both ways.

use gantry::edge::upstreams::Service;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

use super::{Gate, once, read_head};
use crate::support::machine::PATIENCE;

const WISH: &str = "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
                    Sec-WebSocket-Version: 13\r\n";
const GRANT: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                       Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

#[tokio::test]
async fn a_websocket_carries_bytes_both_ways_until_a_side_hangs_up() {
    let gate = Gate::new().await;
    let (address, _service) = once(async |mut stream| {
        let head = read_head(&mut stream).await.to_lowercase();
        assert!(head.starts_with("get /websocket?vsn=1.0.0 http/1.1\r\n"), "{head}");
        assert!(head.contains("connection: upgrade\r\n") && head.contains("upgrade: websocket\r\n"), "{head}");
        assert!(head.contains("sec-websocket-key: dghlihnhbxbszsbub25jzq==\r\n") && head.contains("x-project-ref"), "{head}");
        // The first words come with the grant.
        stream.write_all(&[GRANT, b"hello"].concat()).await.unwrap();
        let (mut from, mut to) = stream.split();
        tokio::io::copy(&mut from, &mut to).await.unwrap();
    })
    .await;
    gate.point(Service::Realtime, address).await;
    let (host, mut client) = (gate.host(), gate.client().await);
    client.send(&format!("GET /realtime/v1/websocket?vsn=1.0.0 HTTP/1.1\r\nHost: {host}\r\n{WISH}\r\n")).await;
    let answer = client.answer().await;
    assert_eq!(answer.status, 101);
    assert!(answer.head.contains("sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=\r\n"), "{}", answer.head);
    let mut hello = [0; 5];
    client.0.read_exact(&mut hello).await.unwrap();
    assert_eq!(&hello, b"hello");
    assert_eq!(gate.counted("gantry_edge_websockets"), 1);
    for message in (0..200).map(|n| format!("message {n}")).chain(["a".repeat(300_000)]) {
        // Both ways at once: neither side need take all of it before it answers.
        let (mut from, mut to) = tokio::io::split(&mut client.0);
        let mut back = vec![0; message.len()];
        let said = async {
            to.write_all(message.as_bytes()).await?;
            to.flush().await
        };
        timeout(PATIENCE, async { tokio::try_join!(said, from.read_exact(&mut back)) }).await.unwrap().unwrap();
        assert!(back == message.as_bytes());
    }
    client.0.shutdown().await.unwrap();
    assert!(client.is_closed().await);
}

#[tokio::test]
async fn nothing_else_is_upgraded_to_and_a_refusal_is_passed_on() {
    let gate = Gate::new().await;
    let host = gate.host();
    for wish in ["Upgrade: websocket\r\n", "Connection: upgrade\r\n", "Connection: upgrade\r\nUpgrade: h2c\r\n"] {
        let mut client = gate.client().await;
        client.send(&format!("GET /rest/v1/ HTTP/1.1\r\nHost: {host}\r\n{wish}\r\n")).await;
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.saw("upgrade"), answer.saw("connection")), (200, None, None), "{wish}");
    }
    for (said, status) in [
        ("HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\nno", 403),
        ("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: other\r\n\r\n", 502),
        ("", 502),
    ] {
        let (address, _service) = once(async move |mut stream| {
            read_head(&mut stream).await;
            stream.write_all(said.as_bytes()).await.unwrap();
        })
        .await;
        gate.point(Service::Realtime, address).await;
        let mut client = gate.client().await;
        client.send(&format!("GET /realtime/v1/ HTTP/1.1\r\nHost: {host}\r\n{WISH}\r\n")).await;
        assert_eq!(client.answer().await.status, status);
        assert!(client.is_closed().await);
    }
}

#[tokio::test]
async fn when_the_edge_stops_its_websockets_end() {
    let gate = Gate::new().await;
    let (address, mut service) = once(async |mut stream| {
        read_head(&mut stream).await;
        stream.write_all(GRANT).await.unwrap();
        assert_eq!(stream.read(&mut [0; 1]).await.unwrap_or(0), 0);
    })
    .await;
    gate.point(Service::Realtime, address).await;
    let (host, mut client) = (gate.host(), gate.client().await);
    client.send(&format!("GET /realtime/v1/ HTTP/1.1\r\nHost: {host}\r\n{WISH}\r\n")).await;
    assert_eq!(client.answer().await.status, 101);
    gate.node.app.edge.stop();
    assert!(client.is_closed().await);
    timeout(PATIENCE, service.join_next()).await.unwrap().unwrap().unwrap();
}
