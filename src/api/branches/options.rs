//! Options of the operator for branches.

use std::time::Duration;

use chrono::TimeDelta;

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
