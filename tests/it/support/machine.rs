//! A data folder for one test, with real clusters that end with the test.

use std::{
    env, fs,
    fs::{File, Permissions},
    os::unix::{
        fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use gantry_base::{clock::Entropy, ids::ProjectRef};
use gantry_node::{
    cluster_driver::ClusterDriver,
    clusters::{
        ClusterSpec, ControlGroups, CopyPriority, Home, Host, LocalDriver, ObservedState,
        ResourceLimits, Resources, ServerSocket,
    },
    engines::{Engine, Engines, Installed, LayoutOptions, OldVersions},
    error::ClusterError,
    supervisor::{Account, Launcher, sandbox_available},
};
use rustix::{
    fs::FlockOperation,
    process::{Pid, Signal, kill_process},
};
use tokio::time::{sleep, timeout};
use tokio_postgres::{Client, NoTls};

/// Time limit of every start and stop.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// Returns the first user id of projects, for tests that run as root. Each test process has 5,000
/// of its own, also after the steps of 1,000,000 between the services of a project: without control
/// groups, servers are stopped with all processes of their user id.
pub(crate) fn first_uid() -> u32 {
    let process = std::process::id();
    620_000 + process % 180 * 5_000 + process / 180 % 150 * 10_000_000
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns the default PostgreSQL for projects.
pub(crate) fn engine() -> Engine {
    engines().default_engine().clone()
}

/// Returns every PostgreSQL for tests: that of the distribution, and those that the run installed.
pub(crate) fn engines() -> Engines {
    let installed =
        env::var_os("GANTRY_TEST_ENGINES").unwrap_or_else(|| "/var/tmp/gantry-test-engines".into());
    let options = LayoutOptions::beside(Path::new(&installed));
    Installed::find(None, Path::new(&installed))
        .unwrap()
        .laid_out(&options, &Entropy::system())
        .offer(OldVersions::Offered)
        .unwrap()
}

/// The installed PostgreSQL, started through the real binary.
pub(crate) fn host() -> Host {
    host_of(engine())
}

fn host_of(engine: Engine) -> Host {
    let launcher = Launcher {
        program: env!("CARGO_BIN_EXE_gantry").into(),
        sandbox: sandbox_available(),
    };
    Host { engine, launcher }
}

/// Prepared templates: the run's, or else kept between runs.
pub(crate) fn templates() -> PathBuf {
    env::var_os("GANTRY_TEST_TEMPLATES").map_or_else(
        || Path::new(env!("CARGO_TARGET_TMPDIR")).join("templates"),
        PathBuf::from,
    )
}

/// The mechanism that enforces limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// Control groups, where there are any.
    Groups,
    /// Resource limits and the watchdog.
    Watchdog,
}

/// A home of its own in a directory that other accounts can enter.
pub(crate) struct Machine {
    pub(crate) clusters: LocalDriver,
    pub(crate) home: Arc<Home>,
    _janitor: Janitor,
}

impl Machine {
    /// Returns a machine that can create projects.
    pub(crate) async fn new() -> Self {
        Self::on(&Engines::only(engine())).await
    }

    /// Returns a machine with these engines, the first one as the default.
    pub(crate) async fn on(engines: &Engines) -> Self {
        let mut machine = Self::bare();
        machine.clusters = machine.clusters.with_engines(engines.clone());
        // One test process creates the template while the others wait.
        let lock = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(templates().join("lock"))
            .unwrap();
        let lock = tokio::task::spawn_blocking(move || {
            rustix::fs::flock(&lock, FlockOperation::LockExclusive).map(|()| lock)
        });
        let lock = lock.await.unwrap().unwrap();
        machine.clusters.prepare().await.unwrap();
        drop(lock);
        machine
    }

    /// Returns a machine with these limits.
    pub(crate) async fn within(limits: ResourceLimits, by: By) -> Self {
        let mut machine = Self::new().await;
        let groups = if by == By::Groups {
            ControlGroups::find(machine.dir(), None)
        } else {
            ControlGroups::none()
        };
        machine.clusters = machine
            .clusters
            .with_resources(Resources::new(limits, groups));
        machine
    }

    /// Returns a machine for tests without clusters.
    pub(crate) fn bare() -> Self {
        let dir = place();
        let home = Home::open(&dir, Account::for_servers().unwrap()).unwrap();
        let home = Arc::new(home.with_templates(templates()).unwrap());
        let resources = Resources::new(
            ResourceLimits::default(),
            ControlGroups::find(home.dir(), None),
        );
        let clusters = LocalDriver::open(Arc::clone(&home), host(), Entropy::system())
            .with_resources(resources);
        Self {
            clusters,
            _janitor: Janitor::of(home.dir()),
            home,
        }
    }

    pub(crate) fn dir(&self) -> &Path {
        self.home.dir()
    }

    pub(crate) fn data(&self, project: &ProjectRef) -> PathBuf {
        self.home.project(project).join("data")
    }

    /// Makes a project and waits until it accepts connections.
    pub(crate) async fn running(&self, n: u32) -> ProjectRef {
        let cluster = ClusterSpec {
            major: self.clusters.engines().default_engine().major(),
            ..cluster(n)
        };
        self.clusters
            .create(&cluster, CopyPriority::Foreground)
            .await
            .unwrap();
        self.up(&cluster.project).await;
        cluster.project
    }

    pub(crate) async fn up(&self, project: &ProjectRef) {
        self.clusters.start(project).await.unwrap();
        self.clusters.wait_ready(project, PATIENCE).await.unwrap();
    }

    /// How to reach a project's server by its socket's path, as a program of the tenant's would.
    pub(crate) fn config(&self, project: &ProjectRef, role: &str) -> tokio_postgres::Config {
        let mut config = self.clusters.config(project, role).unwrap();
        config.host_path(self.clusters.socket_path(project).parent().unwrap());
        config
    }

    pub(crate) async fn connect(
        &self,
        project: &ProjectRef,
        role: &str,
    ) -> Result<Client, tokio_postgres::Error> {
        let (client, connection) = self.config(project, role).connect(NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    /// The postmaster of a project that accepts connections.
    pub(crate) async fn pid(&self, project: &ProjectRef) -> Pid {
        match self.clusters.observe(project).await.unwrap() {
            ObservedState::Running {
                pid,
                accepting: true,
            } => Pid::from_raw(pid).unwrap(),
            other => panic!("{other:?}"),
        }
    }
}

/// Sessions of the superuser that execute any SQL. The product has none.
pub(crate) trait SuperuserClients {
    /// Opens a session in database `postgres`.
    async fn admin_session(&self, project: &ProjectRef) -> Result<Client, ClusterError> {
        self.admin_session_in(project, "postgres").await
    }

    /// Opens a session in another database.
    async fn admin_session_in(
        &self,
        project: &ProjectRef,
        database: &str,
    ) -> Result<Client, ClusterError>;
}

impl SuperuserClients for LocalDriver {
    async fn admin_session_in(
        &self,
        project: &ProjectRef,
        database: &str,
    ) -> Result<Client, ClusterError> {
        superuser(self.socket(project), project, database).await
    }
}

impl SuperuserClients for dyn ClusterDriver {
    async fn admin_session_in(
        &self,
        project: &ProjectRef,
        database: &str,
    ) -> Result<Client, ClusterError> {
        superuser(self.socket(project), project, database).await
    }
}

async fn superuser(
    socket: ServerSocket,
    project: &ProjectRef,
    database: &str,
) -> Result<Client, ClusterError> {
    let stream = socket.connect().await;
    let stream = stream.map_err(|cause| ClusterError::Unreached {
        name: project.to_string(),
        cause,
    })?;
    let mut config = tokio_postgres::Config::new();
    config.user("supabase_admin").dbname(database).options(
        "-c search_path=pg_catalog -c default_transaction_read_only=off -c statement_timeout=30s \
         -c lock_timeout=5s -c local_preload_libraries=",
    );
    let connected = config.connect_raw(stream, NoTls).await;
    let (client, connection) = connected.map_err(|cause| ClusterError::Sql {
        doing: "connecting to a cluster",
        cause,
    })?;
    tokio::spawn(connection);
    Ok(client)
}

pub(crate) fn cluster(n: u32) -> ClusterSpec {
    ClusterSpec {
        project: ProjectRef::generate(&Entropy::system()),
        uid: first_uid() + n,
        major: engine().major(),
    }
}

/// Creates a directory that other accounts can enter, within the folder of the run if it has one.
pub(crate) fn place() -> PathBuf {
    let parent =
        env::var_os("GANTRY_TEST_HOME").map_or_else(|| PathBuf::from("/tmp"), PathBuf::from);
    let dir = parent.join(format!("it-{}", Entropy::system().letters(8)));
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, Permissions::from_mode(0o711)).unwrap();
    dir
}

/// A small file system. Unmounted on drop.
pub(crate) struct SmallDisk(pub(crate) PathBuf);

impl SmallDisk {
    /// Mounts it at a folder, which needs root.
    pub(crate) fn mount(folder: &Path, megabytes: u32) -> Self {
        let status = Command::new("mount")
            .args(["-t", "tmpfs", "-o"])
            .arg(format!("size={megabytes}M,mode=711"))
            .args(["gantry-test".as_ref(), folder.as_os_str()])
            .status();
        assert!(status.unwrap().success(), "tmpfs cannot be mounted");
        Self(folder.to_owned())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Kills every process below a directory and deletes it, on drop or when the test process ends. A
/// separate process, which waits for the end of its input.
pub(crate) struct Janitor(Child);

const CLEAR: &str = r#"
cat > /dev/null
while pids=$(find /proc -mindepth 2 -maxdepth 2 -name cwd \( -lname "$1" -o -lname "$1/*" \) -printf '%h\n' 2> /dev/null | tr -dc '0-9\n')
      [ -n "$pids" ]; do
    kill -KILL $pids
    sleep 0.01
done
rm -rf "$1"
for group; do
    [ -d "$group" ] || continue
    while [ -n "$(cat "$group/cgroup.procs")" ]; do
        kill -KILL $(cat "$group/cgroup.procs") 2> /dev/null
        sleep 0.01
    done
    rmdir "$group"
done
"#;

impl Janitor {
    pub(crate) fn of(dir: &Path) -> Self {
        let mut command = Command::new("sh");
        let groups = ControlGroups::find(dir, None).folders("*");
        // The shell looks for groups when the test is over.
        let groups: Vec<String> = groups
            .iter()
            .map(|group| group.display().to_string())
            .collect();
        let clear = CLEAR.replace(
            "for group; do",
            &format!("for group in {}; do", groups.join(" ")),
        );
        command
            .args(["-c", &clear, "janitor"])
            .arg(dir)
            .current_dir("/")
            .process_group(0);
        Self(
            command
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap(),
        )
    }
}

impl Drop for Janitor {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Live processes with working directory `dir` or below it, with their uids.
pub(crate) fn processes_under(dir: &Path) -> Vec<(Pid, u32)> {
    let under = |entry: fs::DirEntry| {
        let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
        fs::read_link(entry.path().join("cwd"))
            .ok()?
            .starts_with(dir)
            .then_some(())?;
        Some((pid, entry.metadata().ok()?.uid()))
    };
    fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(under)
        .collect()
}

/// Kills processes and waits for their end.
pub(crate) async fn kill(pid: Pid) {
    let _ = kill_process(pid, Signal::KILL);
    let exe = format!("/proc/{}/exe", pid.as_raw_nonzero());
    let gone = async {
        // The kernel does not notify about processes that are not children.
        while fs::read_link(&exe).is_ok() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, gone).await.unwrap();
}
