//! Projects' clusters on this machine, in idempotent steps for a reconciler.
//!
//! Each step looks first and acts only if something is missing, so any step may be repeated after any crash. A cluster
//! exists from the `rename` of its directory into `projects/` until the `rename` out of it; everything before and after
//! is garbage that can be thrown away at any time.
//!
//! The caller runs one step per project at a time. Different projects are independent.

use std::{
    collections::HashSet,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures_util::{StreamExt, TryStreamExt, stream};
use postgres_protocol::escape::{escape_identifier, escape_literal};
use tokio::sync::Semaphore;
use tokio_postgres::{Client, Config};

use super::{
    At, ClusterError, Engine, Engines, Home, Launcher, Result, blocking, files, identity,
    identity::SystemId,
    idle,
    resources::Resources,
    server::{Host, RunningServer, Server, Stop},
    socket::ServerSocket,
    template,
};
use crate::base::{clock::Entropy, ids::ProjectRef, supervisor::ProcessOwner};

/// More copies at once only make each slower.
const COPIES_MAX: usize = 2;
const STOPS_MAX: usize = 8;
/// Directories removed per call of [`LocalDriver::empty_trash`], about 30 MB and a thousand files each.
const TRASH_BATCH: usize = 16;
const STOP_PATIENCE: Duration = Duration::from_secs(30);
/// For a cluster whose data is thrown away in any case.
const DISCARD_PATIENCE: Duration = Duration::from_secs(5);

/// A project's cluster as it is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterSpec {
    /// Whose cluster.
    pub project: ProjectRef,
    /// User and group id of its files and processes, used by no other project. Only root can give one; otherwise
    /// everything belongs to Gantry's own account.
    pub uid: u32,
    /// Major version of its PostgreSQL.
    pub major: u16,
}

/// The scheduling priority of the copy that creates a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyPriority {
    /// Normal priority: a client waits for the cluster.
    Foreground,
    /// The lowest priority: no client waits for the cluster.
    Background,
}

/// A project's cluster as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObservedState {
    /// No data directory.
    Absent,
    /// A data directory and no server.
    Stopped,
    /// A server.
    Running {
        /// The postmaster's process id.
        pid: i32,
        /// Whether it let a connection in just now.
        accepting: bool,
    },
}

/// The clusters of this machine's projects.
#[derive(Debug, Clone)]
pub struct LocalDriver {
    home: Arc<Home>,
    launcher: Launcher,
    engines: Engines,
    entropy: Entropy,
    copies: Arc<Semaphore>,
    /// None: servers are bounded only by the machine.
    resources: Option<Resources>,
}

impl LocalDriver {
    /// Manages the projects in `home`. Does nothing yet.
    pub fn open(home: Arc<Home>, host: Host, entropy: Entropy) -> Self {
        let engines = Engines::only(host.engine);
        Self {
            home,
            launcher: host.launcher,
            engines,
            entropy,
            copies: Arc::new(Semaphore::new(COPIES_MAX)),
            resources: None,
        }
    }

    /// Bounds each project's server by these limits.
    #[must_use]
    pub fn with_resources(self, resources: Resources) -> Self {
        Self {
            resources: Some(resources),
            ..self
        }
    }

    /// The limits of each project's server, if there are any.
    pub fn resources(&self) -> Option<&Resources> {
        self.resources.as_ref()
    }

    /// The same with other versions beside the host's, or instead of it.
    #[must_use]
    pub fn with_engines(self, engines: Engines) -> Self {
        Self { engines, ..self }
    }

    /// Makes sure of the template that most new projects are copied from. Seconds the first time, nothing afterwards.
    pub async fn prepare(&self) -> Result<()> {
        self.prepare_for(self.engines.default_engine())
            .await
            .map(drop)
    }

    /// The template of an engine. Those that are seldom asked for are made when they are.
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

    /// Makes the data directory, with a system identifier of its own, on disk. An existing one is left as it is.
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
        let engine = self
            .engines
            .of_major(cluster.major)
            .ok_or(ClusterError::NoEngine(cluster.major))?;
        let template = self.prepare_for(engine).await?;
        // A name of its own: somebody who hung in the middle of the same may go on any time.
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
                // A full disk, most likely; do not keep it full.
                let _ = files::remove_tree(&unfinished);
            }
            made
        };
        match priority {
            CopyPriority::Foreground => blocking(work).await,
            CopyPriority::Background => idle(work).await,
        }
    }

    /// Whether copies share the template's blocks until they are written to: then they cost next to no time and space.
    pub async fn shares_blocks(&self) -> Result<bool> {
        let tmp = self.home.tmp();
        blocking(move || files::can_share_blocks(&tmp)).await
    }

    /// Whether there is a data directory.
    pub fn exists(&self, project: &ProjectRef) -> bool {
        self.data_directory(project).exists()
    }

    /// Starts the server unless it runs. It runs under the uid its data belongs to. Follow with [`Self::wait_ready`].
    pub async fn start(&self, project: &ProjectRef) -> Result<()> {
        self.existing(project)?.start().await.map(drop)
    }

    /// Waits until the started server accepts connections; fails at once if it ended instead.
    pub async fn wait_ready(&self, project: &ProjectRef, patience: Duration) -> Result<()> {
        self.existing(project)?.wait_ready(patience).await
    }

    /// The installations that servers are started from.
    pub fn engines(&self) -> &Engines {
        &self.engines
    }

    fn host(&self, engine: &Engine) -> Host {
        Host {
            engine: engine.clone(),
            launcher: self.launcher.clone(),
        }
    }

    /// The server's process, if it is there. Cheap, and leaves an idle server idle.
    pub async fn running(&self, project: &ProjectRef) -> Result<Option<RunningServer>> {
        match self.server(project)? {
            Some(server) => server.running().await,
            None => Ok(None),
        }
    }

    /// What is there now. An attempt to connect is part of it, so a hung server takes a few seconds to observe.
    pub async fn observe(&self, project: &ProjectRef) -> Result<ObservedState> {
        let Some(server) = self.server(project)? else {
            return Ok(ObservedState::Absent);
        };
        let Some(pid) = server.postmaster().await? else {
            return Ok(ObservedState::Stopped);
        };
        let accepting = server.admin().await.is_ok();
        Ok(ObservedState::Running {
            pid: pid.as_raw_nonzero().get(),
            accepting,
        })
    }

    /// Stops the server with a checkpoint, by force if it must be. Afterwards no process of it is left.
    pub async fn stop(&self, project: &ProjectRef) -> Result<()> {
        match self.server(project)? {
            Some(server) => server.stop(Stop::Fast, STOP_PATIENCE).await,
            None => Ok(()),
        }
    }

    /// Stops all servers of this home, several at a time, also those of projects nobody knows. Tries all, and returns
    /// the first failure.
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

    /// Stops the server and puts the cluster into the trash. The project is gone when this returns; the space is free
    /// after [`Self::empty_trash`].
    pub async fn remove(&self, project: &ProjectRef) -> Result<()> {
        let place = self.home.project(project);
        let mut _held = None;
        if let Some(server) = self.server(project)? {
            _held = Some(server.hold().await?);
            server.halt(Stop::Immediate, DISCARD_PATIENCE).await?;
        }
        self.discard(&place, &self.home.socket_dir(project.as_str()))
            .await
    }

    /// Removes a bounded part of the trash and returns how many clusters that was. 0 means it is empty.
    ///
    /// Slow on file systems that discard blocks at once; never part of a request.
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

    /// Every project that has a directory, known or not.
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

    /// Puts into the trash what no project in `known` accounts for: clusters, unfinished copies and templates, sockets.
    /// Stops servers that run there. Not to be called while a cluster is created.
    pub async fn collect_garbage(&self, known: &HashSet<ProjectRef>) -> Result<()> {
        let home = self.home.clone();
        let _once = blocking(move || home.lock_start()).await?;
        let (projects, tmp, run) = (
            self.home.projects(),
            self.home.tmp(),
            self.home.sockets().to_owned(),
        );
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
            .filter(|path| name(path) != Some("control"))
            .collect();
        blocking(move || sockets.iter().try_for_each(|dir| files::remove_tree(dir))).await?;
        self.remove_stale_groups().await
    }

    /// Removes control groups of clusters that have no directory any more, with what runs in them.
    async fn remove_stale_groups(&self) -> Result<()> {
        let Some(resources) = self.resources.clone() else {
            return Ok(());
        };
        let projects = self.home.projects();
        blocking(move || {
            let known = |cluster: &str| projects.join(cluster).exists();
            resources
                .remove_stale(&known)
                .at("removing control groups of", &projects)
        })
        .await
    }

    /// Sets the password of `role` to a SCRAM-SHA-256 verifier made by the caller: neither the server nor its log ever
    /// sees the password.
    pub async fn set_password(
        &self,
        project: &ProjectRef,
        role: &str,
        verifier: &str,
    ) -> Result<()> {
        if !is_scram_verifier(verifier) {
            return Err(ClusterError::NotAVerifier);
        }
        let admin = self.admin_session(project).await?;
        let sql_error = |cause| ClusterError::Sql {
            doing: "setting a password",
            cause,
        };
        // A message of its own: PostgreSQL decides on logging a message before it runs any of it.
        admin.batch_execute(QUIET).await.map_err(sql_error)?;
        let statement = format!(
            "alter role {} password {}",
            escape_identifier(role),
            escape_literal(verifier)
        );
        admin.batch_execute(&statement).await.map_err(sql_error)
    }

    /// Gives roles the grants of this version, whatever template the cluster is from. Can be repeated.
    pub async fn grant_roles(&self, admin: &Client) -> Result<()> {
        admin
            .batch_execute(template::GRANTS)
            .await
            .map_err(|cause| ClusterError::Sql {
                doing: "granting what roles may do",
                cause,
            })
    }

    /// Tells what is copied from this engine's template from what is copied from another.
    pub fn template_name(&self, engine: &Engine) -> Result<String> {
        let path = template::path(&self.home, &self.host(engine))?;
        Ok(path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned())
    }

    /// Tells the grants of this version from others.
    pub fn grants_version(&self) -> String {
        template::grants_version()
    }

    /// A superuser session in database `postgres`, guarded against what the tenant may have attached to it. The
    /// connection ends when the client is dropped.
    /// If the tenant closed that database, it is opened again first.
    pub async fn admin_session(&self, project: &ProjectRef) -> Result<Client> {
        let server = self.existing(project)?;
        match server.admin().await {
            Err(error) if error.is_closed_database() => {
                tracing::warn!(%project, %error, "the project's database is closed to the platform; it is opened again");
                self.repair_roles(project).await?;
                server.admin().await
            }
            answer => answer,
        }
    }

    /// Makes the platform's own roles, and the database that every project has, what they must be. Within seconds; can be repeated.
    pub async fn repair_roles(&self, project: &ProjectRef) -> Result<()> {
        let admin = self.existing(project)?.repairer().await?;
        let sql_error = |cause| ClusterError::Sql {
            doing: "repairing the platform's roles",
            cause,
        };
        admin
            .batch_execute(template::REPAIR)
            .await
            .map_err(sql_error)
    }

    /// Repairs the platform's roles over an open session of the superuser.
    pub async fn repair_roles_over(&self, admin: &Client) -> Result<()> {
        let sql_error = |cause| ClusterError::Sql {
            doing: "repairing the platform's roles",
            cause,
        };
        admin
            .batch_execute(template::REPAIR)
            .await
            .map_err(sql_error)
    }

    /// The same in another of its databases.
    pub async fn admin_session_in(&self, project: &ProjectRef, database: &str) -> Result<Client> {
        self.existing(project)?
            .connect(template::SUPERUSER, database)
            .await
    }

    /// The parameters of a session with database `postgres` as one of the roles that peer authentication admits Gantry
    /// as. They name no server: the session begins on a connection of [`Self::socket`].
    pub fn config(&self, project: &ProjectRef, role: &str) -> Result<Config> {
        Ok(self.existing(project)?.config(role, "postgres"))
    }

    /// The data folder.
    pub fn home(&self) -> &Arc<Home> {
        &self.home
    }

    /// A project's data directory, which need not exist.
    pub fn data_directory(&self, project: &ProjectRef) -> PathBuf {
        self.home.project(project).join("data")
    }

    /// The way to the project's server. The project need not exist, and its server need not run.
    pub fn socket(&self, project: &ProjectRef) -> ServerSocket {
        ServerSocket::of_server(
            self.socket_path(project),
            project.as_str(),
            self.data_directory(project),
        )
    }

    /// Path of the server's Unix socket. To connect, use [`Self::socket`].
    pub fn socket_path(&self, project: &ProjectRef) -> PathBuf {
        self.home.socket(project.as_str())
    }

    /// Stops whatever runs in an unwanted directory, and discards it.
    async fn clear(&self, place: &Path) -> Result<()> {
        let name = name(place).unwrap_or("unknown");
        let sockets = self.home.socket_dir(name);
        if let Some(server) = self.server_in(place, name)? {
            server.stop(Stop::Immediate, DISCARD_PATIENCE).await?;
        }
        tracing::info!(directory = %place.display(), "moving to the trash: no project accounts for it");
        self.discard(place, &sockets).await
    }

    /// Out of sight in one step. What is not there is fine.
    async fn discard(&self, place: &Path, sockets: &Path) -> Result<()> {
        let name = name(place).unwrap_or("unknown");
        let target = self
            .home
            .trash()
            .join(format!("{name}-{}", self.entropy.letters(8)));
        let (place, sockets) = (place.to_owned(), sockets.to_owned());
        blocking(move || {
            if place.exists() {
                files::commit(&place, &target)?;
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

    /// The cluster in `<place>/data`, if there is one. It runs as the owner of its data, whoever is asked for.
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
            template::SUPERUSER,
        );
        Ok(Some(server.bounded(self.resources.clone())))
    }
}

/// A complete, durable copy of the template in `<unfinished>/data`, whatever was there before.
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

/// Keeps the next statements out of the log and out of the statistics.
pub const QUIET: &str = "set log_statement = 'none'; set log_min_duration_statement = -1; set log_min_error_statement = 'panic'; \
                     set pg_stat_statements.track = 'none'";

/// `SCRAM-SHA-256$<iterations>:<salt>$<stored key>:<server key>`; anything else PostgreSQL would take for a password.
fn is_scram_verifier(text: &str) -> bool {
    let base64 = |text: &str, len: usize| {
        let body = text.trim_end_matches('=');
        text.len() == len
            && len - body.len() <= 2
            && body
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/'))
    };
    let parts = || {
        let (parameters, keys) = text.strip_prefix("SCRAM-SHA-256$")?.split_once('$')?;
        let ((iterations, salt), (stored, server)) =
            (parameters.split_once(':')?, keys.split_once(':')?);
        let counted = iterations.bytes().all(|b| b.is_ascii_digit())
            && iterations.parse::<u32>().is_ok_and(|n| n > 0);
        Some(
            counted
                && (4..=128).contains(&salt.len())
                && base64(salt, salt.len())
                && base64(stored, 44)
                && base64(server, 44),
        )
    };
    parts().unwrap_or(false)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_scram_verifiers_pass() {
        let keys = "k3JCUfEzTgPeFmAX8Z0CNPY0GQnO1fW3bnVQXbhCBbk=:5wTSkRZWTBRoMh8CgYHJ3v7XKpLAY8ZVsCbAXb4tPxY=";
        assert!(is_scram_verifier(&format!(
            "SCRAM-SHA-256$4096:c2FsdHNhbHRzYWx0c2E=${keys}"
        )));
        for bad in [
            String::new(),
            "hunter2".to_owned(),
            "SCRAM-SHA-256$".to_owned(),
            "SCRAM-SHA-256$hunter2".to_owned(),
            format!("SCRAM-SHA-256$0:c2FsdA==${keys}"),
            format!("SCRAM-SHA-256$+1:c2FsdA==${keys}"),
            format!("SCRAM-SHA-256$4096:${keys}"),
            format!("SCRAM-SHA-256$4096:c2Fs'A==${keys}"),
            format!("SCRAM-SHA-256$4096:c2FsdA==${keys}x"),
            format!("scram-sha-256$4096:c2FsdA==${keys}"),
            "md5d8578edf8458ce06fbc5bb76a58c5ca4".to_owned(),
        ] {
            assert!(!is_scram_verifier(&bad), "{bad}");
        }
    }
}
