//! Token exchange: tokens of a local issuer for tokens of service identities.

use std::{net::Ipv4Addr, sync::Arc};

use aws_lc_rs::hmac;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD as B64};
use gantry::{
    api::accounts,
    platform::{
        access::sessions::{self, SessionSecret},
        error::Error,
    },
};
use gantry_base::ids::UserId;
use serde_json::{Value, json};

use super::issuer::{TestIssuer, key, rsa, sign, unsigned};
use crate::support::{Tenant, TestApp, client::Answer};

const GRANT_TYPE: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
const JWT: &str = "urn:ietf:params:oauth:token-type:jwt";

fn identities(of: &Tenant) -> String {
    format!("/v1/organizations/{}/service-identities", of.slug)
}

/// Sends a request of the owner with a body.
async fn post(app: &TestApp, path: &str, body: &Value) -> Answer {
    app.post(path).as_(&app.owner).json(body).send().await
}

/// Creates a service identity, and returns its id.
async fn identity(app: &TestApp, role: &str) -> String {
    let body = json!({"name": "deployment", "role": role});
    let made = post(app, &identities(&app.home), &body).await;
    made.expect(201).json()["id"].as_str().unwrap().to_owned()
}

/// A service identity with a trust in the tokens of an issuer.
struct TrustedCi {
    app: TestApp,
    issuer: Arc<TestIssuer>,
    identity: String,
    trust: String,
}

impl TrustedCi {
    async fn new() -> Self {
        Self::with_role("developer").await
    }

    async fn with_role(role: &str) -> Self {
        let (app, issuer) = (TestApp::new().await, TestIssuer::start().await);
        let identity = identity(&app, role).await;
        let mut ci = Self {
            app,
            issuer,
            identity,
            trust: String::new(),
        };
        let made = post(&ci.app, &ci.trusts(), &ci.rule()).await.expect(201);
        ci.trust = made.json()["id"].as_str().unwrap().to_owned();
        ci
    }

    fn trusts(&self) -> String {
        let base = identities(&self.app.home);
        format!("{base}/{}/trusts", self.identity)
    }

    fn rule(&self) -> Value {
        json!({
            "issuer": self.issuer.url,
            "audience": "gantry",
            "subject": "repo:acme/app:*",
            "claims": {"ref": "refs/heads/*"},
            "permissions": ["project_admin_read", "project_admin_write"],
            "project_refs": [self.app.home.project],
        })
    }

    async fn exchange_at(&self, path: &str, token: &str) -> Answer {
        let fields = [
            ("grant_type", GRANT_TYPE),
            ("subject_token", token),
            ("subject_token_type", JWT),
            ("audience", self.identity.as_str()),
        ];
        self.app.post(path).form(&fields).send().await
    }

    async fn exchange(&self, token: &str) -> Answer {
        self.exchange_at("/oauth/token", token).await
    }

    /// Exchanges a token with these claims, and returns the issued one.
    async fn issued(&self, claims: &Value) -> String {
        let answer = self.exchange(&self.issuer.sign(claims)).await;
        let body = answer.expect(200).json();
        body["access_token"].as_str().unwrap().to_owned()
    }

    async fn status(&self, token: &str) -> u16 {
        let call = self.app.get(&self.app.at("")).token(token);
        call.send().await.status.as_u16()
    }
}

fn assert_refused(case: &str, answer: &Answer, error: &str) {
    assert_eq!(answer.status, 400, "{case}: {answer:?}");
    assert_eq!(answer.json()["error"], error, "{case}: {answer:?}");
}

#[tokio::test]
async fn exchanged_token_has_the_limits_of_its_trust_and_ends_with_the_subject_token() {
    let ci = TrustedCi::new().await;
    let app = &ci.app;
    let sibling = app.stub(app.home.id, "sibling").await;
    let answer = ci.exchange(&ci.issuer.sign(&ci.issuer.claims())).await;
    let body = answer.expect(200).json();
    assert_eq!(body["expires_in"], 300);
    assert_eq!(body["token_type"], "Bearer");
    assert_eq!(
        body["issued_token_type"],
        "urn:ietf:params:oauth:token-type:access_token"
    );
    let token = body["access_token"].as_str().unwrap();
    assert!(token.starts_with("sbp_fc"), "a scoped token");
    assert_eq!(ci.status(token).await, 200);
    let other = app.get(&format!("/v1/projects/{sibling}")).token(token);
    other.send().await.expect(404);
    let query = app.post(&app.at("/database/query/read-only")).token(token);
    let refused = query.json(&json!({"query": "select 1"})).send().await;
    assert!(refused.expect(403).message().contains("database_read"));
    // The role of the service identity limits it as well.
    let hosts = app.request("PUT", &app.at("/outbound-hosts")).token(token);
    let refused = hosts.json(&json!({"allowed_hosts": null})).send().await;
    assert!(refused.expect(403).message().contains("privileges"));
    // It creates no other tokens than children.
    let tokens = app.get("/v1/tokens").token(token).send().await;
    tokens.expect(403);
    app.advance(300);
    assert_eq!(ci.status(token).await, 401);

    let sql = "select name, trust_id::text, expires_at - created_at = interval '5 minutes' \
               from tokens where trust_id is not null";
    let rows = app.app.db.query(sql, &[]).await.unwrap();
    let row = &rows[0];
    assert_eq!(
        (row.get::<_, &str>(0), row.get::<_, &str>(1), row.get(2)),
        ("repo:acme/app:ref:refs/heads/main", ci.trust.as_str(), true)
    );
    let sql = "select actor::text, after from audit_entries \
               where operation = 'gantry-exchange-oauth-token' and status = 201";
    let rows = app.app.db.query(sql, &[]).await.unwrap();
    assert_eq!(rows[0].get::<_, &str>(0), ci.identity);
    let after = rows[0].get::<_, &str>(1);
    assert!(after.contains(&ci.trust) && !after.contains(token));
    let sql = "select count(*) from events where type = 'gantry.token.created'";
    let rows = app.app.db.query(sql, &[]).await.unwrap();
    assert_eq!(rows[0].get::<_, i64>(0), 1);
}

#[tokio::test]
async fn exchanged_token_lives_as_long_as_its_trust_says_at_most() {
    let ci = TrustedCi::new().await;
    let mut claims = ci.issuer.claims();
    claims["exp"] = json!(claims["iat"].as_i64().unwrap() + 7_200);
    let token = ci.issuer.sign(&claims);
    let answer = ci.exchange_at("/v1/oauth/token", &token).await;
    assert_eq!(answer.expect(201).json()["expires_in"], 900);
    // With an RSA key, the other type of the token, and the type of the issued one.
    let (jwk, token) = rsa("rsa", &claims);
    ci.issuer.publish(jwk);
    ci.app.advance(60);
    let fields = [
        ("grant_type", GRANT_TYPE),
        ("subject_token", token.as_str()),
        (
            "subject_token_type",
            "urn:ietf:params:oauth:token-type:id_token",
        ),
        (
            "requested_token_type",
            "urn:ietf:params:oauth:token-type:access_token",
        ),
        ("audience", ci.identity.as_str()),
    ];
    let call = ci.app.post("/oauth/token").form(&fields);
    call.send().await.expect(200);
}

#[tokio::test]
async fn token_that_breaks_a_rule_is_refused() {
    let ci = TrustedCi::new().await;
    let issuer = &ci.issuer;
    let fine = issuer.claims();
    let now = fine["iat"].as_i64().unwrap();
    for (name, value) in [
        ("aud", json!("other")),
        ("aud", Value::Null),
        ("iss", json!("https://issuer.example.com")),
        ("iss", json!(format!("{}/", issuer.url))),
        ("iss", Value::Null),
        ("sub", json!("repo:acme/app2:ref:refs/heads/main")),
        ("sub", Value::Null),
        ("ref", json!("refs/tags/1")),
        ("ref", Value::Null),
        ("exp", json!(now)),
        ("exp", json!(now - 30)),
        ("exp", Value::Null),
        ("nbf", json!(now + 61)),
        ("iat", json!(now + 61)),
        ("jti", json!(7)),
    ] {
        let mut claims = fine.clone();
        claims[name] = value.clone();
        let answer = ci.exchange(&issuer.sign(&claims)).await;
        assert_refused(&format!("{name} {value}"), &answer, "invalid_grant");
    }
    let header = json!({"alg": "ES256", "kid": "1"});
    let symmetric = || {
        let text = unsigned(&json!({"alg": "HS256", "kid": "1"}), &fine);
        let secret = issuer.jwk().to_string();
        let secret = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
        let signature = hmac::sign(&secret, text.as_bytes());
        format!("{text}.{}", B64.encode(signature.as_ref()))
    };
    let none = unsigned(&json!({"alg": "none"}), &fine);
    for (case, token) in [
        ("another key", sign(&key(), &header, &fine)),
        ("no algorithm", format!("{none}.")),
        ("the public key as secret", symmetric()),
        (
            "an unknown kid",
            issuer.sign_with_header(&json!({"alg": "ES256", "kid": "9"}), &fine),
        ),
        ("nonsense", "nonsense".to_owned()),
    ] {
        let answer = ci.exchange(&token).await;
        assert_refused(case, &answer, "invalid_grant");
        let description = answer.json()["error_description"].clone();
        let text = description.as_str().unwrap();
        assert!(
            text.starts_with("No trust of the service identity"),
            "{text}"
        );
    }
    // The leeway is a minute.
    let mut claims = fine.clone();
    claims["nbf"] = json!(now + 60);
    ci.issued(&claims).await;
    // One entry a minute.
    let sql = "select after from audit_entries where status = 400 order by number";
    let entries = ci.app.app.db.query(sql, &[]).await.unwrap();
    assert_eq!(entries.len(), 1, "{entries:?}");
    let entry: Value = serde_json::from_str(entries[0].get(0)).unwrap();
    assert_eq!(entry["refused"], "audience");
    assert_eq!(entry["subject"], fine["sub"]);
    assert_eq!(
        issuer.reads(),
        1,
        "an unknown kid is looked up once a minute"
    );
}

#[tokio::test]
async fn malformed_exchange_is_an_invalid_request() {
    let ci = TrustedCi::new().await;
    let token = ci.issuer.sign(&ci.issuer.claims());
    let fine = [
        ("grant_type", GRANT_TYPE),
        ("subject_token", token.as_str()),
        ("subject_token_type", JWT),
        ("audience", ci.identity.as_str()),
    ];
    for (name, value) in [
        ("subject_token", ""),
        ("subject_token_type", ""),
        (
            "subject_token_type",
            "urn:ietf:params:oauth:token-type:saml2",
        ),
        ("audience", ""),
        ("audience", "gantry"),
        (
            "requested_token_type",
            "urn:ietf:params:oauth:token-type:jwt",
        ),
        ("actor_token", "x"),
    ] {
        let mut fields: Vec<_> = fine.into_iter().filter(|it| it.0 != name).collect();
        fields.push((name, value));
        let call = ci.app.post("/oauth/token").form(&fields);
        assert_refused(name, &call.send().await, "invalid_request");
    }
    let unknown = uuid::Uuid::from_u128(1).to_string();
    let mut fields = fine.to_vec();
    fields[3].1 = &unknown;
    let call = ci.app.post("/oauth/token").form(&fields);
    assert_refused("unknown", &call.send().await, "invalid_grant");
    assert_eq!(ci.issuer.reads(), 0, "no issuer was contacted");
}

#[tokio::test]
async fn token_with_a_jti_is_exchanged_once_for_each_trust() {
    let ci = TrustedCi::new().await;
    let plain = ci.issuer.sign(&ci.issuer.claims());
    ci.exchange(&plain).await.expect(200);
    ci.exchange(&plain).await.expect(200);
    let mut claims = ci.issuer.claims();
    claims["jti"] = json!("a");
    let once = ci.issuer.sign(&claims);
    let (first, second) = tokio::join!(ci.exchange(&once), ci.exchange(&once));
    let mut statuses = [first.status.as_u16(), second.status.as_u16()];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 400]);
    claims["jti"] = json!("b");
    ci.issued(&claims).await;
    // Expired records are deleted.
    ci.app.advance(301);
    let now = ci.app.app.clock.now();
    let cleaned = gantry::api::oauth::cleanup::clean(&ci.app.app.db, now);
    cleaned.await.unwrap();
    let sql = "select count(*) from exchanged_tokens";
    let rows = ci.app.app.db.query(sql, &[]).await.unwrap();
    assert_eq!(rows[0].get::<_, i64>(0), 0);
}

#[tokio::test]
async fn expired_tokens_of_service_identities_are_deleted() {
    let ci = TrustedCi::new().await;
    ci.issued(&ci.issuer.claims()).await;
    for (days, expected) in [(6, 1), (2, 0)] {
        ci.app.advance(days * 86_400);
        let now = ci.app.app.clock.now();
        let cleaned = gantry::api::oauth::cleanup::clean(&ci.app.app.db, now);
        cleaned.await.unwrap();
        let sql = "select count(*) from tokens where trust_id is not null";
        let rows = ci.app.app.db.query(sql, &[]).await.unwrap();
        assert_eq!(rows[0].get::<_, i64>(0), expected, "{days}");
    }
}

#[tokio::test]
async fn new_keys_of_an_issuer_are_read_once_a_minute() {
    let ci = TrustedCi::new().await;
    ci.issued(&ci.issuer.claims()).await;
    let next = key();
    ci.issuer.publish(super::issuer::jwk(&next, "2"));
    let header = json!({"alg": "ES256", "kid": "2"});
    let rotated = sign(&next, &header, &ci.issuer.claims());
    let early = ci.exchange(&rotated).await;
    assert_refused("within a minute", &early, "invalid_grant");
    assert_eq!(ci.issuer.reads(), 1);
    ci.app.advance(60);
    ci.exchange(&rotated).await.expect(200);
    ci.issued(&ci.issuer.claims()).await;
    assert_eq!(ci.issuer.reads(), 2);
}

#[tokio::test]
async fn deleted_trust_or_identity_revokes_its_tokens() {
    let ci = TrustedCi::new().await;
    let app = &ci.app;
    let claims = ci.issuer.claims();
    let first = ci.issued(&claims).await;
    let sql = "select max(id) from tokens";
    let id: i64 = app.app.db.query(sql, &[]).await.unwrap()[0].get(0);
    let child = app.post(&format!("/v1/tokens/{id}/children")).token(&first);
    let child = child.json(&json!({"name": "step"})).send().await;
    let child = child.expect(201).json()["token"].clone();
    let child = child.as_str().unwrap();
    let second = post(app, &ci.trusts(), &ci.rule()).await.expect(201).json();
    let path = format!("{}/{}", ci.trusts(), ci.trust);
    app.delete(&path).as_(&app.owner).send().await.expect(200);
    for token in [&*first, child] {
        assert_eq!(ci.status(token).await, 401);
    }
    app.delete(&path).as_(&app.owner).send().await.expect(404);
    let listed = app.get(&ci.trusts()).as_(&app.owner).send().await;
    assert_eq!(listed.expect(200).json(), json!([second]));
    let other = ci.issued(&claims).await;
    let path = format!("{}/{}", identities(&app.home), ci.identity);
    app.delete(&path).as_(&app.owner).send().await.expect(200);
    assert_eq!(ci.status(&other).await, 401);
    let late = ci.exchange(&ci.issuer.sign(&claims)).await;
    assert_refused("deleted", &late, "invalid_grant");
    app.delete(&path).as_(&app.owner).send().await.expect(404);
    let listed = app.get(&identities(&app.home)).as_(&app.owner);
    assert_eq!(listed.send().await.expect(200).json(), json!([]));
    let sql = "select type from events where type like '%.member.%' order by number";
    let rows = app.app.db.query(sql, &[]).await.unwrap();
    let types: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(
        types,
        [
            "v1.organization.member.added",
            "v1.organization.member.removed"
        ]
    );
}

#[tokio::test]
async fn service_identity_cannot_sign_in_or_become_an_owner() {
    let ci = TrustedCi::new().await;
    let app = &ci.app;
    let organization = &app.home.slug;
    let members = format!("/v1/organizations/{organization}/members");
    let listed = app.get(&members).as_(&app.owner).send().await;
    let listed = listed.expect(200).json();
    let mut members = listed.as_array().unwrap().iter();
    let member = members.find(|it| it["user_id"] == ci.identity).unwrap();
    assert_eq!(member["user_name"], "deployment");
    assert_eq!(member["role_name"], "Developer");
    let path = format!("/v2/organizations/{organization}/members/{}", ci.identity);
    for attributes in [
        json!({"role": "owner"}),
        json!({"role": "administrator", "projects": [{"ref": app.home.project}]}),
    ] {
        let body = json!({"data": {"type": "organization_member_role", "attributes": attributes}});
        let call = app.patch(&format!("{path}/roles")).as_(&app.owner);
        let refused = call.json(&body).send().await.expect(400);
        let text = refused.message();
        assert!(text.contains("service identity"), "{text}");
    }
    app.delete(&path).as_(&app.owner).send().await.expect(400);
    let body = json!({"name": "x", "role": "owner"});
    post(app, &identities(&app.home), &body).await.expect(400);

    let email = member["email"].as_str().unwrap();
    let found = accounts::by_email(&app.app.db, email).await;
    assert!(matches!(found, Err(Error::NotFound)), "{found:?}");
    let sql = "select id from users where gotrue_id::text = $1";
    let rows = app.app.db.query(sql, &[&ci.identity]).await.unwrap();
    let user = UserId(rows[0].get(0));
    let secret = SessionSecret::generate(&app.app.entropy);
    let address = Ipv4Addr::LOCALHOST.into();
    let now = app.app.clock.now();
    let begun = sessions::begin(&app.app.db, user, &secret, address, "test", now).await;
    assert!(begun.is_err(), "no session");
    for sql in [
        "insert into passwords (user_id, hash, changed_at) values ($1, 'x', now())",
        "insert into sign_in_links (digest, user_id, expires_at) \
         values (sha256('x'), $1, now())",
        "insert into identities (issuer, subject, user_id, created_at) \
         values ('x', 'x', $1, now())",
        "update members set role = 'owner' where user_id = $1",
    ] {
        let refused = app.app.db.query(sql, &[&user.0]).await;
        assert!(refused.is_err(), "{sql}");
    }
    let _ = app.log.take_errors();
}

#[tokio::test]
async fn service_identities_of_another_organization_are_not_found() {
    let ci = TrustedCi::new().await;
    let app = &ci.app;
    let as_stranger = async |method: &str, path: &str| {
        let call = app.request(method, path).as_(&app.stranger);
        let call = match method {
            "POST" => call.json(&ci.rule()),
            _ => call,
        };
        call.send().await.expect(404);
    };
    let base = identities(&app.home);
    for (method, path) in [
        ("GET", base.clone()),
        ("POST", base.clone()),
        ("GET", ci.trusts()),
        ("DELETE", format!("{base}/{}", ci.identity)),
    ] {
        as_stranger(method, &path).await;
    }
    // Nor below the stranger's own organization.
    let own = format!("{}/{}", identities(&app.foreign), ci.identity);
    as_stranger("GET", &format!("{own}/trusts")).await;
    as_stranger("POST", &format!("{own}/trusts")).await;
    as_stranger("DELETE", &format!("{own}/trusts/{}", ci.trust)).await;
    as_stranger("DELETE", &own).await;
    for actor in [&app.administrator, &app.read_only] {
        let body = json!({"name": "x", "role": "developer"});
        let call = app.post(&base).as_(actor).json(&body);
        call.send().await.expect(403);
        app.get(&base).as_(actor).send().await.expect(200);
    }
    ci.issued(&ci.issuer.claims()).await;
}

#[tokio::test]
async fn service_identities_and_trusts_are_bounded() {
    let ci = TrustedCi::with_role("administrator").await;
    let app = &ci.app;
    let claims: Value = (0..21).map(|n| (n.to_string(), json!("x"))).collect();
    let foreign = &app.foreign.project;
    for (name, value) in [
        ("issuer", json!("http://issuer.example.com")),
        ("issuer", json!("https://issuer.example.com/?a=b")),
        (
            "issuer",
            json!(format!("https://a.example/{}", "a".repeat(512))),
        ),
        ("audience", json!("")),
        ("subject", json!("*")),
        ("subject", json!("")),
        ("subject", json!("a".repeat(513))),
        ("claims", json!({"ref": "**"})),
        ("claims", json!({"": "x"})),
        ("claims", claims),
        ("permissions", json!([])),
        ("permissions", json!(["fly"])),
        ("permissions", json!(["members_read"])),
        ("project_refs", json!([foreign])),
        ("networks", json!(["everywhere"])),
        ("life_minutes", json!(0)),
        ("life_minutes", json!(61)),
    ] {
        let mut rule = ci.rule();
        rule[name] = value;
        let refused = post(app, &ci.trusts(), &rule).await.expect(400);
        let text = refused.message();
        assert!(text.starts_with(name), "{name}: {text}");
    }
    for n in 1..20 {
        let made = post(app, &ci.trusts(), &ci.rule()).await;
        assert_eq!(made.status, 201, "{n}: {made:?}");
    }
    let refused = post(app, &ci.trusts(), &ci.rule()).await.expect(400);
    assert!(refused.message().contains("20 trusts"));
    let sql = "insert into users (gotrue_id, email, username, created_at, service_of) \
               select gen_random_uuid(), 's' || n || '@x.invalid', 's', now(), $1::bigint \
               from generate_series(1, 99) n";
    let home = app.home.id.0;
    app.app.db.query(sql, &[&home]).await.unwrap();
    let body = json!({"name": "x", "role": "developer"});
    let refused = post(app, &identities(&app.home), &body).await.expect(400);
    assert!(refused.message().contains("100 service identities"));
}
