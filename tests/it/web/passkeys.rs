//! Passkeys without an authenticator. `tests/clients/passkeys.mjs` tests the full flow.

use serde_json::Value;

use super::browser::{Browser, olga, signed_in};
use crate::support::TestApp;

/// Parses the response to a challenge request.
fn challenge(json: &str) -> (String, Value) {
    let value: Value = serde_json::from_str(json).unwrap();
    (
        value["id"].as_str().unwrap().to_owned(),
        value["options"].clone(),
    )
}

#[tokio::test]
async fn challenges_require_discoverable_credentials_and_user_verification() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let asked = browser
        .submit("/account", "/account/passkeys/ask", &[])
        .await
        .expect(200);
    assert_eq!(
        (asked.header("content-type"), asked.header("cache-control")),
        (Some("application/json"), Some("no-store"))
    );
    let (first, options) = challenge(&asked.html);
    let selection = &options["authenticatorSelection"];
    assert_eq!(
        (&selection["residentKey"], &selection["userVerification"]),
        (&"required".into(), &"required".into())
    );
    assert_eq!(
        (&options["rp"]["id"], &options["user"]["name"]),
        (&"gantry.test".into(), &"olga@example.com".into())
    );
    let (second, again) = challenge(
        &browser
            .submit("/account", "/account/passkeys/ask", &[])
            .await
            .expect(200)
            .html,
    );
    assert!(first != second && options["challenge"] != again["challenge"]);
    let (_, options) = challenge(
        &Browser::new(&app.node)
            .post("/sign-in/passkey/ask", &[])
            .await
            .expect(200)
            .html,
    );
    assert_eq!(
        (&options["rpId"], &options["userVerification"]),
        (&"gantry.test".into(), &"required".into())
    );
    // The challenge does not reveal accounts.
    assert_eq!(options["allowCredentials"], serde_json::json!([]));
}

#[tokio::test]
async fn invalid_passkey_response_is_rejected() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let mut stan = signed_in(&app, &app.stranger).await;
    let (challenge_id, _) = challenge(
        &browser
            .submit("/account", "/account/passkeys/ask", &[])
            .await
            .expect(200)
            .html,
    );
    // A challenge is valid once and for one account.
    for who in [&mut stan, &mut browser] {
        let fields = [
            ("challenge", challenge_id.as_str()),
            ("answer", "{}"),
            ("name", "key"),
        ];
        who.submit("/account", "/account/passkeys", &fields)
            .await
            .expect(422)
            .says("The passkey could not be added.");
    }
    assert!(
        app.app
            .db
            .query("select from passkey_challenges", &[])
            .await
            .unwrap()
            .is_empty()
    );
    let mut nobody = Browser::new(&app.node);
    let (challenge_id, _) = challenge(
        &nobody
            .post("/sign-in/passkey/ask", &[])
            .await
            .expect(200)
            .html,
    );
    for _ in 0..2 {
        let refused = nobody
            .post(
                "/sign-in/passkey",
                &[("challenge", &challenge_id), ("answer", "{}")],
            )
            .await
            .expect(422);
        refused.says("This passkey is not registered.");
    }
    assert!(nobody.cookies.is_empty());
    assert!(
        app.app
            .db
            .query("select from passkeys", &[])
            .await
            .unwrap()
            .is_empty()
    );
}

#[tokio::test]
async fn challenges_expire_and_only_the_owner_removes_a_passkey() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let mut stan = signed_in(&app, &app.stranger).await;
    browser
        .submit("/account", "/account/passkeys/ask", &[])
        .await
        .expect(200);
    app.advance(5 * 60);
    stan.submit("/account", "/account/passkeys/ask", &[])
        .await
        .expect(200);
    assert_eq!(
        app.app
            .db
            .query("select from passkey_challenges", &[])
            .await
            .unwrap()
            .len(),
        1,
        "the older one is over"
    );
    let sql = "insert into passkeys (user_id, credential_id, host, name, passkey, created_at) values ($1, 'key', 'gantry.test', $2, '{}', now()) returning id";
    let evil = "<script>alert(1)</script>";
    let id: i64 = app
        .app
        .db
        .query(sql, &[&app.owner.user.0, &evil])
        .await
        .unwrap()[0]
        .get(0);
    let id = id.to_string();
    browser
        .get("/account")
        .await
        .expect(200)
        .says("&#60;script&#62;alert(1)")
        .says("gantry.test, added")
        .hides("<script>alert");
    stan.submit("/account", "/account/passkeys/remove", &[("id", &id)])
        .await
        .expect(404);
    browser
        .submit("/account", "/account/passkeys/remove", &[("id", &id)])
        .await
        .leads_to("/account?done=no-passkey");
    browser
        .get("/account?done=no-passkey")
        .await
        .expect(200)
        .says("Passkey removed.")
        .hides("gantry.test, added");
}
