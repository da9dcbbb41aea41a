//! Start of a server until it accepts connections, and the reason if it does not.

use std::{fs::OpenOptions, os::unix::fs::OpenOptionsExt, process::Child, time::Duration};

use rustix::process::Pid;
use tokio::time::{sleep, timeout};

use super::process::{
    CHILD_GRACE, EXEC_PATIENCE, HINT_CHECKS, HOLD_PATIENCE, POLL, Server, all_ended,
};
use crate::{
    background::blocking,
    clusters::{archive_way, home, pid_file::PidFile, server_log},
    error::{At, ClusterError, Result},
    files,
    supervisor::{LAUNCH_TIMEOUT, LaunchBounds, ProcessHandle, reap},
};

/// A server that was started, or was found running.
struct StartedServer {
    pid: Pid,
    is_new: bool,
}

impl Server {
    /// Starts the server unless it runs, and returns the postmaster's pid. The server may not
    /// accept connections yet. After a crash, ends orphaned backends and removes stale lock files
    /// first.
    pub async fn start(&self) -> Result<Pid> {
        self.start_or_find().await.map(|server| server.pid)
    }

    /// Starts the server unless it runs, and waits until it accepts connections. A running server
    /// that exits meanwhile was being stopped, and is started again.
    pub async fn start_ready(&self, patience: Duration) -> Result<()> {
        let found = self.start_or_find().await?;
        match self.wait_ready(patience).await {
            Err(ClusterError::NotStarted { .. }) if !found.is_new => {
                self.start().await?;
                self.wait_ready(patience).await
            }
            outcome => outcome,
        }
    }

    async fn start_or_find(&self) -> Result<StartedServer> {
        if let Some(pid) = self.hinted_unless_stopping().await? {
            return Ok(StartedServer { pid, is_new: false });
        }
        let held = self.hold().await?;
        let family = self.family().await?;
        if let Some(pid) = family.postmaster {
            return Ok(StartedServer { pid, is_new: false });
        }
        self.check_major()?;
        if !family.children.is_empty() {
            self.end_children(Duration::ZERO).await?;
        }
        let server = self.clone();
        let bounds = blocking(move || {
            files::remove_file(&server.data().join(PidFile::NAME))?;
            home::fresh_socket_dir(&server.sockets, server.run_as)?;
            if server.is_archived {
                archive_way::prepare_spool(server.data(), server.run_as)?;
            }
            Ok(server.bounds())
        })
        .await?;
        let server = self.clone();
        // In a separate task, which continues if the caller is cancelled: the lock must be held
        // until the server runs, and its exit status must be collected.
        let start = tokio::spawn(async move {
            let launched = server.spawn(bounds).await?;
            let pid = timeout(LAUNCH_TIMEOUT, server.launched(launched))
                .await
                .unwrap_or(None);
            drop(held);
            match pid {
                Some(pid) => Ok(StartedServer { pid, is_new: true }),
                None => Err(server.not_started().await),
            }
        });
        start.await.unwrap_or(Err(ClusterError::ShuttingDown))
    }

    /// Does [`Self::hinted`], after the end of a server that is being stopped. The wait is bounded,
    /// because a tenant can write the file with the state.
    async fn hinted_unless_stopping(&self) -> Result<Option<Pid>> {
        let Some(pid) = self.hinted().await? else {
            return Ok(None);
        };
        if !PidFile::read(self.data()).is_some_and(|file| file.is_stopping) {
            return Ok(Some(pid));
        }
        if let Some(handle) = ProcessHandle::open(pid).at("watching", self.data())? {
            let _ = timeout(HOLD_PATIENCE, handle.ended()).await;
        }
        self.hinted().await
    }

    /// Waits until the server accepts connections. Fails when it exits, or after `patience`.
    pub async fn wait_ready(&self, patience: Duration) -> Result<()> {
        let pid = timeout(EXEC_PATIENCE, self.titled_postmaster())
            .await
            .unwrap_or(Ok(None))?;
        let handle = match pid {
            Some(pid) => ProcessHandle::open(pid).at("watching", self.data())?,
            None => None,
        };
        let Some(handle) = handle else {
            return Err(self.not_started().await);
        };
        let mut last = "it is still starting".to_owned();
        let ready = async {
            loop {
                if PidFile::read(self.data()).is_some_and(|file| file.ready) {
                    match self.accepts().await {
                        Ok(()) => return Ok(()),
                        // A permanent error: waiting does not help.
                        Err(error) if error.is_refused_role() => return Err(error),
                        Err(error) => last = error.to_string(),
                    }
                }
                sleep(POLL).await;
            }
        };
        tokio::select! {
            outcome = timeout(patience, ready) => {
                outcome.unwrap_or_else(|_| {
                    let name = self.name().to_owned();
                    Err(ClusterError::NotReady { name, waited: patience, last })
                })
            }
            _ = handle.ended() => Err(self.not_started().await),
        }
    }

    /// Waits until the postmaster has a title that distinguishes it from its children, which it
    /// does not have during `exec`. Returns `None` if there is no process of the server.
    async fn titled_postmaster(&self) -> Result<Option<Pid>> {
        loop {
            for _ in 0..HINT_CHECKS {
                if let Some(pid) = self.hinted().await? {
                    return Ok(Some(pid));
                }
                sleep(POLL).await;
            }
            let family = self.family().await?;
            match family.postmaster {
                None if !family.children.is_empty() => {}
                found => return Ok(found),
            }
        }
    }

    /// Runs the launcher of the server, with output to the start log.
    async fn spawn(&self, bounds: LaunchBounds) -> Result<Child> {
        let log = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&self.start_log);
        let log = log.at("writing", &self.start_log)?;
        let twin = log.try_clone().at("writing", &self.start_log)?;
        let mut launcher = self.launcher(None, bounds);
        launcher.stdout(log).stderr(twin);
        self.run_launcher(launcher).await
    }

    /// Returns when the launcher has become the server. `None` if it exits first.
    async fn launched(&self, child: Child) -> Option<Pid> {
        let pid = Pid::from_raw(child.id().cast_signed())?;
        let mut end = reap(child);
        loop {
            // During `exec` the process has no arguments yet, and counts as a child.
            if self.processes.is_postmaster(pid) {
                return Some(pid);
            }
            tokio::select! {
                _ = &mut end => return None,
                () = sleep(POLL) => {}
            }
        }
    }

    /// Returns the error of a server that exited, with the last lines of its logs.
    async fn not_started(&self) -> ClusterError {
        // The collector writes the last lines after the postmaster has exited.
        let left = self.family().await.unwrap_or_default().all();
        let open = |pid: Pid| ProcessHandle::open(pid).ok().flatten();
        let handles: Vec<ProcessHandle> = left.into_iter().filter_map(open).collect();
        all_ended(&handles, CHILD_GRACE).await;
        let server = self.clone();
        let lines = blocking(move || Ok(server_log::last_lines(&server.start_log, server.data())));
        let log = lines.await.unwrap_or_default();
        let log = if log.is_empty() {
            "the server exited without a message".to_owned()
        } else {
            log
        };
        ClusterError::NotStarted {
            name: self.name().to_owned(),
            log,
        }
    }
}
