//! The audit log over the whole application: what is in it, what never is, who sees it, and that it holds together.

use std::fmt::Write;

use gantry::{
    api::organizations::members,
    platform::{
        access::Role,
        audit::{Chain, read, verify},
        tables::Table,
    },
};
use serde_json::{Value, json};

use crate::support::{Actor, TestApp, dawn, machine::PATIENCE, postgres::connect};

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

/// Operation, status and subject of each, oldest first.
fn told(entries: &[Value]) -> Vec<(String, i64, String)> {
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
async fn what_changes_something_or_tries_to_is_written_and_nothing_else() {
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
    app.post(&app.at("/branches"))
        .as_(&app.owner)
        .json(&json!({}))
        .send()
        .await
        .expect(501);
    // Not theirs: nobody's log grows by what strangers and nobody try.
    rename().as_(&app.stranger).send().await.expect(404);
    rename().send().await.expect(401);

    let log = entries(&app, &app.read_only, "").await;
    let row = |operation: &str, status| (operation.to_owned(), status, project.clone());
    assert_eq!(
        told(&log),
        [
            row("v1-update-a-project", 200),
            row("v1-update-a-project", 403),
            row("v1-update-a-project", 400),
            row("v1-run-a-query", 403),
            row("v1-create-a-branch", 501),
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
    // What they tried is in their own.
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
async fn a_change_of_roles_is_written_with_what_was_and_is() {
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
    let told: Vec<_> = log
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
        told,
        [
            (json!(200), dora("developer"), dora("read-only")),
            (json!(200), dora("read-only"), Value::Null),
            (json!(400), Value::Null, Value::Null),
        ]
    );
}

/// What is written goes with what is changed: if one cannot be, neither is.
#[tokio::test]
async fn a_change_that_cannot_be_written_is_not_made() {
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
        told(&entries(&app, &app.owner, "").await),
        [(
            "v1-update-a-project".to_owned(),
            500,
            app.home.project.to_string()
        )]
    );
}

#[tokio::test]
async fn a_log_is_its_organizations_and_can_be_looked_through() {
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
async fn what_happens_at_once_makes_one_unbroken_log_that_nobody_can_change() {
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
            .ends_with("its content is not what was hashed")
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

/// What makes no project different: tokens and organizations, with the change, in the log of whoever does it.
#[tokio::test]
async fn tokens_and_organizations_are_written_with_what_they_are() {
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
    let told: Vec<_> = own
        .iter()
        .map(|entry| (&*entry.operation, value(&entry.before), value(&entry.after)))
        .collect();
    // A simulation changes nothing.
    assert_eq!(told.len(), 3, "{told:?}");
    assert_eq!(
        (told[0].0, &told[0].2["id"], &told[0].2["permissions"]),
        (
            "gantry-create-token",
            &made["id"],
            &json!(["database_read"])
        )
    );
    assert_eq!(
        (told[1].0, &told[1].1["id"], &told[1].2),
        ("gantry-revoke-token", &made["id"], &Value::Null)
    );
    assert_eq!(
        (told[2].0, &told[2].2["slug"]),
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

/// What is changed in a project's own database cannot be written down with the change, so it is announced before.
#[tokio::test]
async fn what_changes_a_database_is_announced() {
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
    let told = log().await;
    assert_eq!(statuses(&told), [102, 201, 102, 400]);
    assert!(
        told[0]["request_id"] == told[1]["request_id"]
            && told[1]["request_id"] != told[2]["request_id"]
    );

    // Nobody is left to say how it ended.
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

    // What cannot be announced is not done.
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

/// Everything secret that a life of an organization brings up, looked for in everything that was written.
#[tokio::test]
async fn no_secret_is_in_the_log() {
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
