//! Reverse proxy for projects' services: accepts HTTPS under each project's host names and forwards
//! requests to the upstreams of its services.
//!
//! - `connection` reads the server name, selects the certificate and serves HTTP.
//! - `forward` validates a request with `request` and forwards it; `tunnel` forwards WebSockets.
//! - `directory` has the traits by which it asks the control plane for routes and keys, and the
//!   node for processes of services.
//! - `routes` maps host names to projects, `upstreams` names the addresses of services, and
//!   `upstream_pool` keeps idle connections to them.
//! - `gateway` serves the functions of a project without TLS; `local_client` sends requests of this
//!   process to the services of a project.
//! - `worker_threads` run each connection on one thread.
//!
//! Nothing that a client sends is trusted. If the operator enables it, `api_key_check` requires an
//! API key of the project.

mod api_key_cache;
mod api_key_check;
mod body;
mod capacity;
mod client_connection;
mod connection;
mod context;
mod directory;
mod forward;
mod forwarded;
mod framing;
mod function_auth;
mod functions;
#[doc(hidden)]
pub mod fuzzing;
mod gateway;
mod key_exchange;
mod live_functions;
pub mod local_client;
pub mod log;
mod on_demand_tls;
mod open_tunnels;
mod plain_http;
mod project_requests;
mod public_keys;
mod rejection;
mod replacement;
mod request;
mod request_headers;
mod route_reload;
mod routes;
mod state;
mod tls;
mod tunnel;
mod tunnel_revocation;
mod upstream_pool;
pub mod upstreams;
mod worker_threads;

use std::{io, net::SocketAddr, sync::Arc};

use gantry_base::net::{accept, address_block::address_block, tls::TlsError};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

pub use self::{
    context::ServiceProxyContext,
    directory::{ProjectDirectory, RunningService, ServiceRunner},
    gateway::FunctionGateway,
    live_functions::{LiveFunction, LiveFunctions},
    plain_http::{CHALLENGES, probe},
    project_requests::RequestCounts,
    routes::{ChallengeResponse, PublishedHostname, PublishedProject, PublishedRoutes},
    state::{ADDRESS_CONNECTIONS_MAX, CONNECTIONS_MAX, METRICS, Options, Ports, ServiceProxy},
    tls::WildcardCertificate,
};
use self::{
    state::{ConnectionPermits, DRAIN},
    tls::Tls,
    worker_threads::WorkerThreads,
};
use crate::proxy::node_streams::ForwardedClient;

/// Protocol served by a listener.
#[derive(Clone)]
enum ListenerPurpose {
    Https(Arc<Tls>),
    Http,
    Ask,
}

/// Listening sockets of the service proxy.
#[derive(Debug, Default)]
pub struct ServiceProxyListeners {
    /// HTTPS.
    pub https: Vec<TcpListener>,
    /// Plain HTTP: ACME challenges and redirects to HTTPS.
    pub http: Vec<TcpListener>,
    /// Host name checks of a local proxy that issues certificates on demand.
    pub ask: Vec<TcpListener>,
}

/// A failure to start the listeners. The message is one complete line for a terminal.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The worker threads cannot be started.
    #[error("starting threads for connections: {0}")]
    WorkerThreads(io::Error),
}

/// Starts the listeners. All tasks end after [`ServiceProxy::stop`].
pub fn listen(
    context: &ServiceProxyContext,
    listeners: ServiceProxyListeners,
    wildcard: Option<WildcardCertificate>,
) -> Result<JoinSet<()>, ListenError> {
    let ServiceProxyListeners { https, http, ask } = listeners;
    let tls = Arc::new(Tls::new(context, wildcard)?);
    if let Some(port) = https
        .first()
        .and_then(|listener| listener.local_addr().ok())
        .map(|address| address.port())
    {
        // Only the first call sets the port; a server calls this once.
        let _ = context.proxy.https_port.set(port);
    }
    let workers = WorkerThreads::start().map_err(ListenError::WorkerThreads)?;
    // Only the first call sets the worker threads.
    let _ = context.proxy.workers.set(workers);
    let mut tasks = JoinSet::new();
    let background = context.clone();
    tasks.spawn(async move {
        tokio::select! {
            () = route_reload::run(background.clone()) => {}
            () = tunnel_revocation::run(background.clone()) => {}
            () = background.proxy.shutdown.cancelled() => {}
        }
    });
    let https = https
        .into_iter()
        .map(|listener| (listener, ListenerPurpose::Https(tls.clone())));
    let http = http
        .into_iter()
        .map(|listener| (listener, ListenerPurpose::Http));
    let ask = ask
        .into_iter()
        .map(|listener| (listener, ListenerPurpose::Ask));
    for (listener, purpose) in https.chain(http).chain(ask) {
        tasks.spawn(run(context.clone(), listener, purpose));
    }
    Ok(tasks)
}

/// Accepts connections until shutdown, then drains them.
async fn run(context: ServiceProxyContext, listener: TcpListener, purpose: ListenerPurpose) {
    let serve = |connections: &mut JoinSet<()>, stream, peer| {
        serve_connection(&context, connections, stream, peer, purpose.clone());
    };
    accept::accept_until_shutdown("HTTPS", listener, &context.proxy.shutdown, DRAIN, serve).await;
}

/// Serves a connection that another node passed on, until it ends.
pub async fn serve_forwarded(
    context: &ServiceProxyContext,
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    client: ForwardedClient,
) {
    let permits = connection_permits(context, client.address);
    let (Some(permits), Some(workers)) = (permits, context.proxy.workers.get()) else {
        return context.proxy.metrics.connection("full");
    };
    let mut connections = JoinSet::new();
    let context = context.clone();
    let ready = move || Ok(stream);
    workers.serve(&mut connections, ready, move |stream, pool| async move {
        connection::serve_forwarded(&context, stream, client, permits, pool).await;
    });
    connections.join_all().await;
}

/// Acquires the permits of a connection from this address.
fn connection_permits(
    context: &ServiceProxyContext,
    peer: SocketAddr,
) -> Option<ConnectionPermits> {
    let all = context.proxy.connections.clone().try_acquire_owned().ok()?;
    let block = address_block(peer.ip());
    let own = context.proxy.addresses.try_acquire(block)?;
    Some((all, Some(own)))
}

/// Starts serving a connection, or closes it if a limit is reached.
fn serve_connection(
    context: &ServiceProxyContext,
    connections: &mut JoinSet<()>,
    stream: TcpStream,
    peer: SocketAddr,
    purpose: ListenerPurpose,
) {
    let permits = connection_permits(context, peer);
    let (Some(permits), Some(workers)) = (permits, context.proxy.workers.get()) else {
        return context.proxy.metrics.connection("full");
    };
    let context = context.clone();
    match purpose {
        ListenerPurpose::Https(tls) => {
            let Ok(stream) = stream.into_std() else {
                return;
            };
            let register = move || TcpStream::from_std(stream);
            workers.serve(connections, register, move |stream, pool| async move {
                connection::serve(&context, stream, (peer, permits), &tls, pool).await;
            });
        }
        ListenerPurpose::Http => {
            connections.spawn(async move {
                plain_http::serve(stream, |request| plain_http::respond(&context, request)).await;
                drop(permits);
            });
        }
        ListenerPurpose::Ask => {
            connections.spawn(async move {
                plain_http::serve(stream, |request| on_demand_tls::respond(&context, request))
                    .await;
                drop(permits);
            });
        }
    }
}
