//! Pure decisions about projects that exceed their limits.

use gantry_node::clusters::{
    ProcessEnd, ResourceLimits, ServerProcess,
    resources::{disk::DiskUsage, usage::ProcessUsage},
};

use crate::control::projects::state::watchdog::DiskLevel;

/// Disk usage at which a project becomes read-only, in percent of the hard limit. The rest is for
/// checkpoints, and for deleting data.
const READ_ONLY_PERCENT: u64 = 95;
/// Disk usage below which a read-only project is writable again, in percent of the hard limit.
const WRITABLE_PERCENT: u64 = 90;
/// Disk usage at which a started server is stopped again without grace, in percent of the hard
/// limit.
const GRACE_PERCENT: u64 = 150;
/// Consecutive measurements above the limit after which the largest process is killed, and after
/// which the server is stopped.
const KILL_STRIKES: u32 = 2;
const STOP_STRIKES: u32 = 3;

/// The action on a project without a control group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Remedy {
    Nothing,
    EndProcess(ServerProcess, ProcessEnd),
    StopServer,
}

/// Returns the level of disk usage. A read-only project stays read-only until usage has dropped to
/// [`WRITABLE_PERCENT`] of the limit.
pub(super) fn disk_level(usage: DiskUsage, limits: &ResourceLimits, read_only: bool) -> DiskLevel {
    let share = |part: u64, percent: u64| part / 100 * percent;
    let read_only_from = if read_only {
        WRITABLE_PERCENT
    } else {
        READ_ONLY_PERCENT
    };
    if usage.unbounded
        || usage.bytes >= limits.disk_stop_bytes()
        || usage.inodes >= limits.inodes_stop()
    {
        DiskLevel::Stop
    } else if usage.bytes >= share(limits.disk_hard_bytes, read_only_from)
        || usage.inodes >= share(limits.inodes, read_only_from)
    {
        DiskLevel::ReadOnly
    } else if usage.bytes >= limits.disk_soft_bytes {
        DiskLevel::Soft
    } else {
        DiskLevel::Fine
    }
}

/// Returns whether usage is so high that a started server is stopped again immediately.
pub(super) fn beyond_grace(usage: DiskUsage, limits: &ResourceLimits) -> bool {
    usage.bytes >= limits.disk_hard_bytes / 100 * GRACE_PERCENT
}

/// Returns the warning for the project's health.
pub(super) fn disk_warning(
    level: DiskLevel,
    usage: DiskUsage,
    limits: &ResourceLimits,
) -> Option<String> {
    let many = if usage.unbounded { "more than " } else { "" };
    let used = format!(
        "the project uses {} MB of {} MB of disk space and {many}{} of {} files",
        usage.bytes >> 20,
        limits.disk_hard_bytes >> 20,
        usage.inodes,
        limits.inodes
    );
    match level {
        DiskLevel::Fine => None,
        DiskLevel::Soft => Some(format!(
            "{used}; at {READ_ONLY_PERCENT} % of the limit the project becomes read-only"
        )),
        DiskLevel::ReadOnly => Some(format!(
            "{used}, so it is read-only: delete data in a transaction that begins with `set transaction read write`, or ask the operator to \
             raise the limit"
        )),
        DiskLevel::Stop => Some(format!(
            "{used}, and still wrote while it was read-only, so its server was stopped: restore it and delete data within 10 minutes, or \
             ask the operator to raise the limit"
        )),
    }
}

/// Returns the action on a project's processes, and the number of consecutive measurements above
/// the limits. First the largest process is terminated, then it is killed, then the server is
/// stopped. `strikes` is the previous number.
pub(super) fn remedy(usage: &ProcessUsage, limits: &ResourceLimits, strikes: u32) -> (Remedy, u32) {
    if usage.memory_bytes <= limits.memory_bytes && usage.processes <= limits.processes {
        return (Remedy::Nothing, 0);
    }
    let strikes = strikes.saturating_add(1);
    // Ending one process does not help against too many processes.
    let largest = usage
        .largest
        .filter(|_| usage.processes <= limits.processes);
    let remedy = match largest {
        Some(process) if strikes < KILL_STRIKES => {
            Remedy::EndProcess(process, ProcessEnd::Terminate)
        }
        Some(process) if strikes < STOP_STRIKES => Remedy::EndProcess(process, ProcessEnd::Kill),
        _ => Remedy::StopServer,
    };
    (remedy, strikes)
}

pub(super) fn memory_event(bytes: u64) -> String {
    format!(
        "processes of the server were killed, because together they reached the project's {} MB of memory",
        bytes >> 20
    )
}

pub(super) fn processes_event(processes: u64) -> String {
    format!(
        "the server reached the project's limit of {processes} processes and could not start more"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1 << 20;

    fn limits() -> ResourceLimits {
        ResourceLimits {
            memory_bytes: 100,
            processes: 10,
            ..ResourceLimits::default()
        }
        .with_disk(1000 * MB, 1000)
    }

    #[test]
    fn disk_levels_warn_then_set_read_only_then_stop() {
        for (megabytes, inodes, read_only, level) in [
            (799, 10, false, DiskLevel::Fine),
            (801, 10, false, DiskLevel::Soft),
            (949, 10, false, DiskLevel::Soft),
            (950, 10, false, DiskLevel::ReadOnly),
            (1099, 10, true, DiskLevel::ReadOnly),
            (1100, 10, true, DiskLevel::Stop),
            (901, 10, true, DiskLevel::ReadOnly),
            (899, 10, true, DiskLevel::Soft),
            (10, 950, false, DiskLevel::ReadOnly),
            (10, 1100, false, DiskLevel::Stop),
            (10, 890, true, DiskLevel::Fine),
        ] {
            let usage = DiskUsage {
                bytes: megabytes * MB,
                inodes,
                unbounded: false,
            };
            assert_eq!(
                disk_level(usage, &limits(), read_only),
                level,
                "{megabytes} MB, {inodes} files, {read_only}"
            );
            assert_eq!(
                disk_warning(level, usage, &limits()).is_none(),
                level == DiskLevel::Fine
            );
        }
        let endless = DiskUsage {
            bytes: 0,
            inodes: 0,
            unbounded: true,
        };
        assert_eq!(disk_level(endless, &limits(), false), DiskLevel::Stop);
        for (megabytes, beyond) in [(1499, false), (1500, true)] {
            assert_eq!(
                beyond_grace(
                    DiskUsage {
                        bytes: megabytes * MB,
                        ..endless
                    },
                    &limits()
                ),
                beyond
            );
        }
    }

    #[test]
    fn largest_process_is_killed_before_the_server() {
        let process = ServerProcess::new(7);
        let over = ProcessUsage {
            memory_bytes: 101,
            processes: 3,
            processor_ms: 0,
            largest: Some(process),
        };
        let ended = |how| Remedy::EndProcess(process, how);
        assert_eq!(
            remedy(&over, &limits(), 0),
            (ended(ProcessEnd::Terminate), 1)
        );
        assert_eq!(remedy(&over, &limits(), 1), (ended(ProcessEnd::Kill), 2));
        assert_eq!(remedy(&over, &limits(), 2), (Remedy::StopServer, 3));
        let within = ProcessUsage {
            memory_bytes: 100,
            processes: 10,
            processor_ms: 0,
            largest: Some(process),
        };
        assert_eq!(remedy(&within, &limits(), 2), (Remedy::Nothing, 0));
        let many = ProcessUsage {
            processes: 11,
            ..within
        };
        assert_eq!(remedy(&many, &limits(), 0), (Remedy::StopServer, 1));
        let alone = ProcessUsage {
            largest: None,
            ..over
        };
        assert_eq!(remedy(&alone, &limits(), 0), (Remedy::StopServer, 1));
    }
}
