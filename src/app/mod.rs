//! Everything a request needs, built once.

pub mod config;
pub mod operator_api;

use std::{ops::Deref, sync::Arc, time::Duration};

use tokio::{sync::mpsc, task::JoinSet};
use uuid::Uuid;

use crate::{
    api::{
        accounts::provider::Provider, endpoints, logs, logs::Analytics, oauth,
        projects::listing::Listings, tokens::usage,
    },
    base::{
        clock::{Clock, Entropy},
        db::{Db, heartbeat},
        error::{Context, Error},
        sealing::SealingKey,
    },
    data_plane::{
        clusters::{Embedded, Location, Provisioner},
        database_access::Doors,
        domains::{
            hostnames,
            hostnames::{acme::Authority, dns::Dns},
        },
        postgres_proxy::{Published, Router},
        projects::{
            idle, idle::Uses, lease, lease::Lease, reconciler, reconciler::Reconciler, warm_pool,
            warm_pool::Pool, watchdog, watchdog::Watchdog,
        },
        service_proxy,
        service_proxy::{Edge, upstreams::Upstreams},
        temporary_access,
    },
    platform::{
        access::{Directory, last_used},
        http::{Api, Endpoint, Links, Transport},
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
    pub links: Links,
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
    /// How applications of others get their tokens.
    pub oauth: oauth::Settings,
    /// Through which people can sign in, besides by what they have here.
    pub provider: Option<Arc<Provider>>,
    /// Where log lines of projects are kept.
    pub logs: logs::Options,
}

/// Handle to the application. Cheap to clone.
#[derive(Clone)]
pub struct App(Arc<Inner>);

/// The application's parts.
pub struct Inner {
    /// What the operator decided.
    pub settings: Settings,
    /// Time.
    pub clock: Clock,
    /// Randomness.
    pub entropy: Entropy,
    /// The control database.
    pub db: Db,
    /// What access decisions read.
    pub directory: Directory,
    /// Counters.
    pub limits: Limits,
    /// What the reconciler drives the projects' clusters through.
    pub provisioner: Arc<dyn Provisioner>,
    /// The projects' clusters.
    pub clusters: Embedded,
    /// Lists of projects as they were last answered.
    pub listings: Listings,
    /// Drives clusters to what is wanted of them.
    pub reconciler: Reconciler,
    /// Keeps projects within their resources.
    pub watchdog: Watchdog,
    /// When projects were last used.
    pub uses: Uses,
    /// Whether this process is the one that does so for its data folder.
    pub lease: Lease,
    /// Clusters that are ready before they are asked for.
    pub pool: Pool,
    /// Ends temporary logins when their time is over.
    pub jit: temporary_access::Keeper,
    /// Connections to the projects' databases.
    pub router: Router,
    /// The rules of connections to each project's database, as last read.
    pub doors: Doors,
    /// Looks at hostnames when their time has come.
    pub hostnames: hostnames::Keeper,
    /// Requests to the projects' services.
    pub edge: Edge,
    /// What projects log, and what is counted of it.
    pub analytics: Analytics,
    /// Counters and durations, for Prometheus.
    pub metrics: Metrics,
}

impl Deref for App {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

/// Work beside requests, not started yet.
pub struct Background {
    app: App,
    uses: mpsc::Receiver<last_used::Use>,
    calls: mpsc::Receiver<usage::Noted>,
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
        let (noted, calls) = mpsc::channel(usage::QUEUE_MAX);
        let directory = Directory::new(db.clone(), clock.clone(), sender, noted);
        let metrics = Metrics::new(Self::operations().into_iter())?;
        let shared = settings.counting.store(&db)?.map(|store| {
            let process = entropy.uuid().to_string();
            Shared::new(
                store,
                process,
                settings.counting.deadline,
                clock.clone(),
                metrics.tally(),
            )
        });
        let operations = Self::numbered().map(|endpoint| (endpoint.id, endpoint.limit));
        let location =
            Location::of(clusters.home().dir()).context("looking where the data folder is")?;
        let lease = Lease::new(&entropy, location, settings.own_database);
        let analytics = Analytics::new(
            settings.logs.clone(),
            settings.node,
            clusters.home().clone(),
            clock.clone(),
            entropy.clone(),
        );
        let inner = Inner {
            settings,
            clock,
            entropy,
            db,
            directory,
            limits: Limits::new(operations, memory, shared),
            provisioner,
            clusters,
            listings: Listings::default(),
            reconciler: Reconciler::default(),
            watchdog: Watchdog::default(),
            uses: Uses::default(),
            lease,
            pool: Pool::default(),
            jit: temporary_access::Keeper::default(),
            router: Router::default(),
            doors: Doors::default(),
            hostnames: hostnames::Keeper::default(),
            edge: Edge::default(),
            analytics,
            metrics,
        };
        let app = Self(Arc::new(inner));
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
        Api::new(self, endpoints::all(), &endpoints::UNKNOWN, &web::served())
    }
}

impl App {
    /// Forgets what a change of `table` may have made untrue.
    pub fn forget(&self, table: &str) {
        self.directory.forget(table);
        self.listings.forget(table);
        self.edge.forget(table);
    }

    /// Forgets everything, and caches again only if changes are heard: nobody knows what was missed.
    pub fn believe(&self, hearing: bool) {
        self.directory.believe(hearing);
        self.listings.believe(hearing);
        self.edge.reread();
    }
}

impl Background {
    /// Starts it. Dropping the set ends it; [`Reconciler::stop`] and [`Analytics::close`] first let begun work finish.
    pub fn spawn(self) -> JoinSet<()> {
        let Self { app, uses, calls } = self;
        let mut tasks = JoinSet::new();
        tasks.spawn(heartbeat::run(app.db.clone()));
        tasks.spawn(lease::run(app.clone()));
        tasks.spawn(reconciler::run(app.clone()));
        tasks.spawn(reconciler::empty_trash(app.clone()));
        tasks.spawn(warm_pool::run(app.clone()));
        tasks.spawn(temporary_access::keeper::run(app.clone()));
        tasks.spawn(idle::run(app.clone()));
        tasks.spawn(watchdog::run(app.clone()));
        tasks.spawn(notifications::run(app.clone()));
        tasks.spawn(rate_limits::overrides::run(app.clone()));
        tasks.spawn(last_used::run(app.db.clone(), app.clock.clone(), uses));
        tasks.spawn(hostnames::keeper::run(app.clone()));
        logs::spawn(&app, &mut tasks);
        tasks.spawn(usage::run(app.db.clone(), app.clock.clone(), calls));
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
