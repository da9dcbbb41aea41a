//! The sessions of the PostgreSQL proxy, their limits and their metrics.

use std::{collections::HashMap, sync::Arc};

use gantry_base::{
    ids::ProjectId,
    net::connection_limit::{ConnectionLimit, ConnectionPermit},
};
use gantry_node::clusters::ServerSocket;
use ipnet::IpNet;
use metrics::{Counter, Gauge};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::{failures::LoginFailures, startup::CancelKey};
use crate::platform::telemetry::{Metric, MetricLabel, Metrics};

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

/// State of the PostgreSQL proxy.
pub struct PostgresProxy {
    pub(super) metrics: PostgresProxyMetrics,
    connections: Arc<Semaphore>,
    logins: Arc<Semaphore>,
    addresses: Arc<ConnectionLimit<IpNet>>,
    /// Sessions with servers.
    pub(super) projects: Arc<ConnectionLimit<ProjectId>>,
    /// Sessions with poolers.
    pub(super) pooled: Arc<ConnectionLimit<ProjectId>>,
    /// Servers by cancel key, one entry per session.
    pub(super) keys: Mutex<HashMap<CancelKey, ServerSocket>>,
    pub(super) failures: LoginFailures,
    pub(super) shutdown: CancellationToken,
}

impl PostgresProxy {
    /// Creates the proxy and registers its metrics.
    pub fn new(metrics: &Metrics) -> Self {
        Self {
            metrics: PostgresProxyMetrics::new(metrics),
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

    /// Returns the numbers of open connections with the server and with the pooler of a project.
    pub fn connections_of(&self, project: ProjectId) -> (usize, usize) {
        (self.projects.held(&project), self.pooled.held(&project))
    }

    /// Returns whether a client has a session with the pooler of a project.
    pub fn has_pooled(&self, project: ProjectId) -> bool {
        self.pooled.is_held(&project)
    }

    /// Stops accepting connections and ends each session as soon as it is idle.
    pub fn stop(&self) {
        self.shutdown.cancel();
    }

    /// Acquires a connection permit and the permits of a login from an address block.
    pub(super) fn enter(&self, block: IpNet) -> Option<(OwnedSemaphorePermit, LoginPermits)> {
        let connection = self.connections.clone().try_acquire_owned().ok()?;
        let login = self.logins.clone().try_acquire_owned().ok()?;
        let address = self.addresses.try_acquire(block)?;
        let permits = LoginPermits {
            _login: login,
            _address: address,
        };
        Some((connection, permits))
    }
}

/// Metrics of the PostgreSQL proxy.
#[derive(Clone)]
pub(super) struct PostgresProxyMetrics {
    /// Number of sessions.
    pub sessions: Gauge,
    /// Connections by outcome.
    pub outcomes: [(&'static str, Counter); 8],
}

/// Values of the `outcome` label.
pub(super) const OUTCOMES: [&str; 8] = [
    "session",
    "cancel",
    "wrong password",
    "malformed",
    "unknown project",
    "forbidden",
    "unavailable",
    "full",
];

const SESSIONS: Metric = Metric::gauge(
    "gantry_router_sessions",
    "Open sessions of clients with PostgreSQL servers",
);
const CONNECTIONS: Metric = Metric::counter(
    "gantry_router_connections_total",
    "Connections to the PostgreSQL ports",
)
.with_labels(&[MetricLabel::one_of("outcome", &OUTCOMES)]);

/// Metrics of the PostgreSQL proxy.
pub const METRICS: &[&Metric] = &[&SESSIONS, &CONNECTIONS];

impl PostgresProxyMetrics {
    fn new(metrics: &Metrics) -> Self {
        Self {
            sessions: metrics.gauge(&SESSIONS, &[]),
            outcomes: OUTCOMES.map(|outcome| {
                let counter = metrics.counter(&CONNECTIONS, &[outcome]);
                (outcome, counter)
            }),
        }
    }

    pub(super) fn count(&self, outcome: &str) {
        if let Some((_, counter)) = self.outcomes.iter().find(|(name, _)| *name == outcome) {
            counter.increment(1);
        }
    }
}

/// Permits held until the login is complete.
pub(super) struct LoginPermits {
    _login: OwnedSemaphorePermit,
    _address: ConnectionPermit<IpNet>,
}

/// Registration of a session's cancel key, removed on drop.
pub(super) struct CancelRegistration {
    proxy: Arc<PostgresProxy>,
    key: CancelKey,
}

impl CancelRegistration {
    pub(super) fn new(proxy: &Arc<PostgresProxy>, key: CancelKey, socket: ServerSocket) -> Self {
        proxy.keys.lock().insert(key.clone(), socket);
        Self {
            proxy: Arc::clone(proxy),
            key,
        }
    }
}

impl Drop for CancelRegistration {
    fn drop(&mut self) {
        self.proxy.keys.lock().remove(&self.key);
    }
}
