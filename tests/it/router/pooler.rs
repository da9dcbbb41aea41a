//! The pooler's port, with the real `PgBouncer`.

use std::{
    collections::BTreeMap,
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use futures_util::future::join_all;
use gantry::{
    app::Settings,
    control::{
        projects::{Status, lease},
        proxies,
        services::{pooler, state::ServiceOptions, stop_all, sweep},
    },
    platform::http::Transport,
    proxy::postgres_proxy::{self, PostgresProxyTls, SessionKind},
};
use gantry_base::ids::{ProjectId, ProjectRef};
use gantry_node::kits::{Service, shelf::KitShelf};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_postgres::{Client, Config, error::SqlState};
use uuid::Uuid;

use super::{config, connect, number, refusal};
use crate::{
    services::{kits_with, until},
    support::{
        Node, TestApp,
        machine::{Machine, host},
        settings,
    },
};

/// A node with the pooler, its two ports, and a project that runs.
struct PooledProject {
    app: TestApp,
    node: Node,
    project: ProjectRef,
    pooled: std::net::SocketAddr,
    direct: std::net::SocketAddr,
    routers: Vec<JoinHandle<()>>,
}

impl PooledProject {
    async fn new() -> Self {
        Self::with_kits(None).await
    }

    /// A project with kits of the operator, which come before the installed one.
    async fn with_kits(own: Option<PathBuf>) -> Self {
        let app = TestApp::new().await;
        let node = start(&app, own, Arc::new(Machine::new().await));
        let project = create(&app, &node, "pooled").await;
        Self::served(app, node, project).await
    }

    /// Kills Gantry, and starts it again on its data folder.
    async fn again(mut self) -> Self {
        self.routers.iter().for_each(JoinHandle::abort);
        self.node.kill();
        let node = start(&self.app, None, Arc::clone(&self.node.machine));
        lease::claim(&node.app).await.unwrap();
        Self::served(self.app, node, self.project).await
    }

    async fn served(app: TestApp, node: Node, project: ProjectRef) -> Self {
        let (tls, _) = PostgresProxyTls::own_authority(node.machine.dir(), "example.test").unwrap();
        let mut routers = Vec::new();
        let mut listen = async |kind| {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let context = proxies::postgres_proxy(&node.app.control);
            let router = postgres_proxy::run(context, listener, Some(tls.clone()), kind);
            routers.push(tokio::spawn(router));
            address
        };
        let pooled = listen(SessionKind::Pooled).await;
        let direct = listen(SessionKind::Direct).await;
        Self {
            app,
            node,
            project,
            pooled,
            direct,
            routers,
        }
    }

    fn config(&self, role: &str) -> Config {
        config(self.pooled, &format!("{role}.{}", self.project))
    }

    async fn connect(&self) -> Client {
        connect(&self.config("postgres")).await.unwrap()
    }

    async fn connect_directly(&self) -> Client {
        let config = config(self.direct, &format!("postgres.{}", self.project));
        connect(&config).await.unwrap()
    }

    async fn id(&self) -> ProjectId {
        let sql = "select id from projects where ref = $1";
        let rows = self.app.app.db.query(sql, &[&self.project.as_str()]).await;
        ProjectId(rows.unwrap()[0].get(0))
    }

    async fn pid(&self) -> Option<i32> {
        let id = self.id().await;
        self.node.app.services.pid(id, Service::Pooler)
    }

    fn at(&self, rest: &str) -> String {
        format!("/v1/projects/{}{rest}", self.project)
    }

    async fn get(&self, rest: &str) -> Value {
        let call = self.node.get(&self.at(rest)).as_(&self.app.owner);
        call.send().await.expect(200).json()
    }

    async fn restart(&self) {
        let path = self.at("/restart");
        let call = self.node.post(&path).as_(&self.app.owner);
        call.send().await.expect(200);
        self.node.until(&self.project, Status::ActiveHealthy).await;
    }

    /// Lets the installed version take over from the process `earlier`.
    async fn until_taken_over(&self, earlier: i32) {
        sweep::stop_unwanted(&self.node.app).await.unwrap();
        until(async || self.pid().await.is_some_and(|pid| pid != earlier)).await;
    }

    /// Returns the settings that the running pooler reports.
    async fn reported(&self) -> BTreeMap<String, String> {
        let id = self.id().await;
        let all = pooler::show_config(&self.node.app, id).await.unwrap();
        let pair = |value: pooler::ConfigValue| (value.name, value.value);
        all.unwrap().into_iter().map(pair).collect()
    }
}

/// Starts a node with the installed pooler, and kits of the operator.
fn start(app: &TestApp, own: Option<PathBuf>, machine: Arc<Machine>) -> Node {
    let options = Settings {
        services: ServiceOptions {
            shelf: KitShelf::new(own, kits_with(Service::Pooler)),
            launcher: host().launcher,
            ..ServiceOptions::default()
        },
        ..settings(Transport::default(), Uuid::from_u128(12))
    };
    let mut node = app.another_in_real_time(options, machine);
    node.start();
    node
}

async fn create(app: &TestApp, node: &Node, name: &str) -> ProjectRef {
    let project = app.create_project_on(node, name).await;
    node.until(&project, Status::ActiveHealthy).await;
    project
}

#[tokio::test]
async fn hundred_concurrent_clients_share_the_server_connections() {
    let pooled = PooledProject::new().await;
    assert_eq!(pooled.pid().await, None, "nothing runs before");
    let clients = join_all((0..100).map(|_| pooled.connect())).await;
    let work = async |client: &Client| {
        for turn in 0..5_i64 {
            // A prepared statement, which the server connection of the next transaction may not
            // have seen.
            let found: i64 = client
                .query_one("select $1::bigint + 1", &[&turn])
                .await
                .unwrap()
                .get(0);
            assert_eq!(found, turn + 1);
        }
    };
    join_all(clients.iter().map(work)).await;
    let owner = pooled.connect_directly().await;
    let sql = "select count(*) from pg_stat_activity where usename = 'postgres' \
               and pid <> pg_backend_pid() and backend_type = 'client backend'";
    let servers = number(&owner, sql).await;
    assert!((1..=15).contains(&servers), "{servers} server connections");
    assert!(
        pooled.node.app.postgres_proxy.has_pooled(pooled.id().await),
        "a project with clients of its pooler is in use"
    );
}

#[tokio::test]
async fn prepared_statement_is_used_across_server_connections() {
    let pooled = PooledProject::new().await;
    let (first, second) = (pooled.connect().await, pooled.connect().await);
    let statement = first
        .prepare("select pg_backend_pid()::bigint")
        .await
        .unwrap();
    let before: i64 = first.query_one(&statement, &[]).await.unwrap().get(0);
    // The other client takes the server connection with the statement.
    second.batch_execute("begin").await.unwrap();
    assert_eq!(
        number(&second, "select pg_backend_pid()::bigint").await,
        before
    );
    let after: i64 = first.query_one(&statement, &[]).await.unwrap().get(0);
    assert_ne!(before, after);
    second.batch_execute("commit").await.unwrap();
}

#[tokio::test]
async fn role_of_the_owner_logs_in_and_others_do_not() {
    let pooled = PooledProject::new().await;
    let owner = pooled.connect_directly().await;
    let sql = "create role reporter login password 'of the reporter'; \
               create role expired login password 'of the expired' valid until '2020-01-01'; \
               create role plain";
    owner.batch_execute(sql).await.unwrap();
    let mut custom = pooled.config("reporter");
    custom.password("of the reporter");
    let client = connect(&custom).await.unwrap();
    let row = client.query_one("select current_user::text", &[]).await;
    assert_eq!(row.unwrap().get::<_, String>(0), "reporter");
    // A changed password counts at once, although the pool of the role is open.
    owner
        .batch_execute("alter role reporter password 'another'")
        .await
        .unwrap();
    assert_eq!(refusal(&custom).await.0, SqlState::INVALID_PASSWORD);
    custom.password("another");
    connect(&custom).await.unwrap();

    let mut expired = pooled.config("expired");
    expired.password("of the expired");
    let mut wrong = pooled.config("postgres");
    wrong.password("wrong");
    let other = create(&pooled.app, &pooled.node, "other").await;
    let mut of_other = config(pooled.pooled, &format!("reporter.{other}"));
    of_other.password("another");
    for rejected in [expired, wrong, of_other, pooled.config("plain")] {
        let (state, message) = refusal(&rejected).await;
        assert_eq!(state, SqlState::INVALID_PASSWORD, "{message}");
    }
    for reserved in ["pgbouncer", "supabase_admin"] {
        let (state, _) = refusal(&pooled.config(reserved)).await;
        assert_eq!(state, SqlState::INVALID_AUTHORIZATION_SPECIFICATION);
    }
    let mut console = pooled.config("postgres");
    console.dbname("pgbouncer");
    let (state, message) = refusal(&console).await;
    assert_eq!(state, SqlState::INVALID_AUTHORIZATION_SPECIFICATION);
    assert!(message.contains("console"), "{message}");
}

#[tokio::test]
async fn verifiers_are_returned_to_the_pooler_alone() {
    let pooled = PooledProject::new().await;
    let owner = pooled.connect_directly().await;
    let sql = "select * from pgbouncer.get_auth('postgres')";
    let error = owner.query(sql, &[]).await.unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::INSUFFICIENT_PRIVILEGE));
    let sql = "select array_to_string(p.proacl, ',') from pg_proc p \
               join pg_namespace n on n.oid = p.pronamespace \
               where n.nspname = 'pgbouncer' and p.proname = 'get_auth'";
    let granted: String = owner.query_one(sql, &[]).await.unwrap().get(0);
    let grantees: Vec<&str> = granted
        .split(',')
        .filter_map(|entry| entry.split('=').next())
        .collect();
    assert_eq!(grantees, ["supabase_admin", "pgbouncer"]);
}

#[tokio::test]
async fn killed_pooler_is_replaced_by_the_next_connection() {
    let pooled = PooledProject::new().await;
    let before = pooled.connect().await;
    let pid = pooled.pid().await.unwrap();
    for _ in 0..3 {
        let killed = pooled.pid().await.unwrap();
        kill_process(Pid::from_raw(killed).unwrap(), Signal::KILL).unwrap();
        let client = pooled.connect().await;
        assert_eq!(number(&client, "select 7::bigint").await, 7);
    }
    assert_ne!(pooled.pid().await, Some(pid));
    before.query("select 1", &[]).await.unwrap_err();
}

#[tokio::test]
async fn pooler_that_a_killed_gantry_has_paused_is_adopted_and_goes_on() {
    let pooled = PooledProject::new().await;
    let client = pooled.connect().await;
    let pid = pooled.pid().await;
    let folder = format!("{}.pooler", pooled.project);
    let folder = pooled.node.machine.home.socket_dir(&folder).join("i");
    let users = fs::read_to_string(folder.join("users.txt")).unwrap();
    let mut console = Config::new();
    console.host_path(&folder).port(6543).dbname("pgbouncer");
    console
        .user("pgbouncer")
        .password(users.split('"').nth(3).unwrap());
    let console = connect(&console).await.unwrap();
    for command in ["set default_pool_size = 1", "pause"] {
        console.simple_query(command).await.unwrap();
    }
    drop((client, console));
    let pooled = pooled.again().await;
    let client = pooled.connect().await;
    assert_eq!(number(&client, "select 7::bigint").await, 7);
    assert_eq!(pooled.pid().await, pid);
    assert_eq!(pooled.reported().await["default_pool_size"], "15");
}

/// Installs a copy of the pooler's kit as this version.
fn install(version: &Path) {
    let installed = kits_with(Service::Pooler).join("pooler");
    let installed = fs::read_dir(installed).unwrap().next().unwrap().unwrap();
    fs::create_dir_all(version.parent().unwrap()).unwrap();
    let mut copy = Command::new("cp");
    copy.arg("-r").arg(installed.path()).arg(version);
    assert!(copy.status().unwrap().success());
}

fn is_alive(pid: i32) -> bool {
    fs::exists(format!("/proc/{pid}")).unwrap()
}

/// Returns the start of the server, in milliseconds since 1970.
async fn server_start(client: &Client) -> i64 {
    let sql = "select (extract(epoch from pg_postmaster_start_time()) * 1000)::bigint";
    number(client, sql).await
}

#[tokio::test]
async fn clients_keep_their_pooler_while_another_version_takes_over() {
    let own = tempfile::tempdir_in("/var/tmp").unwrap();
    fs::set_permissions(own.path(), Permissions::from_mode(0o755)).unwrap();
    let pooled = PooledProject::with_kits(Some(own.path().to_owned())).await;
    let newer = own.path().join("pooler/99.0-1");
    // To the newer version, and back.
    for goes_back in [false, true] {
        let earlier = pooled.connect().await;
        let begun = "begin; create temporary table kept on commit drop as select 5::bigint as n";
        earlier.batch_execute(begun).await.unwrap();
        let first = pooled.pid().await.unwrap();
        if goes_back {
            fs::remove_dir_all(&newer).unwrap();
        } else {
            install(&newer);
        }
        pooled.until_taken_over(first).await;
        let later = pooled.connect().await;
        assert_eq!(number(&later, "select 7::bigint").await, 7);

        assert_eq!(number(&earlier, "select n from kept").await, 5);
        earlier.batch_execute("commit").await.unwrap();
        assert_eq!(number(&earlier, "select 8::bigint").await, 8);
        assert!(is_alive(first), "it has a client");
        drop(earlier);
        until(async || !is_alive(first)).await;
        assert_eq!(number(&later, "select 9::bigint").await, 9);
    }
    stop_all(&pooled.node.app).await;
    assert_eq!(pooled.pid().await, None);
}

#[tokio::test]
async fn clients_of_a_replaced_pooler_do_not_see_a_restart() {
    let own = tempfile::tempdir_in("/var/tmp").unwrap();
    fs::set_permissions(own.path(), Permissions::from_mode(0o755)).unwrap();
    let pooled = PooledProject::with_kits(Some(own.path().to_owned())).await;
    let earlier = pooled.connect().await;
    let before = server_start(&earlier).await;
    let first = pooled.pid().await.unwrap();
    install(&own.path().join("pooler/99.0-1"));
    pooled.until_taken_over(first).await;
    let owner = pooled.connect_directly().await;
    let restarted = async {
        let busy = "select count(*) from pg_stat_activity where query like '%pg_sleep(2)%' \
                    and state = 'active' and pid <> pg_backend_pid()";
        until(async || number(&owner, busy).await == 1).await;
        pooled.restart().await;
    };
    let query = number(&earlier, "select 7::bigint from pg_sleep(2)");
    let (found, ()) = tokio::join!(query, restarted);
    assert_eq!(found, 7, "in progress when the restart began");
    assert!(server_start(&earlier).await > before, "another server");
    assert!(is_alive(first), "it has a client");
}

#[tokio::test]
async fn announced_settings_are_those_of_the_running_pooler() {
    let pooled = PooledProject::new().await;
    let _client = pooled.connect().await;
    let compare = async |mode: &str, [size, clients, wait]: [u64; 3]| {
        let view = &pooled.get("/config/database/pooler").await[0];
        let bouncer = pooled.get("/config/database/pgbouncer").await;
        let section = pooled
            .node
            .get(&format!("/v2/projects/{}/config", pooled.project));
        let section = section.as_(&pooled.app.owner).send().await.expect(200);
        let section = &section.json()["data"]["attributes"]["pooler"];
        let reported = pooled.reported().await;
        let number = |name: &str| reported[name].parse::<u64>().unwrap();
        assert_eq!(
            (&view["pool_mode"], &bouncer["pool_mode"]),
            (&json!(mode), &json!(mode))
        );
        assert_eq!(
            (&section["pool_mode"], &*reported["pool_mode"]),
            (&json!(mode), mode)
        );
        for (name, announced) in [
            ("default_pool_size", &view["default_pool_size"]),
            ("default_pool_size", &bouncer["default_pool_size"]),
            ("default_pool_size", &section["default_pool_size"]),
            ("default_pool_size", &json!(size)),
            ("max_client_conn", &view["max_client_conn"]),
            ("max_client_conn", &bouncer["max_client_conn"]),
            ("max_client_conn", &section["max_client_conn"]),
            ("max_client_conn", &json!(clients)),
            ("server_idle_timeout", &section["server_idle_timeout"]),
            ("server_lifetime", &section["server_lifetime"]),
            ("query_wait_timeout", &section["query_wait_timeout"]),
            ("query_wait_timeout", &bouncer["query_wait_timeout"]),
            ("query_wait_timeout", &json!(wait)),
            ("reserve_pool_size", &section["reserve_pool_size"]),
        ] {
            assert_eq!(&json!(number(name)), announced, "{name}");
        }
        let ignored = &reported["ignore_startup_parameters"];
        assert_eq!(&json!(ignored), &bouncer["ignore_startup_parameters"]);
    };
    compare("transaction", [15, 200, 120]).await;
    let view = &pooled.get("/config/database/pooler").await[0];
    assert_eq!(view["db_port"], 6543);
    let addons = pooled.get("/billing/addons").await;
    let meta = &addons["selected_addons"][0]["variant"]["meta"];
    assert_eq!(meta["connections_pooler"], view["max_client_conn"]);
    let owner = pooled.connect_directly().await;
    let total = number(&owner, "select current_setting('max_connections')::bigint").await;
    assert!(total > meta["connections_direct"].as_i64().unwrap() + 15);

    let change = async |body: Value, status: u16| {
        let call = pooled.node.patch(&pooled.at("/config/database/pooler"));
        let call = call.as_(&pooled.app.owner).json(&body);
        call.send().await.expect(status).json()
    };
    let pid = pooled.pid().await;
    change(json!({"default_pool_size": 5}), 200).await;
    compare("transaction", [5, 200, 120]).await;
    let limits = json!({"max_client_conn": 40, "query_wait_timeout": 7});
    let changed = change(limits, 200).await;
    assert_eq!(
        (&changed["max_client_conn"], &changed["query_wait_timeout"]),
        (&json!(40), &json!(7))
    );
    change(json!({"pool_mode": "session"}), 200).await;
    compare("session", [5, 40, 7]).await;
    change(
        json!({"default_pool_size": null, "pool_mode": "transaction", "max_client_conn": null, "query_wait_timeout": null}),
        200,
    )
    .await;
    compare("transaction", [15, 200, 120]).await;
    assert_eq!(pooled.pid().await, pid, "changed without another process");
    for (name, max) in [("default_pool_size", 15), ("max_client_conn", 200)] {
        let refused = change(json!({name: max + 1}), 400).await;
        let message = refused["message"].as_str().unwrap();
        assert!(message.contains(&format!("room for {max}")), "{refused}");
    }
    change(json!({"query_wait_timeout": 121}), 400).await;

    let health = pooled.get("/health?services=pooler").await;
    assert_eq!(health[0]["status"], "ACTIVE_HEALTHY", "{health}");
}

#[tokio::test]
async fn pooler_without_clients_stops_and_starts_again() {
    let pooled = PooledProject::new().await;
    let client = pooled.connect().await;
    let id = pooled.id().await;
    drop(client);
    until(async || !pooled.node.app.postgres_proxy.has_pooled(id)).await;
    stop_all(&pooled.node.app).await;
    assert_eq!(pooled.pid().await, None);
    let client = pooled.connect().await;
    assert_eq!(number(&client, "select 7::bigint").await, 7);
}

#[tokio::test]
async fn clients_of_the_pooler_do_not_see_a_restart() {
    let pooled = PooledProject::new().await;
    let clients = join_all((0..20).map(|_| pooled.connect())).await;
    for client in &clients {
        number(client, "select 7::bigint").await;
    }
    let before = server_start(&clients[0]).await;
    // One directly after the other.
    let restarted = async {
        for _ in 0..3 {
            pooled.restart().await;
        }
    };
    let query = async |client: &Client| number(client, "select 7::bigint").await;
    let arriving = async || query(&pooled.connect().await).await;
    let mut is_over = false;
    let mut restarted = std::pin::pin!(restarted);
    while !is_over {
        let kept = join_all(clients.iter().map(query));
        let new = join_all((0..20).map(|_| arriving()));
        let mut work = std::pin::pin!(async { tokio::join!(kept, new) });
        // The work of a round is completed in any case.
        let (kept, new) = tokio::select! {
            () = &mut restarted, if !is_over => {
                is_over = true;
                work.await
            }
            found = &mut work => found,
        };
        assert!(kept.iter().chain(&new).all(|found| *found == 7));
    }
    for client in &clients {
        assert!(server_start(client).await > before, "another server");
    }
}
