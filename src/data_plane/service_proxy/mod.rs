//! Reverse proxy for projects' services: accepts HTTPS under each project's host names and forwards
//! requests to the upstreams of its services.
//!
//! - `connection` reads the server name, selects the certificate and serves HTTP.
//! - `forward` validates a request with `request` and forwards it; `tunnel` forwards WebSockets.
//! - `routes` maps host names to projects, `upstreams` names the addresses of services, and
//!   `upstream_pool` keeps idle connections to them.
//! - `gateway` serves the functions of a project without TLS.
//! - `worker_threads` run each connection on one thread.
//!
//! Nothing that a client sends is trusted. If the operator enables it, `api_key_check` requires an
//! API key of the project.

mod api_key_check;
mod body;
mod capacity;
mod connection;
mod forward;
mod framing;
mod functions;
#[doc(hidden)]
pub mod fuzzing;
mod gateway;
pub mod key_checks;
mod key_exchange;
pub mod log;
mod on_demand_tls;
mod open_tunnels;
pub mod overrides;
mod plain_http;
mod project_settings;
mod public_keys;
mod rejection;
mod replacement;
mod request;
mod request_headers;
mod routes;
mod tls;
mod tunnel;
mod upstream_pool;
pub mod upstreams;
mod worker_threads;

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, OnceLock},
    time::Duration,
};

use gantry_base::net::{
    accept,
    connection_limit::{ConnectionLimit, ConnectionPermit},
    tls::TlsError,
};
use gantry_node::kits::Service;
use hyper::StatusCode;
use ipnet::IpNet;
use metrics::{Counter, Gauge};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

pub(in crate::data_plane) use self::gateway::FunctionGateway;
pub use self::tls::WildcardCertificate;

use self::{
    api_key_check::ApiKeyCache,
    capacity::{BOUNDS, ProxyCapacity},
    open_tunnels::OpenTunnels,
    routes::RouteCache,
    tls::Tls,
    worker_threads::WorkerThreads,
};
use crate::{
    data_plane::{context::DataPlaneContext, database_access::bans},
    platform::tables::Cache,
};

/// Maximum number of concurrent connections.
pub const CONNECTIONS_MAX: usize = 10_000;
/// Maximum number of concurrent connections from one address block, so that one client cannot
/// exhaust [`CONNECTIONS_MAX`].
pub const ADDRESS_CONNECTIONS_MAX: usize = 500;
/// Time that in-flight requests get to finish on shutdown.
const DRAIN: Duration = Duration::from_secs(10);

/// Permits of a connection: one of all connections of its listener, one of its address block.
type ConnectionPermits = (OwnedSemaphorePermit, Option<ConnectionPermit<IpNet>>);

/// Options of the service proxy.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Public ports.
    pub ports: Ports,
    /// Whether requests need an API key of the project by default.
    pub check_keys: bool,
    /// Whether header fields with underscores in their names are forwarded.
    pub underscore_headers: bool,
}

/// Public ports of the proxy, as seen from the internet.
#[derive(Debug, Clone, Copy)]
pub struct Ports {
    /// Port for ACME challenges and redirects to HTTPS.
    pub http: u16,
    /// Port for HTTPS.
    pub https: u16,
}

impl Default for Ports {
    fn default() -> Self {
        Self {
            http: 80,
            https: 443,
        }
    }
}

/// State of the service proxy.
pub struct ServiceProxy {
    routes: RouteCache,
    api_keys: ApiKeyCache,
    /// Set when the listeners start. Never replaced, because the worker threads drive the database
    /// connections that requests opened.
    workers: OnceLock<WorkerThreads>,
    connections: Arc<Semaphore>,
    addresses: Arc<ConnectionLimit<IpNet>>,
    capacity: Arc<ProxyCapacity>,
    open_tunnels: OpenTunnels,
    /// Log rows of finished requests.
    pub log: log::RequestLogQueue,
    https_port: OnceLock<u16>,
    shutdown: CancellationToken,
}

impl Default for ServiceProxy {
    fn default() -> Self {
        Self {
            routes: RouteCache::default(),
            api_keys: ApiKeyCache::default(),
            workers: OnceLock::new(),
            connections: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
            addresses: ConnectionLimit::new(ADDRESS_CONNECTIONS_MAX),
            capacity: ProxyCapacity::new(BOUNDS),
            open_tunnels: OpenTunnels::default(),
            log: log::RequestLogQueue::default(),
            https_port: OnceLock::new(),
            shutdown: CancellationToken::new(),
        }
    }
}

impl ServiceProxy {
    /// Invalidates the caches that hold data of `cache`.
    pub(crate) fn invalidate(&self, cache: Cache) {
        match cache {
            Cache::Hosts => self.routes.change(),
            Cache::HostStatus => self.routes.change_status(),
            Cache::ApiKeys => self.api_keys.change(),
            _ => {}
        }
    }

    /// Invalidates all caches, after notifications may have been missed.
    pub(crate) fn reread(&self) {
        self.routes.change();
        self.api_keys.change();
    }

    /// Returns the port of the first HTTPS listener.
    pub(in crate::data_plane) fn https_port(&self) -> Option<u16> {
        self.https_port.get().copied()
    }

    /// Stops accepting connections and closes idle ones.
    pub fn stop(&self) {
        self.shutdown.cancel();
    }
}

/// Metrics of the service proxy.
pub struct ServiceProxyMetrics {
    /// Connections by outcome.
    pub connections: [(&'static str, Counter); 9],
    /// Requests by service and status class. The last row counts requests without a service.
    pub requests: [[Counter; 5]; 6],
    /// Number of open WebSockets.
    pub tunnels: Gauge,
    /// Log rows dropped because the queue was full.
    pub dropped: Counter,
}

/// Values of the `outcome` label of connections.
pub const OUTCOMES: [&str; 9] = [
    "open",
    "challenge",
    "malformed",
    "no name",
    "unknown name",
    "no certificate",
    "handshake failed",
    "late",
    "full",
];

impl ServiceProxyMetrics {
    fn connection(&self, outcome: &str) {
        if let Some((_, counter)) = self.connections.iter().find(|(name, _)| *name == outcome) {
            counter.increment(1);
        }
    }

    fn request(&self, service: Option<Service>, status: StatusCode) {
        let counters =
            &self.requests[service.map_or(Service::ALL.len(), |service| service as usize)];
        if let Some(counter) = counters.get(usize::from(status.as_u16() / 100).saturating_sub(1)) {
            counter.increment(1);
        }
    }

    fn dropped_row(&self) {
        self.dropped.increment(1);
    }

    fn tunnels(&self) -> &Gauge {
        &self.tunnels
    }
}

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
    context: &DataPlaneContext,
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
        let _ = context.service_proxy.https_port.set(port);
    }
    let workers = WorkerThreads::start().map_err(ListenError::WorkerThreads)?;
    // Only the first call sets the worker threads.
    let _ = context.service_proxy.workers.set(workers);
    let mut tasks = JoinSet::new();
    let background = context.clone();
    tasks.spawn(async move {
        tokio::select! {
            () = routes::run(background.clone()) => {}
            () = open_tunnels::run(background.clone()) => {}
            () = background.service_proxy.shutdown.cancelled() => {}
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
async fn run(context: DataPlaneContext, listener: TcpListener, purpose: ListenerPurpose) {
    let serve = |connections: &mut JoinSet<()>, stream, peer| {
        serve_connection(&context, connections, stream, peer, purpose.clone());
    };
    accept::accept_until_shutdown(
        "HTTPS",
        listener,
        &context.service_proxy.shutdown,
        DRAIN,
        serve,
    )
    .await;
}

/// Starts serving a connection, or closes it if a limit is reached.
fn serve_connection(
    context: &DataPlaneContext,
    connections: &mut JoinSet<()>,
    stream: TcpStream,
    peer: SocketAddr,
    purpose: ListenerPurpose,
) {
    let permits = context
        .service_proxy
        .connections
        .clone()
        .try_acquire_owned()
        .ok()
        .zip(
            context
                .service_proxy
                .addresses
                .try_acquire(bans::network_of(peer.ip())),
        );
    let permits = permits.map(|(all, own)| (all, Some(own)));
    let (Some(permits), Some(workers)) = (permits, context.service_proxy.workers.get()) else {
        return context.data_plane_metrics.service_proxy.connection("full");
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
