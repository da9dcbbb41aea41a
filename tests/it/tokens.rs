//! Scoped tokens over the whole application: what they reach, what they may, from where, and for how long.

use chrono::{DateTime, TimeDelta, Utc};
use gantry::{
    api::{
        organizations, tokens,
        tokens::{
            scoped,
            scoped::{TokenDraft, TokenResources},
        },
    },
    base::ids::{ProjectRef, TokenId},
    platform::{
        access::{Grant, Permission, Permissions, Reach, Role},
        notifications,
        tables::Table,
    },
};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::support::{Actor, TestApp, client::Call, dawn, machine::PATIENCE, postgres::connect};

/// A draft that reaches this, with these permissions.
fn draft(resources: TokenResources, permissions: &[&str]) -> TokenDraft {
    TokenDraft {
        resources,
        permissions: permissions.iter().map(ToString::to_string).collect(),
        networks: Vec::new(),
        not_before: None,
    }
}

fn projects(references: &[&ProjectRef]) -> TokenResources {
    TokenResources::Projects(
        references
            .iter()
            .map(|reference| (*reference).clone())
            .collect(),
    )
}

fn week() -> DateTime<Utc> {
    dawn() + TimeDelta::days(7)
}

/// Makes a scoped token of `actor`.
async fn scoped(app: &TestApp, actor: &Actor, draft: TokenDraft) -> (String, TokenId) {
    let grant = draft.resolve(&app.app.db, actor.user).await.unwrap();
    store(app, actor, &grant).await
}

async fn store(app: &TestApp, actor: &Actor, grant: &Grant) -> (String, TokenId) {
    let minted = scoped::mint(&app.app.entropy);
    let token = scoped::create(
        &app.app.db,
        actor.user,
        "scoped",
        &minted,
        (app.app.clock.now(), week()),
        grant,
        None,
    )
    .await
    .unwrap();
    (minted.expose().to_owned(), TokenId(token.id))
}

async fn refs(call: Call) -> Vec<String> {
    let answer = call.send().await.expect(200).json();
    answer
        .as_array()
        .unwrap()
        .iter()
        .map(|project| project["ref"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn a_token_may_do_what_it_names_and_is_told_what_it_lacks() {
    let app = TestApp::new().await;
    let (token, _) = scoped(
        &app,
        &app.owner,
        draft(projects(&[&app.home.project]), &["project_admin_read"]),
    )
    .await;
    app.get(&app.at("")).token(&token).send().await.expect(200);

    let refused = app
        .get(&app.at("/config/database/pooler"))
        .token(&token)
        .send()
        .await
        .expect(403);
    assert_eq!(
        refused.json(),
        json!({
            "message": "Missing required permission(s): database_pooling_config_read",
            "error": {"missing_permissions": ["database_pooling_config_read"]},
        })
    );
    assert_eq!(
        refused.header("x-accepted-permissions"),
        Some("database_pooling_config_read")
    );
    assert_eq!(
        refused.header("x-gotrue-id"),
        Some(&*app.owner.gotrue_id.to_string())
    );

    let refused = app
        .patch(&app.at("/config/auth"))
        .token(&token)
        .json(&json!({}))
        .send()
        .await
        .expect(403);
    assert_eq!(
        refused.json()["error"]["missing_permissions"],
        json!(["auth_config_write", "project_admin_write"])
    );
    assert_eq!(
        refused.header("x-accepted-permissions"),
        Some("auth_config_write+project_admin_write")
    );
}

#[tokio::test]
async fn a_token_can_do_no_more_than_its_owner() {
    let app = TestApp::new().await;
    let all = draft(
        TokenResources::Account,
        &Permission::ALL
            .iter()
            .map(|permission| permission.name())
            .collect::<Vec<_>>(),
    );
    let (token, _) = scoped(&app, &app.developer, all).await;
    let refused = app
        .delete(&app.at(""))
        .token(&token)
        .send()
        .await
        .expect(403);
    assert!(
        refused
            .message()
            .starts_with("Your account does not have the necessary privileges"),
        "{refused:?}"
    );
    assert_eq!(
        refused.header("x-accepted-permissions"),
        Some("project_admin_write")
    );

    // Another role counts from the next request on, for tokens that were made before.
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
    app.app.table_changed(Table::Members);
    app.delete(&app.at(""))
        .token(&token)
        .send()
        .await
        .expect(200);
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
    app.app.table_changed(Table::Members);
    app.get(&app.at("/api-keys"))
        .token(&token)
        .send()
        .await
        .expect(403);
}

/// What a token does not reach, and what is nobody's, cannot be told apart: not by status, message, header or counter.
#[tokio::test]
async fn what_is_out_of_reach_does_not_exist() {
    let app = TestApp::new().await;
    let sibling = app.stub(app.home.id, "sibling").await;
    let second = app.tenant("Second", &app.owner).await;
    let (token, _) = scoped(
        &app,
        &app.owner,
        draft(
            projects(&[&app.home.project]),
            &["project_admin_read", "organizations_read"],
        ),
    )
    .await;
    // Known to the cache through another token of the same owner.
    for reference in [&sibling, &second.project] {
        app.get(&format!("/v1/projects/{reference}"))
            .as_(&app.owner)
            .send()
            .await
            .expect(200);
    }
    let mut seen = Vec::new();
    for reference in [
        sibling.as_str(),
        second.project.as_str(),
        app.foreign.project.as_str(),
        "abcdefghijklmnopqrst",
    ] {
        let answer = app
            .get(&format!("/v1/projects/{reference}"))
            .token(&token)
            .send()
            .await
            .expect(404);
        let left = answer.quota.remaining;
        assert_eq!(
            (answer.message(), answer.header("x-accepted-permissions")),
            ("Not Found".to_owned(), None),
            "{reference}"
        );
        seen.push(left);
    }
    assert_eq!(seen, [119, 118, 117, 116], "one counter for all");
    app.get(&format!("/v1/organizations/{}", second.slug))
        .token(&token)
        .send()
        .await
        .expect(404);
    // The organization of a project that is reached is no secret, and out of bounds.
    let refused = app
        .get(&format!("/v1/organizations/{}", app.home.slug))
        .token(&token)
        .send()
        .await
        .expect(403);
    assert_eq!(
        refused.message(),
        "Missing required permission(s): organization_admin_read"
    );
}

#[tokio::test]
async fn a_project_that_moves_is_out_of_reach() {
    let app = TestApp::new().await;
    let second = app.tenant("Second", &app.owner).await;
    let (token, _) = scoped(
        &app,
        &app.owner,
        draft(projects(&[&app.home.project]), &["project_admin_read"]),
    )
    .await;
    app.get(&app.at("")).token(&token).send().await.expect(200);
    app.app
        .db
        .query(
            "update projects set organization_id = $2, name = 'moved' where ref = $1",
            &[&app.home.project.as_str(), &second.id.0],
        )
        .await
        .unwrap();
    app.app.table_changed(Table::Projects);
    app.get(&app.at("")).token(&token).send().await.expect(404);
    app.get(&app.at(""))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
}

#[tokio::test]
async fn an_organizations_token_reaches_what_is_made_later() {
    let app = TestApp::new().await;
    let second = app.tenant("Second", &app.owner).await;
    let home = TokenResources::Organizations([app.home.slug.clone()].into());
    let (token, _) = scoped(
        &app,
        &app.owner,
        draft(
            home,
            &[
                "project_admin_read",
                "organization_projects_create",
                "projects_read",
            ],
        ),
    )
    .await;
    let made = app
        .post("/v1/projects")
        .token(&token)
        .json(&app.new_project("later"))
        .send()
        .await
        .expect(201);
    let reference = made.json()["ref"].as_str().unwrap().to_owned();
    app.get(&format!("/v1/projects/{reference}"))
        .token(&token)
        .send()
        .await
        .expect(200);
    let elsewhere =
        json!({"organization_slug": second.slug, "name": "no", "db_pass": "correct horse"});
    app.post("/v1/projects")
        .token(&token)
        .json(&elsewhere)
        .send()
        .await
        .expect(404);
    assert_eq!(
        refs(app.get("/v1/projects").token(&token)).await,
        [app.home.project.to_string(), reference]
    );
}

/// Every combination of who asks first: a kept answer is given to nobody else.
#[tokio::test]
async fn lists_show_what_the_token_reaches_whoever_asked_before() {
    let app = TestApp::new().await;
    let sibling = app.stub(app.home.id, "sibling").await;
    let second = app.tenant("Second", &app.owner).await;
    let lists = ["projects_read", "organizations_read"];
    let (home, one, own) = (
        app.home.project.to_string(),
        sibling.to_string(),
        second.project.to_string(),
    );
    let (home_slug, second_slug) = (app.home.slug.to_string(), second.slug.to_string());
    let everything = vec![home.clone(), one.clone(), own.clone()];
    let kinds = [
        (
            app.owner.token.clone(),
            everything.clone(),
            vec![home_slug.clone(), second_slug.clone()],
        ),
        (
            scoped(&app, &app.owner, draft(TokenResources::Account, &lists))
                .await
                .0,
            everything,
            vec![home_slug.clone(), second_slug.clone()],
        ),
        (
            scoped(
                &app,
                &app.owner,
                draft(
                    TokenResources::Organizations([second.slug.clone()].into()),
                    &lists,
                ),
            )
            .await
            .0,
            vec![own],
            vec![second_slug],
        ),
        (
            scoped(&app, &app.owner, draft(projects(&[&sibling]), &lists))
                .await
                .0,
            vec![one.clone()],
            vec![home_slug.clone()],
        ),
        (
            scoped(
                &app,
                &app.owner,
                draft(projects(&[&sibling, &app.home.project]), &lists),
            )
            .await
            .0,
            vec![home, one],
            vec![home_slug],
        ),
    ];
    for first in 0..kinds.len() {
        app.app.table_changed(Table::Projects);
        for n in 0..2 * kinds.len() {
            let (token, expected, slugs) = &kinds[(first + n) % kinds.len()];
            assert_eq!(
                &refs(app.get("/v1/projects").token(token)).await,
                expected,
                "{first} {n}"
            );
            let organizations = app
                .get("/v1/organizations")
                .token(token)
                .send()
                .await
                .expect(200)
                .json();
            let listed: Vec<_> = organizations
                .as_array()
                .unwrap()
                .iter()
                .map(|found| found["slug"].as_str().unwrap())
                .collect();
            assert_eq!(&listed, slugs, "{first} {n}");
        }
    }
}

#[tokio::test]
async fn the_account_is_for_tokens_that_reach_it() {
    let app = TestApp::new().await;
    let (whole, _) = scoped(
        &app,
        &app.owner,
        draft(TokenResources::Account, &["database_read"]),
    )
    .await;
    app.get("/v1/profile")
        .token(&whole)
        .send()
        .await
        .expect(200);
    for resources in [
        TokenResources::Organizations([app.home.slug.clone()].into()),
        projects(&[&app.home.project]),
    ] {
        let (bound, _) = scoped(
            &app,
            &app.owner,
            draft(resources.clone(), &["database_read"]),
        )
        .await;
        let refused = app
            .get("/v1/profile")
            .token(&bound)
            .send()
            .await
            .expect(403);
        assert_eq!(
            refused.message(),
            "This endpoint requires a user-scoped access token"
        );
        let refused = draft(resources.clone(), &["organizations_create"])
            .resolve(&app.app.db, app.owner.user)
            .await
            .unwrap_err();
        assert!(
            refused
                .message()
                .contains("organizations_create is about the whole account"),
            "{refused}"
        );
        // A row that says so all the same, written by whoever: it counts for nothing.
        let mut grant = draft(resources, &["database_read"])
            .resolve(&app.app.db, app.owner.user)
            .await
            .unwrap();
        grant.permissions = Permission::ALL.iter().copied().collect::<Permissions>();
        let (token, _) = store(&app, &app.owner, &grant).await;
        let refused = app
            .post("/v1/organizations")
            .token(&token)
            .json(&json!({"name": "Third"}))
            .send()
            .await
            .expect(403);
        assert_eq!(
            refused.message(),
            "Missing required permission(s): organizations_create"
        );
    }
}

#[tokio::test]
async fn what_a_query_needs_depends_on_what_it_asks() {
    let app = TestApp::new().await;
    let path = app.at("/database/query");
    let ask = async |permissions: &[&str], body: Value| {
        let (token, _) = scoped(
            &app,
            &app.owner,
            draft(projects(&[&app.home.project]), permissions),
        )
        .await;
        let answer = app.post(&path).token(&token).json(&body).send().await;
        (
            answer.status.as_u16(),
            answer.header("x-accepted-permissions").map(str::to_owned),
        )
    };
    // Admitted: the project of this test is a row without a database, or the query is wanting.
    let both = Some("database_read+database_write".to_owned());
    assert_eq!(
        ask(&["database_read"], json!({"read_only": true})).await,
        (400, None)
    );
    assert_eq!(
        ask(&["database_read"], json!({})).await,
        (403, both.clone())
    );
    assert_eq!(
        ask(&["database_read"], json!({"read_only": false})).await,
        (403, both.clone())
    );
    assert_eq!(ask(&["database_write"], json!({})).await, (403, both));
    assert_eq!(
        ask(&["database_write"], json!({"read_only": true})).await,
        (403, Some("database_read".to_owned()))
    );
    assert_eq!(
        ask(&["database_read", "database_write"], json!({})).await,
        (400, None)
    );
    // A body over its bound is decided as if it asked for everything.
    let (token, _) = scoped(
        &app,
        &app.owner,
        draft(projects(&[&app.home.project]), &["database_read"]),
    )
    .await;
    let huge = || format!(r#"{{"read_only":true,"query":"{}"}}"#, "x".repeat(2 << 20));
    app.post(&path)
        .token(&token)
        .body(huge())
        .send()
        .await
        .expect(403);
    app.post(&path)
        .as_(&app.owner)
        .body(huge())
        .send()
        .await
        .expect(413);
}

#[tokio::test]
async fn revealed_keys_and_branches_with_data_need_more() {
    let app = TestApp::new().await;
    let (token, _) = scoped(
        &app,
        &app.owner,
        draft(
            projects(&[&app.home.project]),
            &["api_gateway_keys_read", "branching_development_create"],
        ),
    )
    .await;
    app.get(&app.at("/api-keys"))
        .token(&token)
        .send()
        .await
        .expect(200);
    app.get(&app.at("/api-keys?reveal=false"))
        .token(&token)
        .send()
        .await
        .expect(200);
    let refused = app
        .get(&app.at("/api-keys?reveal=true"))
        .token(&token)
        .send()
        .await
        .expect(403);
    assert_eq!(
        refused.message(),
        "Missing required permission(s): api_gateway_keys_secret_read"
    );
    let branches = app.at("/branches");
    app.post(&branches)
        .token(&token)
        .json(&json!({"branch_name": "x"}))
        .send()
        .await
        .expect(501);
    app.post(&branches)
        .token(&token)
        .json(&json!({"branch_name": "x", "with_data": true}))
        .send()
        .await
        .expect(403);
    let v2 = branches.replace("/v1/", "/v2/");
    let body = |with_data: bool| json!({"data": {"type": "branch", "attributes": {"name": "x", "with_data": with_data}}});
    app.post(&v2)
        .token(&token)
        .json(&body(false))
        .send()
        .await
        .expect(501);
    let refused = app
        .post(&v2)
        .token(&token)
        .json(&body(true))
        .send()
        .await
        .expect(403)
        .json();
    assert_eq!(refused["error"]["code"], "forbidden");
    assert_eq!(
        refused["error"]["missing_permissions"],
        json!(["branching_production_create"])
    );
}

#[tokio::test]
async fn a_token_holds_in_its_time_and_from_its_networks() {
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
async fn a_scoped_token_is_listed_revoked_and_never_changed() {
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
    // Nor can half of one be written.
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
async fn a_draft_names_only_what_is_its_owners() {
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

#[test]
fn a_reach_has_the_name_that_is_stored() {
    for (reach, name) in [
        (Reach::Account, "account"),
        (Reach::Organizations(Vec::new()), "organizations"),
        (
            Reach::Projects {
                organization: gantry::base::ids::OrganizationId(1),
                projects: Vec::new(),
            },
            "projects",
        ),
    ] {
        assert_eq!(reach.name(), name);
    }
}

#[tokio::test]
async fn ones_own_tokens_are_made_shown_and_revoked_over_the_api() {
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
    // Not another's, and not by a scoped token, even its own.
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
async fn a_wrong_request_for_a_token_names_the_field() {
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
async fn a_simulation_says_what_would_be_and_why() {
    let app = TestApp::new().await;
    let (_, made) = scoped(
        &app,
        &app.developer,
        draft(projects(&[&app.home.project]), &["project_admin_read"]),
    )
    .await;
    let simulate = async |request: Value| {
        let answer = app
            .post("/v1/tokens/simulate")
            .as_(&app.developer)
            .json(&request)
            .send()
            .await
            .expect(200)
            .json();
        (answer["rule"].as_str().unwrap().to_owned(), answer)
    };
    let by_id =
        |method: &str, path: String| json!({"token_id": made.0, "method": method, "path": path});
    let (rule, answer) = simulate(by_id("GET", app.at(""))).await;
    assert_eq!(rule, "permissions");
    assert_eq!(
        answer,
        json!({
            "allowed": true,
            "rule": "permissions",
            "operation": "v1-get-project",
            "accepted_permissions": [["project_admin_read"]],
            "missing_permissions": [],
            "role": "developer",
        })
    );
    let (rule, answer) = simulate(by_id("GET", app.at("/api-keys?reveal=true"))).await;
    assert_eq!(
        (&*rule, &answer["status"], &answer["case"]),
        ("missing_permissions", &json!(403), &json!("`reveal=true`"))
    );
    assert_eq!(
        answer["missing_permissions"],
        json!(["api_gateway_keys_read", "api_gateway_keys_secret_read"])
    );
    assert_eq!(
        answer["message"],
        "Missing required permission(s): api_gateway_keys_read, api_gateway_keys_secret_read"
    );
    for (method, path, expected) in [
        ("DELETE", app.at(""), "role"),
        (
            "GET",
            format!("/v1/projects/{}", app.foreign.project),
            "not_visible",
        ),
        ("GET", "/v1/nonsense".to_owned(), "unknown_route"),
        ("GET", "/v1/profile".to_owned(), "account_only"),
        ("GET", "/v1/tokens".to_owned(), "unscoped_only"),
        ("GET", "/v1/compatibility".to_owned(), "public"),
        (
            "GET",
            "/v1/projects/available-regions".to_owned(),
            "any_token",
        ),
    ] {
        let (rule, answer) = simulate(by_id(method, path.clone())).await;
        assert_eq!(rule, expected, "{method} {path}");
        assert_eq!(
            answer["allowed"],
            matches!(expected, "public" | "any_token"),
            "{method} {path}"
        );
    }

    let body = |read_only: bool| {
        json!({
            "project_refs": [app.home.project], "permissions": ["database_read"],
            "method": "POST", "path": app.at("/database/query"), "body": {"read_only": read_only},
        })
    };
    assert_eq!(
        (simulate(body(true)).await.0, simulate(body(false)).await.0),
        ("permissions".to_owned(), "missing_permissions".to_owned())
    );
    let mut elsewhere = body(true);
    (elsewhere["networks"], elsewhere["address"]) = (json!(["192.0.2.0/24"]), json!("192.0.3.1"));
    assert_eq!(simulate(elsewhere.clone()).await.0, "credential");
    elsewhere["address"] = json!("192.0.2.1");
    assert_eq!(simulate(elsewhere).await.0, "permissions");

    let another =
        json!({"token_id": app.owner.token_id.0, "method": "GET", "path": "/v1/projects"});
    app.post("/v1/tokens/simulate")
        .as_(&app.developer)
        .json(&another)
        .send()
        .await
        .expect(404);
    app.advance(7 * 86_400);
    assert_eq!(
        simulate(by_id("GET", app.at(""))).await.0,
        "credential",
        "it has expired"
    );
}

/// Waits until this many rows of use are written.
async fn noted(app: &TestApp, rows: i64) {
    let written = async {
        while app
            .app
            .db
            .query("select count(*) from token_calls", &[])
            .await
            .unwrap()[0]
            .get::<_, i64>(0)
            < rows
        {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, written)
        .await
        .expect("what was called is not written");
}

#[tokio::test]
async fn the_smallest_token_that_would_have_done_is_proposed() {
    let mut app = TestApp::new().await;
    let wide = draft(
        projects(&[&app.home.project]),
        &[
            "project_admin_read",
            "database_read",
            "api_gateway_keys_read",
            "storage_read",
        ],
    );
    let (token, id) = scoped(&app, &app.owner, wide).await;
    app.get(&app.at("")).token(&token).send().await.expect(200);
    app.get(&app.at("")).token(&token).send().await.expect(200);
    app.get(&app.at("/api-keys"))
        .token(&token)
        .send()
        .await
        .expect(200);
    // What was refused is no use.
    app.get(&app.at("/config/auth"))
        .token(&token)
        .send()
        .await
        .expect(403);
    app.get("/v1/profile")
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    // Nothing is written before there is somebody to write it, and then all of it at once.
    app.node.start();
    noted(&app, 3).await;

    let usage = app
        .get(&format!("/v1/tokens/{}/usage", id.0))
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(
        usage,
        json!({
            "days": 30,
            "operations": [
                {
                    "operation": "v1-get-project", "days": 1, "last_used_on": "2026-11-21",
                    "accepted_permissions": [["project_admin_read"]],
                },
                {
                    "operation": "v1-get-project-api-keys", "case": "otherwise", "days": 1, "last_used_on": "2026-11-21",
                    "accepted_permissions": [["api_gateway_keys_read"]],
                },
            ],
            "permissions": ["api_gateway_keys_read", "project_admin_read"],
            "unused_permissions": ["database_read", "storage_read"],
            "needs_account": false,
        })
    );
    let classic = app
        .get(&format!("/v1/tokens/{}/usage", app.owner.token_id.0))
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(
        (
            &classic["needs_account"],
            &classic["permissions"],
            &classic["unused_permissions"]
        ),
        (&json!(true), &json!([]), &json!([]))
    );

    let path = format!("/v1/tokens/{}/usage?days=1", id.0);
    app.advance(86_400);
    assert_eq!(
        app.get(&path)
            .as_(&app.owner)
            .send()
            .await
            .expect(200)
            .json()["operations"],
        json!([]),
        "yesterday's"
    );
    app.get(&path).as_(&app.developer).send().await.expect(404);
    app.get(&path.replace("=1", "=91"))
        .as_(&app.owner)
        .send()
        .await
        .expect(400);
}

#[tokio::test]
async fn a_user_has_so_many_live_tokens_and_no_more() {
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
