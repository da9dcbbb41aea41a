//! Support of integration tests: an application on real PostgreSQL, its users, and requests.

pub(crate) mod client;
pub(crate) mod collector;
pub(crate) mod document;
pub(crate) mod knot;
mod log;
pub(crate) mod machine;
pub(crate) mod pebble;
pub(crate) mod postgres;
pub(crate) mod s3;
pub(crate) mod suggestions;

use std::{collections::HashMap, net::IpAddr, ops::Deref, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use gantry::{
    api::{accounts, log_drains, logs, oauth, organizations, tokens},
    app::{App, Background, Settings},
    control::{
        backups::state::BackupOptions,
        domains::hostnames::{
            Host,
            dns::{Dns, DnsFuture, Propagation},
            required_records::DnsRecords,
        },
        projects::{Status, state::warm_pool::WarmPoolSize},
        services::state::ServiceOptions,
    },
    platform::{
        access::{Role, organization_by_slug},
        context::PublishedLinks,
        db::Db,
        http::{Api, Transport},
        rate_limits::{Memory, Options},
        sealing::SealingKey,
    },
    proxy::postgres_proxy::PublishedAddress,
};
use gantry_base::{
    clock::{Clock, Entropy},
    ids::{OrgSlug, OrganizationId, ProjectRef, TokenId, UserId},
    net::outbound::OutboundPolicy,
};
use gantry_node::cluster_driver::ClusterDriver;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::timeout};
use tokio_postgres::Config;
use uuid::Uuid;

use self::{
    client::Call,
    log::Log,
    machine::{Machine, PATIENCE, first_uid},
};

/// Prints why a test, or a part of it, is not run on this machine.
#[expect(clippy::print_stderr, reason = "the output of a test")]
pub(crate) fn note_skipped(reason: &str) {
    eprintln!("skipped: {reason}");
}

/// The id of a node that does not run.
const NOBODY: Uuid = Uuid::from_u128(0xff);

/// DNS records by name. Lookups of other names fail.
#[derive(Debug, Clone, Default)]
pub(crate) struct Said(pub(crate) Arc<Mutex<HashMap<String, DnsRecords>>>);

impl Dns for Said {
    fn look<'a>(&'a self, host: &'a Host, _: &'a str) -> DnsFuture<'a> {
        let seen = self.0.lock().get(host.as_str()).cloned();
        Box::pin(async move { seen.ok_or_else(|| "no server answers".to_owned()) })
    }

    fn alias<'a>(&'a self, _: &'a str) -> DnsFuture<'a, Option<String>> {
        Box::pin(async { Ok(None) })
    }

    fn told<'a>(&'a self, _: &'a str, _: &'a str) -> DnsFuture<'a, Propagation> {
        Box::pin(async { Ok(Propagation::NotYet) })
    }

    fn addresses<'a>(&'a self, _: &'a str) -> DnsFuture<'a, Vec<IpAddr>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}

/// The issuer of every node's tokens.
pub(crate) const ISSUER: &str = "http://api.example";

/// The time at the start of every test.
pub(crate) fn dawn() -> DateTime<Utc> {
    "2026-11-21T09:15:03Z".parse().unwrap()
}

/// One Gantry: an application, its data folder, and its background work if that was started.
pub(crate) struct Node {
    pub(crate) app: App,
    pub(crate) machine: Arc<Machine>,
    api: Api,
    background: Option<Background>,
    tasks: JoinSet<()>,
}

impl Node {
    fn new(config: &Config, settings: Settings, clock: &Clock, machine: Arc<Machine>) -> Self {
        let driver = Arc::new(machine.clusters.clone());
        Self::with_driver(driver, config, settings, clock, machine)
    }

    fn with_driver(
        driver: Arc<dyn ClusterDriver>,
        config: &Config,
        settings: Settings,
        clock: &Clock,
        machine: Arc<Machine>,
    ) -> Self {
        let db = Db::new(config.clone()).unwrap();
        let (app, background) = App::new(
            settings,
            clock.clone(),
            Entropy::system(),
            db,
            driver,
            machine.home.clone(),
            Memory::default(),
        )
        .unwrap();
        Self {
            api: app.api(),
            app,
            machine,
            background: Some(background),
            tasks: JoinSet::new(),
        }
    }

    /// Starts the reconciler, the listener and the rest.
    pub(crate) fn start(&mut self) {
        self.tasks = self
            .background
            .take()
            .expect("it was started before")
            .spawn();
    }

    /// Stops the background tasks as the server does: started work completes, clusters keep
    /// running.
    pub(crate) async fn stop(&mut self) {
        self.app.reconciler.stop().await;
        self.app.analytics.close().await;
        self.tasks.shutdown().await;
        self.app.lease.release();
    }

    /// Stops the node as SIGKILL does: no work completes, and the kernel releases its locks.
    pub(crate) fn kill(&mut self) {
        self.tasks.abort_all();
        self.app.lease.release();
    }

    pub(crate) fn request(&self, method: &str, path: &str) -> Call {
        Call::new(self.api.clone(), method, path)
    }

    pub(crate) fn get(&self, path: &str) -> Call {
        self.request("GET", path)
    }

    pub(crate) fn post(&self, path: &str) -> Call {
        self.request("POST", path)
    }

    pub(crate) fn patch(&self, path: &str) -> Call {
        self.request("PATCH", path)
    }

    pub(crate) fn delete(&self, path: &str) -> Call {
        self.request("DELETE", path)
    }

    /// Waits until a project has this status in the control database.
    pub(crate) async fn until(&self, project: &ProjectRef, status: Status) {
        let reached = async {
            let mut changes = self.app.reconciler.changes();
            while self.seen(project).await != status.name() {
                changes.changed().await.unwrap();
            }
        };
        if timeout(PATIENCE, reached).await.is_err() {
            let sql =
                "select coalesce(last_error, 'nothing went wrong') from projects where ref = $1";
            let why: String = self.app.db.query(sql, &[&project.as_str()]).await.unwrap()[0].get(0);
            panic!(
                "{project} is {}, not {}: {why}",
                self.seen(project).await,
                status.name()
            );
        }
    }

    async fn seen(&self, project: &ProjectRef) -> String {
        self.app
            .db
            .query(
                "select status from projects where ref = $1",
                &[&project.as_str()],
            )
            .await
            .unwrap()[0]
            .get(0)
    }
}

/// A user with a classic token.
#[derive(Debug, Clone)]
pub(crate) struct Actor {
    pub(crate) user: UserId,
    pub(crate) gotrue_id: Uuid,
    pub(crate) token: String,
    pub(crate) token_id: TokenId,
}

/// An organization with a project without a cluster.
#[derive(Debug, Clone)]
pub(crate) struct Tenant {
    pub(crate) id: OrganizationId,
    pub(crate) slug: OrgSlug,
    pub(crate) project: ProjectRef,
}

/// An application for one test, with its own control database, a manual clock, and users.
pub(crate) struct TestApp {
    pub(crate) node: Node,
    pub(crate) config: Config,
    pub(crate) clock: Clock,
    pub(crate) owner: Actor,
    pub(crate) administrator: Actor,
    pub(crate) developer: Actor,
    pub(crate) read_only: Actor,
    /// Member of another organization only.
    pub(crate) stranger: Actor,
    /// Organization of the first four users.
    pub(crate) home: Tenant,
    /// Organization of the stranger.
    pub(crate) foreign: Tenant,
    pub(crate) log: Log,
}

impl Deref for TestApp {
    type Target = Node;

    fn deref(&self) -> &Node {
        &self.node
    }
}

impl TestApp {
    /// Returns an application without background tasks.
    pub(crate) async fn new() -> Self {
        Self::with(Transport::default(), Arc::new(Machine::bare())).await
    }

    /// Returns an application with all background tasks, which can create real projects.
    pub(crate) async fn running() -> Self {
        let mut app = Self::with(Transport::default(), Arc::new(Machine::new().await)).await;
        app.node.start();
        app
    }

    pub(crate) async fn with(transport: Transport, machine: Arc<Machine>) -> Self {
        Box::pin(Self::make(transport, machine)).await
    }

    async fn make(transport: Transport, machine: Arc<Machine>) -> Self {
        let (log, clock, config) = (
            Log::collect(),
            Clock::manual(dawn()),
            postgres::database().await,
        );
        let node = Node::new(
            &config,
            settings(transport, Uuid::from_u128(1)),
            &clock,
            machine,
        );
        let [owner, administrator, developer, read_only, stranger] =
            ["olga", "adam", "dora", "rhea", "stan"].map(|name| user(&node.app, name));
        let (owner, stranger) = (owner.await, stranger.await);
        let (home, foreign) = (
            tenant(&node.app, "Home", &owner).await,
            tenant(&node.app, "Foreign", &stranger).await,
        );
        let (administrator, developer, read_only) =
            (administrator.await, developer.await, read_only.await);
        for (actor, role) in [
            (&administrator, Role::Administrator),
            (&developer, Role::Developer),
            (&read_only, Role::ReadOnly),
        ] {
            organizations::members::set(&node.app.db, home.id, actor.user, role, dawn(), None)
                .await
                .unwrap();
        }
        Self {
            node,
            config,
            clock,
            owner,
            administrator,
            developer,
            read_only,
            stranger,
            home,
            foreign,
            log,
        }
    }

    /// Returns the members of the home organization, with their roles.
    pub(crate) fn members(&self) -> [(&Actor, Role); 4] {
        [
            (&self.owner, Role::Owner),
            (&self.administrator, Role::Administrator),
            (&self.developer, Role::Developer),
            (&self.read_only, Role::ReadOnly),
        ]
    }

    /// Returns another server on the same control database: a restart if `node` is the same, else a
    /// second machine.
    pub(crate) fn another(&self, node: u128, machine: Arc<Machine>) -> Node {
        self.another_with(
            settings(Transport::default(), Uuid::from_u128(node)),
            machine,
        )
    }

    /// Returns another server with these settings.
    pub(crate) fn another_with(&self, settings: Settings, machine: Arc<Machine>) -> Node {
        Node::new(&self.config, settings, &self.clock, machine)
    }

    /// Returns another server with these settings and the time of the machine, for programs that
    /// have no other clock.
    pub(crate) fn another_in_real_time(&self, settings: Settings, machine: Arc<Machine>) -> Node {
        Node::new(&self.config, settings, &Clock::system(), machine)
    }

    /// Returns another server with its own node id and with `driver` for its clusters.
    pub(crate) fn another_with_driver(
        &self,
        driver: Arc<dyn ClusterDriver>,
        node: u128,
        machine: Arc<Machine>,
    ) -> Node {
        Node::with_driver(
            driver,
            &self.config,
            settings(Transport::default(), Uuid::from_u128(node)),
            &self.clock,
            machine,
        )
    }

    /// Returns the path of an operation of the home project.
    pub(crate) fn at(&self, rest: &str) -> String {
        format!("/v1/projects/{}{rest}", self.home.project)
    }

    /// Writes the row of a restore point of a project, without which its operation answers 404.
    /// A real one needs a server.
    pub(crate) async fn mark_restore_point(&self, project: &ProjectRef) {
        let sql = "with archive as (
                       insert into archives (project_id, system_id, part, timeline, segment_bytes,
                                             begin_lsn, shipped_lsn, shipped_at, created_at,
                                             ended_at)
                       select id, '1', 1, 1, 1 << 20, 0, 0, $2, $2, $2 from projects where ref = $1
                       returning id, project_id)
                   insert into restore_points (project_id, archive_id, name, lsn, created_at)
                   select project_id, id, 'before', 0, $2 from archive";
        let now = self.clock.now();
        let project = project.as_str();
        self.app.db.query(sql, &[&project, &now]).await.unwrap();
    }

    /// Creates a project in the home organization through the API.
    pub(crate) async fn create_project(&self, name: &str) -> ProjectRef {
        self.create_project_on(&self.node, name).await
    }

    /// Creates a project through the API of another server.
    pub(crate) async fn create_project_on(&self, node: &Node, name: &str) -> ProjectRef {
        let answer = node
            .post("/v1/projects")
            .as_(&self.owner)
            .json(&self.new_project(name))
            .send()
            .await
            .expect(201);
        answer.json()["ref"].as_str().unwrap().parse().unwrap()
    }

    /// Creates a project through the API, and waits until it is healthy.
    pub(crate) async fn real_project(&self) -> ProjectRef {
        let project = self.create_project("real").await;
        self.until(&project, Status::ActiveHealthy).await;
        project
    }

    pub(crate) fn new_project(&self, name: &str) -> Value {
        json!({"organization_slug": self.home.slug, "name": name, "db_pass": "correct horse"})
    }

    /// Creates a token of `actor`. Returns it with the id of its row.
    pub(crate) async fn token(
        &self,
        actor: &Actor,
        expires_at: Option<DateTime<Utc>>,
    ) -> (String, TokenId) {
        token(&self.app, actor.user, expires_at).await
    }

    /// Creates another organization, with a project without a cluster.
    pub(crate) async fn tenant(&self, name: &str, owner: &Actor) -> Tenant {
        tenant(&self.app, name, owner).await
    }

    /// Inserts the row of a project that no node owns.
    pub(crate) async fn stub(&self, organization: OrganizationId, name: &str) -> ProjectRef {
        stub(&self.app, organization, name).await
    }

    pub(crate) fn advance(&self, secs: u32) {
        self.clock.advance(Duration::from_secs(secs.into()));
    }
}

pub(crate) fn settings(transport: Transport, node: Uuid) -> Settings {
    Settings {
        transport,
        project_domain: "example.test".to_owned(),
        databases: Some(PublishedAddress {
            host: "pooler.example.test".to_owned(),
            port: 5432,
            pooler_port: Some(6543),
            tls: true,
        }),
        links: PublishedLinks::default(),
        node,
        own_database: false,
        project_uid_base: first_uid() + 1000,
        new_table_grants: gantry::control::projects::new_table_grants::NewTableGrants::None,
        prepared: WarmPoolSize::default(),
        idle_pause_after: None,
        hold: chrono::TimeDelta::zero(),
        counting: Options::default(),
        dns: Arc::new(Said::default()),
        authority: None,
        service_proxy: gantry::proxy::service_proxy::Options::default(),
        services: ServiceOptions {
            launcher: machine::host().launcher,
            ..ServiceOptions::default()
        },
        sealing: SealingKey::new(&[7; 32]).unwrap(),
        public_url: Some(ISSUER.to_owned()),
        oauth: oauth::OAuthSettings::default(),
        provider: None,
        logs: logs::Options::default(),
        outbound: OutboundPolicy::new(["127.0.0.0/8".parse().unwrap()]),
        log_drains: log_drains::Options::default(),
        compute_sizes: gantry::control::projects::sizes::SizeTable::default(),
        project_disk_choice_max: 0,
        branches: gantry::api::branches::BranchOptions::default(),
        // Tests of backups switch them on.
        backups: BackupOptions {
            enabled: false,
            ..BackupOptions::default()
        },
        fleet: gantry::control::fleet::state::NodeSettings::default(),
    }
}

async fn user(app: &App, name: &str) -> Actor {
    let account = accounts::create(
        &app.db,
        &app.entropy,
        &format!("{name}@example.com"),
        None,
        dawn(),
        None,
    )
    .await
    .unwrap();
    let (token, token_id) = token(app, account.id, None).await;
    Actor {
        user: account.id,
        gotrue_id: account.gotrue_id,
        token,
        token_id,
    }
}

async fn token(app: &App, user: UserId, expires_at: Option<DateTime<Utc>>) -> (String, TokenId) {
    let minted = tokens::mint_classic(&app.entropy);
    let row = tokens::create(
        &app.db,
        user,
        "test",
        &minted,
        app.clock.now(),
        expires_at,
        None,
    )
    .await
    .unwrap();
    (minted.expose().to_owned(), TokenId(row.id))
}

async fn tenant(app: &App, name: &str, owner: &Actor) -> Tenant {
    let slug = organizations::create(&app.db, &app.entropy, name, None, owner.user, dawn(), None)
        .await
        .unwrap()
        .slug()
        .clone();
    let id = organization_by_slug(&app.db, &slug).await.unwrap();
    Tenant {
        id,
        slug,
        project: stub(app, id, "stub").await,
    }
}

async fn stub(app: &App, organization: OrganizationId, name: &str) -> ProjectRef {
    let project = ProjectRef::generate(&app.entropy);
    let sql = "insert into projects (ref, organization_id, name, region, instance_size, engine, release_channel, node, desired, status, not_before, created_at, updated_at) \
               values ($1, $2, $3, 'eu-central-1', 'nano', '17.6', 'ga', $4, 'active', 'ACTIVE_HEALTHY', $5, $5, $5)";
    app.db
        .query(
            sql,
            &[&project.as_str(), &organization.0, &name, &NOBODY, &dawn()],
        )
        .await
        .unwrap();
    project
}
