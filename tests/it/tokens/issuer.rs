//! A local issuer of tokens with metadata and keys. Its tokens can also be forged.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use aws_lc_rs::{
    rand::SystemRandom,
    rsa::KeySize,
    signature::{
        ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair,
    },
};
use axum::{Router, body::Body, extract::State, response::Response, routing::get};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD as B64};
use serde_json::{Value, json};

use crate::support::dawn;

/// An issuer. Its first key has the id `1`.
pub(super) struct TestIssuer {
    pub(super) url: String,
    key: EcdsaKeyPair,
    published: Mutex<Vec<Value>>,
    /// Number of requests for the keys.
    reads: AtomicUsize,
}

impl TestIssuer {
    pub(super) async fn start() -> Arc<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let key = key();
        let issuer = Arc::new(Self {
            url,
            published: Mutex::new(vec![jwk(&key, "1")]),
            key,
            reads: AtomicUsize::new(0),
        });
        let router = Router::new()
            .route(
                "/.well-known/openid-configuration",
                get(async |issuer| Self::metadata(issuer)),
            )
            .route("/keys", get(async |issuer| Self::keys(issuer)))
            .with_state(issuer.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        issuer
    }

    fn metadata(State(issuer): State<Arc<Self>>) -> Response {
        let keys = format!("{}/keys", issuer.url);
        response(&json!({"issuer": issuer.url, "jwks_uri": keys}))
    }

    fn keys(State(issuer): State<Arc<Self>>) -> Response {
        issuer.reads.fetch_add(1, Relaxed);
        response(&json!({"keys": *issuer.published.lock().unwrap()}))
    }

    /// Publishes another key.
    pub(super) fn publish(&self, jwk: Value) {
        self.published.lock().unwrap().push(jwk);
    }

    pub(super) fn reads(&self) -> usize {
        self.reads.load(Relaxed)
    }

    /// Returns the public part of the first key.
    pub(super) fn jwk(&self) -> Value {
        jwk(&self.key, "1")
    }

    /// Returns claims that are valid for five minutes.
    pub(super) fn claims(&self) -> Value {
        let now = dawn().timestamp();
        json!({
            "iss": self.url, "aud": "gantry", "sub": "repo:acme/app:ref:refs/heads/main",
            "ref": "refs/heads/main", "iat": now, "nbf": now, "exp": now + 300,
        })
    }

    /// Returns a token of the first key.
    pub(super) fn sign(&self, claims: &Value) -> String {
        self.sign_with_header(&json!({"alg": "ES256", "kid": "1"}), claims)
    }

    /// Returns a token of the first key with any header.
    pub(super) fn sign_with_header(&self, header: &Value, claims: &Value) -> String {
        sign(&self.key, header, claims)
    }
}

pub(super) fn key() -> EcdsaKeyPair {
    EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap()
}

pub(super) fn jwk(key: &EcdsaKeyPair, kid: &str) -> Value {
    let point = key.public_key().as_ref();
    let [x, y] = [&point[1..33], &point[33..]].map(|part| B64.encode(part));
    json!({"kty": "EC", "crv": "P-256", "use": "sig", "kid": kid, "x": x, "y": y})
}

/// Returns the part of a token that is signed.
pub(super) fn unsigned(header: &Value, claims: &Value) -> String {
    [header, claims]
        .map(|part| B64.encode(part.to_string()))
        .join(".")
}

pub(super) fn sign(key: &EcdsaKeyPair, header: &Value, claims: &Value) -> String {
    let text = unsigned(header, claims);
    let signature = key.sign(&SystemRandom::new(), text.as_bytes()).unwrap();
    format!("{text}.{}", B64.encode(signature.as_ref()))
}

/// Returns the public part of a new RSA key, and a token that it has signed.
pub(super) fn rsa(kid: &str, claims: &Value) -> (Value, String) {
    let key = RsaKeyPair::generate(KeySize::Rsa2048).unwrap();
    // A sequence of the modulus of 256 bytes, with a leading zero, and the exponent (RFC 8017).
    let der = key.public_key().as_ref();
    let [n, e] = [&der[9..265], &der[267..270]].map(|part| B64.encode(part));
    let text = unsigned(&json!({"alg": "RS256", "kid": kid}), claims);
    let mut signature = vec![0; key.public_modulus_len()];
    let random = SystemRandom::new();
    key.sign(&RSA_PKCS1_SHA256, &random, text.as_bytes(), &mut signature)
        .unwrap();
    let jwk = json!({"kty": "RSA", "use": "sig", "kid": kid, "n": n, "e": e});
    (jwk, format!("{text}.{}", B64.encode(signature)))
}

fn response(body: &Value) -> Response {
    let response = Response::builder().header("content-type", "application/json");
    response.body(Body::from(body.to_string())).unwrap()
}
