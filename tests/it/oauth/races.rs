//! Sixteen concurrent requests: at most one pair of tokens is valid afterwards.

use futures_util::future::join_all;
use serde_json::json;

use super::flow::{Pair, list_projects_status, parameter, register};
use crate::support::TestApp;

const AT_ONCE: usize = 16;

#[tokio::test]
async fn concurrent_code_exchange_revokes_grant() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    for _ in 0..4 {
        let code = client.code(&app, &app.owner).await;
        let answers = join_all((0..AT_ONCE).map(|_| client.exchange(&app.node, &code))).await;
        let won: Vec<_> = answers
            .iter()
            .filter(|answer| answer.status == 200)
            .map(Pair::of)
            .collect();
        assert_eq!(won.len(), 1, "{answers:?}");
        assert!(
            answers
                .iter()
                .filter(|answer| answer.status != 200)
                .all(|answer| answer.json()["error"] == "invalid_grant")
        );
        // The others were replays, so the grant is revoked.
        assert_eq!(list_projects_status(&app.node, &won[0].access).await, 401);
        client.refresh(&app.node, &won[0].refresh).await.expect(400);
    }
}

/// No pair was used, so each later request counts as a retry: only the last pair is valid.
#[tokio::test]
async fn concurrent_refresh_leaves_one_valid_pair() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    for _ in 0..4 {
        let first = client.tokens(&app, &app.owner).await;
        let answers =
            join_all((0..AT_ONCE).map(|_| client.refresh(&app.node, &first.refresh))).await;
        let pairs: Vec<_> = answers
            .iter()
            .filter(|answer| answer.status == 200)
            .map(Pair::of)
            .collect();
        assert_eq!(pairs.len(), AT_ONCE, "{answers:?}");
        let mut live = Vec::new();
        for pair in &pairs {
            if list_projects_status(&app.node, &pair.access).await == 200 {
                live.push(pair);
            }
        }
        assert_eq!(live.len(), 1);
        client
            .refresh(&app.node, &live[0].refresh)
            .await
            .expect(200);
    }
}

/// A token of the new pair was used, so another exchange of the old one counts as theft.
#[tokio::test]
async fn concurrent_refresh_after_use_revokes_grant() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let first = client.tokens(&app, &app.owner).await;
    let second = Pair::of(&client.refresh(&app.node, &first.refresh).await.expect(200));
    assert_eq!(list_projects_status(&app.node, &second.access).await, 200);
    let answers = join_all((0..AT_ONCE).map(|_| client.refresh(&app.node, &first.refresh))).await;
    assert!(
        answers
            .iter()
            .all(|answer| answer.status == 400 && answer.json()["error"] == "invalid_grant"),
        "{answers:?}"
    );
    assert_eq!(
        (
            list_projects_status(&app.node, &first.access).await,
            list_projects_status(&app.node, &second.access).await
        ),
        (401, 401)
    );
}

#[tokio::test]
async fn concurrent_answers_to_request_succeed_once() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let id = client.ask(&app.node, &[]).await;
    let path = format!(
        "/platform/organizations/{}/oauth/authorizations/{id}",
        app.home.slug
    );
    let answers =
        join_all((0..AT_ONCE).map(|_| app.post(&path).as_(&app.owner).json(&json!({})).send()))
            .await;
    let won: Vec<_> = answers
        .iter()
        .filter(|answer| answer.status == 201)
        .collect();
    assert_eq!(won.len(), 1, "{answers:?}");
    client
        .exchange(
            &app.node,
            &parameter(won[0].json()["url"].as_str().unwrap(), "code"),
        )
        .await
        .expect(200);
}

/// Concurrent revocation and refresh leave no valid token, in either order.
#[tokio::test]
async fn concurrent_revocation_and_refresh_leave_no_token() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    for _ in 0..4 {
        let pair = client.tokens(&app, &app.owner).await;
        let listed = app
            .get("/v1/oauth/authorizations")
            .as_(&app.owner)
            .send()
            .await
            .expect(200)
            .json();
        let path = format!("/v1/oauth/authorizations/{}", listed[0]["id"]);
        let (renewed, taken) = tokio::join!(
            client.refresh(&app.node, &pair.refresh),
            app.delete(&path).as_(&app.owner).send()
        );
        taken.expect(200);
        assert_eq!(list_projects_status(&app.node, &pair.access).await, 401);
        if renewed.status == 200 {
            assert_eq!(
                list_projects_status(&app.node, &Pair::of(&renewed).access).await,
                401
            );
        }
    }
}
