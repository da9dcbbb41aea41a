//! Audience restriction: a token is accepted only by the resource it was requested for (RFC 8707).

use serde_json::json;

use super::flow::{CALLBACK, Client, Pair, VERIFIER, list_projects_status, parameter, register};
use crate::support::{ISSUER, TestApp};

/// Runs the whole flow with a resource.
async fn tokens(app: &TestApp, client: &Client, resource: &str) -> Pair {
    let asked: Vec<_> = [("resource", resource)]
        .into_iter()
        .filter(|(_, resource)| !resource.is_empty())
        .collect();
    let address = client.approve(app, &app.owner, &asked, &json!({})).await;
    let code = parameter(&address, "code");
    let mut fields = vec![
        ("grant_type", "authorization_code"),
        ("code", &code),
        ("redirect_uri", CALLBACK),
        ("code_verifier", VERIFIER),
    ];
    fields.extend(asked);
    Pair::of(
        &client
            .call(&app.node, "/oauth/token", &fields)
            .send()
            .await
            .expect(200),
    )
}

/// Returns an access token for the MCP server.
pub(crate) async fn mcp_token(app: &TestApp) -> String {
    let client = register(app, json!({})).await;
    tokens(app, &client, &format!("{ISSUER}/mcp")).await.access
}

#[tokio::test]
async fn token_for_api_is_accepted() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    for resource in ["", ISSUER, &format!("{ISSUER}/"), &format!("{ISSUER}/v1")] {
        let pair = tokens(&app, &client, resource).await;
        assert_eq!(
            list_projects_status(&app.node, &pair.access).await,
            200,
            "{resource}"
        );
        let pair = Pair::of(&client.refresh(&app.node, &pair.refresh).await.expect(200));
        assert_eq!(
            list_projects_status(&app.node, &pair.access).await,
            200,
            "{resource}, renewed"
        );
    }
    // The resource in the metadata is accepted.
    let metadata = app
        .get("/.well-known/oauth-protected-resource")
        .send()
        .await
        .expect(200)
        .json();
    let pair = tokens(&app, &client, metadata["resource"].as_str().unwrap()).await;
    assert_eq!(list_projects_status(&app.node, &pair.access).await, 200);
}

#[tokio::test]
async fn token_for_mcp_server_is_rejected_by_api() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let metadata = app
        .get("/.well-known/oauth-protected-resource/mcp")
        .send()
        .await
        .expect(200)
        .json();
    let resource = metadata["resource"].as_str().unwrap();
    let pair = tokens(&app, &client, resource).await;
    let renewed = Pair::of(&client.refresh(&app.node, &pair.refresh).await.expect(200));
    for token in [&pair.access, &renewed.access] {
        for path in ["/v1/projects", "/v1/organizations", &app.at("")] {
            app.get(path).token(token).send().await.expect(401);
        }
    }
    let refused = app
        .get("/v1/projects")
        .token(&renewed.access)
        .send()
        .await
        .expect(401);
    assert!(
        refused
            .header("www-authenticate")
            .unwrap()
            .contains("error=\"invalid_token\""),
        "{refused:?}"
    );
    // The MCP server reads the audience by introspection.
    let told = client
        .call(
            &app.node,
            "/oauth/introspect",
            &[("token", &renewed.access)],
        )
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(
        (&told["active"], &told["aud"]),
        (&json!(true), &json!(resource))
    );
}

/// A previous version accepted any resource below the issuer.
#[tokio::test]
async fn token_for_former_resource_is_rejected() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let pair = tokens(&app, &client, "").await;
    app.app
        .db
        .query(
            "update oauth_grants set resource = 'http://api.example/anything'",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(list_projects_status(&app.node, &pair.access).await, 401);
    let unused: bool = app
        .app
        .db
        .query(
            "select bool_and(first_used_at is null) from oauth_access_tokens",
            &[],
        )
        .await
        .unwrap()[0]
        .get(0);
    assert!(unused, "a token is not used by being refused");
}
