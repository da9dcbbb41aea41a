//! State of branches in the context: options of the operator, and runs of this process.

use std::{collections::HashSet, sync::Arc, time::Duration};

use chrono::TimeDelta;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};

/// Limits of branches and of their lives.
#[derive(Debug, Clone, Copy)]
pub struct BranchOptions {
    /// Life of a branch that is not persistent, unless its creator chooses.
    pub life: TimeDelta,
    /// Time without use after which a branch that is not persistent is deleted, even if it would
    /// live longer. `None`: never.
    pub unused_life: Option<TimeDelta>,
    /// Maximum number of branches of a project, besides the default branch.
    pub per_project_max: u32,
    /// Idle time after which the server of a branch is stopped. `None`: as those of projects.
    pub idle_pause_after: Option<Duration>,
}

impl Default for BranchOptions {
    fn default() -> Self {
        Self {
            life: TimeDelta::days(7),
            unused_life: Some(TimeDelta::days(14)),
            per_project_max: 20,
            idle_pause_after: Some(Duration::from_mins(15)),
        }
    }
}

/// State of the runs of this process.
pub struct BranchRunner {
    pub(super) wake: Notify,
    /// Runs that are under way.
    pub(super) busy: Mutex<HashSet<String>>,
    /// Held while notifications are delivered.
    pub(super) notifying: Arc<Semaphore>,
}

impl Default for BranchRunner {
    fn default() -> Self {
        Self {
            wake: Notify::new(),
            busy: Mutex::default(),
            notifying: Arc::new(Semaphore::new(1)),
        }
    }
}

impl BranchRunner {
    /// Starts a pass.
    pub fn wake(&self) {
        self.wake.notify_one();
    }
}
