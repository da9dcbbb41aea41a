//! Unknown names are charged to a counter of their own: mistyped and foreign names do not use up
//! quotas of the caller's projects.

use std::time::Duration;

use futures_util::future::join_all;
use gantry::platform::access::Role;
use http::HeaderMap;
use tokio::time::{sleep, timeout};

use crate::support::{
    Actor, TestApp,
    client::{Answer, Quota},
};

/// Returns the `n`th of many references of projects that do not exist.
fn nowhere(n: usize) -> String {
    let letter = |n: usize| char::from(b'a' + u8::try_from(n % 26).unwrap());
    format!(
        "zzzzzzzzzzzzzzz{}{}{}{}{}",
        letter(n / 26 / 26),
        letter(n / 26),
        letter(n),
        letter(n / 7),
        letter(n / 3)
    )
}

async fn context(app: &TestApp, actor: &Actor, project: &str) -> Answer {
    app.get(&format!("/v1/projects/{project}/database/context"))
        .as_(actor)
        .send()
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_context_requests_of_own_projects_are_admitted() {
    let app = TestApp::new().await;
    let mut projects = vec![app.home.project.clone()];
    for n in 0..5 {
        projects.push(app.stub(app.home.id, &format!("Another {n}")).await);
    }
    for _ in 0..3 {
        let answers = join_all(
            projects
                .iter()
                .map(|project| context(&app, &app.owner, project.as_str())),
        )
        .await;
        for answer in answers {
            // The project has no database, and its quota of this second is used up.
            assert_eq!(
                (answer.status.as_u16(), answer.quota),
                (
                    544,
                    Quota {
                        limit: 1,
                        remaining: 0,
                        reset: 1
                    }
                ),
                "{answer:?}"
            );
        }
        // Longer than the lifetime of cache entries.
        app.advance(32);
    }
}

#[tokio::test]
async fn unknown_names_do_not_use_up_quotas_of_own_projects() {
    let app = TestApp::new().await;
    for n in 0..10 {
        context(&app, &app.owner, &nowhere(n)).await.expect(404);
        app.advance(1);
    }
    let refused = context(&app, &app.owner, &nowhere(10)).await.expect(429);
    assert_eq!(
        refused.quota,
        Quota {
            limit: 10,
            remaining: 0,
            reset: 50
        }
    );
    context(&app, &app.owner, app.home.project.as_str())
        .await
        .expect(544);
    // Each project has its own counter.
    let other = context(&app, &app.owner, app.foreign.project.as_str())
        .await
        .expect(429);
    assert_eq!(
        other.quota, refused.quota,
        "a project of somebody else is a name like any other"
    );
}

#[tokio::test]
async fn look_ups_are_bounded_and_cached_names_are_not() {
    let app = TestApp::new().await;
    let cached = app.at("");
    let uncached = app.stub(app.home.id, "Uncached").await;
    let uncached = format!("/v1/projects/{uncached}");
    app.advance(1);
    app.get(&cached).as_(&app.owner).send().await.expect(200);
    let ask = async |path: &str| app.get(path).as_(&app.owner).send().await;
    for n in 0..600 {
        let answer = ask(&format!("/v1/projects/{}", nowhere(n))).await;
        assert_eq!(
            answer.status.as_u16(),
            if n < 120 { 404 } else { 429 },
            "{n}"
        );
        assert_eq!(answer.quota.limit, 120, "the operation's own limit");
    }
    ask(&cached).await.expect(200);
    for path in [format!("/v1/projects/{}", nowhere(600)), uncached.clone()] {
        let refused = ask(&path).await.expect(429);
        assert_eq!(
            refused.quota,
            Quota {
                limit: 600,
                remaining: 0,
                reset: 60
            }
        );
        assert_eq!(refused.header("retry-after"), Some("60"));
        assert!(
            refused
                .message()
                .contains("names were asked for that are not yours"),
            "{}",
            refused.message()
        );
    }
    // Cached names cost no look-up.
    assert_eq!(
        ask(&format!("/v1/projects/{}", nowhere(0)))
            .await
            .quota
            .limit,
        120
    );
    // Look-ups are counted for each user.
    app.get(&uncached)
        .as_(&app.administrator)
        .send()
        .await
        .expect(200);
    app.advance(60);
    ask(&uncached).await.expect(200);
}

#[tokio::test]
async fn own_names_cost_no_look_ups() {
    let app = TestApp::new().await;
    for _ in 0..8 {
        // The entries have expired, so each name is looked up again.
        for _ in 0..120 {
            app.advance(31);
            app.get(&app.at(""))
                .as_(&app.owner)
                .send()
                .await
                .expect(200);
        }
    }
}

/// Returns the parts of a response that do not differ between requests in any case.
fn comparable(answer: &Answer) -> (u16, HeaderMap, Quota, Vec<u8>) {
    let mut headers = answer.headers.clone();
    headers.remove("x-request-id");
    (
        answer.status.as_u16(),
        headers,
        answer.quota,
        answer.body.to_vec(),
    )
}

#[tokio::test]
async fn responses_to_strangers_do_not_reveal_existing_names() {
    for (path, flood) in [("", false), ("/database/context", false), ("", true)] {
        let (here, there) = (TestApp::new().await, TestApp::new().await);
        for round in 0..130 {
            let (exists, missing) = (here.home.project.to_string(), nowhere(0));
            let ask = async |app: &TestApp, name: &str| {
                let answer = app
                    .get(&format!("/v1/projects/{name}{path}"))
                    .as_(&app.stranger)
                    .send()
                    .await;
                let mut said = comparable(&answer);
                // The user differs between the two worlds.
                said.1.remove("x-gotrue-id");
                said
            };
            let (first, second) = if flood && round < 100 {
                (
                    ask(&here, &nowhere(round + 1)).await,
                    ask(&there, &nowhere(round + 1)).await,
                )
            } else {
                (ask(&here, &exists).await, ask(&there, &missing).await)
            };
            assert_eq!(first, second, "{path}, request {round}");
            if round % 40 == 39 {
                here.advance(31);
                there.advance(31);
            }
        }
    }
}

#[tokio::test]
async fn hidden_name_is_found_after_joining() {
    let app = TestApp::running().await;
    let ask = async || {
        app.get(&app.at(""))
            .as_(&app.stranger)
            .send()
            .await
            .status
            .as_u16()
    };
    assert_eq!((ask().await, ask().await), (404, 404));
    gantry::api::organizations::members::set(
        &app.app.db,
        app.home.id,
        app.stranger.user,
        Role::Developer,
        app.clock.now(),
        None,
    )
    .await
    .unwrap();
    // The clock of the test stands still, so only the notification can invalidate the cache.
    let found = async {
        while ask().await != 200 {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(10), found)
        .await
        .expect("within ten seconds");
}
