//! Measurements of the watchdog between two rounds.

use std::collections::{BTreeMap, HashMap};

use chrono::{DateTime, Utc};
use gantry_base::{
    clock::Ticks,
    ids::{ProjectId, ProjectRef},
};
use parking_lot::Mutex;
use tokio::sync::Mutex as AsyncMutex;

use crate::control::{metrics::Bound, projects::sizes::InstanceSize};

/// State between two rounds. Bounded by the running projects of this node.
#[derive(Debug, Default)]
pub struct Watchdog {
    pub(in crate::control) state: AsyncMutex<WatchdogState>,
    usage: Mutex<MeasuredUsage>,
}

/// Usage of the running projects of this node.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct MeasuredUsage {
    /// Time of the measurement. `None` if there was none yet.
    pub at: Option<DateTime<Utc>>,
    /// Usage by project.
    pub projects: BTreeMap<ProjectRef, ServerUsage>,
}

/// Resources that the PostgreSQL server of a running project uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerUsage {
    /// Id of the project.
    pub id: ProjectId,
    /// Name of the project.
    pub name: String,
    /// Compute size with which the server was started.
    pub size: InstanceSize,
    /// Memory that cannot be reclaimed, in bytes.
    pub memory_bytes: u64,
    /// Limit of the memory, in bytes.
    pub memory_limit_bytes: u64,
    /// Number of processes.
    pub processes: u64,
    /// Processor time since the start of the server, in milliseconds. `None` if the kernel does
    /// not count it.
    pub processor_ms: Option<u64>,
    /// Disk space as measured last, in bytes. `None` until the first measurement.
    pub disk_bytes: Option<u64>,
    /// Limit of the disk space, in bytes.
    pub disk_limit_bytes: u64,
}

impl Watchdog {
    /// Returns the measurements of the last round.
    pub fn usage(&self) -> MeasuredUsage {
        self.usage.lock().clone()
    }

    /// Replaces the measurements.
    pub(in crate::control) fn set_usage(&self, usage: MeasuredUsage) {
        *self.usage.lock() = usage;
    }
}

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
    /// Disk space in bytes.
    pub(in crate::control) disk_bytes: Option<u64>,
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
