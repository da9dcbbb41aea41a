//! The limits of a project, and the bounds of its processes.

use std::{collections::HashMap, io, path::Path, sync::Arc, time::Duration};

use parking_lot::Mutex;
use rustix::process::Pid;

use super::{shared_memory, usage};
use crate::{
    clusters::resources::cgroup::ControlGroups,
    supervisor::{LaunchBounds, ProcessOwner},
};

/// The time between signals when a server is stopped for exceeding its limits.
pub(super) const STOP_PATIENCE: Duration = Duration::from_secs(5);
/// One mebibyte, in bytes.
pub(super) const MB: u64 = 1 << 20;

/// The resource limits of one project. Sizes are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResourceLimits {
    /// Memory of all processes of the server together, shared memory and files in memory included.
    pub memory_bytes: u64,
    /// Address space of each process.
    pub process_memory_bytes: u64,
    /// Processes and threads.
    pub processes: u64,
    /// Share of the processor when it is scarce, 1 to 10000. The kernel's default is 100.
    pub cpu_weight: u32,
    /// Share of the disk's time when it is scarce, 1 to 1000. The kernel's default is 100.
    pub io_weight: u32,
    /// Size of one file. PostgreSQL splits tables and temporary files into files of 1 GB.
    pub file_bytes: u64,
    /// Memory that a process may lock against being swapped out.
    pub locked_memory_bytes: u64,
    /// Disk usage at which the project's health reports that its disk is nearly full.
    pub disk_soft_bytes: u64,
    /// Limit of disk space. The project becomes read-only shortly before.
    pub disk_hard_bytes: u64,
    /// Limit of the number of files and folders, with the same effect.
    pub inodes: u64,
}

impl ResourceLimits {
    /// Soft limit, in percent of the hard limit.
    const SOFT_PERCENT: u64 = 80;
    /// Usage at which a server that still writes is stopped, in percent of the hard limit.
    const STOP_PERCENT: u64 = 110;

    /// Sets the hard limit of disk space and the limit of inodes. Derives the soft limit.
    #[must_use]
    pub fn with_disk(self, hard_bytes: u64, inodes: u64) -> Self {
        Self {
            disk_soft_bytes: hard_bytes / 100 * Self::SOFT_PERCENT,
            disk_hard_bytes: hard_bytes,
            inodes,
            ..self
        }
    }

    /// Sets the hard limit of disk space to what the owner of the project chose, if anything.
    #[must_use]
    pub fn with_disk_choice(self, hard_bytes: Option<i64>) -> Self {
        match hard_bytes.and_then(|bytes| u64::try_from(bytes).ok()) {
            Some(hard_bytes) => self.with_disk(hard_bytes, self.inodes),
            None => self,
        }
    }

    /// Disk usage at which the server is stopped, in bytes.
    pub fn disk_stop_bytes(&self) -> u64 {
        (self.disk_hard_bytes / 100).saturating_mul(Self::STOP_PERCENT)
    }

    /// Number of inodes at which the server is stopped.
    pub fn inodes_stop(&self) -> u64 {
        (self.inodes / 100).saturating_mul(Self::STOP_PERCENT)
    }
}

impl Default for ResourceLimits {
    /// Room for a small project: 118 connections, a database of a few gigabytes.
    fn default() -> Self {
        let limits = Self {
            memory_bytes: 1024 * MB,
            process_memory_bytes: 1024 * MB,
            processes: 256,
            cpu_weight: 100,
            io_weight: 100,
            file_bytes: 2048 * MB,
            locked_memory_bytes: 64 << 10,
            disk_soft_bytes: 0,
            disk_hard_bytes: 0,
            inodes: 0,
        };
        limits.with_disk(8192 * MB, 200_000)
    }
}

/// The limits of projects, and the control groups that enforce them.
#[derive(Debug, Clone)]
pub struct Resources {
    limits: ResourceLimits,
    /// Limits of clusters with others. Bounded by the clusters of this node.
    own: Arc<Mutex<HashMap<String, ResourceLimits>>>,
    groups: Arc<ControlGroups>,
}

impl Resources {
    /// Returns the limits with the control groups that enforce them, if there are any.
    pub fn new(limits: ResourceLimits, groups: ControlGroups) -> Self {
        Self {
            limits,
            own: Arc::default(),
            groups: Arc::new(groups),
        }
    }

    /// The limits of a project without own ones.
    pub fn limits(&self) -> &ResourceLimits {
        &self.limits
    }

    /// Sets the limits of a cluster, or removes them. They apply to its next start.
    pub(in crate::clusters) fn bound(&self, cluster: &str, limits: Option<ResourceLimits>) {
        let mut own = self.own.lock();
        match limits.filter(|limits| *limits != self.limits) {
            Some(limits) => own.insert(cluster.to_owned(), limits),
            None => own.remove(cluster),
        };
    }

    /// Returns the limits of a cluster.
    pub(in crate::clusters) fn limits_of(&self, cluster: &str) -> ResourceLimits {
        self.own.lock().get(cluster).copied().unwrap_or(self.limits)
    }

    /// The control groups.
    pub fn groups(&self) -> &ControlGroups {
        &self.groups
    }

    /// Creates the group of a cluster, and returns the bounds of its server's processes.
    ///
    /// A failure to create the group is only logged: the server starts within its resource limits,
    /// and the watchdog measures it.
    pub(in crate::clusters) fn prepare(&self, cluster: &str, run_as: ProcessOwner) -> LaunchBounds {
        let groups = self.groups.make(cluster, &self.limits_of(cluster)).unwrap_or_else(|error| {
            tracing::warn!(cluster, %error, "failed to create a control group; only the watchdog limits the server");
            // An empty group would hide that the server is in no group.
            let _ = self.groups.remove(cluster);
            Vec::new()
        });
        LaunchBounds {
            groups,
            ..self.launch_limits(cluster, run_as)
        }
    }

    /// The resource limits of one process of a server, without a control group.
    pub(in crate::clusters) fn launch_limits(
        &self,
        cluster: &str,
        run_as: ProcessOwner,
    ) -> LaunchBounds {
        let limits = self.limits_of(cluster);
        LaunchBounds {
            groups: Vec::new(),
            memory_max: Some(limits.process_memory_bytes),
            // The kernel counts by user id, so the limit needs a user id per project.
            processes_max: run_as.own_uid().map(|_| limits.processes),
            file_max: Some(limits.file_bytes),
            locked_memory_max: Some(limits.locked_memory_bytes),
            ..LaunchBounds::default()
        }
    }

    /// Returns all live processes of a cluster: those in its control group or, without one, those
    /// with its own user id. Empty without control groups and without root.
    pub(in crate::clusters) fn members(
        &self,
        cluster: &str,
        run_as: ProcessOwner,
        place: &Path,
        sockets: &Path,
    ) -> io::Result<Vec<Pid>> {
        if let Some(members) = self.groups.members(cluster)? {
            return Ok(members);
        }
        match run_as.own_uid() {
            Some(uid) => usage::processes_of(uid, &[place, sockets]),
            None => Ok(Vec::new()),
        }
    }

    /// Prevents a cluster's processes from forking before they are killed. Does nothing without a
    /// group.
    pub(in crate::clusters) fn freeze_forks(&self, cluster: &str) {
        self.groups.forbid_forks(cluster);
    }

    /// Removes the control group and the System V shared memory of a server. All its processes must
    /// have ended.
    pub(in crate::clusters) fn release(&self, cluster: &str, run_as: ProcessOwner) {
        if let Err(error) = self.groups.remove(cluster) {
            tracing::warn!(cluster, %error, "failed to remove a control group");
        }
        release_shared_memory(cluster, run_as);
    }

    /// Removes groups of clusters that are not `known`, with the processes in them.
    pub(in crate::clusters) fn remove_stale(&self, known: &dyn Fn(&str) -> bool) -> io::Result<()> {
        self.groups.remove_stale(known)
    }
}

/// Removes System V shared memory, semaphores and message queues that remain of a server's user id.
pub(in crate::clusters) fn release_shared_memory(cluster: &str, run_as: ProcessOwner) {
    // Without root, segments with this user id may belong to other programs.
    let Some(uid) = run_as.own_uid() else { return };
    match shared_memory::remove_abandoned(uid, uid) {
        Ok(0) => {}
        Ok(removed) => tracing::info!(
            cluster,
            removed,
            "removed System V objects of the stopped server"
        ),
        Err(error) => {
            tracing::warn!(cluster, %error, "failed to remove System V objects of the server");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_limits_are_ordered() {
        let limits = ResourceLimits::default().with_disk(1000 * MB, 1000);
        let levels = [
            limits.disk_soft_bytes,
            limits.disk_hard_bytes,
            limits.disk_stop_bytes(),
        ]
        .map(|bytes| bytes / MB);
        assert_eq!(levels, [800, 1000, 1100]);
        assert_eq!(limits.inodes_stop(), 1100);
        assert!(limits.file_bytes > 1 << 30, "a segment of a table has 1 GB");
    }
}
