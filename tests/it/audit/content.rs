//! Content of audit entries.

use std::fmt::Write;

use gantry::platform::audit::{Chain, read};
use serde_json::{Value, json};

use super::{at, entries};
use crate::support::{TestApp, machine::PATIENCE, postgres::connect};

/// Operations on tokens and organizations are in the log of the account that performs them.
#[tokio::test]
async fn tokens_and_organizations_are_audited_with_their_content() {
    let app = TestApp::new().await;
    let token = json!({"name": "ci", "permissions": ["database_read"], "organization_slugs": [app.home.slug]});
    let simulated =
        json!({"permissions": ["database_read"], "method": "GET", "path": "/v1/projects"});
    app.post("/v1/tokens/simulate")
        .as_(&app.owner)
        .json(&simulated)
        .send()
        .await
        .expect(200);
    let made = app
        .post("/v1/tokens")
        .as_(&app.owner)
        .json(&token)
        .send()
        .await
        .expect(201)
        .json();
    app.delete(&format!("/v1/tokens/{}", made["id"]))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    let organization = app
        .post("/v1/organizations")
        .as_(&app.owner)
        .json(&json!({"name": "New"}))
        .send()
        .await
        .expect(201)
        .json();
    let person = connect(&app.config).await;
    person
        .batch_execute(
            "alter table audit_entries add constraint broken check (status >= 400) not valid",
        )
        .await
        .unwrap();
    app.post("/v1/tokens")
        .as_(&app.owner)
        .json(&token)
        .send()
        .await
        .expect(500);
    app.post("/v1/organizations")
        .as_(&app.owner)
        .json(&json!({"name": "Not"}))
        .send()
        .await
        .expect(500);
    assert_eq!(app.log.take_errors().len(), 2);
    let left = "select (select count(*) from tokens where name = 'ci'), (select count(*) from organizations where name = 'Not')";
    let left = &app.app.db.query(left, &[]).await.unwrap()[0];
    assert_eq!(
        (left.get::<_, i64>(0), left.get::<_, i64>(1)),
        (1, 0),
        "what cannot be written is not made"
    );

    let filter = read::AuditFilter {
        succeeded: Some(true),
        limit: 10,
        ..Default::default()
    };
    let mut own = read::page(&app.app.db, Chain::Account(app.owner.user), &filter)
        .await
        .unwrap();
    own.reverse();
    let value = |raw: &Option<Box<serde_json::value::RawValue>>| {
        raw.as_ref()
            .map_or(Value::Null, |raw| serde_json::from_str(raw.get()).unwrap())
    };
    let summaries: Vec<_> = own
        .iter()
        .map(|entry| (&*entry.operation, value(&entry.before), value(&entry.after)))
        .collect();
    // A simulation changes nothing.
    assert_eq!(summaries.len(), 3, "{summaries:?}");
    assert_eq!(
        (
            summaries[0].0,
            &summaries[0].2["id"],
            &summaries[0].2["permissions"]
        ),
        (
            "gantry-create-token",
            &made["id"],
            &json!(["database_read"])
        )
    );
    assert_eq!(
        (summaries[1].0, &summaries[1].1["id"], &summaries[1].2),
        ("gantry-revoke-token", &made["id"], &Value::Null)
    );
    assert_eq!(
        (summaries[2].0, &summaries[2].2["slug"]),
        ("v1-create-an-organization", &organization["slug"])
    );
    let path = format!(
        "/v1/organizations/{}/audit",
        organization["slug"].as_str().unwrap()
    );
    let first = app
        .get(&path)
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(first["entries"][0]["after"]["name"], "New");
}

/// A change of a project's own database cannot share a transaction with the log, so it is announced
/// before.
#[tokio::test]
async fn database_change_is_announced_before_it_starts() {
    let app = TestApp::running().await;
    let project = app.real_project().await;
    let path = format!("/v1/projects/{project}/database/query");
    let run = |sql: &str| {
        app.post(&path)
            .as_(&app.owner)
            .json(&json!({"query": sql}))
            .send()
    };
    run("create table made ()").await.expect(201);
    run("create table made ()").await.expect(400);
    let log = async || entries(&app, &app.owner, "?operation=v1-run-a-query").await;
    let statuses = |log: &[Value]| -> Vec<i64> {
        log.iter()
            .rev()
            .map(|entry| entry["status"].as_i64().unwrap())
            .collect()
    };
    let summaries = log().await;
    assert_eq!(statuses(&summaries), [102, 201, 102, 400]);
    assert!(
        summaries[0]["request_id"] == summaries[1]["request_id"]
            && summaries[1]["request_id"] != summaries[2]["request_id"]
    );

    // The outcome of a cancelled request is not written.
    let cut = tokio::spawn(run("select pg_sleep(600)"));
    let announced = async {
        while log().await.len() < 5 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, announced).await.unwrap();
    cut.abort();
    assert!(cut.await.unwrap_err().is_cancelled());
    assert_eq!(statuses(&log().await), [102, 201, 102, 400, 102]);

    // An action that cannot be announced is not performed.
    let person = connect(&app.config).await;
    person
        .batch_execute(
            "alter table audit_entries add constraint broken check (status <> 102) not valid",
        )
        .await
        .unwrap();
    run("drop table made").await.expect(500);
    assert_eq!(app.log.take_errors().len(), 1);
    let read = json!({"query": "select to_regclass('made') is not null as there"});
    let there = app
        .post(&format!("{path}/read-only"))
        .as_(&app.owner)
        .json(&read)
        .send()
        .await
        .expect(201)
        .json();
    assert_eq!(there, json!([{"there": true}]));
}

/// Collects all secrets of an organization's life cycle and searches for them in all entries.
#[tokio::test]
async fn audit_log_contains_no_secrets() {
    let app = TestApp::new().await;
    let mut secrets: Vec<String> = app.members().map(|(actor, _)| actor.token.clone()).into();
    secrets.push(app.stranger.token.clone());
    let password = "Tr0ub4dor-and-3";
    secrets.push(password.to_owned());
    let project = json!({"organization_slug": app.home.slug, "name": "p", "db_pass": password});
    app.post("/v1/projects")
        .as_(&app.owner)
        .json(&project)
        .send()
        .await
        .expect(201);
    let token = json!({"name": "ci", "permissions": ["database_write"], "organization_slugs": [app.home.slug]});
    let made = app
        .post("/v1/tokens")
        .as_(&app.owner)
        .json(&token)
        .send()
        .await
        .expect(201)
        .json();
    secrets.push(made["token"].as_str().unwrap().to_owned());
    let key = json!({"type": "secret", "name": "worker"});
    let key = app
        .post(&app.at("/api-keys?reveal=true"))
        .as_(&app.owner)
        .json(&key)
        .send()
        .await
        .expect(201)
        .json();
    let invitation = json!({"data": [{"type": "organization_invitation", "attributes": {"email": "stan@example.com", "role": "developer"}}]});
    let path = format!("/v2/organizations/{}/members/invitations", app.home.slug);
    let invited = app
        .post(&path)
        .as_(&app.owner)
        .json(&invitation)
        .send()
        .await
        .expect(201)
        .json();
    let secret = invited["data"][0]["attributes"]["token"]
        .as_str()
        .unwrap()
        .to_owned();
    app.post("/v1/invitations/accept")
        .as_(&app.stranger)
        .json(&json!({"token": secret}))
        .send()
        .await
        .expect(200);
    secrets.push(secret);
    let sql = json!({"query": format!("alter role postgres password '{password}'")});
    app.post(&app.at("/database/query"))
        .token(&secrets[6])
        .json(&sql)
        .send()
        .await
        .expect(403);
    app.delete(&format!("/v1/tokens/{}", made["id"]))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    app.delete(&app.at(&format!("/api-keys/{}", key["id"].as_str().unwrap())))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    secrets.push(key["api_key"].as_str().unwrap().to_owned());

    let joined = entries(&app, &app.owner, "?operation=gantry-accept-invitation").await;
    assert_eq!(
        joined[0]["after"],
        json!({"member": app.stranger.gotrue_id, "role": "developer", "on_projects": []})
    );
    let mut everything = app
        .get(&at(&app, "/export"))
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .text()
        .to_owned();
    for row in app
        .app
        .db
        .query("select e::text from audit_entries e", &[])
        .await
        .unwrap()
    {
        let _ = writeln!(everything, "{}", row.get::<_, String>(0));
    }
    assert!(everything.lines().count() >= 10, "{everything}");
    for secret in secrets {
        assert!(!everything.contains(&secret), "{secret} is in the log");
    }
}
