//! Connections during state changes of a project.

use std::time::Duration;

use gantry::control::projects::Status;
use tokio::{io::AsyncReadExt, time::timeout};
use tokio_postgres::error::SqlState;

use super::{Way, connect, number, refusal};
use crate::support::{
    TestApp,
    machine::{PATIENCE, kill},
};

async fn ask(way: &Way, what: &str) {
    way.app
        .post(&format!("/v1/projects/{}/{what}", way.project))
        .as_(&way.app.owner)
        .send()
        .await
        .expect(200);
}

/// Returns when the session has ended.
async fn ended(client: &tokio_postgres::Client) {
    let gone = async {
        while client.simple_query("select 1").await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, gone).await.expect("the session goes on");
}

#[tokio::test]
async fn paused_project_rejects_sessions_until_restored() {
    let way = Way::new().await;
    let client = way.connect().await;
    ask(&way, "pause").await;
    way.app.until(&way.project, Status::Inactive).await;
    ended(&client).await;
    let error = connect(&way.config("postgres")).await.unwrap_err();
    let error = error.as_db_error().unwrap();
    assert_eq!(
        (error.code(), error.message()),
        (&SqlState::CANNOT_CONNECT_NOW, "the project is paused")
    );
    assert!(error.hint().unwrap().contains("/restore"), "{error:?}");

    ask(&way, "restore").await;
    // The project is starting; the connection waits.
    assert_eq!(number(&way.connect().await, "select 1::bigint").await, 1);
}

#[tokio::test]
async fn restarted_or_killed_server_accepts_new_sessions() {
    let way = Way::new().await;
    let client = way.connect().await;
    client.batch_execute("create table kept ()").await.unwrap();
    ask(&way, "restart").await;
    ended(&client).await;
    let client = way.connect().await;

    kill(way.app.machine.pid(&way.project).await).await;
    ended(&client).await;
    let again = async {
        // For a moment the status is still healthy.
        loop {
            match connect(&way.config("postgres")).await {
                Ok(client) => break client,
                Err(error) => assert_eq!(
                    error.code(),
                    Some(&SqlState::CANNOT_CONNECT_NOW),
                    "{error:?}"
                ),
            }
        }
    };
    let client = timeout(PATIENCE, again)
        .await
        .expect("nobody is let in any more");
    assert_eq!(
        number(
            &client,
            "select count(*) from pg_class where relname = 'kept'"
        )
        .await,
        1
    );
}

#[tokio::test]
async fn deleted_or_remote_project_is_rejected() {
    let way = Way::new().await;
    let elsewhere = super::config(way.address, &format!("postgres.{}", way.app.home.project));
    assert_eq!(
        refusal(&elsewhere).await,
        (
            SqlState::CANNOT_CONNECT_NOW,
            "the project's database is on another machine".to_owned()
        )
    );
    way.app
        .delete(&format!("/v1/projects/{}", way.project))
        .as_(&way.app.owner)
        .send()
        .await
        .expect(200);
    let (code, message) = refusal(&way.config("postgres")).await;
    assert_eq!(
        (code, message.as_str()),
        (SqlState::INTERNAL_ERROR, "Tenant or user not found")
    );
}

#[tokio::test]
async fn shutdown_waits_for_active_sessions() {
    let way = Way::new().await;
    let idle = way.connect().await;
    let working = way.connect().await;
    let work = tokio::spawn(async move {
        let slept = working.simple_query("select pg_sleep(1)").await.map(drop);
        (slept, working)
    });
    let busy = "select count(*) from pg_stat_activity where query like '%pg_sleep(1)%' and state = 'active' and pid <> pg_backend_pid()";
    while number(&idle, busy).await == 0 {
        tokio::task::yield_now().await;
    }
    way.app.app.postgres_proxy.stop();
    ended(&idle).await;
    let (slept, working) = work.await.unwrap();
    slept.expect("a statement was cut off");
    ended(&working).await;
    timeout(PATIENCE, way.router).await.unwrap().unwrap();
    assert!(
        tokio::net::TcpStream::connect(way.address).await.is_err(),
        "it still takes connections"
    );
}

/// Without a project: a silent connection does not hold a permit for long.
#[tokio::test]
async fn silent_connection_is_closed() {
    let app = TestApp::new().await;
    let project = app.home.project.clone();
    let way = Way::to(app, project).await;
    let mut silent = Vec::new();
    for said in [
        &b""[..],
        b"\0",
        b"\0\0\0\x50\0\x03\0\0us",
        b"\0\0\0\x08\x04\xd2\x16\x2f",
        b"\x16\x03\x01",
    ] {
        let mut raw = way.raw().await;
        raw.send(said).await;
        silent.push(raw);
    }
    for mut raw in silent {
        let mut rest = Vec::new();
        let closed = timeout(Duration::from_secs(30), raw.0.read_to_end(&mut rest)).await;
        assert!(closed.is_ok() && rest.len() <= 1, "{rest:?}");
    }
    assert_eq!(
        way.metric("gantry_router_connections_total{outcome=\"malformed\"}"),
        5
    );
}
