//! The signing keys of a project: in the key set of PostgREST, and public at the edge.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use aws_lc_rs::{
    encoding::{AsBigEndian, EcPrivateKeyBin},
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use gantry_base::clock::Entropy;
use serde_json::{Value, json};
use uuid::Uuid;

use super::postgrest::DataApi;

const PATH: &str = "/auth/v1/.well-known/jwks.json";

/// A new ES256 key, its id, and its public part.
pub(super) struct EcKey {
    pub(super) id: Uuid,
    pair: EcdsaKeyPair,
    pub(super) public: Value,
}

impl EcKey {
    pub(super) fn new() -> Self {
        let random = SystemRandom::new();
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let document = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref()).unwrap();
        let point = pair.public_key().as_ref();
        let [x, y] = [&point[1..33], &point[33..]].map(|part| URL_SAFE_NO_PAD.encode(part));
        Self {
            id: Entropy::system().uuid(),
            public: json!({"kty": "EC", "crv": "P-256", "x": x, "y": y}),
            pair,
        }
    }

    pub(super) fn token(&self, sub: &str) -> String {
        let head = json!({"alg": "ES256", "typ": "JWT", "kid": self.id});
        let claims = json!({"role": "authenticated", "sub": sub, "exp": 4_000_000_000_u64});
        let signed = [head, claims]
            .map(|part| URL_SAFE_NO_PAD.encode(part.to_string()))
            .join(".");
        let random = SystemRandom::new();
        let signature = self.pair.sign(&random, signed.as_bytes()).unwrap();
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
    }
}

impl DataApi {
    async fn add_key(&self, key: &EcKey, state: &str) {
        let sql = "insert into signing_keys (id, project_id, algorithm, state, public_jwk, sealed, created_at, updated_at) \
                   values ($1, $2, 'ES256', $3, $4, '', now(), now())";
        let db = &self.gate.node.app.db;
        let id = self.id().await.0;
        db.query(sql, &[&key.id, &id, &state, &key.public])
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn tokens_of_trusted_signing_keys_are_accepted_and_their_public_keys_are_readable() {
    let api = DataApi::new().await;
    let answer = api.get(PATH, &[]).await;
    assert_eq!(answer.json()["keys"].as_array().unwrap().len(), 1);
    let sql = "update signing_keys set state = 'revoked' where state = 'in_use'";
    api.gate.node.app.db.query(sql, &[]).await.unwrap();
    let keys: Vec<EcKey> = (0..4).map(|_| EcKey::new()).collect();
    let states = ["standby", "in_use", "previously_used", "revoked"];
    for (key, state) in keys.iter().zip(states) {
        api.add_key(key, state).await;
    }
    let mut answer = api.get(PATH, &[]).await;
    while answer.json()["keys"].as_array().unwrap().len() != 3 {
        tokio::task::yield_now().await;
        answer = api.get(PATH, &[]).await;
    }
    assert!(answer.head.contains("cache-control: public, max-age=600"));
    let public = answer.json()["keys"][0].clone();
    assert_eq!(
        (&public["alg"], &public["x"]),
        (&json!("ES256"), &keys[0].public["x"])
    );
    for (key, state) in keys.iter().zip(states) {
        let token = format!("Bearer {}", key.token("u1"));
        let headers = [("authorization", &*token)];
        if state == "revoked" {
            let answer = api.get("/rest/v1/todos", &headers).await;
            assert_eq!(answer.status, 401, "{answer:?}");
        } else {
            assert_eq!(api.tasks(&headers).await, ["mine"], "{state}");
        }
    }
    // Other addresses of the service are not answered.
    assert_eq!(api.get("/auth/v1/health", &[]).await.status, 503);
    api.stop().await;
}

/// Sends an operation on signing keys.
pub(super) async fn manage(api: &DataApi, method: &str, path: &str, body: Option<Value>) -> Value {
    let path = format!("/v1/projects/{}{path}", api.project);
    let mut call = api
        .gate
        .node
        .request(method, &path)
        .as_(&api.gate.app.owner);
    if let Some(body) = body {
        call = call.json(&body);
    }
    let answer = call.send().await;
    assert!(answer.status.is_success(), "{path}: {answer:?}");
    answer.json()
}

#[tokio::test]
async fn rotation_refuses_no_valid_token_and_revocation_takes_effect_at_once() {
    const KEYS: &str = "/config/auth/signing-keys";
    let api = DataApi::new().await;
    let import = async |key: &EcKey| {
        let (x, y) = (&key.public["x"], &key.public["y"]);
        let private = key.pair.private_key();
        let d: EcPrivateKeyBin<'_> = private.as_be_bytes().unwrap();
        let d = URL_SAFE_NO_PAD.encode(d.as_ref());
        let jwk = json!({"kty": "EC", "crv": "P-256", "x": x, "y": y, "d": d, "kid": key.id});
        let body = json!({"algorithm": "ES256", "private_jwk": jwk});
        manage(&api, "POST", KEYS, Some(body)).await;
    };
    let [old, new] = [EcKey::new(), EcKey::new()];
    let id = |key: &EcKey| format!("{KEYS}/{}", key.id);
    let in_use = json!({"status": "in_use"});
    import(&old).await;
    manage(&api, "PATCH", &id(&old), Some(in_use.clone())).await;
    let of = |key: &EcKey| format!("Bearer {}", key.token("u1"));
    let (of_old, of_new) = (of(&old), of(&new));
    assert_eq!(api.tasks(&[("authorization", &of_old)]).await, ["mine"]);
    // Requests with tokens of both keys go on during the rotation.
    let is_over = AtomicBool::new(false);
    let is_standby = AtomicBool::new(false);
    let count = AtomicU32::new(0);
    let requests = async {
        while !is_over.load(Relaxed) {
            assert_eq!(api.tasks(&[("authorization", &of_old)]).await, ["mine"]);
            if is_standby.load(Relaxed) {
                assert_eq!(api.tasks(&[("authorization", &of_new)]).await, ["mine"]);
            }
            count.fetch_add(1, Relaxed);
        }
    };
    let until_more = async |more: u32| {
        let before = count.load(Relaxed);
        while count.load(Relaxed) < before + more {
            tokio::task::yield_now().await;
        }
    };
    let rotation = async {
        until_more(3).await;
        import(&new).await;
        // A token of the new key is valid as soon as its creation is answered.
        is_standby.store(true, Relaxed);
        until_more(3).await;
        manage(&api, "PATCH", &id(&new), Some(in_use.clone())).await;
        until_more(3).await;
        let standby = json!({"status": "standby"});
        manage(&api, "PATCH", &id(&old), Some(standby)).await;
        manage(&api, "PATCH", &id(&old), Some(in_use.clone())).await;
        until_more(3).await;
        is_over.store(true, Relaxed);
    };
    tokio::join!(requests, rotation);
    let public = api.get(PATH, &[]).await.json();
    // Both, and that of the new project.
    assert_eq!(public["keys"].as_array().unwrap().len(), 3);
    let revoked = json!({"status": "revoked"});
    manage(&api, "PATCH", &id(&new), Some(revoked)).await;
    let answer = api
        .get("/rest/v1/todos", &[("authorization", &of_new)])
        .await;
    assert_eq!(answer.status, 401, "{answer:?}");
    assert_eq!(api.tasks(&[("authorization", &of_old)]).await, ["mine"]);
    let public = api.get(PATH, &[]).await.json();
    assert_eq!(public["keys"].as_array().unwrap().len(), 2);
    api.stop().await;
}

#[tokio::test]
async fn users_tokens_of_the_legacy_secret_outlive_its_api_keys() {
    let api = DataApi::new().await;
    let path = format!("/v1/projects/{}/postgrest", api.project);
    let call = api.gate.node.get(&path).as_(&api.gate.app.owner);
    let config = call.send().await.expect(200).json();
    let token = super::postgrest::user_token(config["jwt_secret"].as_str().unwrap(), "u1");
    let user = format!("Bearer {token}");
    let service_role = format!("Bearer {}", api.service_role);
    let legacy = manage(&api, "GET", "/config/auth/signing-keys/legacy", None).await;
    assert_eq!(
        api.tasks(&[("authorization", &service_role)]).await.len(),
        3
    );
    manage(&api, "PUT", "/api-keys/legacy?enabled=false", None).await;
    assert_eq!(api.tasks(&[("authorization", &user)]).await, ["mine"]);
    // The last character of a signature has unused bits: another text, and the same signature.
    let (rest, last) = service_role.split_at(service_role.len() - 1);
    let alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let next = alphabet.find(last).unwrap() + 1;
    let other = format!("{rest}{}", &alphabet[next..=next]);
    for headers in [
        vec![("authorization", &*service_role)],
        vec![("authorization", &*other)],
        vec![("apikey", &service_role["Bearer ".len()..])],
        vec![
            ("apikey", &*api.publishable),
            ("authorization", &*service_role),
        ],
    ] {
        let answer = api.get("/rest/v1/todos", &headers).await;
        assert_eq!(answer.status, 401, "{headers:?}: {answer:?}");
    }
    let path = format!(
        "/config/auth/signing-keys/{}",
        legacy["id"].as_str().unwrap()
    );
    manage(&api, "PATCH", &path, Some(json!({"status": "revoked"}))).await;
    let answer = api.get("/rest/v1/todos", &[("authorization", &user)]).await;
    assert_eq!(answer.status, 401, "{answer:?}");
    api.stop().await;
}
