//! Access of authorized applications: roles, selected projects and limits.

use gantry::{
    api::organizations,
    platform::{access::Role, tables::Table},
};
use serde_json::json;

use super::flow::{Client, Pair, apps, parameter, register, register_bound};
use crate::support::{TestApp, client::Answer, dawn};

/// A bound application has the current role of its member; any other keeps the granted role.
#[tokio::test]
async fn bound_application_has_current_role_of_member() {
    let app = TestApp::new().await;
    let all = json!(["projects:read", "projects:write", "database:write"]);
    let bound = register(
        &app,
        json!({"scopes": all, "bind_to_authorizing_user": true}),
    )
    .await;
    let free = register(&app, json!({"scopes": all})).await;
    let (bound, free) = (
        bound.tokens(&app, &app.administrator).await,
        free.tokens(&app, &app.administrator).await,
    );
    let delete = async |pair: &Pair| -> Answer {
        app.post(&app.at("/pause")).token(&pair.access).send().await
    };
    let status = async |pair: &Pair| delete(pair).await.status.as_u16();
    assert!(![401, 403, 404].contains(&status(&bound).await));
    organizations::members::set(
        &app.app.db,
        app.home.id,
        app.administrator.user,
        Role::ReadOnly,
        dawn(),
        None,
    )
    .await
    .unwrap();
    app.app.table_changed(Table::Members);
    assert_eq!(status(&bound).await, 403);
    assert!(![401, 403, 404].contains(&status(&free).await));
}

/// Only administrators can authorize an application that is not bound to a member's role.
#[tokio::test]
async fn approve_unbound_application_requires_administrator() {
    let app = TestApp::new().await;
    let (free, bound) = (register(&app, json!({})).await, register_bound(&app).await);
    for (actor, role) in app.members() {
        let approve = async |client: &Client| {
            let id = client.ask(&app.node, &[]).await;
            let path = format!(
                "/platform/organizations/{}/oauth/authorizations/{id}",
                app.home.slug
            );
            app.post(&path)
                .as_(actor)
                .json(&json!({}))
                .send()
                .await
                .status
                .as_u16()
        };
        assert_eq!(
            approve(&free).await,
            if role >= Role::Administrator {
                201
            } else {
                403
            },
            "{role}"
        );
        assert_eq!(approve(&bound).await, 201, "{role}");
    }
}

#[tokio::test]
async fn token_sees_selected_projects_only() {
    let app = TestApp::new().await;
    let (sibling, second) = (
        app.stub(app.home.id, "sibling").await,
        app.tenant("Second", &app.owner).await,
    );
    let scopes = json!(["organizations:read", "projects:read", "database:read"]);
    let client = register(
        &app,
        json!({"scopes": scopes, "project_selection": "optional"}),
    )
    .await;
    let chosen = json!({"project_refs": [app.home.project]});
    let address = client.approve(&app, &app.owner, &[], &chosen).await;
    let answer = client
        .exchange(&app.node, &parameter(&address, "code"))
        .await
        .expect(200);
    assert_eq!(answer.json()["project_refs"], json!([app.home.project]));
    let (some, whole) = (Pair::of(&answer), client.tokens(&app, &app.owner).await);
    let list = async |pair: &Pair, path: &str, field: &str| -> Vec<String> {
        let listed = app
            .get(path)
            .token(&pair.access)
            .send()
            .await
            .expect(200)
            .json();
        listed
            .as_array()
            .unwrap()
            .iter()
            .map(|it| it[field].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(
        list(&some, "/v1/projects", "ref").await,
        [app.home.project.as_str()]
    );
    assert_eq!(list(&whole, "/v1/projects", "ref").await.len(), 2);
    for pair in [&some, &whole] {
        assert_eq!(
            list(pair, "/v1/organizations", "slug").await,
            [app.home.slug.as_str()]
        );
        for elsewhere in [&second, &app.foreign] {
            app.get(&format!("/v1/projects/{}", elsewhere.project))
                .token(&pair.access)
                .send()
                .await
                .expect(404);
            app.get(&format!("/v1/organizations/{}", elsewhere.slug))
                .token(&pair.access)
                .send()
                .await
                .expect(404);
        }
    }
    app.get(&format!("/v1/projects/{sibling}"))
        .token(&some.access)
        .send()
        .await
        .expect(404);
    app.get(&format!("/v1/projects/{sibling}"))
        .token(&whole.access)
        .send()
        .await
        .expect(200);
    app.get(&app.at(""))
        .token(&some.access)
        .send()
        .await
        .expect(200);
    let refused = app
        .get("/v1/profile")
        .token(&whole.access)
        .send()
        .await
        .expect(403);
    assert_eq!(
        refused.message(),
        "This endpoint does not accept OAuth access tokens"
    );
    for path in ["/v1/tokens", "/v1/oauth/authorizations", &apps(&app)] {
        app.get(path).token(&whole.access).send().await.expect(403);
    }
}

#[tokio::test]
async fn approve_enforces_project_selection() {
    let app = TestApp::new().await;
    let second = app.tenant("Second", &app.owner).await;
    for (selection, chosen, status) in [
        ("off", json!({}), 201),
        ("off", json!({"project_refs": [app.home.project]}), 400),
        ("optional", json!({}), 201),
        ("optional", json!({"project_refs": [app.home.project]}), 201),
        ("optional", json!({"project_refs": []}), 400),
        ("required", json!({}), 400),
        ("required", json!({"project_refs": null}), 400),
        ("required", json!({"project_refs": []}), 400),
        ("required", json!({"project_refs": [app.home.project]}), 201),
        (
            "required",
            json!({"project_refs": [app.foreign.project]}),
            400,
        ),
        ("required", json!({"project_refs": [second.project]}), 400),
        (
            "required",
            json!({"project_refs": [app.home.project, second.project]}),
            400,
        ),
        ("required", json!({"project_refs": ["nonsense"]}), 400),
    ] {
        let client = register(
            &app,
            json!({"name": selection, "project_selection": selection}),
        )
        .await;
        let id = client.ask(&app.node, &[]).await;
        let path = format!(
            "/platform/organizations/{}/oauth/authorizations/{id}",
            app.home.slug
        );
        let answer = app.post(&path).as_(&app.owner).json(&chosen).send().await;
        assert_eq!(answer.status, status, "{selection} {chosen}: {answer:?}");
    }
}

/// Requests count against the application's limit, not the member's.
#[tokio::test]
async fn application_has_own_rate_limit() {
    let app = TestApp::new().await;
    let (client, other) = (
        register(&app, json!({})).await,
        register(&app, json!({"name": "Other"})).await,
    );
    let (mine, theirs) = (
        client.tokens(&app, &app.owner).await,
        client.tokens(&app, &app.administrator).await,
    );
    let others = other.tokens(&app, &app.owner).await;
    for n in 0..120 {
        let pair = if n % 2 == 0 { &mine } else { &theirs };
        app.get(&app.at(""))
            .token(&pair.access)
            .send()
            .await
            .expect(200);
    }
    for pair in [&mine, &theirs] {
        app.get(&app.at(""))
            .token(&pair.access)
            .send()
            .await
            .expect(429);
    }
    app.get(&app.at(""))
        .token(&others.access)
        .send()
        .await
        .expect(200);
    app.get(&app.at(""))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
}
