//! Temporary access to a project's database, with real logins by password and their expiry.

mod recovery;

use std::ops::Deref;

use chrono::SubsecRound;
use gantry::{api::organizations::members, platform::access::Role};
use gantry_base::{clock::Clock, ids::ProjectRef};
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_postgres::{Client, NoTls, error::SqlState};

use crate::support::{
    Actor, Node, TestApp,
    client::Answer,
    machine::{PATIENCE, SuperuserClients as _},
};

/// A project with temporary access enabled.
struct Site {
    app: TestApp,
    project: ProjectRef,
}

impl Deref for Site {
    type Target = TestApp;

    fn deref(&self) -> &TestApp {
        &self.app
    }
}

/// Credentials of a login.
struct Login {
    role: String,
    password: String,
}

impl Site {
    async fn new() -> Self {
        let app = TestApp::running().await;
        let project = app.real_project().await;
        let site = Self { app, project };
        site.set_clock();
        site.ask(
            "PUT",
            "/jit-access",
            &site.owner,
            &json!({"state": "enabled"}),
        )
        .await
        .expect(200);
        site
    }

    /// Sets the test clock to the machine's clock, which PostgreSQL uses.
    fn set_clock(&self) {
        self.clock
            .step_wall(Clock::system().now().trunc_subsecs(0) - self.clock.now());
    }

    async fn admin(&self) -> Client {
        self.machine
            .clusters
            .admin_session(&self.project)
            .await
            .unwrap()
    }

    async fn ask(&self, method: &str, rest: &str, actor: &Actor, body: &Value) -> Answer {
        self.ask_at(&self.app, method, rest, actor, body).await
    }

    async fn ask_at(
        &self,
        node: &Node,
        method: &str,
        rest: &str,
        actor: &Actor,
        body: &Value,
    ) -> Answer {
        let call = node
            .request(method, &format!("/v1/projects/{}{rest}", self.project))
            .as_(actor);
        if body.is_null() {
            call.send().await
        } else {
            call.json(body).send().await
        }
    }

    async fn grant(&self, actor: &Actor, roles: Value) -> Answer {
        self.ask(
            "PUT",
            "/database/jit",
            &self.administrator,
            &json!({"user_id": actor.gotrue_id, "roles": roles}),
        )
        .await
    }

    async fn authorize(&self, actor: &Actor, role: &str) -> Answer {
        self.ask(
            "POST",
            "/database/jit",
            actor,
            &json!({"role": role, "rhost": "203.0.113.7"}),
        )
        .await
    }

    async fn login(&self, actor: &Actor, role: &str) -> Login {
        let answer = self.authorize(actor, role).await.expect(200).json();
        let text = |field: &str| answer["login"][field].as_str().unwrap().to_owned();
        Login {
            role: text("role"),
            password: text("password"),
        }
    }

    async fn connect(&self, login: &Login) -> Result<Client, tokio_postgres::Error> {
        let mut config = self.machine.config(&self.project, &login.role);
        let (client, connection) = config.password(&login.password).connect(NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    /// Returns the logins that exist in the server.
    async fn roles(&self) -> Vec<String> {
        let sql =
            "select rolname::text from pg_roles where rolname like 'gantry\\_jit\\_%' order by 1";
        self.admin()
            .await
            .query(sql, &[])
            .await
            .unwrap()
            .iter()
            .map(|row| row.get(0))
            .collect()
    }

    fn in_secs(&self, secs: i64) -> i64 {
        self.clock.now().timestamp() + secs
    }
}

/// Waits until an administrator terminated the session.
async fn ended(session: Client) {
    let error = timeout(PATIENCE, session.query_one("select pg_sleep(600)", &[]))
        .await
        .expect("the session goes on")
        .unwrap_err();
    assert!(
        session.is_closed() || error.code() == Some(&SqlState::ADMIN_SHUTDOWN),
        "{error:?}"
    );
}

fn refused(login: Result<Client, tokio_postgres::Error>) {
    let error = login.expect_err("let in");
    assert!(
        matches!(
            error.code(),
            Some(&SqlState::INVALID_PASSWORD | &SqlState::INVALID_AUTHORIZATION_SPECIFICATION)
        ),
        "{error:?}"
    );
}

#[tokio::test]
async fn login_of_member_works_until_expiry() {
    let site = Site::new().await;
    let expires_at = site.in_secs(3600);
    let role = json!({
        "role": "postgres", "expires_at": expires_at,
        "allowed_networks": {"allowed_cidrs": [{"cidr": "203.0.113.0/24"}], "allowed_cidrs_v6": [{"cidr": "2001:db8::/32"}]},
    });
    let granted = json!({"user_id": site.developer.gotrue_id, "user_roles": [role]});
    assert_eq!(
        site.grant(&site.developer, json!([role]))
            .await
            .expect(200)
            .json(),
        granted
    );
    assert_eq!(
        site.ask("GET", "/database/jit", &site.developer, &json!(null))
            .await
            .expect(200)
            .json(),
        granted
    );
    let listed = site
        .ask(
            "GET",
            "/database/jit/list",
            &site.administrator,
            &json!(null),
        )
        .await
        .expect(200)
        .json();
    let item = json!({
        "user_id": site.developer.gotrue_id, "primary_email": "dora@example.com", "invite_id": null, "expires_at": null, "user_roles": [role],
    });
    assert_eq!(listed, json!({"items": [item]}));

    let answer = site
        .authorize(&site.developer, "postgres")
        .await
        .expect(200)
        .json();
    assert_eq!(
        (&answer["user_role"], &answer["login"]["ttl_seconds"]),
        (&role, &json!(3600))
    );
    let login = site.login(&site.developer, "postgres").await;
    assert_eq!(answer["login"]["role"], login.role, "the same login");
    let first = answer["login"]["password"].as_str().unwrap().to_owned();
    refused(
        site.connect(&Login {
            role: login.role.clone(),
            password: first.clone(),
        })
        .await,
    );
    let session = site.connect(&login).await.unwrap();
    let who = session
        .query_one("select current_user::text, session_user::text", &[])
        .await
        .unwrap();
    assert_eq!((who.get(0), who.get(1)), ("postgres", login.role.as_str()));
    // Objects belong to the granted role, and its privileges are not exceeded.
    session
        .batch_execute("create table made (id int)")
        .await
        .unwrap();
    let owner = "select tableowner::text from pg_tables where tablename = 'made'";
    assert_eq!(
        session
            .query_one(owner, &[])
            .await
            .unwrap()
            .get::<_, &str>(0),
        "postgres"
    );
    session
        .batch_execute("create role gantry_x superuser")
        .await
        .unwrap_err();

    site.advance(3599);
    site.app.app.temporary_access.wake();
    session.query_one("select 1", &[]).await.unwrap();
    site.advance(1);
    site.app.app.temporary_access.wake();
    ended(session).await;
    refused(site.connect(&login).await);
    assert_eq!(
        site.authorize(&site.developer, "postgres").await.status,
        403
    );
    let nothing = json!({"user_id": site.developer.gotrue_id, "user_roles": []});
    assert_eq!(
        site.ask("GET", "/database/jit", &site.developer, &json!(null))
            .await
            .expect(200)
            .json(),
        nothing
    );

    // The audit log records the actions, and the password is stored nowhere.
    let sql = "select coalesce(jsonb_agg(to_jsonb(e)), '[]') from audit_entries e where operation like '%-jit-access%'";
    let log: Value = site.app.app.db.query(sql, &[]).await.unwrap()[0].get(0);
    let statuses: Vec<_> = log
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| {
            (
                entry["operation"].as_str().unwrap(),
                entry["status"].as_i64(),
            )
        })
        .collect();
    let (authorized, updated) = ("v1-authorize-jit-access", "v1-update-jit-access");
    let expected = [
        ("v1-update-jit-access-config", 200),
        (updated, 200),
        (authorized, 200),
        (authorized, 200),
        (authorized, 403),
    ];
    assert_eq!(
        statuses,
        expected.map(|(operation, status)| (operation, Some(status)))
    );
    let kept = site
        .app
        .app
        .db
        .query(
            "select coalesce(jsonb_agg(to_jsonb(l)), '[]') from jit_logins l",
            &[],
        )
        .await
        .unwrap()[0]
        .get::<_, Value>(0);
    for secret in [&first, &login.password, "SCRAM"] {
        assert!(
            !log.to_string().contains(secret) && !kept.to_string().contains(secret),
            "{log} {kept}"
        );
    }
}

#[tokio::test]
async fn transfer_of_the_project_ends_logins_of_its_former_members() {
    let site = Site::new().await;
    site.grant(&site.developer, json!([{"role": "postgres"}]))
        .await
        .expect(200);
    let login = site.login(&site.developer, "postgres").await;
    let session = site.connect(&login).await.unwrap();
    let target = site.tenant("Target", &site.owner).await;
    let attributes = json!({"target_organization_slug": target.slug});
    let body = json!({"data": {"type": "project_transfer_input", "attributes": attributes}});
    let path = format!("/v2/projects/{}/transfers", site.project);
    let preview = site.post(&format!("{path}/previews")).as_(&site.owner);
    let preview = preview.json(&body).send().await.expect(200).json();
    let warnings = &preview["data"]["attributes"]["warnings"];
    assert_eq!(warnings[1]["key"], "temporary_access_ends", "{preview}");
    let transfer = site.post(&path).as_(&site.owner).json(&body);
    transfer.send().await.expect(200);
    ended(session).await;
    refused(site.connect(&login).await);
    assert_eq!(
        site.authorize(&site.developer, "postgres").await.status,
        404
    );
}

#[tokio::test]
async fn every_revocation_terminates_sessions() {
    let site = Site::new().await;
    let (db, organization, user) = (&site.app.app.db, site.home.id, site.developer.user);
    let set = async |role| {
        members::set(db, organization, user, role, site.clock.now(), None)
            .await
            .unwrap();
    };
    let one = format!("/database/jit/{}", site.developer.gotrue_id);
    for way in [
        "removed",
        "granted another",
        "granted for less",
        "disabled",
        "no role",
        "no member",
    ] {
        site.grant(&site.developer, json!([{"role": "postgres"}]))
            .await
            .expect(200);
        let login = site.login(&site.developer, "postgres").await;
        let session = site.connect(&login).await.unwrap();
        match way {
            "removed" => drop(
                site.ask("DELETE", &one, &site.administrator, &json!(null))
                    .await
                    .expect(200),
            ),
            "granted another" => drop(
                site.grant(&site.developer, json!([{"role": "anon"}]))
                    .await
                    .expect(200),
            ),
            "granted for less" => {
                site.grant(
                    &site.developer,
                    json!([{"role": "postgres", "expires_at": site.in_secs(60)}]),
                )
                .await
                .expect(200);
                site.advance(60);
                site.app.app.temporary_access.wake();
            }
            "disabled" => {
                let answer = site
                    .ask(
                        "PUT",
                        "/jit-access",
                        &site.owner,
                        &json!({"state": "disabled"}),
                    )
                    .await
                    .expect(200)
                    .json();
                assert_eq!(
                    answer,
                    json!({"state": "disabled", "appliedSuccessfully": true})
                );
                assert_eq!(
                    site.authorize(&site.developer, "postgres").await.status,
                    400
                );
            }
            "no role" => set(Role::Member).await,
            _ => members::remove(db, organization, user, site.clock.now(), None)
                .await
                .unwrap(),
        }
        ended(session).await;
        refused(site.connect(&login).await);
        set(Role::Developer).await;
        site.ask(
            "PUT",
            "/jit-access",
            &site.owner,
            &json!({"state": "enabled"}),
        )
        .await
        .expect(200);
    }
    site.ask("DELETE", &one, &site.administrator, &json!(null))
        .await
        .expect(404);
    assert_eq!(site.roles().await, [] as [&str; 0]);
}

#[tokio::test]
async fn login_is_limited_to_its_grant() {
    let site = Site::new().await;
    assert_eq!(
        site.authorize(&site.developer, "postgres").await.status,
        403,
        "nothing was granted"
    );
    let elsewhere = json!({"role": "anon", "allowed_networks": {"allowed_cidrs": [{"cidr": "198.51.100.0/24"}]}});
    let roles = json!([
        elsewhere, {"role": "authenticated", "branches_only": true}, {"role": "supabase_admin"}, {"role": "authenticator"},
        {"role": "nobody"}, {"role": "supabase_read_only_user"},
    ]);
    site.grant(&site.developer, roles).await.expect(200);
    for role in ["anon", "authenticated", "service_role"] {
        assert_eq!(
            site.authorize(&site.developer, role).await.status,
            403,
            "{role}"
        );
    }
    assert_eq!(
        site.authorize(&site.administrator, "supabase_read_only_user")
            .await
            .status,
        403,
        "to somebody else"
    );
    for (role, refusal) in [
        (
            "supabase_admin",
            "The role supabase_admin cannot be given to members",
        ),
        (
            "authenticator",
            "The role authenticator cannot be given to members",
        ),
        ("nobody", "There is no role nobody in this database"),
    ] {
        assert_eq!(
            site.authorize(&site.developer, role)
                .await
                .expect(400)
                .message(),
            refusal
        );
    }
    let reader = site
        .connect(&site.login(&site.developer, "supabase_read_only_user").await)
        .await
        .unwrap();
    let error = reader.batch_execute("create table t ()").await.unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::INSUFFICIENT_PRIVILEGE));
    reader
        .batch_execute("set role none; create temp table t ()")
        .await
        .unwrap_err();
    reader.batch_execute("set role postgres").await.unwrap_err();

    for wrong in [
        json!([{"role": "pg_execute_server_program"}]),
        json!([{"role": "gantry_jit_x"}]),
        json!([{"role": ""}]),
        json!([{"role": "x".repeat(64)}]),
        json!([{"role": "anon"}, {"role": "anon"}]),
        json!([{"role": "anon", "expires_at": site.in_secs(0)}]),
        json!([{"role": "anon", "expires_at": site.in_secs(60) * 1000}]),
        json!([{"role": "anon", "allowed_networks": {"allowed_cidrs": [{"cidr": "2001:db8::/32"}]}}]),
        json!([{"role": "anon", "allowed_networks": {"allowed_cidrs": [{"cidr": "nowhere"}]}}]),
        json!(vec![json!({"role": "anon"}); 33]),
    ] {
        site.grant(&site.developer, wrong.clone()).await.expect(400);
    }
    site.grant(&site.stranger, json!([{"role": "anon"}]))
        .await
        .expect(400);
    let kept = site
        .ask("GET", "/database/jit", &site.developer, &json!(null))
        .await
        .expect(200)
        .json();
    assert_eq!(
        kept["user_roles"].as_array().unwrap().len(),
        6,
        "what is refused changes nothing"
    );
}
