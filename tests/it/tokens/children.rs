//! Child tokens: limits, life, revocation with their parent, and races.

use serde_json::{Value, json};

use super::{draft, projects, scoped};
use crate::support::{TestApp, client::Answer};

async fn create(app: &TestApp, token: &str, parent: i64, body: &Value) -> Answer {
    let path = format!("/v1/tokens/{parent}/children");
    app.post(&path).token(token).json(body).send().await
}

/// Returns a new child and its id.
async fn child(app: &TestApp, token: &str, parent: i64, body: &Value) -> (String, i64) {
    let made = create(app, token, parent, body).await.expect(201).json();
    let text = made["token"].as_str().unwrap().to_owned();
    (text, made["id"].as_i64().unwrap())
}

async fn status(app: &TestApp, token: &str) -> u16 {
    let answer = app.get(&app.at("")).token(token).send().await;
    answer.status.as_u16()
}

#[tokio::test]
async fn token_creates_narrower_children_of_itself() {
    let app = TestApp::new().await;
    let permissions = &["project_admin_read", "database_read"];
    let draft = draft(projects(&[&app.home.project]), permissions);
    let (parent, id) = scoped(&app, &app.owner, draft).await;
    let body =
        json!({"name": "agent", "permissions": ["project_admin_read"], "expires_in_minutes": 5});
    let made = create(&app, &parent, id.0, &body).await.expect(201).json();
    assert_eq!(made["parent_id"], json!(id.0));
    assert_eq!(made["scope"]["permissions"], json!(["project_admin_read"]));
    assert_eq!(made["scope"]["project_refs"], json!([app.home.project]));
    let token = made["token"].as_str().unwrap();
    assert_eq!(status(&app, token).await, 200);
    let read_sql = app.post(&app.at("/database/query/read-only")).token(token);
    let refused = read_sql
        .json(&json!({"query": "select 1"}))
        .send()
        .await
        .expect(403);
    assert!(
        refused.message().contains("database_read"),
        "{}",
        refused.message()
    );
    // The limits of the parent are the default.
    let (_, same) = child(&app, &parent, id.0, &json!({"name": "same"})).await;
    let path = format!("/v1/tokens/{}/children", id.0);
    let listed = app
        .get(&path)
        .token(&parent)
        .send()
        .await
        .expect(200)
        .json();
    let ids: Vec<_> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["id"])
        .collect();
    assert_eq!(ids, [&made["id"], &json!(same)]);
    app.advance(301);
    assert_eq!(status(&app, token).await, 401);
}

#[tokio::test]
async fn child_exceeds_its_parent_in_nothing() {
    let app = TestApp::new().await;
    let draft = draft(projects(&[&app.home.project]), &["project_admin_read"]);
    let (parent, id) = scoped(&app, &app.owner, draft).await;
    let sibling = app.stub(app.home.id, "sibling").await;
    for (body, field) in [
        (json!({"permissions": ["database_read"]}), "permissions"),
        (json!({"project_refs": [sibling]}), "project_refs"),
        (
            json!({"organization_slugs": [app.home.slug]}),
            "project_refs",
        ),
        (json!({"expires_at": "2027-06-01T00:00:00Z"}), "expires_at"),
        (json!({"expires_in_minutes": 0}), "expires_in_minutes"),
        (json!({"networks": ["everywhere"]}), "networks"),
    ] {
        let mut body = body;
        body["name"] = "child".into();
        let refused = create(&app, &parent, id.0, &body).await.expect(400);
        assert!(
            refused.message().starts_with(field),
            "{body}: {}",
            refused.message()
        );
    }
    // It ends with its parent if no time was asked for.
    let body = json!({"name": "child", "expires_in_minutes": 527_040});
    let made = create(&app, &parent, id.0, &body).await.expect(201).json();
    let owned = app
        .get(&format!("/v1/tokens/{}", id.0))
        .as_(&app.owner)
        .send()
        .await;
    assert_eq!(made["expires_at"], owned.expect(200).json()["expires_at"]);
}

#[tokio::test]
async fn token_creates_no_children_of_other_tokens() {
    let app = TestApp::new().await;
    let draft_of = || draft(projects(&[&app.home.project]), &["project_admin_read"]);
    let (first, first_id) = scoped(&app, &app.owner, draft_of()).await;
    let (_, second_id) = scoped(&app, &app.owner, draft_of()).await;
    let body = json!({"name": "child"});
    create(&app, &first, second_id.0, &body).await.expect(404);
    let (own, own_id) = child(&app, &first, first_id.0, &body).await;
    create(&app, &own, first_id.0, &body).await.expect(404);
    let stranger = &app.stranger.token;
    create(&app, stranger, first_id.0, &body).await.expect(404);
    // The owner creates children of any of its tokens.
    child(&app, &app.owner.token, own_id, &body).await;
    let path = format!("/v1/tokens/{}/children", second_id.0);
    app.get(&path).token(&first).send().await.expect(404);
}

#[tokio::test]
async fn descendants_are_bounded_and_revoked_with_their_ancestor() {
    let app = TestApp::new().await;
    let draft = draft(projects(&[&app.home.project]), &["project_admin_read"]);
    let (parent, id) = scoped(&app, &app.owner, draft).await;
    let body = json!({"name": "child"});
    let mut line = vec![(parent, id.0)];
    for _ in 0..3 {
        let (token, id) = line.last().unwrap().clone();
        line.push(child(&app, &token, id, &body).await);
    }
    let (last, last_id) = line.last().unwrap();
    let refused = create(&app, last, *last_id, &body).await.expect(400);
    assert!(
        refused.message().contains("3 ancestors"),
        "{}",
        refused.message()
    );
    for (token, _) in &line {
        assert_eq!(status(&app, token).await, 200);
    }
    // The second ends with those below it.
    let path = format!("/v1/tokens/{}", line[1].1);
    app.delete(&path).as_(&app.owner).send().await.expect(200);
    let mut statuses = Vec::new();
    for (token, _) in &line {
        statuses.push(status(&app, token).await);
    }
    assert_eq!(statuses, [200, 401, 401, 401]);
    let refused = create(&app, &app.owner.token, line[1].1, &body).await;
    refused.expect(404);
}

#[tokio::test]
async fn child_of_an_expired_token_is_not_created() {
    let app = TestApp::new().await;
    let draft = draft(projects(&[&app.home.project]), &["project_admin_read"]);
    let (parent, id) = scoped(&app, &app.owner, draft).await;
    app.advance(8 * 86_400);
    let body = json!({"name": "child"});
    create(&app, &parent, id.0, &body).await.expect(401);
    create(&app, &app.owner.token, id.0, &body)
        .await
        .expect(404);
}

#[tokio::test]
async fn child_that_is_created_during_a_revocation_does_not_outlive_it() {
    let app = TestApp::new().await;
    let body = json!({"name": "child"});
    for _ in 0..20 {
        let draft = draft(projects(&[&app.home.project]), &["project_admin_read"]);
        let (parent, id) = scoped(&app, &app.owner, draft).await;
        let (middle, middle_id) = child(&app, &parent, id.0, &body).await;
        let path = format!("/v1/tokens/{}", id.0);
        let revoke = app.delete(&path).as_(&app.owner).send();
        let (revoked, made) = tokio::join!(revoke, create(&app, &middle, middle_id, &body));
        revoked.expect(200);
        assert!([201, 401, 404].contains(&made.status.as_u16()), "{made:?}");
    }
    let sql = "select count(*) from tokens c join tokens p on p.id = c.parent_id \
               where p.revoked_at is not null and c.revoked_at is null";
    let row = &app.app.db.query(sql, &[]).await.unwrap()[0];
    assert_eq!(row.get::<_, i64>(0), 0);
}
