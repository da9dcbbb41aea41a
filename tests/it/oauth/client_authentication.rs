//! Attacks on client authentication.

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::json;

use super::flow::{
    CALLBACK, Client, Pair, VERIFIER, add_secret, apps, assert_oauth_error, from_any_address,
    list_projects_status, register,
};
use crate::support::{TestApp, client::Answer};

const UNKNOWN: &str = "00000000-0000-4000-8000-000000000000";

fn basic(name: &str, secret: &str) -> String {
    format!(
        "Basic {}",
        BASE64_STANDARD.encode(format!("{name}:{secret}"))
    )
}

/// Sends a token request with a valid code and the given credentials.
async fn exchange_with_credentials(
    app: &TestApp,
    code: &str,
    header: Option<&str>,
    more: &[(&str, &str)],
) -> Answer {
    let mut fields = vec![
        ("grant_type", "authorization_code"),
        ("code", code),
        ("redirect_uri", CALLBACK),
        ("code_verifier", VERIFIER),
    ];
    fields.extend(more);
    let call = from_any_address(app.post("/oauth/token")).form(&fields);
    header
        .into_iter()
        .fold(call, |call, value| call.header("authorization", value))
        .send()
        .await
}

/// All failures return the same error and leave the code usable.
#[tokio::test]
async fn token_exchange_by_unauthenticated_client_returns_invalid_client() {
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
            "secret of another application",
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
            "basic, secret of another application",
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
        let answer = exchange_with_credentials(&app, &code, header.as_deref(), &more).await;
        assert_oauth_error(case, &answer, "invalid_client");
        assert_eq!(
            answer.header("www-authenticate"),
            Some("Basic realm=\"OAuth client\""),
            "{case}"
        );
        messages.push(answer.message());
    }
    messages.dedup();
    assert_eq!(messages.len(), 1, "{messages:?}");
    let twice = exchange_with_credentials(
        &app,
        &code,
        Some(&basic(id, secret)),
        &[("client_secret", secret)],
    )
    .await;
    assert_oauth_error("two ways", &twice, "invalid_request");
    let headers = from_any_address(app.post("/oauth/token"))
        .header("authorization", &basic(id, secret))
        .header("authorization", &basic(id, secret));
    let fields = [
        ("grant_type", "authorization_code"),
        ("code", code.as_str()),
        ("redirect_uri", CALLBACK),
        ("code_verifier", VERIFIER),
    ];
    assert_oauth_error(
        "two headers",
        &headers.form(&fields).send().await,
        "invalid_request",
    );
    let nobody = exchange_with_credentials(&app, &code, None, &[])
        .await
        .expect(422);
    assert_eq!(nobody.message(), "Required parameter: client_id");
    client.exchange(&app.node, &code).await.expect(200);
}

/// During rotation two secrets are valid; existing tokens stay valid afterwards.
#[tokio::test]
async fn secret_rotation_keeps_both_secrets_valid() {
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
    assert_oauth_error(
        "revoked",
        &old.refresh(&app.node, &pair.refresh).await,
        "invalid_client",
    );
    assert_eq!(list_projects_status(&app.node, &pair.access).await, 200);
    new.refresh(&app.node, &pair.refresh).await.expect(200);
}

/// Failed attempts are rate limited by client address.
#[tokio::test]
async fn failed_client_authentication_is_rate_limited() {
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

/// The management SDK sends a bearer token with requests that authenticate in the body.
#[tokio::test]
async fn bearer_token_beside_body_credentials_is_ignored() {
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
    assert_oauth_error(
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
    assert_eq!(list_projects_status(&app.node, &pair.access).await, 401);
}
