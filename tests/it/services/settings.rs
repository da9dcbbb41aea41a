//! The settings of the Data API, without a running one.

use serde_json::json;

use crate::support::TestApp;

#[tokio::test]
async fn settings_are_stored_and_secret_is_for_developers() {
    let app = TestApp::new().await;
    let path = app.at("/postgrest");
    let get = async |actor| app.get(&path).as_(actor).send().await.expect(200).json();
    let defaults = json!({
        "db_schema": "public", "max_rows": 1000, "db_extra_search_path": "public, extensions", "db_pool": null,
        "db_pool_acquisition_timeout": 10, "db_pool_max_lifetime": 1800, "db_pool_max_idletime": 30,
    });
    assert_eq!(get(&app.read_only).await, defaults);
    let seen = get(&app.developer).await;
    assert_eq!(seen["jwt_secret"].as_str().unwrap().len(), 64);
    let changed = app
        .patch(&path)
        .as_(&app.administrator)
        .json(&json!({"db_schema": "public, api", "max_rows": 0, "db_pool": 3}))
        .send()
        .await
        .expect(200)
        .json();
    let expected = json!({
        "db_schema": "public, api", "max_rows": 0, "db_extra_search_path": "public, extensions", "db_pool": 3,
        "db_pool_acquisition_timeout": 10, "db_pool_max_lifetime": 1800, "db_pool_max_idletime": 30,
    });
    assert_eq!(changed, expected);
    assert_eq!(get(&app.read_only).await, expected);
    // The document of all settings says the same.
    let path_of_all = format!("/v2/projects/{}/config", app.home.project);
    let all = app.get(&path_of_all).as_(&app.owner).send().await;
    assert_eq!(
        all.expect(200).json()["data"]["attributes"]["api"],
        expected
    );
    let body = json!({"max_rows": 1});
    app.patch(&path)
        .as_(&app.developer)
        .json(&body)
        .send()
        .await
        .expect(403);
    app.patch(&path)
        .as_(&app.stranger)
        .json(&body)
        .send()
        .await
        .expect(404);
    app.get(&path).as_(&app.stranger).send().await.expect(404);
}

#[tokio::test]
async fn invalid_settings_are_rejected_and_change_nothing() {
    let app = TestApp::new().await;
    let path = app.at("/postgrest");
    for body in [
        json!({"max_rows": -1}),
        json!({"max_rows": 1_000_001}),
        json!({"db_pool": 1001}),
        json!({"db_pool": null}),
        json!({"db_schema": "a\nb"}),
        json!({"db_schema": "a".repeat(64)}),
        json!({"db_extra_search_path": 1}),
    ] {
        let call = app.patch(&path).as_(&app.owner).json(&body);
        call.send().await.expect(400);
    }
    let seen = app
        .get(&path)
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(
        (&seen["max_rows"], &seen["db_pool"]),
        (&json!(1000), &json!(null))
    );
}

#[tokio::test]
async fn concurrent_changes_are_stored_one_after_the_other() {
    let app = TestApp::new().await;
    let path = app.at("/postgrest");
    let change = async |field: &str, value: u32| {
        let call = app.patch(&path).as_(&app.owner);
        call.json(&json!({field: value})).send().await.expect(200);
    };
    tokio::join!(change("max_rows", 7), change("db_pool", 8));
    let seen = app
        .get(&path)
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(
        (&seen["max_rows"], &seen["db_pool"]),
        (&json!(7), &json!(8))
    );
}

#[tokio::test]
async fn health_is_that_of_the_address_that_requests_reach() {
    let app = TestApp::new().await;
    let health = async |service: &str| {
        let path = app.at(&format!("/health?services={service}"));
        let call = app.get(&path).as_(&app.read_only);
        call.send().await.expect(200).json()[0].clone()
    };
    let none = health("auth").await;
    assert_eq!(none["status"], "UNHEALTHY");
    assert_eq!(none["error"], "this service is not run by this server");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let sql = "insert into project_upstreams (project_id, service, url) \
               select id, 'auth', $2 from projects where ref = $1";
    let project = app.home.project.as_str();
    app.app.db.query(sql, &[&project, &url]).await.unwrap();
    assert_eq!(health("auth").await["status"], "ACTIVE_HEALTHY");
    drop(listener);
    let away = health("auth").await;
    assert_eq!(away["status"], "UNHEALTHY");
    let why = away["error"].as_str().unwrap();
    assert!(why.contains("accepts no connections"), "{why}");
    assert_eq!(health("rest").await["status"], "UNHEALTHY");
}
