//! Permissions of scoped tokens.

use gantry::{
    api::{organizations, tokens::scoped::TokenResources},
    platform::{
        access::{Permission, Permissions, Role},
        tables::Table,
    },
};
use serde_json::{Value, json};

use super::{draft, projects, scoped, store};
use crate::support::{TestApp, dawn};

#[tokio::test]
async fn scoped_token_needs_the_permission_and_403_names_missing_ones() {
    let app = TestApp::new().await;
    let (token, _) = scoped(
        &app,
        &app.owner,
        draft(projects(&[&app.home.project]), &["project_admin_read"]),
    )
    .await;
    app.get(&app.at("")).token(&token).send().await.expect(200);

    let refused = app
        .get(&app.at("/config/database/pooler"))
        .token(&token)
        .send()
        .await
        .expect(403);
    assert_eq!(
        refused.json(),
        json!({
            "message": "Missing required permission(s): database_pooling_config_read",
            "error": {"missing_permissions": ["database_pooling_config_read"]},
        })
    );
    assert_eq!(
        refused.header("x-accepted-permissions"),
        Some("database_pooling_config_read")
    );
    assert_eq!(
        refused.header("x-gotrue-id"),
        Some(&*app.owner.gotrue_id.to_string())
    );

    let refused = app
        .patch(&app.at("/config/auth"))
        .token(&token)
        .json(&json!({}))
        .send()
        .await
        .expect(403);
    assert_eq!(
        refused.json()["error"]["missing_permissions"],
        json!(["auth_config_write", "project_admin_write"])
    );
    assert_eq!(
        refused.header("x-accepted-permissions"),
        Some("auth_config_write+project_admin_write")
    );
}

#[tokio::test]
async fn scoped_token_is_limited_by_the_role_of_its_owner() {
    let app = TestApp::new().await;
    let all = draft(
        TokenResources::Account,
        &Permission::ALL
            .iter()
            .map(|permission| permission.name())
            .collect::<Vec<_>>(),
    );
    let (token, _) = scoped(&app, &app.developer, all).await;
    let refused = app
        .delete(&app.at(""))
        .token(&token)
        .send()
        .await
        .expect(403);
    assert!(
        refused
            .message()
            .starts_with("Your account does not have the necessary privileges"),
        "{refused:?}"
    );
    assert_eq!(
        refused.header("x-accepted-permissions"),
        Some("project_admin_write")
    );

    // A changed role applies to existing tokens from the next request on.
    organizations::members::set(
        &app.app.db,
        app.home.id,
        app.developer.user,
        Role::Administrator,
        dawn(),
        None,
    )
    .await
    .unwrap();
    app.app.table_changed(Table::Members);
    app.delete(&app.at(""))
        .token(&token)
        .send()
        .await
        .expect(200);
    organizations::members::set(
        &app.app.db,
        app.home.id,
        app.developer.user,
        Role::ReadOnly,
        dawn(),
        None,
    )
    .await
    .unwrap();
    app.app.table_changed(Table::Members);
    app.get(&app.at("/api-keys"))
        .token(&token)
        .send()
        .await
        .expect(403);
}

#[tokio::test]
async fn account_operations_need_account_reach() {
    let app = TestApp::new().await;
    let (whole, _) = scoped(
        &app,
        &app.owner,
        draft(TokenResources::Account, &["database_read"]),
    )
    .await;
    app.get("/v1/profile")
        .token(&whole)
        .send()
        .await
        .expect(200);
    for resources in [
        TokenResources::Organizations([app.home.slug.clone()].into()),
        projects(&[&app.home.project]),
    ] {
        let (bound, _) = scoped(
            &app,
            &app.owner,
            draft(resources.clone(), &["database_read"]),
        )
        .await;
        let refused = app
            .get("/v1/profile")
            .token(&bound)
            .send()
            .await
            .expect(403);
        assert_eq!(
            refused.message(),
            "This endpoint requires a user-scoped access token"
        );
        let refused = draft(resources.clone(), &["organizations_create"])
            .resolve(&app.app.db, app.owner.user)
            .await
            .unwrap_err();
        assert!(
            refused
                .message()
                .contains("organizations_create is about the whole account"),
            "{refused}"
        );
        // A stored row with a permission outside its reach does not permit it.
        let mut grant = draft(resources, &["database_read"])
            .resolve(&app.app.db, app.owner.user)
            .await
            .unwrap();
        grant.permissions = Permission::ALL.iter().copied().collect::<Permissions>();
        let (token, _) = store(&app, &app.owner, &grant).await;
        let refused = app
            .post("/v1/organizations")
            .token(&token)
            .json(&json!({"name": "Third"}))
            .send()
            .await
            .expect(403);
        assert_eq!(
            refused.message(),
            "Missing required permission(s): organizations_create"
        );
    }
}

#[tokio::test]
async fn query_permissions_depend_on_the_request() {
    let app = TestApp::new().await;
    let path = app.at("/database/query");
    let ask = async |permissions: &[&str], body: Value| {
        let (token, _) = scoped(
            &app,
            &app.owner,
            draft(projects(&[&app.home.project]), permissions),
        )
        .await;
        let answer = app.post(&path).token(&token).json(&body).send().await;
        (
            answer.status.as_u16(),
            answer.header("x-accepted-permissions").map(str::to_owned),
        )
    };
    // Admitted: the project of this test has no database, or the query is invalid.
    let both = Some("database_read+database_write".to_owned());
    assert_eq!(
        ask(&["database_read"], json!({"read_only": true})).await,
        (400, None)
    );
    assert_eq!(
        ask(&["database_read"], json!({})).await,
        (403, both.clone())
    );
    assert_eq!(
        ask(&["database_read"], json!({"read_only": false})).await,
        (403, both.clone())
    );
    assert_eq!(ask(&["database_write"], json!({})).await, (403, both));
    assert_eq!(
        ask(&["database_write"], json!({"read_only": true})).await,
        (403, Some("database_read".to_owned()))
    );
    assert_eq!(
        ask(&["database_read", "database_write"], json!({})).await,
        (400, None)
    );
    // A body over its bound requires all permissions.
    let (token, _) = scoped(
        &app,
        &app.owner,
        draft(projects(&[&app.home.project]), &["database_read"]),
    )
    .await;
    let huge = || format!(r#"{{"read_only":true,"query":"{}"}}"#, "x".repeat(2 << 20));
    app.post(&path)
        .token(&token)
        .body(huge())
        .send()
        .await
        .expect(403);
    app.post(&path)
        .as_(&app.owner)
        .body(huge())
        .send()
        .await
        .expect(413);
}

#[tokio::test]
async fn revealing_keys_needs_the_secret_permission() {
    let app = TestApp::new().await;
    let (token, _) = scoped(
        &app,
        &app.owner,
        draft(
            projects(&[&app.home.project]),
            &["api_gateway_keys_read", "branching_development_create"],
        ),
    )
    .await;
    app.get(&app.at("/api-keys"))
        .token(&token)
        .send()
        .await
        .expect(200);
    app.get(&app.at("/api-keys?reveal=false"))
        .token(&token)
        .send()
        .await
        .expect(200);
    let refused = app
        .get(&app.at("/api-keys?reveal=true"))
        .token(&token)
        .send()
        .await
        .expect(403);
    assert_eq!(
        refused.message(),
        "Missing required permission(s): api_gateway_keys_secret_read"
    );
    let branches = app.at("/branches");
    app.post(&branches)
        .token(&token)
        .json(&json!({"branch_name": "x"}))
        .send()
        .await
        .expect(201);
    app.post(&branches)
        .token(&token)
        .json(&json!({"branch_name": "x", "with_data": true}))
        .send()
        .await
        .expect(403);
    let v2 = branches.replace("/v1/", "/v2/");
    let body = |with_data: bool| json!({"data": {"type": "branch", "attributes": {"name": "y", "with_data": with_data}}});
    app.post(&v2)
        .token(&token)
        .json(&body(false))
        .send()
        .await
        .expect(201);
    let refused = app
        .post(&v2)
        .token(&token)
        .json(&body(true))
        .send()
        .await
        .expect(403)
        .json();
    assert_eq!(refused["error"]["code"], "forbidden");
    assert_eq!(
        refused["error"]["missing_permissions"],
        json!(["branching_production_create"])
    );
}
