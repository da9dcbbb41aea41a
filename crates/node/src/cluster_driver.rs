//! The interface to the machinery that runs projects' PostgreSQL clusters.
//!
//! All code outside [`clusters`](super::clusters) reaches a project's cluster through
//! [`ClusterDriver`], so that clusters can run on this machine, on another machine or in a test
//! model. The driver for this machine is [`LocalDriver`](super::clusters::LocalDriver).
//!
//! Every operation is idempotent: it compares the current state with the requested state and does
//! only the remaining work. An interrupted operation may be repeated. The caller runs one operation
//! per project at a time; operations of different projects may run at the same time.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
    time::Duration,
};

use async_trait::async_trait;
use gantry_base::ids::ProjectRef;
use secrecy::SecretString;
use tokio::sync::watch;
use tokio_postgres::Client;

use crate::{
    clusters::{
        ClusterSpec, ControlGroups, CopyPriority, CopyReport, CopySpec, IsolationStep, KeptCluster,
        PlatformConflict, PrivilegeFinding, ProcessEnd, RecoveredCluster, RecoveredServer,
        RecoveryOptions, ResourceLimits, RunningServer, ScratchCopy, ServerProcess, ServerSocket,
        Snapshot, SuperuserSession, UnfinishedCluster, UpgradeBlockers, UpgradeSpec, UpgradeStep,
        resources::{Measurement, disk::DiskUsage},
    },
    engines::{Engine, Engines},
    error::{ClusterError, Result},
};

/// Names and values of PostgreSQL settings.
pub type ServerSettings = [(String, String)];

/// Runs the clusters of projects.
#[async_trait]
pub trait ClusterDriver: fmt::Debug + Send + Sync {
    // Versions and limits

    /// The PostgreSQL versions that clusters can run on.
    fn engines(&self) -> &Engines;

    /// The PostgreSQL version that runs a cluster: that of its data directory, else the default.
    fn engine_of(&self, _: &ProjectRef) -> &Engine {
        self.engines().default_engine()
    }

    /// The resource limits of a cluster of the smallest size. `None`: clusters are bounded only by
    /// the machine.
    fn resource_limits(&self) -> Option<&ResourceLimits>;

    /// Sets the resource limits of a cluster of another size. They apply from its next start, or
    /// from [`Self::apply_limits`]. A driver without limits ignores them.
    fn bound(&self, _: &ProjectRef, _: ResourceLimits) {}

    /// Whether the kernel enforces the limits of memory and processes. Otherwise the watchdog
    /// does, and has to measure more often.
    fn enforces_limits(&self) -> bool;

    /// The control groups of clusters on this machine, which services of projects use as well.
    fn control_groups(&self) -> Option<&ControlGroups> {
        None
    }

    /// Identifier of the template that new clusters of this version are copied from.
    fn template_name(&self, engine: &Engine) -> Result<String>;

    /// Identifier of the schemas and grants that [`Self::apply_platform`] applies.
    fn platform_version(&self) -> String;

    // Lifecycle

    /// Creates the data directory, with a system identifier of its own. Leaves an existing data
    /// directory unchanged.
    async fn create(&self, cluster: &ClusterSpec, priority: CopyPriority) -> Result<()>;

    /// Copies the data directory of another, running cluster, isolated from it. Leaves an existing
    /// data directory unchanged, unless it is to be replaced.
    ///
    /// Errors: [`ClusterError::CopiesBusy`]; [`ClusterError::Unsupported`] from a driver without
    /// servers.
    async fn create_copy(&self, _: &CopySpec) -> Result<CopyReport> {
        Err(ClusterError::Unsupported("copies of clusters"))
    }

    /// Stops a cluster and replaces it by a copy that is upgraded to another major version.
    /// Continues an interrupted upgrade of the same number. After an error, call
    /// [`Self::revert_upgrade`].
    async fn upgrade(&self, _: &UpgradeSpec, _: &watch::Sender<UpgradeStep>) -> Result<()> {
        Err(ClusterError::Unsupported("upgrades of clusters"))
    }

    /// Stops a cluster, and puts the original of an upgrade back in its place. Succeeds if it is
    /// there.
    async fn revert_upgrade(&self, _: &ProjectRef, _: i32) -> Result<()> {
        Ok(())
    }

    /// Deletes the original of a completed upgrade. Succeeds if there is none.
    async fn discard_original(&self, _: &ProjectRef, _: i32) -> Result<()> {
        Ok(())
    }

    /// Returns what prevents the upgrade of a running cluster to a major version.
    async fn check_upgrade(&self, _: &ProjectRef, _: u16) -> Result<UpgradeBlockers> {
        Err(ClusterError::Unsupported("upgrades of clusters"))
    }

    /// Returns whether copies share blocks with their original, which saves time and space.
    async fn shares_blocks(&self) -> Result<bool> {
        Ok(false)
    }

    /// Returns whether servers cannot connect to the outside.
    fn denies_network(&self) -> bool {
        false
    }

    /// Copies the files of a cluster, running or cleanly stopped, for a backup.
    ///
    /// Errors: [`ClusterError::Unsupported`] from a driver without servers, as of the other
    /// functions for backups.
    async fn snapshot(&self, _: &ProjectRef, _bytes_max: u64) -> Result<Snapshot> {
        Err(ClusterError::Unsupported("backups"))
    }

    /// Starts an isolated copy of a running cluster, in which SQL can be tried.
    ///
    /// Errors: as those of [`Self::create_copy`].
    async fn scratch_copy(&self, _: &ProjectRef, _bytes_max: u64) -> Result<ScratchCopy> {
        Err(ClusterError::Unsupported("copies of clusters"))
    }

    /// Creates the folder of a cluster that is made from a backup.
    async fn begin_cluster(&self, _: &ClusterSpec) -> Result<UnfinishedCluster> {
        Err(ClusterError::Unsupported("backups"))
    }

    /// Replays the log in that folder up to the target, in quarantine, and checks the cluster.
    async fn recover(
        &self,
        _: &UnfinishedCluster,
        _settings: &BTreeMap<String, String>,
        _: RecoveryOptions,
    ) -> Result<RecoveredCluster> {
        Err(ClusterError::Unsupported("backups"))
    }

    /// Isolates a recovered cluster from its project, so that it can become that of another one.
    /// `secrets` are those of its project, each with its replacement.
    async fn isolate_recovered(
        &self,
        _: &UnfinishedCluster,
        _settings: &BTreeMap<String, String>,
        _secrets: &[(SecretString, SecretString)],
    ) -> Result<Vec<IsolationStep>> {
        Err(ClusterError::Unsupported("backups"))
    }

    /// Starts a recovered cluster in quarantine, to read from it.
    async fn serve_recovered(
        &self,
        _: &UnfinishedCluster,
        _settings: &BTreeMap<String, String>,
    ) -> Result<RecoveredServer> {
        Err(ClusterError::Unsupported("backups"))
    }

    /// Keeps a recovered cluster under this name until it is exchanged with that of the project.
    async fn keep_restored(&self, _: UnfinishedCluster, _name: &str) -> Result<()> {
        Err(ClusterError::Unsupported("backups"))
    }

    /// Returns whether a recovered cluster of this name waits for the exchange.
    fn is_restored(&self, _name: &str) -> bool {
        false
    }

    /// Returns whether the cluster that was replaced by the one of this name is kept.
    fn is_replaced(&self, _name: &str) -> bool {
        false
    }

    /// Exchanges the project's cluster with the recovered one of this name, and keeps the earlier
    /// one under the same name. Completes an interrupted exchange.
    async fn exchange(&self, _: &ProjectRef, _name: &str) -> Result<()> {
        Err(ClusterError::Unsupported("backups"))
    }

    /// Makes a replaced cluster a recovered one of another name.
    async fn reuse_replaced(&self, _name: &str, _as_name: &str) -> Result<()> {
        Err(ClusterError::Unsupported("backups"))
    }

    /// Returns the clusters that wait for an exchange, and those that were replaced.
    async fn kept_clusters(&self) -> Result<Vec<KeptCluster>> {
        Ok(Vec::new())
    }

    /// Moves a kept cluster to the trash.
    async fn discard_kept(&self, _: &KeptCluster) -> Result<()> {
        Ok(())
    }

    /// Returns whether the data directory exists.
    async fn exists(&self, project: &ProjectRef) -> Result<bool>;

    /// Starts the server unless it runs. Returns before the server accepts connections.
    async fn start(&self, project: &ProjectRef) -> Result<()>;

    /// Waits until the server accepts connections. Fails when the server exits, or after `timeout`.
    async fn wait_ready(&self, project: &ProjectRef, timeout: Duration) -> Result<()>;

    /// Returns the server's process, or `None` if the server does not run. Does not connect.
    async fn running(&self, project: &ProjectRef) -> Result<Option<RunningServer>>;

    /// Stops the server after a checkpoint, and returns when all its processes have ended. A
    /// server that does not stop in time is killed.
    async fn stop(&self, project: &ProjectRef) -> Result<()>;

    /// Stops the server without a checkpoint, and ends all its processes.
    async fn stop_at_once(&self, project: &ProjectRef) -> Result<()>;

    /// Stops the servers of all clusters that this driver finds, known to the control database or
    /// not. Returns the first error after trying all.
    async fn stop_all(&self) -> Result<()>;

    /// Stops the server and moves the cluster to the trash. Succeeds if there is no cluster.
    async fn remove(&self, project: &ProjectRef) -> Result<()>;

    // Settings

    /// Checks settings with the server's own program, without changing the cluster.
    ///
    /// Errors: [`ClusterError::Setting`] with PostgreSQL's
    /// message if the settings are invalid.
    async fn check_settings(&self, project: &ProjectRef, settings: &ServerSettings) -> Result<()>;

    /// Writes the settings that the server reads at its next start or reload.
    async fn configure(&self, project: &ProjectRef, settings: &ServerSettings) -> Result<()>;

    /// Makes a running server read its settings again.
    async fn reload(&self, project: &ProjectRef) -> Result<()>;

    /// Sets the default of new transactions in a running server to read-only or read-write.
    async fn set_read_only(&self, project: &ProjectRef, read_only: bool) -> Result<()>;

    // Connections and roles

    /// The server's socket. Neither the cluster nor the server has to exist yet.
    fn socket(&self, project: &ProjectRef) -> ServerSocket;

    /// Opens a superuser session in database `postgres`. If the owner closed that database to
    /// connections, it is opened again first.
    ///
    /// Errors: [`ClusterError::Unsupported`] from a
    /// driver without servers.
    async fn superuser_session(&self, project: &ProjectRef) -> Result<SuperuserSession>;

    /// Opens a superuser session in another database of the cluster.
    async fn superuser_session_in(
        &self,
        project: &ProjectRef,
        database: &str,
    ) -> Result<SuperuserSession>;

    /// Opens a session in a database with the rights of its owner, or of another login of the
    /// platform that is no superuser.
    async fn session_as(&self, project: &ProjectRef, role: &str, database: &str) -> Result<Client>;

    /// Writes the rules of authentication of this version of Gantry, and makes a running server use
    /// them if they were others.
    async fn refresh_access(&self, project: &ProjectRef) -> Result<()>;

    /// Returns privileges of roles that only the platform has, and objects that only a superuser
    /// can have made, over an open superuser session.
    async fn find_privileges(&self, admin: &SuperuserSession) -> Result<Vec<PrivilegeFinding>>;

    /// Revokes privileges that were found. Objects stay. Idempotent.
    async fn revoke_privileges(
        &self,
        project: &ProjectRef,
        admin: &SuperuserSession,
        found: &[PrivilegeFinding],
    ) -> Result<()>;

    /// Returns whether a client has a session open. A stopped server has none.
    async fn has_sessions(&self, project: &ProjectRef) -> Result<bool>;

    /// Sets the password of a role to a SCRAM-SHA-256 verifier. Neither the server nor its log
    /// receives the password itself.
    async fn set_password(&self, project: &ProjectRef, role: &str, verifier: &str) -> Result<()>;

    /// Restores the platform's roles and the database `postgres` if the owner changed them.
    async fn repair_roles(&self, project: &ProjectRef) -> Result<()>;

    /// Does [`Self::repair_roles`] over an open superuser session.
    async fn repair_roles_over(&self, admin: &SuperuserSession) -> Result<()>;

    /// Brings a database to the platform's schemas and grants of this version of Gantry, over an
    /// open superuser session. Returns the parts that objects of the tenant are in the way of.
    async fn apply_platform(&self, admin: &SuperuserSession) -> Result<Vec<PlatformConflict>>;

    /// Grants privileges on new objects in `public` to the roles of the Data API, over an open
    /// superuser session.
    async fn grant_on_new_tables(&self, admin: &SuperuserSession) -> Result<()>;

    // Resource usage

    /// Measures memory and processes of the servers of these projects. Projects without a cluster
    /// are left out.
    async fn measure_processes(
        &self,
        projects: Vec<ProjectRef>,
    ) -> Result<HashMap<ProjectRef, Measurement>>;

    /// Applies the resource limits to a running server that was started without them.
    async fn apply_limits(&self, project: &ProjectRef) -> Result<()>;

    /// Ends one process of the project, unless it has ended.
    async fn end_process(
        &self,
        project: &ProjectRef,
        process: ServerProcess,
        how: ProcessEnd,
    ) -> Result<()>;

    /// Measures the disk space and the inodes of a cluster. Counting stops above `inodes_max`.
    async fn disk_usage(&self, project: &ProjectRef, inodes_max: u64) -> Result<DiskUsage>;

    /// Measures the bytes of a cluster in blocks that other files share.
    async fn shared_bytes(&self, _: &ProjectRef, _: u64) -> Result<u64> {
        Ok(0)
    }

    /// Free bytes and free inodes where clusters are stored. `None` if unknown.
    fn free_space(&self) -> Option<(u64, u64)>;

    // Inventory

    /// All projects that have a cluster here, known to the control database or not.
    async fn list(&self) -> Result<Vec<ProjectRef>>;

    /// Moves everything that belongs to no project in `known` to the trash, and stops servers that
    /// run there. Must not run during [`Self::create`].
    async fn collect_garbage(&self, known: &HashSet<ProjectRef>) -> Result<()>;

    /// Deletes a bounded part of the trash and returns the number of deleted clusters. 0 means
    /// that the trash is empty. Slow on some file systems: not for use in a request.
    async fn empty_trash(&self) -> Result<usize>;
}
