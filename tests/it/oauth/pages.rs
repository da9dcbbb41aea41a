//! Pages of applications: displayed details, and management by forms.

use serde_json::json;

use super::{
    consent::{location, page, press},
    flow::{Client, register},
};
use crate::{
    support::TestApp,
    web::browser::{olga, signed_in},
};

/// The page depends on the projects, roles and names of the member.
#[tokio::test]
async fn consent_page_shows_application_and_choices() {
    let app = TestApp::new().await;
    let second = app.tenant("Second", &app.owner).await;
    let all = json!(["projects:write", "database:write"]);
    let more = json!({"name": "<script>alert(1)</script>", "scopes": all, "bind_to_authorizing_user": true, "project_selection": "required"});
    let picky = register(&app, more).await;
    let mut browser = olga(&app).await;
    let id = picky
        .ask(&app.node, &[("organization_slug", second.slug.as_str())])
        .await;
    let asked = browser
        .get(&page(&id))
        .await
        .expect(200)
        .says("&#60;script&#62;")
        .says(second.project.as_str());
    assert!(
        !asked.html.contains("<script>alert") && !asked.html.contains(app.home.project.as_str())
    );
    let elsewhere = format!("{}&organization={}", page(&id), app.home.slug);
    browser
        .get(&elsewhere)
        .await
        .expect(200)
        .says(app.home.project.as_str());
    let none = location(
        &press(&mut browser, &id, "approve", &[], app.home.slug.as_str())
            .await
            .expect(303),
    );
    assert_eq!(
        none,
        format!(
            "{}&organization={}&wrong=no-project",
            page(&id),
            app.home.slug
        )
    );
    browser
        .get(&none)
        .await
        .expect(200)
        .says("Choose at least one project.")
        .says(app.home.project.as_str());
    let mixed = [
        ("project", app.home.project.as_str()),
        ("project", second.project.as_str()),
        ("project", "nonsense"),
    ];
    let elsewhere = location(
        &press(
            &mut browser,
            &id,
            "approve",
            &mixed[..2],
            app.home.slug.as_str(),
        )
        .await
        .expect(303),
    );
    let shown = browser
        .get(&elsewhere)
        .await
        .expect(200)
        .says("Choose 1 to 100 projects of this organization.");
    shown.says(&format!("value=\"{}\" checked", app.home.project));
    let odd = location(
        &press(&mut browser, &id, "approve", &mixed, app.home.slug.as_str())
            .await
            .expect(303),
    );
    assert!(
        odd.starts_with(&page(&id)) && !odd.contains("nonsense"),
        "{odd}"
    );
    let whole = location(
        &press(
            &mut browser,
            &id,
            "approve",
            &[("reach", "all")],
            app.home.slug.as_str(),
        )
        .await
        .expect(303),
    );
    assert!(whole.ends_with("&reach=all&wrong=no-project"), "{whole}");
    browser
        .get(&format!("{}&wrong=%3Cscript%3E", page(&id)))
        .await
        .expect(200)
        .hides("role=\"alert\"");
    press(&mut browser, &id, "approve", &[], app.foreign.slug.as_str())
        .await
        .expect(404);
    press(
        &mut browser,
        &id,
        "approve",
        &[("project", app.home.project.as_str())],
        app.home.slug.as_str(),
    )
    .await
    .expect(303);

    let mut rhea = signed_in(&app, &app.read_only).await;
    let id = picky.ask(&app.node, &[]).await;
    rhea.get(&page(&id))
        .await
        .expect(200)
        .says("The application requests more access than your role permits")
        .says("Your role does not permit this.");
    let free = register(&app, json!({})).await;
    let id = free.ask(&app.node, &[]).await;
    let low = rhea
        .get(&page(&id))
        .await
        .expect(200)
        .says("Only administrators and owners can authorize this application");
    assert!(!low.html.contains("value=\"approve\""));
    press(&mut rhea, &id, "approve", &[], app.home.slug.as_str())
        .await
        .expect(403);

    let local = register(
        &app,
        json!({"redirect_uris": ["http://localhost:3000/cb"], "bind_to_authorizing_user": true}),
    )
    .await;
    let id = local
        .ask(&app.node, &[("redirect_uri", "http://localhost:3000/cb")])
        .await;
    let shown = app
        .get(&format!("/platform/oauth/authorizations/{id}"))
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(shown["domain"], "a program on your computer");
}

/// Manages an application by forms only: register, change, secrets, delete.
#[tokio::test]
async fn application_pages_manage_application() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let all = format!("/organizations/{}/applications", app.home.slug);
    let new = format!("{all}/new");
    browser.get(&all).await.expect(200).says("No applications");
    let wrong = [
        ("name", "Shop"),
        ("redirect_uris", "http://app.example/cb"),
        ("scope", "projects:read"),
        ("selection", "off"),
    ];
    browser
        .submit(&new, &all, &wrong)
        .await
        .expect(422)
        .says("must be https")
        .says("value=\"Shop\"");
    let right = [
        ("name", "Shop"),
        (
            "redirect_uris",
            "https://app.example/callback\r\nhttp://127.0.0.1/cb\r\n",
        ),
        ("scope", "projects:read"),
        ("scope", "database:read"),
        ("selection", "optional"),
        ("bound", "yes"),
        ("icon", "https://app.example/icon.png"),
    ];
    let made = location(&browser.submit(&new, &all, &right).await.expect(303));
    let one = made.strip_suffix("?done=registered").unwrap().to_owned();
    let shown = browser
        .get(&made)
        .await
        .expect(200)
        .says("Application registered")
        .says("https://app.example/callback");
    shown.says("value=\"https://app.example/icon.png\"");
    let secret = browser
        .submit(&one, &format!("{one}/secrets"), &[])
        .await
        .expect(200)
        .says("It is not shown again");
    let text = secret
        .html
        .split("id=\"secret\">")
        .nth(1)
        .unwrap()
        .split('<')
        .next()
        .unwrap()
        .to_owned();
    let client = Client {
        id: one.rsplit('/').next().unwrap().to_owned(),
        secret: Some(text.clone()),
    };
    client.tokens(&app, &app.owner).await;
    let shown = browser.get(&one).await.expect(200).says("1 authorization");
    assert!(!shown.html.contains(&text) && shown.html.contains(&text[40..]));
    let changed = [
        ("name", "Shop 2"),
        ("redirect_uris", "https://app.example/callback"),
        ("scope", "projects:read"),
        ("selection", "optional"),
        ("bound", "yes"),
        ("icon", ""),
    ];
    browser
        .submit(&one, &one, &changed)
        .await
        .leads_to(&format!("{one}?done=changed"));
    browser
        .get(&one)
        .await
        .expect(200)
        .hides("value=\"https://app.example/icon.png\"");
    let loosened = [
        ("name", "Shop 2"),
        ("redirect_uris", "https://app.example/callback"),
        ("scope", "projects:read"),
        ("selection", "off"),
        ("bound", "yes"),
    ];
    browser
        .submit(&one, &one, &loosened)
        .await
        .expect(422)
        .says("cannot be loosened");
    let number = shown
        .html
        .split("name=\"id\" value=\"")
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap()
        .to_owned();
    browser
        .submit(&one, &format!("{one}/secrets/revoke"), &[("id", &number)])
        .await
        .leads_to(&format!("{one}?done=secret"));
    browser
        .get(&format!("{one}/delete"))
        .await
        .expect(200)
        .says("This revokes 1 authorization");
    browser
        .submit(&format!("{one}/delete"), &format!("{one}/delete"), &[])
        .await
        .leads_to(&format!("{all}?done=deleted"));
    browser.get(&one).await.expect(404);

    let mut rhea = signed_in(&app, &app.read_only).await;
    rhea.get(&all).await.expect(200);
    let mine = location(&browser.submit(&new, &all, &right).await.expect(303))
        .replace("?done=registered", "");
    for shown in [rhea.get(&mine).await, rhea.get(&new).await] {
        let shown = shown
            .expect(200)
            .says("Requires the Administrator role. Your role is Read-only.");
        shown
            .hides("New client secret")
            .hides(">Save<")
            .hides(">Delete<")
            .hides(">Register<");
    }
    rhea.submit(&new, &all, &right).await.expect(403);
    let mut stan = signed_in(&app, &app.stranger).await;
    stan.get(&all).await.expect(404);
}
