//! The service proxy, with real TLS clients and upstreams.

mod certificates;
mod delegation;
mod forwarding;
mod keys;
mod order_limits;
mod orders;
mod renewals;
mod revocations;
mod rules;
mod sharing;
mod tunnels;

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use gantry::{
    app::Settings,
    control::operator_settings,
    control::proxies,
    platform::{http::Transport, tables::Table},
    proxy::service_proxy::{
        self, ServiceProxyListeners, WildcardCertificate,
        upstreams::{ServiceUpstream, Upstreams},
    },
};
use gantry_base::ids::ProjectRef;
use gantry_node::kits::Service;
use http_body_util::{BodyExt, Full};
use hyper::{Request, Response, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    task::JoinSet,
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use uuid::Uuid;

use crate::support::{Node, TestApp, machine::PATIENCE, settings};

/// An application with a service proxy for its projects.
pub(crate) struct Gate {
    pub(crate) app: TestApp,
    /// The node that runs the proxy.
    pub(crate) node: Node,
    pub(crate) project: ProjectRef,
    pub(crate) https: SocketAddr,
    http: SocketAddr,
    ask: SocketAddr,
    tasks: JoinSet<()>,
    echo: Echo,
}

impl Gate {
    /// Starts the proxy. The echo server is the upstream of all services but functions.
    pub(crate) async fn new() -> Self {
        Self::with(|_| None, service_proxy::Options::default()).await
    }

    /// Starts the proxy with another wildcard certificate and options.
    async fn with(
        wildcard: impl FnOnce(&Path) -> Option<WildcardCertificate>,
        options: service_proxy::Options,
    ) -> Self {
        Self::over(Transport::default(), wildcard, options).await
    }

    /// Starts the proxy behind these trusted proxies.
    pub(crate) async fn over(
        transport: Transport,
        wildcard: impl FnOnce(&Path) -> Option<WildcardCertificate>,
        options: service_proxy::Options,
    ) -> Self {
        let app = TestApp::new().await;
        let echo = Echo::start().await;
        let services = Service::ALL
            .into_iter()
            .filter(|service| *service != Service::Functions);
        let upstreams: Upstreams = services
            .map(|service| {
                format!("{service}=http://{}/base", echo.address)
                    .parse::<ServiceUpstream>()
                    .unwrap()
            })
            .collect();
        let settings = Settings {
            service_proxy: service_proxy::Options {
                upstreams,
                ..options
            },
            ..settings(transport, Uuid::from_u128(7))
        };
        let node = app.another_with(settings, app.machine.clone());
        let project = app.home.project.clone();
        Self::listen(app, node, project, echo, wildcard).await
    }

    /// Starts the proxy of a node that has no upstreams.
    pub(crate) async fn of(app: TestApp, node: Node, project: ProjectRef) -> Self {
        Self::listen(app, node, project, Echo::start().await, |_| None).await
    }

    async fn listen(
        app: TestApp,
        node: Node,
        project: ProjectRef,
        echo: Echo,
        wildcard: impl FnOnce(&Path) -> Option<WildcardCertificate>,
    ) -> Self {
        let authority =
            WildcardCertificate::own_authority(node.machine.dir(), "example.test").unwrap();
        let wildcard = wildcard(node.machine.dir()).unwrap_or(authority);
        let bind = async || TcpListener::bind("127.0.0.1:0").await.unwrap();
        let https = bind().await;
        let http = bind().await;
        let ask = bind().await;
        let [https_at, http_at, ask_at] =
            [&https, &http, &ask].map(|listener| listener.local_addr().unwrap());
        let listeners = ServiceProxyListeners {
            https: vec![https],
            http: vec![http],
            ask: vec![ask],
        };
        let tasks = service_proxy::listen(
            &proxies::service_proxy(&node.app),
            listeners,
            Some(wildcard),
        )
        .unwrap();
        Self {
            app,
            node,
            project,
            https: https_at,
            http: http_at,
            ask: ask_at,
            tasks,
            echo,
        }
    }

    /// Returns the project's DNS name.
    pub(crate) fn host(&self) -> String {
        format!("{}.example.test", self.project)
    }

    /// Returns a client configuration that trusts the authority.
    fn trusting(&self) -> ClientConfig {
        trusting(&self.node.machine.dir().join("db-ca.pem"))
    }

    async fn connect(&self, name: &str, alpn: &[&str]) -> std::io::Result<TlsStream<TcpStream>> {
        let mut config = self.trusting();
        config.alpn_protocols = alpn
            .iter()
            .map(|protocol| protocol.as_bytes().to_vec())
            .collect();
        connect(self.https, name, config).await
    }

    /// Connects with the project's own name.
    pub(crate) async fn client(&self) -> Client {
        self.client_of(&self.host()).await
    }

    /// Connects from another address of this machine.
    pub(crate) async fn client_from(&self, source: Ipv4Addr) -> Client {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((source, 0).into()).unwrap();
        let stream = socket.connect(self.https).await.unwrap();
        let mut config = self.trusting();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Client(handshake(stream, &self.host(), config).await.unwrap())
    }

    async fn client_of(&self, name: &str) -> Client {
        Client(self.connect(name, &["http/1.1"]).await.unwrap())
    }

    /// Sends a GET request over a new connection.
    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.client().await.get(&self.host(), path).await
    }

    /// Returns the value of a metric.
    fn counted(&self, name: &str) -> u64 {
        let page = self.node.app.metrics.render();
        let line = page
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap_or_else(|| panic!("no {name} in {page}"));
        line.trim().parse().unwrap()
    }

    /// Waits until a metric has this value: connections are counted after they have ended.
    async fn counts_to(&self, name: &str, count: u64) {
        let counted = async {
            while self.counted(name) != count {
                tokio::task::yield_now().await;
            }
        };
        timeout(PATIENCE, counted)
            .await
            .unwrap_or_else(|_| panic!("{name} is {}, not {count}", self.counted(name)));
    }
}

fn trusting(authority: &Path) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(authority).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap();
    builder.with_root_certificates(roots).with_no_client_auth()
}

async fn connect(
    address: SocketAddr,
    name: &str,
    config: ClientConfig,
) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(address).await.unwrap();
    handshake(stream, name, config).await
}

async fn handshake(
    stream: TcpStream,
    name: &str,
    config: ClientConfig,
) -> std::io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    timeout(
        PATIENCE,
        TlsConnector::from(Arc::new(config)).connect(name, stream),
    )
    .await
    .expect("the edge said nothing")
}

/// An HTTP/1.1 client that sends raw text.
pub(crate) struct Client(TlsStream<TcpStream>);

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// In lower case.
    pub(crate) head: String,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    fn message(&self) -> String {
        self.json()["message"].as_str().unwrap().to_owned()
    }

    /// Returns a header field that the echo server received.
    pub(crate) fn saw(&self, name: &str) -> Option<String> {
        self.json()["headers"][name].as_str().map(str::to_owned)
    }
}

impl Client {
    pub(crate) async fn send(&mut self, text: &str) {
        // The proxy may reject the request before it was read completely.
        let _ = self.0.write_all(text.as_bytes()).await;
        let _ = self.0.flush().await;
    }

    pub(crate) async fn get(&mut self, host: &str, path: &str) -> Answer {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"))
            .await;
        self.answer().await
    }

    /// Reads until the received text contains `text`.
    pub(crate) async fn read_to(&mut self, text: &str) -> String {
        let mut all = Vec::new();
        let read = async {
            while !String::from_utf8_lossy(&all).contains(text) {
                all.push(self.0.read_u8().await.unwrap());
            }
        };
        let ended = timeout(PATIENCE, read).await;
        let all = String::from_utf8_lossy(&all).into_owned();
        ended.unwrap_or_else(|_| panic!("no {text} in {all}"));
        all
    }

    /// Sends bytes.
    pub(crate) async fn send_bytes(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.unwrap();
        self.0.flush().await.unwrap();
    }

    /// Reads a response.
    pub(crate) async fn answer(&mut self) -> Answer {
        timeout(PATIENCE, self.read())
            .await
            .expect("no answer")
            .expect("closed without an answer")
    }

    async fn read(&mut self) -> Option<Answer> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.0.read_u8().await.ok()?);
        }
        let head = String::from_utf8(head).unwrap().to_lowercase();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "))
            .map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).await.unwrap();
        if head.contains("transfer-encoding: chunked") {
            body = self.chunked_body().await;
        }
        Some(Answer {
            status,
            head,
            body: body.into(),
        })
    }

    /// Reads the body of a chunked response after its head.
    async fn chunked_body(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            let mut line = Vec::new();
            while !line.ends_with(b"\r\n") {
                line.push(self.0.read_u8().await.unwrap());
            }
            let line = String::from_utf8(line).unwrap();
            let size = usize::from_str_radix(line.trim(), 16).unwrap();
            let mut chunk = vec![0; size + 2];
            self.0.read_exact(&mut chunk).await.unwrap();
            if size == 0 {
                return body;
            }
            body.extend_from_slice(&chunk[..size]);
        }
    }

    /// Reads a chunked response in raw form.
    async fn chunks(&mut self) -> String {
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n0\r\n\r\n") {
            answer.push(self.0.read_u8().await.unwrap());
        }
        String::from_utf8(answer).unwrap()
    }

    /// Returns whether the connection is closed.
    async fn is_closed(&mut self) -> bool {
        !matches!(
            timeout(PATIENCE, self.0.read(&mut [0; 1]))
                .await
                .expect("it stays open"),
            Ok(1..)
        )
    }
}

/// An upstream that returns the request it received.
pub(crate) struct Echo {
    pub(crate) address: SocketAddr,
    _tasks: JoinSet<()>,
}

impl Echo {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let connection =
                    http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(echo));
                connections.spawn(async move { drop(connection.await) });
            }
        });
        Self {
            address,
            _tasks: tasks,
        }
    }
}

async fn echo(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let (parts, body) = request.into_parts();
    let headers: serde_json::Map<_, _> = parts
        .headers
        .iter()
        .map(|(name, value)| (name.to_string(), value.to_str().unwrap().into()))
        .collect();
    let body = body.collect().await?.to_bytes();
    let told = json!({
        "method": parts.method.as_str(), "target": parts.uri.to_string(), "headers": headers, "bytes": body.len(),
        "body": String::from_utf8_lossy(&body[..body.len().min(100)]),
    });
    let response = Response::builder()
        .header("content-type", "application/json")
        .header("keep-alive", "timeout=5")
        .header("x-kept", "yes");
    Ok(response.body(Full::from(told.to_string())).unwrap())
}

/// An upstream that serves one connection with a function of the test.
async fn once<F: Future<Output = ()> + Send + 'static>(
    serve: impl FnOnce(TcpStream) -> F + Send + 'static,
) -> (SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        serve(stream).await;
    });
    (address, tasks)
}

impl Gate {
    /// Sets the upstream of a service of the project, as `gantry upstream set` does on another
    /// node.
    async fn point(&self, service: Service, address: SocketAddr) {
        let named: ServiceUpstream = format!("{service}=http://{address}").parse().unwrap();
        let audit = gantry::platform::audit::Recorder::operator(
            "test",
            &self.app.app.entropy,
            "gantry upstream set",
        );
        operator_settings::upstreams::set(
            &self.app.app.db,
            &self.project,
            service,
            Some(&named),
            &self.app.clock,
            audit,
        )
        .await
        .unwrap();
        self.node.app.table_changed(Table::ProjectUpstreams);
    }
}

/// Reads the head of a request.
async fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

/// Shorter than every timeout of the proxy.
const SHORTLY: Duration = Duration::from_secs(3);
