//! The audit log of the whole application: its entries, its readers, its integrity, and secrets
//! that it must not contain.

mod content;

use gantry::{
    api::organizations::members,
    platform::{
        access::Role,
        audit::{Chain, read, verify},
        tables::Table,
    },
};
use serde_json::{Value, json};

use crate::support::{Actor, TestApp, dawn, postgres::connect};

fn at(app: &TestApp, rest: &str) -> String {
    format!("/v1/organizations/{}/audit{rest}", app.home.slug)
}

async fn entries(app: &TestApp, who: &Actor, query: &str) -> Vec<Value> {
    let page = app
        .get(&at(app, query))
        .as_(who)
        .send()
        .await
        .expect(200)
        .json();
    page["entries"].as_array().unwrap().clone()
}

/// Operation, status and subject of each entry, oldest first.
fn summaries(entries: &[Value]) -> Vec<(String, i64, String)> {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    entries
        .iter()
        .rev()
        .map(|entry| {
            (
                text(&entry["operation"]),
                entry["status"].as_i64().unwrap(),
                text(&entry["subject"]),
            )
        })
        .collect()
}

#[tokio::test]
async fn only_mutating_requests_are_audited() {
    let app = TestApp::new().await;
    let project = app.home.project.to_string();
    app.get(&app.at(""))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    app.post(&app.at("/database/query/read-only"))
        .as_(&app.owner)
        .json(&json!({}))
        .send()
        .await
        .expect(400);
    app.post(&app.at("/database/query"))
        .as_(&app.owner)
        .json(&json!({"read_only": true}))
        .send()
        .await
        .expect(400);
    assert_eq!(
        entries(&app, &app.owner, "").await,
        [] as [Value; 0],
        "what only sees is not written"
    );

    let rename = || app.patch(&app.at("")).json(&json!({"name": "new"}));
    rename()
        .as_(&app.owner)
        .header("x-request-id", "r-1")
        .from("127.0.0.7")
        .send()
        .await
        .expect(200);
    rename().as_(&app.developer).send().await.expect(403);
    app.patch(&app.at(""))
        .as_(&app.owner)
        .json(&json!({}))
        .send()
        .await
        .expect(400);
    app.post(&app.at("/database/query"))
        .as_(&app.read_only)
        .json(&json!({"query": "select 1"}))
        .send()
        .await
        .expect(403);
    app.post(&app.at("/read-replicas/setup"))
        .as_(&app.owner)
        .json(&json!({}))
        .send()
        .await
        .expect(501);
    // Requests of strangers and anonymous clients are not in the organization's log.
    rename().as_(&app.stranger).send().await.expect(404);
    rename().send().await.expect(401);

    let log = entries(&app, &app.read_only, "").await;
    let row = |operation: &str, status| (operation.to_owned(), status, project.clone());
    assert_eq!(
        summaries(&log),
        [
            row("v1-update-a-project", 200),
            row("v1-update-a-project", 403),
            row("v1-update-a-project", 400),
            row("v1-run-a-query", 403),
            row("v1-setup-a-read-replica", 501),
        ]
    );
    let first = log.last().unwrap();
    assert_eq!(
        (&first["before"], &first["after"]),
        (&json!({"name": "stub"}), &json!({"name": "new"}))
    );
    assert_eq!(
        (
            &first["actor"],
            &first["token"],
            &first["address"],
            &first["request_id"],
            &first["at"],
            &first["number"]
        ),
        (
            &json!(app.owner.gotrue_id),
            &json!(app.owner.token_id.0),
            &json!("127.0.0.7"),
            &json!("r-1"),
            &json!("2026-11-21T09:15:03.000000Z"),
            &json!(1)
        )
    );
    // A stranger's attempts are in the log of the stranger's account.
    let own = read::page(
        &app.app.db,
        Chain::Account(app.stranger.user),
        &read::AuditFilter {
            limit: 10,
            ..Default::default()
        },
    )
    .await
    .unwrap();
    assert_eq!(
        own.iter()
            .map(|entry| (&*entry.operation, entry.status, &entry.subject))
            .collect::<Vec<_>>(),
        [("v1-update-a-project", 404, &None)]
    );
}

#[tokio::test]
async fn role_change_is_audited_with_before_and_after() {
    let app = TestApp::new().await;
    let path = format!(
        "/v2/organizations/{}/members/{}",
        app.home.slug, app.developer.gotrue_id
    );
    let body = |role: &str| json!({"data": {"type": "organization_member_role", "attributes": {"role": role}}});
    let roles = format!("{path}/roles");
    app.patch(&roles)
        .as_(&app.owner)
        .json(&body("read-only"))
        .send()
        .await
        .expect(200);
    app.delete(&path).as_(&app.owner).send().await.expect(200);
    let last = format!(
        "/v2/organizations/{}/members/{}",
        app.home.slug, app.owner.gotrue_id
    );
    app.delete(&last).as_(&app.owner).send().await.expect(400);
    let log = entries(&app, &app.owner, "").await;
    let dora =
        |role: &str| json!({"member": app.developer.gotrue_id, "role": role, "on_projects": []});
    let summaries: Vec<_> = log
        .iter()
        .rev()
        .map(|entry| {
            (
                entry["status"].clone(),
                entry["before"].clone(),
                entry["after"].clone(),
            )
        })
        .collect();
    assert_eq!(
        summaries,
        [
            (json!(200), dora("developer"), dora("read-only")),
            (json!(200), dora("read-only"), Value::Null),
            (json!(400), Value::Null, Value::Null),
        ]
    );
}

/// A change and its entry are written in one transaction: if one fails, neither is kept.
#[tokio::test]
async fn change_is_rolled_back_if_the_audit_entry_fails() {
    let app = TestApp::new().await;
    let person = connect(&app.config).await;
    person
        .batch_execute("alter table audit_entries add constraint broken check (status <> 200)")
        .await
        .unwrap();
    app.patch(&app.at(""))
        .as_(&app.owner)
        .json(&json!({"name": "new"}))
        .send()
        .await
        .expect(500);
    let refused = app.log.take_errors();
    assert!(
        refused.len() == 1 && refused[0].contains("writing the audit log"),
        "{refused:?}"
    );
    person
        .batch_execute("alter table audit_entries drop constraint broken")
        .await
        .unwrap();
    assert_eq!(
        app.get(&app.at(""))
            .as_(&app.owner)
            .send()
            .await
            .expect(200)
            .json()["name"],
        "stub"
    );
    assert_eq!(
        summaries(&entries(&app, &app.owner, "").await),
        [(
            "v1-update-a-project".to_owned(),
            500,
            app.home.project.to_string()
        )]
    );
}

#[tokio::test]
async fn audit_log_is_filtered_and_visible_to_its_organization() {
    let app = TestApp::new().await;
    for n in 0..5 {
        let actor = if n % 2 == 0 {
            &app.owner
        } else {
            &app.developer
        };
        app.patch(&app.at(""))
            .as_(actor)
            .json(&json!({"name": format!("n{n}")}))
            .send()
            .await;
        app.advance(60);
    }
    let count = async |query: &str| entries(&app, &app.owner, query).await.len();
    assert_eq!(count("").await, 5);
    assert_eq!(count("?succeeded=true").await, 3);
    assert_eq!(count("?succeeded=false").await, 2);
    assert_eq!(
        count(&format!("?actor={}", app.developer.gotrue_id)).await,
        2
    );
    assert_eq!(count("?operation=v1-update-a-project").await, 5);
    assert_eq!(count("?operation=v1-delete-a-project").await, 0);
    assert_eq!(count(&format!("?subject={}", app.home.project)).await, 5);
    assert_eq!(
        count("?since=2026-11-21T09:17:03Z&until=2026-11-21T09:19:03Z").await,
        2
    );
    let first = app
        .get(&at(&app, "?limit=2"))
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(
        (
            first["entries"][0]["number"].clone(),
            first["before"].clone()
        ),
        (json!(5), json!(4))
    );
    assert_eq!(
        entries(&app, &app.owner, "?limit=2&before=4").await[0]["number"],
        3
    );
    for query in ["?limit=0", "?limit=101", "?colour=red"] {
        app.get(&at(&app, query))
            .as_(&app.owner)
            .send()
            .await
            .expect(400);
    }

    for path in [at(&app, ""), at(&app, "/export")] {
        app.get(&path).as_(&app.read_only).send().await.expect(200);
        app.get(&path).as_(&app.stranger).send().await.expect(404);
        app.get(&path).send().await.expect(401);
    }
    members::set(
        &app.app.db,
        app.home.id,
        app.read_only.user,
        Role::Member,
        dawn(),
        None,
    )
    .await
    .unwrap();
    app.app.table_changed(Table::Members);
    app.get(&at(&app, ""))
        .as_(&app.read_only)
        .send()
        .await
        .expect(403);
    // The stranger's own organization has a log of its own.
    let path = format!("/v1/organizations/{}/audit", app.foreign.slug);
    assert_eq!(
        app.get(&path)
            .as_(&app.stranger)
            .send()
            .await
            .expect(200)
            .json()["entries"],
        json!([])
    );
}

#[tokio::test]
async fn concurrent_changes_form_one_valid_chain() {
    let app = TestApp::new().await;
    let renames = (0..20).map(|n| {
        let call = app.patch(&app.at("")).as_(if n % 2 == 0 {
            &app.owner
        } else {
            &app.developer
        });
        tokio::spawn(call.json(&json!({"name": format!("n{n}")})).send())
    });
    for rename in renames.collect::<Vec<_>>() {
        rename.await.unwrap();
    }
    let export = app
        .get(&at(&app, "/export"))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    assert_eq!(export.header("content-type"), Some("application/x-ndjson"));
    let verified = verify::verify(export.text().as_bytes()).unwrap();
    assert_eq!(
        (verified.chain, verified.numbers),
        (format!("organization {}", app.home.id), (1, 20))
    );
    let rest = app
        .get(&at(&app, "/export?after=15"))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    assert_eq!(
        verify::verify(rest.text().as_bytes()).unwrap().numbers,
        (16, 20)
    );
    let altered = export
        .text()
        .replacen("\"status\":403", "\"status\":200", 1);
    assert!(
        verify::verify(altered.as_bytes())
            .unwrap_err()
            .to_string()
            .ends_with("its content does not match its hash")
    );

    let person = connect(&app.config).await;
    for sql in [
        "update audit_entries set status = 200",
        "delete from audit_entries",
        "truncate audit_entries",
    ] {
        let refused = person.batch_execute(sql).await.unwrap_err();
        assert_eq!(
            refused.as_db_error().unwrap().message(),
            "audit entries are never changed",
            "{sql}"
        );
    }
}
