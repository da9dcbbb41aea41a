//! Memory and processor time of processes, as the kernel counts them.

use std::{error::Error, fs, path::Path};

use rustix::process::{Pid, Signal, kill_process};

/// Unit of processor time in `/proc`.
const TICKS_PER_SEC: f64 = 100.0;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Returns the processes with a working directory below a folder.
pub(super) fn processes_under(dir: &Path) -> Vec<Pid> {
    let under = |entry: fs::DirEntry| {
        let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
        fs::read_link(entry.path().join("cwd"))
            .ok()?
            .starts_with(dir)
            .then_some(pid)
    };
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(under)
        .collect()
}

/// Kills the processes under a folder until none is left.
pub(super) fn kill_under(dir: &Path) {
    loop {
        // The control cluster is not a project's; it is asked to stop.
        let left: Vec<Pid> = processes_under(dir)
            .into_iter()
            .filter(|pid| !works_in(*pid, "/control/control/"))
            .collect();
        if left.is_empty() {
            return;
        }
        for pid in left {
            let _ = kill_process(pid, Signal::KILL);
        }
        std::thread::yield_now();
    }
}

fn works_in(pid: Pid, part: &str) -> bool {
    fs::read_link(format!("/proc/{}/cwd", pid.as_raw_nonzero()))
        .is_ok_and(|cwd| cwd.to_string_lossy().contains(part))
}

/// `MemAvailable`, in MB.
pub(super) fn available() -> Outcome<f64> {
    kilobytes("/proc/meminfo", "MemAvailable:").ok_or_else(|| "no MemAvailable".into())
}

/// Proportional share of memory of all these processes, in MB.
pub(super) fn proportional(processes: &[Pid]) -> f64 {
    processes
        .iter()
        .filter_map(|pid| {
            kilobytes(
                &format!("/proc/{}/smaps_rollup", pid.as_raw_nonzero()),
                "Pss:",
            )
        })
        .sum()
}

fn kilobytes(file: &str, label: &str) -> Option<f64> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(label))?;
    line.trim()
        .trim_end_matches(" kB")
        .parse::<f64>()
        .ok()
        .map(|kilobytes| kilobytes / 1024.0)
}

/// Returns the processor time of this process, in milliseconds.
pub(super) fn own_processor_time() -> Outcome<f64> {
    // Without children, which are counted as servers.
    let stat = fs::read_to_string("/proc/self/stat")?;
    ticks(&stat, &[11, 12]).ok_or_else(|| "no processor time".into())
}

/// Processor time of a process and of the children it has collected, in milliseconds.
pub(super) fn processor_time(pid: Pid) -> Option<f64> {
    ticks(
        &fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?,
        &[11, 12, 13, 14],
    )
}

/// Fields of a `stat`, counted from the state, in milliseconds.
fn ticks(stat: &str, fields: &[usize]) -> Option<f64> {
    let values: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let sum: f64 = fields
        .iter()
        .map(|field| values.get(*field)?.parse::<f64>().ok())
        .sum::<Option<f64>>()?;
    Some(sum * 1000.0 / TICKS_PER_SEC)
}
