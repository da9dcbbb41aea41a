//! Attacks on codes and refresh tokens: replay, theft, widening, and what only looks like an attack.

use serde_json::json;

use super::flow::{CALLBACK, CHALLENGE, Client, Pair, VERIFIER, fails, parameter, register, tried};
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

/// A code that was tried wrongly by its own application is used up; the right proof comes too late.
#[tokio::test]
async fn a_code_is_tried_once() {
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
        fails(
            case,
            &exchange(&app, &client, &code, redirect, verifier).await,
            "invalid_grant",
        );
        fails(
            case,
            &client.exchange(&app.node, &code).await,
            "invalid_grant",
        );
        app.advance(30);
    }
}

/// Whoever brings a verifier for a code that was made without a challenge has a code that was made for somebody else.
#[tokio::test]
async fn a_proof_cannot_be_left_out_or_slipped_in() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let without = [("code_challenge", ""), ("code_challenge_method", "")];
    let code = async || {
        parameter(
            &client
                .approved(&app, &app.owner, &without, &json!({}))
                .await,
            "code",
        )
    };
    fails(
        "slipped in",
        &exchange(&app, &client, &code().await, Some(CALLBACK), Some(VERIFIER)).await,
        "invalid_grant",
    );
    exchange(&app, &client, &code().await, Some(CALLBACK), None)
        .await
        .expect(200);
}

#[tokio::test]
async fn a_code_is_over_after_a_minute() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let code = client.code(&app, &app.owner).await;
    app.advance(59);
    client.exchange(&app.node, &code).await.expect(200);
    let late = client.code(&app, &app.owner).await;
    app.advance(60);
    fails(
        "late",
        &client.exchange(&app.node, &late).await,
        "invalid_grant",
    );
}

/// A code that comes twice is in two hands: everything it led to ends at once.
#[tokio::test]
async fn a_replayed_code_ends_what_it_led_to() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let code = client.code(&app, &app.owner).await;
    let pair = Pair::of(&client.exchange(&app.node, &code).await.expect(200));
    assert_eq!(tried(&app.node, &pair.access).await, 200);
    fails(
        "again",
        &client.exchange(&app.node, &code).await,
        "invalid_grant",
    );
    assert_eq!(tried(&app.node, &pair.access).await, 401);
    fails(
        "its refresh token",
        &client.refresh(&app.node, &pair.refresh).await,
        "invalid_grant",
    );
    // Also when it is wrong the second time, and also an hour later.
    let code = client.code(&app, &app.owner).await;
    let pair = Pair::of(&client.exchange(&app.node, &code).await.expect(200));
    app.advance(3_600);
    fails(
        "wrong, later",
        &exchange(&app, &client, &code, None, None).await,
        "invalid_grant",
    );
    assert_eq!(tried(&app.node, &pair.access).await, 401);
}

/// What belongs to another application is of no use, and stays as good as it was.
#[tokio::test]
async fn a_stolen_code_or_token_is_of_no_use_to_another_application() {
    let app = TestApp::new().await;
    let (client, thief) = (
        register(&app, json!({})).await,
        register(&app, json!({"name": "Thief"})).await,
    );
    let code = client.code(&app, &app.owner).await;
    for _ in 0..3 {
        fails(
            "code",
            &thief.exchange(&app.node, &code).await,
            "invalid_grant",
        );
    }
    let pair = Pair::of(&client.exchange(&app.node, &code).await.expect(200));
    for _ in 0..3 {
        fails(
            "used code",
            &thief.exchange(&app.node, &code).await,
            "invalid_grant",
        );
        fails(
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
    assert_eq!(tried(&app.node, &pair.access).await, 200);
    client.refresh(&app.node, &pair.refresh).await.expect(200);
}

#[tokio::test]
async fn nothing_is_what_it_is_not() {
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
        fails(
            text,
            &client.exchange(&app.node, text).await,
            "invalid_grant",
        );
    }
    for text in [&code, &pair.access].into_iter().chain(&invented) {
        fails(
            text,
            &client.refresh(&app.node, text).await,
            "invalid_grant",
        );
    }
    let upper = pair.refresh.to_uppercase();
    fails(
        "capitals",
        &client.refresh(&app.node, &upper).await,
        "invalid_grant",
    );
    client.exchange(&app.node, &code).await.expect(200);
    client.refresh(&app.node, &pair.refresh).await.expect(200);
}

/// A client whose answer got lost asks again; a thief who is late looks the same, except that somebody used the answer.
#[tokio::test]
async fn an_answer_may_get_lost_once_and_only_just_now() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let first = client.tokens(&app, &app.owner).await;
    let lost = Pair::of(&client.refresh(&app.node, &first.refresh).await.expect(200));
    app.advance(9);
    let again = Pair::of(&client.refresh(&app.node, &first.refresh).await.expect(200));
    assert_eq!(
        (
            tried(&app.node, &lost.access).await,
            tried(&app.node, &again.access).await
        ),
        (401, 200)
    );
    // It was used, so it arrived.
    fails(
        "arrived",
        &client.refresh(&app.node, &first.refresh).await,
        "invalid_grant",
    );
    assert_eq!(tried(&app.node, &again.access).await, 401);
    fails(
        "ended",
        &client.refresh(&app.node, &again.refresh).await,
        "invalid_grant",
    );
}

#[tokio::test]
async fn a_refresh_token_that_comes_twice_ends_what_was_approved() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let ended = async |case: &str, first: &Pair, last: &Pair, again: &str| {
        fails(
            case,
            &client.refresh(&app.node, again).await,
            "invalid_grant",
        );
        assert_eq!(
            (
                tried(&app.node, &first.access).await,
                tried(&app.node, &last.access).await
            ),
            (401, 401),
            "{case}"
        );
        fails(
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
    tried(&app.node, &second.access).await;
    ended("the new one was used", &first, &second, &first.refresh).await;

    let first = client.tokens(&app, &app.owner).await;
    let lost = next(&first).await;
    let second = next(&first).await;
    ended("the lost one turned up", &first, &second, &lost.refresh).await;
}

#[tokio::test]
async fn refresh_tokens_slide_and_end() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let day = 86_400;
    let mut pair = client.tokens(&app, &app.owner).await;
    for _ in 0..6 {
        app.advance(59 * day);
        pair = Pair::of(&client.refresh(&app.node, &pair.refresh).await.expect(200));
    }
    // A year after it was approved it is over, however lately it was renewed.
    app.advance(11 * day);
    fails(
        "a year",
        &client.refresh(&app.node, &pair.refresh).await,
        "invalid_grant",
    );
    let pair = client.tokens(&app, &app.owner).await;
    app.advance(day - 1);
    assert_eq!(tried(&app.node, &pair.access).await, 200);
    app.advance(1);
    assert_eq!(tried(&app.node, &pair.access).await, 401);
    app.advance(59 * day);
    fails(
        "unused",
        &client.refresh(&app.node, &pair.refresh).await,
        "invalid_grant",
    );
}

#[tokio::test]
async fn scopes_can_be_narrowed_and_never_widened() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let address = client
        .approved(
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
        fails(wider, &refresh(&pair, wider).await, "invalid_scope");
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
    // Narrow is the token, not what was approved.
    let whole = Pair::of(&client.refresh(&app.node, &pair.refresh).await.expect(200));
    assert_eq!(tried(&app.node, &whole.access).await, 200);
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
    fails(
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
async fn a_resource_is_named_before_it_is_approved() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let exchange = async |asked: &str, given: &str| {
        let address = client
            .approved(&app, &app.owner, &[("resource", asked)], &json!({}))
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
    fails(
        "another",
        &exchange(here, "http://api.example/other").await,
        "invalid_target",
    );
    fails("added", &exchange("", here).await, "invalid_target");
    let fields = [
        ("grant_type", "refresh_token"),
        ("refresh_token", pair.refresh.as_str()),
        ("resource", "http://api.example/other"),
    ];
    fails(
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

/// No token, code or secret is in a table, the audit log among them.
#[tokio::test]
async fn no_secret_is_kept() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let code = client.code(&app, &app.owner).await;
    let pair = Pair::of(&client.exchange(&app.node, &code).await.expect(200));
    client.exchange(&app.node, &code).await.expect(400);
    client.refresh(&app.node, &pair.refresh).await.expect(400);
    tried(&app.node, &pair.access).await;
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
