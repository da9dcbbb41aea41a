//! State of the data plane: clusters, proxies, and the tasks that keep them in their desired state.

use std::{
    ops::Deref,
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use async_trait::async_trait;
use gantry_base::{ids::ProjectRef, net::outbound::OutboundPolicy};
use gantry_node::{
    cluster_driver::ClusterDriver,
    clusters::{Home, Location},
};

use super::{
    backups::{BackupOptions, Backups},
    database_access::AccessRuleCache,
    database_session::ConcurrencyLimits,
    domains::hostnames::{self, acme::CertificateAuthority, dns::Dns},
    installation::keeper::Keeper,
    metrics::DataPlaneMetrics,
    postgres_proxy::{PostgresProxy, PublishedAddress},
    projects::{
        NewTableGrants,
        idle::Uses,
        lease::Lease,
        reconciler::Reconciler,
        sizes::{ConnectionBudget, SizeTable},
        warm_pool::{self, Pool},
        watchdog::Watchdog,
    },
    service_proxy::{self, ServiceProxy, upstreams::Upstreams},
    services::{ServiceOptions, Services},
    temporary_access,
};
use crate::platform::{
    context::{ChangeListener, PlatformContext},
    error::{Context, Error},
    tables::{Cache, Task},
};

/// Settings of the operator for clusters, proxies and hostnames.
#[derive(Debug, Clone)]
pub struct DataPlaneSettings {
    /// Where clients reach databases, if they do.
    pub databases: Option<PublishedAddress>,
    /// Whether the control database lies in the data folder.
    pub own_database: bool,
    /// First of the numeric user ids of project clusters.
    pub project_uid_base: u32,
    /// Grants on new objects in `public` of a project that does not choose.
    pub new_table_grants: NewTableGrants,
    /// Warm clusters to keep ready.
    pub prepared: warm_pool::WarmPoolSize,
    /// Time without use after which a server is stopped. None: never.
    pub idle_pause_after: Option<Duration>,
    /// Time for which a removed project can be restored. Zero: its data is deleted at once.
    pub hold: chrono::TimeDelta,
    /// Idle time after which the server of a branch is stopped, if not earlier. `None` disables it.
    pub branch_idle_pause_after: Option<Duration>,
    /// Upstreams of services, unless the operator sets another for a project.
    pub upstreams: Upstreams,
    /// Options of the service proxy.
    pub service_proxy: service_proxy::Options,
    /// Services that Gantry runs itself.
    pub services: ServiceOptions,
    /// DNS resolver.
    pub dns: Arc<dyn Dns>,
    /// Networks for requests to addresses that customers choose.
    pub outbound: OutboundPolicy,
    /// The certificate authority of custom hostnames.
    pub authority: Option<CertificateAuthority>,
    /// Compute sizes that projects can have.
    pub compute_sizes: SizeTable,
    /// Largest disk space that the owner of a project can choose, in bytes.
    pub project_disk_choice_max: u64,
    /// Backups of projects.
    pub backups: BackupOptions,
}

/// Handle to the state of the data plane. Cheap to clone.
#[derive(Clone)]
pub struct DataPlaneContext(Arc<DataPlaneState>);

/// The parts of the data plane's state.
pub struct DataPlaneState {
    /// State of the platform.
    pub platform: PlatformContext,
    /// Settings of the operator.
    pub data_plane_settings: DataPlaneSettings,
    /// Runs the clusters of projects.
    pub driver: Arc<dyn ClusterDriver>,
    /// The data folder of this node.
    pub home: Arc<Home>,
    /// Drives clusters to their desired state.
    pub reconciler: Reconciler,
    /// Keeps projects within their resources.
    pub watchdog: Watchdog,
    /// Times of last use of projects.
    pub uses: Uses,
    /// The lease by which one process acts for the data folder.
    pub lease: Lease,
    /// Warm clusters.
    pub pool: Pool,
    /// Creates and revokes temporary logins.
    pub temporary_access: temporary_access::LoginReconciler,
    /// Proxy of connections to the projects' databases.
    pub postgres_proxy: PostgresProxy,
    /// Limits on sessions of SQL over HTTP.
    pub session_limits: ConcurrencyLimits,
    /// Last known access rules of projects' databases.
    pub access_rules: AccessRuleCache,
    /// Checks custom hostnames when they are due.
    pub hostname_reconciler: hostnames::HostnameReconciler,
    /// Proxy of requests to the projects' services.
    pub service_proxy: ServiceProxy,
    /// Instances of services that Gantry runs itself.
    pub services: Services,
    /// Backups of projects.
    pub backups: Backups,
    /// Keeps the installation in the store of backups.
    pub installation: Keeper,
    /// Metrics.
    pub data_plane_metrics: DataPlaneMetrics,
    /// Data of removed projects outside the data plane.
    removal: OnceLock<Weak<dyn ProjectRemovalHook>>,
}

/// Deletes data of a removed project that the wings above keep. May be called more than once for a
/// project, and before any of it was kept.
#[async_trait]
pub trait ProjectRemovalHook: Send + Sync {
    /// Deletes the data.
    async fn project_removed(&self, project: &ProjectRef) -> Result<(), Error>;
}

impl Deref for DataPlaneContext {
    type Target = DataPlaneState;

    fn deref(&self) -> &DataPlaneState {
        &self.0
    }
}

impl Deref for DataPlaneState {
    type Target = PlatformContext;

    fn deref(&self) -> &PlatformContext {
        &self.platform
    }
}

impl DataPlaneContext {
    /// Creates the data plane of the node with data folder `home`. Clusters are run by `driver`.
    pub fn new(
        platform: PlatformContext,
        settings: DataPlaneSettings,
        driver: Arc<dyn ClusterDriver>,
        home: Arc<Home>,
    ) -> Result<Self, Error> {
        let location = Location::of(home.dir()).context("locating the data folder")?;
        let lease = Lease::new(&platform.entropy, location, settings.own_database);
        let state = Arc::new(DataPlaneState {
            data_plane_metrics: DataPlaneMetrics::new(&platform.metrics),
            installation: Keeper::new(&platform.metrics),
            backups: Backups::new(
                settings.backups.clone(),
                &home,
                &platform.clock,
                &platform.entropy,
                &platform.metrics,
            ),
            platform,
            data_plane_settings: settings,
            driver,
            home,
            reconciler: Reconciler::default(),
            watchdog: Watchdog::default(),
            uses: Uses::default(),
            lease,
            pool: Pool::default(),
            temporary_access: temporary_access::LoginReconciler::default(),
            postgres_proxy: PostgresProxy::default(),
            session_limits: ConcurrencyLimits::new(ConnectionBudget::SQL_OVER_HTTP),
            access_rules: AccessRuleCache::default(),
            hostname_reconciler: hostnames::HostnameReconciler::default(),
            service_proxy: ServiceProxy::default(),
            services: Services::default(),
            removal: OnceLock::new(),
        });
        let weak = Arc::downgrade(&state);
        state.platform.add_listener(weak);
        Ok(Self(state))
    }
}

impl DataPlaneState {
    /// Sets the hook that is called when a project's cluster was removed. Later calls do nothing.
    pub fn set_removal_hook(&self, hook: Weak<dyn ProjectRemovalHook>) {
        let _ = self.removal.set(hook);
    }

    /// Calls the removal hook.
    pub(crate) async fn clean_up_removed(&self, project: &ProjectRef) -> Result<(), Error> {
        match self.removal.get().and_then(Weak::upgrade) {
            Some(hook) => hook.project_removed(project).await,
            None => Ok(()),
        }
    }
}

impl ChangeListener for DataPlaneState {
    fn invalidate(&self, cache: Cache) {
        self.service_proxy.invalidate(cache);
        if cache == Cache::Functions {
            self.services.functions.change();
        }
    }

    fn wake(&self, task: Task) {
        match task {
            Task::Reconciler => self.reconciler.notify(),
            Task::TemporaryAccess => self.temporary_access.wake(),
            Task::Services => self.services.wake(),
            Task::RateLimitOverrides | Task::LogDrains | Task::Branches => {}
        }
    }

    fn set_subscribed(&self, _: bool) {
        self.service_proxy.reread();
        self.services.functions.change();
    }
}
