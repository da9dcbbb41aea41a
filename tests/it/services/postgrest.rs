//! The Data API with the real PostgREST: keys, row level security, settings, and the database's
//! absence.

use std::{fs, os::unix::fs::MetadataExt, path::PathBuf, process::Command, sync::Arc};

use gantry::{
    app::Settings,
    control::{projects::Status, services::state::ServiceOptions},
    platform::http::Transport,
};
use gantry_base::ids::ProjectRef;
use gantry_node::kits::{Service, shelf::KitShelf};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use uuid::Uuid;

use super::until;
use crate::{
    edge::{Answer, Gate},
    support::{
        TestApp,
        machine::{Machine, PATIENCE, SuperuserClients as _, host, kill},
        settings,
    },
};

/// Returns the folder with the kits of all runs. Installs PostgREST from its registry once.
pub(crate) fn kits() -> PathBuf {
    kits_with(Service::Rest)
}

/// Returns the folder with the kits of all runs. Installs a service from its registry once.
pub(crate) fn kits_with(service: Service) -> PathBuf {
    kits_named(service.name())
}

/// Returns the folder with the kits of all runs. Installs a kit from its registry once.
pub(crate) fn kits_named(name: &str) -> PathBuf {
    let folder = std::env::var_os("GANTRY_TEST_KITS")
        .map_or_else(|| PathBuf::from("/var/tmp/gantry-test-kits"), PathBuf::from);
    let shelf = KitShelf::new(None, folder.clone());
    let is_installed = || match Service::of_program(name) {
        Some(service) => matches!(shelf.find(service), Ok(Some(_))),
        None => matches!(shelf.find_diff(), Ok(Some(_))),
    };
    if is_installed() {
        return folder;
    }
    let unique = gantry_base::clock::Entropy::system().letters(8);
    let home = folder.with_file_name(format!("gantry-kits-{unique}"));
    let installed = Command::new(env!("CARGO_BIN_EXE_gantry"))
        .args(["service", "install", name, "--data-dir"])
        .arg(&home)
        .status()
        .unwrap();
    if installed.success() {
        fs::create_dir_all(&folder).unwrap();
        // Another test may have been faster.
        let place = folder.join(name);
        let _ = fs::rename(home.join("kits").join(name), place);
    }
    let _ = fs::remove_dir_all(&home);
    assert!(
        is_installed(),
        "{name} is not installed: no registry is reachable, or GANTRY_TEST_KITS is wrong"
    );
    folder
}

/// A node with PostgREST, its service proxy, and a project that runs.
pub(super) struct DataApi {
    pub(super) gate: Gate,
    pub(super) project: ProjectRef,
    pub(super) publishable: String,
    pub(super) secret: String,
    anon: String,
    pub(super) service_role: String,
}

const SCHEMA: &str = "
create table public.todos (
    id int generated always as identity primary key, owner text, task text not null
);
alter table public.todos enable row level security;
create policy own on public.todos to authenticated
    using (owner = current_setting('request.jwt.claims', true)::json ->> 'sub');
create policy open on public.todos for select to anon using (owner is null);
grant select on public.todos to anon;
grant select, insert, update, delete on public.todos to authenticated, service_role;
insert into public.todos (owner, task) values (null, 'open'), ('u1', 'mine'), ('u2', 'theirs');
create schema api;
create table api.things (id int);
grant usage on schema api to anon;
grant select on api.things to anon;
";

impl DataApi {
    pub(super) async fn new() -> Self {
        let kits = kits();
        let app = TestApp::new().await;
        let machine = Arc::new(Machine::new().await);
        let options = Settings {
            services: ServiceOptions {
                shelf: KitShelf::new(None, kits),
                launcher: host().launcher,
                ..ServiceOptions::default()
            },
            ..settings(Transport::default(), Uuid::from_u128(12))
        };
        let mut node = app.another_in_real_time(options, machine);
        node.start();
        let project = app.create_project_on(&node, "data api").await;
        node.until(&project, Status::ActiveHealthy).await;
        let keys = node
            .get(&format!("/v1/projects/{project}/api-keys?reveal=true"))
            .as_(&app.owner)
            .send()
            .await
            .expect(200)
            .json();
        let key = |field: &str, value: &str| {
            let all = keys.as_array().unwrap();
            let found = all.iter().find(|key| key[field] == value).unwrap();
            found["api_key"].as_str().unwrap().to_owned()
        };
        let api = Self {
            publishable: key("type", "publishable"),
            secret: key("type", "secret"),
            anon: key("id", "anon"),
            service_role: key("id", "service_role"),
            gate: Gate::of(app, node, project.clone()).await,
            project,
        };
        api.sql(SCHEMA).await;
        api
    }

    async fn sql(&self, query: &str) -> Value {
        let path = format!("/v1/projects/{}/database/query", self.project);
        let call = self.gate.node.post(&path).as_(&self.gate.app.owner);
        call.json(&json!({ "query": query }))
            .send()
            .await
            .expect(201)
            .json()
    }

    /// Sends a GET request with these header lines.
    pub(super) async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        let mut lines = String::new();
        for (name, value) in headers {
            lines.extend([name, ": ", value, "\r\n"]);
        }
        let mut client = self.gate.client().await;
        let text = format!(
            "GET {path} HTTP/1.1\r\nHost: {}\r\n{lines}\r\n",
            self.gate.host()
        );
        client.send(&text).await;
        client.answer().await
    }

    /// Returns the tasks that a request with these header lines reads.
    pub(super) async fn tasks(&self, headers: &[(&str, &str)]) -> Vec<String> {
        let answer = self
            .get("/rest/v1/todos?select=task&order=id", headers)
            .await;
        assert_eq!(answer.status, 200, "{answer:?}: {}", self.health().await);
        let rows = answer.json();
        let task = |row: &Value| row["task"].as_str().unwrap().to_owned();
        rows.as_array().unwrap().iter().map(task).collect()
    }

    /// The folder of the instance.
    pub(super) fn folder(&self) -> PathBuf {
        let name = format!("{}.rest", self.project);
        self.gate.node.machine.home.socket_dir(&name).join("i")
    }

    pub(super) fn pid(&self, id: gantry_base::ids::ProjectId) -> Option<i32> {
        self.gate.node.app.services.pid(id, Service::Rest)
    }

    pub(super) async fn id(&self) -> gantry_base::ids::ProjectId {
        let sql = "select id from projects where ref = $1";
        let rows = self
            .gate
            .node
            .app
            .db
            .query(sql, &[&self.project.as_str()])
            .await;
        gantry_base::ids::ProjectId(rows.unwrap()[0].get(0))
    }

    async fn patch(&self, body: Value, status: u16) -> Value {
        let path = format!("/v1/projects/{}/postgrest", self.project);
        let call = self.gate.node.patch(&path).as_(&self.gate.app.owner);
        call.json(&body).send().await.expect(status).json()
    }

    pub(super) async fn health(&self) -> Value {
        let path = format!("/v1/projects/{}/health?services=rest", self.project);
        let call = self.gate.node.get(&path).as_(&self.gate.app.owner);
        call.send().await.expect(200).json()[0].clone()
    }

    pub(super) async fn stop(mut self) {
        gantry::control::services::stop_all(&self.gate.node.app).await;
        self.gate.node.stop().await;
    }
}

/// Signs a token as a client library for tests does.
pub(super) fn user_token(secret: &str, sub: &str) -> String {
    use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
    let claims = json!({"role": "authenticated", "sub": sub, "exp": 4_000_000_000_u64});
    let signed = [json!({"alg": "HS256", "typ": "JWT"}), claims]
        .map(|part| URL_SAFE_NO_PAD.encode(part.to_string()))
        .join(".");
    let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, secret.as_bytes());
    let signature = aws_lc_rs::hmac::sign(&key, signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
}

#[tokio::test]
async fn first_request_starts_the_data_api_and_each_key_has_its_role() {
    let api = DataApi::new().await;
    let all = ["open", "mine", "theirs"];
    let of = |key: &str| format!("Bearer {key}");
    assert_eq!(api.tasks(&[("apikey", &api.publishable)]).await, ["open"]);
    assert_eq!(api.tasks(&[("apikey", &api.secret)]).await, all);
    assert_eq!(api.tasks(&[("apikey", &api.anon)]).await, ["open"]);
    assert_eq!(api.tasks(&[("apikey", &api.service_role)]).await, all);
    assert_eq!(api.tasks(&[("authorization", &of(&api.secret))]).await, all);
    // As client libraries send it: the key in both places.
    let both = [
        ("apikey", &*api.publishable),
        ("authorization", &of(&api.publishable)),
    ];
    assert_eq!(api.tasks(&both).await, ["open"]);
    // The token of a user takes precedence over any key.
    let path = format!("/v1/projects/{}/postgrest", api.project);
    let call = api.gate.node.get(&path).as_(&api.gate.app.owner);
    let config = call.send().await.expect(200).json();
    let token = user_token(config["jwt_secret"].as_str().unwrap(), "u1");
    let user = [
        ("apikey", &*api.publishable),
        ("authorization", &of(&token)),
    ];
    assert_eq!(api.tasks(&user).await, ["mine"]);
    let user = [("apikey", &*api.secret), ("authorization", &of(&token))];
    assert_eq!(api.tasks(&user).await, ["mine"]);
    // A key in the query is not taken for a filter.
    let answer = api
        .get(
            &format!("/rest/v1/todos?select=task&apikey={}", api.secret),
            &[],
        )
        .await;
    assert_eq!(answer.json().as_array().unwrap().len(), 3);
    let answer = api
        .get("/rest/v1/todos", &[("apikey", "sb_secret_wrong")])
        .await;
    assert_eq!(
        (answer.status, answer.json()["message"].clone()),
        (401, json!("Invalid API key"))
    );
    let forged = user_token("0123456789abcdef0123456789abcdef", "u1");
    let answer = api
        .get("/rest/v1/todos", &[("authorization", &of(&forged))])
        .await;
    assert_eq!(answer.status, 401, "{answer:?}");
    let health = api.health().await;
    assert_eq!(health["status"], "ACTIVE_HEALTHY", "{health}");
    api.stop().await;
}

#[tokio::test]
async fn text_of_the_key_set_is_no_secret_and_password_is_private() {
    let api = DataApi::new().await;
    api.tasks(&[("apikey", &api.publishable)]).await;
    let folder = api.folder();
    let keys = fs::read_to_string(folder.join("jwks.json")).unwrap();
    let forged = format!("Bearer {}", user_token(&keys, "u1"));
    let answer = api
        .get("/rest/v1/todos", &[("authorization", &forged)])
        .await;
    assert_eq!(answer.status, 401);
    for file in ["jwks.json", "rest.conf"] {
        let found = fs::metadata(folder.join(file)).unwrap();
        assert_eq!(found.mode() & 0o777, 0o600, "{file}");
    }
    // Neither arguments nor environment have the password.
    let config = fs::read_to_string(folder.join("rest.conf")).unwrap();
    let password = config.split("authenticator:").nth(1).unwrap();
    let password = password.split('@').next().unwrap();
    let pid = api.pid(api.id().await).unwrap();
    for file in ["cmdline", "environ"] {
        let text = fs::read(format!("/proc/{pid}/{file}")).unwrap();
        assert!(!String::from_utf8_lossy(&text).contains(password), "{file}");
    }
    api.stop().await;
}

#[tokio::test]
async fn disabled_legacy_keys_and_deleted_keys_stop_working_at_once() {
    let api = DataApi::new().await;
    let legacy = [("apikey", &*api.service_role)];
    assert_eq!(api.tasks(&legacy).await.len(), 3);
    let pid = api.pid(api.id().await);
    let path = format!("/v1/projects/{}/api-keys/legacy?enabled=false", api.project);
    let call = api.gate.node.request("PUT", &path).as_(&api.gate.app.owner);
    call.send().await.expect(200);
    let answer = api.get("/rest/v1/todos", &legacy).await;
    assert_eq!(answer.status, 401, "{answer:?}");
    assert_eq!(
        api.pid(api.id().await),
        pid,
        "keys are loaded without a restart"
    );
    assert_eq!(api.tasks(&[("apikey", &api.secret)]).await.len(), 3);
    let keys = format!("/v1/projects/{}/api-keys", api.project);
    let listed = api.gate.node.get(&keys).as_(&api.gate.app.owner);
    let listed = listed.send().await.expect(200).json();
    let all = listed.as_array().unwrap();
    let secret = all.iter().find(|key| key["type"] == "secret").unwrap();
    let path = format!("{keys}/{}", secret["id"].as_str().unwrap());
    let call = api.gate.node.delete(&path).as_(&api.gate.app.owner);
    call.send().await.expect(200);
    let answer = api.get("/rest/v1/todos", &[("apikey", &api.secret)]).await;
    assert_eq!(answer.status, 401, "{answer:?}");
    api.stop().await;
}

#[tokio::test]
async fn settings_take_effect_before_the_response_and_bad_ones_are_undone() {
    let api = DataApi::new().await;
    let key = ("apikey", &*api.publishable);
    let things = [key, ("accept-profile", "api")];
    assert_eq!(api.get("/rest/v1/things", &things).await.status, 406);
    api.patch(json!({"db_schema": "public,api", "max_rows": 1}), 200)
        .await;
    assert_eq!(api.get("/rest/v1/things", &things).await.status, 200);
    let rows = api.tasks(&[("apikey", &api.secret)]).await;
    assert_eq!(rows, ["open"], "max_rows");
    // No session ever becomes free in a pool without any: it does not become ready.
    let refused = api.patch(json!({"db_pool": 0}), 400).await;
    assert!(
        refused["message"]
            .as_str()
            .unwrap()
            .contains("did not start"),
        "{refused}"
    );
    assert_eq!(api.get("/rest/v1/things", &things).await.status, 200);
    // Off and on again.
    api.patch(json!({"db_schema": ""}), 200).await;
    let answer = api.get("/rest/v1/todos", &[key]).await;
    assert_eq!(
        (answer.status, &answer.json()["code"]),
        (503, &json!("PGRST002"))
    );
    assert!(answer.head.contains("retry-after: "), "{}", answer.head);
    assert_eq!(api.health().await["status"], "UNHEALTHY");
    api.patch(json!({"db_schema": "public"}), 200).await;
    assert_eq!(api.tasks(&[key]).await, ["open"]);
    api.stop().await;
}

#[tokio::test]
async fn settings_change_in_the_running_process() {
    let api = DataApi::new().await;
    let key = ("apikey", &*api.publishable);
    let sql = "create function api.twice(n int) returns int language sql as 'select 2 * n'; \
               grant execute on function api.twice to anon";
    api.sql(sql).await;
    assert_eq!(api.get("/rest/v1/todos", &[key]).await.status, 200);
    let id = api.id().await;
    let pid = api.pid(id);
    assert!(pid.is_some());
    api.patch(json!({"db_schema": "public, api"}), 200).await;
    // The function is found at once: the schema cache is loaded before the response.
    let profile = [key, ("accept-profile", "api")];
    let answer = api.get("/rest/v1/rpc/twice?n=21", &profile).await;
    assert_eq!((answer.status, answer.json()), (200, json!(42)));
    api.patch(json!({"max_rows": 1}), 200).await;
    assert_eq!(api.tasks(&[("apikey", &api.secret)]).await, ["open"]);
    assert_eq!(api.pid(id), pid, "the same process");
    // Settings that the owner stores in the database take precedence, so this has no effect.
    let driver = &api.gate.node.app.driver;
    let admin = driver.admin_session(&api.project).await.unwrap();
    let sql = "alter role authenticator set pgrst.db_schemas = 'public'";
    admin.batch_execute(sql).await.unwrap();
    let refused = api.patch(json!({"db_schema": "api"}), 400).await;
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("pgrst.db_schemas"), "{message}");
    let answer = api.get("/rest/v1/todos", &[key]).await;
    assert_eq!((answer.status, api.pid(id)), (200, pid), "{answer:?}");
    let folder = api.folder();
    let config = fs::read_to_string(folder.join("rest.conf")).unwrap();
    assert!(config.contains("db-schemas = \"public, api\""), "{config}");
    // Other settings can be changed all the same.
    api.patch(json!({"max_rows": 2}), 200).await;
    assert_eq!(api.pid(id), pid);
    // The pool is made at the start.
    api.patch(json!({"db_pool": 3}), 200).await;
    assert_ne!(api.pid(id), pid);
    api.stop().await;
}

#[tokio::test]
async fn suspended_process_is_replaced_by_a_change_of_settings() {
    let api = DataApi::new().await;
    let key = [("apikey", &*api.publishable)];
    api.tasks(&key).await;
    let id = api.id().await;
    let pid = api.pid(id).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::STOP).unwrap();
    api.patch(json!({"max_rows": 1}), 200).await;
    assert_ne!(api.pid(id), Some(pid));
    assert_eq!(api.tasks(&[("apikey", &api.secret)]).await, ["open"]);
    api.stop().await;
}

#[tokio::test]
async fn settings_of_another_server_take_effect_without_a_restart() {
    let api = DataApi::new().await;
    let key = [("apikey", &*api.publishable)];
    api.tasks(&key).await;
    let id = api.id().await;
    let pid = api.pid(id);
    // Another server has neither the lease nor the instance.
    let path = format!("/v1/projects/{}/postgrest", api.project);
    let change = api.gate.app.patch(&path).as_(&api.gate.app.owner);
    let change = change.json(&json!({"max_rows": 1}));
    change.send().await.expect(200);
    let changed = async || api.tasks(&[("apikey", &api.secret)]).await == ["open"];
    until(changed).await;
    assert_eq!(api.pid(id), pid);
    api.stop().await;
}

#[tokio::test]
async fn secret_key_without_claims_acts_as_service_role() {
    let api = DataApi::new().await;
    let path = format!("/v1/projects/{}/api-keys?reveal=true", api.project);
    let create = api.gate.node.post(&path).as_(&api.gate.app.owner);
    let made = create
        .json(&json!({"type": "secret", "name": "plain"}))
        .send()
        .await
        .expect(201)
        .json();
    let key = made["api_key"].as_str().unwrap();
    assert_eq!(api.tasks(&[("apikey", key)]).await.len(), 3);
    api.stop().await;
}

#[tokio::test]
async fn ended_instance_and_changed_password_are_repaired_by_the_next_start() {
    let api = DataApi::new().await;
    let key = [("apikey", &*api.publishable)];
    api.tasks(&key).await;
    let id = api.id().await;
    let pid = api.pid(id).unwrap();
    let driver = &api.gate.node.app.driver;
    let admin = driver.admin_session(&api.project).await.unwrap();
    let sql = "alter role authenticator password 'chosen by another'";
    admin.batch_execute(sql).await.unwrap();
    kill(Pid::from_raw(pid).unwrap()).await;
    until(async || api.pid(id) != Some(pid)).await;
    let answered = async {
        loop {
            let answer = api.get("/rest/v1/todos", &key).await;
            match answer.status {
                200 => return,
                status => assert_eq!(status, 503, "{answer:?}"),
            }
            assert!(answer.head.contains("retry-after: 1"), "{}", answer.head);
        }
    };
    tokio::time::timeout(PATIENCE, answered).await.unwrap();
    assert_ne!(api.pid(id), Some(pid));
    api.stop().await;
}

#[tokio::test]
async fn paused_project_has_no_instance_and_restored_one_serves_again() {
    let api = DataApi::new().await;
    let key = [("apikey", &*api.publishable)];
    api.tasks(&key).await;
    let id = api.id().await;
    let path = format!("/v1/projects/{}", api.project);
    let owner = &api.gate.app.owner;
    let node = &api.gate.node;
    node.post(&format!("{path}/pause"))
        .as_(owner)
        .send()
        .await
        .expect(200);
    node.until(&api.project, Status::Inactive).await;
    until(async || api.pid(id).is_none()).await;
    node.post(&format!("{path}/restore"))
        .as_(owner)
        .send()
        .await
        .expect(200);
    node.until(&api.project, Status::ActiveHealthy).await;
    let served = async {
        while api.get("/rest/v1/todos", &key).await.status != 200 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, served).await.unwrap();
    api.stop().await;
}
