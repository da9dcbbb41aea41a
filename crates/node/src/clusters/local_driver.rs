//! The clusters of projects on this machine.
//!
//! Every operation is idempotent and can be repeated after a crash. A cluster exists from the
//! `rename` of its directory into `projects/` until the `rename` out of it; incomplete directories
//! are garbage. The caller runs one operation per project at a time.

use std::{
    collections::HashSet,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures_util::{StreamExt, TryStreamExt, stream};
use gantry_base::{clock::Entropy, ids::ProjectRef};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_postgres::{Client, Config};

use super::{
    home::Home,
    resources::limits::{ResourceLimits, Resources},
    server::process::{Host, Server},
    spec::{ClusterSpec, CopyPriority},
};
use crate::{
    background::{blocking, idle},
    clusters::{
        identity::{self, SystemId},
        platform_roles,
        running::RunningServer,
        shutdown::ShutdownMode,
        socket::ServerSocket,
        template, vault_key,
    },
    engines::{Engine, Engines},
    error::{At, ClusterError, Result},
    files,
    supervisor::{Launcher, ProcessOwner},
};

/// Concurrent copies. More would not increase the throughput.
const COPIES_MAX: usize = 2;
const STOPS_MAX: usize = 8;
/// Directories removed per call of [`LocalDriver::empty_trash`], about 30 MB and a thousand files
/// each.
const TRASH_BATCH: usize = 16;
const STOP_PATIENCE: Duration = Duration::from_secs(30);
/// The time that a server gets to stop if its data is deleted anyway.
const DISCARD_PATIENCE: Duration = Duration::from_secs(5);

/// The observed state of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObservedState {
    /// There is no data directory.
    Absent,
    /// There is a data directory, but the server does not run.
    Stopped,
    /// The server runs.
    Running {
        /// The postmaster's process id.
        pid: i32,
        /// Whether it accepts connections.
        accepting: bool,
    },
}

/// Runs clusters as directories and processes of this machine.
#[derive(Debug, Clone)]
pub struct LocalDriver {
    home: Arc<Home>,
    launcher: Launcher,
    engines: Engines,
    entropy: Entropy,
    copies: Arc<Semaphore>,
    /// Copies of running clusters, which take longer than those of templates.
    online_copies: Arc<Semaphore>,
    /// `None`: servers are bounded only by the machine.
    resources: Option<Resources>,
    /// Whether servers archive their write-ahead log.
    archives: bool,
}

impl LocalDriver {
    /// Creates a driver for the clusters in `home`, without accessing them.
    pub fn open(home: Arc<Home>, host: Host, entropy: Entropy) -> Self {
        let engines = Engines::only(host.engine);
        Self {
            home,
            launcher: host.launcher,
            engines,
            entropy,
            copies: Arc::new(Semaphore::new(COPIES_MAX)),
            online_copies: Arc::new(Semaphore::new(COPIES_MAX)),
            resources: None,
            archives: false,
        }
    }

    /// Sets the resource limits of each server.
    #[must_use]
    pub fn with_resources(self, resources: Resources) -> Self {
        Self {
            resources: Some(resources),
            ..self
        }
    }

    /// Makes servers archive their write-ahead log, from their next start on.
    #[must_use]
    pub fn with_archives(self, archives: bool) -> Self {
        Self { archives, ..self }
    }

    /// The resource limits of each server, if any.
    pub fn resources(&self) -> Option<&Resources> {
        self.resources.as_ref()
    }

    /// Sets the resource limits of a cluster, or removes them. They apply to its next start.
    pub fn bound(&self, project: &ProjectRef, limits: Option<ResourceLimits>) {
        if let Some(resources) = &self.resources {
            resources.bound(project.as_str(), limits);
        }
    }

    /// Replaces the PostgreSQL versions.
    #[must_use]
    pub fn with_engines(self, engines: Engines) -> Self {
        Self { engines, ..self }
    }

    /// Creates the template of the default version unless it exists, which takes seconds.
    pub async fn prepare(&self) -> Result<()> {
        self.prepare_for(self.engines.default_engine())
            .await
            .map(drop)
    }

    /// Returns the template of a version, creating it if necessary.
    async fn prepare_for(&self, engine: &Engine) -> Result<PathBuf> {
        let host = self.host(engine);
        let path = template::path(&self.home, &host)?;
        if path.exists() {
            return Ok(path);
        }
        let home = self.home.clone();
        let _once = blocking(move || home.lock_start()).await?;
        template::prepare(&self.home, &host, &self.entropy).await
    }

    /// Creates the data directory durably, with a system identifier of its own. Leaves an existing
    /// data directory unchanged.
    pub async fn create(&self, cluster: &ClusterSpec, priority: CopyPriority) -> Result<()> {
        let place = self.home.project(&cluster.project);
        if place.join("data").exists() {
            return Ok(());
        }
        let _permit = self
            .copies
            .acquire()
            .await
            .map_err(|_| ClusterError::ShuttingDown)?;
        let template = self.template_of(cluster.major).await?;
        // A unique name: a suspended earlier attempt may continue at any time.
        let unfinished =
            self.home
                .tmp()
                .join(format!("{}-{}", cluster.project, self.entropy.letters(8)));
        let owner = ProcessOwner::new(cluster.uid, cluster.uid);
        let id = SystemId::generate(&self.entropy);
        let work = move || {
            let made = fill(&template, &unfinished, owner, id)
                .and_then(|()| files::commit(&unfinished, &place));
            if made.is_err() {
                // Most likely the disk is full: free the space.
                let _ = files::remove_tree(&unfinished);
            }
            made
        };
        match priority {
            CopyPriority::Foreground => blocking(work).await,
            CopyPriority::Background => idle(work).await,
        }
    }

    /// Removes the sockets of a cluster in the making, and its folder if it failed: most likely the
    /// disk is full.
    pub(super) async fn remove_leftovers(&self, name: &str, failed: Option<PathBuf>) -> Result<()> {
        let sockets = self.home.socket_dir(name);
        blocking(move || {
            files::remove_tree(&sockets)?;
            failed.map_or(Ok(()), |folder| files::remove_tree(&folder))
        })
        .await
    }

    /// Takes the right to copy a running cluster. Does not wait, because the caller could do other
    /// work meanwhile.
    pub(super) fn copy_permit(&self) -> Result<SemaphorePermit<'_>> {
        let permit = self.online_copies.try_acquire();
        permit.map_err(|_| ClusterError::CopiesBusy)
    }

    /// Returns a new name of a copy in the making.
    pub(super) fn copy_name(&self) -> String {
        format!("copy-{}", self.entropy.letters(8))
    }

    pub(super) fn entropy(&self) -> &Entropy {
        &self.entropy
    }

    /// Returns the installation of a major version.
    ///
    /// Errors: [`ClusterError::NoEngine`] if there is none.
    pub(super) fn engine_of_major(&self, major: u16) -> Result<&Engine> {
        let engine = self.engines.of_major(major);
        engine.ok_or(ClusterError::NoEngine(major))
    }

    /// Returns the template of a major version, creating it if necessary.
    pub(super) async fn template_of(&self, major: u16) -> Result<PathBuf> {
        self.prepare_for(self.engine_of_major(major)?).await
    }

    /// The server of a copy in the making, within the limits of a project.
    pub(super) fn quarantined(
        &self,
        major: u16,
        name: &str,
        place: &Path,
        owner: ProcessOwner,
    ) -> Result<Server> {
        let server = self.server_for(major, name, place, owner)?;
        Ok(server.without_libraries())
    }

    /// The server of a cluster in the making, with the libraries of its engine.
    pub(super) fn server_for(
        &self,
        major: u16,
        name: &str,
        place: &Path,
        owner: ProcessOwner,
    ) -> Result<Server> {
        let host = self.host(self.engine_of_major(major)?);
        let sockets = self.home.socket_dir(name);
        let server = Server::new(host, name, place, sockets, owner, platform_roles::SUPERUSER);
        Ok(server.bounded(self.resources.clone()))
    }

    /// Starts servers.
    pub(super) fn launcher(&self) -> &Launcher {
        &self.launcher
    }

    /// Returns whether copies share blocks with the template (reflink), which saves time and space.
    pub async fn shares_blocks(&self) -> Result<bool> {
        let tmp = self.home.tmp();
        blocking(move || files::can_share_blocks(&tmp)).await
    }

    /// Returns whether the sandbox denies all outgoing connections of servers.
    pub fn denies_network(&self) -> bool {
        self.launcher.sandbox
    }

    /// Returns whether the data directory exists.
    pub fn exists(&self, project: &ProjectRef) -> bool {
        self.home.data_directory(project).exists()
    }

    /// Starts the server unless it runs, under the uid that owns its data. Call
    /// [`Self::wait_ready`] next.
    pub async fn start(&self, project: &ProjectRef) -> Result<()> {
        let server = self.existing(project)?;
        let (data, owner) = (server.data().to_owned(), server.run_as());
        let entropy = self.entropy.clone();
        let rules = template::access_rules()?;
        blocking(move || {
            vault_key::create(&data, owner, &entropy)?;
            // The files are the tenant's: a program in its server can have changed them.
            template::write_rules(&data, owner, &rules)
        })
        .await?;
        server.start().await.map(drop)
    }

    /// Waits until the started server accepts connections. Fails at once if it exits.
    pub async fn wait_ready(&self, project: &ProjectRef, patience: Duration) -> Result<()> {
        self.existing(project)?.wait_ready(patience).await
    }

    /// The PostgreSQL installations of servers.
    pub fn engines(&self) -> &Engines {
        &self.engines
    }

    fn host(&self, engine: &Engine) -> Host {
        Host {
            engine: engine.clone(),
            launcher: self.launcher.clone(),
        }
    }

    /// Returns the server's process if it runs, without connecting to the server.
    pub async fn running(&self, project: &ProjectRef) -> Result<Option<RunningServer>> {
        match self.server(project)? {
            Some(server) => server.running().await,
            None => Ok(None),
        }
    }

    /// Observes a cluster. Connects to a running server, so a hung server takes a few seconds.
    pub async fn observe(&self, project: &ProjectRef) -> Result<ObservedState> {
        let Some(server) = self.server(project)? else {
            return Ok(ObservedState::Absent);
        };
        let Some(pid) = server.postmaster().await? else {
            return Ok(ObservedState::Stopped);
        };
        let accepting = server.superuser().await.is_ok();
        Ok(ObservedState::Running {
            pid: pid.as_raw_nonzero().get(),
            accepting,
        })
    }

    /// Stops the server after a checkpoint, or kills it if it does not stop in time. Returns when
    /// all its processes have ended.
    pub async fn stop(&self, project: &ProjectRef) -> Result<()> {
        match self.server(project)? {
            Some(server) => server.stop(ShutdownMode::Fast, STOP_PATIENCE).await,
            None => Ok(()),
        }
    }

    /// Stops all servers in the data folder, several at a time, including those of unknown
    /// projects. Returns the first error after trying all.
    pub async fn stop_all(&self) -> Result<()> {
        let refs = self.list().await?;
        let stops = refs
            .into_iter()
            .map(|project| async move { self.stop(&project).await });
        let outcomes: Vec<Result<()>> = stream::iter(stops)
            .buffer_unordered(STOPS_MAX)
            .collect()
            .await;
        outcomes.into_iter().collect()
    }

    /// Stops the server and moves the cluster to the trash. [`Self::empty_trash`] frees the space.
    pub async fn remove(&self, project: &ProjectRef) -> Result<()> {
        self.bound(project, None);
        let place = self.home.project(project);
        let mut _held = None;
        if let Some(server) = self.server(project)? {
            _held = Some(server.hold().await?);
            server
                .halt(ShutdownMode::Immediate, DISCARD_PATIENCE)
                .await?;
        }
        self.discard(&place, &self.home.socket_dir(project.as_str()))
            .await
    }

    /// Deletes a bounded part of the trash and returns the number of deleted clusters. 0 means that
    /// the trash is empty. Slow on some file systems: not for use in a request.
    pub async fn empty_trash(&self) -> Result<usize> {
        let trash = self.home.trash();
        blocking(move || {
            let batch: Vec<PathBuf> = entries(&trash)?.into_iter().take(TRASH_BATCH).collect();
            batch
                .iter()
                .try_for_each(|place| files::remove_tree(place))?;
            Ok(batch.len())
        })
        .await
    }

    /// Lists all projects that have a directory, known to the control database or not.
    pub async fn list(&self) -> Result<Vec<ProjectRef>> {
        let projects = self.home.projects();
        blocking(move || {
            Ok(entries(&projects)?
                .iter()
                .filter_map(|place| name(place)?.parse().ok())
                .collect())
        })
        .await
    }

    /// Moves everything that belongs to no project in `known` to the trash: clusters, unfinished
    /// copies and templates, sockets. Stops servers that run there. Must not run during
    /// [`Self::create`].
    pub async fn collect_garbage(&self, known: &HashSet<ProjectRef>) -> Result<()> {
        let home = self.home.clone();
        let _once = blocking(move || home.lock_start()).await?;
        let projects = self.home.projects();
        let tmp = self.home.tmp();
        let run = self.home.sockets().to_owned();
        let (places, sockets) = blocking(move || {
            let mut places = entries(&projects)?;
            places.extend(entries(&tmp)?);
            Ok((places, entries(&run)?))
        })
        .await?;
        let unknown = |path: &PathBuf| {
            name(path)
                .and_then(|name| name.parse().ok())
                .is_none_or(|project| !known.contains(&project))
        };
        let places = places.into_iter().filter(unknown).map(Ok);
        stream::iter(places)
            .try_for_each_concurrent(STOPS_MAX, |place| async move { self.clear(&place).await })
            .await?;
        let sockets: Vec<_> = sockets
            .into_iter()
            .filter(unknown)
            // Instances of services are removed with their processes.
            .filter(|path| name(path).is_none_or(|name| name != "control" && !name.contains('.')))
            .collect();
        blocking(move || sockets.iter().try_for_each(|dir| files::remove_tree(dir))).await?;
        self.remove_stale_groups().await
    }

    /// Removes control groups of clusters without a directory, and kills their processes.
    async fn remove_stale_groups(&self) -> Result<()> {
        let Some(resources) = self.resources.clone() else {
            return Ok(());
        };
        let projects = self.home.projects();
        blocking(move || {
            // Those of services are removed with their instances.
            let known = |name: &str| name.contains('.') || projects.join(name).exists();
            resources
                .remove_stale(&known)
                .at("removing control groups of", &projects)
        })
        .await
    }

    /// Identifier of the template of a version.
    pub fn template_name(&self, engine: &Engine) -> Result<String> {
        let path = template::path(&self.home, &self.host(engine))?;
        Ok(path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned())
    }

    /// Opens a session in a database with the rights of its owner, or of another login of the
    /// platform that is no superuser.
    pub async fn session_as(
        &self,
        project: &ProjectRef,
        role: &str,
        database: &str,
    ) -> Result<Client> {
        if role == platform_roles::SUPERUSER {
            return Err(ClusterError::Unsupported("sessions of a superuser"));
        }
        self.existing(project)?.connect(role, database).await
    }

    /// Returns the parameters of a session in database `postgres` with peer authentication. They
    /// contain no server: the session uses a connection of [`Self::socket`].
    pub fn config(&self, project: &ProjectRef, role: &str) -> Result<Config> {
        Ok(self.existing(project)?.config(role, "postgres"))
    }

    /// The data folder.
    pub fn home(&self) -> &Arc<Home> {
        &self.home
    }

    /// The socket of a project's server. Neither the cluster nor the server has to exist.
    pub fn socket(&self, project: &ProjectRef) -> ServerSocket {
        ServerSocket::of_server(
            self.socket_path(project),
            project.as_str(),
            self.home.data_directory(project),
        )
    }

    /// The path of the server's Unix socket. To connect, use [`Self::socket`].
    pub fn socket_path(&self, project: &ProjectRef) -> PathBuf {
        self.home.socket(project.as_str())
    }

    /// Stops the server in a directory and moves the directory to the trash.
    async fn clear(&self, place: &Path) -> Result<()> {
        let name = name(place).unwrap_or("unknown");
        let sockets = self.home.socket_dir(name);
        self.stop_servers(place, name).await?;
        tracing::info!(directory = %place.display(), "moving directory without a project to the trash");
        self.discard(place, &sockets).await
    }

    /// Stops the server in a directory, or the two of an upgrade.
    pub(super) async fn stop_servers(&self, place: &Path, name: &str) -> Result<()> {
        for folder in [place.to_owned(), place.join("old"), place.join("new")] {
            if let Some(server) = self.server_in(&folder, name)? {
                server
                    .stop(ShutdownMode::Immediate, DISCARD_PATIENCE)
                    .await?;
            }
        }
        Ok(())
    }

    /// Moves a directory to the trash with one `rename`, if it exists, and deletes its sockets.
    async fn discard(&self, place: &Path, sockets: &Path) -> Result<()> {
        let name = name(place).unwrap_or("unknown");
        let target = self
            .home
            .trash()
            .join(format!("{name}-{}", self.entropy.letters(8)));
        let place = place.to_owned();
        let sockets = sockets.to_owned();
        blocking(move || {
            let moved = files::commit(&place, &target);
            // It may end at any time, as an unfinished copy of a server that is stopping.
            if place.exists() {
                moved?;
            }
            files::remove_tree(&sockets)
        })
        .await
    }

    pub(super) fn existing(&self, project: &ProjectRef) -> Result<Server> {
        self.server(project)?
            .ok_or_else(|| ClusterError::Missing(format!("cluster {project}")))
    }

    fn server(&self, project: &ProjectRef) -> Result<Option<Server>> {
        self.server_in(&self.home.project(project), project.as_str())
    }

    /// Returns the cluster in `<place>/data`, if it exists. Its server runs as the owner of the
    /// data.
    fn server_in(&self, place: &Path, name: &str) -> Result<Option<Server>> {
        let data = place.join("data");
        let owner = match fs::symlink_metadata(&data) {
            Ok(found) => ProcessOwner::new(found.uid(), found.gid()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).at("examining", &data),
        };
        let host = self.host(self.engines.fitting(&data));
        let server = Server::new(
            host,
            name,
            place,
            self.home.socket_dir(name),
            owner,
            platform_roles::SUPERUSER,
        );
        let server = server.bounded(self.resources.clone());
        Ok(Some(server.archived(self.archives)))
    }
}

/// Replaces `<unfinished>/data` with a complete and durable copy of the template.
fn fill(template: &Path, unfinished: &Path, owner: ProcessOwner, id: SystemId) -> Result<()> {
    if !template.exists() {
        return Err(ClusterError::Missing("the template".to_owned()));
    }
    files::remove_tree(unfinished)?;
    files::make_dir(unfinished, 0o711)?;
    let data = unfinished.join("data");
    files::copy_data(template, &data, owner)?;
    identity::assign(&data, id)?;
    files::sync_fs(unfinished)
}

fn entries(dir: &Path) -> Result<Vec<PathBuf>> {
    let list = || {
        fs::read_dir(dir)?
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<io::Result<_>>()
    };
    list().at("listing", dir)
}

fn name(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()
}
