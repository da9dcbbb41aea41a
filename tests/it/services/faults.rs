//! Faults of the database under a running Data API, and of its files.

use std::fs;

use gantry::control::projects::Status;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::{postgrest::DataApi, until};
use crate::support::machine::{PATIENCE, SuperuserClients as _, kill};

impl DataApi {
    async fn admin(&self, sql: &str) {
        let driver = &self.gate.node.app.driver;
        let admin = driver.admin_session(&self.project).await.unwrap();
        admin.batch_execute(sql).await.unwrap();
    }

    /// Ends the instance, and waits until this was noticed.
    async fn kill_instance(&self) {
        let id = self.id().await;
        let pid = self.pid(id).unwrap();
        kill(Pid::from_raw(pid).unwrap()).await;
        until(async || self.pid(id) != Some(pid)).await;
    }

    /// Sends requests until one succeeds. All others say that the service is away.
    async fn served(&self) {
        let key = [("apikey", &*self.publishable)];
        let served = async {
            loop {
                let answer = self.get("/rest/v1/todos?select=task", &key).await;
                match answer.status {
                    200 => {
                        assert_eq!(answer.json(), json!([{"task": "open"}]));
                        return;
                    }
                    // PostgREST reports the end of a session in use as an error without code.
                    400 => assert_eq!(answer.json()["code"], "", "{answer:?}"),
                    status => assert!([502, 503].contains(&status), "{answer:?}"),
                }
            }
        };
        tokio::time::timeout(PATIENCE, served).await.unwrap();
    }
}

#[tokio::test]
async fn killed_and_restarted_databases_are_served_again() {
    let api = DataApi::new().await;
    api.served().await;
    let pid = api.gate.node.machine.pid(&api.project).await;
    kill_process(pid, Signal::KILL).unwrap();
    api.served().await;
    let path = format!("/v1/projects/{}/restart", api.project);
    let restart = api.gate.node.post(&path).as_(&api.gate.app.owner);
    restart.send().await.expect(200);
    api.gate
        .node
        .until(&api.project, Status::ActiveHealthy)
        .await;
    api.served().await;
    api.stop().await;
}

#[tokio::test]
async fn missing_login_role_is_reported() {
    let api = DataApi::new().await;
    api.served().await;
    api.admin("drop owned by authenticator; alter role authenticator rename to lost")
        .await;
    api.kill_instance().await;
    let key = [("apikey", &*api.publishable)];
    let refused = async || {
        let answer = api.get("/rest/v1/todos", &key).await;
        answer.status == 503
            && answer.json()["message"]
                .to_string()
                .contains("authenticator")
    };
    until(refused).await;
    let health = api.health().await;
    assert_eq!(health["status"], "UNHEALTHY", "{health}");
    assert!(
        health["error"].to_string().contains("authenticator"),
        "{health}"
    );
    api.admin("alter role lost rename to authenticator").await;
    api.served().await;
    api.stop().await;
}

#[tokio::test]
async fn revoked_membership_gives_no_data() {
    let api = DataApi::new().await;
    api.served().await;
    api.admin("revoke anon from authenticator").await;
    let key = [("apikey", &*api.publishable)];
    let answer = api.get("/rest/v1/todos", &key).await;
    assert!([401, 403].contains(&answer.status), "{answer:?}");
    api.stop().await;
}

#[tokio::test]
async fn deleted_key_gives_no_data_while_requests_run() {
    let api = DataApi::new().await;
    api.served().await;
    let keys = format!("/v1/projects/{}/api-keys", api.project);
    let listed = api.gate.node.get(&keys).as_(&api.gate.app.owner);
    let listed = listed.send().await.expect(200).json();
    let all = listed.as_array().unwrap();
    let secret = all.iter().find(|key| key["type"] == "secret").unwrap();
    let path = format!("{keys}/{}", secret["id"].as_str().unwrap());
    let is_deleted = std::sync::atomic::AtomicBool::new(false);
    let ordering = std::sync::atomic::Ordering::SeqCst;
    let requests = async {
        let mut after = 0;
        while after < 5 {
            let was_deleted = is_deleted.load(ordering);
            let answer = api.get("/rest/v1/todos", &[("apikey", &api.secret)]).await;
            if was_deleted {
                after += 1;
                assert_eq!(answer.status, 401, "{answer:?}");
            }
        }
    };
    let delete = async {
        let call = api.gate.node.delete(&path).as_(&api.gate.app.owner);
        call.send().await.expect(200);
        is_deleted.store(true, ordering);
    };
    tokio::join!(requests, requests_of(&api, &is_deleted), delete);
    api.stop().await;
}

/// Sends requests with another key until the key is deleted: all succeed.
async fn requests_of(api: &DataApi, is_deleted: &std::sync::atomic::AtomicBool) {
    while !is_deleted.load(std::sync::atomic::Ordering::SeqCst) {
        api.tasks(&[("apikey", &api.publishable)]).await;
    }
}

#[tokio::test]
async fn key_set_that_cannot_be_written_is_not_replaced() {
    let api = DataApi::new().await;
    api.served().await;
    let id = api.id().await;
    let pid = api.pid(id);
    // As on a full disk.
    let unfinished = api.folder().with_file_name("jwks.json.new");
    fs::create_dir(&unfinished).unwrap();
    let before = fs::read(api.folder().join("jwks.json")).unwrap();
    let path = format!("/v1/projects/{}/config/auth/signing-keys", api.project);
    let call = api.gate.node.post(&path).as_(&api.gate.app.owner);
    let created = call.json(&json!({"algorithm": "ES256"})).send().await;
    created.expect(201);
    let key = [("apikey", &*api.publishable)];
    assert_eq!(api.get("/rest/v1/todos", &key).await.status, 503);
    assert_eq!(fs::read(api.folder().join("jwks.json")).unwrap(), before);
    fs::remove_dir(&unfinished).unwrap();
    api.served().await;
    assert_eq!(api.pid(id), pid);
    api.stop().await;
}
