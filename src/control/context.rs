//! State of the control plane: clusters, proxies, and the tasks that keep them in their desired
//! state.

use std::{
    io,
    ops::Deref,
    path::Path,
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use async_trait::async_trait;
use gantry_base::ids::ProjectRef;
use gantry_node::{
    cluster_driver::ClusterDriver,
    clusters::{Home, Location},
    supervisor::ProcessOwner,
};

use super::{
    backups::state::{BackupOptions, Backups},
    database_access::rules::AccessRuleCache,
    database_session::ConcurrencyLimits,
    domains::hostnames::{dns::Dns, state::CertificateAuthority},
    fleet::state::{Fleet, NodeSettings},
    installation::keeper::Keeper,
    metrics::ClusterMetrics,
    projects::{
        new_table_grants::NewTableGrants,
        sizes::{ConnectionBudget, SizeTable},
        state::{
            lease::Lease, reconciler::Reconciler, uses::Uses, warm_pool::Pool, watchdog::Watchdog,
        },
    },
    services::state::{ServiceOptions, Services},
};
use crate::{
    control::{
        database_calls::state::DatabaseCalls, domains::hostnames::state::HostnameReconciler,
        platform_webhooks::state::PlatformWebhooks, projects::state::warm_pool::WarmPoolSize,
        temporary_access::state::LoginReconciler,
    },
    platform::{
        context::{ChangeListener, PlatformContext},
        error::{Context, Error},
        tables::{Cache, Task},
    },
    proxy::{
        postgres_proxy::{PostgresProxy, PublishedAddress},
        service_proxy::{self, FunctionGateway, ServiceProxy},
    },
};

/// Settings of the operator for clusters, proxies and hostnames.
#[derive(Debug, Clone)]
pub struct ControlSettings {
    /// Where clients reach databases, if they do.
    pub databases: Option<PublishedAddress>,
    /// Whether the control database lies in the data folder.
    pub own_database: bool,
    /// First of the numeric user ids of project clusters.
    pub project_uid_base: u32,
    /// Grants on new objects in `public` of a project that does not choose.
    pub new_table_grants: NewTableGrants,
    /// Warm clusters to keep ready.
    pub prepared: WarmPoolSize,
    /// Time without use after which a server is stopped. None: never.
    pub idle_pause_after: Option<Duration>,
    /// Time for which a removed project can be restored. Zero: its data is deleted at once.
    pub hold: chrono::TimeDelta,
    /// Idle time after which the server of a branch is stopped, if not earlier. `None` disables it.
    pub branch_idle_pause_after: Option<Duration>,
    /// Options of the service proxy.
    pub service_proxy: service_proxy::Options,
    /// Services that Gantry runs itself.
    pub services: ServiceOptions,
    /// DNS resolver.
    pub dns: Arc<dyn Dns>,
    /// The certificate authority of custom hostnames.
    pub authority: Option<CertificateAuthority>,
    /// Compute sizes that projects can have.
    pub compute_sizes: SizeTable,
    /// Largest disk space that the owner of a project can choose, in bytes.
    pub project_disk_choice_max: u64,
    /// Backups of projects.
    pub backups: BackupOptions,
    /// This node among others.
    pub fleet: NodeSettings,
}

/// Handle to the state of the control plane. Cheap to clone.
#[derive(Clone)]
pub struct ControlContext(Arc<ControlState>);

/// The parts of the control plane's state.
pub struct ControlState {
    /// State of the platform.
    pub platform: PlatformContext,
    /// Settings of the operator.
    pub control_settings: ControlSettings,
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
    pub temporary_access: LoginReconciler,
    /// Proxy of connections to the projects' databases.
    pub postgres_proxy: Arc<PostgresProxy>,
    /// Limits on sessions of SQL over HTTP.
    pub session_limits: ConcurrencyLimits,
    /// Last known access rules of projects' databases.
    pub access_rules: AccessRuleCache,
    /// Checks custom hostnames when they are due.
    pub hostname_reconciler: HostnameReconciler,
    /// Proxy of requests to the projects' services.
    pub service_proxy: Arc<ServiceProxy>,
    /// Instances of services that Gantry runs itself.
    pub services: Services,
    /// Backups of projects.
    pub backups: Backups,
    /// Keeps the installation in the store of backups.
    pub installation: Keeper,
    /// The other nodes.
    pub fleet: Fleet,
    /// Calls that databases make with `pg_net`.
    pub database_calls: DatabaseCalls,
    /// Deliveries of events to webhook endpoints.
    pub platform_webhooks: PlatformWebhooks,
    /// Metrics of clusters.
    pub cluster_metrics: ClusterMetrics,
    /// Opens the sockets by which functions reach the services of their project.
    pub(in crate::control) open_gateway: OpenFunctionGateway,
    /// Data of removed projects outside the control plane.
    removal: OnceLock<Weak<dyn ProjectRemovalHook>>,
}

/// Opens the socket at a path by which the processes of an owner reach the services of a project.
pub type OpenFunctionGateway =
    fn(&ControlContext, &ProjectRef, &Path, ProcessOwner) -> io::Result<FunctionGateway>;

/// Deletes data of a removed project that the wings above keep. May be called more than once for a
/// project, and before any of it was kept.
#[async_trait]
pub trait ProjectRemovalHook: Send + Sync {
    /// Deletes the data.
    async fn project_removed(&self, project: &ProjectRef) -> Result<(), Error>;
}

impl Deref for ControlContext {
    type Target = ControlState;

    fn deref(&self) -> &ControlState {
        &self.0
    }
}

impl Deref for ControlState {
    type Target = PlatformContext;

    fn deref(&self) -> &PlatformContext {
        &self.platform
    }
}

impl ControlContext {
    /// Returns a handle that does not keep the state, for parts that the state holds.
    pub(in crate::control) fn downgrade(&self) -> Weak<ControlState> {
        Arc::downgrade(&self.0)
    }

    /// Returns the handle to a state that still exists.
    pub(in crate::control) fn upgrade(state: &Weak<ControlState>) -> Option<Self> {
        state.upgrade().map(Self)
    }

    /// Creates the control plane of the node with data folder `home`. Clusters are run by `driver`.
    pub fn new(
        platform: PlatformContext,
        settings: ControlSettings,
        driver: Arc<dyn ClusterDriver>,
        home: Arc<Home>,
        open_gateway: OpenFunctionGateway,
    ) -> Result<Self, Error> {
        let location = Location::of(home.dir()).context("locating the data folder")?;
        let lease = Lease::new(&platform.entropy, location, settings.own_database);
        let state = Arc::new(ControlState {
            cluster_metrics: ClusterMetrics::new(&platform.metrics),
            database_calls: DatabaseCalls::new(&platform.metrics),
            platform_webhooks: PlatformWebhooks::new(&platform.metrics),
            postgres_proxy: Arc::new(PostgresProxy::new(&platform.metrics)),
            service_proxy: Arc::new(ServiceProxy::new(
                settings.service_proxy.clone(),
                &platform.metrics,
            )),
            installation: Keeper::new(&platform.metrics),
            backups: Backups::new(
                settings.backups.clone(),
                &home,
                &platform.clock,
                &platform.entropy,
                &platform.metrics,
            ),
            platform,
            control_settings: settings,
            driver,
            home,
            reconciler: Reconciler::default(),
            watchdog: Watchdog::default(),
            uses: Uses::default(),
            lease,
            pool: Pool::default(),
            temporary_access: LoginReconciler::default(),

            session_limits: ConcurrencyLimits::new(ConnectionBudget::SQL_OVER_HTTP),
            access_rules: AccessRuleCache::default(),
            hostname_reconciler: HostnameReconciler::default(),

            services: Services::default(),
            fleet: Fleet::default(),
            open_gateway,
            removal: OnceLock::new(),
        });
        let weak = Arc::downgrade(&state);
        state.platform.add_listener(weak);
        Ok(Self(state))
    }
}

impl ControlState {
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

impl ChangeListener for ControlState {
    fn invalidate(&self, cache: Cache) {
        self.service_proxy.invalidate(cache);
        if cache == Cache::Functions {
            self.services.functions.change();
        }
        if cache == Cache::ProjectNodes {
            self.fleet.forget_holders();
        }
    }

    fn wake(&self, task: Task) {
        match task {
            Task::Reconciler => self.reconciler.notify(),
            Task::TemporaryAccess => self.temporary_access.wake(),
            Task::Services => self.services.wake(),
            Task::PlatformWebhooks => self.platform_webhooks.wake(),
            Task::RateLimitOverrides | Task::LogDrains | Task::Branches | Task::Events => {}
        }
    }

    fn set_subscribed(&self, subscribed: bool) {
        self.fleet.set_subscribed(subscribed);
        self.service_proxy.reread();
        self.services.functions.change();
    }
}
