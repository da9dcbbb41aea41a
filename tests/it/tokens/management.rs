//! Creation, validity, listing and revocation of tokens.

use chrono::{DateTime, TimeDelta, Utc};
use gantry::{
    api::tokens::{
        self,
        scoped::{TokenDraft, TokenResources},
    },
    platform::notifications,
};
use gantry_base::ids::ProjectRef;
use serde_json::json;

use super::{draft, projects, scoped, store, week};
use crate::support::{TestApp, dawn, postgres::connect};

#[tokio::test]
async fn token_is_valid_in_its_period_and_networks() {
    let app = TestApp::new().await;
    let resources = projects(&[&app.home.project]);
    let later = TokenDraft {
        not_before: Some(dawn() + TimeDelta::seconds(10)),
        ..draft(resources.clone(), &["project_admin_read"])
    };
    let (token, _) = scoped(&app, &app.owner, later).await;
    let get = || app.get(&app.at("")).token(&token);
    assert_eq!(get().send().await.expect(401).message(), "Unauthorized");
    app.advance(10);
    get().send().await.expect(200);
    app.advance(7 * 86_400 - 11);
    get().send().await.expect(200);
    app.advance(1);
    get().send().await.expect(401);

    let app = TestApp::new().await;
    let networks = vec![
        "192.0.2.0/24".parse().unwrap(),
        "127.0.0.9/32".parse().unwrap(),
    ];
    let local = TokenDraft {
        networks,
        ..draft(TokenResources::Account, &["project_admin_read"])
    };
    let (token, _) = scoped(&app, &app.owner, local).await;
    app.get("/v1/profile")
        .token(&token)
        .from("127.0.0.9")
        .send()
        .await
        .expect(200);
    let refused = app
        .get("/v1/profile")
        .token(&token)
        .from("127.0.0.8")
        .send()
        .await
        .expect(401);
    assert_eq!(
        (refused.message(), refused.header("x-gotrue-id")),
        ("Unauthorized".to_owned(), None)
    );
}

#[tokio::test]
async fn scoped_token_is_listed_and_revoked_and_immutable() {
    let mut app = TestApp::new().await;
    app.node.start();
    let (token, id) = scoped(
        &app,
        &app.owner,
        draft(
            projects(&[&app.home.project]),
            &["project_admin_read", "database_read"],
        ),
    )
    .await;
    let listed = tokens::list(&app.app.db, app.owner.user).await.unwrap();
    let listed = serde_json::to_value(listed).unwrap();
    assert_eq!(
        listed[0]["scope"],
        json!({
            "reach": "projects",
            "organization_slugs": [app.home.slug],
            "project_refs": [app.home.project],
            "permissions": ["database_read", "project_admin_read"],
            "networks": [],
        })
    );
    assert_eq!(
        listed[0]["alias"],
        format!("{}…{}", &token[..8], &token[40..])
    );
    assert!(
        listed[1].get("scope").is_none() && !listed.to_string().contains(&token),
        "{listed}"
    );

    let person = connect(&app.config).await;
    for change in [
        "expires_at = expires_at + interval '1 day'",
        "permissions = permissions || '{database_write}'",
        "reach = 'account', organizations = null, projects = null",
        "reach = null, permissions = null, organizations = null, projects = null, networks = null",
        "networks = '{0.0.0.0/0}'",
    ] {
        let refused = person
            .execute(
                &format!("update tokens set {change} where id = {}", id.0),
                &[],
            )
            .await
            .unwrap_err();
        assert_eq!(
            refused.as_db_error().unwrap().message(),
            "a scoped token cannot be changed, only revoked",
            "{change}"
        );
    }
    // A partially filled grant cannot be stored.
    for columns in [
        "reach = 'projects'",
        "permissions = '{database_read}'",
        "reach = 'account', permissions = '{}', networks = '{}'",
    ] {
        let sql = format!(
            "update tokens set {columns} where id = {}",
            app.owner.token_id.0
        );
        let refused = person.execute(&sql, &[]).await.unwrap_err();
        assert_eq!(
            refused.as_db_error().unwrap().constraint(),
            Some("tokens_scoped_check"),
            "{columns}"
        );
    }
    app.get(&app.at("")).token(&token).send().await.expect(200);
    tokens::revoke(&app.app.db, id, app.app.clock.now(), None)
        .await
        .unwrap();
    notifications::settle(&app.app.db).await.unwrap();
    app.get(&app.at("")).token(&token).send().await.expect(401);
}

#[tokio::test]
async fn draft_with_foreign_resources_is_rejected() {
    let app = TestApp::new().await;
    let second = app.tenant("Second", &app.owner).await;
    let read = &["database_read"][..];
    let unknown: ProjectRef = "abcdefghijklmnopqrst".parse().unwrap();
    let cases = [
        (draft(projects(&[&app.foreign.project]), read), format!("project_refs: there is no project {}", app.foreign.project)),
        (draft(projects(&[&unknown]), read), format!("project_refs: there is no project {unknown}")),
        (draft(projects(&[&app.home.project, &second.project]), read), "project_refs: expected projects of one organization".to_owned()),
        (
            draft(TokenResources::Organizations([app.foreign.slug.clone()].into()), read),
            format!("organization_slugs: there is no organization {}", app.foreign.slug),
        ),
        (
            draft(projects(&[&app.home.project]), &["members_read"]),
            "permissions: members_read is about organizations, which a token for projects does not reach".to_owned(),
        ),
        (draft(TokenResources::Account, &[]), "permissions: expected at least one".to_owned()),
    ];
    for (draft, problem) in cases {
        assert_eq!(
            draft
                .resolve(&app.app.db, app.owner.user)
                .await
                .unwrap_err()
                .message(),
            problem
        );
    }
    assert!(
        TokenResources::from_names(vec![app.home.slug.clone()], vec![app.home.project.clone()])
            .is_err()
    );
}

#[tokio::test]
async fn own_tokens_are_created_listed_and_revoked() {
    let mut app = TestApp::new().await;
    app.node.start();
    let request = json!({
        "name": "ci",
        "project_refs": [app.home.project],
        "permissions": ["project_admin_read"],
        "networks": ["127.0.0.0/8"],
    });
    let made = app
        .post("/v1/tokens")
        .as_(&app.owner)
        .json(&request)
        .send()
        .await
        .expect(201)
        .json();
    let token = made["token"].as_str().unwrap();
    assert!(token.starts_with("sbp_fc") && token.len() == 44, "{made}");
    assert_eq!(
        made["expires_at"]
            .as_str()
            .unwrap()
            .parse::<DateTime<Utc>>()
            .unwrap(),
        week()
    );
    assert_eq!(made["scope"]["project_refs"], json!([app.home.project]));
    app.get(&app.at("")).token(token).send().await.expect(200);

    let path = format!("/v1/tokens/{}", made["id"]);
    let shown = app.get(&path).as_(&app.owner).send().await.expect(200);
    assert!(!shown.text().contains(token), "shown once");
    let listed = app
        .get("/v1/tokens")
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(
        (listed.as_array().unwrap().len(), &listed[0]),
        (2, &shown.json())
    );
    // Tokens of other users are not found, and scoped tokens cannot manage tokens.
    for call in [app.get(&path), app.delete(&path)] {
        call.as_(&app.developer).send().await.expect(404);
    }
    for call in [
        app.get(&path),
        app.delete(&path),
        app.get("/v1/tokens"),
        app.post("/v1/tokens").json(&request),
    ] {
        let refused = call.token(token).send().await.expect(403);
        assert_eq!(
            refused.message(),
            "This endpoint does not accept scoped access tokens"
        );
    }
    app.delete(&path).as_(&app.owner).send().await.expect(200);
    app.get(&app.at("")).token(token).send().await.expect(401);
    app.get(&path).as_(&app.owner).send().await.expect(404);
}

#[tokio::test]
async fn create_token_with_invalid_field_returns_400() {
    let app = TestApp::new().await;
    let cases = [
        (
            json!({"name": "x", "permissions": ["database_read"], "expires_in_days": 367}),
            "expires_in_days: expected 1 to 366",
        ),
        (
            json!({"name": "x", "permissions": ["database_read"], "expires_in_days": 0}),
            "expires_in_days: expected 1 to 366",
        ),
        (
            json!({"name": "x", "permissions": ["database_read"], "expires_at": dawn()}),
            "expires_at: expected a moment after now and after not_before",
        ),
        (
            json!({"name": "x", "permissions": ["database_read"], "expires_at": dawn() + TimeDelta::days(367)}),
            "expires_at: expected at most a year from now",
        ),
        (
            json!({"name": "x", "permissions": ["database_read"], "expires_at": week(), "expires_in_days": 7}),
            "expires_in_days: cannot be given together with expires_at",
        ),
        (
            json!({"name": "", "permissions": ["database_read"]}),
            "name: expected 1 to 256 characters",
        ),
        (json!({"name": "x"}), "permissions: expected at least one"),
        (
            json!({"name": "x", "permissions": ["database_read"], "networks": ["here"]}),
            "networks: here is not a network such as 192.0.2.0/24",
        ),
        (
            json!({"name": "x", "permissions": ["database_read"], "colour": 1}),
            "colour: is not a field of this request",
        ),
        (
            json!({"name": "x", "permissions": ["database_read"], "organization_slugs": ["a"], "project_refs": [app.home.project]}),
            "project_refs: cannot be given together with organization_slugs",
        ),
    ];
    for (request, problem) in cases {
        let refused = app
            .post("/v1/tokens")
            .as_(&app.owner)
            .json(&request)
            .send()
            .await
            .expect(400);
        assert_eq!(refused.message(), problem, "{request}");
    }
    assert_eq!(
        tokens::list(&app.app.db, app.owner.user)
            .await
            .unwrap()
            .len(),
        1,
        "nothing was made"
    );
}

#[tokio::test]
async fn live_tokens_of_a_user_are_bounded() {
    let app = TestApp::new().await;
    let grant = draft(TokenResources::Account, &["database_read"])
        .resolve(&app.app.db, app.owner.user)
        .await
        .unwrap();
    let sql = "insert into tokens (user_id, name, digest, alias, created_at, expires_at, reach, permissions, networks) \
               select $1, 'many', sha256(n::text::bytea), 'x', $2, $3, 'account', '{database_read}', '{}' from generate_series(1, 999) n";
    app.app
        .db
        .query(sql, &[&app.owner.user.0, &dawn(), &week()])
        .await
        .unwrap();
    let (_, last) = store(&app, &app.owner, &grant).await;
    let one_more = json!({"name": "one more", "permissions": ["database_read"]});
    let make = || {
        app.post("/v1/tokens")
            .as_(&app.owner)
            .json(&one_more)
            .send()
    };
    assert_eq!(
        make().await.expect(400).message(),
        "A user can have 1000 live scoped tokens; revoke one first"
    );
    tokens::revoke(&app.app.db, last, dawn(), None)
        .await
        .unwrap();
    make().await.expect(201);
    app.advance(7 * 86_400);
    make().await.expect(201);
}
