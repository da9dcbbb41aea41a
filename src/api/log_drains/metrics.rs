//! Metrics of log drains.

use std::collections::HashMap;

use metrics::{Counter, Gauge};
use parking_lot::Mutex;
use uuid::Uuid;

use super::settings::BackendType;
use crate::platform::telemetry::{Metric, MetricLabel, Metrics};

/// The types with deliveries.
const BACKENDS: [BackendType; 6] = [
    BackendType::Webhook,
    BackendType::Datadog,
    BackendType::Loki,
    BackendType::Otlp,
    BackendType::S3,
    BackendType::Syslog,
];

const TYPE: MetricLabel = MetricLabel::any("type", "type of the log drain");

const LINES: Metric = Metric::counter("gantry_log_drain_lines_total", "Lines of log drains")
    .with_labels(&[
        TYPE,
        MetricLabel::one_of("outcome", &["delivered", "dropped"]),
    ]);
const FAILURES: Metric =
    Metric::counter("gantry_log_drain_failures_total", "Deliveries that failed")
        .with_labels(&[TYPE]);
const LAG: Metric = Metric::gauge(
    "gantry_log_drain_lag_lines",
    "Lines that wait for delivery, of all log drains",
);
const FAILING: Metric = Metric::gauge(
    "gantry_log_drains_failing",
    "Log drains whose last delivery failed",
);

/// Metrics of log drains.
pub(crate) const METRICS: &[&Metric] = &[&LINES, &FAILURES, &LAG, &FAILING];

/// A drain and a store of lines.
pub(super) type DrainKey = (Uuid, String);

/// Counters by type, and gauges over all drains of this process.
pub(super) struct DrainMetrics {
    delivered: [Counter; 6],
    dropped: [Counter; 6],
    failed: [Counter; 6],
    lag: Gauge,
    failing: Gauge,
    /// Waiting lines of each drain, and whether it fails.
    drains: Mutex<HashMap<DrainKey, (u64, bool)>>,
}

impl DrainMetrics {
    /// Registers the metrics.
    pub(super) fn new(metrics: &Metrics) -> Self {
        let lines =
            |outcome| BACKENDS.map(|backend| metrics.counter(&LINES, &[backend.name(), outcome]));
        Self {
            delivered: lines("delivered"),
            dropped: lines("dropped"),
            failed: BACKENDS.map(|backend| metrics.counter(&FAILURES, &[backend.name()])),
            lag: metrics.gauge(&LAG, &[]),
            failing: metrics.gauge(&FAILING, &[]),
            drains: Mutex::default(),
        }
    }

    /// Counts delivered lines.
    pub(super) fn delivered(&self, backend: BackendType, lines: u64) {
        count(&self.delivered, backend, lines);
    }

    /// Counts dropped lines.
    pub(super) fn dropped(&self, backend: BackendType, lines: u64) {
        count(&self.dropped, backend, lines);
    }

    /// Counts a failed attempt.
    pub(super) fn failed(&self, backend: BackendType) {
        count(&self.failed, backend, 1);
    }

    /// Updates the gauges with the state of a drain.
    pub(super) fn report(&self, drain: DrainKey, lag: u64, failing: bool) {
        let mut drains = self.drains.lock();
        drains.insert(drain, (lag, failing));
        self.publish(&drains);
    }

    /// Forgets drains that this process no longer delivers.
    pub(super) fn retain(&self, keep: impl Fn(&DrainKey) -> bool) {
        let mut drains = self.drains.lock();
        drains.retain(|drain, _| keep(drain));
        self.publish(&drains);
    }

    #[expect(clippy::cast_precision_loss, reason = "a gauge needs no exact count")]
    fn publish(&self, drains: &HashMap<DrainKey, (u64, bool)>) {
        let lag: u64 = drains.values().map(|(lag, _)| lag).sum();
        let failing = drains.values().filter(|(_, failing)| *failing).count();
        self.lag.set(lag as f64);
        self.failing.set(failing as f64);
    }
}

fn count(counters: &[Counter; 6], backend: BackendType, by: u64) {
    if let Some(index) = BACKENDS.iter().position(|it| *it == backend) {
        counters[index].increment(by);
    }
}
