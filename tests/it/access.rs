//! Changes of tokens and roles take effect with the next request on every node.

use std::{sync::Arc, time::Duration};

use chrono::TimeDelta;
use gantry::{
    api::{organizations, tokens},
    platform::{access::Role, notifications},
};
use tokio::time::{sleep, timeout};

use crate::support::{
    Actor, Node, TestApp,
    client::Quota,
    dawn,
    machine::{Machine, PATIENCE},
    postgres::connect,
};

/// Waits until this many nodes receive notifications. Before that they cache nothing, and the
/// caches are what these tests cover.
async fn wait_for_listeners(app: &TestApp, nodes: i64) {
    let person = connect(&app.config).await;
    let sql = "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'gantry listener'";
    let listen = async {
        while person.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) < nodes {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, listen).await.expect("nobody listens");
    wait_for_notifications(app).await;
}

/// Waits until every node has processed the notifications so far.
async fn wait_for_notifications(app: &TestApp) {
    notifications::settle(&app.app.db).await.unwrap();
}

async fn expect(node: &Node, path: &str, actor: &Actor, status: u16) {
    node.get(path).as_(actor).send().await.expect(status);
}

#[tokio::test]
async fn expired_token_is_rejected() {
    let app = TestApp::new().await;
    let (token, _) = app
        .token(&app.owner, Some(dawn() + TimeDelta::seconds(10)))
        .await;
    app.get("/v1/profile")
        .token(&token)
        .send()
        .await
        .expect(200);
    app.advance(9);
    app.get("/v1/profile")
        .token(&token)
        .send()
        .await
        .expect(200);
    app.advance(1);
    let refused = app
        .get("/v1/profile")
        .token(&token)
        .send()
        .await
        .expect(401);
    assert_eq!(refused.message(), "Unauthorized");
    assert_eq!(refused.header("x-gotrue-id"), None);
}

#[tokio::test]
async fn revoked_token_is_rejected_on_every_node() {
    let mut app = TestApp::new().await;
    let mut second = app.another(2, Arc::new(Machine::bare()));
    app.node.start();
    second.start();
    wait_for_listeners(&app, 2).await;
    // Both nodes have it cached. Without a notification it would stay cached, because the clock
    // stands still.
    expect(&app.node, "/v1/profile", &app.developer, 200).await;
    expect(&second, "/v1/profile", &app.developer, 200).await;
    tokens::revoke(&app.app.db, app.developer.token_id, app.clock.now(), None)
        .await
        .unwrap();
    wait_for_notifications(&app).await;
    expect(&app.node, "/v1/profile", &app.developer, 401).await;
    expect(&second, "/v1/profile", &app.developer, 401).await;
    assert!(
        tokens::revoke(&app.app.db, app.developer.token_id, app.clock.now(), None)
            .await
            .is_err(),
        "there is nothing left to revoke"
    );
}

#[tokio::test]
async fn change_by_sql_invalidates_caches() {
    let mut app = TestApp::new().await;
    app.node.start();
    wait_for_listeners(&app, 1).await;
    expect(&app.node, "/v1/profile", &app.owner, 200).await;
    let person = connect(&app.config).await;
    person
        .execute(
            "update tokens set expires_at = $1 where user_id = $2",
            &[&dawn(), &app.owner.user.0],
        )
        .await
        .unwrap();
    wait_for_notifications(&app).await;
    expect(&app.node, "/v1/profile", &app.owner, 401).await;
}

#[tokio::test]
async fn lost_notification_connection_disables_caching() {
    let mut app = TestApp::new().await;
    app.node.start();
    expect(&app.node, "/v1/profile", &app.owner, 200).await;
    let person = connect(&app.config).await;
    wait_for_listeners(&app, 1).await;
    let listeners = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
                     where datname = current_database() and application_name = 'gantry listener'";
    assert_eq!(
        person
            .query_one(listeners, &[])
            .await
            .unwrap()
            .get::<_, i64>(0),
        1
    );
    tokens::revoke(&app.app.db, app.owner.token_id, app.clock.now(), None)
        .await
        .unwrap();
    wait_for_notifications(&app).await;
    expect(&app.node, "/v1/profile", &app.owner, 401).await;
    tokens::revoke(&app.app.db, app.developer.token_id, app.clock.now(), None)
        .await
        .unwrap();
    wait_for_notifications(&app).await;
    expect(&app.node, "/v1/profile", &app.developer, 401).await;
}

#[tokio::test]
async fn settle_does_not_count_unresponsive_nodes() {
    let app = TestApp::new().await;
    notifications::settle(&app.app.db)
        .await
        .expect("nobody listens, nobody need answer");
    let (silent, connection) = app.app.db.dedicated("gantry listener").await.unwrap();
    let connected = tokio::spawn(connection);
    silent.batch_execute("listen gantry").await.unwrap();
    let refused = notifications::settle(&app.app.db).await.unwrap_err();
    assert!(
        format!("{refused:?}").contains("half a minute"),
        "{refused:?}"
    );
    // A node that disconnects meanwhile is not waited for.
    let settling = notifications::settle(&app.app.db);
    tokio::pin!(settling);
    assert!(
        timeout(Duration::from_millis(50), &mut settling)
            .await
            .is_err(),
        "it settled without an answer"
    );
    connected.abort();
    settling.await.unwrap();
}

#[tokio::test]
async fn changed_role_applies_to_the_next_request() {
    let mut app = TestApp::new().await;
    app.node.start();
    wait_for_listeners(&app, 1).await;
    let path = app.at("/config/auth/signing-keys");
    expect(&app.node, &path, &app.developer, 200).await;
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
    wait_for_notifications(&app).await;
    expect(&app.node, &path, &app.developer, 403).await;
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
    wait_for_notifications(&app).await;
    expect(&app.node, &path, &app.developer, 200).await;
    app.app
        .db
        .query(
            "delete from members where user_id = $1",
            &[&app.developer.user.0],
        )
        .await
        .unwrap();
    wait_for_notifications(&app).await;
    expect(&app.node, &path, &app.developer, 404).await;
}

#[tokio::test]
async fn cache_entries_expire_after_30_seconds() {
    let app = TestApp::new().await;
    app.get("/v1/profile")
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    tokens::revoke(&app.app.db, app.owner.token_id, app.clock.now(), None)
        .await
        .unwrap();
    app.get("/v1/profile")
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    app.advance(30);
    app.get("/v1/profile")
        .as_(&app.owner)
        .send()
        .await
        .expect(401);
}

/// An existing and an unknown name give equal responses: status, message and all counters.
#[tokio::test]
async fn counters_do_not_reveal_existing_names() {
    let app = TestApp::new().await;
    let unknown = ["abcdefghijklmnopqrst", "not-a-ref", "ABCDEFGHIJKLMNOPQRST"];
    let foreign = [app.foreign.project.as_str(), app.foreign.slug.as_str()];
    let mut left = 120;
    for subject in foreign.into_iter().chain(unknown).cycle().take(30) {
        let answer = app
            .get(&format!("/v1/projects/{subject}"))
            .as_(&app.owner)
            .send()
            .await
            .expect(404);
        left -= 1;
        assert_eq!(
            (answer.quota, &*answer.message()),
            (
                Quota {
                    limit: 120,
                    remaining: left,
                    reset: 60
                },
                "Not Found"
            ),
            "{subject}"
        );
    }
    let mut left = 120;
    for slug in [
        app.foreign.slug.as_str(),
        "nobody",
        "no.slug",
        "x".repeat(65).as_str(),
    ]
    .into_iter()
    .cycle()
    .take(30)
    {
        let answer = app
            .get(&format!("/v1/organizations/{slug}"))
            .as_(&app.owner)
            .send()
            .await
            .expect(404);
        left -= 1;
        assert_eq!(
            (answer.quota, &*answer.message()),
            (
                Quota {
                    limit: 120,
                    remaining: left,
                    reset: 60
                },
                "Not Found"
            ),
            "{slug}"
        );
    }
}

/// The caller's own projects are never charged to the counter of unknown names, whether cached or
/// not.
#[tokio::test]
async fn own_projects_are_not_charged_for_unknown_names() {
    let app = TestApp::new().await;
    let path = format!("/v1/projects/{}", app.foreign.project);
    for _ in 0..5 {
        app.get(&path).as_(&app.owner).send().await.expect(404);
    }
    for remaining in [119, 118] {
        assert_eq!(
            app.get(&app.at(""))
                .as_(&app.owner)
                .send()
                .await
                .expect(200)
                .quota
                .remaining,
            remaining
        );
    }
    assert_eq!(
        app.get(&path)
            .as_(&app.owner)
            .send()
            .await
            .expect(404)
            .quota
            .remaining,
        114
    );
}
