//! Applications of an organization: who may see and change them, and what cannot be changed back.

use serde_json::{Value, json};

use super::flow::{CALLBACK, add_secret, apps, register, tried};
use crate::support::TestApp;

#[tokio::test]
async fn administrators_change_what_every_member_sees() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let (list, one) = (apps(&app), format!("{}/{}", apps(&app), client.id));
    let body = json!({"name": "Acme", "redirect_uris": [CALLBACK], "scopes": ["projects:read"]});
    for (actor, role) in app.members() {
        let may = role >= gantry::access::Role::Administrator;
        app.get(&list).as_(actor).send().await.expect(200);
        app.get(&one).as_(actor).send().await.expect(200);
        app.post(&list).as_(actor).json(&body).send().await.expect(if may { 201 } else { 403 });
        app.patch(&one).as_(actor).json(&json!({"name": "Acme"})).send().await.expect(if may { 200 } else { 403 });
        app.post(&format!("{one}/secrets")).as_(actor).send().await.expect(if may { 201 } else { 403 });
    }
    for call in [app.get(&list), app.get(&one), app.delete(&one), app.post(&format!("{one}/secrets"))] {
        call.as_(&app.stranger).send().await.expect(404);
    }
    app.delete(&one).as_(&app.developer).send().await.expect(403);
    // Another organization's path does not lead to it.
    let elsewhere = format!("/v1/organizations/{}/oauth/apps/{}", app.foreign.slug, client.id);
    app.get(&elsewhere).as_(&app.stranger).send().await.expect(404);
    app.delete(&elsewhere).as_(&app.stranger).send().await.expect(404);
    app.get(&format!("{list}/nonsense")).as_(&app.owner).send().await.expect(404);
    app.delete(&one).as_(&app.administrator).send().await.expect(200);
    app.get(&one).as_(&app.owner).send().await.expect(404);
}

#[tokio::test]
async fn what_cannot_work_is_refused_by_name() {
    let app = TestApp::new().await;
    let create = async |field: &str, value: Value| {
        let mut body = json!({"name": "Acme", "redirect_uris": [CALLBACK], "scopes": ["projects:read"]});
        body[field] = value;
        app.post(&apps(&app)).as_(&app.owner).json(&body).send().await.expect(400).message()
    };
    for (field, value) in [
        ("name", json!("")),
        ("name", json!(" Acme")),
        ("name", json!("A\u{202e}")),
        ("redirect_uris", json!([])),
        ("redirect_uris", json!(["http://app.example"])),
        ("redirect_uris", json!(["javascript:alert(1)"])),
        ("scopes", json!([])),
        ("scopes", json!(["everything"])),
        ("website", json!("javascript:alert(1)")),
        ("icon", json!("http://app.example/icon.png")),
        ("project_selection", json!("none")),
        ("secret", json!("mine")),
    ] {
        let message = create(field, value.clone()).await;
        assert!(message.starts_with(field), "{field} {value}: {message}");
    }
}

/// What restricts an application was approved as a restriction.
#[tokio::test]
async fn restrictions_stay() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let one = format!("{}/{}", apps(&app), client.id);
    let change = async |body: Value| app.patch(&one).as_(&app.owner).json(&body).send().await;
    change(json!({"bind_to_authorizing_user": true, "project_selection": "optional"})).await.expect(200);
    for loosened in [json!({"bind_to_authorizing_user": false}), json!({"project_selection": "off"})] {
        change(loosened).await.expect(400);
    }
    change(json!({"project_selection": "required"})).await.expect(200);
    change(json!({"project_selection": "optional"})).await.expect(400);
    change(json!({"public": true})).await.expect(400);
    let shown = app.get(&one).as_(&app.owner).send().await.expect(200).json();
    assert_eq!((&shown["bind_to_authorizing_user"], &shown["project_selection"]), (&json!(true), &json!("required")));
}

/// What an application has less of, its tokens have less of at once; what it has more of, nobody approved.
#[tokio::test]
async fn scopes_that_are_taken_away_are_gone_and_new_ones_are_asked_for() {
    let app = TestApp::new().await;
    let client = register(&app, json!({"scopes": ["projects:read", "organizations:read"]})).await;
    let one = format!("{}/{}", apps(&app), client.id);
    let pair = client.tokens(&app, &app.owner).await;
    assert_eq!(tried(&app.node, &pair.access).await, 200);
    let change = async |scopes: Value| app.patch(&one).as_(&app.owner).json(&json!({"scopes": scopes})).send().await.expect(200);
    change(json!(["organizations:read", "database:read"])).await;
    app.get("/v1/projects").token(&pair.access).send().await.expect(403);
    app.get("/v1/organizations").token(&pair.access).send().await.expect(200);
    app.get(&app.at("/database/migrations")).token(&pair.access).send().await.expect(403);
    let renewed = client.refresh(&app.node, &pair.refresh).await.expect(200);
    assert_eq!(renewed.json()["scope"], "organizations:read");
    change(json!(["projects:read", "organizations:read"])).await;
    assert_eq!(tried(&app.node, &pair.access).await, 200, "what was approved is approved");
}

#[tokio::test]
async fn an_application_has_five_secrets_at_most_and_a_public_one_none() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let mut last = 0;
    for _ in 0..4 {
        last = add_secret(&app, &client.id).await.1;
    }
    let path = format!("{}/{}/secrets", apps(&app), client.id);
    app.post(&path).as_(&app.owner).send().await.expect(400);
    app.delete(&format!("{path}/{last}")).as_(&app.owner).send().await.expect(200);
    app.delete(&format!("{path}/{last}")).as_(&app.owner).send().await.expect(404);
    app.post(&path).as_(&app.owner).send().await.expect(201);
    let public = register(&app, json!({"public": true})).await;
    app.post(&format!("{}/{}/secrets", apps(&app), public.id)).as_(&app.owner).send().await.expect(400);
    // A secret of one is none of another.
    let other = register(&app, json!({})).await;
    let detail = app.get(&format!("{}/{}", apps(&app), client.id)).as_(&app.owner).send().await.expect(200).json();
    let number = &detail["secrets"][0]["id"];
    app.delete(&format!("{}/{}/secrets/{number}", apps(&app), other.id)).as_(&app.owner).send().await.expect(404);
}
