//! Revocation of authorizations by member, application and managers, effective on all nodes.

use std::sync::Arc;

use gantry::{
    api::{oauth::cleanup, organizations},
    platform::{access::Role, notifications},
};
use serde_json::{Value, json};

use super::flow::{
    Client, Pair, apps, assert_oauth_error, list_projects_status, parameter, register,
};
use crate::support::{Node, TestApp, dawn, machine::Machine};

/// Starts a second node, and waits until both receive notifications.
async fn second_node(app: &mut TestApp) -> Node {
    let mut second = app.another(2, Arc::new(Machine::bare()));
    app.node.start();
    second.start();
    // Retries until both nodes confirm a notification.
    let listeners = async || {
        let sql = "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'gantry listener'";
        app.app.db.query(sql, &[]).await.unwrap()[0].get::<_, i64>(0)
    };
    while listeners().await < 2 {
        tokio::task::yield_now().await;
    }
    notifications::settle(&app.app.db).await.unwrap();
    second
}

async fn authorizations(app: &TestApp) -> Vec<Value> {
    app.get("/v1/oauth/authorizations")
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json()
        .as_array()
        .unwrap()
        .clone()
}

#[tokio::test]
async fn revoked_authorization_is_rejected_on_every_node() {
    let mut app = TestApp::new().await;
    let second = second_node(&mut app).await;
    let client = register(&app, json!({})).await;
    let used = async |by| {
        let pair: Pair = client.tokens(&app, by).await;
        assert_eq!(
            (
                list_projects_status(&app.node, &pair.access).await,
                list_projects_status(&second, &pair.access).await
            ),
            (200, 200)
        );
        pair
    };
    let over = async |case: &str, pair: &Pair| {
        assert_eq!(
            (
                list_projects_status(&second, &pair.access).await,
                list_projects_status(&app.node, &pair.access).await
            ),
            (401, 401),
            "{case}"
        );
        assert_oauth_error(
            case,
            &client.refresh(&second, &pair.refresh).await,
            "invalid_grant",
        );
    };

    let pair = used(&app.owner).await;
    let id = authorizations(&app).await[0]["id"].clone();
    app.delete(&format!("/v1/oauth/authorizations/{id}"))
        .as_(&app.administrator)
        .send()
        .await
        .expect(404);
    app.delete(&format!("/v1/oauth/authorizations/{id}"))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    over("taken back", &pair).await;
    app.delete(&format!("/v1/oauth/authorizations/{id}"))
        .as_(&app.owner)
        .send()
        .await
        .expect(404);

    let pair = used(&app.owner).await;
    client
        .call(&app.node, "/oauth/revoke", &[("token", &pair.refresh)])
        .send()
        .await
        .expect(200);
    over("given back", &pair).await;

    let pair = used(&app.owner).await;
    app.advance(11);
    let next = Pair::of(&client.refresh(&app.node, &pair.refresh).await.expect(200));
    list_projects_status(&second, &next.access).await;
    client.refresh(&app.node, &pair.refresh).await.expect(400);
    over("replayed", &next).await;

    let pair = used(&app.administrator).await;
    let person = crate::support::postgres::connect(&app.config).await;
    person
        .execute(
            "delete from members where user_id = $1",
            &[&app.administrator.user.0],
        )
        .await
        .unwrap();
    notifications::settle(&app.app.db).await.unwrap();
    over("the member left", &pair).await;
    // A returning member has no authorizations.
    organizations::members::set(
        &app.app.db,
        app.home.id,
        app.administrator.user,
        Role::Administrator,
        dawn(),
        None,
    )
    .await
    .unwrap();
    notifications::settle(&app.app.db).await.unwrap();
    over("the member came back", &pair).await;

    let pair = used(&app.owner).await;
    let deleted = app
        .delete(&format!("{}/{}", apps(&app), client.id))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    assert_eq!(deleted.json()["authorizations_revoked"], 1);
    assert_eq!(
        (
            list_projects_status(&second, &pair.access).await,
            list_projects_status(&app.node, &pair.access).await
        ),
        (401, 401)
    );
    assert_oauth_error(
        "deleted",
        &client.refresh(&second, &pair.refresh).await,
        "invalid_client",
    );
    let text = super::flow::query(&[
        ("client_id", &client.id),
        ("redirect_uri", super::flow::CALLBACK),
        ("response_type", "code"),
    ]);
    app.get(&format!("/v1/oauth/authorize?{text}"))
        .send()
        .await
        .expect(422);
}

/// RFC 7009: an access token revokes only itself, and the response reveals nothing about unknown
/// tokens.
#[tokio::test]
async fn revoke_access_token_keeps_grant() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let pair = client.tokens(&app, &app.owner).await;
    let next = Pair::of(&client.refresh(&app.node, &pair.refresh).await.expect(200));
    list_projects_status(&app.node, &next.access).await;
    let give_back = async |token: &str| {
        client
            .call(
                &app.node,
                "/oauth/revoke",
                &[("token", token), ("token_type_hint", "nonsense")],
            )
            .send()
            .await
    };
    give_back(&next.access).await.expect(200);
    assert_eq!(
        (
            list_projects_status(&app.node, &pair.access).await,
            list_projects_status(&app.node, &next.access).await
        ),
        (200, 401)
    );
    for unknown in [
        next.access.as_str(),
        "nonsense",
        &app.owner.token,
        client.secret.as_deref().unwrap(),
    ] {
        give_back(unknown).await.expect(200);
    }
    app.get("/v1/profile")
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    let last = Pair::of(&client.refresh(&app.node, &next.refresh).await.expect(200));
    // An exchanged refresh token still revokes its grant.
    give_back(&pair.refresh).await.expect(200);
    assert_eq!(list_projects_status(&app.node, &last.access).await, 401);
    assert_oauth_error(
        "no token",
        &client.call(&app.node, "/oauth/revoke", &[]).send().await,
        "invalid_request",
    );
    let wrong = Client {
        secret: Some("wrong".to_owned()),
        ..client.clone()
    };
    assert_oauth_error(
        "wrong",
        &wrong
            .call(&app.node, "/oauth/revoke", &[("token", &last.refresh)])
            .send()
            .await,
        "invalid_client",
    );
    let body =
        json!({"client_id": client.id, "client_secret": "wrong", "refresh_token": last.refresh});
    assert_oauth_error(
        "json",
        &app.post("/v1/oauth/revoke").json(&body).send().await,
        "invalid_client",
    );
}

/// A code is rejected if the application was deleted or the member left before the exchange.
#[tokio::test]
async fn code_of_deleted_application_or_member_is_rejected() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let code = client.code(&app, &app.administrator).await;
    app.app
        .db
        .query(
            "delete from members where user_id = $1",
            &[&app.administrator.user.0],
        )
        .await
        .unwrap();
    assert_oauth_error(
        "left",
        &client.exchange(&app.node, &code).await,
        "invalid_grant",
    );
    let (code, waits) = (
        client.code(&app, &app.owner).await,
        client.ask(&app.node, &[]).await,
    );
    app.delete(&format!("{}/{}", apps(&app), client.id))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    assert_oauth_error(
        "deleted",
        &client.exchange(&app.node, &code).await,
        "invalid_client",
    );
    let path = format!(
        "/platform/organizations/{}/oauth/authorizations/{waits}",
        app.home.slug
    );
    app.post(&path)
        .as_(&app.owner)
        .json(&json!({}))
        .send()
        .await
        .expect(404);
}

/// Approval, use, refresh and revocation are in the organization's audit log.
#[tokio::test]
async fn oauth_events_are_in_audit_log() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let pair = client.tokens(&app, &app.owner).await;
    client.refresh(&app.node, &pair.refresh).await.expect(200);
    app.advance(11);
    client.refresh(&app.node, &pair.refresh).await.expect(400);
    let second = client.tokens(&app, &app.owner).await;
    client
        .call(&app.node, "/oauth/revoke", &[("token", &second.refresh)])
        .send()
        .await
        .expect(200);
    let sql = "select operation, status, token from audit_entries where chain = $1 and actor = $2 order by number";
    let rows = app
        .app
        .db
        .query(
            sql,
            &[
                &format!("organization {}", app.home.id),
                &app.owner.gotrue_id,
            ],
        )
        .await
        .unwrap();
    let entries: Vec<(String, i16, bool)> = rows
        .iter()
        .map(|row| (row.get(0), row.get(1), row.get::<_, i64>(2) < 0))
        .collect();
    let expected = [
        ("gantry-create-oauth-application", 201, false),
        ("gantry-create-oauth-secret", 201, false),
        ("gantry-approve-oauth-request", 201, false),
        ("gantry-exchange-oauth-token", 201, true),
        ("gantry-exchange-oauth-token", 201, true),
        ("gantry-exchange-oauth-token", 400, true),
        ("gantry-approve-oauth-request", 201, false),
        ("gantry-exchange-oauth-token", 201, true),
        ("gantry-revoke-oauth-token", 204, true),
    ];
    assert_eq!(
        entries,
        expected.map(|(operation, status, approved)| (operation.to_owned(), status, approved))
    );
}

/// Each effective revocation is recorded once; ineffective ones are not recorded.
#[tokio::test]
async fn revocation_is_in_audit_log_once() {
    let app = TestApp::new().await;
    let (client, other) = (
        register(&app, json!({})).await,
        register(&app, json!({"name": "Other"})).await,
    );
    let (pair, theirs) = (
        client.tokens(&app, &app.owner).await,
        other.tokens(&app, &app.owner).await,
    );
    let entries = async || {
        let sql = "select operation, status, actor = $1 and chain = $2, before, after from audit_entries \
                   where operation in ('v1-revoke-token', 'gantry-revoke-oauth-token') order by number";
        let rows = app
            .app
            .db
            .query(
                sql,
                &[
                    &app.owner.gotrue_id,
                    &format!("organization {}", app.home.id),
                ],
            )
            .await
            .unwrap();
        let entry = |row: &tokio_postgres::Row| {
            assert!(
                row.get::<_, bool>(2) && row.get::<_, Option<String>>(4).is_none(),
                "{row:?}"
            );
            let before: Value = serde_json::from_str(row.get(3)).unwrap();
            assert_eq!(before["application"], client.id);
            (
                row.get::<_, String>(0),
                row.get::<_, i16>(1),
                before["all_of_it"].as_bool().unwrap(),
            )
        };
        rows.iter().map(entry).collect::<Vec<_>>()
    };
    let give_back = async |token: &str| {
        client
            .call(&app.node, "/oauth/revoke", &[("token", token)])
            .send()
            .await
            .expect(200)
    };
    for foreign in [
        theirs.access.as_str(),
        theirs.refresh.as_str(),
        &app.owner.token,
        "nonsense",
    ] {
        give_back(foreign).await;
    }
    assert_eq!(entries().await, []);
    assert_eq!(list_projects_status(&app.node, &theirs.access).await, 200);
    for _ in 0..2 {
        give_back(&pair.access).await;
    }
    let alone = [("gantry-revoke-oauth-token".to_owned(), 204, false)];
    assert_eq!(entries().await, alone);
    let body = json!({"client_id": client.id, "client_secret": client.secret, "refresh_token": pair.refresh});
    for _ in 0..2 {
        app.post("/v1/oauth/revoke")
            .json(&body)
            .send()
            .await
            .expect(204);
    }
    give_back(&pair.refresh).await;
    let [alone] = alone;
    assert_eq!(
        entries().await,
        [alone, ("v1-revoke-token".to_owned(), 204, true)]
    );
}

#[tokio::test]
async fn cleanup_deletes_expired_rows_only() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let pair = client.tokens(&app, &app.owner).await;
    client.ask(&app.node, &[]).await;
    let counts = async || {
        let sql = "select (select count(*) from oauth_requests), (select count(*) from oauth_codes), (select count(*) from oauth_access_tokens), \
                   (select count(*) from oauth_refresh_tokens), (select count(*) from oauth_grants), (select count(*) from oauth_applications)";
        let rows = app.app.db.query(sql, &[]).await.unwrap();
        std::array::from_fn::<i64, 6, _>(|column| rows[0].get(column))
    };
    let clean = async || cleanup::clean(&app.app.db, app.clock.now()).await.unwrap();
    clean().await;
    assert_eq!(counts().await, [2, 1, 1, 1, 1, 1]);
    app.advance(600);
    clean().await;
    assert_eq!(counts().await, [0, 1, 1, 1, 1, 1]);
    app.advance(9 * 86_400);
    clean().await;
    assert_eq!(counts().await, [0, 0, 0, 1, 1, 1]);
    let pair = Pair::of(&client.refresh(&app.node, &pair.refresh).await.expect(200));
    assert_eq!(list_projects_status(&app.node, &pair.access).await, 200);
    client
        .call(&app.node, "/oauth/revoke", &[("token", &pair.refresh)])
        .send()
        .await
        .expect(200);
    app.advance(91 * 86_400);
    clean().await;
    assert_eq!(counts().await, [0, 0, 0, 0, 0, 1]);
}

/// A request expires after ten minutes and can be answered once.
#[tokio::test]
async fn request_expires_and_is_answered_once() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let approve = async |id: &str| {
        let path = format!(
            "/platform/organizations/{}/oauth/authorizations/{id}",
            app.home.slug
        );
        app.post(&path)
            .as_(&app.owner)
            .json(&json!({}))
            .send()
            .await
    };
    let deny = async |id: &str| {
        app.delete(&format!("/platform/oauth/authorizations/{id}"))
            .as_(&app.owner)
            .send()
            .await
    };
    let id = client.ask(&app.node, &[]).await;
    approve(&id).await.expect(201);
    approve(&id).await.expect(400);
    deny(&id).await.expect(400);
    let id = client.ask(&app.node, &[]).await;
    let refused = deny(&id).await.expect(200).json()["url"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(
        (
            parameter(&refused, "error").as_str(),
            parameter(&refused, "state").as_str()
        ),
        ("access_denied", "xyz")
    );
    assert!(!refused.contains("code="));
    approve(&id).await.expect(400);
    let id = client.ask(&app.node, &[]).await;
    app.advance(599);
    app.get(&format!("/platform/oauth/authorizations/{id}"))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    app.advance(1);
    for answer in [approve(&id).await, deny(&id).await] {
        answer.expect(404);
    }
    let invented = "00000000-0000-4000-8000-000000000000";
    approve(invented).await.expect(404);
    let path = format!(
        "/platform/organizations/{}/oauth/authorizations/{}",
        app.foreign.slug,
        client.ask(&app.node, &[]).await
    );
    app.post(&path)
        .as_(&app.owner)
        .json(&json!({}))
        .send()
        .await
        .expect(404);
    app.post(&path).send().await.expect(401);
}
