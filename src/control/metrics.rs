//! Counters and durations of clusters.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram};

use crate::platform::telemetry::Metrics;

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

impl Bound {
    /// Every bound.
    pub const ALL: [Self; 5] = [
        Self::Memory,
        Self::Processes,
        Self::DiskSoft,
        Self::DiskHard,
        Self::DiskStop,
    ];

    /// Name in metrics and events.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Processes => "processes",
            Self::DiskSoft => "disk-soft",
            Self::DiskHard => "disk-hard",
            Self::DiskStop => "disk-stop",
        }
    }
}

/// Counters and durations of clusters.
pub struct ClusterMetrics {
    origins: [Counter; 3],
    steps: [Histogram; 7],
    folders: Gauge,
    servers: Gauge,
    bounds: [Counter; Bound::ALL.len()],
}

impl ClusterMetrics {
    /// Registers the metrics. Handles are created once.
    pub fn new(metrics: &Metrics) -> Self {
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
            bounds: Bound::ALL.map(|bound| {
                let labels = [("bound", bound.name())];
                metrics.counter("gantry_project_bounds_reached_total", &labels)
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
