//! Processes of projects and their memory, as the kernel reports them in `/proc`.

use std::{collections::HashMap, io, path::Path};

use rustix::process::Pid;

use crate::{
    clusters::{resources::shared_memory, running::ServerProcess},
    proc_files::{ProcessFiles, pids},
};

/// Maximum number of processes that are measured for one project. A project can exceed it only
/// without a limit of the kernel; the watchdog then stops its server.
const PROCESSES_MAX: usize = 4096;

/// Memory and processes of a project, measured without a control group.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct ProcessUsage {
    /// Memory in bytes, with shared pages counted once. Includes System V shared memory without an
    /// attached process.
    pub memory_bytes: u64,
    /// Number of processes.
    pub processes: u64,
    /// Processor time of the processes and of their children that ended, in milliseconds.
    pub processor_ms: u64,
    /// The process with the most memory, other than the postmaster.
    pub largest: Option<ServerProcess>,
}

/// Measures memory and number of these processes of `uid`. `postmaster` is never the largest.
///
/// Reading the share of shared memory takes the kernel about a millisecond per process, so this is
/// done only if the sum of their resident memory reaches `careful_from` bytes.
pub fn measure(
    processes: &[Pid],
    postmaster: Option<Pid>,
    uid: Option<u32>,
    careful_from: u64,
) -> ProcessUsage {
    let processes = processes.get(..PROCESSES_MAX).unwrap_or(processes);
    let resident = |pid: &Pid| {
        let status = ProcessFiles::of(*pid).status();
        status.map_or(0, |status| status.resident_bytes)
    };
    let resident: Vec<u64> = processes.iter().map(resident).collect();
    let segments = uid.map_or(0, shared_memory::detached_bytes_of);
    let careful = resident.iter().sum::<u64>().saturating_add(segments) >= careful_from;
    let mut usage = ProcessUsage {
        memory_bytes: segments,
        processes: processes.len() as u64,
        processor_ms: processes.iter().copied().map(processor_ms).sum(),
        largest: None,
    };
    let mut most = 0;
    for (&pid, &resident) in processes.iter().zip(&resident) {
        let bytes = if careful {
            ProcessFiles::of(pid)
                .proportional_bytes()
                .unwrap_or(resident)
        } else {
            resident
        };
        usage.memory_bytes = usage.memory_bytes.saturating_add(bytes);
        if Some(pid) != postmaster && (bytes > most || usage.largest.is_none()) {
            usage.largest = Some(ServerProcess::of(pid));
            most = bytes;
        }
    }
    usage
}

/// Returns the processor time of a process and of its children that ended, in milliseconds.
pub(super) fn processor_ms(pid: Pid) -> u64 {
    let stat = ProcessFiles::of(pid).stat();
    stat.map_or(0, |stat| {
        stat.processor_ms.saturating_add(stat.children_processor_ms)
    })
}

/// Returns all live processes with this user id, of any executable and working directory.
///
/// Omits PostgreSQL servers in data directories outside of `own`: another Gantry on this machine
/// may have assigned the same user id to one of its projects.
pub(super) fn processes_of(uid: u32, own: &[&Path]) -> io::Result<Vec<Pid>> {
    let processes = processes_by_uid()?.remove(&uid).unwrap_or_default();
    Ok(processes
        .into_iter()
        .filter(|pid| !is_elsewhere(*pid, own))
        .collect())
}

/// Returns the live processes of the machine by real user id, which a project's process cannot
/// change.
pub(super) fn processes_by_uid() -> io::Result<HashMap<u32, Vec<Pid>>> {
    let mut found: HashMap<u32, Vec<Pid>> = HashMap::new();
    for pid in pids()? {
        if let Some(uid) = ProcessFiles::of(pid).live_uid() {
            found.entry(uid).or_default().push(pid);
        }
    }
    Ok(found)
}

/// Returns whether the working directory of a process is a data directory outside of `own`. A
/// tenant cannot forge this: its processes cannot enter the directory of another project.
pub(super) fn is_elsewhere(pid: Pid, own: &[&Path]) -> bool {
    ProcessFiles::of(pid)
        .working_directory()
        .is_ok_and(|place| {
            !own.iter().any(|own| place.starts_with(own)) && place.join("PG_VERSION").exists()
        })
}

/// Returns whether the working directory of a process is this folder or below it.
pub(super) fn works_in(pid: Pid, folder: &Path) -> bool {
    let place = ProcessFiles::of(pid).working_directory();
    place.is_ok_and(|place| place.starts_with(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_process_is_among_those_of_its_user() {
        let me = rustix::process::getpid();
        assert!(processes_by_uid().unwrap()[&rustix::process::getuid().as_raw()].contains(&me));
    }

    #[test]
    fn shared_memory_is_counted_once_and_a_postmaster_is_not_the_largest() {
        let me = rustix::process::getpid();
        // The first measurement allocates memory itself.
        measure(&[me], None, None, 0);
        let (rough, careful) = (
            measure(&[me], None, None, u64::MAX),
            measure(&[me], None, None, 0),
        );
        assert!(
            rough.memory_bytes >= careful.memory_bytes && careful.memory_bytes > 1 << 20,
            "{rough:?} {careful:?}"
        );
        assert_eq!(careful.processes, 1);
        assert_eq!(careful.largest, Some(ServerProcess::of(me)));
        assert_eq!(
            measure(&[me], Some(me), None, 0).largest,
            None,
            "a postmaster is not chosen"
        );
    }
}
