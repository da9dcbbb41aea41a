//! Sign-in through an identity provider, against an OpenID Connect provider that can forge tokens.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use aws_lc_rs::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair},
};
use axum::{
    Router,
    body::Body,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::Response,
    routing::{get, post},
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD as B64};
use gantry::{
    api::accounts::{oidc, oidc::OidcOptions},
    app::Settings,
    platform::http::Transport,
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::browser::{Browser, BrowserResponse};
use crate::support::{Node, TestApp, dawn, machine::Machine, settings};

const CLIENT: (&str, &str) = ("gantry", "client-secret");
const UNTRUSTED: &str = "The response of the identity provider is invalid.";
const FOREIGN: &str = "This sign-in has expired or was started in another browser.";

/// The data of an authorization code.
struct Grant {
    challenge: String,
    back: String,
    token: String,
}

/// An OpenID Connect provider.
struct TestProvider {
    issuer: String,
    key: EcdsaKeyPair,
    grants: Mutex<HashMap<String, Grant>>,
}

fn key() -> EcdsaKeyPair {
    EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap()
}

impl TestProvider {
    async fn start() -> Arc<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let issuer = format!("http://{}", listener.local_addr().unwrap());
        let provider = Arc::new(Self {
            issuer,
            key: key(),
            grants: Mutex::default(),
        });
        let router = Router::new()
            .route(
                "/.well-known/openid-configuration",
                get(async |provider| Self::discover(provider)),
            )
            .route("/keys", get(async |provider| Self::keys(provider)))
            .route(
                "/token",
                post(async |provider, headers: HeaderMap, body: String| {
                    Self::token(provider, &headers, &body)
                }),
            )
            .with_state(provider.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        provider
    }

    fn discover(State(provider): State<Arc<Self>>) -> Response {
        let at = |path: &str| format!("{}{path}", provider.issuer);
        answer(
            200,
            &json!({
                "issuer": provider.issuer, "authorization_endpoint": at("/authorize"), "token_endpoint": at("/token"), "jwks_uri": at("/keys"),
                "response_types_supported": ["code"], "subject_types_supported": ["public"], "id_token_signing_alg_values_supported": ["ES256"],
            }),
        )
    }

    fn keys(State(provider): State<Arc<Self>>) -> Response {
        let point = provider.key.public_key().as_ref();
        let x = B64.encode(&point[1..33]);
        let y = B64.encode(&point[33..]);
        answer(
            200,
            &json!({"keys": [{"kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": "1", "x": x, "y": y}]}),
        )
    }

    /// Redeems a code once, for its client and with the verifier of its challenge.
    fn token(State(provider): State<Arc<Self>>, headers: &HeaderMap, body: &str) -> Response {
        let fields: HashMap<_, _> = form_urlencoded::parse(body.as_bytes())
            .into_owned()
            .collect();
        let basic =
            base64::engine::general_purpose::STANDARD.encode(format!("{}:{}", CLIENT.0, CLIENT.1));
        let grant = provider.grants.lock().unwrap().remove(&fields["code"]);
        let good = grant.filter(|grant| {
            let challenge = B64.encode(Sha256::digest(fields["code_verifier"].as_bytes()));
            challenge == grant.challenge
                && fields["redirect_uri"] == grant.back
                && headers["authorization"] == format!("Basic {basic}")
        });
        match good {
            Some(grant) => answer(
                200,
                &json!({"access_token": "unused", "token_type": "Bearer", "id_token": grant.token}),
            ),
            None => answer(400, &json!({"error": "invalid_grant"})),
        }
    }

    /// Returns valid claims for an authorization request.
    fn claims(&self, authorization: &AuthorizationRequest, subject: &str, email: &str) -> Value {
        let now = dawn().timestamp();
        json!({
            "iss": self.issuer, "aud": CLIENT.0, "sub": subject, "email": email, "email_verified": true,
            "iat": now, "exp": now + 300, "nonce": authorization.fields["nonce"],
        })
    }

    fn sign(&self, claims: &Value) -> String {
        signed(&self.key, claims)
    }

    /// Issues a code for an ID token and returns the callback path.
    fn grant(&self, authorization: &AuthorizationRequest, token: String) -> String {
        let mut code = [0; 16];
        aws_lc_rs::rand::fill(&mut code).unwrap();
        let code = hex::encode(code);
        let grant = Grant {
            challenge: authorization.fields["code_challenge"].clone(),
            back: authorization.fields["redirect_uri"].clone(),
            token,
        };
        self.grants.lock().unwrap().insert(code.clone(), grant);
        format!(
            "/sign-in/provider/return?code={code}&state={}",
            authorization.fields["state"]
        )
    }
}

fn answer(status: u16, body: &Value) -> Response {
    let response = Response::builder()
        .status(StatusCode::from_u16(status).unwrap())
        .header("content-type", "application/json");
    response.body(Body::from(body.to_string())).unwrap()
}

fn signed(key: &EcdsaKeyPair, claims: &Value) -> String {
    let text = format!(
        "{}.{}",
        B64.encode(r#"{"alg":"ES256","kid":"1"}"#),
        B64.encode(claims.to_string())
    );
    let signature = key.sign(&SystemRandom::new(), text.as_bytes()).unwrap();
    format!("{text}.{}", B64.encode(signature.as_ref()))
}

/// The authorization request to which a browser was redirected.
struct AuthorizationRequest {
    fields: HashMap<String, String>,
}

impl AuthorizationRequest {
    fn of(seen: &BrowserResponse, provider: &TestProvider) -> Self {
        let (page, query) = seen.header("location").unwrap().split_once('?').unwrap();
        assert_eq!(page, format!("{}/authorize", provider.issuer));
        let fields: HashMap<_, _> = form_urlencoded::parse(query.as_bytes())
            .into_owned()
            .collect();
        assert_eq!(
            (
                &*fields["client_id"],
                &*fields["response_type"],
                &*fields["code_challenge_method"]
            ),
            (CLIENT.0, "code", "S256")
        );
        assert_eq!(
            fields["redirect_uri"],
            "http://gantry.test/sign-in/provider/return"
        );
        assert_eq!(fields["scope"], "openid email");
        Self { fields }
    }
}

/// Returns a node with the provider configured.
fn node(app: &TestApp, provider: &TestProvider) -> Node {
    let provider = oidc::OidcProvider::new(OidcOptions {
        issuer: provider.issuer.clone(),
        client_id: CLIENT.0.to_owned(),
        client_secret: CLIENT.1.into(),
        name: Some("Example ID".to_owned()),
        domains: vec!["example.com".to_owned()],
    });
    let provider = Some(Arc::new(provider.unwrap()));
    app.another_with(
        Settings {
            provider,
            ..settings(Transport::default(), Uuid::from_u128(1))
        },
        Arc::new(Machine::bare()),
    )
}

async fn begin(browser: &mut Browser, provider: &TestProvider) -> AuthorizationRequest {
    AuthorizationRequest::of(
        &browser
            .get("/sign-in/provider?next=%2Faccount")
            .await
            .expect(303),
        provider,
    )
}

#[tokio::test]
async fn first_sign_in_matches_the_verified_email_later_ones_the_subject() {
    let app = TestApp::new().await;
    let provider = TestProvider::start().await;
    let mut browser = Browser::new(&node(&app, &provider));
    let link = "href=\"/sign-in/provider?next=%2Faccount%2Ftokens\"";
    browser
        .get("/sign-in?next=%2Faccount%2Ftokens")
        .await
        .expect(200)
        .says("Continue with Example ID")
        .says(link);
    let authorization = begin(&mut browser, &provider).await;
    let back = provider.grant(
        &authorization,
        provider.sign(&provider.claims(&authorization, "1001", "OLGA@example.com")),
    );
    browser.get(&back).await.leads_to("/account");
    browser
        .get("/account")
        .await
        .expect(200)
        .says("olga@example.com");
    assert_eq!(
        browser.cookies.keys().collect::<Vec<_>>(),
        ["gantry"],
        "the pending sign-in has ended"
    );
    browser.get(&back).await.expect(422).says(FOREIGN);

    // Later sign-ins ignore the email address of the subject.
    let mut later = Browser::new(&node(&app, &provider));
    let authorization = begin(&mut later, &provider).await;
    let mut claims = provider.claims(&authorization, "1001", "adam@example.com");
    claims["email_verified"] = json!(false);
    later
        .get(&provider.grant(&authorization, provider.sign(&claims)))
        .await
        .leads_to("/account");
    later
        .get("/account")
        .await
        .expect(200)
        .says("olga@example.com");

    let sql = "select operation, after from audit_entries where chain = $1 order by number";
    let rows = app
        .app
        .db
        .query(sql, &[&format!("account {}", app.owner.user)])
        .await
        .unwrap();
    let entries: Vec<(String, Option<String>)> =
        rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert!(
        entries
            .iter()
            .all(|(operation, _)| operation == "page-sign-in-oidc-return")
            && entries.len() == 3,
        "{entries:?}"
    );
    let linked: Value = serde_json::from_str(entries[0].1.as_deref().unwrap()).unwrap();
    assert_eq!(
        linked,
        json!({"issuer": provider.issuer, "subject": "1001"})
    );
}

#[tokio::test]
async fn unverified_or_unknown_email_is_rejected() {
    let app = TestApp::new().await;
    let provider = TestProvider::start().await;
    let node = node(&app, &provider);
    app.app
        .db
        .query(
            "update users set email = 'stan@elsewhere.example' where id = $1",
            &[&app.stranger.user.0],
        )
        .await
        .unwrap();
    let try_as = async |subject: &str, email: &str, verified: Value| {
        let mut browser = Browser::new(&node);
        let authorization = begin(&mut browser, &provider).await;
        let mut claims = provider.claims(&authorization, subject, email);
        claims["email_verified"] = verified;
        let seen = browser
            .get(&provider.grant(&authorization, provider.sign(&claims)))
            .await;
        assert_eq!(browser.cookies.contains_key("gantry"), seen.status == 303);
        seen
    };
    let unverified = "Your email address is not verified by the identity provider.";
    try_as("1", "olga@example.com", json!(false))
        .await
        .expect(422)
        .says(unverified);
    try_as("1", "olga@example.com", Value::Null)
        .await
        .expect(422)
        .says(unverified);
    let nobody = "No account uses this email address.";
    try_as("1", "eve@example.com", json!(true))
        .await
        .expect(422)
        .says(nobody);
    try_as("1", "stan@elsewhere.example", json!(true))
        .await
        .expect(422)
        .says(nobody);
    assert!(
        app.app
            .db
            .query("select from identities", &[])
            .await
            .unwrap()
            .is_empty()
    );
    try_as("1", "olga@example.com", json!(true))
        .await
        .expect(303);
    // Another subject with the same email address does not get the account.
    try_as("2", "olga@example.com", json!(true))
        .await
        .expect(422)
        .says(nobody);
}

#[tokio::test]
async fn invalid_id_token_is_rejected() {
    let app = TestApp::new().await;
    let provider = TestProvider::start().await;
    let node = node(&app, &provider);
    let now = dawn().timestamp();
    let lies: [(&str, &str, Value); 7] = [
        ("another sign-in's", "nonce", json!("0".repeat(64))),
        ("no sign-in's", "nonce", Value::Null),
        ("for another client", "aud", json!("other")),
        (
            "for another client as well",
            "aud",
            json!([CLIENT.0, "other"]),
        ),
        ("another issuer's", "iss", json!("http://127.0.0.1:1")),
        ("expired", "exp", json!(now - 1)),
        ("of nobody", "sub", Value::Null),
    ];
    for (lie, field, value) in lies {
        let mut browser = Browser::new(&node);
        let authorization = begin(&mut browser, &provider).await;
        let mut claims = provider.claims(&authorization, "1001", "olga@example.com");
        claims[field] = value;
        let seen = browser
            .get(&provider.grant(&authorization, provider.sign(&claims)))
            .await;
        assert!(
            seen.status == 422 && seen.html.contains(UNTRUSTED) && browser.cookies.is_empty(),
            "{lie}: {} {}",
            seen.status,
            seen.html
        );
    }
    let forgeries: [fn(&TestProvider, &Value) -> String; 4] = [
        |_, claims| {
            format!(
                "{}.{}.",
                B64.encode(r#"{"alg":"none"}"#),
                B64.encode(claims.to_string())
            )
        },
        |_, claims| signed(&key(), claims),
        |provider, claims| {
            let mut altered = claims.clone();
            altered["sub"] = json!("1002");
            let token = provider.sign(claims);
            let parts: Vec<_> = token.split('.').collect();
            format!(
                "{}.{}.{}",
                parts[0],
                B64.encode(altered.to_string()),
                parts[2]
            )
        },
        |_, _| "nonsense".to_owned(),
    ];
    for forge in forgeries {
        let mut browser = Browser::new(&node);
        let authorization = begin(&mut browser, &provider).await;
        let token = forge(
            &provider,
            &provider.claims(&authorization, "1001", "olga@example.com"),
        );
        browser
            .get(&provider.grant(&authorization, token))
            .await
            .expect(422)
            .says(UNTRUSTED);
        assert!(browser.cookies.is_empty());
    }
    assert!(
        app.app
            .db
            .query("select from identities", &[])
            .await
            .unwrap()
            .is_empty()
    );
}

#[tokio::test]
async fn callback_in_another_browser_is_rejected() {
    let app = TestApp::new().await;
    let provider = TestProvider::start().await;
    let node = node(&app, &provider);
    let mut browser = Browser::new(&node);
    let mut other = Browser::new(&node);
    let authorization = begin(&mut browser, &provider).await;
    let back = provider.grant(
        &authorization,
        provider.sign(&provider.claims(&authorization, "1001", "olga@example.com")),
    );
    // The callback is rejected in a browser without a pending sign-in and in one with another.
    other.get(&back).await.expect(422).says(FOREIGN);
    begin(&mut other, &provider).await;
    other.get(&back).await.expect(422).says(FOREIGN);
    assert!(other.cookies.is_empty());
    browser
        .get("/sign-in/provider/return")
        .await
        .expect(422)
        .says(FOREIGN);
    let authorization = begin(&mut browser, &provider).await;
    let denied = format!(
        "/sign-in/provider/return?error=access_denied&state={}",
        authorization.fields["state"]
    );
    browser
        .get(&denied)
        .await
        .expect(422)
        .says("The sign-in was cancelled at the identity provider.");
    // A code of another sign-in is rejected: its code verifier differs.
    let other_request = begin(&mut other, &provider).await;
    let stolen = provider.grant(
        &other_request,
        provider.sign(&provider.claims(&other_request, "1001", "olga@example.com")),
    );
    let authorization = begin(&mut browser, &provider).await;
    let code = stolen
        .split("code=")
        .nth(1)
        .unwrap()
        .split('&')
        .next()
        .unwrap();
    let mixed = format!(
        "/sign-in/provider/return?code={code}&state={}",
        authorization.fields["state"]
    );
    browser.get(&mixed).await.expect(422).says(UNTRUSTED);
    assert!(browser.cookies.is_empty());
}

#[tokio::test]
async fn missing_provider_returns_404_and_unreachable_provider_503() {
    let app = TestApp::new().await;
    let mut browser = Browser::new(&app.node);
    browser
        .get("/sign-in")
        .await
        .expect(200)
        .hides("Continue with");
    browser.get("/sign-in/provider").await.expect(404);
    browser
        .get("/sign-in/provider/return?code=1&state=2")
        .await
        .expect(404);
    let away = TestProvider {
        issuer: "http://127.0.0.1:1".to_owned(),
        key: key(),
        grants: Mutex::default(),
    };
    let seen = Browser::new(&node(&app, &away))
        .get("/sign-in/provider")
        .await
        .expect(503);
    assert_eq!(seen.header("retry-after"), Some("5"));
}
