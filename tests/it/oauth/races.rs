//! Sixteen at once: whatever the order, one pair of tokens is good in the end, or none.

use futures_util::future::join_all;
use serde_json::json;

use super::flow::{Pair, parameter, register, tried};
use crate::support::TestApp;

const AT_ONCE: usize = 16;

#[tokio::test]
async fn of_sixteen_who_bring_a_code_one_gets_tokens_and_nobody_keeps_them() {
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
        // The others were replays.
        assert_eq!(tried(&app.node, &won[0].access).await, 401);
        client.refresh(&app.node, &won[0].refresh).await.expect(400);
    }
}

/// Nobody used any of the pairs, so each who came late looks like one whose answer was lost: the last pair is good, alone.
#[tokio::test]
async fn of_sixteen_who_bring_a_refresh_token_one_has_a_pair_that_is_good() {
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
            if tried(&app.node, &pair.access).await == 200 {
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

/// Somebody used the new pair meanwhile: one more with the old token is a thief.
#[tokio::test]
async fn of_sixteen_late_ones_all_are_refused_and_nothing_is_left() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let first = client.tokens(&app, &app.owner).await;
    let second = Pair::of(&client.refresh(&app.node, &first.refresh).await.expect(200));
    assert_eq!(tried(&app.node, &second.access).await, 200);
    let answers = join_all((0..AT_ONCE).map(|_| client.refresh(&app.node, &first.refresh))).await;
    assert!(
        answers
            .iter()
            .all(|answer| answer.status == 400 && answer.json()["error"] == "invalid_grant"),
        "{answers:?}"
    );
    assert_eq!(
        (
            tried(&app.node, &first.access).await,
            tried(&app.node, &second.access).await
        ),
        (401, 401)
    );
}

#[tokio::test]
async fn of_sixteen_answers_to_a_request_one_counts() {
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

/// Taken back in the same moment as it is renewed: whichever is first, no token is left.
#[tokio::test]
async fn what_is_taken_back_while_it_is_renewed_is_over() {
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
        assert_eq!(tried(&app.node, &pair.access).await, 401);
        if renewed.status == 200 {
            assert_eq!(tried(&app.node, &Pair::of(&renewed).access).await, 401);
        }
    }
}
