//! Members, roles and invitations, and their immediate effect on access.

use std::sync::Arc;

use gantry::{
    api::organizations::members,
    platform::{access::Role, notifications},
};
use gantry_base::ids::ProjectRef;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{Actor, TestApp, client::Answer, dawn, machine::Machine};

fn at(app: &TestApp, rest: &str) -> String {
    format!("/v2/organizations/{}/{rest}", app.home.slug)
}

async fn assign(
    app: &TestApp,
    by: &Actor,
    member: Uuid,
    role: &str,
    projects: Option<&[&ProjectRef]>,
) -> Answer {
    let mut attributes = json!({"role": role});
    if let Some(projects) = projects {
        attributes["projects"] = projects
            .iter()
            .map(|project| json!({"ref": project}))
            .collect();
    }
    let body = json!({"data": {"type": "organization_member_role", "attributes": attributes}});
    app.patch(&at(app, &format!("members/{member}/roles")))
        .as_(by)
        .json(&body)
        .send()
        .await
}

async fn invite(
    app: &TestApp,
    by: &Actor,
    email: &str,
    role: &str,
    projects: Option<&[&ProjectRef]>,
) -> Answer {
    let mut attributes = json!({"email": email, "role": role});
    if let Some(projects) = projects {
        attributes["projects"] = projects
            .iter()
            .map(|project| json!({"ref": project}))
            .collect();
    }
    let body = json!({"data": [{"type": "organization_invitation", "attributes": attributes}]});
    app.post(&at(app, "members/invitations"))
        .as_(by)
        .json(&body)
        .send()
        .await
}

fn secret(answer: Answer) -> String {
    answer.expect(201).json()["data"][0]["attributes"]["token"]
        .as_str()
        .unwrap()
        .to_owned()
}

async fn accept(app: &TestApp, who: &Actor, secret: &str) -> Answer {
    app.post("/v1/invitations/accept")
        .as_(who)
        .json(&json!({"token": secret}))
        .send()
        .await
}

#[tokio::test]
async fn list_members_paginates_in_both_directions() {
    let app = TestApp::new().await;
    let mut ids: Vec<_> = app
        .members()
        .map(|(actor, _)| actor.gotrue_id.to_string())
        .into();
    ids.sort();
    let page = async |path: &str| {
        let page = app
            .get(path)
            .as_(&app.read_only)
            .send()
            .await
            .expect(200)
            .json();
        let listed: Vec<_> = page["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|member| member["id"].as_str().unwrap().to_owned())
            .collect();
        (
            listed,
            page["links"]["prev"].as_str().map(str::to_owned),
            page["links"]["next"].as_str().map(str::to_owned),
        )
    };
    let (all, prev, next) = page(&at(&app, "members")).await;
    assert_eq!((&all, prev, next), (&ids, None, None));
    let (first, prev, next) = page(&at(&app, "members?page[size]=2")).await;
    assert_eq!((&first[..], prev), (&ids[..2], None));
    let (second, back, end) = page(&next.unwrap()).await;
    assert_eq!((&second[..], end), (&ids[2..], None));
    let (again, start, forth) = page(&back.unwrap()).await;
    assert_eq!((again, start), (first, None));
    assert_eq!(page(&forth.unwrap()).await.0, second);
    assert_eq!(
        page(&at(&app, "members?filter[primary_email]=DORA@example.com"))
            .await
            .0,
        [app.developer.gotrue_id.to_string()]
    );
    assert_eq!(
        page(&at(&app, "members?filter[username]=nobody")).await.0,
        [""; 0]
    );
    app.get(&at(&app, "members?page[size]=0"))
        .as_(&app.owner)
        .send()
        .await
        .expect(400);
    let roles = app
        .get(&at(&app, "roles"))
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json();
    let names: Vec<_> = roles["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|role| role["attributes"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["owner", "administrator", "developer", "read-only"]);
}

#[tokio::test]
async fn assign_project_role_raises_role_on_project_only() {
    let app = TestApp::new().await;
    let sibling = app.stub(app.home.id, "sibling").await;
    let (rhea, keys) = (app.read_only.gotrue_id, "/config/auth/signing-keys");
    let other = format!("/v1/projects/{sibling}{keys}");
    app.get(&app.at(keys))
        .as_(&app.read_only)
        .send()
        .await
        .expect(403);
    let given = assign(&app, &app.owner, rhea, "owner", Some(&[&app.home.project]))
        .await
        .expect(200)
        .json();
    let role = json!({"name": "owner", "scope": "project", "projects": [{"ref": app.home.project, "name": "stub"}]});
    assert_eq!(given["data"]["attributes"], role);
    app.get(&app.at(keys))
        .as_(&app.read_only)
        .send()
        .await
        .expect(200);
    app.get(&other).as_(&app.read_only).send().await.expect(403);
    // Operations that require an owner of the organization reject an owner of the project.
    app.post(&app.at("/claim-token"))
        .as_(&app.read_only)
        .json(&json!({}))
        .send()
        .await
        .expect(403);
    app.post(&app.at("/claim-token"))
        .as_(&app.owner)
        .json(&json!({}))
        .send()
        .await
        .expect(200);
    let listed = app
        .get(&at(&app, "members?filter[username]=rhea"))
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json();
    let organization = json!({"name": "read-only", "scope": "organization", "projects": []});
    assert_eq!(
        listed["data"][0]["attributes"]["roles"],
        json!([organization, role])
    );

    // A lower role on a project does not reduce the role in the organization.
    assign(
        &app,
        &app.owner,
        app.administrator.gotrue_id,
        "read-only",
        Some(&[&sibling]),
    )
    .await
    .expect(200);
    app.get(&other)
        .as_(&app.administrator)
        .send()
        .await
        .expect(200);
    assign(
        &app,
        &app.owner,
        rhea,
        "no-access",
        Some(&[&app.home.project]),
    )
    .await
    .expect(200);
    app.get(&app.at(keys))
        .as_(&app.read_only)
        .send()
        .await
        .expect(403);

    // With a role on a project only, the organization is visible with few details.
    assign(&app, &app.owner, rhea, "developer", Some(&[&sibling]))
        .await
        .expect(200);
    assign(&app, &app.owner, rhea, "no-access", None)
        .await
        .expect(200);
    app.get(&other).as_(&app.read_only).send().await.expect(200);
    app.get(&app.at(keys))
        .as_(&app.read_only)
        .send()
        .await
        .expect(403);
    app.get(&at(&app, "members"))
        .as_(&app.read_only)
        .send()
        .await
        .expect(403);

    let refused = assign(
        &app,
        &app.owner,
        rhea,
        "developer",
        Some(&[&app.foreign.project]),
    )
    .await
    .expect(400);
    assert_eq!(
        refused.message(),
        format!(
            "projects: there is no project {} in this organization",
            app.foreign.project
        )
    );
    assign(&app, &app.owner, app.stranger.gotrue_id, "owner", None)
        .await
        .expect(404);
    assign(&app, &app.administrator, rhea, "owner", None)
        .await
        .expect(403);
}

#[tokio::test]
async fn last_owner_cannot_be_removed() {
    let app = TestApp::new().await;
    let olga = app.owner.gotrue_id;
    let text = "An organization must have at least one owner";
    assert_eq!(
        assign(&app, &app.owner, olga, "developer", None)
            .await
            .expect(400)
            .message(),
        text
    );
    let path = at(&app, &format!("members/{olga}"));
    assert_eq!(
        app.delete(&path)
            .as_(&app.owner)
            .send()
            .await
            .expect(400)
            .message(),
        text
    );
    assign(&app, &app.owner, olga, "owner", None)
        .await
        .expect(200);
    // A role of owner on every project does not count as owner of the organization.
    assign(
        &app,
        &app.owner,
        app.developer.gotrue_id,
        "owner",
        Some(&[&app.home.project]),
    )
    .await
    .expect(200);
    app.delete(&path).as_(&app.owner).send().await.expect(400);
    assign(&app, &app.owner, app.administrator.gotrue_id, "owner", None)
        .await
        .expect(200);
    app.delete(&path).as_(&app.owner).send().await.expect(200);
    app.get(&at(&app, "members"))
        .as_(&app.owner)
        .send()
        .await
        .expect(404);
}

/// Two owners leave concurrently: exactly one of them succeeds.
#[tokio::test]
async fn concurrent_removal_keeps_one_owner() {
    let app = TestApp::new().await;
    let (db, home) = (&app.app.db, app.home.id);
    let (olga, adam) = (app.owner.user, app.administrator.user);
    for round in 0..20 {
        for owner in [olga, adam] {
            members::set(db, home, owner, Role::Owner, dawn(), None)
                .await
                .unwrap();
        }
        let left = if round % 2 == 0 {
            tokio::join!(
                members::remove(db, home, olga, dawn(), None),
                members::remove(db, home, adam, dawn(), None)
            )
        } else {
            tokio::join!(
                members::set(db, home, olga, Role::Developer, dawn(), None),
                members::remove(db, home, adam, dawn(), None)
            )
        };
        assert_ne!(left.0.is_ok(), left.1.is_ok(), "{left:?}");
    }
}

#[tokio::test]
async fn removed_member_is_rejected_on_every_node() {
    let mut app = TestApp::new().await;
    let mut second = app.another(2, Arc::new(Machine::bare()));
    app.node.start();
    second.start();
    notifications::settle(&app.app.db).await.unwrap();
    assign(
        &app,
        &app.owner,
        app.developer.gotrue_id,
        "administrator",
        Some(&[&app.home.project]),
    )
    .await
    .expect(200);
    for node in [&app.node, &second] {
        node.get(&app.at(""))
            .as_(&app.developer)
            .send()
            .await
            .expect(200);
    }
    app.delete(&at(&app, &format!("members/{}", app.developer.gotrue_id)))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    for node in [&app.node, &second] {
        node.get(&app.at(""))
            .as_(&app.developer)
            .send()
            .await
            .expect(404);
    }
    // A returning member has no roles on projects.
    members::set(
        &app.app.db,
        app.home.id,
        app.developer.user,
        Role::ReadOnly,
        dawn(),
        None,
    )
    .await
    .unwrap();
    notifications::settle(&app.app.db).await.unwrap();
    app.get(&app.at("/api-keys"))
        .as_(&app.developer)
        .send()
        .await
        .expect(403);
    app.delete(&at(&app, "members/x1"))
        .as_(&app.owner)
        .send()
        .await
        .expect(400);
}

#[tokio::test]
async fn invitation_is_single_use_and_expires() {
    let app = TestApp::new().await;
    let stan = "stan@example.com";
    let given = secret(
        invite(
            &app,
            &app.administrator,
            "Stan@Example.com",
            "developer",
            None,
        )
        .await,
    );
    let kept: String = app
        .app
        .db
        .query("select i::text from invitations i", &[])
        .await
        .unwrap()[0]
        .get(0);
    assert!(!kept.contains(&given), "{kept}");
    accept(&app, &app.developer, &given).await.expect(404);
    accept(
        &app,
        &app.stranger,
        "gantry_invite_0000000000000000000000000000000000000000",
    )
    .await
    .expect(404);
    assert_eq!(
        accept(&app, &app.stranger, &given).await.expect(200).json(),
        json!({"organization_slug": app.home.slug})
    );
    app.get(&app.at("/config/auth/signing-keys"))
        .as_(&app.stranger)
        .send()
        .await
        .expect(200);
    accept(&app, &app.stranger, &given).await.expect(404);
    let refused = invite(&app, &app.owner, stan, "developer", None)
        .await
        .expect(400);
    assert_eq!(
        refused.message(),
        "email: stan@example.com is a member already"
    );

    app.delete(&at(&app, &format!("members/{}", app.stranger.gotrue_id)))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    let first = secret(invite(&app, &app.owner, stan, "owner", None).await);
    let second = secret(
        invite(
            &app,
            &app.owner,
            stan,
            "no-access",
            Some(&[&app.home.project]),
        )
        .await
        .expect(201),
    );
    accept(&app, &app.stranger, &first).await.expect(404);
    app.advance(86_400);
    accept(&app, &app.stranger, &second).await.expect(404);
    let third = secret(
        invite(
            &app,
            &app.owner,
            stan,
            "administrator",
            Some(&[&app.home.project]),
        )
        .await,
    );
    app.advance(86_399);
    accept(&app, &app.stranger, &third).await.expect(200);
    app.get(&app.at("/config/auth/signing-keys"))
        .as_(&app.stranger)
        .send()
        .await
        .expect(200);
    app.get(&at(&app, "members"))
        .as_(&app.stranger)
        .send()
        .await
        .expect(403);
}

#[tokio::test]
async fn invite_above_own_role_is_rejected() {
    let app = TestApp::new().await;
    let stan = "stan@example.com";
    invite(&app, &app.administrator, stan, "owner", None)
        .await
        .expect(403);
    invite(
        &app,
        &app.administrator,
        stan,
        "owner",
        Some(&[&app.home.project]),
    )
    .await
    .expect(403);
    invite(&app, &app.developer, stan, "read-only", None)
        .await
        .expect(403);
    invite(&app, &app.owner, "nobody", "developer", None)
        .await
        .expect(400);
    invite(&app, &app.owner, stan, "king", None)
        .await
        .expect(400);

    let given = secret(invite(&app, &app.owner, stan, "owner", None).await);
    let take = |emails: &[&str]| -> Value {
        let resource = |email: &&str| json!({"type": "organization_invitation", "attributes": {"email": email}});
        json!({"data": emails.iter().map(resource).collect::<Vec<_>>()})
    };
    let body = take(&["STAN@example.com", "nobody@example.com"]);
    let path = at(&app, "members/invitations");
    let taken = app
        .delete(&path)
        .as_(&app.administrator)
        .json(&body)
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(taken, take(&[stan]));
    accept(&app, &app.stranger, &given).await.expect(404);
    assert_eq!(
        app.delete(&path)
            .as_(&app.owner)
            .json(&body)
            .send()
            .await
            .expect(200)
            .json(),
        json!({"data": []})
    );
}

#[tokio::test]
async fn open_invitations_are_visible_to_managers_and_recipient() {
    let app = TestApp::new().await;
    let path = format!("/v1/organizations/{}/invitations", app.home.slug);
    let listed = async |who: &Actor| app.get(&path).as_(who).send().await.expect(200).json();
    let look = async |who: &Actor, secret: &str| {
        app.post("/v1/invitations/look")
            .as_(who)
            .json(&json!({"token": secret}))
            .send()
            .await
    };
    assert_eq!(listed(&app.read_only).await, json!([]));
    let secret = secret(
        invite(
            &app,
            &app.administrator,
            "Stan@example.com",
            "developer",
            Some(&[&app.home.project]),
        )
        .await,
    );
    let mut open = listed(&app.read_only).await;
    let expires_at = open[0]["expires_at"].take();
    let projects = json!([{"ref": app.home.project, "name": "stub"}]);
    let created_at = open[0]["created_at"].clone();
    let expected = json!({"email": "Stan@example.com", "role": "developer", "projects": projects, "invited_by": "adam@example.com",
        "created_at": created_at, "expires_at": null});
    assert_eq!(open, json!([expected]));
    app.get(&path).as_(&app.stranger).send().await.expect(404);
    let offered = look(&app.stranger, &secret).await.expect(200).json();
    let expected = json!({"organization_slug": app.home.slug, "organization_name": "Home", "role": "developer", "projects": projects,
        "invited_by": "adam@example.com", "expires_at": expires_at});
    assert_eq!(offered, expected);
    look(&app.owner, &secret).await.expect(404);
    look(&app.stranger, "gantry_invite_0").await.expect(404);
    app.advance(24 * 3600);
    look(&app.stranger, &secret).await.expect(404);
    assert_eq!(listed(&app.owner).await, json!([]));
}
