//! Rate limits beyond the contract tests of single operations: bodies that name the organization,
//! two windows, and concurrency.

mod gate;
mod model;
mod names;
mod nodes;
mod outage;
mod slow;
mod stores;
mod support;

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::support::{Actor, TestApp, client::Quota};

/// Creates nothing: the handler rejects the request because the password is missing.
async fn create(app: &TestApp, actor: &Actor, body: Value) -> (u16, Quota, String) {
    let answer = app.post("/v1/projects").as_(actor).json(&body).send().await;
    (answer.status.as_u16(), answer.quota, answer.message())
}

fn left(remaining: u32) -> Quota {
    Quota {
        limit: 120,
        remaining,
        reset: 60,
    }
}

const MISSING: &str = "db_pass: Required";

#[tokio::test]
async fn create_project_is_counted_for_the_organization_in_the_body() {
    let app = TestApp::new().await;
    let second = app.tenant("Second", &app.owner).await;
    let (home, other) = (
        json!({"organization_slug": app.home.slug}),
        json!({"organization_slug": second.slug}),
    );
    assert_eq!(
        create(&app, &app.owner, home.clone()).await,
        (400, left(119), MISSING.into())
    );
    assert_eq!(
        create(&app, &app.owner, home.clone()).await,
        (400, left(118), MISSING.into())
    );
    assert_eq!(
        create(&app, &app.owner, other).await,
        (400, left(119), MISSING.into())
    );
    // The older field names the organization as well; the newer one takes precedence.
    assert_eq!(
        create(&app, &app.owner, json!({"organization_id": app.home.slug})).await,
        (400, left(117), MISSING.into())
    );
    let both = json!({"organization_slug": app.home.slug, "organization_id": second.slug});
    assert_eq!(
        create(&app, &app.owner, both).await,
        (400, left(116), MISSING.into())
    );
}

#[tokio::test]
async fn create_project_without_organization_is_counted_for_the_caller() {
    let app = TestApp::new().await;
    let complete = |slug: Value| json!({"name": "x", "db_pass": "x", "organization_slug": slug});
    let nameless = "organization_slug: Invalid input: expected the slug of an organization";
    assert_eq!(
        create(&app, &app.owner, json!({"name": "x", "db_pass": "x"})).await,
        (400, left(119), nameless.into())
    );
    assert_eq!(
        create(&app, &app.owner, complete(Value::Null)).await,
        (400, left(118), nameless.into())
    );
    assert_eq!(
        create(&app, &app.owner, complete(json!("no slug"))).await,
        (400, left(117), nameless.into())
    );
    let (status, quota, message) = create(&app, &app.owner, complete(json!(7))).await;
    assert_eq!((status, quota), (400, left(116)));
    assert!(
        message.starts_with("organization_slug: Invalid input"),
        "{message}"
    );
    let garbage = app
        .post("/v1/projects")
        .as_(&app.owner)
        .body("nonsense")
        .send()
        .await
        .expect(400);
    assert_eq!(
        (garbage.quota, garbage.message()),
        (left(115), "body: Invalid input: expected ident".into())
    );
    // This is another counter than the one of organizations.
    assert_eq!(
        create(
            &app,
            &app.owner,
            json!({"organization_slug": app.home.slug})
        )
        .await
        .1,
        left(119)
    );
}

#[tokio::test]
async fn foreign_organization_in_the_body_is_counted_as_unresolved() {
    let app = TestApp::new().await;
    let not_found = |remaining| (404, left(remaining), "Not Found".to_owned());
    assert_eq!(
        create(
            &app,
            &app.owner,
            json!({"organization_slug": app.foreign.slug})
        )
        .await,
        not_found(119)
    );
    assert_eq!(
        create(&app, &app.owner, json!({"organization_slug": "nobody"})).await,
        not_found(118)
    );
    assert_eq!(
        create(
            &app,
            &app.stranger,
            json!({"organization_slug": app.foreign.slug})
        )
        .await,
        (400, left(119), MISSING.into())
    );
}

/// A body over its bound is counted like any other.
#[tokio::test]
async fn oversized_body_is_counted() {
    let app = TestApp::new().await;
    let large = || app.post("/v1/projects").body(vec![b' '; (1 << 20) + 1]);
    for remaining in [119, 118] {
        let answer = large().as_(&app.owner).send().await.expect(413);
        assert_eq!(
            (answer.quota, answer.message()),
            (
                left(remaining),
                "request entity too large: at most 1048576 bytes".into()
            )
        );
    }
    // The body of an anonymous client is not read.
    large().send().await.expect(401);
}

#[tokio::test]
async fn headers_report_the_binding_window() {
    let app = TestApp::new().await;
    let ask = async || {
        let answer = app
            .get(&app.at("/database/context"))
            .as_(&app.owner)
            .send()
            .await;
        (
            answer.status.as_u16(),
            answer.quota,
            answer.header("retry-after").map(str::to_owned),
        )
    };
    let second = Quota {
        limit: 1,
        remaining: 0,
        reset: 1,
    };
    assert_eq!(ask().await, (544, second, None));
    assert_eq!(
        ask().await,
        (429, second, Some("1".into())),
        "a burst takes nothing from the minute"
    );
    for _ in 1..9 {
        app.advance(1);
        assert_eq!(ask().await, (544, second, None));
    }
    app.advance(1);
    let minute = Quota {
        limit: 10,
        remaining: 0,
        reset: 51,
    };
    assert_eq!(ask().await, (544, minute, None), "the tenth");
    assert_eq!(ask().await, (429, minute, Some("51".into())));
    app.advance(50);
    assert_eq!(
        ask().await,
        (429, Quota { reset: 1, ..minute }, Some("1".into()))
    );
    app.advance(1);
    assert_eq!(ask().await, (544, second, None));
}

#[tokio::test]
async fn clock_set_back_keeps_the_quota() {
    let app = TestApp::new().await;
    let ask = async || {
        app.get("/v1/profile")
            .as_(&app.owner)
            .send()
            .await
            .expect(200)
            .quota
    };
    assert_eq!(ask().await, left(119));
    app.clock.step_wall(chrono::TimeDelta::days(-1));
    assert_eq!(ask().await, left(118));
    app.clock.step_wall(chrono::TimeDelta::days(2));
    assert_eq!(ask().await, left(117));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_requests_get_exactly_the_quota() {
    let app = TestApp::new().await;
    let second = app.token(&app.owner, None).await.0;
    // Some requests run before the node has the caller's role in its cache, most after.
    let tasks = (0..300).map(|n| {
        let request = app.get(&app.at(""));
        tokio::spawn(
            if n % 2 == 0 {
                request.as_(&app.owner)
            } else {
                request.token(&second)
            }
            .send(),
        )
    });
    let statuses: Vec<_> = join_all(tasks)
        .await
        .into_iter()
        .map(|answer| answer.unwrap().status.as_u16())
        .collect();
    let count = |status| {
        statuses
            .iter()
            .filter(|answered| **answered == status)
            .count()
    };
    assert_eq!((count(200), count(429)), (120, 180));
}

#[tokio::test]
async fn head_and_options_are_counted() {
    let app = TestApp::new().await;
    assert_eq!(
        app.get("/v1/profile")
            .as_(&app.owner)
            .send()
            .await
            .expect(200)
            .quota,
        left(119)
    );
    let head = app
        .request("HEAD", "/v1/profile")
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    assert_eq!(
        (head.quota, &*head.body),
        (left(118), &b""[..]),
        "a HEAD is a GET without its body"
    );
    let options = app
        .request("OPTIONS", "/v1/profile")
        .as_(&app.owner)
        .send()
        .await
        .expect(404);
    assert_eq!(
        (options.quota, options.message()),
        (left(119), "Cannot OPTIONS /v1/profile".into()),
        "which no operation is"
    );
    // All requests without an operation share one counter.
    assert_eq!(
        app.get("/nowhere")
            .as_(&app.owner)
            .send()
            .await
            .expect(404)
            .quota,
        left(118)
    );
}

#[tokio::test]
async fn anonymous_requests_are_counted_by_address() {
    let app = TestApp::new().await;
    let ask = async |from: &str| app.get("/v1/profile").from(from).send().await.quota;
    assert_eq!(ask("127.0.0.1").await, left(119));
    assert_eq!(ask("127.0.0.1").await, left(118));
    assert_eq!(ask("127.0.0.2").await, left(119));
    for remaining in (0..118).rev() {
        assert_eq!(ask("127.0.0.1").await, left(remaining));
    }
    let refused = app
        .get("/v1/profile")
        .from("127.0.0.1")
        .send()
        .await
        .expect(429);
    assert_eq!(refused.header("retry-after"), Some("60"));
    // Requests with a token are counted for its user, from any address.
    assert_eq!(
        app.get("/v1/profile")
            .from("127.0.0.1")
            .as_(&app.owner)
            .send()
            .await
            .expect(200)
            .quota,
        left(119)
    );
}
