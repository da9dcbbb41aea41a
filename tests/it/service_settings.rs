//! Settings of Storage and Realtime, the root key of pgsodium, and the whole configuration.

use serde_json::{Value, json};

use crate::support::TestApp;

async fn get(app: &TestApp, path: &str) -> Value {
    let answer = app.get(&app.at(path)).as_(&app.owner).send().await;
    answer.expect(200).json()
}

async fn send(app: &TestApp, method: &str, path: &str, body: Value, status: u16) -> Value {
    let call = app.request(method, &app.at(path)).as_(&app.owner);
    let answer = call.json(&body).send().await.expect(status);
    if answer.body.is_empty() {
        Value::Null
    } else {
        answer.json()
    }
}

#[tokio::test]
async fn storage_settings_are_merged_by_group() {
    let app = TestApp::new().await;
    let path = "/config/storage";
    let mut expected = get(&app, path).await;
    assert_eq!(expected["fileSizeLimit"], 52_428_800);
    let change = json!({"fileSizeLimit": 1000, "features": {"s3Protocol": {"enabled": false}}});
    send(&app, "PATCH", path, change, 200).await;
    expected["fileSizeLimit"] = json!(1000);
    expected["features"]["s3Protocol"]["enabled"] = json!(false);
    assert_eq!(get(&app, path).await, expected);
    let change = json!({"fileSizeLimit": 5, "features": {"vectorBuckets": {"enabled": true}}});
    let problem = send(&app, "PATCH", path, change, 400).await;
    let text =
        "features.vectorBuckets.maxBuckets: Invalid input: expected number, received undefined";
    assert_eq!(problem["message"], text);
    assert_eq!(get(&app, path).await, expected, "either all or nothing");
}

#[tokio::test]
async fn realtime_settings_are_null_until_they_are_set() {
    let app = TestApp::new().await;
    let path = "/config/realtime";
    let mut expected = get(&app, path).await;
    assert_eq!(expected["max_concurrent_users"], Value::Null);
    let change = json!({"max_concurrent_users": 500, "private_only": true});
    send(&app, "PATCH", path, change, 204).await;
    expected["max_concurrent_users"] = json!(500);
    expected["private_only"] = json!(true);
    assert_eq!(get(&app, path).await, expected);
    for (change, message) in [
        (
            json!({"max_joins_per_second": 5001}),
            "max_joins_per_second: Too big: expected number to be <=5000",
        ),
        (
            json!({"suspend": null}),
            "suspend: Invalid input: expected boolean, received null",
        ),
        (json!({"nonsense": 1}), "nonsense: Unrecognized key"),
    ] {
        let problem = send(&app, "PATCH", path, change, 400).await;
        assert_eq!(problem["message"], message);
    }
    assert_eq!(get(&app, path).await, expected);
    send(&app, "POST", &format!("{path}/shutdown"), json!({}), 204).await;
}

#[tokio::test]
async fn root_key_is_generated_once_replaced_and_stored_sealed() {
    let app = TestApp::new().await;
    let path = "/pgsodium";
    let first = get(&app, path).await;
    assert_eq!(first["root_key"].as_str().unwrap().len(), 64);
    assert_eq!(get(&app, path).await, first);
    let text = "Expected a 32 byte secret, hex-encoded (64 characters).";
    for bad in ["", "00", &"g".repeat(64), &"0".repeat(65)] {
        let problem = send(&app, "PUT", path, json!({"root_key": bad}), 400).await;
        assert_eq!(problem["message"], text);
    }
    let key = "0123456789abcdef".repeat(4);
    let body = json!({"root_key": key});
    assert_eq!(send(&app, "PUT", path, body.clone(), 200).await, body);
    assert_eq!(get(&app, path).await, body);
    let sql = "select coalesce(string_agg(t::text, ''), '') from \
               (select to_jsonb(s) as t from service_settings s union all \
                select to_jsonb(a) from audit_entries a) rows";
    let rows = app.app.db.query(sql, &[]).await.unwrap();
    let stored: String = rows[0].get(0);
    assert!(
        stored.contains("fingerprint:") && !stored.contains(&key),
        "{stored}"
    );
    assert!(!stored.contains(first["root_key"].as_str().unwrap()));
}

#[tokio::test]
async fn whole_configuration_is_read_at_once() {
    let app = TestApp::new().await;
    let change = json!({"smtp_pass": "correct-horse-battery", "site_url": "https://a.example"});
    let auth = send(&app, "PATCH", "/config/auth", change, 200).await;
    send(
        &app,
        "PATCH",
        "/config/storage",
        json!({"fileSizeLimit": 7}),
        200,
    )
    .await;
    let path = app.at("/config").replace("/v1/", "/v2/");
    let answer = app.get(&path).as_(&app.owner).send().await.expect(200);
    let document = answer.json();
    let data = &document["data"];
    assert_eq!(data["type"], "project_config");
    let attributes = &data["attributes"];
    assert_eq!(attributes["auth"], auth);
    assert_eq!(attributes["storage"]["file_size_limit"], 7);
    assert_eq!(attributes["realtime"]["max_concurrent_users"], 200);
    assert_eq!(attributes["api"]["max_rows"], 1000);
    assert_eq!(attributes["api"].get("jwt_secret"), None);
    let database = &attributes["database"];
    assert!(database["major_version"].as_u64().unwrap() >= 16);
    assert_eq!(database["postgres_settings"], json!({}));
    let networks = &database["network_restrictions"]["allowed_cidrs"];
    let everywhere = json!([
        {"address": "0.0.0.0/0", "type": "v4"},
        {"address": "::/0", "type": "v6"},
    ]);
    assert_eq!(*networks, everywhere);
    assert!(!document.to_string().contains("correct-horse-battery"));
}
