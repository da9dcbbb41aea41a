//! Authorizations of an organization, as its managers list and revoke them.

use serde_json::{Value, json};

use super::flow::{
    Client, Pair, assert_oauth_error, list_projects_status, register, register_bound,
};
use crate::{
    support::{Actor, TestApp, client::Answer},
    web::browser::{olga, signed_in},
};

fn all(app: &TestApp) -> String {
    format!("/v1/organizations/{}/oauth/authorizations", app.home.slug)
}

async fn listed(app: &TestApp, by: &Actor) -> Vec<Value> {
    app.get(&all(app))
        .as_(by)
        .send()
        .await
        .expect(200)
        .json()
        .as_array()
        .unwrap()
        .clone()
}

async fn end_all(app: &TestApp, slug: &str, client: &str, by: &Actor) -> Answer {
    app.delete(&format!(
        "/v1/organizations/{slug}/oauth/apps/{client}/authorizations"
    ))
    .as_(by)
    .send()
    .await
}

#[tokio::test]
async fn manager_lists_and_revokes_authorizations() {
    let app = TestApp::new().await;
    let (client, other) = (register_bound(&app).await, register_bound(&app).await);
    let mine = client.tokens(&app, &app.owner).await;
    let theirs = client.tokens(&app, &app.developer).await;
    let others = other.tokens(&app, &app.developer).await;
    assert_eq!(list_projects_status(&app.node, &theirs.access).await, 200);
    let found = listed(&app, &app.administrator).await;
    let seen = |it: &Value| {
        (
            it["client_id"].as_str().unwrap().to_owned(),
            it["approved_by"]["id"].as_str().unwrap().to_owned(),
        )
    };
    let (owner, developer) = (
        app.owner.gotrue_id.to_string(),
        app.developer.gotrue_id.to_string(),
    );
    let expected = [
        (other.id.clone(), developer.clone()),
        (client.id.clone(), developer),
        (client.id.clone(), owner),
    ];
    assert_eq!(
        found.iter().map(seen).collect::<Vec<_>>(),
        expected,
        "the newest first"
    );
    assert_eq!(
        (
            &found[1]["project_refs"],
            found[1]["scopes"].as_array().unwrap().len()
        ),
        (&Value::Null, 3)
    );
    assert!(found[1]["last_used_at"].is_string() && found[2]["last_used_at"].is_null());

    let id = found[1]["id"].clone();
    app.delete(&format!("{}/{id}", all(&app)))
        .as_(&app.administrator)
        .send()
        .await
        .expect(200);
    assert_eq!(
        (
            list_projects_status(&app.node, &theirs.access).await,
            list_projects_status(&app.node, &mine.access).await
        ),
        (401, 200)
    );
    assert_oauth_error(
        "ended",
        &client.refresh(&app.node, &theirs.refresh).await,
        "invalid_grant",
    );
    app.delete(&format!("{}/{id}", all(&app)))
        .as_(&app.administrator)
        .send()
        .await
        .expect(404);

    let again = client.tokens(&app, &app.developer).await;
    let ended = end_all(&app, app.home.slug.as_str(), &client.id, &app.administrator)
        .await
        .expect(200)
        .json();
    assert_eq!(ended, json!({"authorizations_revoked": 2}));
    for pair in [&mine, &again] {
        assert_eq!(list_projects_status(&app.node, &pair.access).await, 401);
    }
    assert_eq!(list_projects_status(&app.node, &others.access).await, 200);
    end_all(&app, app.home.slug.as_str(), &client.id, &app.administrator)
        .await
        .expect(404);
    assert_eq!(listed(&app, &app.owner).await.len(), 1);

    let sql = "select operation, before from audit_entries where chain = $1 and actor = $2 and status = 200 order by number";
    let values: [&(dyn tokio_postgres::types::ToSql + Sync); 2] = [
        &format!("organization {}", app.home.id),
        &app.administrator.gotrue_id,
    ];
    let rows = app.app.db.query(sql, &values).await.unwrap();
    let entries: Vec<(&str, Value)> = rows
        .iter()
        .map(|row| (row.get(0), serde_json::from_str(row.get(1)).unwrap()))
        .collect();
    let [(first, one), (second, many)] = entries.as_slice() else {
        panic!("{entries:?}")
    };
    assert_eq!(
        (*first, *second),
        (
            "gantry-revoke-organization-oauth-authorization",
            "gantry-revoke-organization-oauth-authorizations"
        )
    );
    assert_eq!(
        (&one["approved_by"], &many["authorizations_revoked"]),
        (&json!(app.developer.gotrue_id), &json!(2))
    );
}

/// Lower roles and other organizations have no access.
#[tokio::test]
async fn authorizations_of_organization_are_hidden_from_others() {
    let app = TestApp::new().await;
    let second = app.tenant("Second", &app.owner).await;
    let client = register(&app, json!({})).await;
    let pair: Pair = client.tokens(&app, &app.owner).await;
    let id = listed(&app, &app.owner).await[0]["id"].clone();
    for (actor, status) in [
        (&app.developer, 403),
        (&app.read_only, 403),
        (&app.stranger, 404),
    ] {
        app.get(&all(&app)).as_(actor).send().await.expect(status);
        app.delete(&format!("{}/{id}", all(&app)))
            .as_(actor)
            .send()
            .await
            .expect(status);
        end_all(&app, app.home.slug.as_str(), &client.id, actor)
            .await
            .expect(status);
    }
    app.get(&all(&app))
        .token(&pair.access)
        .send()
        .await
        .expect(403);
    let elsewhere = format!("/v1/organizations/{}/oauth/authorizations", second.slug);
    assert_eq!(
        app.get(&elsewhere)
            .as_(&app.owner)
            .send()
            .await
            .expect(200)
            .json(),
        json!([])
    );
    app.delete(&format!("{elsewhere}/{id}"))
        .as_(&app.owner)
        .send()
        .await
        .expect(404);
    end_all(&app, second.slug.as_str(), &client.id, &app.owner)
        .await
        .expect(404);
    end_all(
        &app,
        app.home.slug.as_str(),
        "00000000-0000-4000-8000-000000000000",
        &app.owner,
    )
    .await
    .expect(404);
    // An application registered in another organization is revoked where access was granted.
    let path = format!("/v1/organizations/{}/oauth/apps", second.slug);
    let body = json!({"name": "Abroad", "redirect_uris": [super::flow::CALLBACK], "scopes": ["projects:read"], "public": true});
    let abroad = app
        .post(&path)
        .as_(&app.owner)
        .json(&body)
        .send()
        .await
        .expect(201)
        .json()["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let abroad = Client {
        id: abroad,
        secret: None,
    };
    let there = abroad.tokens(&app, &app.administrator).await;
    end_all(&app, app.home.slug.as_str(), &abroad.id, &app.administrator)
        .await
        .expect(200);
    assert_eq!(
        (
            list_projects_status(&app.node, &there.access).await,
            list_projects_status(&app.node, &pair.access).await
        ),
        (401, 200)
    );
}

#[tokio::test]
async fn authorizations_page_lists_and_revokes() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let page = format!("/organizations/{}/authorized", app.home.slug);
    browser.get(&page).await.expect(200).says("No applications");
    let client = register(
        &app,
        json!({"name": "Shop", "bind_to_authorizing_user": true, "project_selection": "optional"}),
    )
    .await;
    let (one, two) = (
        client.tokens(&app, &app.developer).await,
        client.tokens(&app, &app.read_only).await,
    );
    let shown = browser
        .get(&page)
        .await
        .expect(200)
        .says("Shop")
        .says("Not verified")
        .says("2 authorizations")
        .says("Whole organization");
    let shown = shown
        .says("Read projects and their status")
        .says(&client.id);
    // Newest first.
    let number = shown
        .html
        .split("name=\"id\" value=\"")
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap()
        .to_owned();
    browser
        .submit(&page, &page, &[("id", &number)])
        .await
        .leads_to(&format!("{page}?done=revoked"));
    assert_eq!(
        (
            list_projects_status(&app.node, &one.access).await,
            list_projects_status(&app.node, &two.access).await
        ),
        (200, 401)
    );
    browser
        .get(&format!("{page}?done=revoked"))
        .await
        .expect(200)
        .says("Authorization revoked")
        .says("1 authorization");
    browser
        .submit(
            &page,
            &page,
            &[("id", &number), ("application", &client.id)],
        )
        .await
        .expect(400);
    browser
        .submit(&page, &page, &[("application", &client.id)])
        .await
        .leads_to(&format!("{page}?done=revoked"));
    assert_eq!(list_projects_status(&app.node, &one.access).await, 401);

    let mut rhea = signed_in(&app, &app.read_only).await;
    let hidden = rhea
        .get(&page)
        .await
        .expect(200)
        .says("You do not have access to the authorizations")
        .says("Requires the Administrator role. Your role is Read-only.");
    let token = hidden.hides(&client.id).form_token();
    rhea.post(
        &page,
        &[("form_token", &token), ("application", &client.id)],
    )
    .await
    .expect(403);
    let mut stan = signed_in(&app, &app.stranger).await;
    stan.get(&page).await.expect(404);
}
