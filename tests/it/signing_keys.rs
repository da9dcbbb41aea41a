//! The life cycle of a project's signing keys over the API.

use serde_json::{Value, json};

use crate::support::TestApp;

const KEYS: &str = "/config/auth/signing-keys";
/// The private key of RFC 7517, appendix A.2.
const D: &str = "870MB6gfuTJ4HtUnUvYMyJpr5eUZNP4Bk43bVdj3eAE";
const X: &str = "MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4";
const Y: &str = "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM";

async fn send(app: &TestApp, method: &str, path: &str, body: Option<Value>, status: u16) -> Value {
    let mut call = app.request(method, &app.at(path)).as_(&app.owner);
    if let Some(body) = body {
        call = call.json(&body);
    }
    let answer = call.send().await.expect(status);
    answer.json()
}

async fn state_of(app: &TestApp, id: &Value) -> Value {
    let path = format!("{KEYS}/{}", id.as_str().unwrap());
    send(app, "GET", &path, None, 200).await["status"].clone()
}

async fn to(app: &TestApp, id: &Value, state: &str, status: u16) -> Value {
    let path = format!("{KEYS}/{}", id.as_str().unwrap());
    send(app, "PATCH", &path, Some(json!({"status": state})), status).await
}

/// Returns the initial keys of a project: that in use, and the legacy one.
async fn initial(app: &TestApp) -> (Value, Value) {
    let listed = send(app, "GET", KEYS, None, 200).await;
    let of = |state: &str| {
        let keys = listed["keys"].as_array().unwrap();
        let found: Vec<&Value> = keys.iter().filter(|key| key["status"] == state).collect();
        assert_eq!((keys.len(), found.len()), (2, 1), "{listed}");
        found[0].clone()
    };
    (of("in_use"), of("previously_used"))
}

#[tokio::test]
async fn new_project_has_a_key_in_use_and_the_legacy_one() {
    let app = TestApp::new().await;
    let (in_use, legacy) = initial(&app).await;
    assert_eq!(in_use["algorithm"], "ES256");
    assert_eq!(in_use["public_jwk"]["kid"], in_use["id"]);
    assert_eq!(in_use["public_jwk"].get("d"), None);
    assert_eq!(
        (&legacy["algorithm"], &legacy["public_jwk"]),
        (&json!("HS256"), &Value::Null)
    );
    let path = format!("{KEYS}/legacy");
    assert_eq!(send(&app, "GET", &path, None, 200).await, legacy);
    send(&app, "POST", &path, None, 400).await;
}

#[tokio::test]
async fn keys_are_rotated_revoked_and_deleted_in_the_contracts_order() {
    let app = TestApp::new().await;
    let (first, _) = initial(&app).await;
    let first_id = &first["id"];
    for body in [
        json!({"algorithm": "ES256", "status": "in_use"}),
        json!({"algorithm": "EdDSA"}),
        json!({"algorithm": "ES256", "status": "revoked"}),
        json!({"algorithm": "ES256", "extra": 1}),
    ] {
        send(&app, "POST", KEYS, Some(body), 400).await;
    }
    let second = send(&app, "POST", KEYS, Some(json!({"algorithm": "RS256"})), 201).await;
    let second_id = &second["id"];
    assert_eq!(second["status"], "standby");
    assert_eq!(second["public_jwk"]["kty"], "RSA");
    send(&app, "POST", KEYS, Some(json!({"algorithm": "HS256"})), 400).await;
    for state in ["standby", "previously_used", "revoked"] {
        if state != "standby" {
            to(&app, first_id, state, 400).await;
        }
    }
    to(&app, second_id, "in_use", 200).await;
    assert_eq!(state_of(&app, first_id).await, "previously_used");
    let third = send(&app, "POST", KEYS, Some(json!({"algorithm": "HS256"})), 201).await;
    assert_eq!(third["public_jwk"], Value::Null);
    let problem = to(&app, first_id, "standby", 400).await;
    let text = "The project has a signing key in state standby already";
    assert_eq!(problem["message"], text);
    let path = format!("{KEYS}/{}", first_id.as_str().unwrap());
    send(&app, "DELETE", &path, None, 400).await;
    to(&app, first_id, "revoked", 200).await;
    let deleted = send(&app, "DELETE", &path, None, 200).await;
    assert_eq!(deleted["status"], "revoked");
    send(&app, "GET", &path, None, 404).await;
    send(&app, "DELETE", &path, None, 404).await;
}

#[tokio::test]
async fn imported_key_keeps_its_id_and_its_private_part_is_sealed() {
    let app = TestApp::new().await;
    let kid = "4bd0c1ae-5a6a-4e4c-9f9b-6f4d1d0a8a11";
    let jwk = json!({
        "kty": "EC", "crv": "P-256", "x": X, "y": Y, "d": D, "kid": kid, "use": "sig",
        "key_ops": ["sign", "verify"], "ext": true, "alg": "ES256",
    });
    let body = json!({"algorithm": "ES256", "private_jwk": jwk});
    let key = send(&app, "POST", KEYS, Some(body.clone()), 201).await;
    assert_eq!(
        (&key["id"], &key["public_jwk"]["x"]),
        (&json!(kid), &json!(X))
    );
    let again = send(&app, "POST", KEYS, Some(body), 400).await;
    let text = format!("A signing key with the id {kid} already exists");
    assert_eq!(again["message"], text);
    for (name, value) in [
        ("d", json!(X)),
        ("kid", json!("x")),
        ("use", json!("enc")),
        ("alg", json!("RS256")),
    ] {
        let mut jwk = jwk.clone();
        jwk[name] = value;
        let body = json!({"algorithm": "ES256", "private_jwk": jwk});
        let problem = send(&app, "POST", KEYS, Some(body), 400).await.to_string();
        assert!(!problem.contains(D), "{problem}");
    }
    let sql = "select coalesce(string_agg(t::text, ''), '') from \
               (select to_jsonb(k) as t from signing_keys k union all \
                select to_jsonb(a) from audit_entries a) rows";
    let rows = app.app.db.query(sql, &[]).await.unwrap();
    let stored: String = rows[0].get(0);
    assert!(stored.contains(X) && !stored.contains(D), "{stored}");
}

#[tokio::test]
async fn legacy_secret_of_an_older_project_becomes_a_key_and_is_revoked_after_its_api_keys() {
    let app = TestApp::new().await;
    initial(&app).await;
    let removed = app.app.db.query("delete from signing_keys", &[]).await;
    removed.unwrap();
    let legacy = format!("{KEYS}/legacy");
    send(&app, "GET", &legacy, None, 404).await;
    let key = send(&app, "POST", &legacy, None, 201).await;
    assert_eq!(
        (&key["algorithm"], &key["status"]),
        (&json!("HS256"), &json!("in_use"))
    );
    send(&app, "POST", &legacy, None, 400).await;
    assert_eq!(send(&app, "GET", &legacy, None, 200).await, key);
    let listed = send(&app, "GET", KEYS, None, 200).await;
    let keys = listed["keys"].as_array().unwrap();
    let standby = keys.iter().find(|key| key["status"] == "standby").unwrap();
    assert_eq!((keys.len(), &standby["algorithm"]), (2, &json!("ES256")));
    to(&app, &standby["id"], "in_use", 200).await;
    let problem = to(&app, &key["id"], "revoked", 400).await;
    let text = "Disable the legacy API keys before revoking the legacy JWT secret";
    assert_eq!(problem["message"], text);
    let switch = "/api-keys/legacy?enabled=";
    send(&app, "PUT", &format!("{switch}false"), None, 200).await;
    to(&app, &key["id"], "revoked", 200).await;
    let path = format!("{KEYS}/{}", key["id"].as_str().unwrap());
    send(&app, "DELETE", &path, None, 400).await;
    send(&app, "PUT", &format!("{switch}true"), None, 400).await;
}

#[tokio::test]
async fn of_concurrent_rotations_one_key_remains_in_use() {
    let app = TestApp::new().await;
    let one = initial(&app).await.0["id"].clone();
    let body = json!({"algorithm": "ES256"});
    let other = send(&app, "POST", KEYS, Some(body), 201).await["id"].clone();
    let rotations = (0..6).map(|_| {
        let path = app.at(&format!("{KEYS}/{}", other.as_str().unwrap()));
        let call = app.request("PATCH", &path).as_(&app.owner);
        call.json(&json!({"status": "in_use"})).send()
    });
    for answer in futures_util::future::join_all(rotations).await {
        answer.expect(200);
    }
    assert_eq!(state_of(&app, &one).await, "previously_used");
    assert_eq!(state_of(&app, &other).await, "in_use");
}
