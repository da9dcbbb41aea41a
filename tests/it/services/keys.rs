//! The signing keys of a project: in the key set of PostgREST, and public at the edge.

use aws_lc_rs::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use gantry::base::clock::Entropy;
use serde_json::{Value, json};
use uuid::Uuid;

use super::postgrest::DataApi;

const PATH: &str = "/auth/v1/.well-known/jwks.json";

/// A new ES256 key, its id, and its public part.
struct EcKey {
    id: Uuid,
    pair: EcdsaKeyPair,
    public: Value,
}

impl EcKey {
    fn new() -> Self {
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

    fn token(&self, sub: &str) -> String {
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
    assert_eq!((answer.status, answer.json()), (200, json!({"keys": []})));
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
