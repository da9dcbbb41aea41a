//! Counters and durations of clusters, database connections and proxied requests.

use std::time::Duration;

use gantry_node::kits::Service;
use metrics::{Counter, Gauge, Histogram};

use super::{postgres_proxy, service_proxy};
use crate::platform::telemetry::{CLASSES, Metrics};

/// Metrics of the data plane. Handles are created once.
pub struct DataPlaneMetrics {
    /// Metrics of clusters.
    pub clusters: ClusterMetrics,
    /// Metrics of connections to databases.
    pub postgres_proxy: postgres_proxy::PostgresProxyMetrics,
    /// Metrics of requests to projects' services.
    pub service_proxy: service_proxy::ServiceProxyMetrics,
}

impl DataPlaneMetrics {
    /// Registers the metrics.
    pub fn new(metrics: &Metrics) -> Self {
        Self {
            clusters: ClusterMetrics::new(metrics),
            postgres_proxy: postgres_proxy::PostgresProxyMetrics {
                sessions: metrics.gauge("gantry_router_sessions", &[]),
                outcomes: postgres_proxy::OUTCOMES.map(|outcome| {
                    let labels = [("outcome", outcome)];
                    (
                        outcome,
                        metrics.counter("gantry_router_connections_total", &labels),
                    )
                }),
            },
            service_proxy: service_proxy_metrics(metrics),
        }
    }
}

/// The origin of a new project's cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A running server of the warm pool.
    Server,
    /// Prepared files of the warm pool.
    Folder,
    /// A new copy of the template.
    Template,
}

/// An operation on a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Creating its files.
    Create,
    /// Starting its server.
    Start,
    /// Waiting until the server accepts connections.
    Ready,
    /// Setting the customer's password.
    Password,
    /// Stopping its server.
    Stop,
    /// Moving it to the trash.
    Remove,
    /// Upgrading a copy to another major version, and putting it in its place.
    Upgrade,
}

impl Step {
    /// The context of an error in this step.
    pub const fn doing(self) -> &'static str {
        match self {
            Self::Create => "making a cluster",
            Self::Start => "starting a cluster",
            Self::Ready => "waiting for a cluster",
            Self::Password => "setting a password",
            Self::Stop => "stopping a cluster",
            Self::Remove => "removing a cluster",
            Self::Upgrade => "upgrading a cluster",
        }
    }
}

/// A bound of a project's resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// Memory of all processes: some were killed.
    Memory,
    /// Processes and threads: further ones were rejected.
    Processes,
    /// The disk is nearly full.
    DiskSoft,
    /// The disk is full, and the project is read-only.
    DiskHard,
    /// The project still wrote to its full disk, and was stopped.
    DiskStop,
}

/// Counters and durations of clusters.
pub struct ClusterMetrics {
    origins: [Counter; 3],
    steps: [Histogram; 7],
    folders: Gauge,
    servers: Gauge,
    bounds: [Counter; 5],
}

impl ClusterMetrics {
    fn new(metrics: &Metrics) -> Self {
        let ready = |kind| metrics.gauge("gantry_clusters_prepared", &[("kind", kind)]);
        Self {
            origins: ["server", "folder", "template"]
                .map(|from| metrics.counter("gantry_clusters_begun_total", &[("from", from)])),
            steps: [
                "create", "start", "ready", "password", "stop", "remove", "upgrade",
            ]
            .map(|step| metrics.histogram("gantry_cluster_step_seconds", &[("step", step)])),
            folders: ready("folder"),
            servers: ready("server"),
            bounds: ["memory", "processes", "disk-soft", "disk-hard", "disk-stop"].map(|bound| {
                metrics.counter("gantry_project_bounds_reached_total", &[("bound", bound)])
            }),
        }
    }

    /// Counts a project that reached a limit.
    pub fn reached(&self, bound: Bound) {
        self.bounds[bound as usize].increment(1);
    }

    /// Counts a created project by the origin of its cluster.
    pub fn began_from(&self, origin: Origin) {
        self.origins[origin as usize].increment(1);
    }

    /// Sets the numbers of clusters in the warm pool.
    #[expect(clippy::cast_precision_loss, reason = "there are not as many")]
    pub fn prepared(&self, folders: usize, servers: usize) {
        self.folders.set(folders as f64);
        self.servers.set(servers as f64);
    }

    /// Records the duration of a step.
    pub fn took(&self, step: Step, millis: u64) {
        self.steps[step as usize].record(Duration::from_millis(millis).as_secs_f64());
    }
}

fn service_proxy_metrics(metrics: &Metrics) -> service_proxy::ServiceProxyMetrics {
    let requests = |service| {
        CLASSES.map(|class| {
            let labels = [("service", service), ("status", class)];
            metrics.counter("gantry_edge_requests_total", &labels)
        })
    };
    let [rest, auth, storage, realtime, functions] =
        Service::ALL.map(|service| requests(service.name()));
    service_proxy::ServiceProxyMetrics {
        connections: service_proxy::OUTCOMES.map(|outcome| {
            let labels = [("outcome", outcome)];
            (
                outcome,
                metrics.counter("gantry_edge_connections_total", &labels),
            )
        }),
        requests: [rest, auth, storage, realtime, functions, requests("none")],
        tunnels: metrics.gauge("gantry_edge_websockets", &[]),
        dropped: metrics.counter("gantry_edge_log_dropped_total", &[]),
    }
}
