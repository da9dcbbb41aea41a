//! Access control of pages: cross-site requests, sessions, quotas, routing.

use axum::{body::Body, http::Request};
use gantry::{
    platform::{access::Access, http::Verb},
    web,
};

use super::browser::{Browser, PASSWORD, email, give_password, olga};
use crate::support::TestApp;

/// Returns the paths of all forms that require a session.
fn forms() -> impl Iterator<Item = &'static str> {
    let forms = web::pages()
        .iter()
        .filter(|page| page.method == Verb::Post && page.access == Access::Caller);
    forms.map(|page| page.path)
}

#[tokio::test]
async fn cross_site_form_returns_403() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let mut other = Browser::new(&app.node);
    give_password(&app, &app.stranger).await;
    other
        .sign_in(&email("stan"), PASSWORD)
        .await
        .leads_to("/projects");
    let token = browser.get("/account").await.form_token();
    let foreign = other.get("/account").await.form_token();
    assert_ne!(token, foreign);
    assert!(forms().count() >= 4);
    for form in forms() {
        let wrong: [&[(&str, &str)]; 4] = [
            &[],
            &[("form_token", "")],
            &[("form_token", &foreign)],
            &[("form_token", &token[1..])],
        ];
        for fields in wrong {
            browser
                .post(form, fields)
                .await
                .expect(403)
                .says("This form has expired");
        }
        let ours = browser.origin.clone();
        for origin in [
            None,
            Some(("origin", "https://evil.example")),
            Some(("origin", "null")),
            Some(("origin", "http://gantry.test.evil.example")),
            Some(("sec-fetch-site", "cross-site")),
            Some(("sec-fetch-site", "same-site")),
        ] {
            browser.origin = origin.map(|(name, value)| (name, value.to_owned()));
            browser
                .post(form, &[("form_token", &token)])
                .await
                .expect(403)
                .says("This form has expired");
        }
        browser.origin = ours;
    }
    // The session is still valid.
    browser.get("/account").await.expect(200);
}

#[tokio::test]
async fn form_without_session_redirects_to_sign_in() {
    let app = TestApp::new().await;
    let mut browser = Browser::new(&app.node);
    for form in forms() {
        browser.post(form, &[]).await.leads_to("/sign-in");
    }
}

#[tokio::test]
async fn cross_site_sign_in_is_rejected() {
    let app = TestApp::new().await;
    give_password(&app, &app.stranger).await;
    let mut browser = Browser::new(&app.node);
    browser.origin = Some(("origin", "https://evil.example".to_owned()));
    browser.sign_in(&email("stan"), PASSWORD).await.expect(403);
    assert!(browser.cookies.is_empty());
}

#[tokio::test]
async fn pages_reject_tokens_and_operations_reject_cookies() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let cookie = format!("gantry={}", browser.cookies["gantry"]);
    app.get("/v1/profile")
        .header("cookie", &cookie)
        .send()
        .await
        .expect(401);
    app.get("/v1/profile")
        .token(&browser.cookies["gantry"])
        .send()
        .await
        .expect(401);
    browser.cookies.clear();
    let request = Request::get("/account")
        .header("authorization", format!("Bearer {}", app.owner.token))
        .body(Body::empty())
        .unwrap();
    browser
        .send(request)
        .await
        .leads_to("/sign-in?next=%2Faccount");
}

#[tokio::test]
async fn pages_and_operations_have_separate_quotas() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    for _ in 0..120 {
        app.get("/v1/organizations")
            .as_(&app.owner)
            .send()
            .await
            .expect(200);
    }
    app.get("/v1/organizations")
        .as_(&app.owner)
        .send()
        .await
        .expect(429);
    for _ in 0..120 {
        browser.get("/projects").await.expect(200);
    }
    browser
        .get("/projects")
        .await
        .expect(429)
        .says("Too many requests");
    browser.get("/account").await.expect(200);
    app.advance(60);
    browser.get("/projects").await.expect(200);
}

#[tokio::test]
async fn unknown_path_returns_html_to_browsers_and_json_to_programs() {
    let app = TestApp::new().await;
    assert_eq!(
        app.get("/nothing").send().await.expect(404).message(),
        "Cannot GET /nothing"
    );
    let mut browser = Browser::new(&app.node);
    browser
        .get("/nothing")
        .await
        .expect(404)
        .says("Page not found");
}

#[tokio::test]
async fn every_page_is_routed_and_has_a_unique_id() {
    let app = TestApp::new().await;
    let operations = gantry::app::App::operations();
    for page in web::pages().iter().chain([&&web::NOT_FOUND]) {
        assert_eq!(
            operations.iter().filter(|id| **id == page.id).count(),
            1,
            "{}",
            page.id
        );
        assert!(
            page.id.starts_with("page-") && matches!(page.method, Verb::Get | Verb::Post),
            "{}",
            page.id
        );
    }
    let mut browser = Browser::new(&app.node);
    for page in web::pages()
        .iter()
        .filter(|page| page.method == Verb::Get && page.access == Access::Caller)
    {
        let seen = browser.get(page.path).await.expect(303);
        assert!(
            seen.header("location").unwrap().starts_with("/sign-in"),
            "{}",
            page.path
        );
    }
}
