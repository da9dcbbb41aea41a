//! The consent page in a browser without JavaScript: sessions, roles and displayed details.

use serde_json::json;

use super::flow::{Pair, apps, list_projects_status, parameter, register_bound};
use crate::{
    support::{ISSUER, TestApp},
    web::browser::{Browser, BrowserResponse, PASSWORD, email, give_password, olga, signed_in},
};

pub(super) fn page(id: &str) -> String {
    format!("/authorize?auth_id={id}")
}

pub(super) async fn press(
    browser: &mut Browser,
    id: &str,
    decision: &str,
    more: &[(&str, &str)],
    slug: &str,
) -> BrowserResponse {
    let mut fields = vec![
        ("auth_id", id),
        ("decision", decision),
        ("organization", slug),
    ];
    fields.extend(more);
    browser.submit(&page(id), "/authorize", &fields).await
}

pub(super) fn location(seen: &BrowserResponse) -> String {
    seen.header("location").unwrap().to_owned()
}

#[tokio::test]
async fn consent_page_approves_request() {
    let app = TestApp::new().await;
    let (client, mut browser) = (register_bound(&app).await, olga(&app).await);
    let id = client.ask(&app.node, &[]).await;
    let asked = browser
        .get(&page(&id))
        .await
        .expect(200)
        .says("Authorize Acme?")
        .says("olga@example.com");
    let asked = asked
        .says("app.example")
        .says("Not verified")
        .says("Read projects and their status")
        .says("Home")
        .says("Owner");
    assert!(
        asked
            .header("content-security-policy")
            .unwrap()
            .contains("form-action 'self' https://app.example;")
    );
    let away = press(&mut browser, &id, "approve", &[], app.home.slug.as_str())
        .await
        .expect(303);
    let address = location(&away);
    assert!(
        address.starts_with("https://app.example/callback?code=")
            && parameter(&address, "iss") == ISSUER
    );
    let pair = Pair::of(
        &client
            .exchange(&app.node, &parameter(&address, "code"))
            .await
            .expect(200),
    );
    assert_eq!(list_projects_status(&app.node, &pair.access).await, 200);
    // The back button shows the result; submitting again changes nothing.
    let receipt = browser
        .get(&page(&id))
        .await
        .expect(200)
        .says("Acme is authorized")
        .says("Read projects and their status");
    assert!(!receipt.html.contains("value=\"approve\""));
    let token = receipt.form_token();
    let fields = [
        ("form_token", token.as_str()),
        ("auth_id", &id),
        ("decision", "approve"),
        ("organization", app.home.slug.as_str()),
    ];
    browser
        .post("/authorize", &fields)
        .await
        .leads_to(&page(&id));
    // The authorization is listed on the account page.
    let listed = browser
        .get("/account/applications")
        .await
        .expect(200)
        .says("Acme")
        .says("Whole organization");
    let number = listed
        .html
        .split("name=\"id\" value=\"")
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap()
        .to_owned();
    let taken = browser
        .submit(
            "/account/applications",
            "/account/applications/revoke",
            &[("id", &number)],
        )
        .await;
    taken.leads_to("/account/applications?done=revoked");
    assert_eq!(list_projects_status(&app.node, &pair.access).await, 401);
    browser
        .get("/account/applications?done=revoked")
        .await
        .expect(200)
        .says("Authorization revoked")
        .says("No applications");
}

/// Of concurrent submissions, the first redirects to the application and the others show the
/// result.
#[tokio::test]
async fn consent_submitted_twice_succeeds_once() {
    let app = TestApp::new().await;
    let (client, mut browser) = (register_bound(&app).await, olga(&app).await);
    let id = client.ask(&app.node, &[]).await;
    let token = browser.get(&page(&id)).await.expect(200).form_token();
    let fields = [
        ("form_token", token.as_str()),
        ("auth_id", &id),
        ("decision", "approve"),
        ("organization", app.home.slug.as_str()),
    ];
    let press = async || browser.at(&app.node).post("/authorize", &fields).await;
    let pressed = tokio::join!(press(), press(), press(), press());
    let (away, back): (Vec<_>, Vec<_>) = [&pressed.0, &pressed.1, &pressed.2, &pressed.3]
        .map(location)
        .into_iter()
        .partition(|to| to.starts_with("https://app.example/"));
    assert_eq!((away.len(), back), (1, vec![page(&id); 3]));
}

#[tokio::test]
async fn consent_page_denies_request() {
    let app = TestApp::new().await;
    let (client, mut browser) = (register_bound(&app).await, olga(&app).await);
    let id = client.ask(&app.node, &[]).await;
    let address = location(&press(&mut browser, &id, "deny", &[], "").await.expect(303));
    assert_eq!(
        (
            parameter(&address, "error").as_str(),
            parameter(&address, "state").as_str()
        ),
        ("access_denied", "xyz")
    );
    assert!(!address.contains("code="));
    browser
        .get(&page(&id))
        .await
        .expect(200)
        .says("You denied access to Acme");
    // Other values of the button are not an approval.
    for odd in ["", "Approve", "yes"] {
        let id = client.ask(&app.node, &[]).await;
        let address = location(
            &press(&mut browser, &id, odd, &[], app.home.slug.as_str())
                .await
                .expect(303),
        );
        assert_eq!(parameter(&address, "error"), "access_denied", "{odd}");
    }
    let grants: i64 = app
        .app
        .db
        .query("select count(*) from oauth_grants", &[])
        .await
        .unwrap()[0]
        .get(0);
    assert_eq!(grants, 0);
}

/// Only the browser session that opened a request can answer it; other sessions and tokens cannot.
#[tokio::test]
async fn request_is_bound_to_browser_session() {
    let app = TestApp::new().await;
    let (client, mut browser) = (register_bound(&app).await, olga(&app).await);
    let id = client.ask(&app.node, &[]).await;
    browser.get(&page(&id)).await.expect(200);
    let mut other = signed_in(&app, &app.administrator).await;
    other
        .get(&page(&id))
        .await
        .expect(410)
        .says("This request has expired");
    let token = other.get("/account").await.form_token();
    let fields = [
        ("form_token", token.as_str()),
        ("auth_id", &id),
        ("decision", "approve"),
        ("organization", app.home.slug.as_str()),
    ];
    other.post("/authorize", &fields).await.leads_to(&page(&id));
    // The same user in another browser has another session.
    let mut second = Browser::new(&app.node);
    second
        .sign_in(&email("olga"), PASSWORD)
        .await
        .leads_to("/projects");
    second.get(&page(&id)).await.expect(410);
    let path = format!(
        "/platform/organizations/{}/oauth/authorizations/{id}",
        app.home.slug
    );
    app.post(&path)
        .as_(&app.owner)
        .json(&json!({}))
        .send()
        .await
        .expect(400);
    app.delete(&format!("/platform/oauth/authorizations/{id}"))
        .as_(&app.owner)
        .send()
        .await
        .expect(400);
    press(&mut browser, &id, "approve", &[], app.home.slug.as_str())
        .await
        .expect(303);
}

#[tokio::test]
async fn consent_page_requires_sign_in() {
    let app = TestApp::new().await;
    let client = register_bound(&app).await;
    give_password(&app, &app.owner).await;
    let (mut browser, id) = (Browser::new(&app.node), client.ask(&app.node, &[]).await);
    let next = format!("/authorize?auth_id={id}");
    browser
        .get(&next)
        .await
        .leads_to(&format!("/sign-in?next=%2Fauthorize%3Fauth_id%3D{id}"));
    browser
        .post("/authorize", &[("auth_id", &id), ("decision", "approve")])
        .await
        .expect(303);
    browser
        .post(
            "/sign-in",
            &[
                ("email", &email("olga")),
                ("password", PASSWORD),
                ("next", &next),
            ],
        )
        .await
        .leads_to(&next);
    browser
        .get(&next)
        .await
        .expect(200)
        .says("olga@example.com");
    // Switching accounts releases the request, and the next session can answer it.
    let away = browser
        .submit(&next, "/authorize/switch", &[("auth_id", &id)])
        .await;
    away.leads_to(&format!("/sign-in?next=%2Fauthorize%3Fauth_id%3D{id}"));
    let mut adam = signed_in(&app, &app.administrator).await;
    adam.get(&next).await.expect(200).says("adam@example.com");
    press(&mut adam, &id, "approve", &[], app.home.slug.as_str())
        .await
        .expect(303);
}

#[tokio::test]
async fn consent_from_other_origin_is_rejected() {
    let app = TestApp::new().await;
    let (client, mut browser) = (register_bound(&app).await, olga(&app).await);
    let mut stranger = signed_in(&app, &app.stranger).await;
    let id = client.ask(&app.node, &[]).await;
    let right = browser.get(&page(&id)).await.expect(200).form_token();
    let foreign = stranger.get("/account").await.expect(200).form_token();
    let slug = app.home.slug.as_str();
    let fields = |token: &str| {
        [
            ("form_token", token.to_owned()),
            ("auth_id", id.clone()),
            ("decision", "approve".into()),
            ("organization", slug.into()),
        ]
    };
    let post = async |browser: &mut Browser, token: &str| {
        let fields = fields(token);
        let fields: Vec<_> = fields
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        browser.post("/authorize", &fields).await
    };
    for (case, token) in [
        ("none", ""),
        ("token of another session", foreign.as_str()),
        ("invented", &"0".repeat(64)),
        ("longer", &format!("{right}0")),
    ] {
        assert_eq!(post(&mut browser, token).await.status, 403, "{case}");
    }
    let ours = browser.origin.clone();
    for origin in [
        ("origin", "https://evil.example"),
        ("origin", "null"),
        ("origin", "http://gantry.test.evil.example"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
        ("sec-fetch-site", "none"),
    ] {
        browser.origin = Some((origin.0, origin.1.to_owned()));
        assert_eq!(post(&mut browser, &right).await.status, 403, "{origin:?}");
    }
    browser.origin = None;
    assert_eq!(
        post(&mut browser, &right).await.status,
        403,
        "nobody says where it is from"
    );
    browser.origin = ours;
    // A request for the URL alone answers nothing.
    browser
        .get(&format!(
            "{}&decision=approve&organization={slug}&form_token={right}",
            page(&id)
        ))
        .await
        .expect(200)
        .says("Authorize Acme");
    let waits: i64 = app
        .app
        .db
        .query(
            "select count(*) from oauth_requests where done_at is null",
            &[],
        )
        .await
        .unwrap()[0]
        .get(0);
    assert_eq!(waits, 1);
    assert_eq!(post(&mut browser, &right).await.status, 303);
}

#[tokio::test]
async fn expired_or_unknown_request_shows_error_page() {
    let app = TestApp::new().await;
    let (client, mut browser) = (register_bound(&app).await, olga(&app).await);
    let id = client.ask(&app.node, &[]).await;
    let token = browser.get(&page(&id)).await.expect(200).form_token();
    app.advance(600);
    browser
        .get(&page(&id))
        .await
        .expect(410)
        .says("This request has expired");
    let fields = [
        ("form_token", token.as_str()),
        ("auth_id", &id),
        ("decision", "approve"),
        ("organization", app.home.slug.as_str()),
    ];
    browser
        .post("/authorize", &fields)
        .await
        .leads_to(&page(&id));
    browser
        .get(&page("00000000-0000-4000-8000-000000000000"))
        .await
        .expect(410);
    browser.get("/authorize?auth_id=nonsense").await.expect(400);
    browser.get("/authorize").await.expect(400);
    browser
        .get("/authorize/problem?why=client")
        .await
        .expect(400)
        .says("Unknown application");
    browser
        .get("/authorize/problem?why=%3Cscript%3E")
        .await
        .expect(400)
        .says("Invalid link");
    let deleted = client.ask(&app.node, &[]).await;
    app.delete(&format!("{}/{}", apps(&app), client.id))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    browser.get(&page(&deleted)).await.expect(410);
}

/// A grant without scopes would look valid, although every operation would reject its tokens.
#[tokio::test]
async fn request_without_remaining_scopes_cannot_be_approved() {
    let app = TestApp::new().await;
    let (client, mut browser) = (register_bound(&app).await, olga(&app).await);
    let one = format!("{}/{}", apps(&app), client.id);
    let narrow = async |scopes: serde_json::Value| {
        app.patch(&one)
            .as_(&app.owner)
            .json(&json!({"scopes": scopes}))
            .send()
            .await
            .expect(200);
    };
    let code = client.code(&app, &app.owner).await;
    let (id, by_token) = (
        client.ask(&app.node, &[]).await,
        client.ask(&app.node, &[]).await,
    );
    let token = browser.get(&page(&id)).await.expect(200).form_token();
    narrow(json!(["secrets:read"])).await;
    let shown = browser
        .get(&page(&id))
        .await
        .expect(200)
        .says("no longer has any of the scopes");
    shown.hides("value=\"approve\"");
    let fields = [
        ("form_token", token.as_str()),
        ("auth_id", &id),
        ("decision", "approve"),
        ("organization", app.home.slug.as_str()),
    ];
    browser
        .post("/authorize", &fields)
        .await
        .leads_to(&page(&id));
    let path = format!(
        "/platform/organizations/{}/oauth/authorizations/{by_token}",
        app.home.slug
    );
    let refused = app
        .post(&path)
        .as_(&app.owner)
        .json(&json!({}))
        .send()
        .await
        .expect(400);
    assert!(
        refused
            .message()
            .contains("no longer has any of the scopes"),
        "{refused:?}"
    );
    let grants: i64 = app
        .app
        .db
        .query("select count(*) from oauth_grants", &[])
        .await
        .unwrap()[0]
        .get(0);
    assert_eq!(grants, 1, "the one before");
    super::flow::assert_oauth_error(
        "a code of before",
        &client.exchange(&app.node, &code).await,
        "invalid_scope",
    );
    narrow(json!(["projects:read"])).await;
    press(&mut browser, &id, "approve", &[], app.home.slug.as_str())
        .await
        .expect(303);
}

/// A redirect URI from before hosts were validated cannot add directives to the page's policy.
#[tokio::test]
async fn form_action_policy_contains_plain_hosts_only() {
    let app = TestApp::new().await;
    let (client, mut browser) = (register_bound(&app).await, olga(&app).await);
    for address in [
        "https://a;sandbox/cb",
        "https://a,b/cb",
        "https://%2A.a.test/cb",
        "https://a'unsafe-inline'/cb",
    ] {
        let sql = "update oauth_applications set redirect_uris = array[$1]";
        app.app.db.query(sql, &[&address]).await.unwrap();
        let id = client.ask(&app.node, &[("redirect_uri", address)]).await;
        let policy = browser.get(&page(&id)).await.expect(200);
        let policy = policy.header("content-security-policy").unwrap();
        assert!(
            policy.contains("form-action 'self'; frame-ancestors"),
            "{address}: {policy}"
        );
        let again =
            json!({"name": "Again", "redirect_uris": [address], "scopes": ["projects:read"]});
        let refused = app
            .post(&apps(&app))
            .as_(&app.owner)
            .json(&again)
            .send()
            .await
            .expect(400);
        assert!(
            refused
                .message()
                .starts_with("redirect_uris: one of them must spell its host"),
            "{address}: {refused:?}"
        );
    }
}
