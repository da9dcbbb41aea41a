//! Proxy for projects' PostgreSQL servers: one address for all projects.
//!
//! - `connection` reads the startup request, which `startup` parses, and negotiates TLS.
//! - `session_target` finds the project in the startup message.
//! - `directory` has the traits by which it asks the control plane for access, and the node for
//!   servers and poolers.
//! - `pooled` reaches the pooler of a project, for the sessions of the pooler's port.
//! - `login` relays the login and checks that the server authenticates the client by SCRAM-SHA-256.
//! - `pipe` relays the session; `rejection` holds the errors that clients receive.
//!
//! The proxy stores no passwords. Input of unauthenticated clients is limited in size and time, and
//! a server is not trusted before it has completed SCRAM.

mod connection;
mod context;
mod directory;
mod failures;
#[doc(hidden)]
pub mod fuzzing;
mod login;
mod message_stream;
mod pipe;
mod pooled;
mod reach;
mod rejection;
mod session_target;
mod startup;
mod state;
mod tls;

use std::{net::SocketAddr, time::Duration};

use gantry_base::net::{accept, address_block::address_block};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use crate::proxy::node_streams::ForwardedClient;

pub use self::{
    context::PostgresProxyContext,
    directory::{Pooler, SessionClient, SessionDirectory, SessionGrant, SessionServers},
    pooled::CONSOLE,
    rejection::ConnectionRejection,
    session_target::{LOGIN_ROLE_PREFIX, TEMPORARY_LOGIN_PREFIX},
    state::{CONNECTIONS_MAX, METRICS, PostgresProxy},
    tls::PostgresProxyTls,
};

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

/// Accepts connections until [`PostgresProxy::stop`], then drains the sessions.
pub async fn run(
    context: PostgresProxyContext,
    listener: TcpListener,
    tls: Option<PostgresProxyTls>,
    kind: SessionKind,
) {
    let take = |connections: &mut JoinSet<()>, stream, peer| {
        take(&context, connections, (stream, peer), tls.clone(), kind);
    };
    accept::accept_until_shutdown("PostgreSQL", listener, &context.proxy.shutdown, DRAIN, take)
        .await;
}

/// Serves a connection that another node passed on, until it ends.
pub async fn serve_forwarded(
    context: &PostgresProxyContext,
    stream: impl AsyncRead + AsyncWrite + Unpin,
    client: ForwardedClient,
    kind: SessionKind,
) {
    let block = address_block(client.address.ip());
    let Some((connection, login_permits)) = context.proxy.enter(block) else {
        context
            .proxy
            .metrics
            .count(ConnectionRejection::Full.outcome());
        return;
    };
    connection::serve_forwarded(context, stream, client, kind, login_permits).await;
    drop(connection);
}

/// Starts serving a connection, or rejects it if a limit is reached.
fn take(
    context: &PostgresProxyContext,
    connections: &mut JoinSet<()>,
    (stream, peer): (TcpStream, SocketAddr),
    tls: Option<PostgresProxyTls>,
    kind: SessionKind,
) {
    let Some((connection, login_permits)) = context.proxy.enter(address_block(peer.ip())) else {
        let metrics = &context.proxy.metrics;
        metrics.count(ConnectionRejection::Full.outcome());
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
