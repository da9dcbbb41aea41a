//! Counters and durations of clusters.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram};

use crate::platform::telemetry::{Metric, MetricLabel, Metrics};

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

/// Values of the label `from`, in the order of [`Origin`].
const ORIGINS: [&str; 3] = ["server", "folder", "template"];
/// Values of the label `step`, in the order of [`Step`].
const STEPS: [&str; 7] = [
    "create", "start", "ready", "password", "stop", "remove", "upgrade",
];
/// Values of the label `bound`, in the order of [`Bound`].
const BOUNDS: [&str; Bound::ALL.len()] = {
    let mut names = [""; Bound::ALL.len()];
    let mut index = 0;
    while index < names.len() {
        names[index] = Bound::ALL[index].name();
        index += 1;
    }
    names
};

const PREPARED: Metric = Metric::gauge(
    "gantry_clusters_prepared",
    "Clusters that wait in the warm pool for new projects",
)
.with_labels(&[MetricLabel::one_of("kind", &["folder", "server"])]);
const BEGUN: Metric = Metric::counter(
    "gantry_clusters_begun_total",
    "Clusters of new projects, by origin",
)
.with_labels(&[MetricLabel::one_of("from", &ORIGINS)]);
const STEP_SECONDS: Metric = Metric::histogram(
    "gantry_cluster_step_seconds",
    "Duration of the steps of the reconciler",
)
.with_labels(&[MetricLabel::one_of("step", &STEPS)]);
const BOUNDS_REACHED: Metric = Metric::counter(
    "gantry_project_bounds_reached_total",
    "Projects that reached a limit of their resources",
)
.with_labels(&[MetricLabel::one_of("bound", &BOUNDS)]);

/// Metrics of clusters.
pub const METRICS: &[&Metric] = &[&PREPARED, &BEGUN, &STEP_SECONDS, &BOUNDS_REACHED];

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
        let ready = |kind| metrics.gauge(&PREPARED, &[kind]);
        Self {
            origins: ORIGINS.map(|from| metrics.counter(&BEGUN, &[from])),
            steps: STEPS.map(|step| metrics.histogram(&STEP_SECONDS, &[step])),
            folders: ready("folder"),
            servers: ready("server"),
            bounds: BOUNDS.map(|bound| metrics.counter(&BOUNDS_REACHED, &[bound])),
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
