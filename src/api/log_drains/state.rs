//! State of log drains in the context: options of the operator, and the deliveries of this process.

use std::sync::Arc;

use gantry_base::clock::Entropy;
use tokio::sync::Notify;
use uuid::Uuid;

use super::metrics::DrainMetrics;
use crate::platform::telemetry::Metrics;

/// Options of the operator for all drains.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// URL of Datadog drains instead of Datadog's own. `{region}` is replaced by the region.
    pub datadog_url: Option<String>,
}

/// State of the deliveries of this process.
pub struct DrainManager {
    /// Id of this process in saved progress.
    pub(super) process: Uuid,
    pub(super) wake: Notify,
    pub(super) metrics: Arc<DrainMetrics>,
}

impl DrainManager {
    /// Creates the state without starting deliveries.
    pub fn new(entropy: &Entropy, metrics: &Metrics) -> Self {
        Self {
            process: entropy.uuid(),
            wake: Notify::new(),
            metrics: Arc::new(DrainMetrics::new(metrics)),
        }
    }

    /// Starts a pass, after a change of a drain.
    pub fn wake(&self) {
        self.wake.notify_one();
    }
}
