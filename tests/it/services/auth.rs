//! The Auth service with a fake program: its environment, its port, and changes of its settings.

use std::{
    collections::BTreeMap,
    fs,
    fs::Permissions,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use gantry::{
    app::Settings,
    control::{
        api_keys,
        projects::{Status, lease},
        services::{self, ServiceUse, state::ServiceOptions, sweep},
    },
    platform::http::Transport,
    proxy::{service_proxy::upstreams::UpstreamAddress, unavailable::UnavailableReason},
};
use gantry_base::ids::{ProjectId, ProjectRef};
use gantry_node::kits::{Service, manifest::Manifest, shelf::KitShelf};
use libc::{EACCES, EPERM};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_postgres::NoTls;
use uuid::Uuid;

use super::{build_fake, get, until};
use crate::{
    edge::{Answer, Gate},
    support::{
        Node, TestApp,
        machine::{Machine, host, is_root, kill},
        settings,
    },
};

/// A node with a service from an archive of the operator, its service proxy, and a project that
/// runs.
pub(super) struct ArchiveApi {
    pub(super) gate: Gate,
    pub(super) project: ProjectRef,
    id: ProjectId,
    service: Service,
    key: String,
    pub(super) kits: PathBuf,
}

/// Name of this machine's platform in archives.
pub(super) const PLATFORM: &str = if cfg!(target_arch = "x86_64") {
    "linux-x64"
} else {
    "linux-arm64"
};

/// Installs the fake program with the built-in manifest, as an archive of the operator has it.
pub(crate) fn install(kits: &Path, service: Service) {
    let folder = kits.join(service.name()).join("1.0").join(PLATFORM);
    let manifest = Manifest::built_in(service).unwrap();
    fs::create_dir_all(&folder).unwrap();
    for program in [Some(manifest.program), manifest.prepare]
        .into_iter()
        .flatten()
    {
        let program = folder.join(program);
        fs::create_dir_all(program.parent().unwrap()).unwrap();
        build_fake(&program);
    }
    if let Some(directory) = manifest.directory {
        fs::create_dir_all(folder.join(directory)).unwrap();
    }
    open_to_all(kits);
}

/// Lets all accounts read and execute a folder with all that it contains.
fn open_to_all(path: &Path) {
    fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            open_to_all(&entry.unwrap().path());
        }
    }
}

fn node(app: &TestApp, machine: &Arc<Machine>, kits: &Path) -> Node {
    let options = Settings {
        services: ServiceOptions {
            shelf: KitShelf::new(Some(kits.to_owned()), machine.dir().join("none")),
            launcher: host().launcher,
            ..ServiceOptions::default()
        },
        ..settings(Transport::default(), Uuid::from_u128(13))
    };
    app.another_with(options, Arc::clone(machine))
}

impl ArchiveApi {
    async fn new() -> Self {
        Self::of(Service::Auth).await
    }

    pub(super) async fn of(service: Service) -> Self {
        let app = TestApp::new().await;
        let machine = Arc::new(Machine::new().await);
        let kits = machine.dir().join("kits");
        install(&kits, service);
        Self::with(app, &machine, kits, service).await
    }

    pub(super) async fn with(
        app: TestApp,
        machine: &Arc<Machine>,
        kits: PathBuf,
        service: Service,
    ) -> Self {
        let mut node = node(&app, machine, &kits);
        node.start();
        let call = node.post("/v1/projects").as_(&app.owner);
        let call = call.json(&app.new_project(service.name()));
        let created = call.send().await.expect(201).json();
        let project: ProjectRef = created["ref"].as_str().unwrap().parse().unwrap();
        node.until(&project, Status::ActiveHealthy).await;
        let path = format!("/v1/projects/{project}/api-keys?reveal=true");
        let keys = node.get(&path).as_(&app.owner).send().await;
        let keys = keys.expect(200).json();
        let key = |key: &&Value| key["type"] == "publishable";
        let key = keys.as_array().unwrap().iter().find(key).unwrap();
        let sql = "select id from projects where ref = $1";
        let rows = node.app.db.query(sql, &[&project.as_str()]).await;
        Self {
            key: key["api_key"].as_str().unwrap().to_owned(),
            id: ProjectId(rows.unwrap()[0].get(0)),
            gate: Gate::of(app, node, project.clone()).await,
            project,
            service,
            kits,
        }
    }

    /// Sends a request through the service proxy.
    pub(super) async fn get(&self, path: &str) -> Answer {
        let mut client = self.gate.client().await;
        let (host, key, prefix) = (self.gate.host(), &self.key, self.service.prefix());
        let text = format!("GET {prefix}{path} HTTP/1.1\r\nHost: {host}\r\napikey: {key}\r\n\r\n");
        client.send(&text).await;
        client.answer().await
    }

    /// Returns the environment of the process, which is started if necessary.
    pub(super) async fn environment(&self) -> BTreeMap<String, String> {
        let answer = self.get("/environment").await;
        assert_eq!(answer.status, 200, "{answer:?}: {}", self.health().await);
        let text = String::from_utf8(answer.body.to_vec()).unwrap();
        let pair = |line: &str| {
            let (name, value) = line.split_once('=').unwrap();
            (name.to_owned(), value.to_owned())
        };
        text.lines().map(pair).collect()
    }

    pub(super) async fn health(&self) -> Value {
        let path = format!(
            "/v1/projects/{}/health?services={}",
            self.project, self.service
        );
        let call = self.gate.node.get(&path).as_(&self.gate.app.owner);
        call.send().await.expect(200).json()[0].clone()
    }

    pub(super) async fn patch(&self, change: Value, status: u16) -> Value {
        let path = format!("/v1/projects/{}/config/{}", self.project, self.service);
        let call = self.gate.node.patch(&path).as_(&self.gate.app.owner);
        let answer = call.json(&change).send().await.expect(status);
        if answer.body.is_empty() {
            return Value::Null;
        }
        answer.json()
    }

    pub(super) fn pid(&self) -> Option<i32> {
        self.gate.node.app.services.pid(self.id, self.service)
    }

    fn folder(&self) -> PathBuf {
        let name = format!("{}.{}", self.project, self.service);
        self.gate.node.machine.home.socket_dir(&name)
    }

    async fn acquire_on(&self, node: &Node) -> ServiceUse {
        let keys = api_keys::accepted_keys(&node.app, self.id, &self.project).await;
        let keys = Arc::new(keys.unwrap());
        let at = (self.id, &self.project);
        let used = services::acquire(&node.app, at, self.service, &keys, None);
        used.await.unwrap()
    }

    pub(super) async fn stop(mut self) {
        services::stop_all(&self.gate.node.app).await;
        self.gate.node.stop().await;
    }
}

#[tokio::test]
async fn first_request_starts_auth_with_its_whole_environment() {
    let api = ArchiveApi::new().await;
    let health = api.health().await;
    assert_eq!(health["status"], "ACTIVE_HEALTHY", "asleep: {health}");
    api.patch(json!({"smtp_pass": "hidden"}), 200).await;
    let environment = api.environment().await;
    let external = format!("https://{}", api.gate.host());
    assert!(environment["API_EXTERNAL_URL"].starts_with(&external));
    assert!(environment["API_EXTERNAL_URL"].ends_with("/auth/v1"));
    for (name, value) in [
        ("GOTRUE_API_HOST", "127.0.0.1"),
        ("GOTRUE_SITE_URL", "http://localhost:3000"),
        ("GOTRUE_SMTP_PASS", "hidden"),
        ("GOTRUE_JWT_EXP", "3600"),
        ("TZ", "UTC"),
    ] {
        assert_eq!(
            environment.get(name).map(String::as_str),
            Some(value),
            "{name}"
        );
    }
    assert!(environment["GOTRUE_DB_MIGRATIONS_PATH"].starts_with(api.kits.to_str().unwrap()));
    let keys: Value = serde_json::from_str(&environment["GOTRUE_JWT_KEYS"]).unwrap();
    let keys = keys.as_array().unwrap();
    let signs = |key: &&Value| key["key_ops"] == json!(["sign"]);
    assert_eq!(keys.iter().filter(signs).count(), 1, "one key signs");
    assert!(
        keys.iter().any(|key| key["kid"] == "gantry"),
        "of exchanged tokens"
    );
    // The address of the database is one that the login role reaches.
    let database = &environment["GOTRUE_DB_DATABASE_URL"];
    let (client, connection) = tokio_postgres::connect(database, NoTls).await.unwrap();
    let connection = tokio::spawn(connection);
    let rows = client
        .query("select current_user::text", &[])
        .await
        .unwrap();
    assert_eq!(rows[0].get::<_, &str>(0), "supabase_auth_admin");
    drop(client);
    connection.await.unwrap().unwrap();
    // No file and no argument has a secret.
    let password = database
        .split(':')
        .nth(2)
        .unwrap()
        .split('@')
        .next()
        .unwrap();
    let arguments = fs::read_to_string(format!("/proc/{}/cmdline", api.pid().unwrap())).unwrap();
    assert!(!arguments.contains(password) && !arguments.contains("hidden"));
    for folder in [api.folder(), api.folder().join("i")] {
        for file in fs::read_dir(folder).unwrap().flatten() {
            if !file.file_type().unwrap().is_file() {
                continue;
            }
            let text = fs::read_to_string(file.path()).unwrap();
            assert!(
                !text.contains(password) && !text.contains("hidden"),
                "{file:?}"
            );
        }
    }
    api.stop().await;
}

#[tokio::test]
async fn changed_settings_replace_the_process_and_rejected_ones_change_nothing() {
    let api = ArchiveApi::new().await;
    api.environment().await;
    let first = api.pid();
    api.patch(json!({"site_url": "https://one.example"}), 200)
        .await;
    assert!(
        api.pid().is_some() && api.pid() != first,
        "replaced before the answer"
    );
    let environment = api.environment().await;
    assert_eq!(environment["GOTRUE_SITE_URL"], "https://one.example");
    let problem = api
        .patch(json!({"site_url": "https://rejected.example"}), 400)
        .await;
    let message = problem["message"].as_str().unwrap();
    assert!(message.contains("GOTRUE_SITE_URL is rejected"), "{message}");
    let environment = api.environment().await;
    assert_eq!(environment["GOTRUE_SITE_URL"], "https://one.example");
    let path = format!("/v1/projects/{}/config/auth", api.project);
    let call = api.gate.node.get(&path).as_(&api.gate.app.owner);
    let stored = call.send().await.expect(200).json();
    assert_eq!(stored["site_url"], "https://one.example");
    // A change by another server.
    let sql = "update service_settings set generation = generation + 1 where project_id = $1";
    let before = api.pid();
    api.gate.node.app.db.query(sql, &[&api.id.0]).await.unwrap();
    sweep::stop_unwanted(&api.gate.node.app).await.unwrap();
    until(async || api.pid() != before).await;
    api.stop().await;
}

#[tokio::test]
async fn new_keys_replace_the_process() {
    let api = ArchiveApi::new().await;
    api.environment().await;
    let first = api.pid();
    let path = format!("/v1/projects/{}/config/auth/signing-keys", api.project);
    let call = api.gate.node.post(&path).as_(&api.gate.app.owner);
    let created = call.json(&json!({"algorithm": "ES256"})).send().await;
    let created = created.expect(201).json();
    let has_key = async || {
        let environment = api.environment().await;
        environment["GOTRUE_JWT_KEYS"].contains(created["id"].as_str().unwrap())
    };
    until(has_key).await;
    assert_ne!(api.pid(), first);
    api.stop().await;
}

#[tokio::test]
async fn port_belongs_to_the_instance_alone() {
    let api = ArchiveApi::new().await;
    let used = api.acquire_on(&api.gate.node).await;
    let UpstreamAddress::Port(port) = *used.upstream().address() else {
        panic!("{:?}", used.upstream());
    };
    assert_eq!(
        get(&used, "/environment")
            .await
            .matches("GOTRUE_API_PORT")
            .count(),
        1
    );
    if host().launcher.sandbox {
        let other = get(&used, &format!("/try/port?{}", port.port - 1)).await;
        assert!([EACCES, EPERM].contains(&other.parse().unwrap()), "{other}");
    }
    let pid = Pid::from_raw(api.pid().unwrap()).unwrap();
    kill(pid).await;
    if is_root() {
        // Another account takes the port.
        let address = format!("127.0.0.1:{}", port.port);
        let thief = loop {
            match TcpListener::bind(&address).await {
                Ok(listener) => break listener,
                Err(_) => tokio::task::yield_now().await,
            }
        };
        let refused = port.connect().await.unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
        drop(thief);
    }
    drop(used);
    api.stop().await;
}

#[tokio::test]
async fn health_tells_the_truth_and_idle_process_is_stopped() {
    let api = ArchiveApi::new().await;
    api.environment().await;
    assert_eq!(api.health().await["status"], "ACTIVE_HEALTHY");
    let pid = Pid::from_raw(api.pid().unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    assert_eq!(api.health().await["status"], "UNHEALTHY");
    kill_process(pid, Signal::CONT).unwrap();
    api.gate.app.advance(300);
    sweep::stop_idle(&api.gate.node.app);
    until(async || api.pid().is_none()).await;
    until(async || !api.folder().exists()).await;
    assert_eq!(api.health().await["status"], "ACTIVE_HEALTHY", "asleep");
    // The address that the operator sets takes precedence.
    let sql = "insert into project_upstreams (project_id, service, url) values ($1, 'auth', $2)";
    let url = "http://127.0.0.1:9";
    api.gate
        .node
        .app
        .db
        .query(sql, &[&api.id.0, &url])
        .await
        .unwrap();
    let health = api.health().await;
    assert!(health["error"].to_string().contains("address"), "{health}");
    api.stop().await;
}

#[tokio::test]
async fn restarted_gantry_adopts_the_process_with_its_port() {
    let mut api = ArchiveApi::new().await;
    drop(api.acquire_on(&api.gate.node).await);
    let first = api.pid();
    api.gate.node.kill();
    let again = || node(&api.gate.app, &api.gate.node.machine, &api.kits);
    let pid = |node: &Node| node.app.services.pid(api.id, Service::Auth);
    // Without the service proxy, the public address is another one.
    let mut second = again();
    lease::claim(&second.app).await.unwrap();
    drop(api.acquire_on(&second).await);
    assert_ne!(pid(&second), first, "its environment is outdated");
    let replaced = pid(&second);
    second.kill();
    let third = again();
    lease::claim(&third.app).await.unwrap();
    let used = api.acquire_on(&third).await;
    assert_eq!(pid(&third), replaced, "one process");
    assert!(get(&used, "/environment").await.contains("GOTRUE_"));
    drop(used);
    services::stop_all(&third.app).await;
}

#[tokio::test]
async fn archive_without_a_manifest_that_gantry_knows_is_unhealthy() {
    let api = ArchiveApi::new().await;
    fs::remove_file(api.kits.join("auth/1.0").join(PLATFORM).join("bin/auth")).unwrap();
    let answer = api.get("/environment").await;
    assert_eq!(answer.status, 503, "{answer:?}");
    let health = api.health().await;
    assert_eq!(health["status"], "UNHEALTHY", "{health}");
    let reason = UnavailableReason::BrokenKit.message();
    assert!(answer.json()["message"].to_string().contains(reason));
    api.stop().await;
}
