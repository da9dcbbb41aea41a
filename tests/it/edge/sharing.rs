//! Capacity limits of projects and clients: stalled request bodies and WebSockets.

use std::{
    convert::Infallible,
    net::{IpAddr, Ipv4Addr},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use gantry::{platform::http::Transport, proxy::service_proxy};
use gantry_node::kits::Service;
use http_body_util::BodyExt;
use hyper::{
    Request,
    body::{Body, Frame},
    client::conn::http2::{self, SendRequest},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpSocket},
    sync::mpsc,
    task::JoinSet,
    time::timeout,
};
use tokio_rustls::TlsConnector;

use super::{Client, Gate, read_head};
use crate::support::machine::PATIENCE;

/// Limits on unfinished request bodies of a client and of a project.
const CLIENT_BODIES: usize = 125;
const PROJECT_BODIES: usize = 500;
/// Limit on WebSockets of a client.
const CLIENT_WEBSOCKETS: usize = 125;
/// Concurrent streams of an HTTP/2 connection.
const STREAMS: usize = 100;

const WISH: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n";

/// A request body that ends after these bytes, or stalls.
enum Sent {
    Whole(Option<Bytes>),
    Stalled(Option<Bytes>),
}

impl Body for Sent {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut *self {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Stalled(bytes) => bytes.take().map_or(Poll::Pending, |bytes| {
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }
}

/// An HTTP/2 connection from one address.
struct Caller {
    sender: SendRequest<Sent>,
    uri: String,
    _driver: JoinSet<()>,
}

impl Gate {
    async fn from(
        &self,
        address: [u8; 4],
        protocol: &[u8],
    ) -> tokio_rustls::client::TlsStream<tokio::net::TcpStream> {
        let socket = TcpSocket::new_v4().unwrap();
        socket
            .bind((IpAddr::from(Ipv4Addr::from(address)), 0).into())
            .unwrap();
        let stream = socket.connect(self.https).await.unwrap();
        let mut config = self.trusting();
        config.alpn_protocols = vec![protocol.to_vec()];
        let name = ServerName::try_from(self.host()).unwrap();
        timeout(
            PATIENCE,
            TlsConnector::from(Arc::new(config)).connect(name, stream),
        )
        .await
        .unwrap()
        .unwrap()
    }

    async fn caller(&self, address: [u8; 4]) -> Caller {
        let io = TokioIo::new(self.from(address, b"h2").await);
        let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
        let mut driver = JoinSet::new();
        driver.spawn(async move { drop(connection.await) });
        Caller {
            sender,
            uri: format!("https://{}/rest/v1/", self.host()),
            _driver: driver,
        }
    }
}

impl Caller {
    /// Sends a request. Returns a future of its status. `proxied` is the client address that a
    /// trusted proxy forwards.
    fn begin(&mut self, body: Sent, proxied: &str) -> impl Future<Output = u16> + Send + 'static {
        let method = if body.is_end_stream() { "GET" } else { "POST" };
        let request = Request::builder()
            .method(method)
            .uri(&self.uri)
            .header("x-forwarded-for", proxied)
            .body(body)
            .unwrap();
        let answered = self.sender.send_request(request);
        async move {
            let answer = answered.await.unwrap();
            let status = answer.status().as_u16();
            // Read completely, so that its upstream connection becomes free.
            answer.into_body().collect().await.unwrap();
            status
        }
    }

    async fn ask(&mut self, body: Sent) -> u16 {
        self.ask_through_proxy(body, "192.0.2.1").await
    }

    async fn ask_through_proxy(&mut self, body: Sent, client: &str) -> u16 {
        let answered = self.begin(body, client);
        timeout(PATIENCE, answered).await.expect("no answer")
    }
}

/// Requests with stalled bodies over several connections. Their statuses arrive in order of
/// completion.
struct Stalled {
    statuses: mpsc::UnboundedReceiver<u16>,
    callers: Vec<Caller>,
    _waiting: JoinSet<()>,
}

impl Stalled {
    async fn begin(
        gate: &Gate,
        address: [u8; 4],
        count: usize,
        first: Option<&'static [u8]>,
    ) -> Self {
        let (tells, statuses) = mpsc::unbounded_channel();
        let mut callers = Vec::new();
        let mut waiting = JoinSet::new();
        for _ in 0..count.div_ceil(STREAMS) {
            callers.push(gate.caller(address).await);
        }
        for n in 0..count {
            let caller: &mut Caller = &mut callers[n / STREAMS];
            caller.sender.ready().await.unwrap();
            let answered = caller.begin(Sent::Stalled(first.map(Bytes::from_static)), "192.0.2.1");
            let tells = tells.clone();
            waiting.spawn(async move {
                // The receiver may be dropped.
                let _ = tells.send(answered.await);
            });
        }
        Self {
            statuses,
            callers,
            _waiting: waiting,
        }
    }

    /// Returns the next status.
    async fn next(&mut self) -> u16 {
        timeout(PATIENCE, self.statuses.recv())
            .await
            .expect("none is answered")
            .unwrap()
    }

    /// Waits until the proxy has received all requests: later requests on the same connections are
    /// answered.
    async fn settled(&mut self) {
        for caller in &mut self.callers {
            timeout(PATIENCE, caller.sender.ready())
                .await
                .unwrap()
                .unwrap();
        }
    }
}

fn whole() -> Sent {
    Sent::Whole(Some(Bytes::from_static(b"abc")))
}

fn no_body() -> Sent {
    Sent::Whole(None)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_many_requests_unfinished_keeps_no_other_client_out() {
    let gate = Gate::new().await;
    // Eleven connections with a hundred requests each exceed the project's limit.
    let mut stalled = Stalled::begin(&gate, [127, 0, 0, 1], 11 * STREAMS, None).await;
    for _ in CLIENT_BODIES..11 * STREAMS {
        assert_eq!(stalled.next().await, 429, "what is over its share");
    }
    let mut other = gate.caller([127, 0, 0, 2]).await;
    assert_eq!(
        (other.ask(no_body()).await, other.ask(whole()).await),
        (200, 200)
    );
    // The client is still served with requests that do not need the exhausted resource.
    let mut same = gate.caller([127, 0, 0, 1]).await;
    assert_eq!(
        (same.ask(no_body()).await, same.ask(whole()).await),
        (200, 429)
    );
    // The client's oldest stalled body is aborted for its next request.
    gate.app.clock.advance(Duration::from_secs(2));
    assert_eq!((same.ask(whole()).await, stalled.next().await), (200, 408));
    gate.counts_to("gantry_edge_websockets", 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn when_a_project_is_full_the_oldest_stalled_request_gives_way() {
    let gate = Gate::new().await;
    let mut first = Stalled::begin(&gate, [127, 0, 0, 1], CLIENT_BODIES, Some(b"begun")).await;
    first.settled().await;
    let mut rest = Vec::new();
    for last in 2..=4 {
        rest.push(Stalled::begin(&gate, [127, 0, 0, last], CLIENT_BODIES, None).await);
    }
    let mut late = gate.caller([127, 0, 0, 5]).await;
    // Until the proxy has received all requests there is capacity. Aborted ones are replaced.
    let mut more = Vec::new();
    while late.ask(whole()).await != 503 {
        assert!(
            more.len() < STREAMS,
            "a project has no more than {PROJECT_BODIES} unfinished bodies"
        );
        more.push(Stalled::begin(&gate, [127, 0, 0, 6], 1, None).await);
    }
    assert_eq!(
        late.ask(no_body()).await,
        200,
        "a request without a body needs none of it"
    );
    gate.app.clock.advance(Duration::from_secs(2));
    assert_eq!(late.ask(whole()).await, 200);
    // Requests that arrived while `late` took the last place were answered 503.
    let mut ended = 503;
    while ended == 503 {
        let [a, b, c] = rest.as_mut_slice() else {
            unreachable!()
        };
        ended = tokio::select! {
            status = first.next() => status,
            status = a.next() => status,
            status = b.next() => status,
            status = c.next() => status,
        };
    }
    assert_eq!(ended, 408);
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_trusted_proxy_each_client_has_a_share_of_its_own() {
    let transport = Transport {
        trusted_proxies: vec!["127.0.0.0/8".parse().unwrap()],
        ..Transport::default()
    };
    let gate = Gate::over(transport, |_| None, service_proxy::Options::default()).await;
    let mut stalled = Stalled::begin(&gate, [127, 0, 0, 1], 2 * CLIENT_BODIES, None).await;
    for _ in 0..CLIENT_BODIES {
        assert_eq!(stalled.next().await, 429);
    }
    let mut proxy = gate.caller([127, 0, 0, 1]).await;
    assert_eq!(proxy.ask_through_proxy(whole(), "192.0.2.1").await, 429);
    assert_eq!(proxy.ask_through_proxy(whole(), "192.0.2.2").await, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_has_a_share_of_a_projects_websockets() {
    let gate = Gate::new().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    gate.point(Service::Realtime, listener.local_addr().unwrap())
        .await;
    let mut services = JoinSet::new();
    services.spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            read_head(&mut stream).await;
            stream.write_all(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n").await.unwrap();
            open.push(stream);
        }
    });
    let open = async |address: [u8; 4]| {
        let mut client = Client(gate.from(address, b"http/1.1").await);
        client
            .send(&format!(
                "GET /realtime/v1/websocket HTTP/1.1\r\nHost: {}\r\n{WISH}\r\n",
                gate.host()
            ))
            .await;
        (client.answer().await.status, client)
    };
    let mut clients = Vec::new();
    for n in 0..CLIENT_WEBSOCKETS {
        let (status, client) = open([127, 0, 0, 1]).await;
        assert_eq!(status, 101, "{n}");
        clients.push(client);
    }
    assert_eq!(open([127, 0, 0, 1]).await.0, 429);
    let (status, _other) = open([127, 0, 0, 2]).await;
    assert_eq!(status, 101);
    // Capacity is available after one has ended.
    drop(clients.pop());
    gate.counts_to("gantry_edge_websockets", CLIENT_WEBSOCKETS as u64)
        .await;
    assert_eq!(open([127, 0, 0, 1]).await.0, 101);
}
