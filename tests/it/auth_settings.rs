//! Settings of a project's Auth service.

use serde_json::{Value, json};

use crate::support::TestApp;

/// Returns the settings that differ between two documents.
fn differences(one: &Value, other: &Value) -> Vec<String> {
    let one = one.as_object().unwrap();
    let differs = |(name, value): &(&String, &Value)| other[name.as_str()] != **value;
    one.iter()
        .filter(differs)
        .map(|(name, _)| name.clone())
        .collect()
}

#[tokio::test]
async fn auth_settings_are_merged_and_keep_secrets_sealed() {
    let app = TestApp::new().await;
    let path = app.at("/config/auth");
    let get = async || {
        let answer = app.get(&path).as_(&app.owner).send().await;
        answer.expect(200).json()
    };
    let defaults = get().await;
    assert_eq!(defaults.as_object().unwrap().len(), 238);
    let change = json!({
        "site_url": "https://app.example.com", "smtp_pass": "correct-horse-battery",
        "external_github_enabled": true, "external_github_client_id": "id",
        "external_github_secret": "staple-of-horses",
    });
    let patched = app
        .request("PATCH", &path)
        .as_(&app.owner)
        .json(&change)
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(get().await, patched);
    let mut changed = differences(&patched, &defaults);
    changed.sort();
    let mut expected: Vec<&String> = change.as_object().unwrap().keys().collect();
    expected.sort();
    assert_eq!(changed.iter().collect::<Vec<_>>(), expected);
    assert_eq!(patched["smtp_pass"].as_str().unwrap().len(), 64);

    let sql = "select coalesce(string_agg(t::text, ''), '') from \
               (select to_jsonb(s) as t from service_settings s union all \
                select to_jsonb(a) from audit_entries a) rows";
    let rows = app.app.db.query(sql, &[]).await.unwrap();
    let stored: String = rows[0].get(0);
    assert!(stored.contains("https://app.example.com"), "{stored}");
    for secret in ["correct-horse-battery", "staple-of-horses"] {
        assert!(!stored.contains(secret), "{secret} is stored in clear");
    }
}

#[tokio::test]
async fn invalid_auth_settings_change_nothing() {
    let app = TestApp::new().await;
    let path = app.at("/config/auth");
    let before = app.get(&path).as_(&app.owner).send().await.expect(200);
    for (change, status, message) in [
        (
            json!({"site_url": "https://a.example", "nonsense": 1}),
            400,
            "nonsense: Unrecognized key",
        ),
        (
            json!({"site_url": "https://a.example", "jwt_exp": "1"}),
            400,
            "jwt_exp: Invalid input: expected number, received string",
        ),
        (
            json!({"smtp_sender_name": "A"}),
            401,
            "Custom SMTP required to configure SMTP_SENDER_NAME. Missing SMTP_ADMIN_EMAIL, SMTP_HOST, SMTP_PORT, SMTP_USER, SMTP_PASS fields.",
        ),
    ] {
        let answer = app
            .request("PATCH", &path)
            .as_(&app.owner)
            .json(&change)
            .send()
            .await
            .expect(status);
        assert_eq!(answer.json()["message"], message);
    }
    let after = app.get(&path).as_(&app.owner).send().await.expect(200);
    assert_eq!(after.json(), before.json());
}

#[tokio::test]
async fn concurrent_updates_of_auth_settings_are_all_stored() {
    let app = TestApp::new().await;
    let path = app.at("/config/auth");
    let names = [
        "jwt_exp",
        "sms_otp_exp",
        "mailer_otp_exp",
        "smtp_max_frequency",
        "rate_limit_otp",
    ];
    let updates = names.map(|name| {
        app.request("PATCH", &path)
            .as_(&app.owner)
            .json(&json!({name: 77}))
            .send()
    });
    for answer in futures_util::future::join_all(updates).await {
        answer.expect(200);
    }
    let settings = app.get(&path).as_(&app.owner).send().await.expect(200);
    for name in names {
        assert_eq!(settings.json()[name], 77, "{name}");
    }
}
