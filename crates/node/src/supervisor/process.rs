//! Identifying, signalling and awaiting processes.

use std::{
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::Child,
};

use gantry_base::files;
use rustix::process::{Pid, PidfdFlags, Signal};
use tokio::{
    io::{Interest, unix::AsyncFd},
    task::JoinHandle,
};

use crate::proc_files::ProcessFiles;

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
        let started = ProcessFiles::of(pid).stat()?.started;
        Some(Self { pid, started })
    }

    /// Writes the record of the current process, atomically.
    pub fn write_current(directory: &Path) -> io::Result<()> {
        let current = Self::of_process(rustix::process::getpid()).ok_or(io::ErrorKind::NotFound)?;
        let text = format!("{} {}\n", current.pid.as_raw_nonzero(), current.started);
        files::replace(&Self::file(directory), text, 0o600)
    }
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

    /// Opens a handle to a child. Returns `None` if it has ended and was collected.
    pub fn of_child(child: &Child) -> io::Result<Option<Self>> {
        let pid = Pid::from_raw(child.id().cast_signed());
        pid.map_or(Ok(None), Self::open)
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

/// Waits for the end of a child, and collects its exit status, so that it does not remain a zombie.
pub fn reap(mut child: Child) -> JoinHandle<()> {
    let handle = ProcessHandle::of_child(&child);
    tokio::spawn(async move {
        // Without a handle, a wait would block this thread until the process ends.
        let Ok(handle) = handle else { return };
        if let Some(handle) = handle {
            let _ = handle.ended().await;
        }
        let _ = child.wait();
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
