//! State of the calls of databases that other parts of the control plane use.

use std::{collections::HashSet, mem, sync::Arc};

use gantry_base::ids::ProjectId;
use metrics::Counter;
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::call_log::{CallLog, EndedCall};
use crate::platform::telemetry::{Metric, MetricLabel, Metrics};

/// Calls in flight of all projects, beyond those that each project has places of its own for.
const SHARED_CALLS_MAX: usize = 256;
/// Calls in flight for which a project needs no place among those that all projects share.
const OWN_CALLS: usize = 4;
/// Databases that are searched for the extension at the same time.
const CHECKS_MAX: usize = 8;

/// The result of a call, as counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallResult {
    /// The receiver answered, with any status.
    Answered,
    /// The receiver did not answer in time.
    TimedOut,
    /// The policy of the operator forbids the destination.
    Refused,
    /// The request is invalid, or it has no complete response.
    Failed,
    /// The response could not be stored in the database.
    Unstored,
}

/// The places of the calls of one project: its own, and those that all projects share.
#[derive(Clone)]
pub(super) struct CallPlaces {
    own: Arc<Semaphore>,
    shared: Arc<Semaphore>,
}

impl CallPlaces {
    fn new(shared: &Arc<Semaphore>) -> Self {
        Self {
            own: Arc::new(Semaphore::new(OWN_CALLS)),
            shared: shared.clone(),
        }
    }

    /// Waits for a place, which is free again when the permit is dropped.
    pub(super) async fn enter(&self) -> Option<OwnedSemaphorePermit> {
        // Neither is ever closed.
        tokio::select! {
            biased;
            place = self.own.clone().acquire_owned() => place.ok(),
            place = self.shared.clone().acquire_owned() => place.ok(),
        }
    }
}

/// Values of the label `result`.
const RESULTS: [&str; 5] = ["answered", "timed-out", "refused", "failed", "unstored"];

const CALLS: Metric = Metric::counter(
    "gantry_database_calls_total",
    "HTTP requests of databases that ended",
)
.with_labels(&[MetricLabel::one_of("result", &RESULTS)]);
const UNLOGGED: Metric = Metric::counter(
    "gantry_database_calls_unlogged_total",
    "HTTP requests of databases without a line in the logs, because the queue was full",
);

/// Metrics of HTTP requests of databases.
pub const METRICS: &[&Metric] = &[&CALLS, &UNLOGGED];

/// Senders of all projects, as other tasks see them.
pub struct DatabaseCalls {
    /// Projects without a sender that were used since the last pass.
    used: Mutex<HashSet<ProjectId>>,
    /// Projects with calls that are queued, in flight or not stored.
    busy: Mutex<HashSet<ProjectId>>,
    /// Requests a pass over all projects.
    pub(super) pass: Notify,
    shared: Arc<Semaphore>,
    pub(super) checks: Arc<Semaphore>,
    /// Calls that ended, until they are written to the logs of their projects.
    pub log: CallLog,
    unlogged: Counter,
    results: [Counter; 5],
}

impl DatabaseCalls {
    /// Registers the metrics.
    pub fn new(metrics: &Metrics) -> Self {
        Self {
            used: Mutex::default(),
            busy: Mutex::default(),
            pass: Notify::new(),
            shared: Arc::new(Semaphore::new(SHARED_CALLS_MAX)),
            checks: Arc::new(Semaphore::new(CHECKS_MAX)),
            log: CallLog::default(),
            unlogged: metrics.counter(&UNLOGGED, &[]),
            results: RESULTS.map(|result| metrics.counter(&CALLS, &[result])),
        }
    }

    /// Looks for the extension in all running projects without a sender now.
    pub fn wake(&self) {
        self.pass.notify_one();
    }

    /// Returns whether a project has calls that are not answered yet.
    pub fn is_busy(&self, project: ProjectId) -> bool {
        self.busy.lock().contains(&project)
    }

    /// Records that the database of a project was used: the extension may have been created.
    pub(in crate::control) fn note_use(&self, project: ProjectId) {
        /// Upper bound of projects in memory. Further ones are found by the slow search.
        const USED_MAX: usize = 100_000;
        let mut used = self.used.lock();
        if used.len() < USED_MAX {
            used.insert(project);
        }
    }

    pub(super) fn take_used(&self) -> HashSet<ProjectId> {
        mem::take(&mut self.used.lock())
    }

    pub(super) fn set_busy(&self, project: ProjectId, busy: bool) {
        let mut all = self.busy.lock();
        if busy {
            all.insert(project);
        } else {
            all.remove(&project);
        }
    }

    /// Returns the places of a project that gets a sender.
    pub(super) fn places(&self) -> CallPlaces {
        CallPlaces::new(&self.shared)
    }

    /// Queues a call for the log of its project. A full queue drops it.
    pub(super) fn note(&self, call: EndedCall) {
        if !self.log.add(call) {
            self.unlogged.increment(1);
        }
    }

    /// Counts calls by their result.
    pub(super) fn count(&self, result: CallResult, calls: usize) {
        self.results[result as usize].increment(calls as u64);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn project_with_all_shared_places_leaves_their_own_to_others() {
        let shared = Arc::new(Semaphore::new(SHARED_CALLS_MAX));
        let enter = |places: &CallPlaces| places.enter().now_or_never().flatten();
        let (busy, neighbour) = (CallPlaces::new(&shared), CallPlaces::new(&shared));
        let mut taken: Vec<_> = std::iter::from_fn(|| enter(&busy)).collect();
        assert_eq!(taken.len(), SHARED_CALLS_MAX + OWN_CALLS);
        let own: Vec<_> = std::iter::from_fn(|| enter(&neighbour)).collect();
        assert_eq!(own.len(), OWN_CALLS);
        // The last one is a shared place.
        taken.pop();
        assert!(enter(&neighbour).is_some());
    }
}
