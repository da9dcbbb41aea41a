//! Sign-in, delays after failed attempts, and sessions.

use std::{
    io::Write,
    sync::{Arc, Mutex},
};

use chrono::TimeDelta;
use gantry::platform::http::Transport;

use super::browser::{Browser, PASSWORD, email, give_password, olga};
use crate::support::{TestApp, machine::Machine};

#[tokio::test]
async fn anonymous_visitor_signs_in_and_returns_to_the_page() {
    let app = TestApp::new().await;
    give_password(&app, &app.owner).await;
    let mut browser = Browser::new(&app.node);
    browser.get("/").await.leads_to("/projects");
    browser.get("/projects").await.leads_to("/sign-in");
    browser
        .get("/account/sessions?a=b")
        .await
        .leads_to("/sign-in?next=%2Faccount%2Fsessions%3Fa%3Db");
    browser
        .get("/sign-in?next=%2Faccount%2Fsessions%3Fa%3Db")
        .await
        .expect(200)
        .says("value=\"/account/sessions?a=b\"");
    let fields = [
        ("email", "OLGA@example.com "),
        ("password", PASSWORD),
        ("next", "/account/sessions?a=b"),
    ];
    browser
        .post("/sign-in", &fields)
        .await
        .leads_to("/account/sessions?a=b");
    browser.get("/account/sessions?a=b").await.expect(200);
    browser.get("/sign-in").await.leads_to("/projects");
    browser
        .submit("/account", "/sign-out", &[])
        .await
        .leads_to("/sign-in?done=out");
    browser
        .get("/account")
        .await
        .leads_to("/sign-in?next=%2Faccount");
}

#[tokio::test]
async fn next_never_redirects_to_another_origin() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    for next in [
        "//evil.example",
        "/\\evil.example",
        "https://evil.example",
        "javascript:alert(1)",
        "/\t/evil.example",
        "/%0d%0a",
        "\\",
        "",
    ] {
        let page = browser
            .get(&format!(
                "/sign-in?next={}",
                form_urlencoded::byte_serialize(next.as_bytes()).collect::<String>()
            ))
            .await;
        let to = page.expect(303).header("location").unwrap().to_owned();
        assert!(
            to == "/projects" || to == "/%0d%0a",
            "{next:?} leads to {to}"
        );
        let seen = browser
            .post(
                "/sign-in",
                &[
                    ("email", &email("olga")),
                    ("password", PASSWORD),
                    ("next", next),
                ],
            )
            .await
            .expect(303);
        assert!(
            matches!(seen.header("location"), Some("/projects" | "/%0d%0a")),
            "{next:?}"
        );
    }
}

/// Sends wrong passwords. Returns the statuses and the last page.
async fn tries(browser: &mut Browser, email: &str, count: usize) -> (Vec<u16>, String) {
    let mut statuses = Vec::new();
    let mut message = String::new();
    for _ in 0..count {
        let seen = browser.sign_in(email, "wrong").await;
        statuses.push(seen.status.as_u16());
        message = seen.html.replace(email, "");
    }
    (statuses, message)
}

#[tokio::test]
async fn failed_sign_ins_delay_known_and_unknown_accounts_alike() {
    let app = TestApp::new().await;
    give_password(&app, &app.owner).await;
    let mut browser = Browser::new(&app.node);
    let (known, message) = tries(&mut browser, &email("olga"), 7).await;
    assert_eq!(known, [422, 422, 422, 422, 422, 422, 429]);
    assert!(
        message.contains("Too many attempts. Try again in 1 second."),
        "{message}"
    );
    assert_eq!(
        tries(&mut Browser::new(&app.node), &email("nobody"), 7).await,
        (known.clone(), message.clone())
    );
    assert_eq!(
        tries(&mut Browser::new(&app.node), &email("adam"), 7).await,
        (known, message),
        "has no password"
    );

    let held = browser.sign_in(&email("olga"), PASSWORD).await.expect(429);
    assert_eq!(held.header("retry-after"), Some("1"));
    app.advance(1);
    browser.sign_in(&email("olga"), "wrong").await.expect(422);
    browser
        .sign_in(&email("olga"), "wrong")
        .await
        .expect(429)
        .says("Try again in 2 seconds.");
    app.advance(2);
    browser
        .sign_in(&email("olga"), PASSWORD)
        .await
        .leads_to("/projects");
    // A successful sign-in resets the delay.
    assert_eq!(tries(&mut browser, &email("olga"), 5).await.0, [422; 5]);
}

#[tokio::test]
async fn concurrent_sign_ins_are_delayed_like_sequential_ones() {
    let app = TestApp::new().await;
    let tries = (0..12).map(|_| async {
        let mut browser = Browser::new(&app.node);
        browser
            .sign_in(&email("nobody"), "wrong")
            .await
            .status
            .as_u16()
    });
    let statuses = futures_util::future::join_all(tries).await;
    assert_eq!(
        statuses.iter().filter(|status| **status == 422).count(),
        6,
        "{statuses:?}"
    );
}

#[tokio::test]
async fn failed_sign_ins_delay_the_client_address() {
    let app = TestApp::new().await;
    give_password(&app, &app.owner).await;
    let secure = TestApp::with(
        Transport {
            tls: true,
            ..Transport::default()
        },
        Arc::new(Machine::bare()),
    )
    .await;
    let mut browser = Browser::new(&secure.node).from("2001:db8::1");
    for number in 0..31 {
        browser
            .sign_in(&email(&format!("nobody{number}")), "wrong")
            .await
            .expect(422);
    }
    browser
        .sign_in(&email("another"), "wrong")
        .await
        .expect(429);
    Browser::new(&secure.node)
        .from("2001:db8::2")
        .sign_in(&email("another"), "wrong")
        .await
        .expect(429);
    Browser::new(&secure.node)
        .from("2001:db8:0:1::1")
        .sign_in(&email("another"), "wrong")
        .await
        .expect(422);
}

#[tokio::test]
async fn sign_in_replaces_the_session_secret() {
    let app = TestApp::new().await;
    give_password(&app, &app.owner).await;
    let mut browser = Browser::new(&app.node);
    let planted = "ab".repeat(32);
    browser.cookies.insert("gantry".to_owned(), planted.clone());
    browser
        .sign_in(&email("olga"), PASSWORD)
        .await
        .leads_to("/projects");
    let first = browser.cookies["gantry"].clone();
    assert_ne!(first, planted);
    browser
        .sign_in(&email("olga"), PASSWORD)
        .await
        .leads_to("/projects");
    assert_ne!(browser.cookies["gantry"], first);
    // The previous session is invalid.
    browser.cookies.insert("gantry".to_owned(), first);
    browser
        .get("/account")
        .await
        .leads_to("/sign-in?next=%2Faccount");
}

#[tokio::test]
async fn session_expires_by_age_and_by_inactivity() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let day = 24 * 3600;
    for _ in 0..4 {
        app.advance(7 * day - 1);
        browser.get("/account").await.expect(200);
    }
    app.advance(2 * day + 4);
    browser
        .get("/account")
        .await
        .leads_to("/sign-in?next=%2Faccount");

    browser
        .sign_in(&email("olga"), PASSWORD)
        .await
        .leads_to("/projects");
    app.advance(7 * day);
    browser
        .get("/account")
        .await
        .leads_to("/sign-in?next=%2Faccount");
    // A clock that is set back does not extend the session.
    browser
        .sign_in(&email("olga"), PASSWORD)
        .await
        .leads_to("/projects");
    app.clock.step_wall(TimeDelta::days(-1));
    browser.get("/account").await.expect(200);
}

#[tokio::test]
async fn signed_out_session_is_rejected_by_every_node() {
    let app = TestApp::new().await;
    let second = app.another(2, Arc::new(Machine::bare()));
    let mut here = olga(&app).await;
    let mut there = here.at(&second);
    there.get("/account").await.expect(200);
    here.submit("/account", "/sign-out", &[])
        .await
        .leads_to("/sign-in?done=out");
    there
        .get("/account")
        .await
        .leads_to("/sign-in?next=%2Faccount");
}

#[tokio::test]
async fn session_cookie_is_host_only_and_http_only() {
    let app = TestApp::with(
        Transport {
            tls: true,
            ..Transport::default()
        },
        Arc::new(Machine::bare()),
    )
    .await;
    give_password(&app, &app.owner).await;
    let mut browser = Browser::new(&app.node).from("203.0.113.7");
    browser.origin = Some(("sec-fetch-site", "same-origin".to_owned()));
    let seen = browser
        .sign_in(&email("olga"), PASSWORD)
        .await
        .leads_to("/projects");
    let secret = browser.cookies["__Host-gantry"].clone();
    let expected =
        format!("__Host-gantry={secret}; Path=/; Max-Age=2592000; HttpOnly; SameSite=Lax; Secure");
    assert_eq!(seen.header("set-cookie"), Some(expected.as_str()));
    browser.get("/account").await.expect(200);
    // The cookie name for plain HTTP is ignored over HTTPS.
    browser.cookies = [("gantry".to_owned(), secret)].into();
    browser
        .get("/account")
        .await
        .leads_to("/sign-in?next=%2Faccount");

    let plain = TestApp::new().await;
    let browser = olga(&plain).await;
    assert!(browser.cookies.contains_key("gantry"));
}

/// A writer that collects log output.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn no_secret_is_logged() {
    let app = TestApp::new().await;
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    let logging = tracing::subscriber::set_default(subscriber);
    let mut browser = olga(&app).await;
    browser
        .sign_in(&email("olga"), "a wrong password")
        .await
        .expect(422);
    let token = browser.get("/account").await.form_token();
    app.app
        .db
        .query("alter table passwords rename to gone", &[])
        .await
        .unwrap();
    browser.get("/account").await.expect(500);
    browser.sign_in(&email("olga"), PASSWORD).await.expect(500);
    drop(logging);
    let logged = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    assert!(logged.contains("operation failed"), "{logged}");
    for secret in [
        PASSWORD,
        "a wrong password",
        &browser.cookies["gantry"],
        &token,
    ] {
        assert!(!logged.contains(secret), "{secret} in {logged}");
    }
}
