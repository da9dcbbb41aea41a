//! Metrics of the whole installation: the values of `gantry status`.

use std::time::Duration;

use gantry_base::repeat;

use super::status::{InstallationStatus, WORK_KINDS};
use crate::{
    control::context::ControlContext,
    platform::telemetry::{Metric, MetricLabel, Metrics},
};

/// The interval of reading the state.
const INTERVAL: Duration = Duration::from_mins(1);

const PROJECTS: Metric = Metric::gauge("gantry_projects", "Projects and branches by status")
    .with_labels(&[MetricLabel::any("status", "status, as in the API")]);
const NODE_UP: Metric = Metric::gauge(
    "gantry_node_up",
    "Whether a server runs the node: 1, otherwise 0",
)
.with_labels(&[NODE]);
const NODE_PROJECTS: Metric = Metric::gauge(
    "gantry_node_projects",
    "Projects and branches that the node holds",
)
.with_labels(&[NODE]);
const NODE_MEMORY: Metric =
    Metric::gauge("gantry_node_memory_bytes", "Memory of the node's machine").with_labels(&[NODE]);
const NODE_DISK_FREE: Metric = Metric::gauge(
    "gantry_node_disk_free_bytes",
    "Free space of the node for projects",
)
.with_labels(&[NODE]);
const WORK: Metric = Metric::gauge("gantry_work_open", "Open work by kind").with_labels(&[KIND]);
const WORK_AGE: Metric = Metric::gauge(
    "gantry_work_oldest_age_seconds",
    "Age of the oldest open work of a kind; 0 without open work",
)
.with_labels(&[KIND]);
const WITHOUT_BACKUP: Metric = Metric::gauge(
    "gantry_backup_missing_projects",
    "Running projects without a completed backup",
);
const BEHIND: Metric = Metric::gauge(
    "gantry_backup_behind_projects",
    "Running projects that shipped no write-ahead log for 15 minutes",
);
const FAILED_TESTS: Metric = Metric::gauge(
    "gantry_backup_failed_verification_projects",
    "Projects with a backup that failed its last verification",
);
const CERTIFICATES: Metric = Metric::gauge(
    "gantry_certificates_ending",
    "Certificates that end within 14 days, or whose renewal failed",
);

const NODE: MetricLabel = MetricLabel::any("node", "name of a node");
const KIND: MetricLabel = MetricLabel::one_of("kind", &WORK_KINDS);

/// Metrics of the whole installation.
pub const METRICS: &[&Metric] = &[
    &PROJECTS,
    &NODE_UP,
    &NODE_PROJECTS,
    &NODE_MEMORY,
    &NODE_DISK_FREE,
    &WORK,
    &WORK_AGE,
    &WITHOUT_BACKUP,
    &BEHIND,
    &FAILED_TESTS,
    &CERTIFICATES,
];

/// Reads the state periodically. Every process publishes the same values.
pub async fn run(context: ControlContext) {
    repeat::every(INTERVAL, || async {
        match InstallationStatus::read(&context.db, context.clock.now()).await {
            Ok(status) => publish(&context, &status),
            Err(error) => tracing::warn!(%error, "failed to read the state of the installation"),
        }
    })
    .await;
}

#[expect(clippy::cast_precision_loss, reason = "metrics are approximate")]
fn publish(context: &ControlContext, status: &InstallationStatus) {
    let now = context.clock.now();
    let metrics: &Metrics = &context.metrics;
    let projects = status.projects.iter();
    let projects = projects.map(|entry| ([entry.status.clone()], entry.count as f64));
    metrics.replace(&PROJECTS, projects);
    let nodes = || status.nodes.iter();
    let up = nodes().map(|node| {
        (
            [node.name.clone()],
            f64::from(u8::from(node.down_since.is_none())),
        )
    });
    metrics.replace(&NODE_UP, up);
    let held = nodes().map(|node| ([node.name.clone()], node.projects as f64));
    metrics.replace(&NODE_PROJECTS, held);
    let memory = nodes().map(|node| ([node.name.clone()], node.memory_bytes as f64));
    metrics.replace(&NODE_MEMORY, memory);
    let free = nodes().filter_map(|node| Some(([node.name.clone()], node.disk_free_bytes? as f64)));
    metrics.replace(&NODE_DISK_FREE, free);
    let work = || status.work.iter();
    let open = work().map(|work| ([work.kind.to_owned()], work.count as f64));
    metrics.replace(&WORK, open);
    let age = work().map(|work| {
        let age = work.oldest.map_or(0, |oldest| (now - oldest).num_seconds());
        ([work.kind.to_owned()], age.max(0) as f64)
    });
    metrics.replace(&WORK_AGE, age);
    let backups = &status.backups;
    metrics.replace_value(&WITHOUT_BACKUP, backups.without_backup as f64);
    metrics.replace_value(&BEHIND, backups.behind as f64);
    metrics.replace_value(&FAILED_TESTS, backups.failed_tests as f64);
    metrics.replace_value(&CERTIFICATES, status.certificates.len() as f64);
}
