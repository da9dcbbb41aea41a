//! Attacks on codes and refresh tokens: replay, theft and escalation, and lost responses.

use serde_json::json;

use super::flow::{
    CALLBACK, CHALLENGE, Client, Pair, VERIFIER, assert_oauth_error, list_projects_status,
    parameter, register,
};
use crate::support::{TestApp, client::Answer};

async fn exchange(
    app: &TestApp,
    client: &Client,
    code: &str,
    redirect: Option<&str>,
    verifier: Option<&str>,
) -> Answer {
    let mut fields = vec![("grant_type", "authorization_code"), ("code", code)];
    fields.extend(redirect.map(|address| ("redirect_uri", address)));
    fields.extend(verifier.map(|verifier| ("code_verifier", verifier)));
    client.call(&app.node, "/oauth/token", &fields).send().await
}

/// A failed exchange by the code's own application consumes the code.
#[tokio::test]
async fn failed_exchange_consumes_code() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let (short, upper, padded) = (
        &VERIFIER[1..],
        VERIFIER.to_uppercase(),
        format!("{VERIFIER}="),
    );
    for (case, redirect, verifier) in [
        (
            "another address",
            Some("https://app.example/other"),
            Some(VERIFIER),
        ),
        (
            "a longer address",
            Some("https://app.example/callback/"),
            Some(VERIFIER),
        ),
        ("no address", None, Some(VERIFIER)),
        ("no verifier", Some(CALLBACK), None),
        ("an empty verifier", Some(CALLBACK), Some("")),
        ("the challenge as verifier", Some(CALLBACK), Some(CHALLENGE)),
        ("a short verifier", Some(CALLBACK), Some(short)),
        ("a verifier in capitals", Some(CALLBACK), Some(&upper)),
        ("a padded verifier", Some(CALLBACK), Some(&padded)),
        (
            "another verifier",
            Some(CALLBACK),
            Some("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"),
        ),
    ] {
        let code = client.code(&app, &app.owner).await;
        assert_oauth_error(
            case,
            &exchange(&app, &client, &code, redirect, verifier).await,
            "invalid_grant",
        );
        assert_oauth_error(
            case,
            &client.exchange(&app.node, &code).await,
            "invalid_grant",
        );
        app.advance(30);
    }
}

/// A verifier for a code without a challenge indicates code injection.
#[tokio::test]
async fn exchange_without_matching_verifier_is_rejected() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let without = [("code_challenge", ""), ("code_challenge_method", "")];
    let code = async || {
        parameter(
            &client.approve(&app, &app.owner, &without, &json!({})).await,
            "code",
        )
    };
    assert_oauth_error(
        "slipped in",
        &exchange(&app, &client, &code().await, Some(CALLBACK), Some(VERIFIER)).await,
        "invalid_grant",
    );
    exchange(&app, &client, &code().await, Some(CALLBACK), None)
        .await
        .expect(200);
}

#[tokio::test]
async fn expired_code_is_rejected() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let code = client.code(&app, &app.owner).await;
    app.advance(59);
    client.exchange(&app.node, &code).await.expect(200);
    let late = client.code(&app, &app.owner).await;
    app.advance(60);
    assert_oauth_error(
        "late",
        &client.exchange(&app.node, &late).await,
        "invalid_grant",
    );
}

/// A replayed code revokes the grant.
#[tokio::test]
async fn replayed_code_revokes_grant() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let code = client.code(&app, &app.owner).await;
    let pair = Pair::of(&client.exchange(&app.node, &code).await.expect(200));
    assert_eq!(list_projects_status(&app.node, &pair.access).await, 200);
    assert_oauth_error(
        "again",
        &client.exchange(&app.node, &code).await,
        "invalid_grant",
    );
    assert_eq!(list_projects_status(&app.node, &pair.access).await, 401);
    assert_oauth_error(
        "its refresh token",
        &client.refresh(&app.node, &pair.refresh).await,
        "invalid_grant",
    );
    // A replay revokes the grant even if it has other errors, or an hour later.
    let code = client.code(&app, &app.owner).await;
    let pair = Pair::of(&client.exchange(&app.node, &code).await.expect(200));
    app.advance(3_600);
    assert_oauth_error(
        "wrong, later",
        &exchange(&app, &client, &code, None, None).await,
        "invalid_grant",
    );
    assert_eq!(list_projects_status(&app.node, &pair.access).await, 401);
}

/// Credentials of another application are rejected and stay valid.
#[tokio::test]
async fn credentials_of_other_application_are_rejected() {
    let app = TestApp::new().await;
    let (client, thief) = (
        register(&app, json!({})).await,
        register(&app, json!({"name": "Thief"})).await,
    );
    let code = client.code(&app, &app.owner).await;
    for _ in 0..3 {
        assert_oauth_error(
            "code",
            &thief.exchange(&app.node, &code).await,
            "invalid_grant",
        );
    }
    let pair = Pair::of(&client.exchange(&app.node, &code).await.expect(200));
    for _ in 0..3 {
        assert_oauth_error(
            "used code",
            &thief.exchange(&app.node, &code).await,
            "invalid_grant",
        );
        assert_oauth_error(
            "refresh token",
            &thief.refresh(&app.node, &pair.refresh).await,
            "invalid_grant",
        );
    }
    thief
        .call(&app.node, "/oauth/revoke", &[("token", &pair.refresh)])
        .send()
        .await
        .expect(200);
    thief
        .call(&app.node, "/oauth/revoke", &[("token", &pair.access)])
        .send()
        .await
        .expect(200);
    assert_eq!(list_projects_status(&app.node, &pair.access).await, 200);
    client.refresh(&app.node, &pair.refresh).await.expect(200);
}

#[tokio::test]
async fn credential_of_wrong_type_is_rejected() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let (pair, code) = (
        client.tokens(&app, &app.owner).await,
        client.code(&app, &app.owner).await,
    );
    let invented = [
        format!("sbc_{}", "0".repeat(40)),
        format!("sbr_{}", "0".repeat(40)),
        "x".to_owned(),
        "'; drop table users; --".to_owned(),
    ];
    for text in [&pair.refresh, &pair.access].into_iter().chain(&invented) {
        assert_oauth_error(
            text,
            &client.exchange(&app.node, text).await,
            "invalid_grant",
        );
    }
    for text in [&code, &pair.access].into_iter().chain(&invented) {
        assert_oauth_error(
            text,
            &client.refresh(&app.node, text).await,
            "invalid_grant",
        );
    }
    let upper = pair.refresh.to_uppercase();
    assert_oauth_error(
        "capitals",
        &client.refresh(&app.node, &upper).await,
        "invalid_grant",
    );
    client.exchange(&app.node, &code).await.expect(200);
    client.refresh(&app.node, &pair.refresh).await.expect(200);
}

/// A retry after a lost response succeeds, unless a token of the response was used.
#[tokio::test]
async fn refresh_retry_after_lost_response_succeeds() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let first = client.tokens(&app, &app.owner).await;
    let lost = Pair::of(&client.refresh(&app.node, &first.refresh).await.expect(200));
    app.advance(9);
    let again = Pair::of(&client.refresh(&app.node, &first.refresh).await.expect(200));
    assert_eq!(
        (
            list_projects_status(&app.node, &lost.access).await,
            list_projects_status(&app.node, &again.access).await
        ),
        (401, 200)
    );
    // The token was used, so the response had arrived.
    assert_oauth_error(
        "arrived",
        &client.refresh(&app.node, &first.refresh).await,
        "invalid_grant",
    );
    assert_eq!(list_projects_status(&app.node, &again.access).await, 401);
    assert_oauth_error(
        "ended",
        &client.refresh(&app.node, &again.refresh).await,
        "invalid_grant",
    );
}

#[tokio::test]
async fn reused_refresh_token_revokes_grant() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let ended = async |case: &str, first: &Pair, last: &Pair, again: &str| {
        assert_oauth_error(
            case,
            &client.refresh(&app.node, again).await,
            "invalid_grant",
        );
        assert_eq!(
            (
                list_projects_status(&app.node, &first.access).await,
                list_projects_status(&app.node, &last.access).await
            ),
            (401, 401),
            "{case}"
        );
        assert_oauth_error(
            case,
            &client.refresh(&app.node, &last.refresh).await,
            "invalid_grant",
        );
        app.advance(120);
    };
    let next =
        async |pair: &Pair| Pair::of(&client.refresh(&app.node, &pair.refresh).await.expect(200));

    let first = client.tokens(&app, &app.owner).await;
    let second = next(&first).await;
    app.advance(10);
    ended("after ten seconds", &first, &second, &first.refresh).await;

    let first = client.tokens(&app, &app.owner).await;
    let second = next(&first).await;
    let third = next(&second).await;
    ended("the one before the last", &second, &third, &first.refresh).await;

    let first = client.tokens(&app, &app.owner).await;
    let second = next(&first).await;
    list_projects_status(&app.node, &second.access).await;
    ended("the new one was used", &first, &second, &first.refresh).await;

    let first = client.tokens(&app, &app.owner).await;
    let lost = next(&first).await;
    let second = next(&first).await;
    ended("the lost one turned up", &first, &second, &lost.refresh).await;
}

#[tokio::test]
async fn refresh_token_expiry_slides_up_to_grant_lifetime() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let day = 86_400;
    let mut pair = client.tokens(&app, &app.owner).await;
    for _ in 0..6 {
        app.advance(59 * day);
        pair = Pair::of(&client.refresh(&app.node, &pair.refresh).await.expect(200));
    }
    // A grant ends after a year, regardless of refreshes.
    app.advance(11 * day);
    assert_oauth_error(
        "a year",
        &client.refresh(&app.node, &pair.refresh).await,
        "invalid_grant",
    );
    let pair = client.tokens(&app, &app.owner).await;
    app.advance(day - 1);
    assert_eq!(list_projects_status(&app.node, &pair.access).await, 200);
    app.advance(1);
    assert_eq!(list_projects_status(&app.node, &pair.access).await, 401);
    app.advance(59 * day);
    assert_oauth_error(
        "unused",
        &client.refresh(&app.node, &pair.refresh).await,
        "invalid_grant",
    );
}

#[tokio::test]
async fn refresh_can_narrow_but_not_widen_scopes() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let address = client
        .approve(
            &app,
            &app.owner,
            &[("scope", "projects:read database:read database:write")],
            &json!({}),
        )
        .await;
    let answer = client
        .exchange(&app.node, &parameter(&address, "code"))
        .await
        .expect(200);
    assert_eq!(answer.json()["scope"], "database:read projects:read");
    let mut pair = Pair::of(&answer);
    app.get("/v1/organizations")
        .token(&pair.access)
        .send()
        .await
        .expect(403);
    let refresh = async |pair: &Pair, scope: &str| {
        client
            .call(
                &app.node,
                "/oauth/token",
                &[
                    ("grant_type", "refresh_token"),
                    ("refresh_token", &pair.refresh),
                    ("scope", scope),
                ],
            )
            .send()
            .await
    };
    for wider in [
        "organizations:read",
        "database:read organizations:read",
        "database:write",
        "nonsense",
        "projects:read nonsense",
        " ",
    ] {
        assert_oauth_error(wider, &refresh(&pair, wider).await, "invalid_scope");
    }
    let narrow = refresh(&pair, "database:read").await.expect(200);
    assert_eq!(narrow.json()["scope"], "database:read");
    pair = Pair::of(&narrow);
    let refused = app
        .get("/v1/projects")
        .token(&pair.access)
        .send()
        .await
        .expect(403);
    assert_eq!(
        refused.message(),
        "Missing required OAuth scope: projects:read"
    );
    // The narrower scope applies to the token, not to the grant.
    let whole = Pair::of(&client.refresh(&app.node, &pair.refresh).await.expect(200));
    assert_eq!(list_projects_status(&app.node, &whole.access).await, 200);
    let narrow = async |code: &str, scope: &str| {
        let fields = [
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", CALLBACK),
            ("code_verifier", VERIFIER),
            ("scope", scope),
        ];
        client.call(&app.node, "/oauth/token", &fields).send().await
    };
    assert_oauth_error(
        "at the code",
        &narrow(&client.code(&app, &app.owner).await, "database:write").await,
        "invalid_scope",
    );
    assert_eq!(
        narrow(&client.code(&app, &app.owner).await, "projects:read")
            .await
            .expect(200)
            .json()["scope"],
        "projects:read"
    );
}

#[tokio::test]
async fn exchange_with_unapproved_resource_is_rejected() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let exchange = async |asked: &str, given: &str| {
        let address = client
            .approve(&app, &app.owner, &[("resource", asked)], &json!({}))
            .await;
        let fields = [
            ("grant_type", "authorization_code"),
            ("code", &parameter(&address, "code")),
            ("redirect_uri", CALLBACK),
            ("code_verifier", VERIFIER),
            ("resource", given),
        ];
        client.call(&app.node, "/oauth/token", &fields).send().await
    };
    let here = "http://api.example/mcp";
    let pair = Pair::of(&exchange(here, here).await.expect(200));
    assert_oauth_error(
        "another",
        &exchange(here, "http://api.example/other").await,
        "invalid_target",
    );
    assert_oauth_error("added", &exchange("", here).await, "invalid_target");
    let fields = [
        ("grant_type", "refresh_token"),
        ("refresh_token", pair.refresh.as_str()),
        ("resource", "http://api.example/other"),
    ];
    assert_oauth_error(
        "at the refresh",
        &client.call(&app.node, "/oauth/token", &fields).send().await,
        "invalid_target",
    );
    let told = client
        .call(&app.node, "/oauth/introspect", &[("token", &pair.access)])
        .send()
        .await
        .expect(200);
    assert_eq!(told.json()["aud"], here);
}

/// No table contains a token, code or secret in plain text.
#[tokio::test]
async fn no_table_contains_secrets() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let code = client.code(&app, &app.owner).await;
    let pair = Pair::of(&client.exchange(&app.node, &code).await.expect(200));
    client.exchange(&app.node, &code).await.expect(400);
    client.refresh(&app.node, &pair.refresh).await.expect(400);
    list_projects_status(&app.node, &pair.access).await;
    let secrets = [
        &code,
        &pair.access,
        &pair.refresh,
        client.secret.as_ref().unwrap(),
    ];
    for table in [
        "oauth_codes",
        "oauth_access_tokens",
        "oauth_refresh_tokens",
        "oauth_secrets",
        "oauth_grants",
        "audit_entries",
    ] {
        let rows = crate::support::postgres::connect(&app.config).await;
        let text: String = rows
            .query_one(
                &format!("select coalesce(string_agg(t::text, ' '), '') from {table} t"),
                &[],
            )
            .await
            .unwrap()
            .get(0);
        assert!(!text.is_empty(), "{table}");
        for secret in secrets {
            assert!(
                !text.contains(&secret[secret.len() - 40..]),
                "{secret} is in {table}"
            );
        }
    }
}
