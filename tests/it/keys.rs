//! API keys through the API: visibility, storage and audit entries.

use std::collections::BTreeSet;

use gantry::app::App;
use gantry_base::ids::ProjectRef;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{Actor, TestApp, postgres::connect};

async fn list(app: &TestApp, who: &Actor, query: &str) -> Vec<Value> {
    let keys = app
        .get(&app.at(&format!("/api-keys{query}")))
        .as_(who)
        .send()
        .await
        .expect(200)
        .json();
    keys.as_array().unwrap().clone()
}

async fn create(app: &TestApp, body: &Value) -> Value {
    app.post(&app.at("/api-keys?reveal=true"))
        .as_(&app.owner)
        .json(body)
        .send()
        .await
        .expect(201)
        .json()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

/// Returns all rows about keys in the control database, as text.
async fn kept(app: &App) -> String {
    let sql = "select coalesce(string_agg(line, e'\\n'), '') from \
               (select r::text as line from key_rings r union all select k::text from api_keys k union all select e::text from audit_entries e) t";
    app.db.query(sql, &[]).await.unwrap()[0].get(0)
}

#[tokio::test]
async fn new_project_has_legacy_and_initial_keys() {
    let app = TestApp::new().await;
    // The stub is a project that predates API keys. Concurrent first requests are possible.
    let asked =
        futures_util::future::join_all((0..6).map(|_| list(&app, &app.developer, ""))).await;
    assert!(asked.iter().all(|keys| *keys == asked[0]), "{asked:?}");
    let shape: Vec<_> = asked[0]
        .iter()
        .map(|key| {
            (
                text(&key["type"]),
                text(&key["name"]),
                key["secret_jwt_template"].clone(),
            )
        })
        .collect();
    let role = json!({"role": "service_role"});
    assert_eq!(
        shape,
        [
            ("legacy", "anon", Value::Null),
            ("legacy", "service_role", Value::Null),
            ("publishable", "default", Value::Null),
            ("secret", "default", role)
        ]
    );
    // A new project has its keys from the start.
    let project = app.create_project("new").await;
    let sql =
        "select count(*) from api_keys k join projects p on p.id = k.project_id where p.ref = $1";
    assert_eq!(
        app.app.db.query(sql, &[&project.as_str()]).await.unwrap()[0].get::<_, i64>(0),
        2
    );
    let other = app
        .get(&format!("/v1/projects/{project}/api-keys?reveal=true"))
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json();
    let all: BTreeSet<_> = list(&app, &app.owner, "?reveal=true")
        .await
        .iter()
        .chain(other.as_array().unwrap())
        .map(|key| text(&key["api_key"]).to_owned())
        .collect();
    assert_eq!(all.len(), 8, "no key is another's");
}

#[tokio::test]
async fn secret_keys_are_masked_without_reveal() {
    let app = TestApp::new().await;
    let (blotted, clear) = (
        list(&app, &app.developer, "?reveal=false").await,
        list(&app, &app.developer, "?reveal=true").await,
    );
    assert_eq!(blotted, list(&app, &app.developer, "").await);
    for (blotted, clear) in blotted.iter().zip(&clear) {
        let secret = clear["name"] == "service_role" || clear["type"] == "secret";
        assert_eq!(blotted["api_key"] != clear["api_key"], secret, "{blotted}");
        assert_eq!(text(&blotted["api_key"]).contains('·'), secret, "{blotted}");
        assert!(!text(&clear["api_key"]).contains('·'));
        assert_eq!(blotted["hash"], clear["hash"]);
        if let Some(prefix) = clear["prefix"].as_str() {
            assert!(
                text(&clear["api_key"]).starts_with(prefix)
                    && text(&blotted["api_key"]).starts_with(prefix)
            );
        }
    }
    let one = |query: &str| {
        app.get(&app.at(&format!("/api-keys/{}{query}", text(&clear[3]["id"]))))
            .as_(&app.developer)
    };
    assert_eq!(
        (
            one("").send().await.expect(200).json(),
            one("?reveal=true").send().await.expect(200).json()
        ),
        (blotted[3].clone(), clear[3].clone())
    );
    app.get(&app.at("/api-keys"))
        .as_(&app.read_only)
        .send()
        .await
        .expect(403);
    app.get(&app.at("/api-keys?reveal=yes"))
        .as_(&app.owner)
        .send()
        .await
        .expect(400);
}

#[tokio::test]
async fn keys_are_created_updated_and_deleted() {
    let app = TestApp::new().await;
    let made =
        create(&app, &json!({"type": "secret", "name": "worker", "description": "for jobs", "secret_jwt_template": {"role": "job"}})).await;
    assert!(text(&made["api_key"]).starts_with("sb_secret_"));
    let path = app.at(&format!("/api-keys/{}", text(&made["id"])));
    let get = async || {
        app.get(&format!("{path}?reveal=true"))
            .as_(&app.owner)
            .send()
            .await
    };
    assert_eq!(get().await.expect(200).json(), made);

    app.advance(60);
    let patch = async |body: Value| {
        app.patch(&path)
            .as_(&app.administrator)
            .json(&body)
            .send()
            .await
    };
    let renamed = patch(json!({"name": "worker_2"})).await.expect(200).json();
    assert_eq!(
        (&renamed["name"], &renamed["description"]),
        (&json!("worker_2"), &json!("for jobs")),
        "what is not said stays"
    );
    assert_eq!(
        (&renamed["updated_at"], &renamed["inserted_at"]),
        (
            &json!("2026-11-21T09:16:03Z"),
            &json!("2026-11-21T09:15:03Z")
        )
    );
    assert!(
        text(&renamed["api_key"]).contains('·'),
        "who renames a key does not see it"
    );
    let bare = patch(json!({"description": null, "secret_jwt_template": null}))
        .await
        .expect(200)
        .json();
    assert_eq!(
        (
            &bare["description"],
            &bare["secret_jwt_template"],
            &bare["name"]
        ),
        (&Value::Null, &Value::Null, &json!("worker_2"))
    );
    assert_eq!(get().await.expect(200).json()["api_key"], made["api_key"]);

    let gone = app
        .delete(&format!("{path}?was_compromised=true&reason=lost"))
        .as_(&app.administrator)
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(
        (&gone["id"], &gone["name"]),
        (&made["id"], &json!("worker_2"))
    );
    assert!(text(&gone["api_key"]).contains('·'));
    for call in [
        app.get(&path),
        app.delete(&path),
        app.patch(&path).json(&json!({"name": "again"})),
    ] {
        call.as_(&app.owner).send().await.expect(404);
    }
    assert_eq!(list(&app, &app.owner, "").await.len(), 4);
}

#[tokio::test]
async fn invalid_key_is_rejected_with_field() {
    let app = TestApp::new().await;
    let send = async |body: Value| {
        app.post(&app.at("/api-keys"))
            .as_(&app.owner)
            .json(&body)
            .send()
            .await
            .expect(400)
            .message()
    };
    let named = |name: &str| json!({"type": "secret", "name": name});
    for name in ["abc", "Worker", "1abc", "a-bc", "größe", &"a".repeat(65)] {
        assert!(send(named(name)).await.starts_with("name: "), "{name}");
    }
    for (body, field) in [
        (json!({"name": "some"}), "type"),
        (json!({"type": "legacy", "name": "some"}), "type"),
        (json!({"type": "secret"}), "name"),
        (
            json!({"type": "secret", "name": "some", "description": "x".repeat(1025)}),
            "description",
        ),
        (
            json!({"type": "secret", "name": "some", "secret_jwt_template": {"a": "x".repeat(4096)}}),
            "secret_jwt_template",
        ),
        (
            json!({"type": "secret", "name": "some", "secret_jwt_template": 7}),
            "secret_jwt_template",
        ),
        (
            json!({"type": "publishable", "name": "some", "secret_jwt_template": {}}),
            "secret_jwt_template",
        ),
    ] {
        let message = send(body.clone()).await;
        assert!(
            message.starts_with(&format!("{field}: ")),
            "{body}: {message}"
        );
    }
    assert_eq!(
        send(named("default")).await,
        "An API key with name default already exists in this project"
    );
    create(&app, &json!({"type": "publishable", "name": "a_23"})).await;
    create(&app, &named("a_23")).await;
    let publishable = text(&list(&app, &app.owner, "").await[2]["id"]).to_owned();
    let patch = app
        .patch(&app.at(&format!("/api-keys/{publishable}")))
        .as_(&app.owner)
        .json(&json!({"secret_jwt_template": {"a": 1}}));
    assert_eq!(
        patch.send().await.expect(400).message(),
        "secret_jwt_template: only secret keys have one"
    );
    assert_eq!(
        app.get(&app.at("/api-keys/anon"))
            .as_(&app.owner)
            .send()
            .await
            .expect(400)
            .message(),
        "id: expected a UUID"
    );
}

#[tokio::test]
async fn number_of_keys_is_limited() {
    let app = TestApp::new().await;
    list(&app, &app.owner, "").await;
    let sql = "insert into api_keys (id, project_id, kind, name, sealed, digest, inserted_at, updated_at) \
               select gen_random_uuid(), project_id, kind, 'more_' || n, sealed, sha256(n::text::bytea), inserted_at, updated_at \
               from api_keys, generate_series(1, 97) n where kind = 'secret'";
    connect(&app.config).await.execute(sql, &[]).await.unwrap();
    let make = |name: &str| {
        app.post(&app.at("/api-keys"))
            .as_(&app.owner)
            .json(&json!({"type": "publishable", "name": name}))
    };
    make("hundredth").send().await.expect(201);
    assert_eq!(
        make("one_more").send().await.expect(400).message(),
        "A project can have 100 API keys"
    );
}

#[tokio::test]
async fn key_of_other_project_is_not_found() {
    let app = TestApp::new().await;
    let id = text(&list(&app, &app.owner, "").await[3]["id"]).to_owned();
    let project = app.stub(app.home.id, "other").await;
    let elsewhere = format!("/v1/projects/{project}/api-keys/{id}");
    for call in [
        app.get(&elsewhere),
        app.delete(&elsewhere),
        app.patch(&elsewhere).json(&json!({"name": "mine"})),
    ] {
        assert_eq!(
            call.as_(&app.owner).send().await.expect(404).message(),
            "Not Found"
        );
    }
    app.get(&app.at(&format!("/api-keys/{}", Uuid::nil())))
        .as_(&app.owner)
        .send()
        .await
        .expect(404);
}

/// A writer of rows cannot move a secret key to another project or display it as publishable.
#[tokio::test]
async fn swapped_encrypted_key_is_rejected() {
    let app = TestApp::new().await;
    let elsewhere = app.at("/api-keys").replace(
        app.home.project.as_str(),
        app.stub(app.home.id, "other").await.as_str(),
    );
    for path in [&app.at("/api-keys"), &elsewhere] {
        app.get(path).as_(&app.owner).send().await.expect(200);
    }
    let person = connect(&app.config).await;
    for (change, path) in [
        (
            "project_id = (select id from projects where name = 'other'), name = 'moved' where kind = 'publishable' and project_id <> (select id from projects where name = 'other')",
            &elsewhere,
        ),
        (
            "kind = 'publishable', template = null, name = 'shown' where kind = 'secret'",
            &app.at("/api-keys"),
        ),
    ] {
        assert!(
            person
                .execute(
                    &format!("update api_keys set {change} and name = 'default'"),
                    &[]
                )
                .await
                .is_ok_and(|rows| rows > 0)
        );
        app.get(path).as_(&app.owner).send().await.expect(500);
        let errors = app.log.take_errors();
        assert!(
            errors.len() == 1 && errors[0].contains("opening a sealed secret"),
            "{errors:?}"
        );
    }
}

#[tokio::test]
async fn legacy_keys_are_disabled_and_enabled() {
    let app = TestApp::new().await;
    let path = app.at("/api-keys/legacy");
    let enabled = async || {
        app.get(&path)
            .as_(&app.developer)
            .send()
            .await
            .expect(200)
            .json()
    };
    let switch = |on: &str| app.request("PUT", &format!("{path}?enabled={on}"));
    assert_eq!(enabled().await, json!({"enabled": true}));
    let before = list(&app, &app.owner, "?reveal=true").await;
    switch("false").as_(&app.developer).send().await.expect(403);
    assert_eq!(
        switch("false")
            .as_(&app.administrator)
            .send()
            .await
            .expect(200)
            .json(),
        json!({"enabled": false})
    );
    assert_eq!(enabled().await, json!({"enabled": false}));
    app.advance(3600);
    assert_eq!(
        list(&app, &app.owner, "?reveal=true").await,
        before,
        "they are the same whenever they are asked for"
    );
    switch("true").as_(&app.owner).send().await.expect(200);
    assert_eq!(enabled().await, json!({"enabled": true}));
    app.request("PUT", &path)
        .as_(&app.owner)
        .send()
        .await
        .expect(400);
}

#[tokio::test]
async fn writer_without_secret_permission_reads_only_created_keys() {
    let app = TestApp::new().await;
    let body = json!({
        "name": "writer", "project_refs": [app.home.project], "permissions": ["api_gateway_keys_read", "api_gateway_keys_write"]
    });
    let token = app
        .post("/v1/tokens")
        .as_(&app.owner)
        .json(&body)
        .send()
        .await
        .expect(201)
        .json();
    let token = text(&token["token"]);
    let made = json!({"type": "secret", "name": "mine"});
    let made = app
        .post(&app.at("/api-keys?reveal=true"))
        .token(token)
        .json(&made)
        .send()
        .await
        .expect(201)
        .json();
    assert!(!text(&made["api_key"]).contains('·'));
    let existing = text(&list(&app, &app.owner, "").await[3]["id"]).to_owned();
    let path = app.at(&format!("/api-keys/{existing}"));
    let revealed = format!("{path}?reveal=true");
    for call in [
        app.get(&revealed),
        app.patch(&revealed).json(&json!({"name": "seen"})),
        app.delete(&revealed),
    ] {
        assert_eq!(
            call.token(token).send().await.expect(403).message(),
            "Missing required permission(s): api_gateway_keys_secret_read"
        );
    }
    app.patch(&path)
        .token(token)
        .json(&json!({"name": "unseen"}))
        .send()
        .await
        .expect(200);
}

#[tokio::test]
async fn audit_log_records_key_changes_without_secrets() {
    let app = TestApp::new().await;
    let made = create(&app, &json!({"type": "secret", "name": "worker"})).await;
    let path = app.at(&format!("/api-keys/{}", text(&made["id"])));
    app.patch(&path)
        .as_(&app.owner)
        .json(&json!({"name": "other"}))
        .send()
        .await
        .expect(200);
    app.delete(&format!(
        "{path}?was_compromised=true&reason=seen:{}",
        text(&made["api_key"])
    ))
    .as_(&app.owner)
    .send()
    .await
    .expect(200);
    app.request("PUT", &app.at("/api-keys/legacy?enabled=false"))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    let log = app
        .get(&format!("/v1/organizations/{}/audit", app.home.slug))
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json();
    let log = log["entries"].as_array().unwrap();
    let told: Vec<_> = log
        .iter()
        .rev()
        .map(|entry| {
            (
                text(&entry["operation"]),
                entry["before"].clone(),
                entry["after"].clone(),
            )
        })
        .collect();
    let key = |name: &str| json!({"id": made["id"], "type": "secret", "name": name, "description": null, "claims": null});
    assert_eq!(
        told,
        [
            ("v1-create-project-api-key", Value::Null, key("worker")),
            ("v1-update-project-api-key", key("worker"), key("other")),
            (
                "v1-delete-project-api-key",
                key("other"),
                json!({"was_compromised": true, "reason": null})
            ),
            (
                "v1-update-project-legacy-api-keys",
                json!({"legacy_enabled": true}),
                json!({"legacy_enabled": false})
            ),
        ]
    );
    let clear = list(&app, &app.owner, "?reveal=true").await;
    let kept = kept(&app.app).await;
    for key in clear.iter().chain([&made]).map(|key| text(&key["api_key"])) {
        assert!(
            !kept.contains(key) && !kept.contains(&hex::encode(key)),
            "{key} is in clear in:\n{kept}"
        );
    }
    assert!(
        kept.contains(text(&clear[3]["hash"])),
        "the digest is what is looked for"
    );
}

#[tokio::test]
async fn keys_of_removed_project_are_deleted() {
    let app = TestApp::new().await;
    let project: ProjectRef = app.create_project("short").await;
    let path = format!("/v1/projects/{project}");
    app.get(&format!("{path}/api-keys"))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    app.delete(&path).as_(&app.owner).send().await.expect(200);
    for rest in [
        "/api-keys",
        "/api-keys/legacy",
        &format!("/api-keys/{}", Uuid::nil()),
    ] {
        let answer = app
            .get(&format!("{path}{rest}"))
            .as_(&app.owner)
            .send()
            .await
            .expect(400);
        assert_eq!(answer.message(), "Resource has been removed");
    }
    let body = json!({"type": "secret", "name": "late"});
    app.post(&format!("{path}/api-keys"))
        .as_(&app.owner)
        .json(&body)
        .send()
        .await
        .expect(400);
    let sql = "select (select count(*) from key_rings) + (select count(*) from api_keys)";
    assert_eq!(
        app.app.db.query(sql, &[]).await.unwrap()[0].get::<_, i64>(0),
        0
    );
}
