//! Add-ons, entitlements and the configuration of disks.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::TestApp;

#[tokio::test]
async fn compute_size_is_kept_and_costs_nothing() {
    let app = TestApp::new().await;
    let path = app.at("/billing/addons");
    let selected = async || {
        let answer = app.get(&path).as_(&app.owner).send().await.expect(200);
        let selected = answer.json()["selected_addons"].clone();
        assert_eq!(selected.as_array().unwrap().len(), 1);
        assert_eq!(selected[0]["variant"]["price"]["amount"], 0.0);
        selected[0]["variant"]["id"].clone()
    };
    assert_eq!(selected().await, "ci_micro");
    let apply = async |kind: &str, variant: &str, status: u16| {
        let body = json!({"addon_type": kind, "addon_variant": variant});
        let call = app.request("PATCH", &path).as_(&app.owner).json(&body);
        call.send().await.expect(status)
    };
    apply("compute_instance", "ci_large", 200).await;
    assert_eq!(selected().await, "ci_large");
    for (kind, variant) in [
        ("compute_instance", "ci_vast"),
        ("compute_instance", "pitr_7"),
        ("pitr", "pitr_7"),
        ("pitr", "ci_small"),
    ] {
        let problem = apply(kind, variant, 400).await.json();
        assert_eq!(problem["message"], "addon_variant: Invalid input");
    }
    assert_eq!(selected().await, "ci_large");
    let answer = app.get(&path).as_(&app.owner).send().await.expect(200);
    let available = answer.json()["available_addons"][0]["variants"].clone();
    let small = &available[1];
    assert_eq!(small["id"], "ci_small");
    assert_eq!(small["meta"]["memory_gb"], 2.0);
    assert_eq!(small["meta"]["connections_direct"], 90);
    let one = format!("{path}/ci_large");
    app.delete(&one).as_(&app.owner).send().await.expect(200);
    assert_eq!(selected().await, "ci_micro");
}

#[tokio::test]
async fn entitlements_list_each_feature_once_in_the_form_of_its_type() {
    let app = TestApp::new().await;
    let path = format!("/v1/organizations/{}/entitlements", app.home.slug);
    let answer = app.get(&path).as_(&app.owner).send().await.expect(200);
    let document = answer.json();
    let all = document["entitlements"].as_array().unwrap();
    let key = |entitlement: &Value| entitlement["feature"]["key"].as_str().unwrap().to_owned();
    let keys: BTreeSet<String> = all.iter().map(key).collect();
    assert_eq!((keys.len(), all.len()), (60, 60));
    for entitlement in all {
        let config = &entitlement["config"];
        assert_eq!(config["enabled"], entitlement["hasAccess"], "{entitlement}");
        assert_eq!(entitlement["type"], entitlement["feature"]["type"]);
        let field = match entitlement["type"].as_str().unwrap() {
            "boolean" => "enabled",
            "numeric" => "unlimited",
            _ => "set",
        };
        assert!(!config[field].is_null(), "{entitlement}");
    }
    let limit = all.iter().find(|it| key(it) == "branching_limit").unwrap();
    let config = json!({"enabled": true, "value": 20, "unlimited": false, "unit": "branches"});
    assert_eq!(limit["config"], config);
}

#[tokio::test]
async fn numbers_of_entitlements_are_the_bounds_of_the_operations() {
    let app = TestApp::new().await;
    let path = format!("/v1/organizations/{}/entitlements", app.home.slug);
    let answer = app.get(&path).as_(&app.owner).send().await.expect(200);
    let document = answer.json();
    let config = |key: &str| {
        let all = document["entitlements"].as_array().unwrap();
        let found = all.iter().find(|it| it["feature"]["key"] == key);
        found.unwrap()["config"].clone()
    };
    let value = |key: &str| config(key)["value"].as_u64().unwrap();
    let patch = async |path: &str, body: &Value, status: u16| {
        let call = app.patch(&app.at(path)).as_(&app.owner).json(body);
        call.send().await.expect(status);
    };
    for name in [
        "max_concurrent_users",
        "max_events_per_second",
        "max_joins_per_second",
        "max_channels_per_client",
        "max_bytes_per_second",
        "max_presence_events_per_second",
        "max_payload_size_in_kb",
    ] {
        let max = value(&format!("realtime.{name}"));
        patch("/config/realtime", &json!({name: max}), 204).await;
        patch("/config/realtime", &json!({name: max + 1}), 400).await;
    }
    let max = value("storage.max_file_size");
    patch("/config/storage", &json!({"fileSizeLimit": max}), 200).await;
    patch("/config/storage", &json!({"fileSizeLimit": max + 1}), 400).await;
    let max = value("function.size_limit_mb") << 20;
    let path = app.at("/functions/deploy?slug=large");
    let call = app.post(&path).as_(&app.owner);
    let call = call.header("content-type", "multipart/form-data; boundary=x");
    let large = vec![b'x'; usize::try_from(max).unwrap() + 1];
    call.body(large).send().await.expect(413);
    // This server has neither backups nor a pooler.
    assert_eq!(value("backup.retention_days"), 0);
    for key in [
        "backup.schedule",
        "backup.restore_to_new_project",
        "dedicated_pooler",
    ] {
        assert_eq!(config(key), json!({"enabled": false}), "{key}");
    }
    assert_eq!(value("log.retention_days"), 30);
}

#[tokio::test]
async fn disk_is_measured_and_bounded_by_the_operator() {
    let app = TestApp::new().await;
    let path = app.at("/config/disk");
    let get = async |path: &str| {
        let answer = app.get(path).as_(&app.owner).send().await;
        answer.expect(200).json()
    };
    let disk = get(&path).await;
    assert!(disk["attributes"]["size_gb"].as_u64().unwrap() > 0);
    let used = get(&format!("{path}/util")).await;
    let metrics = &used["metrics"];
    assert!(metrics["fs_size_bytes"].as_u64() >= metrics["fs_used_bytes"].as_u64());
    let none = json!({"growth_percent": null, "min_increment_gb": null, "max_size_gb": null});
    assert_eq!(get(&format!("{path}/autoscale")).await, none);
    let same = json!({"attributes": disk["attributes"]});
    let call = app.post(&path).as_(&app.owner).json(&same);
    call.send().await.expect(201);
    let mut larger = same.clone();
    larger["attributes"]["size_gb"] = json!(1_u64 << 40);
    let call = app.post(&path).as_(&app.owner).json(&larger);
    call.send().await.expect(400);
    let status = get(&app.at("/readonly")).await;
    assert_eq!(
        (&status["enabled"], &status["override_enabled"]),
        (&json!(false), &json!(false))
    );
}
