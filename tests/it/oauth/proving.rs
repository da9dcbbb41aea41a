//! Attacks on the endpoints that programs call: who asks, and how a request has to look.

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::json;

use super::flow::{
    CALLBACK, Client, Pair, VERIFIER, add_secret, anywhere, apps, fails, register, tried,
};
use crate::support::{TestApp, client::Answer};

const UNKNOWN: &str = "00000000-0000-4000-8000-000000000000";

fn basic(name: &str, secret: &str) -> String {
    format!(
        "Basic {}",
        BASE64_STANDARD.encode(format!("{name}:{secret}"))
    )
}

/// A request of the token endpoint that is wrong about who asks, with a code that is right.
async fn asks(app: &TestApp, code: &str, header: Option<&str>, more: &[(&str, &str)]) -> Answer {
    let mut fields = vec![
        ("grant_type", "authorization_code"),
        ("code", code),
        ("redirect_uri", CALLBACK),
        ("code_verifier", VERIFIER),
    ];
    fields.extend(more);
    let call = anywhere(app.post("/oauth/token")).form(&fields);
    header
        .into_iter()
        .fold(call, |call, value| call.header("authorization", value))
        .send()
        .await
}

/// Every failure is the same answer, and none of them costs the code anything.
#[tokio::test]
async fn who_does_not_prove_who_it_is_gets_one_answer() {
    let app = TestApp::new().await;
    let (client, other) = (
        register(&app, json!({})).await,
        register(&app, json!({"name": "Other"})).await,
    );
    let public = register(&app, json!({"name": "Public", "public": true})).await;
    let (id, secret) = (client.id.as_str(), client.secret.as_deref().unwrap());
    let (others, upper) = (other.secret.as_deref().unwrap(), secret.to_uppercase());
    let code = client.code(&app, &app.owner).await;
    let named = ("client_id", id);
    let mut messages = Vec::new();
    for (case, header, more) in [
        ("no secret", None, vec![named]),
        ("empty secret", None, vec![named, ("client_secret", "")]),
        (
            "wrong secret",
            None,
            vec![
                named,
                (
                    "client_secret",
                    "sba_0000000000000000000000000000000000000000",
                ),
            ],
        ),
        (
            "part of the secret",
            None,
            vec![named, ("client_secret", &secret[..43])],
        ),
        (
            "more than the secret",
            None,
            vec![named, ("client_secret", &format!("{secret}0"))],
        ),
        (
            "the secret in capitals",
            None,
            vec![named, ("client_secret", &upper)],
        ),
        (
            "somebody else's secret",
            None,
            vec![named, ("client_secret", others)],
        ),
        (
            "unknown",
            None,
            vec![("client_id", UNKNOWN), ("client_secret", secret)],
        ),
        (
            "no uuid",
            None,
            vec![("client_id", "acme"), ("client_secret", secret)],
        ),
        (
            "a public one with a secret",
            None,
            vec![("client_id", &public.id), ("client_secret", secret)],
        ),
        ("basic, wrong", Some(basic(id, "wrong")), vec![]),
        ("basic, empty", Some(basic(id, "")), vec![]),
        ("basic, unknown", Some(basic(UNKNOWN, secret)), vec![]),
        ("basic, no name", Some(basic("", secret)), vec![]),
        (
            "basic, another name in the body",
            Some(basic(id, secret)),
            vec![("client_id", &other.id)],
        ),
        (
            "basic, somebody else's",
            Some(basic(&other.id, secret)),
            vec![named],
        ),
        (
            "basic, no colon",
            Some(format!("Basic {}", BASE64_STANDARD.encode(id))),
            vec![named, ("client_secret", secret)],
        ),
        (
            "basic, not base64",
            Some("Basic ???".to_owned()),
            vec![named, ("client_secret", secret)],
        ),
        (
            "basic, no text",
            Some(format!("Basic {}", BASE64_STANDARD.encode(b"\xff:\xff"))),
            vec![named, ("client_secret", secret)],
        ),
        (
            "basic, nothing",
            Some("Basic".to_owned()),
            vec![named, ("client_secret", secret)],
        ),
        (
            "bearer, no secret",
            Some(format!("Bearer {secret}")),
            vec![named],
        ),
        (
            "bearer, wrong secret",
            Some(format!("Bearer {secret}")),
            vec![named, ("client_secret", "wrong")],
        ),
        (
            "bearer in the place of all",
            Some(format!("Bearer {secret}")),
            vec![],
        ),
        (
            "digest",
            Some("Digest username=x".to_owned()),
            vec![named, ("client_secret", secret)],
        ),
    ] {
        let answer = asks(&app, &code, header.as_deref(), &more).await;
        fails(case, &answer, "invalid_client");
        assert_eq!(
            answer.header("www-authenticate"),
            Some("Basic realm=\"OAuth client\""),
            "{case}"
        );
        messages.push(answer.message());
    }
    messages.dedup();
    assert_eq!(messages.len(), 1, "{messages:?}");
    let twice = asks(
        &app,
        &code,
        Some(&basic(id, secret)),
        &[("client_secret", secret)],
    )
    .await;
    fails("two ways", &twice, "invalid_request");
    let headers = anywhere(app.post("/oauth/token"))
        .header("authorization", &basic(id, secret))
        .header("authorization", &basic(id, secret));
    let fields = [
        ("grant_type", "authorization_code"),
        ("code", code.as_str()),
        ("redirect_uri", CALLBACK),
        ("code_verifier", VERIFIER),
    ];
    fails(
        "two headers",
        &headers.form(&fields).send().await,
        "invalid_request",
    );
    let nobody = asks(&app, &code, None, &[]).await.expect(422);
    assert_eq!(nobody.message(), "Required parameter: client_id");
    client.exchange(&app.node, &code).await.expect(200);
}

#[tokio::test]
async fn a_request_is_a_form_in_a_body() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let code = client.code(&app, &app.owner).await;
    let secret = client.secret.as_deref().unwrap();
    let right = [
        ("grant_type", "authorization_code"),
        ("code", &code),
        ("redirect_uri", CALLBACK),
        ("code_verifier", VERIFIER),
        ("client_id", &client.id),
        ("client_secret", secret),
    ];
    let text = super::flow::query(&right);
    for path in ["/oauth/token", "/v1/oauth/token"] {
        fails(
            "query",
            &anywhere(app.post(&format!("{path}?{text}")))
                .form(&[])
                .send()
                .await,
            "invalid_request",
        );
        fails(
            "part of it in the query",
            &anywhere(app.post(&format!("{path}?code={code}")))
                .form(&right)
                .send()
                .await,
            "invalid_request",
        );
        let object: serde_json::Map<String, serde_json::Value> = right
            .iter()
            .map(|(name, value)| ((*name).into(), (*value).into()))
            .collect();
        fails(
            "json",
            &anywhere(app.post(path)).json(&object.into()).send().await,
            "invalid_request",
        );
        for kind in [
            "multipart/form-data; boundary=x",
            "text/plain",
            "application/x-www-form-urlencoded2",
        ] {
            fails(
                kind,
                &anywhere(app.post(path))
                    .header("content-type", kind)
                    .body(text.clone())
                    .send()
                    .await,
                "invalid_request",
            );
        }
        fails(
            "no type",
            &anywhere(app.post(path)).body(text.clone()).send().await,
            "invalid_request",
        );
        for method in ["GET", "PUT", "DELETE", "PATCH"] {
            anywhere(app.request(method, &format!("{path}?{text}")))
                .send()
                .await
                .expect(404);
        }
        for (name, value) in right {
            for again in [value, "other"] {
                let twice: Vec<_> = right.into_iter().chain([(name, again)]).collect();
                fails(
                    name,
                    &anywhere(app.post(path)).form(&twice).send().await,
                    "invalid_request",
                );
            }
        }
        let answer = anywhere(app.request("OPTIONS", path))
            .header("origin", "https://evil.example")
            .send()
            .await;
        assert!(answer.header("access-control-allow-origin").is_none());
    }
    anywhere(app.post("/oauth/token"))
        .form(&[("code", &"x".repeat(2 << 20))])
        .send()
        .await
        .expect(413);
    fails(
        "long",
        &client
            .call(
                &app.node,
                "/oauth/token",
                &[("grant_type", &"x".repeat(5_000))],
            )
            .send()
            .await,
        "invalid_request",
    );
    let charset = anywhere(app.post("/oauth/token")).header(
        "content-type",
        "application/x-www-form-urlencoded;charset=UTF-8",
    );
    charset.body(text).send().await.expect(200);
}

#[tokio::test]
async fn what_is_not_offered_is_not_granted() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    for kind in [
        "password",
        "client_credentials",
        "implicit",
        "token",
        "urn:ietf:params:oauth:grant-type:device_code",
        "urn:ietf:params:oauth:grant-type:token-exchange",
        "urn:ietf:params:oauth:grant-type:jwt-bearer",
        "AUTHORIZATION_CODE",
        "authorization_code ",
        "refresh_token,authorization_code",
    ] {
        let fields = [
            ("grant_type", kind),
            ("username", "olga@example.com"),
            ("password", "x"),
            ("assertion", "x"),
            ("device_code", "x"),
        ];
        fails(
            kind,
            &client.call(&app.node, "/oauth/token", &fields).send().await,
            "unsupported_grant_type",
        );
    }
    fails(
        "none",
        &client.call(&app.node, "/oauth/token", &[]).send().await,
        "invalid_request",
    );
    fails(
        "empty",
        &client
            .call(&app.node, "/oauth/token", &[("grant_type", "")])
            .send()
            .await,
        "invalid_request",
    );
    fails(
        "no code",
        &client
            .call(
                &app.node,
                "/oauth/token",
                &[("grant_type", "authorization_code")],
            )
            .send()
            .await,
        "invalid_request",
    );
    fails(
        "no refresh",
        &client
            .call(
                &app.node,
                "/oauth/token",
                &[("grant_type", "refresh_token")],
            )
            .send()
            .await,
        "invalid_request",
    );
}

/// A token counts in its header and nowhere else, and as nothing but what it is.
#[tokio::test]
async fn a_token_counts_in_its_header_as_what_it_is() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let pair = client.tokens(&app, &app.owner).await;
    app.get(&format!("/v1/projects?access_token={}", pair.access))
        .send()
        .await
        .expect(401);
    app.post("/v1/projects")
        .form(&[("access_token", &pair.access)])
        .send()
        .await
        .expect(401);
    app.get("/v1/projects")
        .header("cookie", &format!("gantry={}", pair.access))
        .send()
        .await
        .expect(401);
    app.get("/v1/projects")
        .header("authorization", &format!("Basic {}", pair.access))
        .send()
        .await
        .expect(401);
    for other in [
        pair.refresh.as_str(),
        client.secret.as_deref().unwrap(),
        &pair.access.replace("oauth_", ""),
        &pair.access.replace("oauth_", "v0_"),
        &pair.access.to_uppercase(),
        &pair.access[..49],
        &format!("{}0", pair.access),
        &format!("sbp_oauth_{}", "0".repeat(40)),
    ] {
        app.get("/v1/projects")
            .token(other)
            .send()
            .await
            .expect(401);
    }
    app.get("/v1/projects")
        .token(&pair.access)
        .token(&app.owner.token)
        .send()
        .await
        .expect(400);
    assert_eq!(tried(&app.node, &pair.access).await, 200);
}

/// What may be introspected is one's own, by who proves who it is; all the rest looks alike.
#[tokio::test]
async fn a_token_is_explained_to_its_application_only() {
    let app = TestApp::new().await;
    let (client, other) = (
        register(&app, json!({})).await,
        register(&app, json!({"name": "Other"})).await,
    );
    let public = register(&app, json!({"name": "Public", "public": true})).await;
    let pair = client.tokens(&app, &app.owner).await;
    let explain = async |client: &Client, token: &str| {
        client
            .call(&app.node, "/oauth/introspect", &[("token", token)])
            .send()
            .await
    };
    let told = explain(&client, &pair.access).await.expect(200).json();
    assert_eq!(
        (&told["active"], &told["token_type"], &told["client_id"]),
        (&json!(true), &json!("Bearer"), &json!(client.id))
    );
    assert_eq!(told["sub"], app.owner.gotrue_id.to_string());
    assert_eq!(
        told["exp"].as_i64().unwrap() - told["iat"].as_i64().unwrap(),
        86_400
    );
    assert_eq!(told["token_use"], "access_token");
    let refresh = explain(&client, &pair.refresh).await.expect(200).json();
    assert_eq!(
        (&refresh["token_use"], refresh.get("token_type")),
        (&json!("refresh_token"), None)
    );
    let inactive = json!({"active": false});
    for (case, client, token) in [
        ("another's", &other, pair.access.as_str()),
        ("another's refresh token", &other, &pair.refresh),
        ("a personal one", &client, &app.owner.token),
        ("nonsense", &client, "nonsense"),
        ("a secret", &client, client.secret.as_deref().unwrap()),
    ] {
        assert_eq!(
            explain(client, token).await.expect(200).json(),
            inactive,
            "{case}"
        );
    }
    fails(
        "public",
        &explain(&public, &pair.access).await,
        "invalid_client",
    );
    fails(
        "no token",
        &client
            .call(&app.node, "/oauth/introspect", &[])
            .send()
            .await,
        "invalid_request",
    );
    let nobody = anywhere(app.post("/oauth/introspect"))
        .form(&[("token", &pair.access), ("client_id", &client.id)])
        .send()
        .await;
    fails("nobody", &nobody, "invalid_client");
    let unnamed = anywhere(app.post("/oauth/introspect"))
        .form(&[("token", &pair.access)])
        .send()
        .await;
    fails("no credentials", &unnamed, "invalid_client");
    assert_eq!(
        unnamed.header("www-authenticate"),
        Some("Basic realm=\"OAuth client\"")
    );
    let fresh = Pair::of(&client.refresh(&app.node, &pair.refresh).await.expect(200));
    assert_eq!(
        explain(&client, &pair.refresh).await.expect(200).json(),
        inactive,
        "it was used"
    );
    client
        .call(&app.node, "/oauth/revoke", &[("token", &fresh.refresh)])
        .send()
        .await
        .expect(200);
    for token in [&pair.access, &fresh.access, &fresh.refresh] {
        assert_eq!(
            explain(&client, token).await.expect(200).json(),
            inactive,
            "revoked"
        );
    }
}

/// Two secrets overlap while one is replaced by the other; what was issued before goes on.
#[tokio::test]
async fn a_secret_is_replaced_without_a_gap() {
    let app = TestApp::new().await;
    let old = register(&app, json!({})).await;
    let pair = old.tokens(&app, &app.owner).await;
    let (secret, _) = add_secret(&app, &old.id).await;
    let new = Client {
        secret: Some(secret),
        ..old.clone()
    };
    let pair = Pair::of(&new.refresh(&app.node, &pair.refresh).await.expect(200));
    let pair = Pair::of(&old.refresh(&app.node, &pair.refresh).await.expect(200));
    let detail = app
        .get(&format!("{}/{}", apps(&app), old.id))
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json();
    let first = detail["secrets"]
        .as_array()
        .unwrap()
        .iter()
        .min_by_key(|secret| secret["id"].as_i64())
        .unwrap()
        .clone();
    assert_eq!(
        first["hint"],
        format!("…{}", &old.secret.as_deref().unwrap()[40..])
    );
    assert!(
        first["last_used_at"].is_string()
            && !detail.to_string().contains(old.secret.as_deref().unwrap())
    );
    app.delete(&format!(
        "{}/{}/secrets/{}",
        apps(&app),
        old.id,
        first["id"]
    ))
    .as_(&app.owner)
    .send()
    .await
    .expect(200);
    fails(
        "revoked",
        &old.refresh(&app.node, &pair.refresh).await,
        "invalid_client",
    );
    assert_eq!(tried(&app.node, &pair.access).await, 200);
    new.refresh(&app.node, &pair.refresh).await.expect(200);
}

/// Guesses are counted by who makes them, long before they lead anywhere.
#[tokio::test]
async fn guesses_are_counted() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    for _ in 0..120 {
        let fields = [
            ("grant_type", "refresh_token"),
            ("client_id", client.id.as_str()),
            ("client_secret", "guessed"),
        ];
        app.post("/oauth/token")
            .form(&fields)
            .send()
            .await
            .expect(401);
    }
    let fields = [
        ("client_id", client.id.as_str()),
        ("client_secret", client.secret.as_deref().unwrap()),
    ];
    app.post("/oauth/token")
        .form(&fields)
        .send()
        .await
        .expect(429);
    app.advance(60);
    app.post("/oauth/token")
        .form(&fields)
        .send()
        .await
        .expect(400);
}

/// The management SDK sends its personal access token with every request, also with those that authenticate in the body.
#[tokio::test]
async fn a_bearer_token_beside_credentials_in_the_body_says_nothing() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let code = client.code(&app, &app.owner).await;
    let fields = [
        ("grant_type", "authorization_code"),
        ("code", &code),
        ("redirect_uri", CALLBACK),
        ("code_verifier", VERIFIER),
    ];
    let bearer = format!("Bearer {}", app.owner.token);
    let pair = Pair::of(
        &client
            .call(&app.node, "/v1/oauth/token", &fields)
            .header("authorization", &bearer)
            .send()
            .await
            .expect(201),
    );
    let fields = [
        ("grant_type", "refresh_token"),
        ("refresh_token", pair.refresh.as_str()),
    ];
    let pair = Pair::of(
        &client
            .call(&app.node, "/oauth/token", &fields)
            .header("authorization", &bearer)
            .send()
            .await
            .expect(200),
    );
    let wrong =
        json!({"client_id": client.id, "client_secret": "wrong", "refresh_token": pair.refresh});
    fails(
        "wrong",
        &app.post("/v1/oauth/revoke")
            .token(&app.owner.token)
            .json(&wrong)
            .send()
            .await,
        "invalid_client",
    );
    let right = json!({"client_id": client.id, "client_secret": client.secret, "refresh_token": pair.refresh});
    app.post("/v1/oauth/revoke")
        .token(&app.owner.token)
        .json(&right)
        .send()
        .await
        .expect(204);
    assert_eq!(tried(&app.node, &pair.access).await, 401);
}
