//! Attacks on the authorization endpoint: redirect URIs, parameters and error responses.

use gantry::platform::http::Transport;
use serde_json::json;

use super::flow::{
    CALLBACK, CHALLENGE, Client, assert_oauth_error, from_any_address, parameter, parameters,
    query, register,
};
use crate::support::{
    ISSUER, TestApp,
    client::{Answer, Call},
    machine::Machine,
    settings,
};

async fn ask(app: &TestApp, text: &str) -> Answer {
    from_any_address(app.get(&format!("/v1/oauth/authorize?{text}")))
        .send()
        .await
}

async fn ask_with(
    app: &TestApp,
    client: &Client,
    name: &'static str,
    value: Option<&str>,
) -> Answer {
    let mut fields = client.authorization_parameters();
    fields.retain(|(known, _)| *known != name);
    fields.extend(value.map(|value| (name, value.to_owned())));
    let fields: Vec<_> = fields
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    ask(app, &query(&fields)).await
}

async fn kept(app: &TestApp) -> i64 {
    app.app
        .db
        .query("select count(*) from oauth_requests", &[])
        .await
        .unwrap()[0]
        .get(0)
}

/// Neither a code nor an error is sent to an address that differs from the registered ones in a
/// single byte.
#[tokio::test]
async fn authorize_with_unregistered_redirect_uri_is_rejected() {
    let app = TestApp::new().await;
    let client = register(
        &app,
        json!({"redirect_uris": [CALLBACK, "http://localhost:3000/cb"]}),
    )
    .await;
    register(
        &app,
        json!({"redirect_uris": ["https://other.example/callback"]}),
    )
    .await;
    let wrong = [
        "https://evil.example/callback",
        "https://app.example.evil.example/callback",
        "https://evil.example/app.example/callback",
        "https://app.example@evil.example/callback",
        "https://app.example:pw@evil.example/callback",
        "https://app.example\\@evil.example/callback",
        "https://evil.example\\app.example/callback",
        "https://APP.EXAMPLE/callback",
        "https://app.example/CALLBACK",
        "https://app.example:443/callback",
        "https://app.example:8443/callback",
        "https://app.example/callback/",
        "https://app.example/callback/more",
        "https://app.example/callback/../evil",
        "https://app.example/%63allback",
        "https://app.example//callback",
        "https://app.example/callback?x=y",
        "https://app.example/callback?",
        "https://app.example/callback#fragment",
        "https://app.example/callback#",
        "https://app.example/callbac",
        "https://app.example",
        "https://app.example/",
        "http://app.example/callback",
        "HTTPS://app.example/callback",
        "javascript:alert(1)",
        "data:text/html,x",
        "vbscript:x",
        "file:///etc/passwd",
        "//app.example/callback",
        "/callback",
        "app.example/callback",
        " https://app.example/callback",
        "https://app.example/callback ",
        "https://app.example/callback\r\nSet-Cookie: x=y",
        "https://app.example/callback\t",
        "https://\u{430}pp.example/callback",
        "https://other.example/callback",
        "http://localhost:3001/cb",
        "http://localhost/cb",
        "http://127.0.0.1:3000/cb",
        "http://localhost.evil.example:3000/cb",
        "*",
        "https://*.example/callback",
    ];
    for address in wrong {
        let answer = ask_with(&app, &client, "redirect_uri", Some(address)).await;
        assert_oauth_error(address, &answer, "invalid_request");
        assert!(answer.header("location").is_none(), "{address}");
    }
    ask_with(
        &app,
        &client,
        "redirect_uri",
        Some("https://app.example/callback\u{0}"),
    )
    .await
    .expect(400);
    let long = format!("{CALLBACK}{}", "x".repeat(4_000));
    assert_oauth_error(
        "long",
        &ask_with(&app, &client, "redirect_uri", Some(&long)).await,
        "invalid_request",
    );
    assert_oauth_error(
        "none",
        &ask_with(&app, &client, "redirect_uri", None).await,
        "invalid_request",
    );
    assert_oauth_error(
        "empty",
        &ask_with(&app, &client, "redirect_uri", Some("")).await,
        "invalid_request",
    );
    assert_eq!(kept(&app).await, 0);
}

/// Errors of other parameters are not sent to an unregistered address either.
#[tokio::test]
async fn authorize_error_without_valid_redirect_uri_is_not_redirected() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    for (case, text) in [
        (
            "no client",
            query(&[("redirect_uri", CALLBACK), ("response_type", "code")]),
        ),
        (
            "empty client",
            query(&[("client_id", ""), ("redirect_uri", CALLBACK)]),
        ),
        (
            "unknown client",
            query(&[
                ("client_id", "00000000-0000-4000-8000-000000000000"),
                ("redirect_uri", CALLBACK),
            ]),
        ),
        (
            "no uuid",
            query(&[("client_id", "acme"), ("redirect_uri", CALLBACK)]),
        ),
        (
            "an address",
            query(&[
                ("client_id", "https://app.example/client.json"),
                ("redirect_uri", CALLBACK),
            ]),
        ),
        ("nothing", String::new()),
    ] {
        let answer = ask(&app, &text).await.expect(422);
        let message = answer.message();
        assert!(
            ["Unrecognized client_id", "Required parameter: client_id"].contains(&message.as_str()),
            "{case}: {answer:?}"
        );
        assert!(answer.header("location").is_none(), "{case}");
    }
    let both = [
        ("client_id", client.id.as_str()),
        ("redirect_uri", "https://evil.example/"),
        ("response_type", "token"),
    ];
    let answer = ask(&app, &query(&both)).await;
    assert_oauth_error("both", &answer, "invalid_request");
    // A browser is redirected to an error page instead of receiving JSON.
    let navigate = |call: Call| from_any_address(call).header("sec-fetch-mode", "navigate");
    let answer = navigate(app.get(&format!("/v1/oauth/authorize?{}", query(&both))))
        .send()
        .await
        .expect(303);
    assert_eq!(
        answer.header("location"),
        Some("/authorize/problem?why=request")
    );
    let answer = navigate(app.get("/v1/oauth/authorize"))
        .send()
        .await
        .expect(303);
    assert_eq!(
        answer.header("location"),
        Some("/authorize/problem?why=client")
    );
    app.post("/v1/oauth/authorize").send().await.expect(404);
}

#[tokio::test]
async fn authorize_with_repeated_parameter_is_rejected() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let right: Vec<(&str, String)> = client.authorization_parameters();
    for (name, value) in &right {
        for again in [value.as_str(), "other"] {
            let mut fields: Vec<_> = right
                .iter()
                .map(|(name, value)| (*name, value.as_str()))
                .collect();
            fields.push((name, again));
            assert_oauth_error(name, &ask(&app, &query(&fields)).await, "invalid_request");
        }
    }
    let mut fields: Vec<_> = right
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    let many: Vec<String> = (0..80).map(|n| format!("extra{n}")).collect();
    fields.extend(many.iter().map(|name| (name.as_str(), "1")));
    assert_oauth_error("many", &ask(&app, &query(&fields)).await, "invalid_request");
}

/// With a valid redirect URI, errors are sent to it with `state` and `iss`.
#[tokio::test]
async fn authorize_error_is_redirected_to_application() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let plain = "a".repeat(43);
    for (name, value, error) in [
        ("response_type", None, "invalid_request"),
        ("response_type", Some("token"), "unsupported_response_type"),
        (
            "response_type",
            Some("id_token token"),
            "unsupported_response_type",
        ),
        (
            "response_type",
            Some("code token"),
            "unsupported_response_type",
        ),
        ("response_type", Some("none"), "unsupported_response_type"),
        ("response_type", Some("CODE"), "unsupported_response_type"),
        ("response_mode", Some("fragment"), "invalid_request"),
        ("response_mode", Some("form_post"), "invalid_request"),
        ("response_mode", Some("web_message"), "invalid_request"),
        (
            "request",
            Some("eyJhbGciOiJub25lIn0.e30."),
            "request_not_supported",
        ),
        ("request", Some(""), "request_not_supported"),
        (
            "request_uri",
            Some("http://169.254.169.254/latest"),
            "request_uri_not_supported",
        ),
        (
            "request_uri",
            Some("urn:ietf:params:oauth:request_uri:x"),
            "request_uri_not_supported",
        ),
        ("code_challenge_method", None, "invalid_request"),
        ("code_challenge_method", Some("plain"), "invalid_request"),
        ("code_challenge_method", Some("s256"), "invalid_request"),
        ("code_challenge_method", Some("S512"), "invalid_request"),
        ("code_challenge", None, "invalid_request"),
        ("code_challenge", Some("short"), "invalid_request"),
        ("code_challenge", Some(&plain[1..]), "invalid_request"),
        (
            "code_challenge",
            Some("E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM="),
            "invalid_request",
        ),
        (
            "code_challenge",
            Some("E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw+cM"),
            "invalid_request",
        ),
        ("scope", Some("database:write"), "invalid_scope"),
        ("scope", Some("everything"), "invalid_scope"),
        ("scope", Some("PROJECTS:READ"), "invalid_scope"),
        ("resource", Some("https://evil.example"), "invalid_target"),
        ("resource", Some("http://#fragment"), "invalid_target"),
        ("resource", Some("mcp"), "invalid_target"),
        (
            "resource",
            Some("http://api.example/other"),
            "invalid_target",
        ),
        (
            "resource",
            Some("http://api.example/v1/projects"),
            "invalid_target",
        ),
    ] {
        let answer = ask_with(&app, &client, name, value).await.expect(303);
        let address = answer.header("location").unwrap();
        assert!(
            address.starts_with("https://app.example/callback?error="),
            "{name} {value:?}: {address}"
        );
        assert_eq!(
            parameter(address, "error"),
            error,
            "{name} {value:?}: {address}"
        );
        assert_eq!(
            (
                parameter(address, "state").as_str(),
                parameter(address, "iss").as_str()
            ),
            ("xyz", ISSUER),
            "{name}"
        );
        assert!(!address.contains("code="), "{address}");
    }
    assert_eq!(kept(&app).await, 0);
    let long = "x".repeat(3_000);
    let answer = ask_with(&app, &client, "state", Some(&long))
        .await
        .expect(303);
    assert!(
        parameters(answer.header("location").unwrap())
            .iter()
            .all(|(name, _)| name != "state")
    );
}

/// PKCE is required of public clients. Confidential clients may omit it, and then a verifier is
/// rejected.
#[tokio::test]
async fn authorize_as_public_client_requires_pkce() {
    let app = TestApp::new().await;
    let public = register(&app, json!({"public": true})).await;
    let answer = ask_with(&app, &public, "code_challenge", None)
        .await
        .expect(303);
    assert_eq!(
        parameter(answer.header("location").unwrap(), "error"),
        "invalid_request"
    );
    let without = [
        ("client_id", public.id.as_str()),
        ("redirect_uri", CALLBACK),
        ("response_type", "code"),
    ];
    let answer = ask(&app, &query(&without)).await.expect(303);
    assert_eq!(
        parameter(answer.header("location").unwrap(), "error"),
        "invalid_request"
    );
    let confidential = register(&app, json!({})).await;
    let without = [
        ("client_id", confidential.id.as_str()),
        ("redirect_uri", CALLBACK),
        ("response_type", "code"),
    ];
    let answer = ask(&app, &query(&without)).await.expect(303);
    assert!(
        answer
            .header("location")
            .unwrap()
            .starts_with("/authorize?auth_id=")
    );
    let alias = [
        without[0],
        without[1],
        without[2],
        ("code_challenge", CHALLENGE),
        ("code_challenge_method", "sha256"),
    ];
    ask(&app, &query(&alias)).await.expect(303);
    assert_eq!(kept(&app).await, 2);
}

#[tokio::test]
async fn authorize_project_claim_requires_permission() {
    let app = TestApp::new().await;
    let client = register(&app, json!({"project_selection": "optional"})).await;
    let fields: Vec<_> = client.authorization_parameters();
    let mut fields: Vec<_> = fields
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    fields.push(("project_ref", app.home.project.as_str()));
    let path = format!("/v1/oauth/authorize/project-claim?{}", query(&fields));
    app.get(&path).send().await.expect(401);
    app.get(&path).as_(&app.stranger).send().await.expect(404);
    for actor in [&app.administrator, &app.developer, &app.read_only] {
        app.get(&path).as_(actor).send().await.expect(403);
    }
    let answer = app.get(&path).as_(&app.owner).send().await.expect(303);
    let id = parameter(answer.header("location").unwrap(), "auth_id");
    let shown = app
        .get(&format!("/platform/oauth/authorizations/{id}"))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    assert_eq!(shown.json()["project_ref"], app.home.project.as_str());
    app.get("/v1/oauth/authorize/project-claim")
        .as_(&app.owner)
        .send()
        .await
        .expect(400);
}

/// RFC 8252, 7.3: other loopback ports are permitted to native clients, which are public.
#[tokio::test]
async fn authorize_with_other_loopback_port_requires_public_client() {
    let app = TestApp::new().await;
    let uris = json!(["http://127.0.0.1:4711/callback"]);
    let native = register(&app, json!({"public": true, "redirect_uris": uris})).await;
    let confidential = register(&app, json!({"redirect_uris": uris})).await;
    for (client, address, allowed) in [
        (&native, "http://127.0.0.1:4711/callback", true),
        (&native, "http://127.0.0.1:4712/callback", true),
        (&confidential, "http://127.0.0.1:4711/callback", true),
        (&confidential, "http://127.0.0.1:4712/callback", false),
    ] {
        let answer = ask_with(&app, client, "redirect_uri", Some(address)).await;
        if allowed {
            assert!(
                answer
                    .expect(303)
                    .header("location")
                    .unwrap()
                    .starts_with("/authorize?auth_id="),
                "{address}"
            );
        } else {
            assert_oauth_error(address, &answer, "invalid_request");
        }
    }
}

/// `state` is returned byte by byte, or rejected.
#[tokio::test]
async fn authorize_returns_state_unchanged_or_rejects_it() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    for state in [
        "xyz",
        "a b+c&d=e",
        "é\u{1f980}\r\n\t",
        "%FF",
        "\u{7f}\u{1}",
        "{\"a\":[1]}",
    ] {
        let address = client
            .approve(&app, &app.owner, &[("state", state)], &json!({}))
            .await;
        assert_eq!(parameter(&address, "state"), state);
    }
    let fields: Vec<_> = client.authorization_parameters();
    let fields: Vec<_> = fields
        .iter()
        .filter(|(name, _)| *name != "state")
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    let before = kept(&app).await;
    for odd in ["%FF", "a%C3", "%ED%A0%80", "%EF%BF%BD"] {
        assert_oauth_error(
            odd,
            &ask(&app, &format!("{}&state={odd}", query(&fields))).await,
            "invalid_request",
        );
    }
    let answer = ask(&app, &format!("{}&state=a%00b", query(&fields)))
        .await
        .expect(400);
    assert_eq!(
        answer.message(),
        "state: cannot contain the character U+0000"
    );
    assert_eq!(kept(&app).await, before);
}

/// The issuer is never derived from the `Host` header, which the client chooses.
#[tokio::test]
async fn authorize_without_public_url_is_rejected() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let pair = client.tokens(&app, &app.owner).await;
    let mut settings = settings(Transport::default(), uuid::Uuid::from_u128(2));
    settings.public_url = None;
    let node = app.another_with(settings, std::sync::Arc::new(Machine::bare()));
    let fields: Vec<_> = client.authorization_parameters();
    let fields: Vec<_> = fields
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    let registration = json!({"client_name": "Assistant", "redirect_uris": [CALLBACK]});
    for call in [
        node.get(&format!("/v1/oauth/authorize?{}", query(&fields))),
        node.get(&format!(
            "/v1/oauth/authorize/project-claim?{}&project_ref={}",
            query(&fields),
            app.home.project
        ))
        .as_(&app.owner),
        node.get("/.well-known/oauth-authorization-server"),
        node.get("/.well-known/oauth-protected-resource"),
        node.get("/.well-known/oauth-protected-resource/mcp"),
        node.post("/platform/oauth/apps/register")
            .json(&registration),
    ] {
        let answer = from_any_address(call)
            .header("host", "evil.example")
            .send()
            .await
            .expect(503);
        assert!(
            answer.message().contains("--public-url") && !answer.text().contains("evil.example"),
            "{answer:?}"
        );
    }
    let refused = node
        .get("/v1/projects")
        .header("host", "evil.example")
        .send()
        .await
        .expect(401);
    assert_eq!(
        refused.header("www-authenticate"),
        Some("Bearer scope=\"projects:read\"")
    );
    // Existing tokens stay valid.
    node.get("/v1/projects")
        .token(&pair.access)
        .send()
        .await
        .expect(200);
    client.refresh(&node, &pair.refresh).await.expect(200);
}
