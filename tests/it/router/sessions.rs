//! Features of PostgreSQL sessions through the proxy.

use std::{pin::pin, process::Command};

use bytes::Bytes;
use futures_util::{SinkExt, TryStreamExt, future::join_all};
use gantry_node::engines::Engine;
use serde_json::json;
use tokio::time::timeout;
use tokio_postgres::{CancelToken, NoTls, error::SqlState};

use super::{PASSWORD, Way, config, connect, notification, number, refusal};
use crate::{branches::until_finished, support::machine::PATIENCE};

#[tokio::test]
async fn session_starts_under_each_project_name() {
    let way = Way::new().await;
    let mut by_option = config(way.address, "postgres");
    by_option.options(format!(
        "reference={} -c statement_timeout=4711",
        way.project
    ));
    let plain = connect(&by_option).await.unwrap();
    let timeout: String = plain
        .query_one("show statement_timeout", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(timeout, "4711ms", "other options are passed on");

    let mut by_suffix = way.config("postgres");
    by_suffix.dbname("postgres");
    let client = connect(&by_suffix).await.unwrap();
    let row = client
        .query_one(
            "select current_user::text, session_user::text, current_setting('is_superuser')",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(
        [0, 1, 2].map(|n| row.get::<_, String>(n)),
        ["postgres", "postgres", "off"]
    );

    for host in [
        format!("db.{}.example.test", way.project),
        format!("{}.example.test", way.project),
    ] {
        let mut by_host = tokio_postgres::Config::new();
        by_host
            .host(&host)
            .hostaddr([127, 0, 0, 1].into())
            .port(way.address.port())
            .user("postgres")
            .password(PASSWORD)
            .dbname("postgres");
        by_host.ssl_mode(tokio_postgres::config::SslMode::Require);
        let (client, connection) = by_host.connect(way.tls()).await.unwrap();
        tokio::spawn(connection);
        assert_eq!(number(&client, "select 7::bigint").await, 7, "{host}");
    }
    assert_eq!(
        refusal(&config(way.address, "postgres")).await.0,
        SqlState::INTERNAL_ERROR,
        "nothing names it"
    );
}

#[tokio::test]
async fn password_of_another_project_is_rejected() {
    let way = Way::new().await;
    let other = way.app.post("/v1/projects").as_(&way.app.owner).json(&{
        let mut body = way.app.new_project("other");
        body["db_pass"] = "another horse".into();
        body
    });
    let other = other.send().await.expect(201).json()["ref"]
        .as_str()
        .unwrap()
        .to_owned();
    // Immediately after the creation: the connection waits for the project.
    let mut there = config(way.address, &format!("postgres.{other}"));
    assert_eq!(refusal(&there).await.0, SqlState::INVALID_PASSWORD);
    there.password("another horse");
    let client = connect(&there).await.unwrap();
    client
        .batch_execute("create role clerk login password 'clerk''s'; create role \"a.b \"\"c\"\" é\" login password 'odd'")
        .await
        .unwrap();
    for (role, password) in [("clerk", "clerk's"), ("a.b \"c\" é", "odd")] {
        let mut own = config(way.address, &format!("{role}.{other}"));
        own.password(password);
        let client = connect(&own).await.unwrap();
        let me: String = client
            .query_one("select current_user::text", &[])
            .await
            .unwrap()
            .get(0);
        assert_eq!(me, role);
    }
    let mut wrong = way.config("postgres");
    wrong.password("another horse");
    assert_eq!(refusal(&wrong).await.0, SqlState::INVALID_PASSWORD);

    // A changed password applies at once, because the proxy caches none.
    let changed = way
        .app
        .patch(&format!("/v1/projects/{other}/database/password"))
        .as_(&way.app.owner);
    changed
        .json(&serde_json::json!({"password": "third"}))
        .send()
        .await
        .expect(200);
    assert_eq!(refusal(&there).await.0, SqlState::INVALID_PASSWORD);
    there.password("third");
    connect(&there).await.unwrap();
}

#[tokio::test]
async fn generated_password_of_a_branch_logs_in_until_its_owner_sets_another() {
    let way = Way::new().await;
    let app = &way.app;
    for with_data in [false, true] {
        let path = format!("/v1/projects/{}/branches", way.project);
        let body = json!({"branch_name": format!("data-{with_data}"), "with_data": with_data});
        let made = app.post(&path).as_(&app.owner).json(&body).send().await;
        let branch = made.expect(201).json()["project_ref"].clone();
        let branch = branch.as_str().unwrap();
        until_finished(app).await;
        let path = format!("/v1/branches/{branch}");
        let read = async || {
            app.get(&path)
                .as_(&app.owner)
                .send()
                .await
                .expect(200)
                .json()
        };
        let shown = read().await;
        let generated = shown["db_pass"].as_str().unwrap().to_owned();
        let mut login = config(way.address, &format!("postgres.{branch}"));
        login.password(&generated);
        connect(&login).await.unwrap();

        let reset = app.post(&format!("{path}/reset")).as_(&app.owner);
        reset.json(&json!({})).send().await.expect(201);
        until_finished(app).await;
        assert_eq!(read().await["db_pass"], generated);
        connect(&login).await.unwrap();

        let change = app.patch(&format!("/v1/projects/{branch}/database/password"));
        let body = json!({"password": "my own"});
        change.as_(&app.owner).json(&body).send().await.expect(200);
        assert_eq!(read().await.get("db_pass"), None);
        assert_eq!(refusal(&login).await.0, SqlState::INVALID_PASSWORD);
        login.password("my own");
        connect(&login).await.unwrap();
    }
}

#[tokio::test]
async fn notifications_copy_and_large_rows_are_relayed() {
    let way = Way::new().await;
    let (listening, mut connection) = way.config("postgres").connect(NoTls).await.unwrap();
    let client = way.connect().await;
    {
        let mut listen = pin!(listening.batch_execute("listen news"));
        // The connection is driven by the task that waits for its messages.
        timeout(PATIENCE, async {
            loop {
                tokio::select! {
                    done = &mut listen => break done.unwrap(),
                    _ = std::future::poll_fn(|cx| connection.poll_message(cx)) => {}
                }
            }
        })
        .await
        .unwrap();
    }
    client
        .batch_execute("notify news, 'headline'")
        .await
        .unwrap();
    assert_eq!(
        timeout(PATIENCE, notification(&mut connection))
            .await
            .unwrap(),
        "headline"
    );

    client
        .batch_execute("create table lines (n int, text text)")
        .await
        .unwrap();
    let mut sink = pin!(client.copy_in("copy lines from stdin").await.unwrap());
    for n in 0..1000 {
        sink.send(Bytes::from(format!("{n}\t{}\n", "x".repeat(1000))))
            .await
            .unwrap();
    }
    assert_eq!(sink.finish().await.unwrap(), 1000);
    let out = pin!(client.copy_out("copy lines to stdout").await.unwrap());
    let bytes: Vec<Bytes> = out.try_collect().await.unwrap();
    assert_eq!(
        bytes.iter().map(Bytes::len).sum::<usize>(),
        (0..1000)
            .map(|n: u32| n.to_string().len() + 1 + 1000 + 1)
            .sum::<usize>()
    );

    let great: String = client
        .query_one("select repeat('äö', 8000000)", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(great.len(), 32_000_000);
    let back: i64 = client
        .query_one("select length($1::text)::bigint", &[&great])
        .await
        .unwrap()
        .get(0);
    assert_eq!(back, 16_000_000);

    // Pipelined.
    let many = join_all((0..200_i32).map(|n| {
        let client = &client;
        async move {
            client
                .query_one("select $1::int4", &[&n])
                .await
                .unwrap()
                .get::<_, i32>(0)
        }
    }))
    .await;
    assert_eq!(many, (0..200).collect::<Vec<_>>());
}

async fn interrupted(client: &tokio_postgres::Client, token: CancelToken, tls: bool, way: &Way) {
    let sleeping = client.simple_query("select pg_sleep(60)");
    let cancelling = async {
        let busy = "select count(*) from pg_stat_activity where query like '%pg_sleep(60)%' and state = 'active' and pid <> pg_backend_pid()";
        let watcher = way.connect().await;
        while number(&watcher, busy).await == 0 {
            tokio::task::yield_now().await;
        }
        if tls {
            token.cancel_query(way.tls()).await.unwrap();
        } else {
            token.cancel_query(NoTls).await.unwrap();
        }
    };
    let (ended, ()) = timeout(PATIENCE, async { tokio::join!(sleeping, cancelling) })
        .await
        .expect("it is not cancelled");
    assert_eq!(ended.unwrap_err().code(), Some(&SqlState::QUERY_CANCELED));
}

#[tokio::test]
async fn cancel_request_reaches_its_session() {
    let way = Way::new().await;
    let client = way.connect().await;
    interrupted(&client, client.cancel_token(), false, &way).await;
    for _ in 0..5 {
        let crowd = join_all((0..10).map(|_| way.connect())).await;
        drop(crowd);
    }
    interrupted(&client, client.cancel_token(), false, &way).await;

    let mut encrypted = tokio_postgres::Config::new();
    encrypted
        .host("example.test")
        .hostaddr([127, 0, 0, 1].into())
        .port(way.address.port());
    encrypted
        .user(format!("postgres.{}", way.project))
        .password(PASSWORD)
        .dbname("postgres");
    encrypted.ssl_mode(tokio_postgres::config::SslMode::Require);
    let (client, connection) = encrypted.connect(way.tls()).await.unwrap();
    tokio::spawn(connection);
    interrupted(&client, client.cancel_token(), true, &way).await;
    assert!(way.metric("gantry_router_connections_total{outcome=\"cancel\"}") >= 3);
}

#[tokio::test]
async fn connections_beyond_the_budget_of_the_size_are_rejected() {
    let way = Way::new().await;
    let come = (0..100).map(|_| async {
        match connect(&way.config("postgres")).await {
            Ok(client) => {
                assert_eq!(number(&client, "select 1::bigint").await, 1);
                Some(client)
            }
            Err(error) => {
                assert_eq!(
                    error.code(),
                    Some(&SqlState::TOO_MANY_CONNECTIONS),
                    "{error:?}"
                );
                None
            }
        }
    });
    let in_: Vec<_> = join_all(come).await.into_iter().flatten().collect();
    assert_eq!(in_.len(), 60, "the direct connections of the smallest size");
    assert_eq!(way.metric("gantry_router_sessions"), in_.len());
    drop(in_);
    timeout(PATIENCE, async {
        while way.metric("gantry_router_sessions") > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("sessions stay");
    way.connect().await;
}

#[tokio::test]
async fn psql_connects_and_verifies_the_certificate() {
    let way = Way::new().await;
    let psql = Engine::find(None).unwrap().program("psql");
    if !psql.exists() {
        return;
    }
    let run = |extra: String| {
        let url = format!(
            "host=example.test hostaddr=127.0.0.1 port={} dbname=postgres {extra}",
            way.address.port()
        );
        let mut command = Command::new(&psql);
        command
            .args(["-w", "-X", "-A", "-t", &url, "-c", "select 6 * 7"])
            .env("PGPASSWORD", PASSWORD);
        tokio::task::spawn_blocking(move || command.output().unwrap())
    };
    let ca = format!(
        "sslmode=verify-full sslrootcert={}",
        way.authority.display()
    );
    let user = format!("user=postgres.{}", way.project);
    for ways in [
        format!("{user} {ca}"),
        format!("{user} sslmode=disable"),
        format!("user=postgres options=reference={} {ca}", way.project),
    ] {
        let output = run(ways.clone()).await.unwrap();
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "42\n",
            "{ways}: {output:?}"
        );
    }
    // Channel binding is not offered, because the TLS channel ends at the proxy.
    let output = run(format!("{user} {ca} channel_binding=require"))
        .await
        .unwrap();
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("channel binding"),
        "{output:?}"
    );
}

#[tokio::test]
async fn logical_replication_is_relayed_and_physical_rejected() {
    let way = Way::new().await;
    let parameters = |kind| {
        [
            ("user", format!("postgres.{}", way.project)),
            ("database", "postgres".to_owned()),
            ("replication", kind),
        ]
    };
    for (kind, first) in [
        ("database".to_owned(), b'R'),
        ("true".to_owned(), b'E'),
        ("on".to_owned(), b'E'),
    ] {
        let mut raw = way.raw().await;
        let parameters = parameters(kind.clone());
        raw.send(&super::startup(
            &parameters
                .iter()
                .map(|(name, value)| (*name, value.as_str()))
                .collect::<Vec<_>>(),
        ))
        .await;
        let mut answer = [0];
        tokio::io::AsyncReadExt::read_exact(&mut raw.0, &mut answer)
            .await
            .unwrap();
        assert_eq!(answer[0], first, "{kind}");
    }
}
