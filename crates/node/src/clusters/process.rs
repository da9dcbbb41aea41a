//! Recognition of a PostgreSQL server's processes.
//!
//! A pid in a file may have passed to another process. A process belongs to a cluster if it runs a
//! `postgres` executable in the cluster's data directory; the kernel reports both. The postmaster
//! is the process in the [`LaunchRecord`], which the launcher writes beside the data directory,
//! where the tenant cannot write. Native code of a tenant can change the title of its processes,
//! but neither a pid nor a start time.

use std::{
    io,
    path::{Path, PathBuf},
};

use rustix::process::Pid;

use crate::{
    proc_files::{ProcessFiles, pids},
    supervisor::LaunchRecord,
};

/// The properties that identify a server's processes.
#[derive(Debug, Clone)]
pub(super) struct ServerProcesses {
    /// The data directory, without symbolic links.
    pub(super) data: PathBuf,
    /// User id of the processes.
    pub(super) uid: u32,
    /// The `cluster_name`.
    pub(super) name: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProcessKind {
    Postmaster,
    /// A backend or helper process, forked by the postmaster.
    Child,
}

/// A cluster's live processes.
#[derive(Debug, Default)]
pub(super) struct ProcessFamily {
    pub(super) postmaster: Option<Pid>,
    pub(super) children: Vec<Pid>,
}

impl ProcessFamily {
    /// All processes.
    pub(super) fn all(&self) -> Vec<Pid> {
        self.postmaster
            .iter()
            .chain(&self.children)
            .copied()
            .collect()
    }
}

impl ServerProcesses {
    /// Returns the kind of process `pid`, or `None` if it does not belong to the cluster. A zombie
    /// does not: the kernel no longer reports its directory.
    pub(super) fn kind(&self, pid: Pid) -> Option<ProcessKind> {
        let files = ProcessFiles::of(pid);
        // The working directory excludes most processes of the machine, so it is checked first.
        let (title, ours) = match files.working_directory() {
            Ok(cwd) if cwd == self.data => (files.command_line()?, runs_postgres(&files)),
            // Root in a container may lack CAP_SYS_PTRACE, which reading another uid's links needs.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let title = files.command_line()?;
                let ours = self.has_server_title(&files, &title)?;
                (title, ours)
            }
            _ => return None,
        };
        if !ours {
            return None;
        }
        let leads = match LaunchRecord::read(&self.data) {
            Some(launched) => Some(launched) == LaunchRecord::of_process(pid),
            // Started by a version of Gantry that wrote no record.
            None => !title.starts_with(b"postgres: "),
        };
        // An exiting process has no title. It may still hold shared memory, but is no postmaster.
        Some(if leads && !title.is_empty() {
            ProcessKind::Postmaster
        } else {
            ProcessKind::Child
        })
    }

    /// Returns whether `pid` is the postmaster, not one of its children.
    pub(super) fn is_postmaster(&self, pid: Pid) -> bool {
        self.kind(pid) == Some(ProcessKind::Postmaster)
    }

    /// Decides by world-readable evidence: uid, program name, and the data directory or cluster
    /// name from the command line. A tenant cannot forge these for another cluster.
    fn has_server_title(&self, files: &ProcessFiles, title: &[u8]) -> Option<bool> {
        let data = self.data.as_os_str().as_encoded_bytes();
        let named = title.starts_with(format!("postgres: {}: ", self.name).as_bytes());
        let placed = title
            .split(|byte| *byte == 0)
            .any(|argument| argument == data);
        let leaving = title.is_empty() && files.stat()?.state != 'Z';
        Some(
            (named || placed || leaving)
                && files.is_named("postgres")
                && files.owner()? == self.uid,
        )
    }

    /// Returns whether `pid` is the launched server, from the record alone: two small reads.
    pub(super) fn is_launched(&self, pid: Pid) -> bool {
        match LaunchRecord::read(&self.data) {
            Some(launched) => Some(launched) == LaunchRecord::of_process(pid),
            None => self.is_postmaster(pid),
        }
    }

    /// Searches all processes of the machine.
    pub(super) fn family(&self) -> io::Result<ProcessFamily> {
        let mut family = ProcessFamily::default();
        for pid in pids()? {
            match self.kind(pid) {
                // A child has the postmaster's title until it sets its own, so of two processes the
                // parent is the postmaster.
                Some(ProcessKind::Postmaster) => match family.postmaster {
                    Some(other) if parent(pid) == Some(other) => family.children.push(pid),
                    other => {
                        family.children.extend(other);
                        family.postmaster = Some(pid);
                    }
                },
                Some(ProcessKind::Child) => family.children.push(pid),
                None => {}
            }
        }
        Ok(family)
    }
}

/// Returns whether the process executes `postgres`. An exiting process loses its executable first,
/// and its directory only after its memory is released.
fn runs_postgres(files: &ProcessFiles) -> bool {
    match files.executable() {
        Ok(exe) => is_postgres(&exe),
        Err(error) => error.kind() == io::ErrorKind::NotFound && files.is_named("postgres"),
    }
}

/// Returns whether the path is a `postgres` program, which an upgrade may have deleted.
fn is_postgres(exe: &Path) -> bool {
    exe.file_name()
        .is_some_and(|name| name == "postgres" || name == "postgres (deleted)")
}

fn parent(pid: Pid) -> Option<Pid> {
    ProcessFiles::of(pid).stat()?.parent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn working_directory_alone_does_not_make_a_server() {
        let me = rustix::process::getpid();
        let mark = ServerProcesses {
            data: std::env::current_dir().unwrap(),
            uid: rustix::process::geteuid().as_raw(),
            name: "x".to_owned(),
        };
        assert_eq!(mark.kind(me), None);
        assert!(mark.family().unwrap().postmaster.is_none());
    }

    #[test]
    fn executable_replaced_by_an_upgrade_is_recognised() {
        assert!(is_postgres(Path::new(
            "/usr/lib/postgresql/15/bin/postgres"
        )));
        assert!(is_postgres(Path::new(
            "/usr/lib/postgresql/15/bin/postgres (deleted)"
        )));
        assert!(!is_postgres(Path::new("/usr/bin/bash")));
    }
}
