//! Everything a request needs, built once.

pub mod config;
pub mod operator_api;

use std::{ops::Deref, sync::Arc, time::Duration};

use tokio::{sync::mpsc, task::JoinSet};
use uuid::Uuid;

use crate::{
    api::{
        accounts::provider::Provider,
        context::{ApiContext, ApiSettings},
        endpoints, logs, oauth,
    },
    base::{
        clock::{Clock, Entropy},
        db::{Db, heartbeat},
        error::Error,
        sealing::SealingKey,
    },
    data_plane::{
        clusters::{Embedded, Provisioner},
        context::{DataPlaneContext, DataPlaneSettings},
        domains::{
            hostnames,
            hostnames::{acme::Authority, dns::Dns},
        },
        postgres_proxy::Published,
        projects::{idle, lease, reconciler, warm_pool, watchdog},
        service_proxy,
        service_proxy::upstreams::Upstreams,
        temporary_access,
    },
    platform::{
        access::{Directory, call_log, last_used},
        context::{PlatformContext, PlatformSettings},
        http::{Api, Endpoint, Transport, openapi::PublishedLinks},
        notifications, rate_limits,
        rate_limits::{Limits, Memory, Shared},
        telemetry,
        telemetry::Metrics,
    },
    web,
};

/// What the operator decided, as requests see it.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How the listener speaks, and whose forwarding headers it believes.
    pub transport: Transport,
    /// Databases are `db.<ref>.<this>`.
    pub project_domain: String,
    /// Where clients reach databases, if they do.
    pub databases: Option<Published>,
    /// Published beside the API.
    pub links: PublishedLinks,
    /// This node: the owner of the clusters in its data folder.
    pub node: Uuid,
    /// Whether the control database lies in the data folder.
    pub own_database: bool,
    /// First of the numeric user ids of project clusters.
    pub project_uid_base: u32,
    /// Where requests are counted.
    pub counting: rate_limits::Options,
    /// Clusters that are to be ready before they are asked for.
    pub prepared: warm_pool::Wanted,
    /// After how long without use a server is stopped. None: never.
    pub idle_pause_after: Option<Duration>,
    /// Where the services of projects answer, unless the operator says otherwise of one.
    pub upstreams: Upstreams,
    /// How their clients get to them.
    pub edge: service_proxy::Options,
    /// Tells what DNS says.
    pub dns: Arc<dyn Dns>,
    /// Who certifies hostnames, if anybody does.
    pub authority: Option<Authority>,
    /// Encrypts secrets that are shown again.
    pub sealing: SealingKey,
    /// Scheme, host and port by which clients reach this server. OAuth needs it.
    pub public_url: Option<String>,
    /// How applications of others get their tokens.
    pub oauth: oauth::Settings,
    /// Through which people can sign in, besides by what they have here.
    pub provider: Option<Arc<Provider>>,
    /// Where log lines of projects are kept.
    pub logs: logs::Options,
}

impl Settings {
    /// The settings of each wing.
    fn split(self) -> (PlatformSettings, DataPlaneSettings, ApiSettings) {
        let platform = PlatformSettings {
            transport: self.transport,
            project_domain: self.project_domain,
            links: self.links,
            node: self.node,
            sealing: self.sealing,
            public_url: self.public_url,
        };
        let data_plane = DataPlaneSettings {
            databases: self.databases,
            own_database: self.own_database,
            project_uid_base: self.project_uid_base,
            prepared: self.prepared,
            idle_pause_after: self.idle_pause_after,
            upstreams: self.upstreams,
            edge: self.edge,
            dns: self.dns,
            authority: self.authority,
        };
        let api = ApiSettings {
            oauth: self.oauth,
            provider: self.provider,
            logs: self.logs,
        };
        (platform, data_plane, api)
    }
}

/// The application: the state of the operations, and the listeners' view of it. Cheap to clone.
#[derive(Clone)]
pub struct App {
    /// State of the operations.
    pub context: ApiContext,
}

impl Deref for App {
    type Target = ApiContext;

    fn deref(&self) -> &ApiContext {
        &self.context
    }
}

/// Work beside requests, not started yet.
pub struct Background {
    app: App,
    uses: mpsc::Receiver<last_used::Use>,
    calls: mpsc::Receiver<call_log::Noted>,
}

impl App {
    /// An application and the work that goes on beside its requests. What it counts by itself, it counts in `memory`.
    pub fn new(
        settings: Settings,
        clock: Clock,
        entropy: Entropy,
        db: Db,
        clusters: Embedded,
        memory: Memory,
    ) -> Result<(Self, Background), Error> {
        let provisioner = Arc::new(clusters.clone());
        Self::over(provisioner, settings, clock, entropy, db, clusters, memory)
    }

    /// The same, with its projects driven over something else.
    pub fn over(
        provisioner: Arc<dyn Provisioner>,
        settings: Settings,
        clock: Clock,
        entropy: Entropy,
        db: Db,
        clusters: Embedded,
        memory: Memory,
    ) -> Result<(Self, Background), Error> {
        let (sender, uses) = mpsc::channel(last_used::QUEUE_MAX);
        let (noted, calls) = mpsc::channel(call_log::QUEUE_MAX);
        let directory = Directory::new(db.clone(), clock.clone(), sender, noted);
        let metrics = Metrics::new(Self::operations().into_iter())?;
        let shared = settings.counting.store(&db)?.map(|store| {
            let process = entropy.uuid().to_string();
            let deadline = settings.counting.deadline;
            Shared::new(store, process, deadline, clock.clone(), metrics.tally())
        });
        let operations = Self::numbered().map(|endpoint| (endpoint.id, endpoint.limit));
        let limits = Limits::new(operations, memory, shared);
        let (platform, data_plane, api) = settings.split();
        let platform =
            PlatformContext::new(platform, clock, entropy, db, directory, limits, metrics);
        let data_plane = DataPlaneContext::new(platform, data_plane, clusters, provisioner)?;
        let app = Self {
            context: ApiContext::new(data_plane, api),
        };
        Ok((app.clone(), Background { app, uses, calls }))
    }

    /// Ids of all operations, in the order of their numbers: those of counters and metrics.
    pub fn operations() -> Vec<&'static str> {
        Self::numbered().map(|endpoint| endpoint.id).collect()
    }

    /// Operations of the API and pages, as [`Api::new`] numbers them.
    fn numbered() -> impl Iterator<Item = &'static Endpoint> {
        let programs = endpoints::all()
            .iter()
            .copied()
            .chain([&endpoints::UNKNOWN]);
        programs
            .chain(web::pages().iter().copied())
            .chain([&web::LOST])
    }

    /// The API, and the pages beside it.
    pub fn api(&self) -> Api {
        let state = Arc::new(self.context.clone());
        let platform: &PlatformContext = self;
        Api::new(
            platform,
            state,
            endpoints::all(),
            &endpoints::UNKNOWN,
            &web::served(),
        )
    }
}

impl Background {
    /// Starts it. Dropping the set ends it; [`Reconciler::stop`] and [`Analytics::close`] first let begun work finish.
    pub fn spawn(self) -> JoinSet<()> {
        let Self { app, uses, calls } = self;
        let mut tasks = JoinSet::new();
        tasks.spawn(heartbeat::run(app.db.clone()));
        tasks.spawn(lease::run(app.data_plane.clone()));
        tasks.spawn(reconciler::run(app.data_plane.clone()));
        tasks.spawn(reconciler::empty_trash(app.data_plane.clone()));
        tasks.spawn(warm_pool::run(app.data_plane.clone()));
        tasks.spawn(temporary_access::keeper::run(app.data_plane.clone()));
        tasks.spawn(idle::run(app.data_plane.clone()));
        tasks.spawn(watchdog::run(app.data_plane.clone()));
        tasks.spawn(notifications::run(app.platform.clone()));
        tasks.spawn(rate_limits::overrides::run(app.platform.clone()));
        tasks.spawn(last_used::run(app.db.clone(), app.clock.clone(), uses));
        tasks.spawn(hostnames::keeper::run(app.data_plane.clone()));
        logs::spawn(&app, &mut tasks);
        let kinds = endpoints::all()
            .iter()
            .map(|endpoint| (endpoint.id, endpoint.access));
        tasks.spawn(call_log::run(
            app.db.clone(),
            app.clock.clone(),
            kinds.collect(),
            calls,
        ));
        tasks.spawn(oauth::upkeep::run(app.db.clone(), app.clock.clone()));
        tasks.spawn(async move {
            let mut tick = tokio::time::interval(telemetry::UPKEEP);
            loop {
                tick.tick().await;
                app.metrics.upkeep();
            }
        });
        tasks
    }
}
