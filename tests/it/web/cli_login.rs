//! Sign-in of a command-line tool: the page, the token exchange, and the limits.

use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey},
    agreement::{ECDH_P256, PrivateKey, UnparsedPublicKey, agree},
};

use super::browser::{Browser, BrowserResponse, olga};
use crate::support::TestApp;

const SESSION: &str = "e9c582c9-b9a2-44d1-b2ab-25e9f3b3d462";

/// A tool with its half of the key agreement.
struct Tool {
    key: PrivateKey,
    point: String,
}

impl Tool {
    fn new() -> Self {
        let key = PrivateKey::from_private_key(&ECDH_P256, &[7; 32]).unwrap();
        let point = hex::encode(key.compute_public_key().unwrap());
        Self { key, point }
    }

    fn link(&self) -> String {
        format!(
            "/cli/login?session_id={SESSION}&token_name=cli_olga@laptop&public_key={}",
            self.point
        )
    }

    async fn approve(&self, browser: &mut Browser, session: &str, access: &str) -> BrowserResponse {
        let fields = [
            ("session_id", session),
            ("public_key", &self.point),
            ("token_name", "laptop"),
            ("days", "7"),
            ("access", access),
        ];
        browser.submit(&self.link(), "/cli/login", &fields).await
    }

    fn read(&self, answer: &serde_json::Value) -> String {
        let hex = |name: &str| hex::decode(answer[name].as_str().unwrap()).unwrap();
        let theirs = UnparsedPublicKey::new(&ECDH_P256, hex("public_key"));
        let key = agree(&self.key, theirs, (), |secret| {
            UnboundKey::new(&AES_256_GCM, secret).map_err(|_| ())
        })
        .unwrap();
        let nonce = Nonce::try_assume_unique_for_key(&hex("nonce")).unwrap();
        let mut text = hex("access_token");
        String::from_utf8(
            LessSafeKey::new(key)
                .open_in_place(nonce, Aad::empty(), &mut text)
                .unwrap()
                .to_vec(),
        )
        .unwrap()
    }
}

fn code(page: &BrowserResponse) -> String {
    page.html
        .split("id=\"code\">")
        .nth(1)
        .expect("a code")
        .split('<')
        .next()
        .unwrap()
        .to_owned()
}

fn fetch(session: &str, code: &str) -> String {
    format!("/platform/cli/login/{session}?device_code={code}")
}

#[tokio::test]
async fn tool_fetches_its_token_once_with_the_code() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let tool = Tool::new();
    browser
        .get(&tool.link())
        .await
        .expect(200)
        .says("cli_olga@laptop")
        .says("olga@example.com")
        .says("started this sign-in yourself");
    app.get(&fetch(SESSION, "00000000"))
        .send()
        .await
        .expect(404);
    let code = code(&tool.approve(&mut browser, SESSION, "all").await.expect(200));
    for wrong in ["", "0", "zzzzzzzz"] {
        app.get(&fetch(SESSION, wrong)).send().await.expect(404);
    }
    let answer = app.get(&fetch(SESSION, &code)).send().await.expect(200);
    assert_eq!(answer.json()["id"], SESSION);
    let token = tool.read(&answer.json());
    app.get("/v1/profile")
        .token(&token)
        .send()
        .await
        .expect(200);
    app.get("/v1/tokens").token(&token).send().await.expect(403);
    app.get(&fetch(SESSION, &code)).send().await.expect(404);
    let made = app
        .get("/v1/tokens")
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    let made = made
        .json()
        .as_array()
        .unwrap()
        .iter()
        .find(|token| token["name"] == "laptop")
        .unwrap()
        .clone();
    assert!(made["expires_at"].is_string() && made["scope"]["reach"] == "account");
}

#[tokio::test]
async fn read_only_tool_token_cannot_write() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let tool = Tool::new();
    let code = code(
        &tool
            .approve(&mut browser, SESSION, "read")
            .await
            .expect(200),
    );
    let token = tool.read(
        &app.get(&fetch(SESSION, &code))
            .send()
            .await
            .expect(200)
            .json(),
    );
    app.get("/v1/projects")
        .token(&token)
        .send()
        .await
        .expect(200);
    app.delete(&format!("/v1/projects/{}", app.home.project))
        .token(&token)
        .send()
        .await
        .expect(403);
}

#[tokio::test]
async fn code_expires_after_five_attempts_or_ten_minutes() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let tool = Tool::new();
    let right = code(&tool.approve(&mut browser, SESSION, "all").await.expect(200));
    for _ in 0..5 {
        app.get(&fetch(SESSION, "00000000"))
            .send()
            .await
            .expect(404);
    }
    app.get(&fetch(SESSION, &right)).send().await.expect(404);

    let second = "11111111-1111-4111-8111-111111111111";
    let late = code(&tool.approve(&mut browser, second, "all").await.expect(200));
    app.get(&fetch(SESSION, &late)).send().await.expect(404);
    app.advance(10 * 60);
    app.get(&fetch(second, &late)).send().await.expect(404);
}

#[tokio::test]
async fn cli_login_session_is_valid_once() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let tool = Tool::new();
    tool.approve(&mut browser, SESSION, "all").await.expect(200);
    tool.approve(&mut browser, SESSION, "all")
        .await
        .expect(400)
        .says("used already");
    app.advance(3600);
    tool.approve(&mut browser, SESSION, "all")
        .await
        .expect(400)
        .says("used already");
    let made = app
        .get("/v1/tokens")
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    assert_eq!(
        made.json()
            .as_array()
            .unwrap()
            .iter()
            .filter(|token| token["name"] == "laptop")
            .count(),
        1,
        "no token for the others"
    );
}

#[tokio::test]
async fn pending_cli_logins_are_limited_and_deleted_after_a_day() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let tool = Tool::new();
    let session = |number: usize| format!("{number:08}-0000-4000-8000-000000000000");
    for number in 0..10 {
        tool.approve(&mut browser, &session(number), "all")
            .await
            .expect(200);
    }
    tool.approve(&mut browser, &session(10), "all")
        .await
        .expect(400)
        .says("Too many logins");
    app.advance(24 * 3600);
    tool.approve(&mut browser, &session(11), "all")
        .await
        .expect(200);
    let left = app
        .app
        .db
        .query("select count(*) from cli_logins", &[])
        .await
        .unwrap();
    assert_eq!(left[0].get::<_, i64>(0), 1);
}

#[tokio::test]
async fn invalid_cli_login_link_is_rejected() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let tool = Tool::new();
    for wrong in [
        "",
        "?session_id=1",
        &format!("?session_id={SESSION}&public_key=04{}", "11".repeat(64)),
    ] {
        browser
            .get(&format!("/cli/login{wrong}"))
            .await
            .expect(400)
            .says("Request failed");
    }
    let named = format!("{}%3Cscript%3E", tool.link());
    browser
        .get(&named.replace("cli_olga", "%3Cscript%3Ealert"))
        .await
        .expect(400);
    let evil = tool.link().replace("cli_olga", "%3Cscript%3Ealert");
    let page = browser
        .get(&evil)
        .await
        .expect(200)
        .says("&#60;script&#62;alert");
    assert!(!page.html.contains("<script>alert"));
    app.get("/platform/cli/login/nonsense?device_code=1")
        .send()
        .await
        .expect(404);
    app.get(&fetch(SESSION, "")).send().await.expect(404);
    let mut stranger = Browser::new(&app.node);
    let away = stranger.get(&tool.link()).await.expect(303);
    assert!(
        away.header("location")
            .unwrap()
            .starts_with("/sign-in?next=%2Fcli%2Flogin%3Fsession_id")
    );
}
