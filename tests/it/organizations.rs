//! Operations on organizations, their members and their projects.

use serde_json::{Value, json};

use crate::support::TestApp;
use gantry::platform::tables::Table;

#[tokio::test]
async fn create_organization_makes_caller_owner() {
    let app = TestApp::new().await;
    let created = app
        .post("/v1/organizations")
        .as_(&app.owner)
        .json(&json!({"name": "Acme"}))
        .send()
        .await
        .expect(201);
    assert_eq!(
        created.redacted(),
        json!({"id": "[ref]", "slug": "[ref]", "name": "Acme"})
    );
    let created = created.json();
    assert_eq!(created["id"], created["slug"]);
    let path = format!("/v1/organizations/{}", created["slug"].as_str().unwrap());

    // The creator is owner at once: cached roles are invalidated.
    let detail = app.get(&path).as_(&app.owner).send().await.expect(200);
    assert_eq!(
        detail.json(),
        json!({"id": created["id"], "name": "Acme", "plan": "free", "opt_in_tags": [], "allowed_release_channels": ["ga"]})
    );
    let members = app
        .get(&format!("{path}/members"))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    assert_eq!(
        members.redacted(),
        json!([{"user_id": "[uuid]", "user_name": "olga", "email": "olga@example.com", "role_name": "Owner", "mfa_enabled": false, "avatar_url": null}])
    );
    assert_eq!(
        app.get(&format!("{path}/projects"))
            .as_(&app.owner)
            .send()
            .await
            .expect(200)
            .json()["projects"],
        json!([])
    );
}

#[tokio::test]
async fn list_organizations_returns_own_only() {
    let app = TestApp::new().await;
    let home = json!({"id": app.home.slug, "slug": app.home.slug, "name": "Home"});
    for (actor, _) in app.members() {
        assert_eq!(
            app.get("/v1/organizations")
                .as_(actor)
                .send()
                .await
                .expect(200)
                .json(),
            json!([home])
        );
    }
    let foreign = json!({"id": app.foreign.slug, "slug": app.foreign.slug, "name": "Foreign"});
    assert_eq!(
        app.get("/v1/organizations")
            .as_(&app.stranger)
            .send()
            .await
            .expect(200)
            .json(),
        json!([foreign])
    );

    app.post("/v1/organizations")
        .as_(&app.owner)
        .json(&json!({"name": "acme"}))
        .send()
        .await
        .expect(201);
    let names = app
        .get("/v1/organizations")
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json();
    let names: Vec<_> = names
        .as_array()
        .unwrap()
        .iter()
        .map(|organization| &organization["name"])
        .collect();
    assert_eq!(names, ["acme", "Home"], "by name, whatever the case");
}

#[tokio::test]
async fn list_organizations_as_new_user_is_empty() {
    let app = TestApp::new().await;
    let gone = app
        .post("/v1/organizations")
        .as_(&app.stranger)
        .json(&json!({"name": "x"}))
        .send()
        .await
        .expect(201)
        .json();
    app.app
        .db
        .query(
            "delete from members where user_id = $1",
            &[&app.stranger.user.0],
        )
        .await
        .unwrap();
    app.app.table_changed(Table::Members);
    for path in ["/v1/organizations", "/v1/projects"] {
        assert_eq!(
            app.get(path)
                .as_(&app.stranger)
                .send()
                .await
                .expect(200)
                .text(),
            "[]"
        );
    }
    app.get(&format!(
        "/v1/organizations/{}",
        gone["slug"].as_str().unwrap()
    ))
    .as_(&app.stranger)
    .send()
    .await
    .expect(404);
}

#[tokio::test]
async fn list_members_returns_roles() {
    let app = TestApp::new().await;
    let members = app
        .get(&format!("/v1/organizations/{}/members", app.home.slug))
        .as_(&app.read_only)
        .send()
        .await
        .expect(200)
        .json();
    let roles: Vec<_> = members
        .as_array()
        .unwrap()
        .iter()
        .map(|member| {
            (
                member["user_name"].as_str().unwrap(),
                member["role_name"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        roles,
        [
            ("adam", "Administrator"),
            ("dora", "Developer"),
            ("olga", "Owner"),
            ("rhea", "Read-only")
        ]
    );
    assert_eq!(members[2]["user_id"], json!(app.owner.gotrue_id));
}

#[tokio::test]
async fn create_organization_with_invalid_name_is_rejected() {
    let app = TestApp::new().await;
    for (body, message) in [
        (json!({}), "name: Required"),
        (json!({"name": ""}), "name: expected 1 to 256 characters"),
        (
            json!({"name": "é".repeat(257)}),
            "name: expected 1 to 256 characters",
        ),
        (
            json!({"name": 7}),
            "name: Invalid input: invalid type: integer `7`, expected a string",
        ),
        (
            json!({"name": "x", "colour": "red"}),
            "colour: is not a field of this request",
        ),
    ] {
        assert_eq!(
            app.post("/v1/organizations")
                .as_(&app.owner)
                .json(&body)
                .send()
                .await
                .expect(400)
                .message(),
            message
        );
    }
    app.post("/v1/organizations")
        .as_(&app.owner)
        .json(&json!({"name": "é".repeat(256)}))
        .send()
        .await
        .expect(201);
}

#[tokio::test]
async fn get_profile_returns_caller() {
    let app = TestApp::new().await;
    for (actor, name) in [(&app.owner, "olga"), (&app.stranger, "stan")] {
        let profile = app.get("/v1/profile").as_(actor).send().await.expect(200);
        assert_eq!(
            profile.json(),
            json!({"gotrue_id": actor.gotrue_id, "primary_email": format!("{name}@example.com"), "username": name})
        );
        assert_eq!(
            profile.header("x-gotrue-id"),
            Some(&*actor.gotrue_id.to_string())
        );
    }
}

// Lists an organization's projects.

async fn page(app: &TestApp, query: &str) -> Value {
    let path = format!("/v1/organizations/{}/projects{query}", app.home.slug);
    app.get(&path)
        .as_(&app.read_only)
        .send()
        .await
        .expect(200)
        .json()
}

fn names(page: &Value) -> Vec<&str> {
    page["projects"]
        .as_array()
        .unwrap()
        .iter()
        .map(|project| project["name"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn list_organization_projects_paginates() {
    let app = TestApp::new().await;
    for name in ["b", "A", "100%", "a_b"] {
        app.stub(app.home.id, name).await;
    }
    let whole = page(&app, "").await;
    assert_eq!(names(&whole), ["100%", "A", "a_b", "b", "stub"]);
    assert_eq!(
        whole["pagination"],
        json!({"count": 5, "limit": 100, "offset": 0})
    );
    assert_eq!(whole["projects"][4]["ref"], json!(app.home.project));

    let second = page(&app, "?limit=2&offset=2").await;
    assert_eq!(names(&second), ["a_b", "b"]);
    assert_eq!(
        second["pagination"],
        json!({"count": 5, "limit": 2, "offset": 2})
    );
    assert_eq!(names(&page(&app, "?offset=5").await), [""; 0]);

    assert_eq!(
        names(&page(&app, "?sort=name_desc").await),
        ["stub", "b", "a_b", "A", "100%"]
    );
    assert_eq!(
        names(&page(&app, "?sort=created_asc").await),
        ["stub", "b", "A", "100%", "a_b"]
    );
    assert_eq!(
        names(&page(&app, "?sort=created_desc").await),
        ["a_b", "100%", "A", "b", "stub"]
    );

    // Search text is matched literally, not as a pattern.
    assert_eq!(names(&page(&app, "?search=%25").await), ["100%"]);
    assert_eq!(names(&page(&app, "?search=_").await), ["a_b"]);
    assert_eq!(names(&page(&app, "?search=A_B").await), ["a_b"]);
    assert_eq!(
        names(&page(&app, &format!("?search={}", app.home.project)).await),
        ["stub"]
    );
    assert_eq!(
        page(&app, "?search=nothing").await["pagination"]["count"],
        0
    );

    assert_eq!(
        names(&page(&app, "?statuses=ACTIVE_HEALTHY,INACTIVE").await).len(),
        5
    );
    assert_eq!(names(&page(&app, "?statuses=INACTIVE").await), [""; 0]);
}

#[tokio::test]
async fn list_organization_projects_returns_database_states_of_the_contract() {
    let app = TestApp::new().await;
    let sql = "update projects set status = $2, desired = $3 where ref = $1";
    for (status, desired, database) in [
        ("COMING_UP", "active", "COMING_UP"),
        ("ACTIVE_HEALTHY", "active", "ACTIVE_HEALTHY"),
        ("ACTIVE_UNHEALTHY", "active", "ACTIVE_UNHEALTHY"),
        ("INIT_FAILED", "active", "INIT_FAILED"),
        ("PAUSING", "paused", "GOING_DOWN"),
        ("INACTIVE", "paused", "UNKNOWN"),
        ("PAUSE_FAILED", "paused", "GOING_DOWN"),
        ("RESTORING", "active", "RESTORING"),
        ("RESTORE_FAILED", "active", "ACTIVE_UNHEALTHY"),
        ("RESTARTING", "active", "RESTARTING"),
    ] {
        let reference = app.home.project.as_str();
        app.app
            .db
            .query(sql, &[&reference, &status, &desired])
            .await
            .unwrap();
        let project = &page(&app, "").await["projects"][0];
        assert_eq!(project["status"], status);
        assert_eq!(project["databases"][0]["status"], database, "{status}");
    }
}

#[tokio::test]
async fn list_organization_projects_with_invalid_page_is_rejected() {
    let app = TestApp::new().await;
    for (query, field) in [
        ("?limit=0", "limit"),
        ("?limit=101", "limit"),
        ("?limit=x", "limit"),
        ("?offset=-1", "offset"),
        ("?sort=age", "sort"),
    ] {
        let path = format!("/v1/organizations/{}/projects{query}", app.home.slug);
        let message = app
            .get(&path)
            .as_(&app.owner)
            .send()
            .await
            .expect(400)
            .message();
        assert!(
            message.starts_with(&format!("{field}: ")),
            "{query}: {message}"
        );
    }
}

// Lists an organization's projects in API v2.

async fn v2_page(app: &TestApp, path: &str) -> Value {
    let call = app.get(path).as_(&app.read_only);
    call.send().await.expect(200).json()
}

fn v2_path(app: &TestApp, rest: &str) -> String {
    format!("/v2/organizations/{}{rest}", app.home.slug)
}

fn v2_names(page: &Value) -> Vec<&str> {
    page["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|project| project["attributes"]["name"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn v2_list_organization_projects_returns_the_projects_of_v1() {
    let app = TestApp::new().await;
    let listed = v2_page(&app, &v2_path(&app, "/projects")).await;
    let first = &page(&app, "").await["projects"][0];
    assert_eq!(
        listed,
        json!({
            "data": [{
                "type": "project",
                "id": app.home.project,
                "attributes": {
                    "name": "stub",
                    "status": first["status"],
                    "cloud_provider": first["cloud_provider"],
                    "region": first["region"],
                    "inserted_at": first["inserted_at"],
                    "databases": first["databases"],
                },
            }],
            "links": {"prev": null, "next": null},
        })
    );
}

#[tokio::test]
async fn v2_list_organization_projects_paginates_sorts_and_searches() {
    let app = TestApp::new().await;
    for name in ["b", "A", "100%", "a_b"] {
        app.stub(app.home.id, name).await;
    }
    let all = ["stub", "b", "A", "100%", "a_b"];
    let whole = v2_page(&app, &v2_path(&app, "/projects")).await;
    assert_eq!(v2_names(&whole), all);
    let newest = v2_page(&app, &v2_path(&app, "/projects?sort=-inserted_at")).await;
    assert!(v2_names(&newest).iter().eq(all.iter().rev()), "{newest}");

    let first = v2_page(&app, &v2_path(&app, "/projects?page[size]=2")).await;
    assert_eq!(v2_names(&first), ["stub", "b"]);
    assert_eq!(first["links"]["prev"], Value::Null);
    // A removed project is no obstacle for its cursor.
    let second = &first["data"][1]["id"];
    let path = format!("/v1/projects/{}", second.as_str().unwrap());
    app.delete(&path).as_(&app.owner).send().await.expect(200);
    let next = v2_page(&app, first["links"]["next"].as_str().unwrap()).await;
    assert_eq!(v2_names(&next), ["A", "100%"]);
    let last = v2_page(&app, next["links"]["next"].as_str().unwrap()).await;
    assert_eq!(v2_names(&last), ["a_b"]);
    assert_eq!(last["links"]["next"], Value::Null);
    let back = v2_page(&app, last["links"]["prev"].as_str().unwrap()).await;
    assert_eq!(v2_names(&back), ["A", "100%"]);

    // Search text is matched literally, also in the following pages.
    let found = v2_page(&app, &v2_path(&app, "/projects?search=A&page[size]=1")).await;
    assert_eq!(v2_names(&found), ["A"]);
    let found = v2_page(&app, found["links"]["next"].as_str().unwrap()).await;
    assert_eq!(v2_names(&found), ["a_b"]);
    let found = v2_page(&app, &v2_path(&app, "/projects?search=%25")).await;
    assert_eq!(v2_names(&found), ["100%"]);
}

#[tokio::test]
async fn v2_list_organization_projects_with_invalid_page_is_rejected() {
    let app = TestApp::new().await;
    for (query, code, field) in [
        ("page[size]=0", "validation_failed", "page[size]"),
        ("page[size]=101", "validation_failed", "page[size]"),
        ("search=", "validation_failed", "search"),
        ("sort=name", "validation_failed", "sort"),
        ("page[after]=x", "pagination_cursor_invalid", "page[after]"),
        ("page[before]=", "pagination_cursor_invalid", "page[before]"),
    ] {
        let path = v2_path(&app, &format!("/projects?{query}"));
        let answer = app.get(&path).as_(&app.owner).send().await.expect(400);
        let message = answer.message();
        assert!(message.starts_with(&format!("{field}: ")), "{message}");
        assert_eq!(answer.json()["error"]["code"], code, "{query}");
    }
}

#[tokio::test]
async fn v2_lists_of_connections_and_maintenance_windows_are_empty() {
    let app = TestApp::new().await;
    let connections = v2_path(&app, "/integrations/github/connections");
    let windows = v2_path(&app, "/maintenance/windows");
    let empty = json!({"data": [], "links": {"prev": null, "next": null}});
    let project = &app.home.project;
    for query in [
        String::new(),
        format!("?page[size]=1&page[after]={project}&filter[project_ref]={project}"),
    ] {
        let listed = v2_page(&app, &format!("{connections}{query}")).await;
        assert_eq!(listed, empty);
    }
    for (query, code) in [
        ("page[size]=0", "validation_failed"),
        ("page[after]=x", "pagination_cursor_invalid"),
        ("filter[project_ref]=x", "validation_failed"),
    ] {
        let call = app.get(&format!("{connections}?{query}"));
        let answer = call.as_(&app.owner).send().await.expect(400);
        assert_eq!(answer.json()["error"]["code"], code, "{query}");
    }
    let listed = app.get(&windows).as_(&app.owner).send().await;
    assert_eq!(listed.expect(200).json(), json!({"data": []}));
    for path in [&connections, &windows] {
        app.get(path).as_(&app.stranger).send().await.expect(404);
        app.get(path).send().await.expect(401);
    }
}
