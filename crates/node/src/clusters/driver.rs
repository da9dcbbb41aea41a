//! [`ClusterDriver`] for the clusters of this machine.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::Duration,
};

use async_trait::async_trait;
use gantry_base::ids::ProjectRef;
use secrecy::SecretString;
use tokio::sync::watch;
use tokio_postgres::Client;

use super::{
    local_driver::LocalDriver,
    online_copy::{CopyReport, CopySpec, IsolationStep, ScratchCopy, Snapshot},
    platform::PlatformConflict,
    privileges::PrivilegeFinding,
    recovered::RecoveredServer,
    recovery::{KeptCluster, RecoveredCluster, RecoveryOptions, UnfinishedCluster},
    resources::{
        ControlGroups,
        limits::{ResourceLimits, Resources},
    },
    running::{ProcessEnd, RunningServer, ServerProcess},
    socket::ServerSocket,
    spec::{ClusterSpec, CopyPriority},
    superuser::SuperuserSession,
    upgrade::{UpgradeBlockers, UpgradeSpec, UpgradeStep},
};
use crate::{
    cluster_driver::{ClusterDriver, ServerSettings},
    clusters::resources::{
        Measurement,
        disk::{self, DiskUsage},
    },
    engines::{Engine, Engines},
    error::Result,
};

#[async_trait]
impl ClusterDriver for LocalDriver {
    fn engines(&self) -> &Engines {
        self.engines()
    }

    fn engine_of(&self, project: &ProjectRef) -> &Engine {
        self.engines().fitting(&self.home().data_directory(project))
    }

    fn resource_limits(&self) -> Option<&ResourceLimits> {
        self.resources().map(Resources::limits)
    }

    fn bound(&self, project: &ProjectRef, limits: ResourceLimits) {
        self.bound(project, Some(limits));
    }

    fn enforces_limits(&self) -> bool {
        self.resources()
            .is_some_and(|resources| resources.groups().enforced())
    }

    fn control_groups(&self) -> Option<&ControlGroups> {
        let groups = self.resources().map(Resources::groups);
        groups.filter(|groups| groups.enforced())
    }

    fn template_name(&self, engine: &Engine) -> Result<String> {
        self.template_name(engine)
    }

    fn platform_version(&self) -> String {
        self.platform_version()
    }

    async fn create(&self, cluster: &ClusterSpec, priority: CopyPriority) -> Result<()> {
        self.create(cluster, priority).await
    }

    async fn create_copy(&self, spec: &CopySpec) -> Result<CopyReport> {
        self.create_copy(spec).await
    }

    async fn upgrade(
        &self,
        spec: &UpgradeSpec,
        progress: &watch::Sender<UpgradeStep>,
    ) -> Result<()> {
        self.upgrade(spec, progress).await
    }

    async fn revert_upgrade(&self, project: &ProjectRef, number: i32) -> Result<()> {
        self.revert_upgrade(project, number).await
    }

    async fn discard_original(&self, project: &ProjectRef, number: i32) -> Result<()> {
        self.discard_original(project, number).await
    }

    async fn check_upgrade(&self, project: &ProjectRef, target: u16) -> Result<UpgradeBlockers> {
        self.check_upgrade(project, target).await
    }

    async fn shares_blocks(&self) -> Result<bool> {
        self.shares_blocks().await
    }

    fn denies_network(&self) -> bool {
        self.denies_network()
    }

    async fn snapshot(&self, project: &ProjectRef, bytes_max: u64) -> Result<Snapshot> {
        self.snapshot(project, bytes_max).await
    }

    async fn scratch_copy(&self, project: &ProjectRef, bytes_max: u64) -> Result<ScratchCopy> {
        self.scratch_copy(project, bytes_max).await
    }

    async fn begin_cluster(&self, cluster: &ClusterSpec) -> Result<UnfinishedCluster> {
        self.begin_cluster(cluster).await
    }

    async fn recover(
        &self,
        unfinished: &UnfinishedCluster,
        settings: &BTreeMap<String, String>,
        options: RecoveryOptions,
    ) -> Result<RecoveredCluster> {
        self.recover(unfinished, settings, options).await
    }

    async fn isolate_recovered(
        &self,
        unfinished: &UnfinishedCluster,
        settings: &BTreeMap<String, String>,
        secrets: &[(SecretString, SecretString)],
    ) -> Result<Vec<IsolationStep>> {
        self.isolate_recovered(unfinished, settings, secrets).await
    }

    async fn serve_recovered(
        &self,
        unfinished: &UnfinishedCluster,
        settings: &BTreeMap<String, String>,
    ) -> Result<RecoveredServer> {
        self.serve_recovered(unfinished, settings).await
    }

    async fn keep_restored(&self, unfinished: UnfinishedCluster, name: &str) -> Result<()> {
        self.keep_restored(unfinished, name).await
    }

    fn is_restored(&self, name: &str) -> bool {
        self.is_restored(name)
    }

    fn is_replaced(&self, name: &str) -> bool {
        self.is_replaced(name)
    }

    async fn exchange(&self, project: &ProjectRef, name: &str) -> Result<()> {
        self.exchange(project, name).await
    }

    async fn reuse_replaced(&self, name: &str, as_name: &str) -> Result<()> {
        self.reuse_replaced(name, as_name).await
    }

    async fn kept_clusters(&self) -> Result<Vec<KeptCluster>> {
        self.kept_clusters().await
    }

    async fn discard_kept(&self, kept: &KeptCluster) -> Result<()> {
        self.discard_kept(kept).await
    }

    async fn exists(&self, project: &ProjectRef) -> Result<bool> {
        Ok(self.exists(project))
    }

    async fn start(&self, project: &ProjectRef) -> Result<()> {
        self.start(project).await
    }

    async fn wait_ready(&self, project: &ProjectRef, timeout: Duration) -> Result<()> {
        self.wait_ready(project, timeout).await
    }

    async fn running(&self, project: &ProjectRef) -> Result<Option<RunningServer>> {
        self.running(project).await
    }

    async fn stop(&self, project: &ProjectRef) -> Result<()> {
        self.stop(project).await
    }

    async fn stop_at_once(&self, project: &ProjectRef) -> Result<()> {
        self.stop_at_once(project).await
    }

    async fn stop_all(&self) -> Result<()> {
        self.stop_all().await
    }

    async fn remove(&self, project: &ProjectRef) -> Result<()> {
        self.remove(project).await
    }

    async fn check_settings(&self, project: &ProjectRef, settings: &ServerSettings) -> Result<()> {
        self.check_settings(project, settings).await
    }

    async fn configure(&self, project: &ProjectRef, settings: &ServerSettings) -> Result<()> {
        self.configure(project, settings).await
    }

    async fn reload(&self, project: &ProjectRef) -> Result<()> {
        self.reload(project).await
    }

    async fn set_read_only(&self, project: &ProjectRef, read_only: bool) -> Result<()> {
        self.set_read_only(project, read_only).await
    }

    fn socket(&self, project: &ProjectRef) -> ServerSocket {
        self.socket(project)
    }

    async fn superuser_session(&self, project: &ProjectRef) -> Result<SuperuserSession> {
        self.superuser_session(project).await
    }

    async fn superuser_session_in(
        &self,
        project: &ProjectRef,
        database: &str,
    ) -> Result<SuperuserSession> {
        self.superuser_session_in(project, database).await
    }

    async fn session_as(&self, project: &ProjectRef, role: &str, database: &str) -> Result<Client> {
        self.session_as(project, role, database).await
    }

    async fn refresh_access(&self, project: &ProjectRef) -> Result<()> {
        self.refresh_access(project).await
    }

    async fn find_privileges(&self, admin: &SuperuserSession) -> Result<Vec<PrivilegeFinding>> {
        self.find_privileges(admin).await
    }

    async fn revoke_privileges(
        &self,
        project: &ProjectRef,
        admin: &SuperuserSession,
        found: &[PrivilegeFinding],
    ) -> Result<()> {
        self.revoke_privileges(project, admin, found).await
    }

    async fn has_sessions(&self, project: &ProjectRef) -> Result<bool> {
        self.has_sessions(project).await
    }

    async fn set_password(&self, project: &ProjectRef, role: &str, verifier: &str) -> Result<()> {
        self.set_password(project, role, verifier).await
    }

    async fn repair_roles(&self, project: &ProjectRef) -> Result<()> {
        self.repair_roles(project).await
    }

    async fn repair_roles_over(&self, admin: &SuperuserSession) -> Result<()> {
        self.repair_roles_over(admin).await
    }

    async fn apply_platform(&self, admin: &SuperuserSession) -> Result<Vec<PlatformConflict>> {
        self.apply_platform(admin).await
    }

    async fn grant_on_new_tables(&self, admin: &SuperuserSession) -> Result<()> {
        self.grant_on_new_tables(admin).await
    }

    async fn measure_processes(
        &self,
        projects: Vec<ProjectRef>,
    ) -> Result<HashMap<ProjectRef, Measurement>> {
        self.measure_processes(projects).await
    }

    async fn apply_limits(&self, project: &ProjectRef) -> Result<()> {
        self.apply_limits(project).await
    }

    async fn end_process(
        &self,
        project: &ProjectRef,
        process: ServerProcess,
        how: ProcessEnd,
    ) -> Result<()> {
        self.end_process(project, process, how).await
    }

    async fn disk_usage(&self, project: &ProjectRef, inodes_max: u64) -> Result<DiskUsage> {
        self.disk_usage(project, inodes_max).await
    }

    async fn shared_bytes(&self, project: &ProjectRef, inodes_max: u64) -> Result<u64> {
        self.shared_bytes(project, inodes_max).await
    }

    fn free_space(&self) -> Option<(u64, u64)> {
        disk::free(self.home().dir()).ok()
    }

    async fn list(&self) -> Result<Vec<ProjectRef>> {
        self.list().await
    }

    async fn collect_garbage(&self, known: &HashSet<ProjectRef>) -> Result<()> {
        self.collect_garbage(known).await
    }

    async fn empty_trash(&self) -> Result<usize> {
        self.empty_trash().await
    }
}
