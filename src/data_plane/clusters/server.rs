//! One postmaster: see it, start it, wait for it, stop it.
//!
//! Nothing here remembers a running server. Every call looks at the machine again, so it does not matter which Gantry
//! started it. The caller sees to it that one cluster is worked on by one task at a time; two servers on one data
//! directory are prevented by PostgreSQL's own lock file in any case.

use std::{
    fmt,
    fs::{File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use futures_util::future::BoxFuture;
use rustix::{
    fs::FlockOperation,
    process::{Pid, Signal},
};
use tokio::{
    sync::oneshot,
    time::{sleep, timeout},
};
use tokio_postgres::{Client, NoTls};

use super::{
    At, ClusterError, Engine, LaunchPlan, Result, blocking, files, home,
    process::{ProcessFamily, ProcessKind, ServerProcesses},
    resources,
    resources::Resources,
    socket::ServerSocket,
    template,
};
use crate::base::supervisor::{
    LAUNCH_TIMEOUT, LaunchBounds, Launcher, LauncherError, ProcessHandle, ProcessOwner,
};

/// How often to look for what no event announces: a program that became another, a server that became ready.
const POLL: Duration = Duration::from_millis(2);
/// How long somebody else may take to finish what it does with a server.
const HOLD_PATIENCE: Duration = Duration::from_secs(10);
/// Looks at the file of a new postmaster before all processes are looked through, which costs a hundred times as much.
const HINT_LOOKS: usize = 10;
/// What a process gets to finish the `exec` that makes it the server.
const EXEC_PATIENCE: Duration = Duration::from_secs(5);
/// What children get to notice that their postmaster is gone before they are killed.
const CHILD_GRACE: Duration = Duration::from_secs(1);
/// The kernel's time to end a killed process, which may be in the middle of a write.
const KILL_PATIENCE: Duration = Duration::from_secs(10);
/// One connection attempt, until the server has accepted it.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
/// A database that belongs to the superuser: the owner of a project can neither close, rename nor drop it.
const UNCLOSED: &str = "template1";
/// What a superuser session may not inherit from settings that a tenant can attach to its database.
const SUPERUSER_OPTIONS: &str = "-c search_path=pg_catalog -c default_transaction_read_only=off -c statement_timeout=30s -c lock_timeout=5s";

/// What to run servers with.
#[derive(Debug, Clone)]
pub struct Host {
    /// The PostgreSQL installation.
    pub engine: Engine,
    /// How to start it.
    pub launcher: Launcher,
}

/// How a server is asked to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Disconnects everybody, writes a checkpoint: the next start is quick.
    Fast,
    /// Drops everything: the next start recovers from WAL.
    Immediate,
}

impl Stop {
    /// Signals to send, each after the last one was not enough.
    fn ladder(self) -> &'static [Signal] {
        match self {
            Self::Fast => &[Signal::INT, Signal::QUIT, Signal::KILL],
            Self::Immediate => &[Signal::QUIT, Signal::KILL],
        }
    }
}

/// A server that ran when it was looked at.
pub struct RunningServer {
    pid: i32,
    end: BoxFuture<'static, io::Result<()>>,
}

impl fmt::Debug for RunningServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningServer")
            .field("pid", &self.pid)
            .finish_non_exhaustive()
    }
}

impl RunningServer {
    /// A server with this process id, and what returns at its end.
    pub fn new(pid: i32, end: impl Future<Output = io::Result<()>> + Send + 'static) -> Self {
        Self {
            pid,
            end: Box::pin(end),
        }
    }

    /// The postmaster's process id.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns when the postmaster has ended, whoever started it.
    pub async fn ended(self) -> io::Result<()> {
        self.end.await
    }
}

/// A cluster on this machine, running or not.
#[derive(Debug, Clone)]
pub struct Server {
    host: Host,
    /// What recognises its processes; also says where the data is.
    mark: ServerProcesses,
    sockets: PathBuf,
    start_log: PathBuf,
    run_as: ProcessOwner,
    superuser: &'static str,
    /// None: bounded only by the machine, as the control cluster is.
    resources: Option<Resources>,
}

impl Server {
    /// The cluster in `<place>/data`, whose socket goes to `sockets`. `name` becomes its `cluster_name`.
    pub(super) fn new(
        host: Host,
        name: &str,
        place: &Path,
        sockets: PathBuf,
        run_as: ProcessOwner,
        superuser: &'static str,
    ) -> Self {
        let mark = ServerProcesses {
            data: place.join("data"),
            uid: run_as.uid(),
            name: name.to_owned(),
        };
        Self {
            host,
            mark,
            sockets,
            start_log: place.join("start.log"),
            run_as,
            superuser,
            resources: None,
        }
    }

    /// Bounds the server by the limits of a project.
    pub(super) fn bounded(self, resources: Option<Resources>) -> Self {
        Self { resources, ..self }
    }

    /// The cluster's name, for messages.
    pub fn name(&self) -> &str {
        &self.mark.name
    }

    /// The data directory.
    pub fn data(&self) -> &Path {
        &self.mark.data
    }

    /// Whom its files belong to.
    pub(super) fn run_as(&self) -> ProcessOwner {
        self.run_as
    }

    /// The live postmaster, if any.
    pub async fn postmaster(&self) -> Result<Option<Pid>> {
        match self.hinted().await? {
            Some(pid) => Ok(Some(pid)),
            None => Ok(self.family().await?.postmaster),
        }
    }

    /// The live postmaster, if its own file names it. The file is only a hint that saves looking through all processes.
    async fn hinted(&self) -> Result<Option<Pid>> {
        let server = self.clone();
        blocking(move || Ok(server.hinted_postmaster())).await
    }

    /// The live postmaster, to wait for its end. None if there is none.
    pub(super) async fn running(&self) -> Result<Option<RunningServer>> {
        let held = self.hold_postmaster().await?;
        Ok(held.map(|(pid, postmaster)| {
            RunningServer::new(pid.as_raw_nonzero().get(), async move {
                postmaster.ended().await
            })
        }))
    }

    /// Starts the server unless it runs, and returns the postmaster's pid. It may not accept connections yet.
    ///
    /// Clears what a crash left: backends of a dead postmaster, and lock files whose pid is somebody else's by now.
    pub async fn start(&self) -> Result<Pid> {
        if let Some(pid) = self.hinted().await? {
            return Ok(pid);
        }
        let held = self.hold().await?;
        let family = self.family().await?;
        if let Some(pid) = family.postmaster {
            return Ok(pid);
        }
        self.check_major()?;
        if !family.children.is_empty() {
            self.end_children(Duration::ZERO).await?;
        }
        let server = self.clone();
        let bounds = blocking(move || {
            files::remove_file(&server.data().join(PidFile::NAME))?;
            home::fresh_socket_dir(&server.sockets, server.run_as)?;
            Ok(server.bounds())
        })
        .await?;
        let server = self.clone();
        // A task of its own goes on if the caller gives up: the server's exit is to be taken note of, and until it runs no
        // other process may start it.
        let start = tokio::spawn(async move {
            let launched = server.spawn(bounds).await?;
            let pid = timeout(LAUNCH_TIMEOUT, server.launched(launched))
                .await
                .unwrap_or(None);
            drop(held);
            pid.ok_or_else(|| server.not_started())
        });
        start.await.unwrap_or(Err(ClusterError::ShuttingDown))
    }

    /// Waits until the server accepts connections. Fails at once if it exits, and after `patience` in any case.
    pub async fn wait_ready(&self, patience: Duration) -> Result<()> {
        let pid = timeout(EXEC_PATIENCE, self.titled_postmaster())
            .await
            .unwrap_or(Ok(None))?
            .ok_or_else(|| self.not_started())?;
        let handle = ProcessHandle::open(pid)
            .at("watching", self.data())?
            .ok_or_else(|| self.not_started())?;
        let mut last = "it is still starting".to_owned();
        let ready = async {
            loop {
                if PidFile::read(self.data()).is_some_and(|file| file.ready) {
                    match self.accepts().await {
                        Ok(()) => return Ok(()),
                        // Nothing that passes: waiting changes nothing.
                        Err(error) if error.is_refused_role() => return Err(error),
                        Err(error) => last = error.to_string(),
                    }
                }
                sleep(POLL).await;
            }
        };
        tokio::select! {
            outcome = timeout(patience, ready) => {
                outcome.unwrap_or_else(|_| Err(ClusterError::NotReady { name: self.name().to_owned(), waited: patience, last }))
            }
            _ = handle.ended() => Err(self.not_started()),
        }
    }

    /// Whether the server lets the superuser in: into the database that every project has or, where its owner closed that, into
    /// another, from which it can be opened again.
    async fn accepts(&self) -> Result<()> {
        match self.admin().await {
            Err(error) if error.is_closed_database() => {
                self.connect(self.superuser, UNCLOSED).await.map(drop)
            }
            answer => answer.map(drop),
        }
    }

    /// The live postmaster, once it can be told from its children: in the middle of `exec` it has no title yet, and passes
    /// for one of them. None as soon as there is neither.
    async fn titled_postmaster(&self) -> Result<Option<Pid>> {
        loop {
            for _ in 0..HINT_LOOKS {
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

    /// Stops the server, more and more firmly, and returns when no process of the cluster is left. A server that does
    /// not run is fine. Each step gets `patience`.
    pub async fn stop(&self, how: Stop, patience: Duration) -> Result<()> {
        let _held = self.hold().await?;
        self.halt(how, patience).await
    }

    /// Keeps every other process from starting or stopping this server, until the file is closed. Whoever hung in the middle
    /// of either and goes on later must not find another's server where it saw none.
    pub(super) async fn hold(&self) -> Result<File> {
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

    /// [`Self::stop`] for whoever holds the server already.
    pub(super) async fn halt(&self, how: Stop, patience: Duration) -> Result<()> {
        if let Some((_, postmaster)) = self.hold_postmaster().await? {
            for &signal in how.ladder() {
                postmaster.signal(signal).at("signalling", self.data())?;
                if timeout(patience, postmaster.ended()).await.is_ok() {
                    break;
                }
                tracing::warn!(
                    cluster = self.name(),
                    ?signal,
                    "still running; trying harder"
                );
            }
        }
        self.end_children(CHILD_GRACE).await?;
        if let Some(resources) = self.resources.clone() {
            let (name, run_as) = (self.name().to_owned(), self.run_as);
            blocking(move || {
                resources.release(&name, run_as);
                Ok(())
            })
            .await?;
        }
        Ok(())
    }

    /// The server's Unix socket.
    pub(super) fn socket(&self) -> ServerSocket {
        ServerSocket::of_server(
            self.sockets.join(home::SOCKET),
            self.name(),
            self.mark.data.clone(),
        )
    }

    /// The parameters of a session as `role`, by peer authentication. They name no server: sessions begin on a
    /// connection of [`ServerSocket::connect`].
    pub fn config(&self, role: &str, database: &str) -> tokio_postgres::Config {
        let mut config = tokio_postgres::Config::new();
        let (user, setting) = template::peer_login(role);
        config
            .user(user)
            .dbname(database)
            .application_name("gantry");
        if role == self.superuser {
            config.options(SUPERUSER_OPTIONS);
        } else if let Some((name, value)) = setting {
            config.options(format!("-c {name}={value}"));
        }
        config
    }

    /// Connects. The connection ends when the client is dropped.
    pub async fn connect(&self, role: &str, database: &str) -> Result<Client> {
        let config = self.config(role, database);
        let socket = self.socket();
        let attempt = async {
            let unreached = |cause| ClusterError::Unreached {
                name: self.name().to_owned(),
                cause,
            };
            let stream = socket.connect().await.map_err(unreached)?;
            config
                .connect_raw(stream, NoTls)
                .await
                .map_err(|cause| ClusterError::Sql {
                    doing: "connecting to a cluster",
                    cause,
                })
        };
        let attempt = timeout(CONNECT_PATIENCE, attempt).await;
        let (client, connection) =
            attempt.map_err(|_| ClusterError::ConnectTimeout(self.name().to_owned()))??;
        tokio::spawn(connection);
        Ok(client)
    }

    /// Connects as the superuser.
    pub async fn admin(&self) -> Result<Client> {
        self.connect(self.superuser, "postgres").await
    }

    /// A superuser session for repairs, in a database that only a superuser can close. Not for long: while it is there, no database
    /// can be made from that one.
    pub(super) async fn repairer(&self) -> Result<Client> {
        self.connect(self.superuser, UNCLOSED).await
    }

    /// The resource limits of a program that reads the server's files, in no control group.
    pub(super) fn limits(&self) -> LaunchBounds {
        self.resources
            .as_ref()
            .map(|resources| resources.launch_limits(self.run_as))
            .unwrap_or_default()
    }

    /// Makes the server's control group, and frees the shared memory that its last run left.
    fn bounds(&self) -> LaunchBounds {
        let Some(resources) = &self.resources else {
            return LaunchBounds::default();
        };
        resources::release_shared_memory(self.name(), self.run_as);
        resources.prepare(self.name(), self.run_as)
    }

    /// Runs the launcher. In a sandbox, returns when it has become the server or has ended.
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

    /// The launcher's command line: for the server, or to check settings, each as `name=value`.
    pub(super) fn launcher(&self, check: Option<Vec<String>>, bounds: LaunchBounds) -> Command {
        let ids = self.run_as.ids();
        let plan = LaunchPlan {
            postgres: self.host.engine.program("postgres"),
            data: self.mark.data.clone(),
            sockets: self.sockets.clone(),
            name: self.mark.name.clone(),
            uid: ids.map(|(uid, _)| uid),
            gid: ids.map(|(_, gid)| gid),
            sandbox: self.host.launcher.sandbox,
            bounds,
            check: check.is_some(),
            settings: check.unwrap_or_default(),
        };
        let mut launcher = Command::new(&self.host.launcher.program);
        launcher
            .args(plan.arguments())
            .env_clear()
            .stdin(Stdio::null());
        launcher
    }

    /// Runs a launcher. With a sandbox, returns when it has become another program or has exited;
    /// otherwise when it has started.
    pub(super) async fn run_launcher(&self, launcher: Command) -> Result<Child> {
        match self.host.launcher.run(launcher).await {
            Ok(child) => Ok(child),
            Err(LauncherError::Run(error)) => Err(error).at("running", &self.host.launcher.program),
            Err(LauncherError::Kill(error)) => Err(error).at("killing", self.data()),
            Err(LauncherError::ShuttingDown) => Err(ClusterError::ShuttingDown),
        }
    }

    /// Returns when the launcher has become the server; None if it ended before.
    async fn launched(&self, mut child: Child) -> Option<Pid> {
        let pid = Pid::from_raw(child.id().cast_signed())?;
        let handle = ProcessHandle::open(pid).ok()?;
        let (ended, end) = oneshot::channel();
        // The exit status must be collected, or the process would stay a zombie.
        tokio::spawn(async move {
            if let Some(handle) = handle {
                let _ = handle.ended().await;
            }
            let _ = (child.wait(), ended.send(()));
        });
        tokio::pin!(end);
        loop {
            // In the middle of `exec` it is PostgreSQL already, but has no arguments yet, and passes for a child.
            if self.mark.is_postmaster(pid) {
                return Some(pid);
            }
            tokio::select! {
                _ = &mut end => return None,
                () = sleep(POLL) => {}
            }
        }
    }

    /// A handle on the postmaster, checked after it was taken: the pid cannot have passed to another process.
    async fn hold_postmaster(&self) -> Result<Option<(Pid, ProcessHandle)>> {
        let Some(pid) = self.postmaster().await? else {
            return Ok(None);
        };
        let handle = ProcessHandle::open(pid).at("watching", self.data())?;
        Ok(handle
            .filter(|_| self.mark.kind(pid) == Some(ProcessKind::Postmaster))
            .map(|handle| (pid, handle)))
    }

    /// Ends every process of the cluster; the postmaster must have ended already. Those still there after `grace` are
    /// killed: a busy backend does not notice the postmaster's death, and keeps the shared memory.
    async fn end_children(&self, grace: Duration) -> Result<()> {
        /// A process may have been forked just before its parent died, and show up only in the next look. Native code may fork
        /// on purpose while it is killed.
        const LOOKS: usize = 20;
        for look in 0..LOOKS {
            if let Some(resources) = self.resources.as_ref().filter(|_| look > 0) {
                // Native code may fork faster than it is killed.
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
            // Looked at again: before it was opened, a pid may have passed to another process.
            let ours = self.family().await?.all();
            let handles: Vec<ProcessHandle> = opened
                .into_iter()
                .filter(|(pid, _)| ours.contains(pid))
                .map(|(_, handle)| handle)
                .collect();
            if all_ended(&handles, if look == 0 { grace } else { Duration::ZERO }).await {
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

    /// Every live process of the cluster.
    pub(super) async fn family(&self) -> Result<ProcessFamily> {
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

    /// Every live process within the project's bounds: also native code's, which may look like no server.
    pub(super) fn members(&self) -> Result<Vec<Pid>> {
        let Some(resources) = &self.resources else {
            return Ok(Vec::new());
        };
        let place = self.data().parent().unwrap_or(self.data());
        let members = resources.members(self.name(), self.run_as, place, &self.sockets);
        members.at("listing the processes of", place)
    }

    /// Processes that look like the server's.
    pub(super) fn marked(&self) -> io::Result<ProcessFamily> {
        self.mark.family()
    }

    /// The live postmaster, if its own file names it.
    pub(super) fn hinted_postmaster(&self) -> Option<Pid> {
        PidFile::read(&self.mark.data)?
            .pid
            .filter(|pid| self.mark.kind(*pid) == Some(ProcessKind::Postmaster))
    }

    /// PostgreSQL would say so too, but not which of several installations to choose.
    fn check_major(&self) -> Result<()> {
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

    fn not_started(&self) -> ClusterError {
        let log = files::tail(&self.start_log);
        let log = if log.is_empty() {
            "it ended without a message".to_owned()
        } else {
            log
        };
        ClusterError::NotStarted {
            name: self.name().to_owned(),
            log,
        }
    }
}

/// Whether all have ended within `patience`.
async fn all_ended(handles: &[ProcessHandle], patience: Duration) -> bool {
    let all = futures_util::future::join_all(handles.iter().map(ProcessHandle::ended));
    timeout(patience, all).await.is_ok()
}

/// What a postmaster says of itself. A hint: the file outlives a crash, and the tenant may be able to write it.
struct PidFile {
    pid: Option<Pid>,
    ready: bool,
}

impl PidFile {
    const NAME: &str = "postmaster.pid";
    /// Line of the status, counted from 0.
    const STATUS: usize = 7;

    fn read(data: &Path) -> Option<Self> {
        files::read_untrusted(&data.join(Self::NAME), 4096)
            .ok()
            .map(|text| Self::parse(&text))
    }

    fn parse(text: &str) -> Self {
        let mut lines = text.lines();
        let pid = lines
            .next()
            .and_then(|line| line.trim().parse().ok())
            .filter(|pid| *pid > 0)
            .and_then(Pid::from_raw);
        let ready = lines
            .nth(Self::STATUS - 1)
            .is_some_and(|status| status.trim() == "ready");
        Self { pid, ready }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pid_file_says_pid_and_readiness() {
        let text =
            |status| format!("4711\n/data\n1763730000\n5432\n/run/x\n\n  12345   6\n{status}\n");
        let ready = PidFile::parse(&text("ready   "));
        assert_eq!((ready.pid, ready.ready), (Pid::from_raw(4711), true));
        assert!(!PidFile::parse(&text("starting")).ready);
        for junk in ["", "0\n", "-1\n", "ready\n", "99999999999\n"] {
            let file = PidFile::parse(junk);
            assert!(file.pid.is_none() && !file.ready, "{junk:?}");
        }
    }
}
