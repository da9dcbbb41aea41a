//! The process of a server: start, observation and stop.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::{
    fs::FlockOperation,
    process::{Pid, Signal},
};
use tokio::time::{sleep, timeout};

use crate::{
    background::blocking,
    clusters::{
        archive_way::ArchiveWay,
        launch::{EngineFiles, LaunchPlan},
        pid_file::PidFile,
        process::{ProcessFamily, ProcessKind, ServerProcesses},
        resources::limits::{Resources, release_shared_memory},
        running::{RunningServer, ServerProcess},
        shutdown::ShutdownMode,
    },
    engines::Engine,
    error::{At, ClusterError, Result},
    files,
    supervisor::{Confinement, LaunchBounds, Launcher, LauncherError, ProcessHandle, ProcessOwner},
};

/// The interval of polling for changes without an event: an `exec`, or readiness of a server.
pub(super) const POLL: Duration = Duration::from_millis(2);
/// The time to wait for another operation on the server.
pub(super) const HOLD_PATIENCE: Duration = Duration::from_secs(10);
/// Checks of `postmaster.pid` before all processes are searched, which costs a hundred times more.
pub(super) const HINT_CHECKS: usize = 10;
/// The time that a launcher gets to complete the `exec` of the server.
pub(super) const EXEC_PATIENCE: Duration = Duration::from_secs(5);
/// The time that child processes get to exit after their postmaster before they are killed.
pub(super) const CHILD_GRACE: Duration = Duration::from_secs(1);
/// The time that the kernel gets to end a killed process, which may be writing.
pub(super) const KILL_PATIENCE: Duration = Duration::from_secs(10);

/// The installation and the launcher of servers.
#[derive(Debug, Clone)]
pub struct Host {
    /// The PostgreSQL installation.
    pub engine: Engine,
    /// Starts servers.
    pub launcher: Launcher,
}

/// A cluster on this machine, running or not.
#[derive(Debug, Clone)]
pub struct Server {
    host: Host,
    /// Identifies the processes and the data directory.
    pub(super) processes: ServerProcesses,
    pub(super) sockets: PathBuf,
    pub(super) start_log: PathBuf,
    pub(super) run_as: ProcessOwner,
    pub(super) superuser: &'static str,
    /// `None`: bounded only by the machine, as the control cluster.
    resources: Option<Resources>,
    /// Whether the server loads the libraries of extensions.
    has_libraries: bool,
    /// Whether the write-ahead log is archived.
    pub(super) is_archived: bool,
}

impl Server {
    /// The cluster in `<place>/data` with its socket in `sockets`. `name` is its `cluster_name`.
    pub(in crate::clusters) fn new(
        host: Host,
        name: &str,
        place: &Path,
        sockets: PathBuf,
        run_as: ProcessOwner,
        superuser: &'static str,
    ) -> Self {
        let processes = ServerProcesses {
            data: place.join("data"),
            uid: run_as.uid(),
            name: name.to_owned(),
        };
        Self {
            host,
            processes,
            sockets,
            start_log: place.join("start.log"),
            run_as,
            superuser,
            resources: None,
            has_libraries: true,
            is_archived: false,
        }
    }

    /// Starts the server without the libraries of extensions: their workers act by themselves.
    pub(in crate::clusters) fn without_libraries(self) -> Self {
        Self {
            has_libraries: false,
            ..self
        }
    }

    /// Sets whether the write-ahead log is archived.
    pub(in crate::clusters) fn archived(self, is_archived: bool) -> Self {
        Self {
            is_archived,
            ..self
        }
    }

    /// Sets the resource limits.
    pub(in crate::clusters) fn bounded(self, resources: Option<Resources>) -> Self {
        Self { resources, ..self }
    }

    /// The cluster's name, for messages.
    pub fn name(&self) -> &str {
        &self.processes.name
    }

    /// The data directory.
    pub fn data(&self) -> &Path {
        &self.processes.data
    }

    /// The owner of its files.
    pub(in crate::clusters) fn run_as(&self) -> ProcessOwner {
        self.run_as
    }

    /// Major version of its PostgreSQL.
    pub(in crate::clusters) fn major(&self) -> u16 {
        self.host.engine.major()
    }

    /// Version of its PostgreSQL as text.
    pub(in crate::clusters) fn version(&self) -> &str {
        self.host.engine.text()
    }

    /// Returns the pid of the live postmaster.
    pub async fn postmaster(&self) -> Result<Option<Pid>> {
        match self.hinted().await? {
            Some(pid) => Ok(Some(pid)),
            None => Ok(self.family().await?.postmaster),
        }
    }

    /// Returns the live postmaster if `postmaster.pid` names it, without searching all processes.
    pub(super) async fn hinted(&self) -> Result<Option<Pid>> {
        let server = self.clone();
        blocking(move || Ok(server.hinted_postmaster())).await
    }

    /// Returns a handle to the live postmaster, if any.
    pub(in crate::clusters) async fn running(&self) -> Result<Option<RunningServer>> {
        let held = self.hold_postmaster().await?;
        Ok(held.map(|(pid, postmaster)| {
            let end = async move { postmaster.ended().await };
            RunningServer::new(ServerProcess::of(pid), end)
        }))
    }

    /// Stops the server with increasingly strong signals, `patience` apart, and returns when no
    /// process of the cluster is left. Does nothing if the server does not run.
    pub async fn stop(&self, mode: ShutdownMode, patience: Duration) -> Result<()> {
        let _held = self.hold().await?;
        self.halt(mode, patience).await
    }

    /// Locks the server against starts and stops by other processes until the file is closed. A
    /// suspended process that continues later thus cannot act on a server started meanwhile.
    pub(in crate::clusters) async fn hold(&self) -> Result<File> {
        let place = self.data().parent().unwrap_or(self.data());
        let dir = File::open(place).at("opening", place)?;
        let lock = async {
            while rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive).is_err() {
                sleep(POLL).await;
            }
        };
        timeout(HOLD_PATIENCE, lock)
            .await
            .map_err(|_| ClusterError::Held(self.name().to_owned()))?;
        Ok(dir)
    }

    /// Does [`Self::stop`] for a caller that holds the lock.
    pub(in crate::clusters) async fn halt(
        &self,
        mode: ShutdownMode,
        patience: Duration,
    ) -> Result<()> {
        if let Some((_, postmaster)) = self.hold_postmaster().await? {
            for &signal in mode.signals() {
                postmaster.signal(signal).at("signalling", self.data())?;
                if timeout(patience, postmaster.ended()).await.is_ok() {
                    break;
                }
                tracing::warn!(
                    cluster = self.name(),
                    ?signal,
                    "server did not stop in time; sending the next signal"
                );
            }
        }
        self.end_children(CHILD_GRACE).await?;
        if let Some(resources) = self.resources.clone() {
            let name = self.name().to_owned();
            let run_as = self.run_as;
            blocking(move || {
                resources.release(&name, run_as);
                Ok(())
            })
            .await?;
        }
        Ok(())
    }

    /// The resource limits of a check of settings, which runs in no control group.
    pub(in crate::clusters) fn limits(&self) -> LaunchBounds {
        self.resources
            .as_ref()
            .map(|resources| resources.launch_limits(self.name(), self.run_as))
            .unwrap_or_default()
    }

    /// Creates the server's control group, and frees shared memory of its previous run.
    pub(super) fn bounds(&self) -> LaunchBounds {
        let Some(resources) = &self.resources else {
            return LaunchBounds::default();
        };
        release_shared_memory(self.name(), self.run_as);
        resources.prepare(self.name(), self.run_as)
    }

    /// Returns the command line of a launcher: of the server, or of a check of `name=value`
    /// settings.
    pub(in crate::clusters) fn launcher(
        &self,
        check: Option<Vec<String>>,
        bounds: LaunchBounds,
    ) -> Command {
        let plan = LaunchPlan {
            // The control cluster and templates in the making are unbounded, and use no extensions.
            engine: EngineFiles::of(
                &self.host.engine,
                self.resources.is_some() && self.has_libraries,
            ),
            postgres: self.host.engine.program("postgres"),
            data: self.processes.data.clone(),
            sockets: self.sockets.clone(),
            name: self.processes.name.clone(),
            confinement: Confinement::new(self.run_as, bounds, self.host.launcher.sandbox),
            // Of projects only.
            namespaces: self.resources.is_some(),
            archive: self.is_archived.then(|| ArchiveWay::of(&self.host.engine)),
            check: check.is_some(),
            settings: check.unwrap_or_default(),
        };
        let mut launcher = self.host.launcher.command(plan.arguments());
        launcher.stdin(Stdio::null());
        launcher
    }

    /// Runs a launcher. With a sandbox, returns when it has become another program or has exited;
    /// otherwise when it has started.
    pub(in crate::clusters) async fn run_launcher(&self, launcher: Command) -> Result<Child> {
        match self.host.launcher.run(launcher).await {
            Ok(child) => Ok(child),
            Err(LauncherError::Run(error)) => Err(error).at("running", &self.host.launcher.program),
            Err(LauncherError::Kill(error)) => Err(error).at("killing", self.data()),
            Err(LauncherError::ShuttingDown) => Err(ClusterError::ShuttingDown),
        }
    }

    /// Returns a handle to the postmaster, verified after it was opened, so that it cannot refer to
    /// another process with the same pid.
    async fn hold_postmaster(&self) -> Result<Option<(Pid, ProcessHandle)>> {
        let Some(pid) = self.postmaster().await? else {
            return Ok(None);
        };
        let handle = ProcessHandle::open(pid).at("watching", self.data())?;
        Ok(handle
            .filter(|_| self.processes.kind(pid) == Some(ProcessKind::Postmaster))
            .map(|handle| (pid, handle)))
    }

    /// Waits for the end of all processes of the cluster after the postmaster exited, and kills
    /// those left after `grace`: a busy backend does not notice the exit, and keeps the shared
    /// memory.
    pub(super) async fn end_children(&self, grace: Duration) -> Result<()> {
        /// A process forked just before its parent exited appears only in the next round. Native
        /// code may fork on purpose.
        const ROUNDS: usize = 20;
        for round in 0..ROUNDS {
            if let Some(resources) = self.resources.as_ref().filter(|_| round > 0) {
                // Native code can fork faster than it is killed.
                resources.freeze_forks(self.name());
            }
            let left = self.family().await?.all();
            if left.is_empty() {
                return Ok(());
            }
            let mut opened = Vec::with_capacity(left.len());
            for pid in left {
                opened.extend(
                    ProcessHandle::open(pid)
                        .at("watching", self.data())?
                        .map(|handle| (pid, handle)),
                );
            }
            // Checked again: a pid may have been reused before it was opened.
            let ours = self.family().await?.all();
            let handles: Vec<ProcessHandle> = opened
                .into_iter()
                .filter(|(pid, _)| ours.contains(pid))
                .map(|(_, handle)| handle)
                .collect();
            if all_ended(&handles, if round == 0 { grace } else { Duration::ZERO }).await {
                continue;
            }
            for handle in &handles {
                handle.signal(Signal::KILL).at("killing", self.data())?;
            }
            all_ended(&handles, KILL_PATIENCE).await;
        }
        if self.family().await?.all().is_empty() {
            Ok(())
        } else {
            Err(ClusterError::NotStopped(self.name().to_owned()))
        }
    }

    /// Returns all live processes of the cluster.
    pub(in crate::clusters) async fn family(&self) -> Result<ProcessFamily> {
        let server = self.clone();
        blocking(move || {
            let mut family = server.marked().at("listing", Path::new("/proc"))?;
            let known = family.all();
            family.children.extend(
                server
                    .members()?
                    .into_iter()
                    .filter(|pid| !known.contains(pid)),
            );
            Ok(family)
        })
        .await
    }

    /// Returns all processes with the project's user id or control group, including native code
    /// that does not look like a server.
    pub(in crate::clusters) fn members(&self) -> Result<Vec<Pid>> {
        let Some(resources) = &self.resources else {
            return Ok(Vec::new());
        };
        let place = self.data().parent().unwrap_or(self.data());
        let members = resources.members(self.name(), self.run_as, place, &self.sockets);
        members.at("listing the processes of", place)
    }

    /// Returns the processes that are recognised by executable and directory.
    pub(in crate::clusters) fn marked(&self) -> io::Result<ProcessFamily> {
        self.processes.family()
    }

    /// Returns the live postmaster if `postmaster.pid` names it.
    pub(in crate::clusters) fn hinted_postmaster(&self) -> Option<Pid> {
        PidFile::read(&self.processes.data)?
            .pid
            .filter(|pid| self.processes.kind(*pid) == Some(ProcessKind::Postmaster))
    }

    /// Checks the major version of the data, for a message that names the installation.
    pub(super) fn check_major(&self) -> Result<()> {
        let path = self.data().join("PG_VERSION");
        let made_by = match files::read_untrusted(&path, 16) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(ClusterError::Missing(format!("cluster {}", self.name())));
            }
            read => read.at("reading", &path)?.trim().to_owned(),
        };
        let engine = &self.host.engine;
        if made_by == engine.major().to_string() {
            return Ok(());
        }
        Err(ClusterError::WrongMajor {
            name: self.name().to_owned(),
            made_by,
            engine: engine.major(),
            bin_dir: engine.bin_dir().to_owned(),
        })
    }
}

/// Waits at most `patience` for the end of all processes. Returns whether all have ended.
pub(super) async fn all_ended(handles: &[ProcessHandle], patience: Duration) -> bool {
    let all = futures_util::future::join_all(handles.iter().map(ProcessHandle::ended));
    timeout(patience, all).await.is_ok()
}
