//! The regular flow of an application. Other tests vary it.

use std::{
    net::Ipv4Addr,
    sync::atomic::{AtomicU32, Ordering},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

use crate::support::{
    Actor, ISSUER, Node, TestApp,
    client::{Answer, Call},
};

pub(super) const CALLBACK: &str = "https://app.example/callback";
/// The example of RFC 7636, appendix B.
pub(super) const VERIFIER: &str = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
pub(super) const CHALLENGE: &str = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";

/// Every request has another client address, so that limits per address do not interfere.
static CLIENTS: AtomicU32 = AtomicU32::new(0);

pub(super) fn from_any_address(call: Call) -> Call {
    let number = CLIENTS.fetch_add(1, Ordering::Relaxed) % 0x00ff_0000;
    call.from(&Ipv4Addr::from_bits(0x7f00_0100 + number).to_string())
}

/// A registered application that calls a node.
#[derive(Clone)]
pub(super) struct Client {
    pub(super) id: String,
    pub(super) secret: Option<String>,
}

/// A pair of tokens.
#[derive(Debug, Clone)]
pub(super) struct Pair {
    pub(super) access: String,
    pub(super) refresh: String,
}

/// Registers an application in the home organization.
pub(super) async fn register(app: &TestApp, more: Value) -> Client {
    let mut body = json!({"name": "Acme", "redirect_uris": [CALLBACK], "scopes": ["organizations:read", "projects:read", "database:read"]});
    body.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    let made = app
        .post(&apps(app))
        .as_(&app.owner)
        .json(&body)
        .send()
        .await
        .expect(201)
        .json();
    let id = made["id"].as_str().unwrap().to_owned();
    let secret = if made["public"] == true {
        None
    } else {
        Some(add_secret(app, &id).await.0)
    };
    Client { id, secret }
}

pub(super) fn apps(app: &TestApp) -> String {
    format!("/v1/organizations/{}/oauth/apps", app.home.slug)
}

/// Creates a secret. Returns it with its id.
pub(super) async fn add_secret(app: &TestApp, id: &str) -> (String, i64) {
    // Inserted directly, because tests create more secrets than the rate limit permits.
    let made = app
        .post(&format!("{}/{id}/secrets", apps(app)))
        .as_(&app.owner)
        .send()
        .await
        .expect(201)
        .json();
    (
        made["secret"].as_str().unwrap().to_owned(),
        made["id"].as_i64().unwrap(),
    )
}

/// Registers an application bound to the role of its member.
pub(super) async fn register_bound(app: &TestApp) -> Client {
    register(app, json!({"bind_to_authorizing_user": true})).await
}

/// Encodes parameters as a query.
pub(super) fn query(fields: &[(&str, &str)]) -> String {
    form_urlencoded::Serializer::new(String::new())
        .extend_pairs(fields)
        .finish()
}

/// Decodes the query of a URL.
pub(super) fn parameters(address: &str) -> Vec<(String, String)> {
    let (_, query) = address
        .split_once('?')
        .unwrap_or_else(|| panic!("{address} has no query"));
    form_urlencoded::parse(query.as_bytes())
        .into_owned()
        .collect()
}

pub(super) fn parameter(address: &str, name: &str) -> String {
    let found = parameters(address)
        .into_iter()
        .find(|(known, _)| known == name);
    found.unwrap_or_else(|| panic!("{address} has no {name}")).1
}

impl Client {
    /// Returns the parameters of a valid authorization request.
    pub(super) fn authorization_parameters(&self) -> Vec<(&'static str, String)> {
        vec![
            ("client_id", self.id.clone()),
            ("redirect_uri", CALLBACK.to_owned()),
            ("response_type", "code".to_owned()),
            ("state", "xyz".to_owned()),
            ("code_challenge", CHALLENGE.to_owned()),
            ("code_challenge_method", "S256".to_owned()),
        ]
    }

    /// Sends an authorization request. Returns the id of the pending request.
    pub(super) async fn ask(&self, node: &Node, more: &[(&'static str, &str)]) -> String {
        let mut fields = self.authorization_parameters();
        for (name, value) in more {
            fields.retain(|(known, _)| known != name);
            fields.push((name, (*value).to_owned()));
        }
        let fields: Vec<_> = fields
            .iter()
            .filter(|(_, value)| !value.is_empty())
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        let answer = from_any_address(node.get(&format!("/v1/oauth/authorize?{}", query(&fields))))
            .send()
            .await
            .expect(303);
        let location = answer.header("location").unwrap();
        assert!(location.starts_with("/authorize?auth_id="), "{location}");
        assert_eq!(
            (
                answer.header("referrer-policy"),
                answer.header("cache-control")
            ),
            (Some("no-referrer"), Some("no-store"))
        );
        parameter(location, "auth_id")
    }

    /// Approves a request. Returns the redirect URI.
    pub(super) async fn approve(
        &self,
        app: &TestApp,
        by: &Actor,
        more: &[(&'static str, &str)],
        body: &Value,
    ) -> String {
        let id = self.ask(&app.node, more).await;
        let path = format!(
            "/platform/organizations/{}/oauth/authorizations/{id}",
            app.home.slug
        );
        app.post(&path)
            .as_(by)
            .json(body)
            .send()
            .await
            .expect(201)
            .json()["url"]
            .as_str()
            .unwrap()
            .to_owned()
    }

    /// Obtains a code.
    pub(super) async fn code(&self, app: &TestApp, by: &Actor) -> String {
        parameter(&self.approve(app, by, &[], &json!({})).await, "code")
    }

    /// Builds a protocol request with valid client authentication.
    pub(super) fn call(&self, node: &Node, path: &str, fields: &[(&str, &str)]) -> Call {
        let mut fields = fields.to_vec();
        fields.push(("client_id", &self.id));
        fields.extend(
            self.secret
                .as_deref()
                .map(|secret| ("client_secret", secret)),
        );
        from_any_address(node.post(path)).form(&fields)
    }

    pub(super) async fn exchange(&self, node: &Node, code: &str) -> Answer {
        let fields = [
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", CALLBACK),
            ("code_verifier", VERIFIER),
        ];
        self.call(node, "/oauth/token", &fields).send().await
    }

    pub(super) async fn refresh(&self, node: &Node, refresh: &str) -> Answer {
        self.call(
            node,
            "/oauth/token",
            &[("grant_type", "refresh_token"), ("refresh_token", refresh)],
        )
        .send()
        .await
    }

    /// Runs the whole flow.
    pub(super) async fn tokens(&self, app: &TestApp, by: &Actor) -> Pair {
        let code = self.code(app, by).await;
        Pair::of(&self.exchange(&app.node, &code).await.expect(200))
    }

    pub(super) fn basic(&self) -> String {
        format!(
            "Basic {}",
            BASE64_STANDARD.encode(format!(
                "{}:{}",
                self.id,
                self.secret.as_deref().unwrap_or_default()
            ))
        )
    }
}

impl Pair {
    pub(super) fn of(answer: &Answer) -> Self {
        let body = answer.json();
        let text = |name: &str| {
            body[name]
                .as_str()
                .unwrap_or_else(|| panic!("no {name}: {body}"))
                .to_owned()
        };
        Self {
            access: text("access_token"),
            refresh: text("refresh_token"),
        }
    }
}

/// Lists projects with an access token. Returns the status.
pub(super) async fn list_projects_status(node: &Node, access: &str) -> u16 {
    node.get("/v1/projects")
        .token(access)
        .send()
        .await
        .status
        .as_u16()
}

/// Asserts an OAuth error, in the shapes of RFC 6749 and of the contract.
#[track_caller]
pub(super) fn assert_oauth_error(case: &str, answer: &Answer, error: &str) {
    let body = answer.json();
    assert_eq!(body["error"], error, "{case}: {answer:?}");
    assert_eq!(
        body["message"], body["error_description"],
        "{case}: {answer:?}"
    );
    let expected = if error == "invalid_client" { 401 } else { 400 };
    assert_eq!(answer.status, expected, "{case}: {answer:?}");
    assert_eq!(
        answer.header("cache-control"),
        Some("no-store"),
        "{case}: {answer:?}"
    );
}

#[tokio::test]
async fn application_obtains_refreshes_and_revokes_tokens() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let address = client
        .approve(&app, &app.owner, &[("scope", "all")], &json!({}))
        .await;
    assert!(
        address.starts_with("https://app.example/callback?code=sbc_"),
        "{address}"
    );
    assert_eq!(
        (
            parameter(&address, "state").as_str(),
            parameter(&address, "iss").as_str()
        ),
        ("xyz", ISSUER)
    );
    let answer = client
        .exchange(&app.node, &parameter(&address, "code"))
        .await
        .expect(200);
    let body = answer.json();
    assert_eq!(
        (&body["token_type"], &body["expires_in"]),
        (&json!("Bearer"), &json!(86_400))
    );
    assert_eq!(
        body["scope"],
        "database:read organizations:read projects:read"
    );
    assert_eq!(
        (answer.header("cache-control"), answer.header("pragma")),
        (Some("no-store"), Some("no-cache"))
    );
    let first = Pair::of(&answer);
    assert!(first.access.starts_with("sbp_oauth_") && first.access.len() == 50);
    let listed = app
        .get("/v1/projects")
        .token(&first.access)
        .send()
        .await
        .expect(200);
    assert_eq!(
        listed.header("x-gotrue-id"),
        Some(app.owner.gotrue_id.to_string().as_str())
    );
    assert_eq!(listed.json().as_array().unwrap().len(), 1);

    let second = Pair::of(&client.refresh(&app.node, &first.refresh).await.expect(200));
    assert_eq!(
        (
            list_projects_status(&app.node, &first.access).await,
            list_projects_status(&app.node, &second.access).await
        ),
        (200, 200)
    );
    client
        .call(&app.node, "/oauth/revoke", &[("token", &second.refresh)])
        .send()
        .await
        .expect(200);
    assert_eq!(
        (
            list_projects_status(&app.node, &first.access).await,
            list_projects_status(&app.node, &second.access).await
        ),
        (401, 401)
    );
}

/// The paths and statuses of the contract. Its response has no additional fields.
#[tokio::test]
async fn contract_token_endpoints_answer_as_published() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let code = client.code(&app, &app.owner).await;
    let fields = [
        ("grant_type", "authorization_code"),
        ("code", &code),
        ("redirect_uri", CALLBACK),
        ("code_verifier", VERIFIER),
    ];
    let call =
        from_any_address(app.post("/v1/oauth/token")).header("authorization", &client.basic());
    let answer = call.form(&fields).send().await.expect(201);
    let mut names: Vec<_> = answer.json().as_object().unwrap().keys().cloned().collect();
    names.sort();
    assert_eq!(
        names,
        ["access_token", "expires_in", "refresh_token", "token_type"]
    );
    let pair = Pair::of(&answer);
    let body = json!({"client_id": client.id, "client_secret": client.secret, "refresh_token": pair.refresh});
    app.post("/v1/oauth/revoke")
        .json(&body)
        .send()
        .await
        .expect(204);
    assert_eq!(list_projects_status(&app.node, &pair.access).await, 401);
    // A second revocation and an unknown token return the same response.
    app.post("/v1/oauth/revoke")
        .json(&body)
        .send()
        .await
        .expect(204);
}

#[tokio::test]
async fn public_client_exchanges_code_with_pkce() {
    let app = TestApp::new().await;
    let client = register(
        &app,
        json!({"public": true, "redirect_uris": ["http://127.0.0.1/callback"]}),
    )
    .await;
    let address = client
        .approve(
            &app,
            &app.owner,
            &[("redirect_uri", "http://127.0.0.1:4711/callback")],
            &json!({}),
        )
        .await;
    assert!(address.starts_with("http://127.0.0.1:4711/callback?code="));
    let code = parameter(&address, "code");
    let fields = [
        ("grant_type", "authorization_code"),
        ("code", &code),
        ("redirect_uri", "http://127.0.0.1:4711/callback"),
        ("code_verifier", VERIFIER),
    ];
    let pair = Pair::of(
        &client
            .call(&app.node, "/oauth/token", &fields)
            .send()
            .await
            .expect(200),
    );
    Pair::of(&client.refresh(&app.node, &pair.refresh).await.expect(200));
}

#[tokio::test]
async fn metadata_describes_endpoints() {
    let app = TestApp::new().await;
    // The issuer is configured by the operator, not derived from the `Host` header.
    let ask = async |path: &str| {
        app.get(path)
            .header("host", "evil.example")
            .send()
            .await
            .expect(200)
            .json()
    };
    let server = ask("/.well-known/oauth-authorization-server").await;
    assert_eq!(server["issuer"], "http://api.example");
    assert_eq!(server["token_endpoint"], "http://api.example/oauth/token");
    assert_eq!(server["code_challenge_methods_supported"], json!(["S256"]));
    assert_eq!(server["scopes_supported"].as_array().unwrap().len(), 24);
    let resource = ask("/.well-known/oauth-protected-resource/mcp").await;
    assert_eq!(
        (&resource["resource"], &resource["authorization_servers"]),
        (
            &json!("http://api.example/mcp"),
            &json!(["http://api.example"])
        )
    );
    assert_eq!(
        ask("/.well-known/oauth-protected-resource").await["resource"],
        "http://api.example"
    );
    let refused = app
        .get("/v1/projects")
        .header("host", "evil.example")
        .send()
        .await
        .expect(401);
    let challenge = refused.header("www-authenticate").unwrap().to_owned();
    let expected = "Bearer resource_metadata=\"http://api.example/.well-known/oauth-protected-resource\", scope=\"projects:read\"";
    assert_eq!(challenge, expected);
}
