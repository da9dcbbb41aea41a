//! Sessions with databases, and requests to services, through a node without the project.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use gantry::{
    app::Settings,
    control::proxies,
    proxy::{
        postgres_proxy::{self, SessionKind},
        service_proxy::{
            self, ServiceProxyListeners, WildcardCertificate, upstreams::ServiceUpstream,
        },
    },
};
use serde_json::json;
use tokio::{net::TcpListener, time::timeout};
use tokio_postgres::{Client, Config, NoTls, error::SqlState};

use super::{Member, Pair};
use crate::{
    edge::{Echo, Gate},
    support::{
        TestApp,
        machine::{Machine, PATIENCE},
    },
};

/// Starts the PostgreSQL proxy of a node.
async fn listen(member: &Member, kind: SessionKind) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let context = proxies::postgres_proxy(&member.node.app.control);
    tokio::spawn(postgres_proxy::run(context, listener, None, kind));
    address
}

async fn connect(address: SocketAddr, user: &str) -> Result<Client, tokio_postgres::Error> {
    let mut config = Config::new();
    config
        .host("127.0.0.1")
        .port(address.port())
        .user(user)
        .password("correct horse")
        .dbname("postgres")
        .connect_timeout(Duration::from_secs(20));
    let connected = timeout(PATIENCE, config.connect(NoTls)).await;
    let (client, connection) = connected.expect("it neither works nor fails")?;
    tokio::spawn(connection);
    Ok(client)
}

#[tokio::test]
async fn session_reaches_the_server_of_another_node() {
    let Pair {
        app,
        one,
        two,
        project,
    } = &Pair::new().await;
    let address = listen(one, SessionKind::Direct).await;
    let user = format!("postgres.{project}");
    let client = connect(address, &user).await.unwrap();
    client
        .batch_execute("create table public.kept as select generate_series(1, 200000) as n")
        .await
        .unwrap();
    let rows = client
        .query("select n from public.kept", &[])
        .await
        .unwrap();
    assert_eq!(rows.len(), 200_000);

    // The key of a cancel request is known to the other node only.
    let token = client.cancel_token();
    let slept = client.simple_query("select pg_sleep(600)");
    let cancelled = async {
        let sleeping = "select count(*)::int from pg_stat_activity where wait_event = 'PgSleep'";
        while two.query(app, project, sleeping).await.json() != json!([{"count": 1}]) {}
        token.cancel_query(NoTls).await.unwrap();
    };
    let (slept, ()) = tokio::join!(timeout(PATIENCE, slept), cancelled);
    let error = slept.unwrap().unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::QUERY_CANCELED));

    // Wrong passwords count at the node that holds the project, for the address of the client.
    let wrong = {
        let mut config = Config::new();
        config
            .host("127.0.0.1")
            .port(address.port())
            .user(&user)
            .password("wrong")
            .dbname("postgres");
        config.connect(NoTls).await.err().unwrap()
    };
    assert_eq!(wrong.code(), Some(&SqlState::INVALID_PASSWORD));
    let page = two.node.app.metrics.render();
    let counted = "gantry_router_connections_total{outcome=\"wrong password\"} 1";
    assert!(page.contains(counted), "{page}");

    let unknown = connect(address, "postgres.aaaaaaaaaaaaaaaaaaaa").await;
    let unknown = unknown.err().unwrap();
    assert_eq!(unknown.code(), Some(&SqlState::INTERNAL_ERROR), "{unknown}");
}

#[tokio::test]
async fn session_with_a_node_that_is_down_is_rejected() {
    let Pair {
        app: _app,
        one,
        two,
        project,
    } = Pair::new().await;
    let address = listen(&one, SessionKind::Direct).await;
    two.stop(&one).await;
    let user = format!("postgres.{project}");
    let error = connect(address, &user).await.err().unwrap();
    assert_eq!(error.code(), Some(&SqlState::CANNOT_CONNECT_NOW));
}

#[tokio::test]
async fn requests_to_services_reach_another_node() {
    let app = TestApp::new().await;
    let echo = Echo::start().await;
    let upstream: ServiceUpstream = format!("rest=http://{}/base", echo.address)
        .parse()
        .unwrap();
    let one = Member::start(&app, 11, None).await;
    let machine = Arc::new(Machine::new().await);
    let two = Member::on(&app, machine, 12, None, |settings| Settings {
        service_proxy: service_proxy::Options {
            upstreams: [upstream].into_iter().collect(),
            ..settings.service_proxy
        },
        ..settings
    })
    .await;
    let Pair {
        app,
        one,
        two,
        project,
    } = Pair::of(app, one, two).await;
    let wildcard = WildcardCertificate::own_authority(two.node.machine.dir(), "example.test");
    let _serving = service_proxy::listen(
        &proxies::service_proxy(&two.node.app),
        ServiceProxyListeners::default(),
        Some(wildcard.unwrap()),
    )
    .unwrap();
    // The first node has no upstream of its own.
    let Member { node, port: _port } = one;
    let gate = Gate::of(app, node, project).await;
    let mut client = gate.client().await;
    for path in ["/a", "/b?c=d"] {
        let answer = client.get(&gate.host(), &format!("/rest/v1{path}")).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.json()["target"], format!("/base{path}"));
        let client = answer.saw("x-forwarded-for");
        assert_eq!(client.as_deref(), Some("127.0.0.1"));
    }
}
