//! Access rules of the API, enforced by the proxy: TLS, network restrictions, bans and temporary
//! roles.

use gantry::{control::database_access, platform::access::Project};
use gantry_base::{clock::Clock, ids::ProjectId};
use serde_json::{Value, json};
use tokio_postgres::{Config, config::SslMode, error::SqlState};

use super::{PASSWORD, Way, config, connect, number, refusal};
use crate::support::{TestApp, client::Answer, machine::SuperuserClients as _};

impl Way {
    async fn ask(&self, method: &str, rest: &str, body: Option<Value>) -> Answer {
        let call = self
            .app
            .request(method, &format!("/v1/projects/{}{rest}", self.project))
            .as_(&self.app.owner);
        match body {
            Some(body) => call.json(&body).send().await,
            None => call.send().await,
        }
    }
}

#[tokio::test]
async fn tls_can_be_required() {
    let way = Way::new().await;
    let told = |required: bool| json!({"currentConfig": {"database": required}, "appliedSuccessfully": true});
    assert_eq!(
        way.ask("GET", "/ssl-enforcement", None)
            .await
            .expect(200)
            .json(),
        told(false)
    );
    let require = |required: bool| Some(json!({"requestedConfig": {"database": required}}));
    let there = way.connect().await;
    assert_eq!(
        way.ask("PUT", "/ssl-enforcement", require(true))
            .await
            .expect(200)
            .json(),
        told(true)
    );
    assert_eq!(
        way.ask("GET", "/ssl-enforcement", None)
            .await
            .expect(200)
            .json(),
        told(true)
    );
    assert_eq!(
        refusal(&way.config("postgres")).await.1,
        "SSL connection is required"
    );
    assert_eq!(
        number(&there, "select 1::bigint").await,
        1,
        "who is there stays"
    );
    let mut encrypted = Config::new();
    encrypted
        .host("example.test")
        .hostaddr([127, 0, 0, 1].into())
        .port(way.address.port());
    encrypted
        .user(format!("postgres.{}", way.project))
        .password(PASSWORD)
        .dbname("postgres")
        .ssl_mode(SslMode::Require);
    let (client, connection) = encrypted.connect(way.tls()).await.unwrap();
    tokio::spawn(connection);
    assert_eq!(number(&client, "select 1::bigint").await, 1);
    way.ask("PUT", "/ssl-enforcement", require(false))
        .await
        .expect(200);
    way.connect().await;
}

#[tokio::test]
async fn network_restrictions_limit_client_addresses() {
    let way = Way::new().await;
    let everywhere = json!({"dbAllowedCidrs": ["0.0.0.0/0"], "dbAllowedCidrsV6": ["::/0"]});
    let told = way
        .ask("GET", "/network-restrictions", None)
        .await
        .expect(200)
        .json();
    assert_eq!(
        told,
        json!({"entitlement": "allowed", "config": everywhere, "status": "applied"})
    );

    let lists = json!({"dbAllowedCidrs": ["192.0.2.0/24", "10.1.2.3/8"], "dbAllowedCidrsV6": []});
    let applied = way
        .ask("POST", "/network-restrictions/apply", Some(lists))
        .await
        .expect(201)
        .json();
    let now = json!({"dbAllowedCidrs": ["10.0.0.0/8", "192.0.2.0/24"], "dbAllowedCidrsV6": []});
    assert_eq!(
        (
            &applied["config"],
            &applied["old_config"],
            &applied["status"]
        ),
        (&now, &everywhere, &json!("applied"))
    );
    let (code, message) = refusal(&way.config("postgres")).await;
    assert_eq!(
        (code, message.as_str()),
        (
            SqlState::INVALID_AUTHORIZATION_SPECIFICATION,
            "address not in the project's allow list"
        )
    );

    let patch = json!({"add": {"dbAllowedCidrs": ["127.0.0.1/32"], "dbAllowedCidrsV6": ["2001:db8::/32"]}, "remove": {"dbAllowedCidrs": ["10.0.0.0/8"]}});
    let patched = way
        .ask("PATCH", "/network-restrictions", Some(patch))
        .await
        .expect(200)
        .json();
    let network = |address: &str, family: &str| json!({"address": address, "type": family});
    let all = [
        network("127.0.0.1/32", "v4"),
        network("192.0.2.0/24", "v4"),
        network("2001:db8::/32", "v6"),
    ];
    assert_eq!(patched["config"], json!({ "dbAllowedCidrs": all }));
    assert_eq!(
        patched["old_config"]["dbAllowedCidrs"][0],
        network("10.0.0.0/8", "v4")
    );
    way.connect().await;
    // An omitted list is unchanged.
    way.ask(
        "POST",
        "/network-restrictions/apply",
        Some(json!({"dbAllowedCidrs": ["198.51.100.0/24"]})),
    )
    .await
    .expect(201);
    let kept = way
        .ask("GET", "/network-restrictions", None)
        .await
        .expect(200)
        .json();
    assert_eq!(
        kept["config"],
        json!({"dbAllowedCidrs": ["198.51.100.0/24"], "dbAllowedCidrsV6": ["2001:db8::/32"]})
    );
    connect(&way.config("postgres")).await.unwrap_err();

    for (field, networks) in [
        ("dbAllowedCidrs", json!(["10.0.0.0"])),
        ("dbAllowedCidrs", json!(["::/0"])),
        ("dbAllowedCidrsV6", json!(["0.0.0.0/0"])),
        ("dbAllowedCidrs", json!(["10.0.0.0/33"])),
        ("dbAllowedCidrs", json!(vec!["10.0.0.0/8"; 201])),
    ] {
        let refused = way
            .ask(
                "POST",
                "/network-restrictions/apply",
                Some(json!({ field: networks })),
            )
            .await
            .expect(400);
        assert!(refused.message().starts_with(field), "{}", refused.text());
    }
}

#[tokio::test]
async fn temporary_login_is_limited_to_granted_networks() {
    let way = Way::new().await;
    way.app
        .clock
        .step_wall(Clock::system().now() - way.app.clock.now());
    way.ask("PUT", "/jit-access", Some(json!({"state": "enabled"})))
        .await
        .expect(200);
    let login = async |networks: Value, rhost: &str| {
        let grant = json!({"role": "supabase_read_only_user", "allowed_networks": {"allowed_cidrs": networks}});
        let body = json!({"user_id": way.app.owner.gotrue_id, "roles": [grant]});
        way.ask("PUT", "/database/jit", Some(body))
            .await
            .expect(200);
        let asked = json!({"role": "supabase_read_only_user", "rhost": rhost});
        let answer = way
            .ask("POST", "/database/jit", Some(asked))
            .await
            .expect(200)
            .json();
        let mut config = way.config(answer["login"]["role"].as_str().unwrap());
        config.password(answer["login"]["password"].as_str().unwrap());
        config
    };
    // The address in the request does not permit logins from other addresses.
    let elsewhere = login(json!([{"cidr": "198.51.100.0/24"}]), "198.51.100.7").await;
    assert_eq!(
        refusal(&elsewhere).await.1,
        "address not in the project's allow list"
    );
    let here = login(json!([{"cidr": "127.0.0.0/8"}]), "127.0.0.1").await;
    assert_eq!(
        number(
            &connect(&here).await.unwrap(),
            "select count(*) from pg_roles where rolname = current_user"
        )
        .await,
        1
    );
}

#[tokio::test]
async fn repeated_wrong_passwords_ban_the_address_until_unbanned() {
    let way = Way::new().await;
    let banned = async || {
        way.ask("POST", "/network-bans/retrieve", None)
            .await
            .expect(201)
            .json()
    };
    assert_eq!(banned().await, json!({"banned_ipv4_addresses": []}));
    let mut wrong = way.config("postgres");
    wrong.password("wrong");
    let exhaust = async || {
        for _ in 0..10 {
            assert_eq!(refusal(&wrong).await.0, SqlState::INVALID_PASSWORD);
        }
        // The ban is written after the last response.
        while banned().await["banned_ipv4_addresses"] == json!([]) {}
        let (code, message) = refusal(&way.config("postgres")).await;
        assert_eq!(code, SqlState::INVALID_AUTHORIZATION_SPECIFICATION);
        assert!(
            message.contains("banned"),
            "the right password does not help: {message}"
        );
    };
    exhaust().await;
    assert_eq!(
        banned().await,
        json!({"banned_ipv4_addresses": ["127.0.0.1"]})
    );
    let enriched = way
        .ask("POST", "/network-bans/retrieve/enriched", None)
        .await
        .expect(201)
        .json();
    assert_eq!(
        enriched["banned_ipv4_addresses"][0],
        json!({"banned_address": "127.0.0.1", "identifier": way.project, "type": "postgres"})
    );
    // The ban is stored in the control database, so another node enforces it.
    let there = way.app.another(2, std::sync::Arc::clone(&way.app.machine));
    assert!(
        database_access::admission(&there.app, &way.project, [127, 0, 0, 1].into())
            .await
            .unwrap()
            .unwrap()
            .banned
    );
    let other = way
        .ask(
            "DELETE",
            "/network-bans",
            Some(json!({"ipv4_addresses": ["192.0.2.1", "2001:db8::1"]})),
        )
        .await;
    other.expect(200);
    assert_eq!(
        banned().await,
        json!({"banned_ipv4_addresses": ["127.0.0.1"]})
    );
    let lifted = way
        .ask(
            "DELETE",
            "/network-bans",
            Some(json!({"ipv4_addresses": ["127.0.0.1"]})),
        )
        .await;
    assert_eq!(lifted.expect(200).text(), "");
    way.connect().await;

    exhaust().await;
    // Removes the caller's own address.
    way.ask(
        "DELETE",
        "/network-bans",
        Some(json!({"ipv4_addresses": [], "requester_ip": true})),
    )
    .await
    .expect(200);
    way.connect().await;

    exhaust().await;
    way.app.advance(31 * 60);
    assert_eq!(
        banned().await,
        json!({"banned_ipv4_addresses": []}),
        "a ban ends by itself"
    );
    way.connect().await;
    way.ask(
        "DELETE",
        "/network-bans",
        Some(json!({"ipv4_addresses": ["nonsense"]})),
    )
    .await
    .expect(400);
}

#[tokio::test]
async fn login_role_acts_as_owner_until_expiry() {
    let way = Way::new().await;
    let make = async |read_only: bool| {
        let made = way
            .ask(
                "POST",
                "/cli/login-role",
                Some(json!({ "read_only": read_only })),
            )
            .await
            .expect(201)
            .json();
        assert_eq!(made["ttl_seconds"], 300);
        let text = |field: &str| made[field].as_str().unwrap().to_owned();
        (text("role"), text("password"))
    };
    let (role, password) = make(false).await;
    assert!(role.starts_with("cli_login_postgres_"), "{role}");
    // With the role alone, which contains the reference, and with the suffix of poolers.
    for user in [role.clone(), format!("{role}.{}", way.project)] {
        let mut config = config(way.address, &user);
        config.password(&password);
        let client = connect(&config).await.unwrap();
        assert!(
            client.batch_execute("create table early ()").await.is_err(),
            "it must say first that it is the owner"
        );
        client
            .batch_execute("set session role postgres; create table if not exists late ()")
            .await
            .unwrap();
        let owner: String = client
            .query_one(
                "select tableowner::text from pg_tables where tablename = 'late'",
                &[],
            )
            .await
            .unwrap()
            .get(0);
        assert_eq!(owner, "postgres");
        assert!(
            client
                .batch_execute("set role supabase_admin")
                .await
                .is_err()
        );
    }
    let (reader, secret) = make(true).await;
    let mut reading = config(way.address, &reader);
    reading.password(&secret);
    let client = connect(&reading).await.unwrap();
    assert_eq!(number(&client, "select count(*) from late").await, 0);
    for sql in [
        "create table x ()",
        "set default_transaction_read_only = off; insert into late default values",
        "set role postgres",
    ] {
        assert!(client.batch_execute(sql).await.is_err(), "{sql}");
    }

    let owner = way.connect().await;
    let roles = "select count(*) from pg_roles where rolname like 'cli\\_login\\_%'";
    let left = "select count(*) from pg_roles where rolname like 'cli\\_login\\_%' and rolvaliduntil between now() + interval '4 minutes' and now() + interval '5 minutes'";
    assert_eq!(
        (number(&owner, roles).await, number(&owner, left).await),
        (2, 2),
        "the server knows when they end"
    );
    let admin = way
        .app
        .machine
        .clusters
        .admin_session(&way.project)
        .await
        .unwrap();
    admin
        .batch_execute(&format!(
            "alter role {role} valid until '2000-01-01'; create role cli_login_of_a_customer"
        ))
        .await
        .unwrap();
    let mut late = config(way.address, &role);
    late.password(&password);
    assert_eq!(
        refusal(&late).await.0,
        SqlState::INVALID_PASSWORD,
        "its time is over"
    );
    make(false).await;
    let is_there = |role: &str| format!("select count(*) from pg_roles where rolname = '{role}'");
    assert_eq!(
        number(&owner, &is_there(&role)).await,
        0,
        "the next one sweeps"
    );
    assert_eq!(
        number(&owner, &is_there(&reader)).await,
        1,
        "it is logged in, and in time"
    );

    assert_eq!(
        way.ask("DELETE", "/cli/login-role", None)
            .await
            .expect(200)
            .json(),
        json!({"message": "ok"})
    );
    assert!(
        client.simple_query("select 1").await.is_err(),
        "its session ends"
    );
    assert_eq!(number(&owner, roles).await, 1);
    assert_eq!(
        number(&owner, &is_there("cli_login_of_a_customer")).await,
        1,
        "only ours are dropped"
    );
    for _ in 0..25 {
        make(false).await;
    }
    assert_eq!(
        number(&owner, roles).await,
        21,
        "there are only so many at a time"
    );
}

#[tokio::test]
async fn pooler_configuration_matches_the_listener() {
    let app = TestApp::new().await;
    let project = &app.home.project;
    let string = format!(
        "postgresql://postgres.{project}:[YOUR-PASSWORD]@pooler.example.test:5432/postgres"
    );
    let pooler = app
        .get(&app.at("/config/database/pooler"))
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(
        pooler,
        json!([{
            "identifier": project, "database_type": "PRIMARY", "is_using_scram_auth": true, "db_user": format!("postgres.{project}"),
            "db_host": "pooler.example.test", "db_port": 5432, "db_name": "postgres", "connection_string": string,
            "connectionString": string, "default_pool_size": null, "max_client_conn": 60, "pool_mode": "session",
        }])
    );
    let bouncer = app
        .get(&app.at("/config/database/pgbouncer"))
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(
        (&bouncer["pool_mode"], &bouncer["connection_string"]),
        (&json!("session"), &json!(string))
    );
    for (body, status) in [
        (json!({}), 200),
        (
            json!({"pool_mode": "session", "default_pool_size": null}),
            200,
        ),
        (json!({"pool_mode": "transaction"}), 400),
        (json!({"default_pool_size": 15}), 400),
    ] {
        let answer = app
            .patch(&app.at("/config/database/pooler"))
            .as_(&app.owner)
            .json(&body)
            .send()
            .await
            .expect(status);
        if status == 200 {
            assert_eq!(
                answer.json(),
                json!({"default_pool_size": null, "pool_mode": "session"})
            );
        }
    }
}

#[tokio::test]
async fn deleted_project_loses_its_access_rules() {
    let app = TestApp::new().await;
    let project = app
        .app
        .db
        .query(
            "select id, organization_id from projects where ref = $1",
            &[&app.home.project.as_str()],
        )
        .await
        .unwrap();
    let project = Project {
        id: ProjectId(project[0].get(0)),
        reference: app.home.project.clone(),
        organization: app.home.id,
    };
    app.request("PUT", &app.at("/ssl-enforcement"))
        .as_(&app.owner)
        .json(&json!({"requestedConfig": {"database": true}}))
        .send()
        .await
        .expect(200);
    let block = gantry_base::net::address_block::address_block("2001:db8::7".parse().unwrap());
    database_access::bans::ban(
        &app.app,
        project.id,
        &project.reference,
        block,
        crate::support::dawn() + chrono::TimeDelta::minutes(5),
    )
    .await
    .unwrap();
    assert_eq!(
        database_access::bans::list(&app.app, &project)
            .await
            .unwrap(),
        ["2001:db8::/64"]
    );
    app.delete(&app.at(""))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    for table in [
        "select count(*) from project_networks",
        "select count(*) from network_bans",
    ] {
        assert_eq!(
            app.app.db.query(table, &[]).await.unwrap()[0].get::<_, i64>(0),
            0,
            "{table}"
        );
    }
    for (method, rest) in [
        ("GET", "/ssl-enforcement"),
        ("GET", "/network-restrictions"),
        ("POST", "/network-bans/retrieve"),
        ("GET", "/config/database/pooler"),
    ] {
        let gone = app
            .request(method, &app.at(rest))
            .as_(&app.owner)
            .send()
            .await
            .expect(400);
        assert_eq!(gone.message(), "Resource has been removed", "{rest}");
    }
}
