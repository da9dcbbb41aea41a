//! Limits of a query: time, size of the result, and writes in read-only queries.

use std::time::Duration;

use gantry::{
    api::database::{
        migrations,
        query::{SqlQuery, run_query},
    },
    control::database_session::{
        READER,
        session::{ConnectTarget, SessionLimits},
    },
    platform::error::Error,
};
use serde_json::json;
use tokio::time::{Instant, timeout};

use super::{LIMITS, message, one, our_own, read, run, server, wait_until_idle};

#[tokio::test]
async fn result_over_limit_is_rejected_with_limit() {
    let target = server().await;
    assert_eq!(
        message(run(&target, "select generate_series(1, 1001)").await),
        "query: the result has more than 1000 rows; add a limit"
    );
    let large = "query: the result is over 1048576 bytes; select less";
    assert_eq!(
        message(
            run(
                &target,
                "select repeat('x', 2000) from generate_series(1, 900)"
            )
            .await
        ),
        large
    );
    assert_eq!(
        message(run(&target, "select repeat('x', 2000000)").await),
        large
    );
    assert_eq!(
        message(run(&target, "select repeat(e'\\x01', 500000)").await),
        large,
        "small as text, large as JSON"
    );
    assert_eq!(
        message(
            run(
                &target,
                "do $$ begin raise notice '%', repeat('x', 2000000); end $$"
            )
            .await
        ),
        large
    );
    assert_eq!(
        run(&target, "select generate_series(1, 1000)")
            .await
            .unwrap()
            .as_array()
            .unwrap()
            .len(),
        1000
    );
}

#[tokio::test]
async fn notices_and_notifications_are_discarded() {
    let target = server().await;
    let text = "listen a; do $$ begin for i in 1..20000 loop raise notice '%', repeat('x', 1000); end loop; end $$; notify a; select 1 as a";
    assert_eq!(run(&target, text).await.unwrap(), json!([{"a": 1}]));
}

async fn overdue(target: &ConnectTarget, text: &str) -> Duration {
    let start = Instant::now();
    let limits = SessionLimits {
        time: Duration::from_millis(500),
        ..LIMITS
    };
    let result = run_query(
        target,
        &SqlQuery {
            text: text.into(),
            ..SqlQuery::default()
        },
        limits,
    )
    .await;
    assert_eq!(
        message(result),
        "Failed to run sql query: ERROR:  57014: canceling statement due to statement timeout\n"
    );
    start.elapsed()
}

#[tokio::test]
async fn statement_over_deadline_is_cancelled() {
    let target = server().await;
    assert!(
        overdue(&target, "set statement_timeout = 0; select pg_sleep(30)").await
            < Duration::from_millis(1400),
        "without the grace"
    );
    assert!(
        overdue(
            &target,
            "do $$ begin loop raise notice 'x'; end loop; end $$"
        )
        .await
            < Duration::from_secs(3)
    );
    wait_until_idle(&target).await;
}

#[tokio::test]
async fn statement_surviving_cancel_is_terminated() {
    let target = server().await;
    let stubborn = "do $$ begin loop begin perform pg_sleep(30); exception when query_canceled then null; end; end loop; end $$";
    let took = overdue(&target, stubborn).await;
    assert!(
        took > Duration::from_millis(1400) && took < Duration::from_secs(5),
        "{took:?}"
    );
    wait_until_idle(&target).await;
}

#[tokio::test]
async fn statement_completed_in_grace_period_succeeds() {
    let target = server().await;
    let limits = SessionLimits {
        time: Duration::from_millis(500),
        ..LIMITS
    };
    let text = "create table t (); do $$ begin perform pg_sleep(5); exception when query_canceled then null; end $$; select 1 as a";
    let rows = run_query(
        &target,
        &SqlQuery {
            text: text.into(),
            ..SqlQuery::default()
        },
        limits,
    )
    .await
    .unwrap();
    assert_eq!(rows, r#"[{"a":1}]"#);
    assert_eq!(
        one(&target, "select to_regclass('t')::text").await,
        json!("t")
    );
}

#[tokio::test]
async fn disconnected_caller_cancels_statement() {
    let target = server().await;
    let stubborn = "set client_connection_check_interval = 0;
        do $$ begin loop begin perform pg_sleep(30); exception when query_canceled then null; end; end loop; end $$";
    timeout(Duration::from_millis(300), run(&target, stubborn))
        .await
        .unwrap_err();
    wait_until_idle(&target).await;
}

#[tokio::test]
async fn missing_server_is_unreachable() {
    let folder = tempfile::tempdir().unwrap();
    let nobody = ConnectTarget::new(our_own(folder.path().join(".s.PGSQL.5432")));
    assert_eq!(
        message(run(&nobody, "select 1").await),
        "Connection terminated due to connection timeout"
    );

    let _silent = std::os::unix::net::UnixListener::bind(nobody.socket().path()).unwrap();
    let limits = SessionLimits {
        time: Duration::from_millis(200),
        ..LIMITS
    };
    assert!(matches!(
        migrations::list(&nobody, limits).await,
        Err(Error::DatabaseUnreachable)
    ));
}

#[tokio::test]
async fn terminated_session_returns_error() {
    let target = server().await;
    assert!(
        message(run(&target, "select pg_terminate_backend(pg_backend_pid())").await)
            .contains("FATAL:  57P01: ")
    );
}

// Read-only.

#[tokio::test]
async fn write_in_read_only_query_is_rejected() {
    let target = server().await;
    run(
        &target,
        "create table public.t (id int); insert into t values (1)",
    )
    .await
    .unwrap();
    assert_eq!(
        read(&target, "select id from public.t").await.unwrap(),
        json!([{"id": 1}])
    );
    assert_eq!(
        read(&target, "select current_user::text as me")
            .await
            .unwrap(),
        json!([{"me": READER}])
    );
    for text in [
        "insert into public.t values (2)",
        "create table public.u ()",
        "drop table public.t",
        "create temp table u ()",
    ] {
        assert!(
            message(read(&target, text).await).contains("ERROR:  25006: cannot execute "),
            "{text}"
        );
    }
}

#[tokio::test]
async fn parameterized_write_in_read_only_query_is_rejected() {
    let target = server().await;
    run(&target, "create table public.t (id int)")
        .await
        .unwrap();
    let query = |text: &str| SqlQuery {
        text: text.into(),
        parameters: vec![json!(1)],
        read_only: true,
    };
    assert_eq!(
        run_query(&target, &query("select $1::int as a"), LIMITS)
            .await
            .unwrap(),
        r#"[{"a":1}]"#
    );
    assert!(
        message(run_query(&target, &query("insert into public.t values ($1)"), LIMITS).await)
            .contains("25006")
    );
}
