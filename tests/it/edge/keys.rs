//! API key checks.

use gantry::control::operator_settings;
use gantry::{platform::tables::Table, proxy::service_proxy};
use serde_json::{Value, json};

use super::{Answer, Gate};

impl Gate {
    async fn checking_keys() -> Self {
        Self::with(
            |_| None,
            service_proxy::Options {
                check_keys: true,
                ..service_proxy::Options::default()
            },
        )
        .await
    }

    async fn send(&self, path: &str, headers: &str) -> Answer {
        let mut client = self.client().await;
        client
            .send(&format!(
                "GET {path} HTTP/1.1\r\nHost: {}\r\n{headers}\r\n",
                self.host()
            ))
            .await;
        client.answer().await
    }

    /// Returns the status of a request with this key.
    async fn with_key(&self, key: &str) -> u16 {
        self.send("/rest/v1/todos", &format!("apikey: {key}\r\n"))
            .await
            .status
    }

    /// Returns the project's keys in plain text.
    pub(super) async fn keys(&self, path: &str) -> Vec<Value> {
        let answer = self
            .node
            .get(&format!("{path}/api-keys?reveal=true"))
            .as_(&self.app.owner)
            .send()
            .await
            .expect(200);
        answer.json().as_array().unwrap().clone()
    }
}

fn key(keys: &[Value], field: &str, value: &str) -> String {
    keys.iter().find(|key| key[field] == value).unwrap()["api_key"]
        .as_str()
        .unwrap()
        .to_owned()
}

#[tokio::test]
async fn key_of_another_project_is_rejected() {
    let gate = Gate::checking_keys().await;
    let none = gate.get("/rest/v1/todos").await;
    assert_eq!(
        (none.status, none.json()),
        (401, json!({"message": "No API key found in request"}))
    );
    let keys = gate.keys(&gate.app.at("")).await;
    let publishable = key(&keys, "type", "publishable");
    let good = [
        publishable.clone(),
        key(&keys, "type", "secret"),
        key(&keys, "id", "anon"),
        key(&keys, "id", "service_role"),
    ];
    for key in &good {
        assert_eq!(gate.with_key(key).await, 200);
        assert_eq!(
            gate.send(&format!("/rest/v1/todos?apikey={key}"), "")
                .await
                .status,
            200
        );
        assert_eq!(
            gate.send(
                "/rest/v1/todos",
                &format!("Authorization: Bearer {key}\r\n")
            )
            .await
            .status,
            200
        );
    }
    // A user's token in addition to the key is validated by the service.
    let both = gate
        .send(
            "/rest/v1/todos",
            &format!("apikey: {publishable}\r\nAuthorization: Bearer user\r\n"),
        )
        .await;
    assert_eq!(
        (both.status, both.saw("authorization")),
        (200, Some("Bearer user".to_owned()))
    );

    let sibling = gate.app.stub(gate.app.home.id, "sibling").await;
    let theirs = key(
        &gate.keys(&format!("/v1/projects/{sibling}")).await,
        "type",
        "publishable",
    );
    let cut = &publishable[..publishable.len() - 1];
    for bad in [theirs.as_str(), cut, "x"] {
        let answer = gate
            .send("/rest/v1/todos", &format!("apikey: {bad}\r\n"))
            .await;
        assert_eq!(
            (answer.status, answer.message().as_str()),
            (401, "Invalid API key")
        );
    }
    assert_eq!(
        gate.send(
            "/rest/v1/todos",
            &format!("apikey: x\r\nAuthorization: Bearer {publishable}\r\n")
        )
        .await
        .status,
        401
    );
    for (path, status) in [
        ("/auth/v1/authorize?provider=x", 200),
        ("/auth/v1/callback", 200),
        ("/auth/v1/verify?token=x", 200),
        ("/auth/v1/.well-known/jwks.json", 200),
        ("/auth/v1/user", 401),
        ("/realtime/v1/websocket", 401),
        ("/storage/v1/object/public/a", 200),
    ] {
        assert_eq!(gate.get(path).await.status, status, "{path}");
    }
}

#[tokio::test]
async fn revoked_key_is_rejected() {
    let gate = Gate::checking_keys().await;
    let keys = gate.keys(&gate.app.at("")).await;
    let secret = key(&keys, "type", "secret");
    let anon = key(&keys, "id", "anon");
    assert_eq!(
        (gate.with_key(&secret).await, gate.with_key(&anon).await),
        (200, 200)
    );
    let id = keys.iter().find(|key| key["type"] == "secret").unwrap()["id"]
        .as_str()
        .unwrap();
    gate.node
        .delete(&gate.app.at(&format!("/api-keys/{id}")))
        .as_(&gate.app.owner)
        .send()
        .await
        .expect(200);
    assert_eq!(
        (gate.with_key(&secret).await, gate.with_key(&anon).await),
        (401, 200)
    );
    gate.node
        .request("PUT", &gate.app.at("/api-keys/legacy?enabled=false"))
        .as_(&gate.app.owner)
        .send()
        .await
        .expect(200);
    assert_eq!(gate.with_key(&anon).await, 401);
    let call = gate
        .node
        .post(&gate.app.at("/api-keys?reveal=true"))
        .as_(&gate.app.owner);
    let made = call
        .json(&json!({"type": "publishable", "name": "another"}))
        .send()
        .await
        .expect(201)
        .json();
    assert_eq!(
        gate.with_key(made["api_key"].as_str().unwrap()).await,
        200,
        "a new one is good at once"
    );
}

impl Gate {
    /// Sets the key check of the project, as `gantry key-check set` does on another node.
    pub(super) async fn set_key_check(&self, enabled: Option<bool>) {
        let audit = gantry::platform::audit::Recorder::operator(
            "test",
            &self.app.app.entropy,
            "gantry key-check set",
        );
        operator_settings::key_checks::set(
            &self.app.app.db,
            &self.project,
            enabled,
            &self.app.clock,
            audit,
        )
        .await
        .unwrap();
        self.node.app.table_changed(Table::ProjectKeyChecks);
    }
}

#[tokio::test]
async fn operator_sets_key_check_of_one_project() {
    for general in [false, true] {
        let options = service_proxy::Options {
            check_keys: general,
            ..service_proxy::Options::default()
        };
        let gate = Gate::with(|_| None, options).await;
        let sibling = gate.app.stub(gate.app.home.id, "sibling").await;
        gate.node.app.table_changed(Table::Projects);
        let host = format!("{sibling}.example.test");
        let by_default = if general { 401 } else { 200 };
        for (enabled, status) in [
            (None, by_default),
            (Some(true), 401),
            (Some(false), 200),
            (None, by_default),
        ] {
            gate.set_key_check(enabled).await;
            assert_eq!(
                gate.get("/rest/v1/todos").await.status,
                status,
                "{general} {enabled:?}, at the next request"
            );
            assert_eq!(
                gate.client_of(&host)
                    .await
                    .get(&host, "/rest/v1/todos")
                    .await
                    .status,
                by_default,
                "another project"
            );
        }
    }
}
