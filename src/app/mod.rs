//! The application: settings, shared state, the API and background tasks.

pub mod config;
pub mod monitoring;
pub mod operator_api;

use std::{future::ready, ops::Deref, sync::Arc, time::Duration};

use gantry_base::{
    clock::{Clock, Entropy},
    net::outbound::OutboundPolicy,
    repeat,
};
use gantry_node::{cluster_driver::ClusterDriver, clusters::Home};
use tokio::{sync::mpsc, task::JoinSet};
use uuid::Uuid;

use crate::{
    api::{
        accounts::oidc::OidcProvider,
        branches::{self, BranchOptions},
        context::{ApiContext, ApiSettings},
        endpoints, log_drains, logs, oauth,
    },
    control::{
        backups::{self, state::BackupOptions},
        context::{ControlContext, ControlSettings},
        database_calls,
        domains::hostnames::{self, dns::Dns, state::CertificateAuthority},
        fleet::{self, state::NodeSettings},
        installation, platform_webhooks,
        projects::{
            idle, lease, new_table_grants::NewTableGrants, reconciler, sizes::SizeTable,
            state::warm_pool::WarmPoolSize, upkeep, warm_pool, watchdog,
        },
        proxies,
        services::{self, state::ServiceOptions},
        temporary_access, third_party_auth,
    },
    mcp,
    platform::{
        access::{Directory, call_log, last_used},
        context::{PlatformContext, PlatformSettings, PublishedLinks},
        db::{Db, heartbeat},
        error::Error,
        events,
        http::{Api, Endpoint, Transport},
        idempotency, notifications,
        rate_limits::{self, Memory, RateLimiter, Shared},
        sealing::SealingKey,
        telemetry::{self, Metrics},
    },
    proxy::{postgres_proxy::PublishedAddress, service_proxy},
    web,
};

/// Settings of the server, derived from the configuration.
#[derive(Debug, Clone)]
pub struct Settings {
    /// TLS of the API listener, and the proxies with trusted forwarding headers.
    pub transport: Transport,
    /// Domain of projects: a database has the host `db.<ref>.<project_domain>`.
    pub project_domain: String,
    /// Host and port of databases in connection strings, if they are reachable.
    pub databases: Option<PublishedAddress>,
    /// Links shown in the API document and on pages.
    pub links: PublishedLinks,
    /// Id of this node, which owns the clusters in its data folder.
    pub node: Uuid,
    /// Whether the control database is the embedded cluster of the data folder.
    pub own_database: bool,
    /// First numeric user id for project clusters.
    pub project_uid_base: u32,
    /// Grants on new objects in `public` of a project that does not choose.
    pub new_table_grants: NewTableGrants,
    /// Storage of rate limit counters.
    pub counting: rate_limits::Options,
    /// Number of clusters to create in advance.
    pub prepared: WarmPoolSize,
    /// Idle time after which a server is stopped. `None` disables stopping.
    pub idle_pause_after: Option<Duration>,
    /// Time for which a removed project can be restored. Zero: its data is deleted at once.
    pub hold: chrono::TimeDelta,
    /// Options of the service proxy.
    pub service_proxy: service_proxy::Options,
    /// Services that Gantry runs itself.
    pub services: ServiceOptions,
    /// DNS resolver.
    pub dns: Arc<dyn Dns>,
    /// Certificate authority for custom hostnames, if configured.
    pub authority: Option<CertificateAuthority>,
    /// Encrypts secrets that must be shown again.
    pub sealing: SealingKey,
    /// Scheme, host and port by which clients reach this server. Required for OAuth.
    pub public_url: Option<String>,
    /// Settings of the OAuth authorization server.
    pub oauth: oauth::OAuthSettings,
    /// External OpenID Connect provider for sign-in, if configured.
    pub provider: Option<Arc<OidcProvider>>,
    /// Storage of log lines.
    pub logs: logs::Options,
    /// Networks for requests to addresses that customers choose.
    pub outbound: OutboundPolicy,
    /// Limits of log drains.
    pub log_drains: log_drains::Options,
    /// Compute sizes that projects can have.
    pub compute_sizes: SizeTable,
    /// Largest disk space that the owner of a project can choose, in bytes.
    pub project_disk_choice_max: u64,
    /// Limits of branches.
    pub branches: BranchOptions,
    /// Backups of projects.
    pub backups: BackupOptions,
    /// This node among others.
    pub fleet: NodeSettings,
}

impl Settings {
    /// Splits the settings by layer.
    fn split(self) -> (PlatformSettings, ControlSettings, ApiSettings) {
        let platform = PlatformSettings {
            transport: self.transport,
            project_domain: self.project_domain,
            links: self.links,
            node: self.node,
            sealing: self.sealing,
            outbound: self.outbound,
            public_url: self.public_url,
        };
        let control = ControlSettings {
            databases: self.databases,
            own_database: self.own_database,
            project_uid_base: self.project_uid_base,
            new_table_grants: self.new_table_grants,
            prepared: self.prepared,
            idle_pause_after: self.idle_pause_after,
            hold: self.hold,
            branch_idle_pause_after: self.branches.idle_pause_after,
            service_proxy: self.service_proxy,
            services: self.services,
            dns: self.dns,
            authority: self.authority,
            compute_sizes: self.compute_sizes,
            project_disk_choice_max: self.project_disk_choice_max,
            backups: self.backups,
            fleet: self.fleet,
        };
        let api = ApiSettings {
            oauth: self.oauth,
            provider: self.provider,
            logs: self.logs,
            log_drains: self.log_drains,
            branches: self.branches,
        };
        (platform, control, api)
    }
}

/// The application. Cheap to clone.
#[derive(Clone)]
pub struct App {
    /// State shared by all operations.
    pub context: ApiContext,
}

impl Deref for App {
    type Target = ApiContext;

    fn deref(&self) -> &ApiContext {
        &self.context
    }
}

/// Background tasks that are not started yet.
pub struct Background {
    app: App,
    uses: mpsc::Receiver<last_used::TokenUse>,
    calls: mpsc::Receiver<call_log::TokenCall>,
}

impl App {
    /// Creates an application and its background tasks. Clusters of the data folder `home` are
    /// managed through `driver`; `memory` holds the rate limit counters of this process.
    pub fn new(
        settings: Settings,
        clock: Clock,
        entropy: Entropy,
        db: Db,
        driver: Arc<dyn ClusterDriver>,
        home: Arc<Home>,
        memory: Memory,
    ) -> Result<(Self, Background), Error> {
        let (sender, uses) = mpsc::channel(last_used::QUEUE_MAX);
        let (noted, calls) = mpsc::channel(call_log::QUEUE_MAX);
        let directory = Directory::new(db.clone(), clock.clone(), sender, noted);
        let metrics = Metrics::new(Self::operations().into_iter())?;
        let shared = settings.counting.store(&db)?.map(|store| {
            let process = entropy.uuid().to_string();
            let deadline = settings.counting.deadline;
            Shared::new(
                store,
                process,
                deadline,
                clock.clone(),
                metrics.rate_limit_store(),
            )
        });
        let operations = Self::numbered().map(|endpoint| (endpoint.id, endpoint.limit));
        let limits = RateLimiter::new(operations, memory, shared);
        let (platform, control, api) = settings.split();
        let platform =
            PlatformContext::new(platform, clock, entropy, db, directory, limits, metrics);
        let control = ControlContext::new(
            platform,
            control,
            driver,
            home,
            proxies::open_function_gateway,
        )?;
        if control.control_settings.fleet.address.is_some() {
            control.set_forwarder(fleet::forwarder(&control));
        }
        let app = Self {
            context: ApiContext::new(control, api),
        };
        Ok((app.clone(), Background { app, uses, calls }))
    }

    /// Returns the ids of all operations, ordered by number. Counters and metrics use the same
    /// numbers.
    pub fn operations() -> Vec<&'static str> {
        Self::numbered().map(|endpoint| endpoint.id).collect()
    }

    /// Returns the operations of the API and the pages, in the order in which [`Api::new`] numbers
    /// them.
    fn numbered() -> impl Iterator<Item = &'static Endpoint> {
        let programs = Self::programs().chain([&endpoints::UNKNOWN]);
        programs
            .chain(web::pages().iter().copied())
            .chain([&web::NOT_FOUND])
    }

    /// Returns the operations for programs: those of the API, and the MCP server.
    fn programs() -> impl Iterator<Item = &'static Endpoint> {
        endpoints::all().iter().chain(mcp::ENDPOINTS).copied()
    }

    /// Returns the API together with the web pages.
    pub fn api(&self) -> Api {
        let state = Arc::new(self.context.clone());
        let platform: &PlatformContext = self;
        Api::new(
            platform,
            state,
            &Self::programs().collect::<Vec<_>>(),
            &endpoints::UNKNOWN,
            &web::served(),
        )
    }
}

impl Background {
    /// Starts the tasks. Dropping the set aborts them; stop the reconciler and close
    /// the log store first to finish started work.
    pub fn spawn(self) -> JoinSet<()> {
        let Self { app, uses, calls } = self;
        let mut tasks = JoinSet::new();
        app.control.services.begin_adoption();
        tasks.spawn(heartbeat::run(app.db.clone()));
        tasks.spawn(lease::run(app.control.clone()));
        tasks.spawn(fleet::run(app.control.clone()));
        tasks.spawn(fleet::moves::run(app.control.clone()));
        tasks.spawn(reconciler::run(app.control.clone()));
        tasks.spawn(reconciler::empty_trash(app.control.clone()));
        tasks.spawn(warm_pool::run(app.control.clone()));
        tasks.spawn(temporary_access::reconciler::run(app.control.clone()));
        tasks.spawn(idle::run(app.control.clone()));
        tasks.spawn(database_calls::run(app.control.clone()));
        tasks.spawn(platform_webhooks::run(app.control.clone()));
        tasks.spawn(watchdog::run(app.control.clone()));
        tasks.spawn(upkeep::run(app.control.clone()));
        tasks.spawn(backups::run(app.control.clone()));
        tasks.spawn(backups::upkeep::run(app.control.clone()));
        tasks.spawn(backups::tables::run(app.control.clone()));
        tasks.spawn(installation::run(app.control.clone()));
        tasks.spawn(installation::status_metrics::run(app.control.clone()));
        tasks.spawn(services::sweep::run(app.control.clone()));
        tasks.spawn(services::functions::watch(app.control.clone()));
        tasks.spawn(notifications::run(app.platform.clone()));
        tasks.spawn(rate_limits::overrides::run(app.platform.clone()));
        tasks.spawn(events::hub::run(app.platform.clone()));
        tasks.spawn(events::retention::run(app.platform.clone()));
        tasks.spawn(last_used::run(app.db.clone(), app.clock.clone(), uses));
        tasks.spawn(hostnames::hostname_reconciler::run(app.control.clone()));
        logs::spawn(&app, &mut tasks);
        tasks.spawn(log_drains::run(app.context.clone()));
        tasks.spawn(third_party_auth::run(app.control.clone()));
        tasks.spawn(branches::runner::run(app.context.clone()));
        let kinds = endpoints::all()
            .iter()
            .map(|endpoint| (endpoint.id, endpoint.access));
        tasks.spawn(call_log::run(
            app.db.clone(),
            app.clock.clone(),
            kinds.collect(),
            calls,
        ));
        tasks.spawn(oauth::cleanup::run(app.db.clone(), app.clock.clone()));
        tasks.spawn(idempotency::cleanup::run(app.db.clone(), app.clock.clone()));
        tasks.spawn(repeat::every(telemetry::UPKEEP, move || {
            app.metrics.upkeep();
            ready(())
        }));
        tasks
    }
}
