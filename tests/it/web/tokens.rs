//! Personal access tokens on the pages: create, show once, children, revoke.

use gantry_base::ids::TokenId;
use serde_json::json;

use super::browser::{Browser, BrowserResponse, PASSWORD, email, give_password, olga};
use crate::support::{TestApp, machine::PATIENCE};

const NEW: &str = "/account/tokens/new";

/// Returns a valid form for the project of the owner.
fn filled(app: &TestApp) -> Vec<(&str, &str)> {
    vec![
        ("name", "deploy"),
        ("days", "7"),
        ("reach", "projects"),
        ("project", app.home.project.as_str()),
        ("may.project", "read"),
    ]
}

/// Creates a token. Returns the path of its page and the page.
async fn make(browser: &mut Browser, fields: &[(&str, &str)]) -> (String, BrowserResponse) {
    let review = location(&browser.submit(NEW, NEW, fields).await.expect(303));
    let token = location(&browser.submit(&review, &review, &[]).await.expect(303));
    let shown = browser.get(&token).await.expect(200);
    (token, shown)
}

fn location(seen: &BrowserResponse) -> String {
    seen.header("location").unwrap().to_owned()
}

fn secret(page: &BrowserResponse) -> Option<&str> {
    page.html
        .split("id=\"secret\">")
        .nth(1)
        .map(|rest| rest.split('<').next().unwrap())
}

#[tokio::test]
async fn token_is_created_shown_once_and_revoked() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let review = location(&browser.submit(NEW, NEW, &filled(&app)).await.expect(303));
    browser
        .get(&review)
        .await
        .expect(200)
        .says("deploy")
        .says("Project settings")
        .says("in 7 days")
        .says("Any");
    let other = browser.get(&review).await.expect(200);
    assert!(!other.html.contains("sbp_"), "the token is not created yet");
    let shown = location(&browser.submit(&review, &review, &[]).await.expect(303));
    let page = browser
        .get(&shown)
        .await
        .expect(200)
        .says("It is not shown again")
        .says("curl -H");
    let token = secret(&page).unwrap().to_owned();
    for _ in 0..2 {
        let again = browser.get(&shown).await.expect(200);
        assert!(secret(&again).is_none() && !again.html.contains(&token));
    }
    let project = format!("/v1/projects/{}", app.home.project);
    app.get(&project).token(&token).send().await.expect(200);
    app.get(&format!("{project}/database/context"))
        .token(&token)
        .send()
        .await
        .expect(403);
    browser
        .get("/account/tokens")
        .await
        .expect(200)
        .says("deploy")
        .says("Scoped")
        .says("1 project");
    browser.get(&shown).await.expect(200).says("Get a project");
    let question = format!("{shown}/revoke");
    browser
        .get(&question)
        .await
        .expect(200)
        .says("Revoke this token?");
    app.get(&project).token(&token).send().await.expect(200);
    browser
        .submit(&question, &question, &[])
        .await
        .leads_to("/account/tokens?done=revoked");
    app.get(&project).token(&token).send().await.expect(401);
    browser.get(&shown).await.expect(404);
}

#[tokio::test]
async fn new_token_is_shown_only_to_its_session_within_ten_minutes() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let mut second = Browser::new(&app.node);
    second
        .sign_in(&email("olga"), PASSWORD)
        .await
        .leads_to("/projects");
    let go_on = async |browser: &mut Browser| {
        let review = location(&browser.submit(NEW, NEW, &filled(&app)).await.expect(303));
        location(&browser.submit(&review, &review, &[]).await.expect(303))
    };
    let shown = go_on(&mut browser).await;
    assert!(secret(&second.get(&shown).await.expect(200)).is_none());
    assert!(secret(&browser.get(&shown).await.expect(200)).is_some());
    let late = go_on(&mut browser).await;
    let sealed = app
        .app
        .db
        .query("select sealed from token_reveals", &[])
        .await
        .unwrap();
    assert!(
        sealed.len() == 1
            && !sealed[0]
                .get::<_, &[u8]>(0)
                .windows(4)
                .any(|part| part == b"sbp_")
    );
    app.advance(10 * 60);
    assert!(secret(&browser.get(&late).await.expect(200)).is_none());
}

#[tokio::test]
async fn invalid_form_returns_422_and_keeps_its_values() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let with = |changes: &[(&'static str, &'static str)]| {
        let mut fields = filled(&app);
        for (name, value) in changes {
            fields.retain(|(known, _)| known != name);
            fields.push((name, value));
        }
        fields
    };
    for (changes, message) in [
        (&[("name", " ")][..], "Enter a name"),
        (
            &[("days", "custom"), ("until", "2020-01-01")],
            "Choose a date",
        ),
        (&[("days", "4000")], "Choose a date"),
        (
            &[("project", "abcdefghijklmnopqrst")],
            "there is no project",
        ),
        (
            &[("reach", "organizations")],
            "Choose at least one organization",
        ),
        (&[("reach", "account")], "Confirm access"),
        (&[("reach", "anything")], "Choose at least one project"),
        (&[("may.project", "none")], "Choose at least one permission"),
        (
            &[("may.project", "none"), ("may.members", "write")],
            "Choose at least one permission",
        ),
        (&[("networks", "here")], "is not a network"),
    ] {
        let page = browser
            .submit(NEW, NEW, &with(changes))
            .await
            .expect(422)
            .says(message)
            .says("role=\"alert\"");
        assert!(page.html.contains("value=\"deploy\"") || changes[0].0 == "name");
    }
    let foreign = app.foreign.project.as_str();
    let fields: Vec<_> = filled(&app)
        .into_iter()
        .map(|(name, value)| (name, if name == "project" { foreign } else { value }))
        .collect();
    browser
        .submit(NEW, NEW, &fields)
        .await
        .expect(422)
        .says("there is no project");
    let made = app
        .get("/v1/tokens")
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json();
    assert!(
        made.as_array()
            .unwrap()
            .iter()
            .all(|token| token["name"] != "deploy")
    );
}

#[tokio::test]
async fn presets_and_search_work_without_javascript() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let checked = |page: &BrowserResponse, row: &str, level: &str| {
        page.html
            .contains(&format!("name=\"may.{row}\" value=\"{level}\" checked"))
    };
    let fields = [&filled(&app)[..], &[("preset", "read")]].concat();
    let page = browser
        .submit(NEW, NEW, &fields)
        .await
        .expect(200)
        .says("value=\"deploy\"");
    assert!(
        checked(&page, "database", "read")
            && checked(&page, "project", "read")
            && checked(&page, "members", "none")
    );
    let fields = [&filled(&app)[..], &[("search", "jit"), ("find", "yes")]].concat();
    let page = browser.submit(NEW, NEW, &fields).await.expect(200);
    let shown = page
        .html
        .split("<div class=\"grant ")
        .skip(1)
        .filter(|row| !row.split('>').next().unwrap().contains(" hidden"))
        .count();
    assert_eq!(shown, 1, "only one row matches");
    assert!(
        checked(&page, "project", "read"),
        "hidden rows keep their values"
    );
    let entries = app
        .app
        .db
        .query(
            "select from audit_entries where operation = 'page-draft-token'",
            &[],
        )
        .await
        .unwrap();
    assert!(entries.is_empty(), "drafts write no audit entries");
}

#[tokio::test]
async fn permissions_above_the_role_are_marked() {
    let app = TestApp::new().await;
    give_password(&app, &app.developer).await;
    let mut browser = Browser::new(&app.node);
    browser
        .sign_in(&email("dora"), PASSWORD)
        .await
        .leads_to("/projects");
    let page = browser
        .get(NEW)
        .await
        .expect(200)
        .says("Requires the Administrator role. Your role is Developer.");
    assert!(
        page.html
            .contains("name=\"may.project\" value=\"write\" disabled")
    );
    assert!(
        !page
            .html
            .contains("name=\"may.database\" value=\"write\" disabled")
    );
    // Permissions above the role can be granted and are marked: the role is checked at each
    // request.
    let fields = [&filled(&app)[..4], &[("may.project", "write")]].concat();
    let review = location(&browser.submit(NEW, NEW, &fields).await.expect(303));
    browser
        .get(&review)
        .await
        .expect(200)
        .says("Your role is Developer")
        .says("Above your role");
}

#[tokio::test]
async fn drafts_and_tokens_of_another_account_return_404() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let mut stranger = Browser::new(&app.node);
    give_password(&app, &app.stranger).await;
    stranger
        .sign_in(&email("stan"), PASSWORD)
        .await
        .leads_to("/projects");
    let review = location(&browser.submit(NEW, NEW, &filled(&app)).await.expect(303));
    stranger.get(&review).await.expect(404);
    stranger.submit("/account", &review, &[]).await.expect(404);
    let draft = review.rsplit('/').next().unwrap();
    browser
        .get(&format!("{NEW}?draft={draft}"))
        .await
        .expect(200)
        .says("value=\"deploy\"");
    browser.submit("/account", &review, &[]).await.expect(303);
    browser.submit("/account", &review, &[]).await.expect(404);
    let late = location(&browser.submit(NEW, NEW, &filled(&app)).await.expect(303));
    app.advance(3600);
    browser.get(&late).await.expect(404);

    let TokenId(id) = app.owner.token_id;
    let token = format!("/account/tokens/{id}");
    browser.get(&token).await.expect(200).says("Legacy");
    for path in [
        token.clone(),
        format!("{token}/revoke"),
        "/account/tokens/x".to_owned(),
    ] {
        stranger.get(&path).await.expect(404);
    }
    stranger
        .submit("/account", &format!("{token}/revoke"), &[])
        .await
        .expect(404);
    app.get("/v1/profile")
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
}

#[tokio::test]
async fn list_marks_expired_expiring_and_unused_tokens() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let mut fields = filled(&app);
    fields[1].1 = "1";
    fields.push(("networks", "192.0.2.0/24"));
    let (token, _) = make(&mut browser, &fields).await;
    browser
        .get(&token)
        .await
        .expect(200)
        .says("192.0.2.0/24")
        .says("Not used yet")
        .says("Expires soon");
    browser
        .get("/account/tokens")
        .await
        .expect(200)
        .says("Expires soon")
        .says("Never used")
        .says("Legacy")
        .says("Never expires");
    app.advance(25 * 3600);
    browser
        .get("/account/tokens")
        .await
        .expect(200)
        .says("class=\"past\"")
        .says("Expired");
    let sql = "update tokens set revoked_at = created_at where user_id = $1";
    app.app.db.query(sql, &[&app.owner.user.0]).await.unwrap();
    browser
        .get("/account/tokens")
        .await
        .expect(200)
        .says("No access tokens");
}

#[tokio::test]
async fn children_are_listed_below_their_token_and_revoked_with_it() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let (token, page) = make(&mut browser, &filled(&app)).await;
    assert!(!page.html.contains("Children"), "it has none yet");
    let id = token.rsplit('/').next().unwrap().to_owned();
    let create = async |parent: &str, name: &str| {
        let body = json!({"name": name, "expires_in_minutes": 30});
        let path = format!("/v1/tokens/{parent}/children");
        let request = app.post(&path).as_(&app.owner).json(&body);
        request.send().await.expect(201).json()["id"].to_string()
    };
    let child = create(&id, "agent<1>").await;
    let grandchild = create(&child, "helper").await;
    let list = browser
        .get("/account/tokens")
        .await
        .expect(200)
        .says("Child of deploy")
        .says("Child of agent&#60;1&#62;")
        .hides("agent<1>");
    let at = |text: &str| list.html.find(text).unwrap_or_else(|| panic!("no {text}"));
    let path = |id: &str| format!("href=\"/account/tokens/{id}\"");
    let order = [
        at(&path(&id)),
        at("class=\"below-1\""),
        at(&path(&child)),
        at("class=\"below-2\""),
        at(&path(&grandchild)),
    ];
    assert!(order.is_sorted(), "{order:?} in {}", list.html);
    browser
        .get(&token)
        .await
        .expect(200)
        .says("Children")
        .says(&format!("/account/tokens/{child}/revoke"))
        .says(&format!("/account/tokens/{grandchild}/revoke"));
    let child = format!("/account/tokens/{child}");
    let parent = format!("<dt>Parent</dt><dd><a href=\"{token}\">deploy</a>");
    browser.get(&child).await.expect(200).says(&parent);
    let revoke = format!("{token}/revoke");
    browser
        .get(&revoke)
        .await
        .expect(200)
        .says("Its 2 child tokens are revoked, too.");
    browser
        .submit(&revoke, &revoke, &[])
        .await
        .leads_to("/account/tokens?done=revoked");
    browser.get(&child).await.expect(404);
}

#[tokio::test]
async fn token_names_are_escaped() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let mut fields = filled(&app);
    fields[0].1 = "<script>alert(1)</script>\"'&";
    let review = location(&browser.submit(NEW, NEW, &fields).await.expect(303));
    browser
        .get(&review)
        .await
        .expect(200)
        .says("&#60;script&#62;alert(1)");
    let token = location(&browser.submit(&review, &review, &[]).await.expect(303));
    for path in [
        token.clone(),
        "/account/tokens".to_owned(),
        format!("{token}/revoke"),
    ] {
        let page = browser
            .get(&path)
            .await
            .expect(200)
            .says("&#60;script&#62;alert(1)");
        assert!(!page.html.contains("<script>alert"), "{path}");
    }
}

#[tokio::test]
async fn last_used_address_is_shown() {
    let mut app = TestApp::new().await;
    app.node.start();
    let mut browser = olga(&app).await;
    let page = format!("/account/tokens/{}", app.owner.token_id.0);
    browser.get(&page).await.expect(200).says("Never</dd>");
    app.get("/v1/profile")
        .as_(&app.owner)
        .from("127.0.0.9")
        .send()
        .await
        .expect(200);
    // The address is updated at most once a minute.
    app.get("/v1/profile")
        .as_(&app.owner)
        .from("127.0.0.8")
        .send()
        .await
        .expect(200);
    let written = async {
        while app
            .app
            .db
            .query("select from tokens where last_used_from is not null", &[])
            .await
            .unwrap()
            .is_empty()
        {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, written).await.unwrap();
    for page in [&*page, "/account/tokens", &*format!("{page}/revoke")] {
        browser.get(page).await.expect(200).says("from 127.0.0.9");
    }
    app.node.stop().await;
}
