//! Transfers of projects to other organizations, and their previews.

mod claims;

use std::sync::Arc;

use gantry::{
    api::organizations::members,
    platform::{access::Role, notifications, tables::Table},
};
use gantry_base::ids::{OrganizationId, ProjectRef};
use serde_json::{Value, json};

use crate::support::{Actor, Node, Tenant, TestApp, client::Answer, dawn, machine::Machine};

/// Two organizations: the owner of the first is a developer of the second.
struct Site {
    app: TestApp,
    target: Tenant,
    /// A project of the first one.
    project: ProjectRef,
}

impl Site {
    async fn new() -> Self {
        let app = TestApp::new().await;
        let project = app.stub(app.home.id, "moving").await;
        Self::with(app, project).await
    }

    async fn with(app: TestApp, project: ProjectRef) -> Self {
        let target = app.tenant("Target", &app.stranger).await;
        add(&app, target.id, &app.owner, Role::Developer).await;
        Self {
            app,
            target,
            project,
        }
    }

    async fn transfer(&self, actor: &Actor) -> Answer {
        let slug = self.target.slug.as_str();
        ask(&self.app, &self.project, "transfers", slug, actor).await
    }

    async fn preview(&self, actor: &Actor) -> Value {
        let slug = self.target.slug.as_str();
        self.preview_to(slug, actor).await
    }

    async fn preview_to(&self, slug: &str, actor: &Actor) -> Value {
        let answer = ask(&self.app, &self.project, "transfers/previews", slug, actor).await;
        let data = answer.expect(200).json()["data"].clone();
        assert_eq!(data["type"], "project_transfer_result");
        data["attributes"].clone()
    }

    /// Returns the keys of the errors of a preview.
    async fn errors(&self) -> Vec<String> {
        let preview = self.preview(&self.app.owner).await;
        let found = keys(&preview, "errors");
        assert_eq!(preview["valid"], found.is_empty());
        found
    }

    /// Requires that the preview has this error, and that the transfer is rejected for it.
    async fn expect_refusal(&self, key: &str) {
        assert_eq!(self.errors().await, [key]);
        let preview = self.preview(&self.app.owner).await;
        let refused = self.transfer(&self.app.owner).await.expect(400);
        let reason = preview["errors"][0]["message"].as_str().unwrap();
        assert!(refused.message().ends_with(reason), "{refused:?}");
        assert_eq!(
            organization_of(&self.app, &self.project).await,
            self.app.home.id
        );
    }

    async fn change(&self, sql: &'static str) {
        self.app
            .app
            .db
            .query(sql, &[&self.project.as_str()])
            .await
            .unwrap();
    }
}

async fn ask(app: &TestApp, project: &ProjectRef, rest: &str, slug: &str, actor: &Actor) -> Answer {
    let body = json!({"data": {
        "type": "project_transfer_input",
        "attributes": {"target_organization_slug": slug},
    }});
    app.post(&format!("/v2/projects/{project}/{rest}"))
        .as_(actor)
        .json(&body)
        .send()
        .await
}

async fn add(app: &TestApp, organization: OrganizationId, actor: &Actor, role: Role) {
    members::set(&app.app.db, organization, actor.user, role, dawn(), None)
        .await
        .unwrap();
    app.app.table_changed(Table::Members);
}

fn keys(preview: &Value, list: &str) -> Vec<String> {
    let findings = preview[list].as_array().unwrap().iter();
    let key = |finding: &Value| finding["key"].as_str().unwrap().to_owned();
    findings.map(key).collect()
}

async fn organization_of(app: &TestApp, project: &ProjectRef) -> OrganizationId {
    let sql = "select organization_id from projects where ref = $1";
    let rows = app.app.db.query(sql, &[&project.as_str()]).await.unwrap();
    OrganizationId(rows[0].get(0))
}

async fn status(node: &Node, path: &str, actor: &Actor) -> u16 {
    node.get(path).as_(actor).send().await.status.as_u16()
}

/// Returns the refs that a list of projects contains.
async fn listed(app: &TestApp, path: &str, actor: &Actor) -> Vec<String> {
    let answer = app.get(path).as_(actor).send().await.expect(200).json();
    let projects = if answer.is_array() {
        &answer
    } else {
        &answer["projects"]
    };
    let projects = projects.as_array().unwrap().iter();
    let reference = |project: &Value| project["ref"].as_str().unwrap().to_owned();
    projects.map(reference).collect()
}

/// Returns operation and change of the newest entry with a change of an organization's audit log.
async fn newest_entry(app: &TestApp, organization: OrganizationId) -> (String, Value) {
    let sql = "select operation, after::text from audit_entries where chain = $1 and after is not null order by number desc limit 1";
    let chain = format!("organization {organization}");
    let rows = app.app.db.query(sql, &[&chain]).await.unwrap();
    let after: &str = rows[0].get(1);
    (rows[0].get(0), serde_json::from_str(after).unwrap())
}

#[tokio::test]
async fn transfer_by_owner_keeps_data_and_keys_and_changes_the_members() {
    let app = TestApp::running().await;
    let project = app.real_project().await;
    let site = Site::with(app, project).await;
    let (app, project) = (&site.app, &site.project);
    let (path, home) = (format!("/v1/projects/{project}"), &app.home.slug);
    let query = async |actor: &Actor, sql: &str| {
        app.post(&format!("{path}/database/query"))
            .as_(actor)
            .json(&json!({"query": sql}))
            .send()
            .await
    };
    query(&app.owner, "create table kept as select 42 as n")
        .await
        .expect(201);
    let keys_path = format!("{path}/api-keys?reveal=true");
    let keys_before = app.get(&keys_path).as_(&app.owner).send().await.expect(200);
    // Fills the caches of the members and of lists.
    assert_eq!(status(app, &path, &app.developer).await, 200);
    assert_eq!(status(app, &path, &app.stranger).await, 404);
    let all = listed(app, "/v1/projects", &app.developer).await;
    assert!(all.contains(&project.to_string()));

    let preview = site.preview(&app.owner).await;
    assert_eq!(preview["valid"], true, "{preview}");
    assert_eq!(keys(&preview, "warnings"), ["credentials_stay_valid"]);
    assert_eq!(keys(&preview, "info"), ["audit_log_stays"]);
    assert_eq!(organization_of(app, project).await, app.home.id);
    let answer = site.transfer(&app.owner).await.expect(200);
    assert_eq!(answer.text(), "");

    assert_eq!(status(app, &path, &app.developer).await, 404);
    assert_eq!(query(&app.developer, "select 1").await.status, 404);
    let found = query(&app.stranger, "select n from kept").await;
    assert_eq!(found.expect(201).json(), json!([{"n": 42}]));
    let keys_after = app.get(&keys_path).as_(&app.owner).send().await.expect(200);
    assert_eq!(keys_after.json(), keys_before.json());
    for list in [
        "/v1/projects",
        &format!("/v1/organizations/{home}/projects"),
    ] {
        let all = listed(app, list, &app.developer).await;
        assert!(!all.contains(&project.to_string()), "{list}");
    }
    let theirs = format!("/v1/organizations/{}/projects", site.target.slug);
    for list in ["/v1/projects", &theirs] {
        let all = listed(app, list, &app.stranger).await;
        assert!(all.contains(&project.to_string()), "{list}");
    }
    let change = json!({"ref": project, "organization": site.target.slug, "branches": []});
    let operation = "v2-transfer-a-project".to_owned();
    let received = json!({"transferred_from": home, "project": change});
    let entries = [
        newest_entry(app, app.home.id).await,
        newest_entry(app, site.target.id).await,
    ];
    assert_eq!(
        entries,
        [(operation.clone(), change), (operation, received)]
    );
    // The former owner is a developer there, and is no owner any more.
    assert_eq!(status(app, &path, &app.owner).await, 200);
    site.transfer(&app.owner).await.expect(403);
    // Both organizations have the event.
    let sql = "select organization_id from events where type = $1 order by organization_id";
    let rows = app
        .app
        .db
        .query(sql, &[&"v1.project.transferred"])
        .await
        .unwrap();
    let mut both = [app.home.id.0, site.target.id.0];
    both.sort_unstable();
    let found: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(found, both);
}

#[tokio::test]
async fn transfer_is_effective_on_every_node_at_once() {
    let mut site = Site::new().await;
    let mut second = site.app.another(2, Arc::new(Machine::bare()));
    site.app.node.start();
    second.start();
    notifications::settle(&site.app.app.db).await.unwrap();
    let path = format!("/v1/projects/{}", site.project);
    assert_eq!(status(&second, &path, &site.app.developer).await, 200);
    assert_eq!(status(&second, &path, &site.app.stranger).await, 404);
    site.transfer(&site.app.owner).await.expect(200);
    assert_eq!(status(&second, &path, &site.app.developer).await, 404);
    assert_eq!(status(&second, &path, &site.app.stranger).await, 200);
    second.stop().await;
}

#[tokio::test]
async fn transfer_moves_branches_with_their_parent() {
    let site = Site::new().await;
    let app = &site.app;
    let made = app
        .post(&format!("/v1/projects/{}/branches", site.project))
        .as_(&app.owner)
        .json(&json!({"branch_name": "feature"}))
        .send()
        .await
        .expect(201)
        .json();
    let branch: ProjectRef = made["project_ref"].as_str().unwrap().parse().unwrap();
    site.expect_refusal("project_not_settled").await;
    let sql = "update projects set status = 'ACTIVE_HEALTHY' where ref = $1";
    app.app.db.query(sql, &[&branch.as_str()]).await.unwrap();
    let slug = site.target.slug.as_str();
    let refused = ask(app, &branch, "transfers", slug, &app.owner).await;
    assert!(refused.expect(400).message().contains("is a branch"));
    let preview = site.preview(&app.owner).await;
    assert_eq!(keys(&preview, "info"), ["branches_move", "audit_log_stays"]);
    site.transfer(&app.owner).await.expect(200);
    assert_eq!(organization_of(app, &branch).await, site.target.id);
    let path = format!("/v1/branches/{branch}");
    assert_eq!(status(app, &path, &app.developer).await, 404);
    assert_eq!(status(app, &path, &app.stranger).await, 200);
}

#[tokio::test]
async fn transfer_is_rejected_for_each_finding_of_the_preview() {
    let site = Site::new().await;
    let (app, project) = (&site.app, &site.project);
    assert_eq!(site.errors().await, [""; 0]);

    site.change("update projects set status = 'RESTORING' where ref = $1")
        .await;
    site.expect_refusal("project_not_settled").await;
    site.change("update projects set desired = 'paused', status = 'INACTIVE' where ref = $1")
        .await;
    assert_eq!(site.errors().await, [""; 0]);

    let namesake = app.stub(site.target.id, "moving").await;
    site.expect_refusal("project_name_taken").await;
    let sql = "update projects set name = 'other' where ref = $1";
    app.app.db.query(sql, &[&namesake.as_str()]).await.unwrap();

    site.change(
        "insert into project_roles (organization_id, user_id, project_id, role, created_at)
         select m.organization_id, m.user_id, p.id, 'owner', now() from projects p
         join members m on m.organization_id = p.organization_id
         where p.ref = $1 and m.role = 'developer'",
    )
    .await;
    site.expect_refusal("project_scoped_roles").await;
    site.change("delete from project_roles where $1 <> ''")
        .await;

    let drains = format!("/v2/projects/{project}/analytics/log-drains");
    let drain = json!({"data": {"type": "log_drain", "attributes": {
        "name": "x", "backend_type": "loki", "config": {"url": "http://127.0.0.1:9/"},
    }}});
    let created = app.post(&drains).as_(&app.owner).json(&drain);
    created.send().await.expect(201);
    site.expect_refusal("log_drains").await;
    site.change("delete from log_drains where $1 <> ''").await;

    site.change(
        "with hosts as (
             insert into projects (ref, organization_id, name, region, instance_size, engine,
             release_channel, node, desired, status, not_before, created_at, updated_at)
             select lpad(translate(n::text, '0123456789', 'abcdefghij'), 20, 'z'),
             t.organization_id, n::text, p.region, p.instance_size, p.engine, p.release_channel,
             p.node, 'paused', 'INACTIVE', now(), now(), now()
             from projects p, projects t, generate_series(1, 100) n
             where p.ref = $1 and t.name = 'other' returning id),
         named as (select id from hosts union all select id from projects where ref = $1)
         insert into custom_hostnames (project_id, id, host, state, not_before, created_at)
         select id, gen_random_uuid(), id || '.example', 'initiated', now(), now() from named",
    )
    .await;
    site.expect_refusal("custom_hostname_limit").await;
    site.change("delete from custom_hostnames where $1 <> ''")
        .await;

    site.transfer(&app.owner).await.expect(200);
}

#[tokio::test]
async fn transfer_requires_owner_of_the_source_and_member_of_the_target() {
    let site = Site::new().await;
    let app = &site.app;
    for (actor, role) in app.members() {
        let preview = site.preview(actor).await;
        let expected: &[&str] = match role {
            Role::Owner => &[],
            _ => &["source_owner_required", "target_membership_required"],
        };
        assert_eq!(keys(&preview, "errors"), expected, "{role}");
        if role != Role::Owner {
            site.transfer(actor).await.expect(403);
        }
    }
    site.transfer(&app.stranger).await.expect(404);
    // An organization of others looks as one that does not exist.
    let hidden = site.preview_to(app.foreign.slug.as_str(), &app.owner).await;
    let missing = site.preview_to("there-is-none", &app.owner).await;
    assert_eq!(hidden, missing);
    assert_eq!(keys(&hidden, "errors"), ["target_membership_required"]);
    for slug in [app.foreign.slug.as_str(), "there-is-none"] {
        let refused = ask(app, &site.project, "transfers", slug, &app.owner).await;
        assert_eq!(refused.expect(404).message(), "Organization not found");
    }
    let same = site.preview_to(app.home.slug.as_str(), &app.owner).await;
    assert_eq!(keys(&same, "errors"), ["target_organization_same"]);
    // A member without a role in the whole organization cannot receive a project there.
    add(app, site.target.id, &app.owner, Role::Member).await;
    site.expect_refusal("target_membership_required").await;
    add(app, site.target.id, &app.owner, Role::ReadOnly).await;
    site.transfer(&app.owner).await.expect(200);
}

#[tokio::test]
async fn concurrent_transfers_of_one_project_move_it_once() {
    let site = Site::new().await;
    let app = &site.app;
    let other = app.tenant("Other", &app.owner).await;
    let (first, second) = tokio::join!(
        site.transfer(&app.owner),
        ask(
            app,
            &site.project,
            "transfers",
            other.slug.as_str(),
            &app.owner
        )
    );
    let moved = organization_of(app, &site.project).await;
    let (won, lost, target) = if first.status == 200 {
        (first, second, site.target.id)
    } else {
        (second, first, other.id)
    };
    won.expect(200);
    assert_eq!(moved, target);
    // Waited for the row, or came after the transfer; or moved the project on as its new owner.
    assert!([200, 403, 404].contains(&lost.status.as_u16()), "{lost:?}");
}

#[tokio::test]
async fn opposite_transfers_of_two_projects_both_succeed() {
    let site = Site::new().await;
    let app = &site.app;
    add(app, site.target.id, &app.owner, Role::Owner).await;
    for round in 0..5 {
        let here = app.stub(app.home.id, &format!("here {round}")).await;
        let there = app.stub(site.target.id, &format!("there {round}")).await;
        let (slug, home) = (site.target.slug.as_str(), app.home.slug.as_str());
        let (first, second) = tokio::join!(
            ask(app, &here, "transfers", slug, &app.owner),
            ask(app, &there, "transfers", home, &app.owner)
        );
        first.expect(200);
        second.expect(200);
    }
}

#[tokio::test]
async fn transfer_and_removal_of_one_project_exclude_each_other() {
    let site = Site::new().await;
    let app = &site.app;
    for round in 0..10 {
        let project = app.stub(app.home.id, &format!("racing {round}")).await;
        let path = format!("/v1/projects/{project}");
        let slug = site.target.slug.as_str();
        let (moved, removed) = tokio::join!(
            ask(app, &project, "transfers", slug, &app.owner),
            app.delete(&path).as_(&app.owner).send()
        );
        let in_target = organization_of(app, &project).await == site.target.id;
        let statuses = (moved.status.as_u16(), removed.status.as_u16());
        // The owner is a developer of the target, a role that cannot delete projects.
        if in_target {
            assert!([(200, 404), (200, 403)].contains(&statuses), "{statuses:?}");
        } else {
            assert_eq!(statuses, (400, 200));
        }
    }
}

#[tokio::test]
async fn token_for_one_project_loses_it_by_the_transfer() {
    let site = Site::new().await;
    let app = &site.app;
    add(app, site.target.id, &app.developer, Role::Developer).await;
    let token = app
        .post("/v1/tokens")
        .as_(&app.developer)
        .json(&json!({
            "name": "one project",
            "permissions": ["project_admin_read"],
            "project_refs": [site.project],
        }))
        .send()
        .await
        .expect(201)
        .json();
    let token = token["token"].as_str().unwrap();
    let path = format!("/v1/projects/{}", site.project);
    app.get(&path).token(token).send().await.expect(200);
    // The token does not reach the target.
    let body = json!({"data": {
        "type": "project_transfer_input",
        "attributes": {"target_organization_slug": site.target.slug},
    }});
    let preview = app.post(&format!("/v2/projects/{}/transfers/previews", site.project));
    let preview = preview.token(token).json(&body).send().await.expect(200);
    let errors = keys(&preview.json()["data"]["attributes"], "errors");
    assert!(errors.contains(&"target_membership_required".to_owned()));
    site.transfer(&app.owner).await.expect(200);
    app.get(&path).token(token).send().await.expect(404);
    // The member reaches the project in both organizations.
    assert_eq!(status(app, &path, &app.developer).await, 200);
}

#[tokio::test]
async fn removed_project_is_not_transferred() {
    let site = Site::new().await;
    let app = &site.app;
    app.delete(&format!("/v1/projects/{}", site.project))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    for rest in ["transfers", "transfers/previews"] {
        let slug = site.target.slug.as_str();
        let answer = ask(app, &site.project, rest, slug, &app.owner).await;
        assert_eq!(answer.expect(400).message(), "Resource has been removed");
    }
}
