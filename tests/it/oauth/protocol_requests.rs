//! Attacks on the form of protocol requests, and on introspection.

use serde_json::json;

use super::flow::{
    CALLBACK, Client, Pair, VERIFIER, assert_oauth_error, from_any_address, list_projects_status,
    register,
};
use crate::support::TestApp;

#[tokio::test]
async fn token_request_must_be_form_in_body() {
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
        assert_oauth_error(
            "query",
            &from_any_address(app.post(&format!("{path}?{text}")))
                .form(&[])
                .send()
                .await,
            "invalid_request",
        );
        assert_oauth_error(
            "part of it in the query",
            &from_any_address(app.post(&format!("{path}?code={code}")))
                .form(&right)
                .send()
                .await,
            "invalid_request",
        );
        let object: serde_json::Map<String, serde_json::Value> = right
            .iter()
            .map(|(name, value)| ((*name).into(), (*value).into()))
            .collect();
        assert_oauth_error(
            "json",
            &from_any_address(app.post(path))
                .json(&object.into())
                .send()
                .await,
            "invalid_request",
        );
        for kind in [
            "multipart/form-data; boundary=x",
            "text/plain",
            "application/x-www-form-urlencoded2",
        ] {
            assert_oauth_error(
                kind,
                &from_any_address(app.post(path))
                    .header("content-type", kind)
                    .body(text.clone())
                    .send()
                    .await,
                "invalid_request",
            );
        }
        assert_oauth_error(
            "no type",
            &from_any_address(app.post(path))
                .body(text.clone())
                .send()
                .await,
            "invalid_request",
        );
        for method in ["GET", "PUT", "DELETE", "PATCH"] {
            from_any_address(app.request(method, &format!("{path}?{text}")))
                .send()
                .await
                .expect(404);
        }
        for (name, value) in right {
            for again in [value, "other"] {
                let twice: Vec<_> = right.into_iter().chain([(name, again)]).collect();
                assert_oauth_error(
                    name,
                    &from_any_address(app.post(path)).form(&twice).send().await,
                    "invalid_request",
                );
            }
        }
        let answer = from_any_address(app.request("OPTIONS", path))
            .header("origin", "https://evil.example")
            .send()
            .await;
        assert!(answer.header("access-control-allow-origin").is_none());
    }
    from_any_address(app.post("/oauth/token"))
        .form(&[("code", &"x".repeat(2 << 20))])
        .send()
        .await
        .expect(413);
    assert_oauth_error(
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
    let charset = from_any_address(app.post("/oauth/token")).header(
        "content-type",
        "application/x-www-form-urlencoded;charset=UTF-8",
    );
    charset.body(text).send().await.expect(200);
}

#[tokio::test]
async fn unsupported_grant_type_is_rejected() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    for kind in [
        "password",
        "client_credentials",
        "implicit",
        "token",
        "urn:ietf:params:oauth:grant-type:device_code",
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
        assert_oauth_error(
            kind,
            &client.call(&app.node, "/oauth/token", &fields).send().await,
            "unsupported_grant_type",
        );
    }
    assert_oauth_error(
        "none",
        &client.call(&app.node, "/oauth/token", &[]).send().await,
        "invalid_request",
    );
    assert_oauth_error(
        "empty",
        &client
            .call(&app.node, "/oauth/token", &[("grant_type", "")])
            .send()
            .await,
        "invalid_request",
    );
    assert_oauth_error(
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
    assert_oauth_error(
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

/// A token is accepted only in the `Authorization` header, and only as its own type.
#[tokio::test]
async fn token_outside_authorization_header_is_rejected() {
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
    assert_eq!(list_projects_status(&app.node, &pair.access).await, 200);
}

/// A client can introspect only its own tokens; all others are reported as inactive.
#[tokio::test]
async fn introspect_reports_own_tokens_only() {
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
    assert_oauth_error(
        "public",
        &explain(&public, &pair.access).await,
        "invalid_client",
    );
    assert_oauth_error(
        "no token",
        &client
            .call(&app.node, "/oauth/introspect", &[])
            .send()
            .await,
        "invalid_request",
    );
    let nobody = from_any_address(app.post("/oauth/introspect"))
        .form(&[("token", &pair.access), ("client_id", &client.id)])
        .send()
        .await;
    assert_oauth_error("nobody", &nobody, "invalid_client");
    let unnamed = from_any_address(app.post("/oauth/introspect"))
        .form(&[("token", &pair.access)])
        .send()
        .await;
    assert_oauth_error("no credentials", &unnamed, "invalid_client");
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
