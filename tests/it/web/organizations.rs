//! Organizations on the pages: members and their roles, invitations, and the audit log.

use serde_json::{Value, json};

use super::browser::{Browser, PASSWORD, Seen, email, give_password, olga, signed_in};
use crate::support::{Actor, TestApp};

fn at(app: &TestApp, rest: &str) -> String {
    format!("/organizations/{}{rest}", app.home.slug)
}

fn member(app: &TestApp, actor: &Actor, rest: &str) -> String {
    at(app, &format!("/members/{}{rest}", actor.gotrue_id))
}

/// Entries of the organization's log about an operation, as the API tells them.
async fn entries(app: &TestApp, operation: &str) -> Vec<Value> {
    let path = format!(
        "/v1/organizations/{}/audit?operation={operation}",
        app.home.slug
    );
    app.get(&path)
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json()["entries"]
        .as_array()
        .unwrap()
        .clone()
}

#[tokio::test]
async fn roles_are_given_and_taken_and_count_at_once() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let (rhea, keys) = (
        member(&app, &app.read_only, ""),
        app.at("/config/auth/signing-keys"),
    );
    browser
        .get(&at(&app, ""))
        .await
        .expect(200)
        .says("rhea@example.com")
        .says("Read-only")
        .says("Invite")
        .says("You</span>");
    app.get(&keys).as_(&app.read_only).send().await.expect(403);
    let role = format!("{rhea}/role");
    browser
        .submit(&rhea, &role, &[("role", "developer")])
        .await
        .leads_to(&format!("{rhea}?done=role"));
    browser
        .get(&format!("{rhea}?done=role"))
        .await
        .expect(200)
        .says("It counts from the next request on.")
        .says("Developer");
    app.get(&keys).as_(&app.read_only).send().await.expect(501);
    browser
        .submit(&rhea, &role, &[("role", "no-access")])
        .await
        .expect(303);
    app.get(&keys).as_(&app.read_only).send().await.expect(403);

    let on_project = [("role", "owner"), ("project", app.home.project.as_str())];
    browser.submit(&rhea, &role, &on_project).await.expect(303);
    browser
        .get(&rhea)
        .await
        .expect(200)
        .says("Owner on 1 project")
        .says("No role")
        .says("Take away");
    app.get(&keys).as_(&app.read_only).send().await.expect(501);
    browser
        .submit(
            &rhea,
            &role,
            &[
                ("role", "no-access"),
                ("project", app.home.project.as_str()),
            ],
        )
        .await
        .expect(303);
    app.get(&keys).as_(&app.read_only).send().await.expect(403);

    let written = entries(&app, "v2-assign-organization-member-role").await;
    assert_eq!(written.len(), 4);
    assert!(
        written
            .iter()
            .all(|entry| entry["token"] == 0 && entry["actor"] == json!(app.owner.gotrue_id))
    );
    let wrong = browser
        .submit(
            &rhea,
            &role,
            &[("role", "owner"), ("project", app.foreign.project.as_str())],
        )
        .await;
    wrong.expect(422).says("there is no project");
}

#[tokio::test]
async fn the_last_owner_is_told_why_they_stay() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let own = member(&app, &app.owner, "");
    let text = "An organization must have at least one owner. Make somebody else an owner first.";
    browser
        .submit(&own, &format!("{own}/role"), &[("role", "developer")])
        .await
        .expect(422)
        .says(text);
    let question = format!("{own}/remove");
    browser.get(&question).await.expect(200).says("Leave Home?");
    browser
        .submit(&question, &question, &[])
        .await
        .expect(422)
        .says(text);
    browser
        .submit(
            &member(&app, &app.administrator, ""),
            &member(&app, &app.administrator, "/role"),
            &[("role", "owner")],
        )
        .await
        .expect(303);
    browser
        .submit(&question, &question, &[])
        .await
        .leads_to("/projects?done=left");
    browser.get(&at(&app, "")).await.expect(404);
}

#[tokio::test]
async fn a_member_is_removed_after_a_question() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let question = member(&app, &app.developer, "/remove");
    browser
        .get(&question)
        .await
        .expect(200)
        .says("Remove this member from Home?")
        .says("dora@example.com");
    app.get(&app.at(""))
        .as_(&app.developer)
        .send()
        .await
        .expect(200);
    browser
        .submit(&question, &question, &[])
        .await
        .leads_to(&at(&app, "?done=removed"));
    app.get(&app.at(""))
        .as_(&app.developer)
        .send()
        .await
        .expect(404);
    browser.get(&question).await.expect(404);
    browser
        .get(&at(&app, ""))
        .await
        .expect(200)
        .hides("dora@example.com");
    assert_eq!(
        entries(&app, "v2-remove-organization-members").await.len(),
        1
    );
}

#[tokio::test]
async fn what_a_role_does_not_allow_is_not_offered_and_not_done() {
    let app = TestApp::new().await;
    let (mut adam, mut dora) = (
        signed_in(&app, &app.administrator).await,
        signed_in(&app, &app.developer).await,
    );
    let (rhea, role) = (
        member(&app, &app.read_only, ""),
        member(&app, &app.read_only, "/role"),
    );
    let why = "Needs the role Owner; yours is Administrator.";
    adam.get(&rhea)
        .await
        .expect(200)
        .says(why)
        .hides("Change role")
        .hides("Give role")
        .hides("/remove");
    adam.get(&member(&app, &app.read_only, "/remove"))
        .await
        .expect(200)
        .says(why)
        .hides("<button class=\"main bad\">");
    adam.submit(&rhea, &role, &[("role", "owner")])
        .await
        .expect(403)
        .says("You may not do this");
    adam.submit(&rhea, &member(&app, &app.read_only, "/remove"), &[])
        .await
        .expect(403);

    let invitations = at(&app, "/invitations");
    adam.get(&invitations)
        .await
        .expect(200)
        .says("Owner (above your own)")
        .says("disabled>Owner")
        .hides("disabled>Administrator");
    adam.submit(
        &invitations,
        &invitations,
        &[("email", "eve@example.com"), ("role", "owner")],
    )
    .await
    .expect(403);
    let why = "You cannot invite. Needs the role Administrator; yours is Developer.";
    dora.get(&invitations)
        .await
        .expect(200)
        .says(why)
        .hides("Make invitation");
    dora.submit(
        &invitations,
        &invitations,
        &[("email", "eve@example.com"), ("role", "read-only")],
    )
    .await
    .expect(403);
    assert_eq!(
        app.app
            .db
            .query("select from invitations", &[])
            .await
            .unwrap()
            .len(),
        0
    );
}

#[tokio::test]
async fn who_has_a_role_on_a_project_only_is_told_what_is_missing() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let (rhea, role) = (
        member(&app, &app.read_only, ""),
        member(&app, &app.read_only, "/role"),
    );
    browser
        .submit(
            &rhea,
            &role,
            &[
                ("role", "developer"),
                ("project", app.home.project.as_str()),
            ],
        )
        .await
        .expect(303);
    browser
        .submit(&rhea, &role, &[("role", "no-access")])
        .await
        .expect(303);
    let mut browser = signed_in(&app, &app.read_only).await;
    let why = "Needs the role Read-only; you have none here.";
    browser
        .get(&at(&app, ""))
        .await
        .expect(200)
        .says(why)
        .hides("olga@example.com");
    browser
        .get(&at(&app, "/invitations"))
        .await
        .expect(200)
        .says(why);
    browser
        .get(&at(&app, "/audit"))
        .await
        .expect(200)
        .says(why)
        .hides("olga@example.com");
    browser.get(&at(&app, "/audit/export")).await.expect(403);
    browser
        .get(&format!("/projects/{}", app.home.project))
        .await
        .expect(200)
        .says("API keys")
        .hides("API keys are not shown");
}

#[tokio::test]
async fn another_organization_is_not_there() {
    let app = TestApp::new().await;
    let mut stan = signed_in(&app, &app.stranger).await;
    let pages = ["", "/invitations", "/audit", "/audit/export"].map(|rest| at(&app, rest));
    for page in pages.into_iter().chain([
        member(&app, &app.owner, ""),
        member(&app, &app.owner, "/remove"),
    ]) {
        stan.get(&page)
            .await
            .expect(404)
            .says("There is nothing here");
    }
    let forms: [(String, &[(&str, &str)]); 4] = [
        (
            at(&app, "/invitations"),
            &[("email", "eve@example.com"), ("role", "owner")],
        ),
        (
            at(&app, "/invitations/withdraw"),
            &[("email", "eve@example.com")],
        ),
        (member(&app, &app.owner, "/role"), &[("role", "read-only")]),
        (member(&app, &app.owner, "/remove"), &[]),
    ];
    for (form, fields) in forms {
        stan.submit("/account", &form, fields).await.expect(404);
    }
    // Nor is a member of one in another.
    let mut browser = olga(&app).await;
    browser
        .get(&member(&app, &app.stranger, ""))
        .await
        .expect(404);
}

/// The link that a page shows once.
fn link(page: &Seen) -> String {
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
async fn an_invitation_leads_through_the_sign_in_to_membership() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let invitations = at(&app, "/invitations");
    browser
        .get(&invitations)
        .await
        .expect(200)
        .says("Nobody is invited.");
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
        .says("By olga@example.com")
        .hides("gantry_invite");
    // For anybody else it does not exist.
    browser
        .get(&link)
        .await
        .expect(404)
        .says("This invitation cannot be used")
        .hides("invites you to");

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
        .says("You are invited")
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
        .says("You are a member now.");
    stan.get(&link)
        .await
        .expect(404)
        .says("This invitation cannot be used");
    stan.submit("/account", &link, &[])
        .await
        .expect(404)
        .says("This invitation cannot be used");
    assert_eq!(
        entries(&app, "v2-create-organization-invitations")
            .await
            .len(),
        1
    );
}

#[tokio::test]
async fn an_invitation_is_taken_back_and_wrong_ones_are_explained() {
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
    for (address, said) in [
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
            .says(said)
            .says(&format!("value=\"{address}\""))
            .says("value=\"administrator\" selected");
    }
}

#[tokio::test]
async fn the_log_is_shown_filtered_paged_and_exported() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let log = at(&app, "/audit");
    browser
        .get(&log)
        .await
        .expect(200)
        .says("Nothing was changed yet.");
    for number in 0..60 {
        let name = json!({"name": format!("name {number}")});
        app.patch(&app.at(""))
            .as_(&app.administrator)
            .json(&name)
            .send()
            .await
            .expect(200);
    }
    app.delete(&app.at(""))
        .as_(&app.developer)
        .send()
        .await
        .expect(403);
    let first = browser
        .get(&log)
        .await
        .expect(200)
        .says("Rename a project")
        .says("adam@example.com")
        .says("name 59")
        .says("Refused");
    assert_eq!(first.html.matches("<details>").count(), 50);
    let older = first
        .html
        .split("<a class=\"button\" href=\"")
        .find(|part| part.contains(">Older entries"))
        .unwrap();
    let older = older.split('"').next().unwrap().replace("&#38;", "&");
    browser
        .get(&older)
        .await
        .expect(200)
        .says("name 0")
        .hides("name 59");
    let refused = browser
        .get(&format!("{log}?outcome=refused&actor=&operation=&subject="))
        .await
        .expect(200);
    assert_eq!(
        refused
            .says("Delete a project")
            .says("dora@example.com")
            .html
            .matches("<details>")
            .count(),
        1
    );
    let by_dora = browser
        .get(&format!(
            "{log}?actor={}&outcome=done",
            app.developer.gotrue_id
        ))
        .await
        .expect(200);
    by_dora
        .says("No entry is like that.")
        .says("Show everything");
    browser
        .get(&format!("{log}?actor=nobody"))
        .await
        .expect(400)
        .says("That did not work");

    let exported = browser.get(&at(&app, "/audit/export")).await.expect(200);
    assert_eq!(
        exported.header("content-type"),
        Some("application/x-ndjson")
    );
    assert_eq!(exported.header("cache-control"), Some("no-store"));
    assert!(
        exported
            .header("content-disposition")
            .unwrap()
            .starts_with("attachment; filename=\"audit-")
    );
    let verified = gantry::platform::audit::verify::verify(exported.html.as_bytes()).unwrap();
    assert_eq!(verified.numbers, (1, 61));
}

#[tokio::test]
async fn names_are_shown_as_text() {
    let app = TestApp::new().await;
    let evil = "<script>alert(1)</script>";
    app.app
        .db
        .query("update organizations set name = $1", &[&evil])
        .await
        .unwrap();
    app.app
        .db
        .query(
            "update users set username = $1 where id = $2",
            &[&evil, &app.read_only.user.0],
        )
        .await
        .unwrap();
    let mut browser = olga(&app).await;
    let pages = [
        at(&app, ""),
        member(&app, &app.read_only, ""),
        member(&app, &app.read_only, "/remove"),
        at(&app, "/invitations"),
    ];
    for page in pages.into_iter().chain([
        "/projects".to_owned(),
        "/projects/new".to_owned(),
        at(&app, "/audit"),
    ]) {
        browser
            .get(&page)
            .await
            .expect(200)
            .says("&#60;script&#62;alert(1)")
            .hides("<script>alert");
    }
}
