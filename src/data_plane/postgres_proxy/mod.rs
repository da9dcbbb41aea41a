//! Proxy for projects' PostgreSQL servers: one address for all projects.
//!
//! - `connection` reads the startup request, which `startup` parses, and negotiates TLS.
//! - `session_target` finds the project in the startup message.
//! - `pooled` reaches the pooler of a project, for the sessions of the pooler's port.
//! - `login` relays the login and checks that the server authenticates the client by SCRAM-SHA-256.
//! - `pipe` relays the session; `rejection` holds the errors that clients receive.
//!
//! The proxy stores no passwords. Input of unauthenticated clients is limited in size and time, and
//! a server is not trusted before it has completed SCRAM.

mod connection;
mod failures;
#[doc(hidden)]
pub mod fuzzing;
mod login;
mod message_stream;
mod pipe;
mod pooled;
mod rejection;
mod session_target;
mod startup;
mod tls;

use std::{collections::HashMap, net::SocketAddr, sync::Arc, time::Duration};

use gantry_base::{
    ids::ProjectId,
    net::{
        accept,
        connection_limit::{ConnectionLimit, ConnectionPermit},
    },
};
use gantry_node::clusters::ServerSocket;
use ipnet::IpNet;
use metrics::{Counter, Gauge};
use parking_lot::Mutex;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

pub use self::tls::PostgresProxyTls;

use self::{failures::LoginFailures, rejection::ConnectionRejection, startup::CancelKey};
use crate::data_plane::{context::DataPlaneContext, database_access::bans};

/// Maximum number of concurrent connections.
pub const CONNECTIONS_MAX: usize = 4000;
/// Maximum number of concurrent connections to one project, of all compute sizes: the budget of
/// its own size is smaller.
const PROJECT_CONNECTIONS_MAX: usize = CONNECTIONS_MAX;
/// Maximum number of connections that are not logged in.
const LOGINS_MAX: usize = 500;
/// Maximum number of connections from one address block that are not logged in, so that idle
/// connections of one client cannot exhaust [`LOGINS_MAX`].
const ADDRESS_LOGINS_MAX: usize = 200;
/// Time that active sessions get to finish on shutdown. Idle sessions end at once.
const DRAIN: Duration = Duration::from_secs(10);

/// Public address of the proxy, as shown in connection strings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedAddress {
    /// Host name or IP address.
    pub host: String,
    /// Port of the first listener for sessions with the server.
    pub port: u16,
    /// Port of the first listener for sessions with the pooler.
    pub pooler_port: Option<u16>,
    /// Whether TLS is available.
    pub tls: bool,
}

/// The other end of the sessions of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionKind {
    /// The project's server.
    Direct,
    /// The project's pooler. Without a kit of it, the server.
    Pooled,
}

/// State of the PostgreSQL proxy.
pub struct PostgresProxy {
    connections: Arc<Semaphore>,
    logins: Arc<Semaphore>,
    addresses: Arc<ConnectionLimit<IpNet>>,
    /// Sessions with servers.
    projects: Arc<ConnectionLimit<ProjectId>>,
    /// Sessions with poolers.
    pooled: Arc<ConnectionLimit<ProjectId>>,
    /// Servers by cancel key, one entry per session.
    keys: Mutex<HashMap<CancelKey, ServerSocket>>,
    failures: LoginFailures,
    shutdown: CancellationToken,
}

impl Default for PostgresProxy {
    fn default() -> Self {
        Self {
            connections: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
            logins: Arc::new(Semaphore::new(LOGINS_MAX)),
            addresses: ConnectionLimit::new(ADDRESS_LOGINS_MAX),
            projects: ConnectionLimit::new(PROJECT_CONNECTIONS_MAX),
            pooled: ConnectionLimit::new(PROJECT_CONNECTIONS_MAX),
            keys: Mutex::default(),
            failures: LoginFailures::default(),
            shutdown: CancellationToken::new(),
        }
    }
}

/// Metrics of the PostgreSQL proxy.
#[derive(Clone)]
pub struct PostgresProxyMetrics {
    /// Number of sessions.
    pub sessions: Gauge,
    /// Connections by outcome.
    pub outcomes: [(&'static str, Counter); 8],
}

/// Values of the `outcome` label.
pub const OUTCOMES: [&str; 8] = [
    "session",
    "cancel",
    "wrong password",
    "malformed",
    "unknown project",
    "forbidden",
    "unavailable",
    "full",
];

impl PostgresProxyMetrics {
    fn count(&self, outcome: &str) {
        if let Some((_, counter)) = self.outcomes.iter().find(|(name, _)| *name == outcome) {
            counter.increment(1);
        }
    }
}

impl PostgresProxy {
    /// Returns whether a client has a session with the pooler of a project.
    pub fn has_pooled(&self, project: ProjectId) -> bool {
        self.pooled.is_held(&project)
    }

    /// Stops accepting connections and ends each session as soon as it is idle.
    pub fn stop(&self) {
        self.shutdown.cancel();
    }
}

/// Permits held until the login is complete.
struct LoginPermits {
    _login: OwnedSemaphorePermit,
    _address: ConnectionPermit<IpNet>,
}

/// Registration of a session's cancel key, removed on drop.
struct CancelRegistration {
    context: DataPlaneContext,
    key: CancelKey,
}

impl CancelRegistration {
    fn new(context: &DataPlaneContext, key: CancelKey, socket: ServerSocket) -> Self {
        context
            .postgres_proxy
            .keys
            .lock()
            .insert(key.clone(), socket);
        Self {
            context: context.clone(),
            key,
        }
    }
}

impl Drop for CancelRegistration {
    fn drop(&mut self) {
        self.context.postgres_proxy.keys.lock().remove(&self.key);
    }
}

/// Accepts connections until [`PostgresProxy::stop`], then drains the sessions.
pub async fn run(
    context: DataPlaneContext,
    listener: TcpListener,
    tls: Option<PostgresProxyTls>,
    kind: SessionKind,
) {
    let take = |connections: &mut JoinSet<()>, stream, peer| {
        take(&context, connections, (stream, peer), tls.clone(), kind);
    };
    accept::accept_until_shutdown(
        "PostgreSQL",
        listener,
        &context.postgres_proxy.shutdown,
        DRAIN,
        take,
    )
    .await;
}

/// Starts serving a connection, or rejects it if a limit is reached.
fn take(
    context: &DataPlaneContext,
    connections: &mut JoinSet<()>,
    (stream, peer): (TcpStream, SocketAddr),
    tls: Option<PostgresProxyTls>,
    kind: SessionKind,
) {
    let Some((connection, login_permits)) = enter(context, peer) else {
        context
            .data_plane_metrics
            .postgres_proxy
            .count(ConnectionRejection::Full.outcome());
        // Written without waiting: the error fits into the empty send buffer.
        let _ = stream.try_write(&ConnectionRejection::Full.message());
        return;
    };
    let context = context.clone();
    connections.spawn(async move {
        connection::serve(&context, (stream, peer), tls, kind, login_permits).await;
        drop(connection);
    });
}

/// Acquires a connection permit and the permits of a login.
fn enter(
    context: &DataPlaneContext,
    peer: SocketAddr,
) -> Option<(OwnedSemaphorePermit, LoginPermits)> {
    let connection = context
        .postgres_proxy
        .connections
        .clone()
        .try_acquire_owned()
        .ok()?;
    let login = context
        .postgres_proxy
        .logins
        .clone()
        .try_acquire_owned()
        .ok()?;
    let address = context
        .postgres_proxy
        .addresses
        .try_acquire(bans::network_of(peer.ip()))?;
    Some((
        connection,
        LoginPermits {
            _login: login,
            _address: address,
        },
    ))
}
