//! Invitations on the pages: create, accept, revoke.

use super::{at, entries};
use crate::{
    support::TestApp,
    web::browser::{Browser, BrowserResponse, PASSWORD, email, give_password, olga, signed_in},
};

/// Returns the invitation link of a page.
fn link(page: &BrowserResponse) -> String {
    let shown = page
        .html
        .split("id=\"invitation-link\">")
        .nth(1)
        .expect("a link")
        .split('<')
        .next()
        .unwrap();
    shown.strip_prefix("http://gantry.test").unwrap().to_owned()
}

#[tokio::test]
async fn invited_user_signs_in_and_accepts() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let invitations = at(&app, "/invitations");
    browser
        .get(&invitations)
        .await
        .expect(200)
        .says("No open invitations");
    let fields = [("email", "stan@example.com"), ("role", "developer")];
    let made = browser
        .submit(&invitations, &invitations, &fields)
        .await
        .expect(200)
        .says("not shown again");
    let link = link(&made);
    browser
        .get(&invitations)
        .await
        .expect(200)
        .says("stan@example.com")
        .says("Invited by olga@example.com")
        .hides("gantry_invite");
    // Another account gets 404.
    browser
        .get(&link)
        .await
        .expect(404)
        .says("Invitation not found")
        .hides("invited you to");

    give_password(&app, &app.stranger).await;
    let mut stan = Browser::new(&app.node);
    let sign_in = format!(
        "/sign-in?next={}",
        form_urlencoded::byte_serialize(link.as_bytes()).collect::<String>()
    );
    stan.get(&link).await.leads_to(&sign_in);
    stan.get(&sign_in)
        .await
        .expect(200)
        .says(&format!("value=\"{link}\""));
    stan.post(
        "/sign-in",
        &[
            ("email", &email("stan")),
            ("password", PASSWORD),
            ("next", &link),
        ],
    )
    .await
    .leads_to(&link);
    stan.get(&link)
        .await
        .expect(200)
        .says("You have been invited")
        .says("Home")
        .says("Developer");
    app.get(&app.at(""))
        .as_(&app.stranger)
        .send()
        .await
        .expect(404);
    stan.submit(&link, &link, &[])
        .await
        .leads_to(&at(&app, "?done=joined"));
    app.get(&app.at(""))
        .as_(&app.stranger)
        .send()
        .await
        .expect(200);
    stan.get(&at(&app, "?done=joined"))
        .await
        .expect(200)
        .says("You joined the organization.");
    stan.get(&link)
        .await
        .expect(404)
        .says("Invitation not found");
    stan.submit("/account", &link, &[])
        .await
        .expect(404)
        .says("Invitation not found");
    assert_eq!(
        entries(&app, "v2-create-organization-invitations")
            .await
            .len(),
        1
    );
}

#[tokio::test]
async fn invitation_is_revoked_and_invalid_ones_return_422() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let invitations = at(&app, "/invitations");
    let fields = [
        ("email", "stan@example.com"),
        ("role", "read-only"),
        ("project", app.home.project.as_str()),
    ];
    let link = link(
        &browser
            .submit(&invitations, &invitations, &fields)
            .await
            .expect(200),
    );
    let mut stan = signed_in(&app, &app.stranger).await;
    stan.get(&link)
        .await
        .expect(200)
        .says("Read-only")
        .says("on stub");
    let withdraw = at(&app, "/invitations/withdraw");
    browser
        .submit(&invitations, &withdraw, &[("email", "stan@example.com")])
        .await
        .leads_to(&at(&app, "/invitations?done=withdrawn"));
    stan.get(&link).await.expect(404);
    for (address, message) in [
        ("dora@example.com", "is a member already"),
        ("nonsense", "expected an address"),
    ] {
        let again = browser
            .submit(
                &invitations,
                &invitations,
                &[("email", address), ("role", "administrator")],
            )
            .await
            .expect(422);
        again
            .says(message)
            .says(&format!("value=\"{address}\""))
            .says("value=\"administrator\" selected");
    }
}
