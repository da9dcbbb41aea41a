//! Temporary access after restarts, clock changes, on two nodes and by invitation.

use std::sync::Arc;

use gantry::control::projects::Status;
use serde_json::{Value, json};

use super::{Login, Site, ended, refused};
use crate::support::{Actor, machine::Machine};

/// While Gantry is down, PostgreSQL rejects expired logins. The next start terminates their
/// sessions.
#[tokio::test]
async fn expired_session_is_terminated_after_restart() {
    let mut site = Site::new().await;
    site.set_clock();
    site.grant(
        &site.developer,
        json!([{"role": "postgres", "expires_at": site.in_secs(5)}]),
    )
    .await
    .expect(200);
    let login = site.login(&site.developer, "postgres").await;
    let session = site.connect(&login).await.unwrap();
    site.app.node.kill();
    // PostgreSQL uses the machine's clock.
    session.query_one("select pg_sleep(6)", &[]).await.unwrap();
    refused(site.connect(&login).await);
    assert_eq!(site.roles().await, [login.role.as_str()]);
    site.advance(5);
    let mut back = site.another(1, Arc::clone(&site.machine));
    back.start();
    ended(session).await;
    back.stop().await;
}

/// Logins revoked while the project is paused, and unknown ones, are removed before the project is
/// published again.
#[tokio::test]
async fn resumed_project_accepts_only_valid_logins() {
    let site = Site::new().await;
    site.grant(&site.developer, json!([{"role": "postgres"}]))
        .await
        .expect(200);
    site.grant(&site.administrator, json!([{"role": "postgres"}]))
        .await
        .expect(200);
    let (gone, stays) = (
        site.login(&site.developer, "postgres").await,
        site.login(&site.administrator, "postgres").await,
    );
    let admin = site.admin().await;
    // State of a backup from another time, with an object that prevents dropping a role.
    admin
        .batch_execute(&format!(
            "create role gantry_jit_stray login; create table public.t (); alter table public.t owner to {}",
            gone.role
        ))
        .await
        .unwrap();
    drop(admin);
    let state = async |what: &str, status| {
        site.ask("POST", what, &site.owner, &json!(null))
            .await
            .expect(200);
        site.until(&site.project, status).await;
    };
    state("/pause", Status::Inactive).await;
    site.authorize(&site.developer, "postgres")
        .await
        .expect(544);
    site.ask(
        "DELETE",
        &format!("/database/jit/{}", site.developer.gotrue_id),
        &site.administrator,
        &json!(null),
    )
    .await
    .expect(200);
    state("/restore", Status::ActiveHealthy).await;
    assert_eq!(site.roles().await, [stays.role.as_str()]);
    site.connect(&stays).await.unwrap();
    let owner = "select tableowner::text from pg_tables where tablename = 't'";
    assert_eq!(
        site.admin()
            .await
            .query_one(owner, &[])
            .await
            .unwrap()
            .get::<_, &str>(0),
        "postgres"
    );
    let left: i64 = site
        .app
        .app
        .db
        .query("select count(*) from jit_logins", &[])
        .await
        .unwrap()[0]
        .get(0);
    assert_eq!(left, 1);

    site.ask("DELETE", "", &site.owner, &json!(null))
        .await
        .expect(200);
    let left = "select (select count(*) from jit_logins) + (select count(*) from jit_grants) + (select count(*) from jit_settings)";
    assert_eq!(
        site.app.app.db.query(left, &[]).await.unwrap()[0].get::<_, i64>(0),
        0
    );
}

#[tokio::test]
async fn clock_adjustment_expires_and_never_restores_access() {
    let site = Site::new().await;
    site.grant(
        &site.developer,
        json!([{"role": "postgres", "expires_at": site.in_secs(3600)}]),
    )
    .await
    .expect(200);
    let login = site.login(&site.developer, "postgres").await;
    let session = site.connect(&login).await.unwrap();
    site.clock.step_wall(chrono::TimeDelta::hours(-1));
    site.app.app.temporary_access.wake();
    session.query_one("select 1", &[]).await.unwrap();
    site.clock.step_wall(chrono::TimeDelta::hours(2));
    site.app.app.temporary_access.wake();
    ended(session).await;
    site.clock.step_wall(chrono::TimeDelta::hours(-1));
    site.app.app.temporary_access.wake();
    refused(site.connect(&login).await);
}

#[tokio::test]
async fn request_on_one_node_is_applied_by_the_other() {
    let site = Site::new().await;
    let mut other = site.another(2, Arc::new(Machine::bare()));
    other.start();
    site.grant(&site.developer, json!([{"role": "postgres"}]))
        .await
        .expect(200);
    let body = json!({"role": "postgres", "rhost": "::1"});
    let answer = site
        .ask_at(&other, "POST", "/database/jit", &site.developer, &body)
        .await
        .expect(200)
        .json();
    let text = |field: &str| answer["login"][field].as_str().unwrap().to_owned();
    let login = Login {
        role: text("role"),
        password: text("password"),
    };
    let session = site.connect(&login).await.unwrap();
    let one = format!("/database/jit/{}", site.developer.gotrue_id);
    site.ask_at(&other, "DELETE", &one, &site.administrator, &json!(null))
        .await
        .expect(200);
    // The call returned after the other node removed the login.
    refused(site.connect(&login).await);
    ended(session).await;
    other.stop().await;
}

#[tokio::test]
async fn invited_person_reaches_only_the_database() {
    let site = Site::new().await;
    let outsider = &site.stranger;
    let invite = async |roles: Value| {
        let body = json!({"email": "Stan@example.com", "roles": roles});
        site.ask("POST", "/database/jit/invite", &site.administrator, &body)
            .await
    };
    assert_eq!(invite(json!([])).await.status, 400);
    let made = invite(json!([{"role": "postgres", "expires_at": site.in_secs(60)}, {"role": "supabase_read_only_user"}])).await;
    let made = made.expect(201).json();
    let (id, token, email) = (
        made["invite_id"].as_str().unwrap(),
        &made["token"],
        &made["email"],
    );
    let listed = async || {
        site.ask(
            "GET",
            "/database/jit/list",
            &site.administrator,
            &json!(null),
        )
        .await
        .expect(200)
        .json()["items"]
            .clone()
    };
    let pending = listed().await;
    assert_eq!(
        (
            &pending[0]["invite_id"],
            &pending[0]["user_id"],
            &pending[0]["primary_email"]
        ),
        (&json!(id), &json!(null), email)
    );
    assert_eq!(pending[0]["user_roles"], made["user_roles"]);

    let accept = async |actor: &Actor, email: &Value, token: &Value| {
        site.ask(
            "POST",
            "/database/jit/invite/accept",
            actor,
            &json!({"email": email, "token": token}),
        )
        .await
    };
    for (who, email, token) in [
        (&site.developer, email, token),
        (outsider, &json!("dora@example.com"), token),
        (
            outsider,
            email,
            &json!("gantry_jit_invite_0000000000000000000000000000000000000000"),
        ),
    ] {
        assert_eq!(accept(who, email, token).await.status, 404);
    }
    let accepted = accept(outsider, email, token).await.expect(200).json();
    assert_eq!(
        (&accepted["user_roles"], &accepted["user_id"]),
        (&made["user_roles"], &json!(outsider.gotrue_id))
    );
    let login = |accepted: &Value, n: usize| {
        let text = |field: &str| accepted["logins"][n][field].as_str().unwrap().to_owned();
        Login {
            role: text("role"),
            password: text("password"),
        }
    };
    let session = site.connect(&login(&accepted, 0)).await.unwrap();
    assert_eq!(
        session
            .query_one("select current_user::text", &[])
            .await
            .unwrap()
            .get::<_, &str>(0),
        "postgres"
    );
    let reader = site.connect(&login(&accepted, 1)).await.unwrap();
    assert_eq!(listed().await[0]["user_id"], json!(outsider.gotrue_id));
    // The project and the rest of the organization stay hidden.
    for path in ["", "/database/jit", "/api-keys"] {
        assert_eq!(
            site.ask("GET", path, outsider, &json!(null)).await.status,
            404,
            "{path}"
        );
    }
    let projects = site
        .get("/v1/projects")
        .as_(outsider)
        .send()
        .await
        .expect(200)
        .json();
    assert!(
        !projects.to_string().contains(site.project.as_str()),
        "{projects}"
    );

    // One role has expired. Accepting again renews the other.
    site.advance(61);
    site.app.app.temporary_access.wake();
    ended(session).await;
    let renewed = accept(outsider, email, token).await.expect(200).json();
    assert_eq!(
        (
            &renewed["user_roles"][0]["role"],
            renewed["logins"].as_array().unwrap().len()
        ),
        (&json!("supabase_read_only_user"), 1)
    );
    refused(site.connect(&login(&accepted, 1)).await);
    site.connect(&login(&renewed, 0)).await.unwrap();

    // Revoking the invitation terminates its sessions.
    let path = format!("/database/jit/invite/{id}");
    site.ask("DELETE", &path, &site.administrator, &json!(null))
        .await
        .expect(200);
    ended(reader).await;
    refused(site.connect(&login(&renewed, 0)).await);
    assert_eq!(site.roles().await, Vec::<String>::new());
    assert_eq!(accept(outsider, email, token).await.status, 404);
    assert_eq!(
        site.ask("DELETE", &path, &site.administrator, &json!(null))
            .await
            .status,
        404
    );

    // The invited person can be removed as well, and a revoked invitation cannot be accepted again.
    let again = invite(json!([{"role": "postgres"}]))
        .await
        .expect(201)
        .json();
    let accepted = accept(outsider, email, &again["token"])
        .await
        .expect(200)
        .json();
    let session = site.connect(&login(&accepted, 0)).await.unwrap();
    site.ask(
        "DELETE",
        &format!("/database/jit/{}", outsider.gotrue_id),
        &site.administrator,
        &json!(null),
    )
    .await
    .expect(200);
    ended(session).await;
    assert_eq!(accept(outsider, email, &again["token"]).await.status, 404);
    // The default expiry is one day.
    let last = invite(json!([{"role": "postgres"}]))
        .await
        .expect(201)
        .json();
    site.advance(24 * 3600);
    assert_eq!(accept(outsider, email, &last["token"]).await.status, 404);
}
