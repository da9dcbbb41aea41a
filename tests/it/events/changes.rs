//! Each operation makes its events, in order.

use gantry::platform::events::payloads::StatusChanged;
use serde_json::{Value, json};

use super::{assert_chains, names};
use crate::support::TestApp;

/// Returns the payload of the last event of a type.
async fn last(app: &TestApp, name: &str) -> Value {
    let sql = "select payload from events where type = $1 order by at desc, number desc limit 1";
    let rows = app.app.db.query(sql, &[&name]).await.unwrap();
    serde_json::from_str(rows[0].get(0)).unwrap()
}

/// Sets the status as the reconciler does, without its event.
async fn put(app: &TestApp, status: &str) {
    let sql = "update projects set status = $2, announced_status = $2,
                   desired = case when $2 = 'INACTIVE' then 'paused' else 'active' end where ref = $1";
    let project = app.home.project.as_str();
    app.app.db.query(sql, &[&project, &status]).await.unwrap();
}

async fn post(app: &TestApp, path: &str, body: &Value) -> Value {
    let answer = app.post(path).as_(&app.owner).json(body).send().await;
    assert!(answer.status.is_success(), "{path}: {answer:?}");
    if answer.body.is_empty() {
        return Value::Null;
    }
    answer.json()
}

#[tokio::test]
async fn commands_to_a_project_make_their_event_and_the_change_of_status() {
    let app = TestApp::new().await;
    let changed = "v1.project.status.changed";
    for (from, command, name, to) in [
        ("ACTIVE_HEALTHY", "pause", "v1.project.paused", "PAUSING"),
        ("INACTIVE", "restore", "v1.project.restored", "RESTORING"),
        (
            "RESTORING",
            "restore/cancel",
            "v1.project.paused",
            "PAUSING",
        ),
        (
            "ACTIVE_HEALTHY",
            "restart",
            "v1.project.restarted",
            "RESTARTING",
        ),
    ] {
        put(&app, from).await;
        let before = names(&app).await.len();
        post(&app, &app.at(&format!("/{command}")), &json!({})).await;
        assert_eq!(names(&app).await[before..], [name, changed], "{command}");
        let expected = StatusChanged {
            previous_status: from.to_owned(),
            current_status: to.to_owned(),
        };
        let expected = serde_json::to_value(expected).unwrap();
        assert_eq!(last(&app, changed).await, expected, "{command}");
    }
    assert_eq!(
        last(&app, "v1.project.paused").await,
        json!({"reason": "api_request"})
    );
    put(&app, "ACTIVE_HEALTHY").await;
    let before = names(&app).await.len();
    let removed = app.delete(&app.at("")).as_(&app.owner).send().await;
    removed.expect(200);
    assert_eq!(names(&app).await[before..], ["v1.project.removed", changed]);
}

#[tokio::test]
async fn changes_of_members_make_their_events() {
    let app = TestApp::new().await;
    let slug = &app.home.slug;
    let guest = &app.stranger;
    let invitations = format!("/v2/organizations/{slug}/members/invitations");
    let invite = |email: &str| {
        let attributes = json!({"email": email, "role": "read-only"});
        json!({"data": [{"type": "organization_invitation", "attributes": attributes}]})
    };
    post(&app, &invitations, &invite("ada@example.com")).await;
    let attributes = json!({"email": "ada@example.com"});
    let body = json!({"data": [{"type": "organization_invitation", "attributes": attributes}]});
    let revoked = app
        .delete(&invitations)
        .as_(&app.owner)
        .json(&body)
        .send()
        .await;
    revoked.expect(200);
    let invited = post(&app, &invitations, &invite("stan@example.com")).await;
    let token = &invited["data"][0]["attributes"]["token"];
    let accepted = app.post("/v1/invitations/accept").as_(guest);
    let accepted = accepted.json(&json!({"token": token})).send().await;
    assert!(accepted.status.is_success(), "{accepted:?}");
    let roles = format!("/v2/organizations/{slug}/members/{}/roles", guest.gotrue_id);
    let assign = async |role: &str, projects: Option<Vec<&str>>| {
        let mut attributes = json!({"role": role});
        if let Some(projects) = projects {
            attributes["projects"] = projects.iter().map(|it| json!({"ref": it})).collect();
        }
        let body = json!({"data": {"type": "organization_member_role", "attributes": attributes}});
        let assigned = app.patch(&roles).as_(&app.owner).json(&body).send().await;
        assert!(assigned.status.is_success(), "{assigned:?}");
    };
    assign("developer", None).await;
    // The same role again is no change.
    assign("developer", None).await;
    assign("administrator", Some(vec![app.home.project.as_str()])).await;
    assign("no-access", None).await;
    let member = format!("/v2/organizations/{slug}/members/{}", guest.gotrue_id);
    app.delete(&member).as_(&app.owner).send().await.expect(200);
    let expected = [
        "v1.organization.member.invitation.created",
        "v1.organization.member.invitation.canceled",
        "v1.organization.member.invitation.created",
        "v1.organization.member.added",
        "v1.organization.member.role.updated",
        "v1.organization.member.role.assigned",
        "v1.organization.member.role.removed",
        "v1.organization.member.removed",
    ];
    assert_eq!(names(&app).await, expected);
    let assigned = last(&app, "v1.organization.member.role.assigned").await;
    let role = json!({"name": "Administrator", "projects": [{"ref": app.home.project}]});
    assert_eq!(assigned["member"]["role"], role);
    let removed = last(&app, "v1.organization.member.removed").await;
    let user = json!(guest.gotrue_id);
    assert_eq!(
        (&removed["member"]["user_id"], removed["member"].get("role")),
        (&user, None)
    );
    let actors = "select count(*) from events where organization_id = $1 and actor = $2";
    let params: [&(dyn tokio_postgres::types::ToSql + Sync); 2] =
        [&app.home.id.0, &guest.gotrue_id];
    let rows = app.app.db.query(actors, &params).await.unwrap();
    assert_eq!(rows[0].get::<_, i64>(0), 1, "the guest accepted");
}

#[tokio::test]
async fn token_is_told_to_the_organizations_that_it_reaches() {
    let app = TestApp::new().await;
    let second = app.tenant("Second", &app.owner).await;
    let body = json!({
        "name": "one", "organization_slugs": [second.slug], "permissions": ["organization_admin_read"],
        "expires_in_days": 1,
    });
    post(&app, "/v1/tokens", &body).await;
    let sql = "select organization_id, payload from events where type = 'gantry.token.created'
               order by organization_id, number";
    let rows = app.app.db.query(sql, &[]).await.unwrap();
    let told: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(told, [second.id.0]);
    let text = last(&app, "gantry.token.created").await.to_string();
    assert!(!text.contains("sbp_"), "{text}");
}

#[tokio::test]
async fn branches_make_events_about_their_parent() {
    let app = TestApp::new().await;
    let body = json!({"branch_name": "feature", "git_branch": "f"});
    let branch = post(&app, &app.at("/branches"), &body).await;
    let own = branch["project_ref"].as_str().unwrap();
    let path = format!("/v1/branches/{own}");
    let renamed = app
        .patch(&path)
        .as_(&app.owner)
        .json(&json!({"branch_name": "renamed"}));
    renamed.send().await.expect(200);
    let later = app.delete(&format!("{path}?force=false")).as_(&app.owner);
    later.send().await.expect(200);
    app.delete(&path).as_(&app.owner).send().await.expect(200);
    let expected = [
        "v1.project.branch.created",
        "v1.project.branch.created",
        "v1.project.branch.updated",
        "v1.project.branch.updated",
        "v1.project.branch.removed",
        "v1.project.status.changed",
    ];
    assert_eq!(names(&app).await, expected);
    let sql =
        "select payload from events where type = 'v1.project.branch.removed' and project_ref = $1";
    let rows = app
        .app
        .db
        .query(sql, &[&app.home.project.as_str()])
        .await
        .unwrap();
    let payload: Value = serde_json::from_str(rows[0].get(0)).unwrap();
    let branch = json!({"ref": own, "name": "renamed", "git_branch": "f", "is_default": false});
    assert_eq!(payload, json!({"branch": branch}));
    assert_chains(&app.app.db).await;
}

/// Events of a day in the life of a real project.
#[tokio::test]
async fn real_project_has_its_changes_of_status_in_order() {
    use gantry::control::projects::Status;
    let app = TestApp::running().await;
    let project = app.real_project().await;
    for (command, status) in [
        ("restart", Status::ActiveHealthy),
        ("pause", Status::Inactive),
        ("restore", Status::ActiveHealthy),
    ] {
        post(
            &app,
            &format!("/v1/projects/{project}/{command}"),
            &json!({}),
        )
        .await;
        app.until(&project, status).await;
    }
    let path = format!("/v1/projects/{project}");
    app.delete(&path).as_(&app.owner).send().await.expect(200);
    app.until(&project, Status::Removed).await;
    assert_chains(&app.app.db).await;
    let sql = "select payload from events where type = 'v1.project.status.changed'
               and project_ref = $1 order by number";
    let rows = app.app.db.query(sql, &[&project.as_str()]).await.unwrap();
    let statuses: Vec<String> = rows
        .iter()
        .map(|row| {
            let payload: Value = serde_json::from_str(row.get(0)).unwrap();
            payload["current_status"].as_str().unwrap().to_owned()
        })
        .collect();
    let expected = [
        "ACTIVE_HEALTHY",
        "RESTARTING",
        "ACTIVE_HEALTHY",
        "PAUSING",
        "INACTIVE",
        "RESTORING",
        "ACTIVE_HEALTHY",
        "GOING_DOWN",
        "REMOVED",
    ];
    assert_eq!(statuses, expected);
}
