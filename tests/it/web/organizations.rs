//! Organizations on the pages: members, roles and visibility.

mod audit_log;
mod invitations;

use serde_json::{Value, json};

use super::browser::{olga, signed_in};
use crate::support::{Actor, TestApp};

fn at(app: &TestApp, rest: &str) -> String {
    format!("/organizations/{}{rest}", app.home.slug)
}

fn member(app: &TestApp, actor: &Actor, rest: &str) -> String {
    at(app, &format!("/members/{}{rest}", actor.gotrue_id))
}

/// Returns the audit entries of an operation from the API.
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
async fn role_change_takes_effect_immediately() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let rhea = member(&app, &app.read_only, "");
    let keys = app.at("/config/auth/signing-keys");
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
        .says("Role updated.")
        .says("Developer");
    app.get(&keys).as_(&app.read_only).send().await.expect(200);
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
        .says("Remove</button>");
    app.get(&keys).as_(&app.read_only).send().await.expect(200);
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
async fn last_owner_cannot_leave_or_lose_the_role() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let own = member(&app, &app.owner, "");
    let text = "An organization must have at least one owner. Make another member an owner first.";
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
async fn remove_member_requires_confirmation() {
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
async fn forbidden_actions_are_hidden_and_rejected() {
    let app = TestApp::new().await;
    let mut adam = signed_in(&app, &app.administrator).await;
    let mut dora = signed_in(&app, &app.developer).await;
    let rhea = member(&app, &app.read_only, "");
    let role = member(&app, &app.read_only, "/role");
    let why = "Requires the Owner role. Your role is Administrator.";
    adam.get(&rhea)
        .await
        .expect(200)
        .says(why)
        .hides("Change role")
        .hides("Assign role")
        .hides("/remove");
    adam.get(&member(&app, &app.read_only, "/remove"))
        .await
        .expect(200)
        .says(why)
        .hides("<button class=\"main bad\">");
    adam.submit(&rhea, &role, &[("role", "owner")])
        .await
        .expect(403)
        .says("Access denied");
    adam.submit(&rhea, &member(&app, &app.read_only, "/remove"), &[])
        .await
        .expect(403);

    let invitations = at(&app, "/invitations");
    adam.get(&invitations)
        .await
        .expect(200)
        .says("Owner (above your role)")
        .says("disabled>Owner")
        .hides("disabled>Administrator");
    adam.submit(
        &invitations,
        &invitations,
        &[("email", "eve@example.com"), ("role", "owner")],
    )
    .await
    .expect(403);
    let why = "You cannot invite members. Requires the Administrator role. Your role is Developer.";
    dora.get(&invitations)
        .await
        .expect(200)
        .says(why)
        .hides("Create invitation");
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
async fn member_with_project_role_only_sees_the_missing_role() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let rhea = member(&app, &app.read_only, "");
    let role = member(&app, &app.read_only, "/role");
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
    let why = "Requires the Read-only role. You have no role here.";
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
        .hides("You do not have access to API keys");
}

#[tokio::test]
async fn pages_of_another_organization_return_404() {
    let app = TestApp::new().await;
    let mut stan = signed_in(&app, &app.stranger).await;
    let pages = ["", "/invitations", "/audit", "/audit/export"].map(|rest| at(&app, rest));
    for page in pages.into_iter().chain([
        member(&app, &app.owner, ""),
        member(&app, &app.owner, "/remove"),
    ]) {
        stan.get(&page).await.expect(404).says("Page not found");
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
    // A member of another organization returns 404 as well.
    let mut browser = olga(&app).await;
    browser
        .get(&member(&app, &app.stranger, ""))
        .await
        .expect(404);
}

#[tokio::test]
async fn names_are_escaped() {
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
