//! How what was approved ends: by the member, by the application, by who may decide over either; at once, on every node.

use std::sync::Arc;

use gantry::{
    api::{oauth::cleanup, organizations},
    platform::{access::Role, notifications, tables::Table},
};
use serde_json::{Value, json};

use super::flow::{Client, Pair, apps, bound, fails, parameter, register, tried};
use crate::support::{Node, TestApp, client::Answer, dawn, machine::Machine};

/// Two nodes that hear each other, both of which have a token cached.
async fn two(app: &mut TestApp) -> Node {
    let mut second = app.another(2, Arc::new(Machine::bare()));
    app.node.start();
    second.start();
    // Whoever listens answers; asking until both do is what waits for them.
    let heard = async || {
        let sql = "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'gantry listener'";
        app.app.db.query(sql, &[]).await.unwrap()[0].get::<_, i64>(0)
    };
    while heard().await < 2 {
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
async fn what_ends_is_over_with_the_next_request_on_every_node() {
    let mut app = TestApp::new().await;
    let second = two(&mut app).await;
    let client = register(&app, json!({})).await;
    let used = async |by| {
        let pair: Pair = client.tokens(&app, by).await;
        assert_eq!(
            (
                tried(&app.node, &pair.access).await,
                tried(&second, &pair.access).await
            ),
            (200, 200)
        );
        pair
    };
    let over = async |case: &str, pair: &Pair| {
        assert_eq!(
            (
                tried(&second, &pair.access).await,
                tried(&app.node, &pair.access).await
            ),
            (401, 401),
            "{case}"
        );
        fails(
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
    tried(&second, &next.access).await;
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
    // Who comes back has approved nothing.
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
            tried(&second, &pair.access).await,
            tried(&app.node, &pair.access).await
        ),
        (401, 401)
    );
    fails(
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

/// RFC 7009: an access token stands for itself only, and nobody learns what is known.
#[tokio::test]
async fn an_access_token_is_given_back_alone() {
    let app = TestApp::new().await;
    let client = register(&app, json!({})).await;
    let pair = client.tokens(&app, &app.owner).await;
    let next = Pair::of(&client.refresh(&app.node, &pair.refresh).await.expect(200));
    tried(&app.node, &next.access).await;
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
            tried(&app.node, &pair.access).await,
            tried(&app.node, &next.access).await
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
    // A refresh token that was used still stands for all of it.
    give_back(&pair.refresh).await.expect(200);
    assert_eq!(tried(&app.node, &last.access).await, 401);
    fails(
        "no token",
        &client.call(&app.node, "/oauth/revoke", &[]).send().await,
        "invalid_request",
    );
    let wrong = Client {
        secret: Some("wrong".to_owned()),
        ..client.clone()
    };
    fails(
        "wrong",
        &wrong
            .call(&app.node, "/oauth/revoke", &[("token", &last.refresh)])
            .send()
            .await,
        "invalid_client",
    );
    let body =
        json!({"client_id": client.id, "client_secret": "wrong", "refresh_token": last.refresh});
    fails(
        "json",
        &app.post("/v1/oauth/revoke").json(&body).send().await,
        "invalid_client",
    );
}

/// An application that was deleted, or a member who left, while a code was on its way.
#[tokio::test]
async fn a_code_on_its_way_is_over_with_what_it_is_for() {
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
    fails(
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
    fails(
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

/// An application that is bound to its member does what the member may now; any other what was approved.
#[tokio::test]
async fn a_bound_application_follows_its_members_role() {
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

/// Only who may give away what an application takes for good can approve one that is not bound.
#[tokio::test]
async fn what_is_not_bound_is_approved_by_administrators_only() {
    let app = TestApp::new().await;
    let (free, bound) = (register(&app, json!({})).await, bound(&app).await);
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
async fn an_application_sees_what_was_chosen_and_nothing_else() {
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
    let address = client.approved(&app, &app.owner, &[], &chosen).await;
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
async fn projects_are_chosen_as_the_application_wants_it() {
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

/// Requests are counted by application, whoever it acts for, and not by the member.
#[tokio::test]
async fn an_application_has_a_quota_of_its_own() {
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

/// What was approved, used, renewed and ended is in the organization's log, under the member and the number of what they approved.
#[tokio::test]
async fn every_step_is_in_the_audit_log() {
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

/// Whether all of it or one token: what is given back is written down once, and what is not the application's never.
#[tokio::test]
async fn what_is_given_back_is_in_the_audit_log_once() {
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
    assert_eq!(tried(&app.node, &theirs.access).await, 200);
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
async fn what_is_over_goes_away_and_nothing_else() {
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
    assert_eq!(tried(&app.node, &pair.access).await, 200);
    client
        .call(&app.node, "/oauth/revoke", &[("token", &pair.refresh)])
        .send()
        .await
        .expect(200);
    app.advance(91 * 86_400);
    clean().await;
    assert_eq!(counts().await, [0, 0, 0, 0, 0, 1]);
}

/// Requests end after ten minutes, and are answered once.
#[tokio::test]
async fn a_request_is_answered_once_within_ten_minutes() {
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
