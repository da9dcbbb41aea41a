//! The way in to projects' databases: one address for all of them, speaking PostgreSQL's start-up.
//!
//! A connection is taken in four steps: `connection` reads what it opens with, as `packet` understands it, and answers
//! with TLS where asked; `named` finds the project it means; `login` passes the login on to the project's server and sees
//! to it that a password is proven; from then on `pipe` carries bytes. Whoever is turned away is told why (`rejection`).
//!
//! It knows no HTTP, keeps no password, and takes the word of nobody: what a stranger sends is bounded in bytes and in time
//! before it is looked at, and the server is a stranger until it has asked for a password.

mod connection;
mod failures;
#[doc(hidden)]
pub mod fuzzing;
mod login;
mod message_stream;
mod pipe;
mod rejection;
mod session_target;
mod startup;
mod tls;

use std::{collections::HashMap, net::SocketAddr, sync::Arc, time::Duration};

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
use crate::{
    base::{
        ids::ProjectId,
        net::{
            accept,
            connection_limit::{ConnectionLimit, ConnectionPermit},
        },
    },
    data_plane::{clusters::ServerSocket, context::DataPlaneContext, database_access::bans},
};

/// Connections of all projects, logged in or not.
pub const CONNECTIONS_MAX: usize = 4000;
/// Connections of one project. Its server takes fewer; the rest are those it is about to refuse.
pub const PROJECT_CONNECTIONS_MAX: usize = 100;
/// Connections that are not logged in yet.
const LOGINS_MAX: usize = 500;
/// Of these, from one address: nobody keeps everybody else out by saying nothing.
const ADDRESS_LOGINS_MAX: usize = 200;
/// What sessions that work may take when the router stops. Idle ones end at once.
const DRAIN: Duration = Duration::from_secs(10);

/// Where clients reach the router, as connection strings say it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedAddress {
    /// Name or address.
    pub host: String,
    /// The first listener's.
    pub port: u16,
    /// Whether it can speak TLS.
    pub tls: bool,
}

/// What is known of the connections there are.
pub struct PostgresProxy {
    connections: Arc<Semaphore>,
    logins: Arc<Semaphore>,
    addresses: Arc<ConnectionLimit<IpNet>>,
    projects: Arc<ConnectionLimit<ProjectId>>,
    /// Which server knows a session by this key. One login_permits for each session.
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
            keys: Mutex::default(),
            failures: LoginFailures::default(),
            shutdown: CancellationToken::new(),
        }
    }
}

/// What is counted about connections.
#[derive(Clone)]
pub struct PostgresProxyMetrics {
    /// Sessions there are.
    pub sessions: Gauge,
    /// Connections by how they ended.
    pub outcomes: [(&'static str, Counter); 8],
}

/// How a connection may end, as the metrics have it.
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
    /// Takes no new connections, ends idle sessions at once, and those that work when they are idle.
    pub fn stop(&self) {
        self.shutdown.cancel();
    }
}

/// What a connection holds until it is logged in.
struct LoginPermits {
    _login: OwnedSemaphorePermit,
    _address: ConnectionPermit<IpNet>,
}

/// A session that can be cancelled, for as long as it is there.
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

/// Takes connections until [`PostgresProxy::stop`], then sees the sessions out.
pub async fn run(context: DataPlaneContext, listener: TcpListener, tls: Option<PostgresProxyTls>) {
    let take = |connections: &mut JoinSet<()>, stream, peer| {
        take(&context, connections, stream, peer, tls.clone())
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

/// Begins with a connection, unless there are too many: who is turned away here costs no more than an answer.
fn take(
    context: &DataPlaneContext,
    connections: &mut JoinSet<()>,
    stream: TcpStream,
    peer: SocketAddr,
    tls: Option<PostgresProxyTls>,
) {
    let Some((connection, login_permits)) = enter(context, peer) else {
        context
            .data_plane_metrics
            .postgres_proxy
            .count(ConnectionRejection::Full.outcome());
        // As much as fits into the socket's buffer, which is empty.
        let _ = stream.try_write(&ConnectionRejection::Full.message());
        return;
    };
    let context = context.clone();
    connections.spawn(async move {
        connection::serve(&context, stream, peer, tls, login_permits).await;
        drop(connection);
    });
}

/// A place among all connections, and one among those that log in.
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
        .try_acquire(bans::block(peer.ip()))?;
    Some((
        connection,
        LoginPermits {
            _login: login,
            _address: address,
        },
    ))
}
