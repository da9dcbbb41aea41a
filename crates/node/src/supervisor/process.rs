//! Identifying, signalling and awaiting processes.

use std::{
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use rustix::process::{Pid, PidfdFlags, Signal};
use tokio::io::{Interest, unix::AsyncFd};

/// Returns the processes of the machine. Each may end at any time.
pub fn pids() -> io::Result<Vec<Pid>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let pid = name.to_str().and_then(|name| name.parse().ok());
        found.extend(pid.and_then(Pid::from_raw));
    }
    Ok(found)
}

/// Returns the real user id of a process, or `None` if it has ended. The owner of the folder in
/// `/proc` is not used, because a process can change it.
pub fn live_uid(pid: Pid) -> Option<u32> {
    let path = format!("/proc/{}/status", pid.as_raw_nonzero());
    uid_in_status(&fs::read_to_string(path).ok()?)
}

fn uid_in_status(status: &str) -> Option<u32> {
    let value = |key: &str| status.lines().find_map(|line| line.strip_prefix(key));
    let dead = value("State:")?.trim().starts_with(['Z', 'X']);
    let uid = value("Uid:")?.split_whitespace().next()?.parse().ok()?;
    (!dead).then_some(uid)
}

/// The identity of a launched server: its pid, and its start time in clock ticks since boot. Both
/// survive an `exec`, and no two processes of one boot share both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchRecord {
    pid: Pid,
    started: u64,
}

impl LaunchRecord {
    /// Name of the file, in the parent of the server's directory.
    const NAME: &str = "launched";

    fn file(directory: &Path) -> PathBuf {
        directory.with_file_name(Self::NAME)
    }

    /// Reads the record of the server that was last launched in `directory`, if there is one.
    pub fn read(directory: &Path) -> Option<Self> {
        let text = fs::read_to_string(Self::file(directory)).ok()?;
        let (pid, started) = text.trim().split_once(' ')?;
        Some(Self {
            pid: Pid::from_raw(pid.parse().ok()?)?,
            started: started.parse().ok()?,
        })
    }

    /// The process id.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Returns the record of a live process.
    pub fn of_process(pid: Pid) -> Option<Self> {
        /// Position of the start time in the result of [`stat`].
        const STARTED: usize = 19;
        let stat = stat(Path::new(&format!("/proc/{}", pid.as_raw_nonzero())))?;
        Some(Self {
            pid,
            started: stat.split(' ').nth(STARTED)?.parse().ok()?,
        })
    }

    /// Writes the record of the current process, atomically.
    pub fn write_current(directory: &Path) -> io::Result<()> {
        let current = Self::of_process(rustix::process::getpid()).ok_or(io::ErrorKind::NotFound)?;
        let unfinished = directory.with_file_name("launched.new");
        fs::write(
            &unfinished,
            format!("{} {}\n", current.pid.as_raw_nonzero(), current.started),
        )?;
        fs::rename(&unfinished, Self::file(directory))
    }
}

/// Returns the parent of a process.
pub fn parent(pid: Pid) -> Option<Pid> {
    let stat = stat(Path::new(&format!("/proc/{}", pid.as_raw_nonzero())))?;
    Pid::from_raw(stat.split(' ').nth(1)?.parse().ok()?)
}

/// Reads the fields of `/proc/<pid>/stat` from the state on: `state ppid …`. The program name
/// before them can contain any character and ends at the last parenthesis.
pub fn stat(proc: &Path) -> Option<String> {
    let stat = fs::read_to_string(proc.join("stat")).ok()?;
    Some(stat.rsplit_once(") ")?.1.to_owned())
}

/// A handle to one process (pidfd). It never refers to another process that reuses the pid.
#[derive(Debug)]
pub struct ProcessHandle(AsyncFd<OwnedFd>);

impl ProcessHandle {
    /// Opens a handle. Returns `None` if there is no such process.
    #[expect(
        deprecated,
        reason = "its successor is unsafe for descriptors that may close early; an OwnedFd cannot"
    )]
    pub fn open(pid: Pid) -> io::Result<Option<Self>> {
        match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(fd) => Ok(Some(Self(AsyncFd::with_interest(fd, Interest::READABLE)?))),
            Err(rustix::io::Errno::SRCH) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends a signal. Does nothing if the process has exited.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        match rustix::process::pidfd_send_signal(self.0.get_ref(), signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns when the process has exited.
    pub async fn ended(&self) -> io::Result<()> {
        self.0.readable().await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uid_of_a_status_is_the_real_one_of_a_live_process() {
        let status = |state: &str, ids: &str| {
            format!("Name:\tx\nState:\t{state}\nUid:\t{ids}\nGid:\t1\t1\t1\t1\n")
        };
        for (state, ids, uid) in [
            ("S (sleeping)", "700\t700\t700\t700", Some(700)),
            ("R (running)", "7000\t1\t1\t1", Some(7000)),
            ("Z (zombie)", "700\t700\t700\t700", None),
            ("X (dead)", "700\t700\t700\t700", None),
        ] {
            assert_eq!(uid_in_status(&status(state, ids)), uid, "{state} {ids}");
        }
        assert_eq!(uid_in_status(""), None);
    }

    #[test]
    fn own_process_is_listed_with_its_user_id() {
        let own = rustix::process::getpid();
        assert!(pids().unwrap().contains(&own));
        assert_eq!(live_uid(own), Some(rustix::process::getuid().as_raw()));
    }

    #[test]
    fn record_matches_only_the_same_pid_and_start_time() {
        let place = tempfile::tempdir().unwrap();
        let data = place.path().join("data");
        assert_eq!(LaunchRecord::read(&data), None);
        LaunchRecord::write_current(&data).unwrap();
        let me = LaunchRecord::of_process(rustix::process::getpid()).unwrap();
        assert_eq!(LaunchRecord::read(&data), Some(me));
        assert_ne!(
            LaunchRecord::of_process(rustix::process::getppid().unwrap()),
            Some(me)
        );
        fs::write(
            LaunchRecord::file(&data),
            format!("{} {}\n", me.pid.as_raw_nonzero(), me.started + 1),
        )
        .unwrap();
        assert_ne!(
            LaunchRecord::read(&data),
            Some(me),
            "a reused pid is another process"
        );
    }

    #[tokio::test]
    async fn handle_reports_the_end_of_its_process() {
        let mut child = tokio::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let pid = Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()).unwrap();
        let handle = ProcessHandle::open(pid).unwrap().unwrap();
        handle.signal(Signal::KILL).unwrap();
        handle.ended().await.unwrap();
        child.wait().await.unwrap();
        assert!(ProcessHandle::open(pid).unwrap().is_none());
        handle.signal(Signal::KILL).unwrap();
    }
}
