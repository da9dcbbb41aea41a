//! Tokens of other sign-in services at the Data API: their keys are discovered, refreshed, and
//! refused after the removal.

use std::sync::Arc;

use gantry::control::third_party_auth;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    task::JoinSet,
};

use super::{
    keys::{EcKey, manage},
    postgrest::DataApi,
};
use crate::support::TestApp;

const PATH: &str = "/config/auth/third-party-auth";

/// A sign-in service with metadata and one key. Anything else is not found.
struct Issuer {
    url: String,
    keys: Arc<Mutex<Value>>,
    _task: JoinSet<()>,
}

impl Issuer {
    async fn new(key: &EcKey) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let keys = Arc::new(Mutex::new(key.key_set()));
        let (base, served) = (url.clone(), keys.clone());
        let mut task = JoinSet::new();
        task.spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let mut bytes = [0; 1024];
                    match stream.read(&mut bytes).await {
                        Ok(count) if count > 0 => head.extend(&bytes[..count]),
                        _ => break,
                    }
                }
                let head = String::from_utf8_lossy(&head).into_owned();
                let (status, body) = match head.split(' ').nth(1).unwrap_or_default() {
                    "/.well-known/openid-configuration" => {
                        let keys = format!("{base}/keys");
                        let text = json!({"issuer": base, "jwks_uri": keys}).to_string();
                        ("200 OK", text)
                    }
                    "/keys" => ("200 OK", served.lock().to_string()),
                    "/large" => ("200 OK", "x".repeat(70_000)),
                    "/moved" => ("302 Found\r\nLocation: /keys", String::new()),
                    _ => ("404 Not Found", String::new()),
                };
                let length = body.len();
                let answer = format!(
                    "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
                );
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        Self {
            url,
            keys,
            _task: task,
        }
    }
}

impl EcKey {
    fn key_set(&self) -> Value {
        let mut key = self.public.clone();
        key["kid"] = json!(self.id);
        json!({"keys": [key]})
    }
}

#[tokio::test]
async fn tokens_of_an_issuer_are_accepted_until_its_removal_also_after_it_changed_its_keys() {
    let api = DataApi::new().await;
    let [first, second, custom] = [EcKey::new(), EcKey::new(), EcKey::new()];
    let issuer = Issuer::new(&first).await;
    let of = |key: &EcKey| format!("Bearer {}", key.token("u1"));
    let status = async |key: &EcKey| {
        let token = of(key);
        let headers = [("authorization", &*token)];
        api.get("/rest/v1/todos", &headers).await.status
    };
    assert_eq!(status(&first).await, 401);
    let body = json!({"oidc_issuer_url": issuer.url});
    let made = manage(&api, "POST", PATH, Some(body)).await;
    assert_eq!(made["resolved_jwks"]["keys"][0]["kid"], json!(first.id));
    assert_eq!(api.tasks(&[("authorization", &of(&first))]).await, ["mine"]);
    let body = json!({"custom_jwks": custom.key_set()});
    manage(&api, "POST", PATH, Some(body)).await;
    assert_eq!(status(&custom).await, 200);
    // Public keys of others are not the project's.
    let public = api.get("/auth/v1/.well-known/jwks.json", &[]).await.json();
    assert_eq!(public["keys"].as_array().unwrap().len(), 1);
    for other in [&first, &custom] {
        assert_ne!(public["keys"][0]["kid"], json!(other.id));
    }

    *issuer.keys.lock() = second.key_set();
    let app = &api.gate.node.app;
    third_party_auth::refresh(app).await.unwrap();
    assert_eq!(
        status(&second).await,
        401,
        "keys are read again after a time"
    );
    let sql =
        "update third_party_auth set checked_at = checked_at - interval '11 minutes' returning 1";
    app.db.query(sql, &[]).await.unwrap();
    third_party_auth::refresh(app).await.unwrap();
    while status(&second).await != 200 {
        tokio::task::yield_now().await;
    }
    assert_eq!(status(&first).await, 401);
    // An issuer that does not answer keeps its keys.
    *issuer.keys.lock() = json!("nonsense");
    app.db.query(sql, &[]).await.unwrap();
    third_party_auth::refresh(app).await.unwrap();
    assert_eq!(status(&second).await, 200);

    let one = format!("{PATH}/{}", made["id"].as_str().unwrap());
    manage(&api, "DELETE", &one, None).await;
    assert_eq!(status(&second).await, 401);
    assert_eq!(status(&custom).await, 200);
    api.stop().await;
}

#[tokio::test]
async fn unusable_sources_of_keys_are_rejected_with_the_reason() {
    let app = TestApp::new().await;
    let key = EcKey::new();
    let issuer = Issuer::new(&key).await;
    let url = |path: &str| json!({"jwks_url": format!("{}{path}", issuer.url)});
    let mut private = key.key_set();
    private["keys"][0]["d"] = json!("c2VjcmV0");
    for (body, message) in [
        (
            json!({}),
            "Set exactly one of oidc_issuer_url, jwks_url and custom_jwks",
        ),
        (
            json!({"jwks_url": "https://a.example", "custom_jwks": {}}),
            "Set exactly one of oidc_issuer_url, jwks_url and custom_jwks",
        ),
        (
            json!({"oidc_issuer_url": "https://169.254.169.254/latest"}),
            "oidc_issuer_url: 169.254.169.254 is not a public address of another machine, and the operator does not permit it",
        ),
        (
            json!({"jwks_url": "http://keys.example.com/"}),
            "jwks_url: must be an https URL without user, password and fragment",
        ),
        (
            json!({"oidc_issuer_url": format!("{}/other", issuer.url)}),
            "oidc_issuer_url: the server answered 404 Not Found; redirects are not followed",
        ),
        (url("/large"), "jwks_url: the response is over 64 KiB"),
        (
            url("/moved"),
            "jwks_url: the server answered 302 Found; redirects are not followed",
        ),
        (
            json!({"custom_jwks": private}),
            "custom_jwks: has a private key; publish public keys only",
        ),
        (
            json!({"custom_jwks": {"keys": []}}),
            "custom_jwks: has no public key for ES256 or RS256",
        ),
    ] {
        let call = app.post(&app.at(PATH)).as_(&app.owner).json(&body);
        let answer = call.send().await.expect(400).json();
        assert_eq!(answer["message"], message, "{body}");
    }
    let listed = app.get(&app.at(PATH)).as_(&app.owner).send().await;
    assert_eq!(listed.expect(200).json(), json!([]));
    let made = app.post(&app.at(PATH)).as_(&app.owner).json(&url("/keys"));
    let made = made.send().await.expect(201).json();
    assert_eq!(
        (&made["type"], &made["custom_jwks"]),
        (&json!("custom"), &Value::Null)
    );
    let one = app.at(&format!("{PATH}/{}", made["id"].as_str().unwrap()));
    let got = app.get(&one).as_(&app.owner).send().await.expect(200);
    assert_eq!(got.json(), made);
    app.delete(&one).as_(&app.owner).send().await.expect(200);
    app.get(&one).as_(&app.owner).send().await.expect(404);
    let bad = app.at(&format!("{PATH}/1"));
    app.get(&bad).as_(&app.owner).send().await.expect(400);
}
