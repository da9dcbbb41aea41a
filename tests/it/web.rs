//! The account pages, in a browser without JavaScript.

mod access_control;
mod agents;
mod backups;
pub(crate) mod browser;
mod cli_login;
mod database_calls;
mod live;
mod oidc;
mod organizations;
mod passkeys;
mod projects;
mod sign_in;
mod tokens;

use gantry::{
    api::accounts::sign_in_links,
    platform::{access::sessions::SessionSecret, tables::Table},
};

use self::browser::{Browser, PASSWORD, email, give_password, olga};
use crate::support::TestApp;

#[tokio::test]
async fn home_page_shows_only_own_organizations() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let home = browser
        .get("/projects")
        .await
        .expect(200)
        .says("Home")
        .says(app.home.slug.as_str())
        .says(app.home.project.as_str())
        .says("Healthy");
    assert!(
        !home.html.contains(app.foreign.slug.as_str())
            && !home.html.contains(app.foreign.project.as_str())
    );
    app.app
        .db
        .query(
            "delete from members where user_id = $1",
            &[&app.owner.user.0],
        )
        .await
        .unwrap();
    app.app.table_changed(Table::Members);
    browser
        .get("/projects")
        .await
        .expect(200)
        .says("You are not a member of any organization");
}

#[tokio::test]
async fn user_and_organization_names_are_escaped() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let evil = "<script>alert(1)</script>\"'&";
    app.app
        .db
        .query(
            "update users set username = $2 where id = $1",
            &[&app.owner.user.0, &evil],
        )
        .await
        .unwrap();
    app.app
        .db
        .query(
            "update organizations set name = $2 where id = $1",
            &[&app.home.id.0, &evil],
        )
        .await
        .unwrap();
    for path in ["/projects", "/account", "/account/sessions"] {
        let page = browser
            .get(path)
            .await
            .expect(200)
            .says("&#60;script&#62;alert(1)");
        assert!(!page.html.contains("<script>alert"), "{path}");
    }
}

#[tokio::test]
async fn sign_in_link_is_valid_once_and_requires_a_submit() {
    let app = TestApp::new().await;
    let make = async || {
        let link = SessionSecret::generate(&app.app.entropy);
        sign_in_links::create(&app.app.db, app.owner.user, &link, app.clock.now())
            .await
            .unwrap();
        sign_in_links::path(&link)
    };
    let mut browser = Browser::new(&app.node);
    let path = make().await;
    for _ in 0..2 {
        browser
            .get(&path)
            .await
            .expect(200)
            .says("olga@example.com");
    }
    browser.post(&path, &[]).await.leads_to("/projects");
    browser.get("/account").await.expect(200).says("Not set");
    let mut second = Browser::new(&app.node);
    second.get(&path).await.expect(404);
    second.post(&path, &[]).await.expect(404);
    let late = make().await;
    app.advance(15 * 60);
    second.get(&late).await.expect(404);
    second.post(&late, &[]).await.expect(404);
    second.get("/sign-in/link/nonsense").await.expect(404);
}

#[tokio::test]
async fn password_change_requires_the_current_password() {
    let app = TestApp::new().await;
    let link = SessionSecret::generate(&app.app.entropy);
    sign_in_links::create(&app.app.db, app.owner.user, &link, app.clock.now())
        .await
        .unwrap();
    let mut browser = Browser::new(&app.node);
    browser
        .post(&sign_in_links::path(&link), &[])
        .await
        .leads_to("/projects");
    let set = async |browser: &mut Browser, current: &str, password: &str, confirmation: &str| {
        let fields = [
            ("current", current),
            ("password", password),
            ("confirmation", confirmation),
        ];
        browser
            .submit("/account", "/account/password", &fields)
            .await
    };
    set(&mut browser, "", PASSWORD, "other")
        .await
        .expect(422)
        .says("The passwords do not match.");
    set(&mut browser, "", "password", "password")
        .await
        .expect(422)
        .says("too easy to guess");
    set(&mut browser, "", PASSWORD, PASSWORD)
        .await
        .leads_to("/account?done=password");
    browser
        .get("/account?done=password")
        .await
        .expect(200)
        .says("Password updated");

    let mut other = Browser::new(&app.node);
    other
        .sign_in(&email("olga"), PASSWORD)
        .await
        .leads_to("/projects");
    let new = "marble zeppelin orchard 4";
    set(&mut browser, "guessed", new, new)
        .await
        .expect(422)
        .says("The current password is incorrect.");
    other.get("/account").await.expect(200);
    for _ in 0..5 {
        set(&mut browser, "guessed", new, new)
            .await
            .expect(422)
            .says("The current password is incorrect.");
    }
    set(&mut browser, PASSWORD, new, new)
        .await
        .expect(422)
        .says("Too many attempts");
    app.advance(1);
    set(&mut browser, PASSWORD, new, new)
        .await
        .leads_to("/account?done=password");
    browser.get("/account").await.expect(200);
    other
        .get("/account")
        .await
        .leads_to("/sign-in?next=%2Faccount");
    other.sign_in(&email("olga"), PASSWORD).await.expect(422);
    other
        .sign_in(&email("olga"), new)
        .await
        .leads_to("/projects");
}

#[tokio::test]
async fn only_the_owner_lists_and_ends_sessions() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let mut other = Browser::new(&app.node);
    let mut stranger = Browser::new(&app.node);
    other
        .sign_in(&email("olga"), PASSWORD)
        .await
        .leads_to("/projects");
    give_password(&app, &app.stranger).await;
    stranger
        .sign_in(&email("stan"), PASSWORD)
        .await
        .leads_to("/projects");
    let page = browser
        .get("/account/sessions")
        .await
        .expect(200)
        .says("This browser")
        .says("Firefox on Linux");
    assert_eq!(
        page.html
            .matches("action=\"/account/sessions/end\"")
            .count(),
        1,
        "one other session"
    );
    let id = page
        .html
        .split("name=\"id\" value=\"")
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap()
        .to_owned();

    stranger
        .submit("/account/sessions", "/account/sessions/end", &[("id", &id)])
        .await
        .expect(404);
    other.get("/account").await.expect(200);
    browser
        .submit("/account/sessions", "/account/sessions/end", &[("id", &id)])
        .await
        .leads_to("/account/sessions?done=ended");
    other
        .get("/account")
        .await
        .leads_to("/sign-in?next=%2Faccount");
    browser
        .submit("/account/sessions", "/account/sessions/end", &[("id", &id)])
        .await
        .expect(404);

    other
        .sign_in(&email("olga"), PASSWORD)
        .await
        .leads_to("/projects");
    browser
        .submit("/account/sessions", "/account/sessions/end-all", &[])
        .await
        .leads_to("/sign-in?done=everywhere");
    assert!(browser.cookies.is_empty());
    other
        .get("/account")
        .await
        .leads_to("/sign-in?next=%2Faccount");
    stranger.get("/account").await.expect(200);
}

#[tokio::test]
async fn forms_write_audit_entries() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    browser
        .post(
            "/account/password",
            &[("password", "a"), ("confirmation", "b")],
        )
        .await
        .expect(403);
    browser
        .submit("/account", "/sign-out", &[])
        .await
        .leads_to("/sign-in?done=out");
    let chain = format!("account {}", app.owner.user);
    let sql = "select operation, status, token, actor from audit_entries where chain = $1 order by number";
    let rows = app.app.db.query(sql, &[&chain]).await.unwrap();
    let entries: Vec<(String, i16)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let expected = [
        ("page-sign-in-submit", 303),
        ("page-set-password", 403),
        ("page-sign-out", 303),
    ];
    assert_eq!(
        entries,
        expected.map(|(operation, status)| (operation.to_owned(), status))
    );
    assert!(
        rows.iter()
            .all(|row| row.get::<_, i64>(2) == 0
                && row.get::<_, uuid::Uuid>(3) == app.owner.gotrue_id)
    );
}

#[tokio::test]
async fn errors_are_rendered_as_html() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    browser.get("/account/nothing").await.expect(404);
    app.app
        .db
        .query("alter table passwords rename to gone", &[])
        .await
        .unwrap();
    let page = browser
        .get("/account")
        .await
        .expect(500)
        .says("Something went wrong");
    let id = page.header("x-request-id").unwrap().to_owned();
    assert!(page.html.contains(&id) && !page.html.contains("passwords"));
    let logged = app.log.take_errors();
    assert!(
        logged.len() == 1 && logged[0].contains(&id) && logged[0].contains("page-account"),
        "{logged:?}"
    );
}

#[tokio::test]
async fn assets_are_immutable_and_have_hashed_names() {
    let app = TestApp::new().await;
    let mut browser = Browser::new(&app.node);
    let page = browser.get("/sign-in").await.expect(200);
    let files: Vec<_> = page
        .html
        .split('"')
        .filter(|part| part.starts_with("/assets/"))
        .map(str::to_owned)
        .collect();
    assert!(files.len() >= 4, "{files:?}");
    for file in files {
        let seen = browser.get(&file).await.expect(200);
        assert_eq!(
            seen.header("cache-control"),
            Some("public, max-age=31536000, immutable")
        );
        assert_eq!(seen.header("x-content-type-options"), Some("nosniff"));
    }
    browser
        .get("/assets/gantry-000000000000.css")
        .await
        .expect(404);
}
