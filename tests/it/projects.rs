//! Projects through the API, without clusters: validation, responses and visibility. Tests with
//! real clusters are in `lifecycle`.

use serde_json::{Value, json};

use crate::support::TestApp;

/// The message with which a body is refused.
async fn refused(app: &TestApp, change: &[(&str, Value)]) -> String {
    let mut body = app.new_project("x");
    for (field, value) in change {
        body[*field] = value.clone();
    }
    app.post("/v1/projects")
        .as_(&app.owner)
        .json(&body)
        .send()
        .await
        .expect(400)
        .message()
}

#[tokio::test]
async fn create_project_as_administrator_returns_201() {
    let app = TestApp::new().await;
    let created = app
        .post("/v1/projects")
        .as_(&app.administrator)
        .json(&app.new_project("new"))
        .send()
        .await
        .expect(201);
    let body = json!({
        "id": "[ref]", "ref": "[ref]", "organization_id": "[ref]", "organization_slug": "[ref]",
        "name": "new", "region": "us-east-1", "created_at": "[time]", "status": "COMING_UP",
    });
    assert_eq!(created.redacted(), body);
    let created = created.json();
    assert_eq!(
        (&created["id"], &created["organization_id"]),
        (&created["ref"], &created["organization_slug"])
    );
    assert_eq!(created["organization_slug"], json!(app.home.slug));
    assert_eq!(created["created_at"], "2026-11-21T09:15:03.000Z");

    // Other members see it with the address of its future database.
    let path = format!("/v1/projects/{}", created["ref"].as_str().unwrap());
    let seen = app
        .get(&path)
        .as_(&app.read_only)
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(
        seen["database"]["host"],
        format!("db.{}.example.test", created["ref"].as_str().unwrap())
    );
    assert_eq!(seen["database"]["release_channel"], "ga");
    let version = seen["database"]["version"].as_str().unwrap();
    assert_eq!(
        seen["database"]["postgres_engine"],
        version.split('.').next().unwrap()
    );
    let mut bare = seen;
    bare.as_object_mut().unwrap().remove("database");
    assert_eq!(bare, created);
    assert_eq!(
        app.get("/v1/projects")
            .as_(&app.read_only)
            .send()
            .await
            .expect(200)
            .json()[1]["ref"],
        created["ref"]
    );
}

#[tokio::test]
async fn create_project_as_developer_is_rejected() {
    let app = TestApp::new().await;
    for actor in [&app.developer, &app.read_only] {
        app.post("/v1/projects")
            .as_(actor)
            .json(&app.new_project("x"))
            .send()
            .await
            .expect(403);
    }
    assert_eq!(
        app.get("/v1/projects")
            .as_(&app.owner)
            .send()
            .await
            .expect(200)
            .json()
            .as_array()
            .unwrap()
            .len(),
        1
    );
}

#[tokio::test]
async fn projects_are_hidden_from_strangers() {
    let app = TestApp::new().await;
    let listed = app
        .get("/v1/projects")
        .as_(&app.stranger)
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(
        listed
            .as_array()
            .unwrap()
            .iter()
            .map(|project| &project["ref"])
            .collect::<Vec<_>>(),
        [&json!(app.foreign.project)]
    );
    for call in [
        app.get(&app.at("")),
        app.patch(&app.at("")).json(&json!({"name": "mine"})),
        app.delete(&app.at("")),
        app.get(&app.at("/health?services=db")),
    ] {
        assert_eq!(
            call.as_(&app.stranger).send().await.expect(404).message(),
            "Not Found"
        );
    }
    app.get(&app.at(""))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
}

#[tokio::test]
async fn create_project_validates_each_field() {
    let app = TestApp::new().await;
    let engine = app.app.driver.engines().default_engine().major();
    for (field, value, message) in [
        ("name", json!(""), "name: expected 1 to 256 characters"),
        (
            "name",
            json!("é".repeat(257)),
            "name: expected 1 to 256 characters",
        ),
        (
            "name",
            Value::Null,
            "name: Invalid input: invalid type: null, expected a string",
        ),
        ("db_pass", json!(""), "db_pass: expected 1 to 256 bytes"),
        (
            "db_pass",
            json!("x".repeat(257)),
            "db_pass: expected 1 to 256 bytes",
        ),
        (
            "region",
            json!("atlantis-1"),
            "region: Need to use one of available regions.",
        ),
        (
            "region",
            json!("emea"),
            "region: Need to use one of available regions.",
        ),
        (
            "template_url",
            json!("https://example.com"),
            "template_url: is not supported by this server; apply a migration instead",
        ),
        (
            "high_availability",
            json!(true),
            "high_availability: is not available on this server",
        ),
        (
            "release_channel",
            json!("beta"),
            "release_channel: beta is not offered here; available: ga",
        ),
        (
            "postgres_engine",
            json!("9"),
            &format!("postgres_engine: 9 is not offered here; available: {engine}"),
        ),
        (
            "colour",
            json!("red"),
            "colour: is not a field of this request",
        ),
    ] {
        assert_eq!(refused(&app, &[(field, value)]).await, message);
    }
    let both = [
        ("region", json!("eu-west-1")),
        (
            "region_selection",
            json!({"type": "specific", "code": "eu-west-1"}),
        ),
    ];
    assert_eq!(
        refused(&app, &both).await,
        "region: give either region or region_selection"
    );
    let size = refused(&app, &[("desired_instance_size", json!("pico"))]).await;
    assert!(
        size.starts_with("desired_instance_size: Invalid input: unknown variant `pico`"),
        "{size}"
    );
}

#[tokio::test]
async fn secrets_are_absent_from_errors() {
    let app = TestApp::new().await;
    for body in [
        r#"{"db_pass": ["hunter2"]}"#,
        r#"{"db_pass": "hunter2""#,
        r#"{"db_pass": "hunter2", "name": 7}"#,
        r#"{"db_pass": 7, "hunter2": 1}"#,
    ] {
        let answer = app
            .post("/v1/projects")
            .as_(&app.owner)
            .body(body)
            .send()
            .await
            .expect(400);
        assert!(
            !answer.message().contains("hunter2") || body.contains("\"hunter2\": 1"),
            "{}",
            answer.message()
        );
    }
}

#[tokio::test]
async fn create_project_accepts_region_or_group() {
    let app = TestApp::new().await;
    for (n, (field, value, region)) in [
        ("plan", json!("free"), "us-east-1"),
        ("region", json!("eu-west-3"), "eu-west-3"),
        (
            "region_selection",
            json!({"type": "specific", "code": "ap-south-1"}),
            "ap-south-1",
        ),
        (
            "region_selection",
            json!({"type": "smartGroup", "code": "emea"}),
            "eu-central-1",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let mut body = app.new_project(&format!("p{n}"));
        body[field] = value;
        assert_eq!(
            app.post("/v1/projects")
                .as_(&app.owner)
                .json(&body)
                .send()
                .await
                .expect(201)
                .json()["region"],
            region
        );
    }
}

#[tokio::test]
async fn duplicate_project_name_is_rejected() {
    let app = TestApp::new().await;
    let first = app.create_project("same").await;
    let again = app
        .post("/v1/projects")
        .as_(&app.owner)
        .json(&app.new_project("same"))
        .send()
        .await
        .expect(400);
    assert_eq!(
        again.message(),
        "Project with name same already exists in this organization"
    );
    // Names are unique per organization, and a removed project releases its name.
    let second = app.tenant("Second", &app.owner).await;
    let elsewhere = json!({"organization_slug": second.slug, "name": "same", "db_pass": "x"});
    app.post("/v1/projects")
        .as_(&app.owner)
        .json(&elsewhere)
        .send()
        .await
        .expect(201);
    app.delete(&format!("/v1/projects/{first}"))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    app.post("/v1/projects")
        .as_(&app.owner)
        .json(&app.new_project("same"))
        .send()
        .await
        .expect(201);
}

#[tokio::test]
async fn concurrent_creations_with_one_name_create_one_project() {
    let app = TestApp::new().await;
    let calls = (0..6).map(|_| {
        app.post("/v1/projects")
            .as_(&app.owner)
            .json(&app.new_project("same"))
            .send()
    });
    let mut statuses: Vec<_> = futures_util::future::join_all(calls)
        .await
        .into_iter()
        .map(|answer| answer.status.as_u16())
        .collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [201, 400, 400, 400, 400, 400]);
}

#[tokio::test]
async fn rename_project_as_administrator_succeeds() {
    let app = TestApp::new().await;
    let rename = async |name: Value| {
        app.patch(&app.at(""))
            .as_(&app.administrator)
            .json(&json!({"name": name}))
            .send()
            .await
    };
    let renamed = rename(json!("better")).await.expect(200).json();
    assert_eq!(
        (&renamed["ref"], &renamed["name"]),
        (&json!(app.home.project), &json!("better"))
    );
    assert!(renamed["id"].is_i64());
    assert_eq!(
        app.get(&app.at(""))
            .as_(&app.owner)
            .send()
            .await
            .expect(200)
            .json()["name"],
        "better"
    );

    app.stub(app.home.id, "taken").await;
    assert_eq!(
        rename(json!("taken")).await.expect(400).message(),
        "Project with name taken already exists in this organization"
    );
    assert_eq!(
        rename(json!("better")).await.expect(200).json()["name"],
        "better",
        "to what it is called already"
    );
    for (name, message) in [
        (json!(""), "name: expected 1 to 256 characters"),
        (json!("x".repeat(257)), "name: expected 1 to 256 characters"),
    ] {
        assert_eq!(rename(name).await.expect(400).message(), message);
    }
    app.patch(&app.at(""))
        .as_(&app.developer)
        .json(&json!({"name": "no"}))
        .send()
        .await
        .expect(403);
}

#[tokio::test]
async fn removed_project_is_named_only_to_its_members() {
    let app = TestApp::new().await;
    app.delete(&app.at(""))
        .as_(&app.developer)
        .send()
        .await
        .expect(403);
    let removed = app
        .delete(&app.at(""))
        .as_(&app.administrator)
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(
        (&removed["ref"], &removed["name"]),
        (&json!(app.home.project), &json!("stub"))
    );
    let migration = json!({"query": "select 1"});
    for call in [
        app.get(&app.at("")),
        app.delete(&app.at("")),
        app.patch(&app.at("")).json(&json!({"name": "x"})),
        app.get(&app.at("/health?services=db")),
        app.get(&app.at("/database/context")),
        app.get(&app.at("/database/migrations")),
        app.post(&app.at("/database/migrations")).json(&migration),
        app.post(&app.at("/database/query")).json(&migration),
        app.post(&app.at("/database/query/read-only"))
            .json(&migration),
    ] {
        assert_eq!(
            call.as_(&app.owner).send().await.expect(400).message(),
            "Resource has been removed"
        );
    }
    assert_eq!(
        app.get(&app.at(""))
            .as_(&app.stranger)
            .send()
            .await
            .expect(404)
            .message(),
        "Not Found"
    );
    assert_eq!(
        app.get("/v1/projects")
            .as_(&app.owner)
            .send()
            .await
            .expect(200)
            .text(),
        "[]"
    );
    let page = app
        .get(&format!("/v1/organizations/{}/projects", app.home.slug))
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(
        page,
        json!({"projects": [], "pagination": {"count": 0, "limit": 100, "offset": 0}})
    );
}

#[tokio::test]
async fn list_regions_returns_all_regions() {
    let app = TestApp::new().await;
    let path = format!(
        "/v1/projects/available-regions?organization_slug={}",
        app.home.slug
    );
    let regions = app
        .get(&path)
        .as_(&app.read_only)
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(regions["all"]["specific"].as_array().unwrap().len(), 18);
    assert_eq!(
        regions["all"]["smartGroup"]
            .as_array()
            .unwrap()
            .iter()
            .map(|group| &group["code"])
            .collect::<Vec<_>>(),
        ["americas", "emea", "apac"]
    );
    let near = app
        .get(&format!("{path}&continent=EU"))
        .as_(&app.read_only)
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(near["recommendations"]["smartGroup"]["code"], "emea");
    let without = app
        .get("/v1/projects/available-regions")
        .as_(&app.owner)
        .send()
        .await
        .expect(400);
    assert_eq!(without.message(), "organization_slug: Required");
}

#[tokio::test]
async fn health_returns_requested_services() {
    let app = TestApp::new().await;
    let ask = async |query: &str| {
        app.get(&app.at(&format!("/health{query}")))
            .as_(&app.read_only)
            .send()
            .await
    };
    // No node operates this project.
    let health = ask("?services=db,auth").await.expect(200).json();
    assert_eq!(
        health[0],
        json!({"name": "db", "healthy": false, "status": "UNHEALTHY", "error": "Connection terminated due to connection timeout"})
    );
    assert_eq!(
        health[1],
        json!({"name": "auth", "healthy": false, "status": "UNHEALTHY", "error": "this service is not run by this server"})
    );
    for (query, field) in [
        ("", "services"),
        ("?services=", "services"),
        ("?services=kitchen", "services"),
        ("?services=db,db,db,db,db,db,db,db,db", "services"),
        ("?services=db&timeout_ms=10001", "timeout_ms"),
        ("?services=db&timeout_ms=-1", "timeout_ms"),
    ] {
        let message = ask(query).await.expect(400).message();
        assert!(
            message.starts_with(&format!("{field}: ")),
            "{query}: {message}"
        );
    }
}

#[tokio::test]
async fn review_of_network_restrictions_returns_those_in_force_and_rejects_nothing() {
    let app = TestApp::new().await;
    let lists = json!({"dbAllowedCidrs": ["192.0.2.0/24"], "dbAllowedCidrsV6": []});
    let apply = app.post(&app.at("/network-restrictions/apply"));
    apply.as_(&app.owner).json(&lists).send().await.expect(201);
    let path = app.at("/network-restrictions");
    let review = |action: &str| {
        let body = json!({"action": action, "requested_at": "2026-11-21T09:15:03Z"});
        let call = app.post(&format!("{path}/review")).as_(&app.owner);
        call.json(&body).send()
    };
    let in_force = app.get(&path).as_(&app.owner).send().await.expect(200);
    assert_eq!(review("apply").await.expect(201).json(), in_force.json());
    let message = review("reject").await.expect(400).message();
    assert!(
        message.starts_with("No network restrictions wait for a review"),
        "{message}"
    );
    review("delay").await.expect(400);
    let unchanged = app.get(&path).as_(&app.owner).send().await.expect(200);
    assert_eq!(unchanged.json(), in_force.json());
}
