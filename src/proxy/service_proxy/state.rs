//! The service proxy's caches, limits and metrics.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use gantry_base::net::connection_limit::{ConnectionLimit, ConnectionPermit};
use gantry_node::kits::Service;
use hyper::StatusCode;
use ipnet::IpNet;
use metrics::{Counter, Gauge};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::{
    api_key_cache::ApiKeyCache,
    capacity::{BOUNDS, ProxyCapacity},
    log,
    open_tunnels::OpenTunnels,
    project_requests::ProjectRequests,
    routes::RouteCache,
    upstreams::Upstreams,
    worker_threads::WorkerThreads,
};
use crate::platform::{
    tables::Cache,
    telemetry::{CLASSES, Metric, MetricLabel, Metrics},
};

/// Maximum number of concurrent connections.
pub const CONNECTIONS_MAX: usize = 10_000;
/// Maximum number of concurrent connections from one address block, so that one client cannot
/// exhaust [`CONNECTIONS_MAX`].
pub const ADDRESS_CONNECTIONS_MAX: usize = 500;
/// Time that in-flight requests get to finish on shutdown.
pub(super) const DRAIN: Duration = Duration::from_secs(10);

/// Permits of a connection: one of all connections of its listener, one of its address block.
pub(super) type ConnectionPermits = (OwnedSemaphorePermit, Option<ConnectionPermit<IpNet>>);

/// Options of the service proxy.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Upstreams of services, unless the operator sets another for a project.
    pub upstreams: Upstreams,
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
    pub(super) options: Options,
    pub(super) metrics: ServiceProxyMetrics,
    pub(super) routes: RouteCache,
    pub(super) api_keys: ApiKeyCache,
    /// Set when the listeners start. Never replaced, because the worker threads drive the database
    /// connections that requests opened.
    pub(super) workers: OnceLock<WorkerThreads>,
    pub(super) connections: Arc<Semaphore>,
    pub(super) addresses: Arc<ConnectionLimit<IpNet>>,
    pub(super) capacity: Arc<ProxyCapacity>,
    pub(super) open_tunnels: OpenTunnels,
    /// Log rows of finished requests.
    pub log: log::RequestLogQueue,
    /// Numbers of logged requests.
    pub project_requests: ProjectRequests,
    pub(super) https_port: OnceLock<u16>,
    pub(super) shutdown: CancellationToken,
}

impl ServiceProxy {
    /// Creates the proxy and registers its metrics.
    pub fn new(options: Options, metrics: &Metrics) -> Self {
        Self {
            options,
            metrics: ServiceProxyMetrics::new(metrics),
            routes: RouteCache::default(),
            api_keys: ApiKeyCache::default(),
            workers: OnceLock::new(),
            connections: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
            addresses: ConnectionLimit::new(ADDRESS_CONNECTIONS_MAX),
            capacity: ProxyCapacity::new(BOUNDS),
            open_tunnels: OpenTunnels::default(),
            log: log::RequestLogQueue::default(),
            project_requests: ProjectRequests::default(),
            https_port: OnceLock::new(),
            shutdown: CancellationToken::new(),
        }
    }

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
    pub(crate) fn https_port(&self) -> Option<u16> {
        self.https_port.get().copied()
    }

    /// Stops accepting connections and closes idle ones.
    pub fn stop(&self) {
        self.shutdown.cancel();
    }
}

/// Metrics of the service proxy.
pub(super) struct ServiceProxyMetrics {
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
pub(super) const OUTCOMES: [&str; 9] = [
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

/// Value of the label `service` for requests without a service.
const NO_SERVICE: &str = "none";

const REQUESTS: Metric = Metric::counter(
    "gantry_edge_requests_total",
    "Requests to the services of projects",
)
.with_labels(&[
    MetricLabel::any(
        "service",
        "a service, or `none` if the path is that of no service",
    ),
    MetricLabel::one_of("status", &CLASSES),
]);
const CONNECTIONS: Metric = Metric::counter(
    "gantry_edge_connections_total",
    "Connections to the HTTP and HTTPS ports of projects",
)
.with_labels(&[MetricLabel::one_of("outcome", &OUTCOMES)]);
const WEBSOCKETS: Metric = Metric::gauge("gantry_edge_websockets", "Open WebSockets");
const LOG_DROPPED: Metric = Metric::counter(
    "gantry_edge_log_dropped_total",
    "Requests to services without a line in the logs, because the queue was full",
);

/// Metrics of the service proxy.
pub const METRICS: &[&Metric] = &[&REQUESTS, &CONNECTIONS, &WEBSOCKETS, &LOG_DROPPED];

impl ServiceProxyMetrics {
    fn new(metrics: &Metrics) -> Self {
        let requests = |service| CLASSES.map(|class| metrics.counter(&REQUESTS, &[service, class]));
        let [rest, auth, storage, realtime, functions] =
            Service::ALL.map(|service| requests(service.name()));
        Self {
            connections: OUTCOMES.map(|outcome| {
                let counter = metrics.counter(&CONNECTIONS, &[outcome]);
                (outcome, counter)
            }),
            requests: [
                rest,
                auth,
                storage,
                realtime,
                functions,
                requests(NO_SERVICE),
            ],
            tunnels: metrics.gauge(&WEBSOCKETS, &[]),
            dropped: metrics.counter(&LOG_DROPPED, &[]),
        }
    }

    pub(super) fn connection(&self, outcome: &str) {
        if let Some((_, counter)) = self.connections.iter().find(|(name, _)| *name == outcome) {
            counter.increment(1);
        }
    }

    pub(super) fn request(&self, service: Option<Service>, status: StatusCode) {
        let counters =
            &self.requests[service.map_or(Service::ALL.len(), |service| service as usize)];
        if let Some(counter) = counters.get(usize::from(status.as_u16() / 100).saturating_sub(1)) {
            counter.increment(1);
        }
    }

    pub(super) fn dropped_row(&self) {
        self.dropped.increment(1);
    }

    pub(super) fn tunnels(&self) -> &Gauge {
        &self.tunnels
    }
}
