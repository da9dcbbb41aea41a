//! Storage and Realtime from archives of the operator, with a fake program; and all archives with
//! their own programs, for `just kits`.

use std::{collections::BTreeMap, env, fs, os::unix::fs::MetadataExt, path::PathBuf, sync::Arc};

use gantry::control::{projects::Status, services};
use gantry_node::kits::{Service, shelf::KitShelf};
use serde_json::{Value, json};

use super::{auth::ArchiveApi, until};
use crate::support::{
    TestApp,
    machine::{Machine, SuperuserClients as _, host, is_root},
    note_skipped,
};

impl ArchiveApi {
    /// Returns the variable of the process.
    async fn variable(&self, name: &str) -> String {
        let mut all = self.environment().await;
        all.remove(name).unwrap_or_default()
    }

    /// Carries out an attempt of the fake program and returns its error number.
    async fn attempt(&self, what: &str, argument: &str) -> i32 {
        let answer = self.get(&format!("/try/{what}?{argument}")).await;
        String::from_utf8_lossy(&answer.body).parse().unwrap()
    }

    async fn post(&self, rest: &str, status: u16) {
        let path = format!("/v1/projects/{}{rest}", self.project);
        let call = self.gate.node.post(&path).as_(&self.gate.app.owner);
        call.send().await.expect(status);
    }
}

#[tokio::test]
async fn storage_keeps_files_of_its_project_and_takes_its_settings() {
    let api = ArchiveApi::of(Service::Storage).await;
    assert_eq!(api.health().await["status"], "ACTIVE_HEALTHY", "asleep");
    api.patch(json!({"fileSizeLimit": 1000}), 200).await;
    let environment = api.environment().await;
    let folder = api.gate.node.machine.home.storage();
    let folder = folder.join(api.project.as_str());
    for (name, value) in [
        ("UPLOAD_FILE_SIZE_LIMIT", "1000"),
        ("TENANT_ID", api.project.as_str()),
        ("SERVER_HOST", "127.0.0.1"),
        ("STORAGE_FILE_BACKEND_PATH", folder.to_str().unwrap()),
    ] {
        assert_eq!(environment[name], value, "{name}");
    }
    let keys: Value = serde_json::from_str(&environment["JWT_JWKS"]).unwrap();
    let internal = |key: &Value| key["kid"] == "gantry" && key["kty"] == "oct";
    assert!(keys["keys"].as_array().unwrap().iter().any(internal));
    // It writes files with attributes there, and nowhere else.
    if host().launcher.sandbox {
        let own = folder.join("file");
        assert_eq!(api.attempt("write", own.to_str().unwrap()).await, 0);
        assert_eq!(api.attempt("attribute", own.to_str().unwrap()).await, 0);
        let other = folder.with_file_name("file");
        assert_eq!(
            api.attempt("write", other.to_str().unwrap()).await,
            libc::EACCES
        );
        let uid = fs::metadata(&own).unwrap().uid();
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        assert_eq!(is_root(), uid != 0);
        // A change of settings replaces the process and keeps the files.
        let pid = api.pid();
        api.patch(json!({"fileSizeLimit": 2000}), 200).await;
        assert_ne!(api.pid(), pid);
        assert_eq!(api.variable("UPLOAD_FILE_SIZE_LIMIT").await, "2000");
        assert!(own.exists());
    }
    assert_eq!(api.health().await["status"], "ACTIVE_HEALTHY", "running");
    api.stop().await;
}

#[tokio::test]
async fn files_of_storage_are_removed_with_their_project_only() {
    let api = ArchiveApi::of(Service::Storage).await;
    assert_eq!(api.get("/status").await.status, 200);
    let context = &api.gate.node.app;
    let folder = context.home.storage().join(api.project.as_str());
    let foreign = context.home.storage().join("z".repeat(20));
    fs::create_dir(&foreign).unwrap();
    services::sweep::remove_unused(context).await;
    assert!(folder.exists() && foreign.exists());
    let path = format!("/v1/projects/{}", api.project);
    let call = api.gate.node.delete(&path).as_(&api.gate.app.owner);
    call.send().await.expect(200);
    let sql = "select 1 from projects where ref = $1 and status = 'REMOVED'";
    until(async || {
        let found = context.db.query(sql, &[&api.project.as_str()]).await;
        found.is_ok_and(|rows| rows.len() == 1)
    })
    .await;
    services::sweep::remove_unused(context).await;
    // No row says that the other folder's project was removed.
    assert!(!folder.exists() && foreign.exists());
    api.stop().await;
}

#[tokio::test]
async fn realtime_is_prepared_registered_and_changed_without_a_restart() {
    let api = ArchiveApi::of(Service::Realtime).await;
    api.patch(json!({"max_concurrent_users": 7}), 204).await;
    // Paths of sockets are below another one than those of the API.
    let answer = api.get("/api/tenant").await;
    assert_eq!(answer.status, 200, "{answer:?}: {}", api.health().await);
    let sent = String::from_utf8(answer.body.to_vec()).unwrap();
    let (head, body) = sent.split_once("\r\n\r\n").unwrap();
    let path = format!("PUT /api/tenants/{} ", api.project);
    assert!(head.starts_with(&path), "{head}");
    assert!(head.contains("authorization: Bearer ey"), "{head}");
    let tenant: Value = serde_json::from_str(body).unwrap();
    let tenant = &tenant["tenant"];
    assert_eq!(tenant["max_concurrent_users"], 7);
    let database = &tenant["extensions"][0]["settings"];
    assert_eq!(database["db_user"], "gantry_realtime");
    let pid = api.pid();
    api.patch(json!({"max_concurrent_users": 8}), 204).await;
    let sent = api.get("/api/tenant").await;
    let sent = String::from_utf8(sent.body.to_vec()).unwrap();
    assert!(
        sent.ends_with("{\"tenant\":{\"max_concurrent_users\":8,\"presence_enabled\":true}}"),
        "{sent}"
    );
    api.post("/config/realtime/shutdown", 204).await;
    let sent = api.get("/api/tenant").await;
    let sent = String::from_utf8(sent.body.to_vec()).unwrap();
    assert!(
        sent.starts_with(&format!("POST /api/tenants/{}/shutdown ", api.project)),
        "{sent}"
    );
    assert_eq!(api.pid(), pid, "the process remains");
    assert_eq!(api.health().await["status"], "ACTIVE_HEALTHY");
    api.stop().await;
}

#[tokio::test]
async fn realtime_reaches_its_database_by_a_port_of_its_account() {
    let api = ArchiveApi::of(Service::Realtime).await;
    let environment: BTreeMap<String, String> = {
        let answer = api.get("/api/environment").await;
        assert_eq!(answer.status, 200, "{answer:?}: {}", api.health().await);
        let text = String::from_utf8(answer.body.to_vec()).unwrap();
        let pairs = text.lines().filter_map(|line| line.split_once('='));
        pairs
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    };
    let (port, password) = (&environment["DB_PORT"], &environment["DB_PASSWORD"]);
    let answer = api.get(&format!("/api/try/reach?{port}")).await;
    assert_eq!(answer.body.as_ref(), b"0", "the program reaches it");
    let text = format!(
        "host=127.0.0.1 port={port} user=gantry_realtime dbname=postgres password={password}"
    );
    let connected = tokio_postgres::connect(&text, tokio_postgres::NoTls).await;
    if is_root() {
        assert!(connected.is_err(), "another account does not");
    }
    // The role has a schema of its own, and may replicate.
    let driver = &api.gate.node.app.driver;
    let admin = driver.admin_session(&api.project).await.unwrap();
    let sql = "select rolreplication, rolsuper, to_regnamespace('_realtime') is not null \
               from pg_roles where rolname = 'gantry_realtime'";
    let row = admin.query_one(sql, &[]).await.unwrap();
    let found: (bool, bool, bool) = (row.get(0), row.get(1), row.get(2));
    assert_eq!(found, (true, false, true));
    drop(admin);
    api.stop().await;
}

/// Starts the programs in `GANTRY_SERVICES_DIR`, for `just kits`. Elsewhere it counts what it
/// skipped.
#[tokio::test]
async fn archives_of_the_operator_start() {
    let wanted = [
        (Service::Auth, &["/health", "/settings"][..]),
        (Service::Storage, &["/status", "/bucket"]),
        (Service::Realtime, &["/api/ping"]),
    ];
    let folder = env::var_os("GANTRY_SERVICES_DIR").map(PathBuf::from);
    let shelf = KitShelf::new(folder.clone(), PathBuf::from("/nonexistent"));
    let mut skipped = 0;
    for (service, paths) in wanted {
        let found = shelf.find(service);
        let Some(kits) = folder.clone().filter(|_| matches!(found, Ok(Some(_)))) else {
            note_skipped(&format!("{service}: {:?}", found.err()));
            skipped += 1;
            continue;
        };
        let (app, machine) = (TestApp::new().await, Arc::new(Machine::new().await));
        let api = ArchiveApi::with(app, &machine, kits, service).await;
        for path in paths {
            let answer = api.get(path).await;
            let health = api.health().await;
            assert_eq!(answer.status, 200, "{service} {path}: {answer:?}: {health}");
        }
        api.gate
            .node
            .until(&api.project, Status::ActiveHealthy)
            .await;
        api.stop().await;
    }
    note_skipped(&format!("{skipped} of {} archives", wanted.len()));
}
