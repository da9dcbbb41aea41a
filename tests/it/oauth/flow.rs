//! An application that does everything right: what the attacks of the other tests differ from.

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

/// Every request is from somewhere else on this machine: what is counted by address is not what is tested.
static CLIENTS: AtomicU32 = AtomicU32::new(0);

pub(super) fn anywhere(call: Call) -> Call {
    let number = CLIENTS.fetch_add(1, Ordering::Relaxed) % 0x00ff_0000;
    call.from(&Ipv4Addr::from_bits(0x7f00_0100 + number).to_string())
}

/// An application at home, and how it talks to a node.
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

/// Registers an application at home.
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

/// Another secret of an application, and its number.
pub(super) async fn add_secret(app: &TestApp, id: &str) -> (String, i64) {
    // More secrets than a minute's requests may be made in a test.
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

/// One that nobody vouches for: bound to its member.
pub(super) async fn bound(app: &TestApp) -> Client {
    register(app, json!({"bind_to_authorizing_user": true})).await
}

/// What an application asks for, as a query.
pub(super) fn query(fields: &[(&str, &str)]) -> String {
    form_urlencoded::Serializer::new(String::new())
        .extend_pairs(fields)
        .finish()
}

/// The fields of an address's query.
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
    /// The fields of a request that is right.
    pub(super) fn asks(&self) -> Vec<(&'static str, String)> {
        vec![
            ("client_id", self.id.clone()),
            ("redirect_uri", CALLBACK.to_owned()),
            ("response_type", "code".to_owned()),
            ("state", "xyz".to_owned()),
            ("code_challenge", CHALLENGE.to_owned()),
            ("code_challenge_method", "S256".to_owned()),
        ]
    }

    /// The number of a request that waits.
    pub(super) async fn ask(&self, node: &Node, more: &[(&'static str, &str)]) -> String {
        let mut fields = self.asks();
        for (name, value) in more {
            fields.retain(|(known, _)| known != name);
            fields.push((name, (*value).to_owned()));
        }
        let fields: Vec<_> = fields
            .iter()
            .filter(|(_, value)| !value.is_empty())
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        let answer = anywhere(node.get(&format!("/v1/oauth/authorize?{}", query(&fields))))
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

    /// Where a member who approves is sent.
    pub(super) async fn approved(
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

    /// A code that was made for it.
    pub(super) async fn code(&self, app: &TestApp, by: &Actor) -> String {
        parameter(&self.approved(app, by, &[], &json!({})).await, "code")
    }

    /// A request to an endpoint of the protocol that is right about who asks.
    pub(super) fn call(&self, node: &Node, path: &str, fields: &[(&str, &str)]) -> Call {
        let mut fields = fields.to_vec();
        fields.push(("client_id", &self.id));
        fields.extend(
            self.secret
                .as_deref()
                .map(|secret| ("client_secret", secret)),
        );
        anywhere(node.post(path)).form(&fields)
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

    /// The whole way.
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

/// What an access token gets at the list of projects.
pub(super) async fn tried(node: &Node, access: &str) -> u16 {
    node.get("/v1/projects")
        .token(access)
        .send()
        .await
        .status
        .as_u16()
}

/// That an answer is an error of the protocol: its name, in the shape of both worlds.
#[track_caller]
pub(super) fn fails(case: &str, answer: &Answer, error: &str) {
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
async fn an_application_gets_tokens_uses_renews_and_returns_them() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let address = client
        .approved(&app, &app.owner, &[("scope", "all")], &json!({}))
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
            tried(&app.node, &first.access).await,
            tried(&app.node, &second.access).await
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
            tried(&app.node, &first.access).await,
            tried(&app.node, &second.access).await
        ),
        (401, 401)
    );
}

/// The contract's own paths and statuses; its answer has no other fields.
#[tokio::test]
async fn the_contracts_clients_are_served_as_they_expect() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let code = client.code(&app, &app.owner).await;
    let fields = [
        ("grant_type", "authorization_code"),
        ("code", &code),
        ("redirect_uri", CALLBACK),
        ("code_verifier", VERIFIER),
    ];
    let call = anywhere(app.post("/v1/oauth/token")).header("authorization", &client.basic());
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
    assert_eq!(tried(&app.node, &pair.access).await, 401);
    // Again, and of nobody: the same answer.
    app.post("/v1/oauth/revoke")
        .json(&body)
        .send()
        .await
        .expect(204);
}

#[tokio::test]
async fn a_public_application_proves_itself_by_pkce_alone() {
    let app = TestApp::new().await;
    let client = register(
        &app,
        json!({"public": true, "redirect_uris": ["http://127.0.0.1/callback"]}),
    )
    .await;
    let address = client
        .approved(
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
async fn clients_find_out_by_themselves() {
    let app = TestApp::new().await;
    // Whatever a client calls this server, the issuer is the operator's word.
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
