//! Operations on an organization's applications: permissions, limits and verification.

use gantry::{
    api::oauth::applications::verify::{self, VerificationCandidate},
    platform::{
        audit::Recorder,
        error::Error,
        rate_limits::{
            PolicyContext,
            overrides::{self, OverrideTarget},
        },
    },
};
use gantry_base::clock::Entropy;
use serde_json::{Value, json};
use uuid::Uuid;

use super::flow::{CALLBACK, add_secret, apps, from_any_address, list_projects_status, register};
use crate::{support::TestApp, web::browser::olga};

#[tokio::test]
async fn manage_applications_requires_administrator() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let (list, one) = (apps(&app), format!("{}/{}", apps(&app), client.id));
    let body = json!({"name": "Acme", "redirect_uris": [CALLBACK], "scopes": ["projects:read"]});
    for (actor, role) in app.members() {
        let may = role >= gantry::platform::access::Role::Administrator;
        app.get(&list).as_(actor).send().await.expect(200);
        app.get(&one).as_(actor).send().await.expect(200);
        app.post(&list)
            .as_(actor)
            .json(&body)
            .send()
            .await
            .expect(if may { 201 } else { 403 });
        app.patch(&one)
            .as_(actor)
            .json(&json!({"name": "Acme"}))
            .send()
            .await
            .expect(if may { 200 } else { 403 });
        app.post(&format!("{one}/secrets"))
            .as_(actor)
            .send()
            .await
            .expect(if may { 201 } else { 403 });
    }
    for call in [
        app.get(&list),
        app.get(&one),
        app.delete(&one),
        app.post(&format!("{one}/secrets")),
    ] {
        call.as_(&app.stranger).send().await.expect(404);
    }
    app.delete(&one)
        .as_(&app.developer)
        .send()
        .await
        .expect(403);
    // The path of another organization returns not found.
    let elsewhere = format!(
        "/v1/organizations/{}/oauth/apps/{}",
        app.foreign.slug, client.id
    );
    app.get(&elsewhere)
        .as_(&app.stranger)
        .send()
        .await
        .expect(404);
    app.delete(&elsewhere)
        .as_(&app.stranger)
        .send()
        .await
        .expect(404);
    app.get(&format!("{list}/nonsense"))
        .as_(&app.owner)
        .send()
        .await
        .expect(404);
    app.delete(&one)
        .as_(&app.administrator)
        .send()
        .await
        .expect(200);
    app.get(&one).as_(&app.owner).send().await.expect(404);
}

#[tokio::test]
async fn create_application_with_invalid_field_is_rejected() {
    let app = TestApp::new().await;
    let create = async |field: &str, value: Value| {
        let mut body =
            json!({"name": "Acme", "redirect_uris": [CALLBACK], "scopes": ["projects:read"]});
        body[field] = value;
        app.post(&apps(&app))
            .as_(&app.owner)
            .json(&body)
            .send()
            .await
            .expect(400)
            .message()
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

/// Restrictions cannot be lifted, because members granted access under them.
#[tokio::test]
async fn update_application_cannot_lift_restrictions() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let one = format!("{}/{}", apps(&app), client.id);
    let change = async |body: Value| app.patch(&one).as_(&app.owner).json(&body).send().await;
    change(json!({"bind_to_authorizing_user": true, "project_selection": "optional"}))
        .await
        .expect(200);
    for loosened in [
        json!({"bind_to_authorizing_user": false}),
        json!({"project_selection": "off"}),
    ] {
        change(loosened).await.expect(400);
    }
    change(json!({"project_selection": "required"}))
        .await
        .expect(200);
    change(json!({"project_selection": "optional"}))
        .await
        .expect(400);
    change(json!({"public": true})).await.expect(400);
    let shown = app
        .get(&one)
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(
        (
            &shown["bind_to_authorizing_user"],
            &shown["project_selection"]
        ),
        (&json!(true), &json!("required"))
    );
}

/// A concurrent change of the name does not restore a removed redirect URI.
#[tokio::test]
async fn concurrent_updates_are_not_lost() {
    let app = TestApp::new().await;
    let client = register(
        &app,
        json!({"redirect_uris": [CALLBACK, "https://stolen.example/callback"]}),
    )
    .await;
    let one = format!("{}/{}", apps(&app), client.id);
    let change = async |body: Value| {
        app.patch(&one)
            .as_(&app.owner)
            .json(&body)
            .send()
            .await
            .expect(200)
    };
    tokio::join!(
        change(json!({"name": "Renamed"})),
        change(json!({"redirect_uris": [CALLBACK]})),
        change(json!({"website": "https://app.example"})),
        change(json!({"bind_to_authorizing_user": true})),
        change(json!({"project_selection": "required"})),
        change(json!({"scopes": ["projects:read"]})),
    );
    let shown = app
        .get(&one)
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json();
    let expected = json!({
        "name": "Renamed", "redirect_uris": [CALLBACK], "website": "https://app.example", "bind_to_authorizing_user": true,
        "project_selection": "required", "scopes": ["projects:read"],
    });
    for (field, value) in expected.as_object().unwrap() {
        assert_eq!(&shown[field], value, "{field}");
    }
}

/// Removed scopes are removed from existing tokens; added scopes require a new approval.
#[tokio::test]
async fn update_scopes_narrows_existing_tokens() {
    let app = TestApp::new().await;
    let client = register(
        &app,
        json!({"scopes": ["projects:read", "organizations:read"]}),
    )
    .await;
    let one = format!("{}/{}", apps(&app), client.id);
    let pair = client.tokens(&app, &app.owner).await;
    assert_eq!(list_projects_status(&app.node, &pair.access).await, 200);
    let change = async |scopes: Value| {
        app.patch(&one)
            .as_(&app.owner)
            .json(&json!({"scopes": scopes}))
            .send()
            .await
            .expect(200)
    };
    change(json!(["organizations:read", "database:read"])).await;
    app.get("/v1/projects")
        .token(&pair.access)
        .send()
        .await
        .expect(403);
    app.get("/v1/organizations")
        .token(&pair.access)
        .send()
        .await
        .expect(200);
    app.get(&app.at("/database/migrations"))
        .token(&pair.access)
        .send()
        .await
        .expect(403);
    let renewed = client.refresh(&app.node, &pair.refresh).await.expect(200);
    assert_eq!(renewed.json()["scope"], "organizations:read");
    change(json!(["projects:read", "organizations:read"])).await;
    assert_eq!(
        list_projects_status(&app.node, &pair.access).await,
        200,
        "what was approved is approved"
    );
}

#[tokio::test]
async fn create_secret_above_maximum_is_rejected() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let mut last = 0;
    for _ in 0..4 {
        last = add_secret(&app, &client.id).await.1;
    }
    let path = format!("{}/{}/secrets", apps(&app), client.id);
    app.post(&path).as_(&app.owner).send().await.expect(400);
    app.delete(&format!("{path}/{last}"))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    app.delete(&format!("{path}/{last}"))
        .as_(&app.owner)
        .send()
        .await
        .expect(404);
    app.post(&path).as_(&app.owner).send().await.expect(201);
    let public = register(&app, json!({"public": true})).await;
    app.post(&format!("{}/{}/secrets", apps(&app), public.id))
        .as_(&app.owner)
        .send()
        .await
        .expect(400);
    // A secret cannot be revoked through another application.
    let other = register(&app, json!({})).await;
    let detail = app
        .get(&format!("{}/{}", apps(&app), client.id))
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json();
    let number = &detail["secrets"][0]["id"];
    app.delete(&format!("{}/{}/secrets/{number}", apps(&app), other.id))
        .as_(&app.owner)
        .send()
        .await
        .expect(404);
}

#[tokio::test]
async fn update_with_empty_icon_removes_icon() {
    let app = TestApp::new().await;
    let client = register(&app, json!({"icon": "https://app.example/icon.png"})).await;
    let one = format!("{}/{}", apps(&app), client.id);
    let change = async |body: Value| {
        app.patch(&one)
            .as_(&app.owner)
            .json(&body)
            .send()
            .await
            .expect(200)
            .json()["icon"]
            .clone()
    };
    assert_eq!(
        change(json!({"name": "Acme 2"})).await,
        "https://app.example/icon.png",
        "what is not named stays"
    );
    assert_eq!(change(json!({"icon": ""})).await, Value::Null);
    let made = register(&app, json!({"icon": ""})).await;
    let shown = app
        .get(&format!("{}/{}", apps(&app), made.id))
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(shown["icon"], Value::Null);
}

async fn vouch(app: &TestApp, id: &str, verified: bool) -> Result<VerificationCandidate, Error> {
    let audit = Recorder::operator("operator", &Entropy::system(), "gantry application verify");
    verify::set(
        &app.app.db,
        id.parse::<Uuid>().unwrap(),
        verified,
        audit,
        app.clock.now(),
    )
    .await
}

/// A change of name, website, icon or redirect URIs ends the verification, and so do added scopes.
#[tokio::test]
async fn update_application_ends_verification() {
    let app = TestApp::new().await;
    let client = register(&app, json!({"website": "https://app.example"})).await;
    let one = format!("{}/{}", apps(&app), client.id);
    let verified = async || {
        app.get(&one)
            .as_(&app.owner)
            .send()
            .await
            .expect(200)
            .json()["verified"]
            == true
    };
    assert!(!verified().await);
    for stays in [
        json!({"scopes": ["projects:read"]}),
        json!({"name": "Acme", "icon": ""}),
        json!({"project_selection": "optional"}),
    ] {
        assert!(vouch(&app, &client.id, true).await.unwrap().verified);
        app.patch(&one)
            .as_(&app.owner)
            .json(&stays)
            .send()
            .await
            .expect(200);
        assert!(verified().await, "{stays}");
    }
    for changed in [
        json!({"name": "Another"}),
        json!({"website": "https://other.example"}),
        json!({"icon": "https://app.example/icon.png"}),
        json!({"icon": ""}),
        json!({"redirect_uris": [CALLBACK, "https://other.example/callback"]}),
        // The previous iteration left a single scope, so this adds one.
        json!({"scopes": ["projects:read", "database:write"]}),
        json!({"scopes": ["projects:read", "database:write", "secrets:read"]}),
    ] {
        vouch(&app, &client.id, true).await.unwrap();
        assert_eq!(
            app.patch(&one)
                .as_(&app.owner)
                .json(&changed)
                .send()
                .await
                .expect(200)
                .json()["verified"],
            false,
            "{changed}"
        );
        assert!(!verified().await, "{changed}");
    }
    let own = app
        .patch(&one)
        .as_(&app.owner)
        .json(&json!({"verified": true}))
        .send()
        .await;
    own.expect(400);
    assert!(!verified().await);
}

/// The consent page of a pending request shows the new state when it is reloaded.
#[tokio::test]
async fn consent_page_shows_verification() {
    let app = TestApp::new().await;
    let (client, mut browser) = (register(&app, json!({})).await, olga(&app).await);
    let page = format!("/authorize?auth_id={}", client.ask(&app.node, &[]).await);
    let warning = "This application has not been verified by the operator.";
    browser.get(&page).await.expect(200).says(warning);
    vouch(&app, &client.id, true).await.unwrap();
    browser
        .get(&page)
        .await
        .expect(200)
        .says(">Verified<")
        .hides(warning);
    let one = format!(
        "/organizations/{}/applications/{}",
        app.home.slug, client.id
    );
    browser
        .get(&one)
        .await
        .expect(200)
        .says(">Verified<")
        .says("The operator verified the name");
    vouch(&app, &client.id, false).await.unwrap();
    browser.get(&page).await.expect(200).says(warning);
}

#[tokio::test]
async fn verification_is_in_audit_log_of_organization() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    for verified in [true, true, false, false] {
        assert_eq!(
            vouch(&app, &client.id, verified).await.unwrap().verified,
            verified
        );
    }
    let sql = "select address, subject, before, after from audit_entries where chain = $1 and operation = 'gantry application verify' order by number";
    let rows = app
        .app
        .db
        .query(sql, &[&format!("organization {}", app.home.id)])
        .await
        .unwrap();
    let verified = |row: &tokio_postgres::Row, column| {
        serde_json::from_str::<Value>(row.get(column)).unwrap()["verified"].clone()
    };
    let entries: Vec<_> = rows
        .iter()
        .map(|row| (row.get(0), row.get(1), verified(row, 2), verified(row, 3)))
        .collect();
    let (who, slug) = ("operator:operator", app.home.slug.as_str());
    assert_eq!(
        entries,
        [
            (who, slug, json!(false), json!(true)),
            (who, slug, json!(true), json!(false))
        ]
    );

    let listed = verify::list(&app.app.db, Some(app.home.id)).await.unwrap();
    assert!(
        matches!(listed.as_slice(), [one] if one.client_id.to_string() == client.id),
        "{listed:?}"
    );
    assert!(
        verify::list(&app.app.db, Some(app.foreign.id))
            .await
            .unwrap()
            .is_empty()
    );
    let body = json!({"client_name": "Assistant", "redirect_uris": [CALLBACK]});
    let itself = from_any_address(app.post("/platform/oauth/apps/register"))
        .json(&body)
        .send()
        .await
        .expect(201)
        .json();
    let refused = vouch(&app, itself["client_id"].as_str().unwrap(), true).await;
    assert!(matches!(refused, Err(Error::Rejected(_))), "{refused:?}");
    assert_eq!(verify::list(&app.app.db, None).await.unwrap().len(), 1);
    app.delete(&format!("{}/{}", apps(&app), client.id))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    assert!(matches!(
        vouch(&app, &client.id, true).await,
        Err(Error::NotFound)
    ));
}

/// All tokens of an application for one member share a limit.
#[tokio::test]
async fn application_rate_limit_can_be_overridden() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let (first, second) = (
        client.tokens(&app, &app.owner).await,
        client.tokens(&app, &app.owner).await,
    );
    let application = Some(client.id.parse().unwrap());
    let about = OverrideTarget {
        application,
        ..OverrideTarget::default()
    };
    overrides::set(&app.app.db, &about, 3, "test", app.app.clock.now(), None)
        .await
        .unwrap();
    let reading = tokio::spawn(overrides::run(app.app.platform.clone()));
    let number = app
        .app
        .limits
        .policies()
        .operation("v1-list-all-organizations")
        .unwrap();
    while app
        .app
        .limits
        .policy(
            number,
            PolicyContext {
                application,
                organization: None,
            },
        )
        .windows()[0]
        .requests
        != 3
    {
        tokio::task::yield_now().await;
    }
    reading.abort();

    let ask = async |token: &str| app.get("/v1/organizations").token(token).send().await;
    for (token, left) in [(&first, "2"), (&second, "1"), (&first, "0")] {
        let answer = ask(&token.access).await.expect(200);
        assert_eq!(
            (
                answer.header("x-ratelimit-limit"),
                answer.header("x-ratelimit-remaining")
            ),
            (Some("3"), Some(left))
        );
    }
    assert_eq!(ask(&second.access).await.status, 429);
    let own = app
        .get("/v1/organizations")
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    assert_eq!(
        own.header("x-ratelimit-limit"),
        Some("120"),
        "the member's own requests are as before"
    );
}
