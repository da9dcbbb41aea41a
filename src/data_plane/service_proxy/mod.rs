//! The way in to projects' services: HTTPS under each project's names, forwarded on to where its services answer.
//!
//! A connection is taken in three steps: `connection` reads the name it is for and answers with its certificate, or not at
//! all; `request` holds each request to the rules; `forward` passes it on, and its answer back, or `tunnel` what follows an
//! upgrade. `names` knows who is reached under which name, `upstreams` where services answer, `pool` keeps connections to them.
//! All that happens to one connection happens on one of the `workers`.
//!
//! It believes nothing a client says about itself. Of credentials it knows the projects' API keys, where the operator has them checked: `gate`.

mod api_key_check;
mod body;
mod capacity;
mod connection;
mod forward;
mod framing;
#[doc(hidden)]
pub mod fuzzing;
pub mod key_checks;
pub mod log;
mod on_demand_tls;
mod open_tunnels;
pub mod overrides;
mod plain_http;
mod rejection;
mod request;
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

use hyper::StatusCode;
use ipnet::IpNet;
use metrics::{Counter, Gauge};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

pub use self::tls::WildcardCertificate;

use self::{
    api_key_check::ApiKeyCache,
    capacity::{BOUNDS, Capacity},
    open_tunnels::OpenTunnels,
    routes::RouteCache,
    tls::Tls,
    upstreams::Service,
    worker_threads::WorkerThreads,
};
use crate::{
    base::net::{
        accept,
        connection_limit::{ConnectionLimit, ConnectionPermit},
        tls::TlsError,
    },
    data_plane::{context::DataPlaneContext, database_access::bans},
    platform::tables::Cache,
};

/// Connections there are at once.
pub const CONNECTIONS_MAX: usize = 10_000;
/// Of these, from one address: nobody keeps everybody else out.
pub const ADDRESS_CONNECTIONS_MAX: usize = 500;
/// What requests in flight may take when the edge stops.
const DRAIN: Duration = Duration::from_secs(10);

/// A connection's place among all connections and among those of its address.
type ConnectionPlace = (OwnedSemaphorePermit, ConnectionPermit<IpNet>);

/// What the operator decided about the edge, besides where services answer.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Where the world finds it.
    pub ports: Ports,
    /// Whether clients must send an API key of the project, where the operator says nothing else of the project.
    pub check_keys: bool,
    /// Whether services get header fields whose names have underscores.
    pub underscore_headers: bool,
}

/// Ports that names in DNS lead to.
#[derive(Debug, Clone, Copy)]
pub struct Ports {
    /// For authorities, and clients that begin in clear.
    pub http: u16,
    /// For clients.
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

/// What is known of names, connections and requests.
pub struct ServiceProxy {
    routes: RouteCache,
    api_keys: ApiKeyCache,
    /// Since there are listeners. Connections to the database that requests open are theirs: they stay until the end.
    workers: OnceLock<WorkerThreads>,
    connections: Arc<Semaphore>,
    addresses: Arc<ConnectionLimit<IpNet>>,
    capacity: Arc<Capacity>,
    open_tunnels: OpenTunnels,
    /// One row for each request.
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
            capacity: Capacity::new(BOUNDS),
            open_tunnels: OpenTunnels::default(),
            log: log::RequestLogQueue::default(),
            https_port: OnceLock::new(),
            shutdown: CancellationToken::new(),
        }
    }
}

impl ServiceProxy {
    /// Rereads what the cache holds.
    pub(crate) fn invalidate(&self, cache: Cache) {
        match cache {
            Cache::Hosts => self.routes.change(),
            Cache::HostStatus => self.routes.drift(),
            Cache::ApiKeys => self.api_keys.change(),
            _ => {}
        }
    }

    /// Nobody knows what was missed.
    pub(crate) fn reread(&self) {
        self.routes.change();
        self.api_keys.change();
    }

    /// The port of the first HTTPS listener.
    fn https_port(&self) -> Option<u16> {
        self.https_port.get().copied()
    }

    /// Takes no new connections, and ends those that do nothing.
    pub fn stop(&self) {
        self.shutdown.cancel();
    }
}

/// What is counted about the edge.
pub struct ServiceProxyMetrics {
    /// Connections by how they began.
    pub connections: [(&'static str, Counter); 9],
    /// Requests by service, the last of which is none; and by hundreds of the status.
    pub requests: [[Counter; 5]; 6],
    /// WebSockets there are.
    pub tunnels: Gauge,
    /// Rows of the log that found no room.
    pub dropped: Counter,
}

/// How a connection may begin, as the metrics have it.
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

/// What a listener is for.
#[derive(Clone)]
enum ListenerPurpose {
    Https(Arc<Tls>),
    Http,
    Ask,
}

/// Sockets of the edge.
#[derive(Debug, Default)]
pub struct ServiceProxyListeners {
    /// For clients.
    pub https: Vec<TcpListener>,
    /// For authorities, and clients that begin in clear.
    pub http: Vec<TcpListener>,
    /// For proxies on this machine that ask which names are ours.
    pub ask: Vec<TcpListener>,
}

/// Why no connections are taken. A complete line, fit for a terminal.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// There is no TLS.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// There are no threads to serve them.
    #[error("starting threads for connections: {0}")]
    WorkerThreads(io::Error),
}

/// Begins to take connections. The tasks end after [`ServiceProxy::stop`], but for one that ends with the process.
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
        // A second call, which no server makes, would leave the first port standing.
        let _ = context.service_proxy.https_port.set(port);
    }
    let workers = WorkerThreads::start().map_err(ListenError::WorkerThreads)?;
    // The same.
    let _ = context.service_proxy.workers.set(workers);
    let mut tasks = JoinSet::new();
    let stopping =
        |context: DataPlaneContext| async move { context.service_proxy.stopping().await };
    let upkeep = context.clone();
    tasks.spawn(async move {
        tokio::select! {
            () = routes::run(upkeep.clone()) => {}
            () = open_tunnels::run(upkeep.clone()) => {}
            () = upkeep.service_proxy.shutdown.cancelled() => {}
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

/// Takes connections until [`ServiceProxy::stop`], then sees the requests out.
async fn run(context: DataPlaneContext, listener: TcpListener, purpose: ListenerPurpose) {
    let take = |connections: &mut JoinSet<()>, stream, peer| {
        take(&context, connections, stream, peer, purpose.clone())
    };
    accept::accept_until_shutdown(
        "HTTPS",
        listener,
        &context.service_proxy.shutdown,
        DRAIN,
        take,
    )
    .await;
}

/// Begins with a connection, unless there are too many.
fn take(
    context: &DataPlaneContext,
    connections: &mut JoinSet<()>,
    stream: TcpStream,
    peer: SocketAddr,
    purpose: ListenerPurpose,
) {
    let place = context
        .service_proxy
        .connections
        .clone()
        .try_acquire_owned()
        .ok()
        .zip(
            context
                .service_proxy
                .addresses
                .try_acquire(bans::block(peer.ip())),
        );
    let (Some(place), Some(workers)) = (place, context.service_proxy.workers.get()) else {
        return context.data_plane_metrics.service_proxy.connection("full");
    };
    let context = context.clone();
    match purpose {
        ListenerPurpose::Https(tls) => {
            workers.serve(connections, stream, move |stream, pool| async move {
                connection::serve(&context, stream, (peer, place), &tls, pool).await;
            })
        }
        ListenerPurpose::Http => {
            connections.spawn(async move {
                plain_http::serve(stream, |request| plain_http::answer(&context, request)).await;
                drop(place);
            });
        }
        ListenerPurpose::Ask => {
            connections.spawn(async move {
                plain_http::serve(stream, |request| on_demand_tls::answer(&context, request)).await;
                drop(place);
            });
        }
    }
}
