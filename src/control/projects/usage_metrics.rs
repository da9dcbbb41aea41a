//! Metrics of single projects and of this process.

use gantry_base::ids::ProjectRef;
use gantry_node::{kits::Service, proc_files::ProcessFiles};

use super::state::watchdog::{MeasuredUsage, ServerUsage};
use crate::{
    control::context::ControlContext,
    platform::telemetry::{Metric, MetricLabel, Metrics, PROJECT},
    proxy::service_proxy::RequestCounts,
};

/// Name and compute size of each running project.
pub const INFO: Metric = Metric::gauge(
    "gantry_project_info",
    "1, with the name and compute size of a running project as labels",
)
.with_labels(&[
    PROJECT,
    MetricLabel::any("name", "name of the project"),
    MetricLabel::any("size", "compute size, such as `micro`"),
]);
/// Time of the last measurement of projects.
pub const MEASURED: Metric = Metric::gauge(
    "gantry_projects_measured_timestamp_seconds",
    "Time of the last measurement of memory, processes and processor time",
);
/// Memory of a project.
pub const MEMORY: Metric = Metric::gauge(
    "gantry_project_memory_bytes",
    "Memory of a project's PostgreSQL server that cannot be reclaimed",
)
.with_labels(&[PROJECT]);
/// Limit of the memory of a project.
pub const MEMORY_LIMIT: Metric = Metric::gauge(
    "gantry_project_memory_limit_bytes",
    "Limit of the memory of a project's PostgreSQL server",
)
.with_labels(&[PROJECT]);
/// Processes of a project.
pub const PROCESSES: Metric = Metric::gauge(
    "gantry_project_processes",
    "Processes of a project's PostgreSQL server",
)
.with_labels(&[PROJECT]);
/// Processor time of a project.
pub const CPU: Metric = Metric::counter(
    "gantry_project_cpu_seconds_total",
    "Processor time of a project's PostgreSQL server since its start",
)
.with_labels(&[PROJECT]);
/// Disk space of a project.
pub const DISK: Metric = Metric::gauge(
    "gantry_project_disk_bytes",
    "Disk space of a project, measured at least every two minutes",
)
.with_labels(&[PROJECT]);
/// Limit of the disk space of a project.
pub const DISK_LIMIT: Metric = Metric::gauge(
    "gantry_project_disk_limit_bytes",
    "Limit of the disk space of a project",
)
.with_labels(&[PROJECT]);
/// Connections of clients to a project.
pub const CONNECTIONS: Metric = Metric::gauge(
    "gantry_project_connections",
    "Open connections of clients to a project's PostgreSQL ports",
)
.with_labels(&[PROJECT, MetricLabel::one_of("mode", &["session", "pooled"])]);
/// Requests to the services of a project.
pub const REQUESTS: Metric = Metric::counter(
    "gantry_project_requests_total",
    "Requests to the services of a project that were answered",
)
.with_labels(&[PROJECT, SERVICE]);
/// Failed requests to the services of a project.
pub const REQUEST_ERRORS: Metric = Metric::counter(
    "gantry_project_request_errors_total",
    "Requests to the services of a project that were answered with a status of 500 or above",
)
.with_labels(&[PROJECT, SERVICE]);

const PROCESS_CPU: Metric = Metric::counter(
    "process_cpu_seconds_total",
    "Processor time of this process",
);
const PROCESS_MEMORY: Metric = Metric::gauge(
    "process_resident_memory_bytes",
    "Resident memory of this process",
);
const PROCESS_FILES: Metric = Metric::gauge("process_open_fds", "Open files of this process");
const BUILD: Metric = Metric::gauge("gantry_build_info", "1, with the version as a label")
    .with_labels(&[MetricLabel::any("version", "version of Gantry")]);

const SERVICE: MetricLabel = MetricLabel::any("service", "a service, such as `rest`");

/// Metrics of single projects and of this process.
pub const METRICS: &[&Metric] = &[
    &INFO,
    &MEASURED,
    &MEMORY,
    &MEMORY_LIMIT,
    &PROCESSES,
    &CPU,
    &DISK,
    &DISK_LIMIT,
    &CONNECTIONS,
    &REQUESTS,
    &REQUEST_ERRORS,
    &PROCESS_CPU,
    &PROCESS_MEMORY,
    &PROCESS_FILES,
    &BUILD,
];

/// Publishes the last measurements of projects, and measures this process.
#[expect(clippy::cast_precision_loss, reason = "metrics are approximate")]
pub fn publish(context: &ControlContext) {
    let metrics: &Metrics = &context.metrics;
    let MeasuredUsage {
        at: measured_at,
        projects: usage,
    } = context.watchdog.usage();
    let by_project = |metric, value: fn(&ServerUsage) -> Option<f64>| {
        let series = usage.iter();
        let series = series.filter_map(|(project, usage)| Some((labels(project), value(usage)?)));
        metrics.replace(metric, series);
    };
    let info = usage.iter().map(|(project, usage)| {
        let size = usage.size.code().to_owned();
        ([project.to_string(), usage.name.clone(), size], 1.0)
    });
    metrics.replace(&INFO, info);
    if let Some(at) = measured_at {
        metrics.replace_value(&MEASURED, at.timestamp_millis() as f64 / 1000.0);
    }
    by_project(&MEMORY, |usage| Some(usage.memory_bytes as f64));
    by_project(&MEMORY_LIMIT, |usage| Some(usage.memory_limit_bytes as f64));
    by_project(&PROCESSES, |usage| Some(usage.processes as f64));
    by_project(&CPU, |usage| Some(seconds(usage.processor_ms?)));
    by_project(&DISK, |usage| Some(usage.disk_bytes? as f64));
    by_project(&DISK_LIMIT, |usage| Some(usage.disk_limit_bytes as f64));
    let connections = usage.iter().flat_map(|(project, usage)| {
        let (session, pooled) = context.postgres_proxy.connections_of(usage.id);
        [("session", session), ("pooled", pooled)]
            .map(|(mode, count)| ([project.to_string(), mode.to_owned()], count as f64))
    });
    metrics.replace(&CONNECTIONS, connections);
    publish_requests(context);
    publish_process(metrics);
}

#[expect(clippy::cast_precision_loss, reason = "metrics are approximate")]
fn publish_requests(context: &ControlContext) {
    let counts = context.service_proxy.project_requests.counts();
    let series = |metric, value: fn(&RequestCounts) -> u64| {
        let series = counts.iter().map(|((project, service), counts)| {
            let service: &Service = service;
            let labels = [project.to_string(), service.name().to_owned()];
            (labels, value(counts) as f64)
        });
        context.metrics.replace(metric, series);
    };
    series(&REQUESTS, |counts| counts.requests);
    series(&REQUEST_ERRORS, |counts| counts.errors);
}

#[expect(clippy::cast_precision_loss, reason = "metrics are approximate")]
fn publish_process(metrics: &Metrics) {
    let files = ProcessFiles::of(rustix::process::getpid());
    if let Some(stat) = files.stat() {
        metrics.replace_value(&PROCESS_CPU, seconds(stat.processor_ms));
    }
    if let Some(status) = files.status() {
        metrics.replace_value(&PROCESS_MEMORY, status.resident_bytes as f64);
    }
    if let Ok(open) = files.open_files() {
        metrics.replace_value(&PROCESS_FILES, open.count() as f64);
    }
    metrics.replace(&BUILD, [([env!("CARGO_PKG_VERSION").to_owned()], 1.0)]);
}

fn labels(project: &ProjectRef) -> [String; 1] {
    [project.to_string()]
}

#[expect(clippy::cast_precision_loss, reason = "metrics are approximate")]
fn seconds(milliseconds: u64) -> f64 {
    milliseconds as f64 / 1000.0
}
