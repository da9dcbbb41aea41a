//! Recognising a server's processes, and waiting for them to end.
//!
//! A pid in a file may belong to anybody by now. A process belongs to a cluster if it runs a `postgres` executable in
//! the cluster's data directory; the kernel vouches for both. Of these processes the server itself is the one that was
//! launched: the launcher notes its pid and start time beside the data directory, where the tenant cannot write.
//! A tenant's native code can give its processes any title, but neither a pid nor a start time.

use std::{
    fs, io,
    os::{fd::OwnedFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
};

use rustix::process::{Pid, PidfdFlags, Signal};
use tokio::io::{Interest, unix::AsyncFd};

/// What a server's processes are recognised by.
#[derive(Debug, Clone)]
pub(super) struct Mark {
    /// The data directory, without symbolic links.
    pub(super) data: PathBuf,
    /// Whom the processes run as.
    pub(super) uid: u32,
    /// The `cluster_name`.
    pub(super) name: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Postmaster,
    /// A backend or helper: anything a postmaster forked.
    Child,
}

/// A cluster's live processes.
#[derive(Debug, Default)]
pub(super) struct Family {
    pub(super) postmaster: Option<Pid>,
    pub(super) children: Vec<Pid>,
}

impl Family {
    /// Every process of it.
    pub(super) fn all(&self) -> Vec<Pid> {
        self.postmaster
            .iter()
            .chain(&self.children)
            .copied()
            .collect()
    }
}

impl Mark {
    /// What `pid` is to the cluster. A zombie is nothing: the kernel no longer knows its directory.
    pub(super) fn kind(&self, pid: Pid) -> Option<Kind> {
        let proc = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
        let title = || fs::read(proc.join("cmdline")).ok();
        // Most processes of a machine are somebody else's, so the question that tells them apart is the first.
        let (title, ours) = match fs::read_link(proc.join("cwd")) {
            Ok(cwd) if cwd == self.data => (title()?, runs_postgres(&proc)),
            // Root in a container may lack CAP_SYS_PTRACE, which reading another uid's links needs.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let title = title()?;
                let ours = self.looks_ours(&proc, &title)?;
                (title, ours)
            }
            _ => return None,
        };
        if !ours {
            return None;
        }
        let leads = match Launched::of_cluster(&self.data) {
            Some(launched) => Some(launched) == Launched::of_process(pid),
            // Started by a Gantry that kept no such note.
            None => !title.starts_with(b"postgres: "),
        };
        // A process on its way out has no title any more; it may still hold shared memory, but leads nobody.
        Some(if leads && !title.is_empty() {
            Kind::Postmaster
        } else {
            Kind::Child
        })
    }

    /// Whether `pid` is the server itself, not one of its children.
    pub(super) fn is_postmaster(&self, pid: Pid) -> bool {
        self.kind(pid) == Some(Kind::Postmaster)
    }

    /// The second-best evidence, all world-readable: uid, program name, and the data directory or cluster name that our
    /// own command line gave it. A tenant can forge none of these for another cluster.
    fn looks_ours(&self, proc: &Path, title: &[u8]) -> Option<bool> {
        let data = self.data.as_os_str().as_encoded_bytes();
        let named = title.starts_with(format!("postgres: {}: ", self.name).as_bytes());
        let placed = title
            .split(|byte| *byte == 0)
            .any(|argument| argument == data);
        let leaving = title.is_empty() && state(proc)? != 'Z';
        Some(
            (named || placed || leaving)
                && is_named_postgres(proc)
                && fs::metadata(proc).ok()?.uid() == self.uid,
        )
    }

    /// Whether `pid` is the server that was launched. The note alone says so, at the cost of two small reads.
    pub(super) fn is_launched(&self, pid: Pid) -> bool {
        match Launched::of_cluster(&self.data) {
            Some(launched) => Some(launched) == Launched::of_process(pid),
            None => self.is_postmaster(pid),
        }
    }

    /// Looks through all processes of the machine.
    pub(super) fn family(&self) -> io::Result<Family> {
        let mut family = Family::default();
        for entry in fs::read_dir("/proc")? {
            let Some(pid) = entry?
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok())
                .and_then(Pid::from_raw)
            else {
                continue;
            };
            match self.kind(pid) {
                // A child has the postmaster's title until it sets its own, so of two the parent is the postmaster.
                Some(Kind::Postmaster) => match family.postmaster {
                    Some(other) if parent(pid) == Some(other) => family.children.push(pid),
                    other => {
                        family.children.extend(other);
                        family.postmaster = Some(pid);
                    }
                },
                Some(Kind::Child) => family.children.push(pid),
                None => {}
            }
        }
        Ok(family)
    }
}

/// A process that was launched as a server: its pid, and when it started in clock ticks since the boot. An `exec` changes
/// neither, and no two processes of one boot have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Launched {
    pid: Pid,
    started: u64,
}

impl Launched {
    /// Name of the note, in the directory above the data directory.
    const NAME: &str = "launched";

    fn file(data: &Path) -> PathBuf {
        data.with_file_name(Self::NAME)
    }

    /// The process that was last launched for the cluster in `data`. None if there is no note.
    fn of_cluster(data: &Path) -> Option<Self> {
        let text = fs::read_to_string(Self::file(data)).ok()?;
        let (pid, started) = text.trim().split_once(' ')?;
        Some(Self {
            pid: Pid::from_raw(pid.parse().ok()?)?,
            started: started.parse().ok()?,
        })
    }

    /// The live process `pid`.
    fn of_process(pid: Pid) -> Option<Self> {
        /// Position of the start time in what [`stat`] returns.
        const STARTED: usize = 19;
        let stat = stat(Path::new(&format!("/proc/{}", pid.as_raw_nonzero())))?;
        Some(Self {
            pid,
            started: stat.split(' ').nth(STARTED)?.parse().ok()?,
        })
    }

    /// Notes this process as the one launched for the cluster in `data`. Complete or not there at all.
    pub(super) fn note_self(data: &Path) -> io::Result<()> {
        let launched =
            Self::of_process(rustix::process::getpid()).ok_or(io::ErrorKind::NotFound)?;
        let (file, unfinished) = (Self::file(data), data.with_file_name("launched.new"));
        fs::write(
            &unfinished,
            format!("{} {}\n", launched.pid.as_raw_nonzero(), launched.started),
        )?;
        fs::rename(&unfinished, &file)
    }
}

/// An ending process loses its executable first, and its directory only after its memory is released.
fn runs_postgres(proc: &Path) -> bool {
    match fs::read_link(proc.join("exe")) {
        Ok(exe) => is_postgres(&exe),
        Err(error) => error.kind() == io::ErrorKind::NotFound && is_named_postgres(proc),
    }
}

fn is_named_postgres(proc: &Path) -> bool {
    fs::read(proc.join("comm")).is_ok_and(|name| name == b"postgres\n")
}

/// An upgrade of the package may have replaced the file under a running server.
fn is_postgres(exe: &Path) -> bool {
    exe.file_name()
        .is_some_and(|name| name == "postgres" || name == "postgres (deleted)")
}

fn parent(pid: Pid) -> Option<Pid> {
    let stat = stat(Path::new(&format!("/proc/{}", pid.as_raw_nonzero())))?;
    Pid::from_raw(stat.split(' ').nth(1)?.parse().ok()?)
}

fn state(proc: &Path) -> Option<char> {
    stat(proc)?.chars().next()
}

/// `state ppid …`: what follows the program name, which may contain anything but ends in the last parenthesis.
fn stat(proc: &Path) -> Option<String> {
    let stat = fs::read_to_string(proc.join("stat")).ok()?;
    Some(stat.rsplit_once(") ")?.1.to_owned())
}

/// A reference to one process that stays true when its pid is reused.
#[derive(Debug)]
pub(super) struct Handle(AsyncFd<OwnedFd>);

impl Handle {
    /// None if there is no such process.
    #[expect(
        deprecated,
        reason = "its successor is unsafe for descriptors that may close early; an OwnedFd cannot"
    )]
    pub(super) fn open(pid: Pid) -> io::Result<Option<Self>> {
        match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(fd) => Ok(Some(Self(AsyncFd::with_interest(fd, Interest::READABLE)?))),
            Err(rustix::io::Errno::SRCH) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends a signal. A process that has ended is fine.
    pub(super) fn signal(&self, signal: Signal) -> io::Result<()> {
        match rustix::process::pidfd_send_signal(self.0.get_ref(), signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns when the process has ended.
    pub(super) async fn ended(&self) -> io::Result<()> {
        self.0.readable().await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_not_a_server_for_being_in_the_directory() {
        let me = Pid::from_raw(i32::try_from(std::process::id()).unwrap()).unwrap();
        let mark = Mark {
            data: std::env::current_dir().unwrap(),
            uid: rustix::process::geteuid().as_raw(),
            name: "x".to_owned(),
        };
        assert_eq!(mark.kind(me), None);
        assert!(mark.family().unwrap().postmaster.is_none());
        assert_eq!(parent(me), rustix::process::getppid());
    }

    #[test]
    fn only_the_launched_process_is_the_one_of_the_note() {
        let place = tempfile::tempdir().unwrap();
        let data = place.path().join("data");
        assert_eq!(Launched::of_cluster(&data), None);
        Launched::note_self(&data).unwrap();
        let me = Launched::of_process(rustix::process::getpid()).unwrap();
        assert_eq!(Launched::of_cluster(&data), Some(me));
        assert_ne!(
            Launched::of_process(rustix::process::getppid().unwrap()),
            Some(me)
        );
        fs::write(
            Launched::file(&data),
            format!("{} {}\n", me.pid.as_raw_nonzero(), me.started + 1),
        )
        .unwrap();
        assert_ne!(
            Launched::of_cluster(&data),
            Some(me),
            "a pid that was given out again is another process"
        );
    }

    #[test]
    fn an_executable_replaced_by_an_upgrade_still_counts() {
        assert!(is_postgres(Path::new(
            "/usr/lib/postgresql/15/bin/postgres"
        )));
        assert!(is_postgres(Path::new(
            "/usr/lib/postgresql/15/bin/postgres (deleted)"
        )));
        assert!(!is_postgres(Path::new("/usr/bin/bash")));
    }

    #[tokio::test]
    async fn a_handle_sees_the_end() {
        let mut child = tokio::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let pid = Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()).unwrap();
        let handle = Handle::open(pid).unwrap().unwrap();
        handle.signal(Signal::KILL).unwrap();
        handle.ended().await.unwrap();
        child.wait().await.unwrap();
        assert!(Handle::open(pid).unwrap().is_none());
        handle.signal(Signal::KILL).unwrap();
    }
}
