//! Health of the stored lines, for metrics and the readiness check.

use metrics::Gauge;

use super::analytics::Analytics;
use crate::platform::telemetry::{Metric, Metrics};

const DAMAGED_FILES: Metric = Metric::gauge(
    "gantry_logs_damaged_files",
    "Damaged files of logs that answers leave out",
);
const DAMAGED_SEGMENTS: Metric = Metric::gauge(
    "gantry_logs_damaged_segments",
    "Damaged segments of the write-ahead log of logs",
);
const DROPPED_BYTES: Metric = Metric::gauge(
    "gantry_logs_dropped_bytes",
    "Bytes of logs that were dropped because of the limit on their size",
);
const PENDING_ROWS: Metric = Metric::gauge(
    "gantry_logs_pending_rows",
    "Lines of logs that are not in a file yet",
);
const LOG_BYTES: Metric = Metric::gauge(
    "gantry_logs_log_bytes",
    "Size of the write-ahead log of logs",
);
const FAILURES: Metric = Metric::gauge(
    "gantry_logs_failures",
    "Failed writes of logs since the start",
);

/// Metrics of the stores of logs.
pub(crate) const METRICS: &[&Metric] = &[
    &DAMAGED_FILES,
    &DAMAGED_SEGMENTS,
    &DROPPED_BYTES,
    &PENDING_ROWS,
    &LOG_BYTES,
    &FAILURES,
];

/// Gauges of the stores of this process.
pub(super) struct LogGauges {
    damaged_files: Gauge,
    damaged_segments: Gauge,
    dropped_bytes: Gauge,
    pending_rows: Gauge,
    log_bytes: Gauge,
    failures: Gauge,
}

/// Damage that the stores of this process have found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogDamageCounts {
    /// Number of damaged files that are left out of answers.
    pub files: u64,
    /// Number of damaged segments of the write-ahead log.
    pub segments: u64,
}

impl LogDamageCounts {
    /// Returns a text for the operator, or `None` if nothing is damaged.
    pub fn warning(self) -> Option<String> {
        let Self { files, segments } = self;
        if files == 0 && segments == 0 {
            return None;
        }
        Some(format!(
            "{files} log files and {segments} log segments are damaged; run 'gantry logs verify'"
        ))
    }
}

impl LogGauges {
    pub(super) fn new(metrics: &Metrics) -> Self {
        Self {
            damaged_files: metrics.gauge(&DAMAGED_FILES, &[]),
            damaged_segments: metrics.gauge(&DAMAGED_SEGMENTS, &[]),
            dropped_bytes: metrics.gauge(&DROPPED_BYTES, &[]),
            pending_rows: metrics.gauge(&PENDING_ROWS, &[]),
            log_bytes: metrics.gauge(&LOG_BYTES, &[]),
            failures: metrics.gauge(&FAILURES, &[]),
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "gauges are floating-point")]
    pub(super) async fn set(&self, analytics: &Analytics) {
        let mut sum = gantry_logs::store::Stats::default();
        for stats in analytics.stats().await {
            // The stores of one process share their files.
            sum.damaged_files = sum.damaged_files.max(stats.damaged_files);
            sum.damaged_segments += stats.damaged_segments;
            sum.dropped_bytes += stats.dropped_bytes;
            sum.pending_rows += stats.pending_rows;
            sum.log_bytes += stats.log_bytes;
            sum.failures += stats.failures;
        }
        self.damaged_files.set(sum.damaged_files as f64);
        self.damaged_segments.set(sum.damaged_segments as f64);
        self.dropped_bytes.set(sum.dropped_bytes as f64);
        self.pending_rows.set(sum.pending_rows as f64);
        self.log_bytes.set(sum.log_bytes as f64);
        self.failures.set(sum.failures as f64);
    }
}

impl Analytics {
    /// Returns the statistics of the open stores.
    async fn stats(&self) -> Vec<gantry_logs::store::Stats> {
        let now = self.clock.now().timestamp_micros();
        let stores = self.stores.lock().await;
        stores.all().map(|open| open.store.stats(now)).collect()
    }

    /// Returns the damage that the open stores have found.
    pub async fn damage(&self) -> LogDamageCounts {
        let mut counts = LogDamageCounts::default();
        for stats in self.stats().await {
            counts.files = counts.files.max(stats.damaged_files);
            counts.segments += stats.damaged_segments;
        }
        counts
    }
}
