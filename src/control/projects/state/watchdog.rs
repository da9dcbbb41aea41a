//! Measurements of the watchdog between two rounds.

use std::collections::HashMap;

use gantry_base::{clock::Ticks, ids::ProjectId};
use tokio::sync::Mutex;

use crate::control::metrics::Bound;

/// State between two rounds. Bounded by the running projects of this node.
#[derive(Debug, Default)]
pub struct Watchdog(pub(in crate::control) Mutex<WatchdogState>);

#[derive(Debug, Default)]
pub(in crate::control) struct WatchdogState {
    pub(in crate::control) projects: HashMap<ProjectId, Seen>,
    /// Time of the last measurement of disk space, and the free bytes and inodes at that time.
    pub(in crate::control) measured: Option<(Ticks, (u64, u64))>,
}

#[derive(Debug, Default)]
pub(in crate::control) struct Seen {
    /// The kernel's counts of killed processes and rejected forks in the last round.
    pub(in crate::control) counts: Option<(u64, u64)>,
    /// Times of the last events about limits.
    pub(in crate::control) announced: [Option<Ticks>; Bound::ALL.len()],
    /// The last warning about a limit and its time.
    pub(in crate::control) event: Option<(Ticks, String)>,
    /// Consecutive rounds in which the project exceeded its memory.
    pub(in crate::control) strikes: u32,
    pub(in crate::control) level: Option<(DiskLevel, Option<String>)>,
}

/// The level of a project's disk usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::control) enum DiskLevel {
    Fine,
    /// Reported in the health.
    Soft,
    /// Transactions are read-only by default.
    ReadOnly,
    /// The server is stopped.
    Stop,
}
