//! Options for branches.

use std::time::Duration;

use chrono::TimeDelta;
use clap::Args;

use super::sections;
use crate::api::branches::BranchOptions;

/// Limits of branches.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = sections::BRANCHES.heading)]
pub struct BranchFlags {
    /// Days after which a branch is deleted that is not persistent, unless its creator chooses.
    #[arg(long, env = "GANTRY_BRANCH_LIFE_DAYS", default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..=365), value_name = "DAYS")]
    pub branch_life_days: u16,

    /// Days without use after which a branch is deleted that is not persistent, even if it would
    /// live longer.
    #[arg(long, env = "GANTRY_BRANCH_UNUSED_DAYS", default_value_t = 14, value_parser = clap::value_parser!(u16).range(1..=365), value_name = "DAYS")]
    pub branch_unused_days: u16,

    /// Minutes without use after which the server of a branch is stopped. The next connection
    /// starts it again. `--idle-pause-after` applies, too, if it is shorter.
    #[arg(long, env = "GANTRY_BRANCH_IDLE_PAUSE_AFTER", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..), value_name = "MINUTES")]
    pub branch_idle_pause_after: u32,

    /// Quota of branches of a project, besides the default branch.
    #[arg(long, env = "GANTRY_BRANCHES_PER_PROJECT", default_value_t = 20, value_parser = clap::value_parser!(u32).range(0..=1000), value_name = "COUNT")]
    pub branches_per_project: u32,
}

impl BranchFlags {
    /// Returns the limits.
    pub fn options(&self) -> BranchOptions {
        BranchOptions {
            life: TimeDelta::days(self.branch_life_days.into()),
            unused_life: Some(TimeDelta::days(self.branch_unused_days.into())),
            per_project_max: self.branches_per_project,
            idle_pause_after: Some(Duration::from_secs(
                u64::from(self.branch_idle_pause_after) * 60,
            )),
        }
    }
}
