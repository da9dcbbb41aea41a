//! The PostgreSQL proxy, with real clients and servers.

mod hostile;
mod pooler;
mod rules;
mod sessions;
mod states;

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use gantry::control::proxies;
use gantry::proxy::postgres_proxy::{self, PostgresProxyTls, SessionKind};
use gantry_base::ids::ProjectRef;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::{JoinHandle, JoinSet},
    time::timeout,
};
use tokio_postgres::{AsyncMessage, Client, Config, Connection, NoTls, Socket, error::SqlState};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::support::{TestApp, machine::PATIENCE};

/// Password of every test project.
const PASSWORD: &str = "correct horse";

/// An application with a PostgreSQL proxy and one project.
struct Way {
    app: TestApp,
    project: ProjectRef,
    address: SocketAddr,
    /// Certificate of the authority that issued the proxy's certificate.
    authority: PathBuf,
    router: JoinHandle<()>,
    _tasks: JoinSet<()>,
}

impl Way {
    async fn new() -> Self {
        let app = TestApp::running().await;
        let project = app.real_project().await;
        Self::to(app, project).await
    }

    async fn to(app: TestApp, project: ProjectRef) -> Self {
        Self::with(app, project, SessionKind::Direct).await
    }

    async fn with(app: TestApp, project: ProjectRef, kind: SessionKind) -> Self {
        let (tls, authority) =
            PostgresProxyTls::own_authority(app.machine.dir(), "example.test").unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = tokio::spawn(postgres_proxy::run(
            proxies::postgres_proxy(&app.app.control),
            listener,
            Some(tls),
            kind,
        ));
        Self {
            app,
            project,
            address,
            authority,
            router,
            _tasks: JoinSet::new(),
        }
    }

    /// Returns the configuration to log in to the project as `role`.
    fn config(&self, role: &str) -> Config {
        config(self.address, &format!("{role}.{}", self.project))
    }

    async fn connect(&self) -> Client {
        connect(&self.config("postgres")).await.unwrap()
    }

    /// Returns a TLS connector that trusts only the proxy's authority.
    fn tls(&self) -> MakeRustlsConnect {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_file(&self.authority).unwrap())
            .unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap();
        MakeRustlsConnect::new(config.with_root_certificates(roots).with_no_client_auth())
    }

    async fn raw(&self) -> Raw {
        Raw(TcpStream::connect(self.address).await.unwrap())
    }

    /// Returns the value of a metric.
    fn metric(&self, line: &str) -> usize {
        let text = self.app.app.metrics.render();
        text.lines()
            .find_map(|found| found.strip_prefix(line)?.trim().parse().ok())
            .unwrap_or_default()
    }
}

fn config(address: SocketAddr, user: &str) -> Config {
    let mut config = Config::new();
    config
        .host("127.0.0.1")
        .port(address.port())
        .user(user)
        .password(PASSWORD)
        .dbname("postgres");
    config.connect_timeout(Duration::from_secs(20));
    config
}

async fn connect(config: &Config) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = timeout(PATIENCE, config.connect(NoTls))
        .await
        .expect("it neither works nor fails")?;
    drive(connection);
    Ok(client)
}

fn drive<T>(connection: Connection<Socket, T>)
where
    Connection<Socket, T>: Future<Output = Result<(), tokio_postgres::Error>> + Send + 'static,
{
    tokio::spawn(connection);
}

/// Returns SQLSTATE and message of a rejected login.
async fn refusal(config: &Config) -> (SqlState, String) {
    let error = connect(config)
        .await
        .err()
        .unwrap_or_else(|| panic!("{config:?} is let in"));
    let refusal = error.as_db_error().unwrap_or_else(|| panic!("{error:?}"));
    (refusal.code().clone(), refusal.message().to_owned())
}

async fn number(client: &Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.unwrap().get(0)
}

/// A connection with raw bytes.
struct Raw(TcpStream);

impl Raw {
    async fn send(&mut self, bytes: &[u8]) {
        // The proxy may reject the connection before everything was sent.
        let _ = self.0.write_all(bytes).await;
    }

    /// Reads until the proxy closes the connection.
    async fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        let _ = timeout(PATIENCE, self.0.read_to_end(&mut rest))
            .await
            .expect("the router does not hang up");
        rest
    }

    /// Returns the SQLSTATE of the rejection, if one is sent.
    async fn refused(&mut self) -> Option<String> {
        let rest = self.rest().await;
        assert!(rest.is_empty() || rest[0] == b'E', "{rest:?}");
        rest.get(5..)?
            .split(|byte| *byte == 0)
            .find_map(|field| Some(String::from_utf8(field.strip_prefix(b"C")?.to_vec()).unwrap()))
    }
}

/// Returns a startup packet with these parameters.
fn startup(parameters: &[(&str, &str)]) -> Vec<u8> {
    let mut body = vec![0, 3, 0, 0];
    for text in parameters.iter().flat_map(|(name, value)| [name, value]) {
        body.extend_from_slice(text.as_bytes());
        body.push(0);
    }
    body.push(0);
    packet(&body)
}

fn packet(body: &[u8]) -> Vec<u8> {
    [&u32::try_from(body.len() + 4).unwrap().to_be_bytes(), body].concat()
}

/// Returns the next notification of a connection.
async fn notification<T>(connection: &mut Connection<Socket, T>) -> String
where
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    loop {
        if let AsyncMessage::Notification(heard) =
            std::future::poll_fn(|cx| connection.poll_message(cx))
                .await
                .unwrap()
                .unwrap()
        {
            return heard.payload().to_owned();
        }
    }
}
