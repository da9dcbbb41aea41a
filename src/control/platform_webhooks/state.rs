//! State of platform webhooks that other parts of the control plane use.

use metrics::Counter;
use tokio::sync::Notify;

use crate::platform::telemetry::{Metric, MetricLabel, Metrics};

/// The result of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptResult {
    /// The receiver answered with 2xx.
    Success,
    /// The receiver answered with another status.
    Rejected,
    /// The receiver did not answer in time.
    TimedOut,
    /// The policy of the operator forbids the address.
    Refused,
    /// There is no connection, or no complete response.
    Failed,
}

/// Values of the label `result`.
const RESULTS: [&str; 5] = ["success", "rejected", "timed-out", "refused", "failed"];

const ATTEMPTS: Metric = Metric::counter(
    "gantry_webhook_attempts_total",
    "Attempts to deliver an event to a platform webhook",
)
.with_labels(&[MetricLabel::one_of("result", &RESULTS)]);

/// Metrics of platform webhooks.
pub const METRICS: &[&Metric] = &[&ATTEMPTS];

/// Deliveries of this process, as other tasks see them.
pub struct PlatformWebhooks {
    pub(super) bell: Notify,
    results: [Counter; 5],
}

impl PlatformWebhooks {
    /// Registers the metrics.
    pub fn new(metrics: &Metrics) -> Self {
        Self {
            bell: Notify::new(),
            results: RESULTS.map(|result| metrics.counter(&ATTEMPTS, &[result])),
        }
    }

    /// Looks for events and due attempts now.
    pub fn wake(&self) {
        self.bell.notify_one();
    }

    /// Counts an attempt.
    pub(super) fn count(&self, result: AttemptResult) {
        self.results[result as usize].increment(1);
    }
}
