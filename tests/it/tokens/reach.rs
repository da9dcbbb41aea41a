//! Reach of scoped tokens.

use gantry::{
    api::tokens::scoped::TokenResources,
    platform::{access::Reach, tables::Table},
};
use serde_json::json;

use super::{draft, projects, refs, scoped};
use crate::support::TestApp;

/// Names out of reach and unknown names give equal responses: status, message, headers and
/// counters.
#[tokio::test]
async fn resources_out_of_reach_return_404() {
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
    // These projects are cached through another token of this owner.
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
    // The organization of a reached project is visible, but operations on it are rejected.
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
async fn moved_project_is_out_of_reach() {
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
async fn organization_token_reaches_later_projects() {
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

/// Lists are requested in all orders of callers, because a cached list must not be returned to
/// another caller.
#[tokio::test]
async fn lists_contain_reached_resources_only() {
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

#[test]
fn reach_names_match_the_stored_names() {
    for (reach, name) in [
        (Reach::Account, "account"),
        (Reach::Organizations(Vec::new()), "organizations"),
        (
            Reach::Projects {
                organization: gantry_base::ids::OrganizationId(1),
                projects: Vec::new(),
            },
            "projects",
        ),
    ] {
        assert_eq!(reach.name(), name);
    }
}
