//! Processes of projects and their memory, as the kernel reports them in `/proc`.

use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
};

use rustix::process::Pid;

use crate::{
    clusters::resources::shared_memory,
    supervisor::{live_uid, pids},
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
    /// The process with the most memory, other than the postmaster, and its memory in bytes.
    pub largest: Option<(Pid, u64)>,
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
    let resident: Vec<u64> = processes.iter().map(|pid| resident_bytes(*pid)).collect();
    let segments = uid.map_or(0, shared_memory::detached_bytes_of);
    let careful = resident.iter().sum::<u64>().saturating_add(segments) >= careful_from;
    let mut usage = ProcessUsage {
        memory_bytes: segments,
        processes: processes.len() as u64,
        largest: None,
    };
    for (&pid, &resident) in processes.iter().zip(&resident) {
        let bytes = if careful {
            proportional_bytes(pid).unwrap_or(resident)
        } else {
            resident
        };
        usage.memory_bytes = usage.memory_bytes.saturating_add(bytes);
        if Some(pid) != postmaster && usage.largest.is_none_or(|(_, most)| bytes > most) {
            usage.largest = Some((pid, bytes));
        }
    }
    usage
}

/// Returns the proportional set size (PSS) of a process in bytes, or `None` if it has ended.
fn proportional_bytes(pid: Pid) -> Option<u64> {
    kilobytes(
        &fs::read_to_string(proc(pid).join("smaps_rollup")).ok()?,
        "Pss:",
    )
}

/// Returns the number in the line `key   123 kB`, in bytes.
fn kilobytes(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.trim()
        .strip_suffix(" kB")?
        .trim()
        .parse::<u64>()
        .ok()?
        .checked_mul(1024)
}

/// Returns the resident memory of a process in bytes, or 0 if it has ended.
fn resident_bytes(pid: Pid) -> u64 {
    fs::read_to_string(proc(pid).join("status"))
        .ok()
        .and_then(|status| kilobytes(&status, "VmRSS:"))
        .unwrap_or(0)
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
        if let Some(uid) = live_uid(pid) {
            found.entry(uid).or_default().push(pid);
        }
    }
    Ok(found)
}

/// Returns whether the working directory of a process is a data directory outside of `own`. A
/// tenant cannot forge this: its processes cannot enter the directory of another project.
pub(super) fn is_elsewhere(pid: Pid, own: &[&Path]) -> bool {
    fs::read_link(proc(pid).join("cwd")).is_ok_and(|place| {
        !own.iter().any(|own| place.starts_with(own)) && place.join("PG_VERSION").exists()
    })
}

/// Returns whether the working directory of a process is this folder or below it.
pub(super) fn works_in(pid: Pid, folder: &Path) -> bool {
    fs::read_link(proc(pid).join("cwd")).is_ok_and(|place| place.starts_with(folder))
}

fn proc(pid: Pid) -> PathBuf {
    PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()))
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
    fn kilobytes_returns_bytes() {
        assert_eq!(
            kilobytes(
                "7f0-7ff ---p\nRss:      4096 kB\nPss:        1000 kB\nPss_Dirty: 5 kB\n",
                "Pss:"
            ),
            Some(1_024_000)
        );
        assert_eq!(kilobytes("Rss: 1 kB\n", "Pss:"), None);
        let me = Pid::from_raw(i32::try_from(std::process::id()).unwrap()).unwrap();
        let (rough, careful) = (
            measure(&[me], None, None, u64::MAX),
            measure(&[me], None, None, 0),
        );
        assert!(
            rough.memory_bytes >= careful.memory_bytes && careful.memory_bytes > 1 << 20,
            "{rough:?} {careful:?}"
        );
        assert_eq!((careful.processes, careful.largest.unwrap().0), (1, me));
        assert_eq!(
            measure(&[me], Some(me), None, 0).largest,
            None,
            "a postmaster is not chosen"
        );
    }
}
