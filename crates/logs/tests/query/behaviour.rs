//! Behaviour of individual functions, messages and limits.

use gantry_logs::{
    DEFAULT_SQL,
    Dialect::{BigQuery, ClickHouse},
    QueryError, ROWS_MAX,
    engine::Bounds,
};
use serde_json::json;

use super::{DAY, HOUR, TestLogs};

#[tokio::test]
async fn command_line_client_page_returns_typed_columns() {
    let logs = TestLogs::open(Bounds::default()).await;
    let sql = "select id, toUnixTimestamp64Milli(timestamp) as ts_ms, source, severity_text, \
        multiIf(source = 'postgres_logs', \
               lower(log_attributes['parsed.error_severity']), source in \
               ('edge_logs','function_edge_logs'), \
               multiIf(toInt32OrZero(log_attributes['response.status_code']) >= 500, 'error', \
               toInt32OrZero(log_attributes['response.status_code']) >= 400, 'warn', 'info'), '') \
               as level, event_message, log_attributes \
               from logs where (source = 'edge_logs' or source = 'postgres_logs') and \
               (toUnixTimestamp64Milli(timestamp) > 1795140000000 \
               or (toUnixTimestamp64Milli(timestamp) = 1795140000000 and id > 'a')) order by \
               ts_ms asc, id asc limit 1000";
    let rows = logs.rows(ClickHouse, sql).await;
    assert_eq!(rows.len(), 440 + 88);
    assert_eq!(
        rows[0][..5],
        [
            json!("db-0008"),
            json!(1_795_140_000_000_i64),
            json!("postgres_logs"),
            json!("LOG"),
            json!("log")
        ]
    );
    let edge = [
        "edge-0040",
        "edge_logs",
        "INFO",
        "warn",
        "GET | 403 | /rest/v1/todos",
    ];
    assert_eq!(
        [0, 2, 3, 4, 5].map(|at| rows[1][at].clone()),
        edge.map(|it| json!(it))
    );
    assert_eq!(
        [
            &rows[1][6]["response.status_code"],
            &rows[1][6]["request.cf.colo"]
        ],
        ["403", "FRA"]
    );
}

#[tokio::test]
async fn clickhouse_statements_return_expected_rows() {
    let logs = TestLogs::open(Bounds::default()).await;
    for (sql, expected) in [
        (
            "select timestamp, toStartOfMinute(timestamp) as m from logs where id = 'edge-0001'",
            json!([["2026-11-20T00:03:00.000001", "2026-11-20T00:03:00"]]),
        ),
        (
            "select log_attributes['nothing'] as it from logs where id = 'edge-0001'",
            json!([[""]]),
        ),
        (
            "select sum(toInt32OrZero(log_attributes['x'])) as s, count() as n from logs where \
             source = 'none'",
            json!([[0, 0]]),
        ),
        (
            "select distinct source from logs order by source",
            json!([
                ["auth_logs"],
                ["edge_logs"],
                ["postgres_logs"],
                ["storage_logs"]
            ]),
        ),
        (
            "select 'total' as d, count() as c from logs where 1 union all select 'edge' as d, \
             countIf(source = 'edge_logs') as c from logs where 1 order by d",
            json!([["edge", 480], ["total", 646]]),
        ),
        (
            "select JSONExtractString(event_message, 'level') as level, count() as n from logs \
             where source in ('auth_logs') group by level order by level",
            json!([["", 30], ["info", 30]]),
        ),
        (
            "select arrayJoin(mapKeys(log_attributes)) as key, count() as n from logs where \
             source = 'storage_logs' group by key order by key",
            json!([
                ["req.method", 10],
                ["req.url", 10],
                ["res.statusCode", 10],
                ["responseTime", 10]
            ]),
        ),
        (
            "select count() as n from logs where source = 'edge_logs' and \
             toInt32OrZero(log_attributes['response.status_code'])",
            json!([[480]]),
        ),
        (
            "select avg(toFloat64OrNull(log_attributes['response.origin_time'])) as a from logs \
             where id in ('edge-0032', 'edge-0033', 'edge-0034')",
            json!([[165.0]]),
        ),
        (
            "select log_attributes['response.origin_time'] as it from logs where id = 'edge-0033'",
            json!([["none"]]),
        ),
        (
            "select source, id from logs order by id desc limit 1 by source",
            json!([
                ["storage_logs", "storage-9"],
                ["edge_logs", "edge-0479"],
                ["postgres_logs", "db-0095"],
                ["auth_logs", "auth-0059"]
            ]),
        ),
        ("select 1 / 0 as it", json!([[null]])),
        (
            "select round(2.34567, 2) as a, round(1234, -2) as b, round(2.5) as c",
            json!([[2.35, 1200, 2.0]]),
        ),
        (
            "select quantiles(0.5, 1)(toInt32OrZero(log_attributes['status'])) as q from logs \
             where id = 'auth-0001'",
            json!([[[400.0, 400.0]]]),
        ),
        (
            "select hasToken(event_message, 'statement') as a, hasToken(event_message, 'state') \
             as b from logs where id = 'db-0001'",
            json!([[true, false]]),
        ),
        (
            "select toInt32(1.9) as a, 7 % 4 as b, intDiv(7, 2) as c, -1 as d",
            json!([[1, 3, 3, -1]]),
        ),
        (
            "select argMax(id, timestamp) as last, any(source) as s, uniqExact(source) as u from \
             logs where source = 'edge_logs'",
            json!([["edge-0479", "edge_logs", 1]]),
        ),
        (
            "select formatDateTime(timestamp, '%Y-%m-%d %H:%i:%S') as it, dateDiff('hour', \
             toDateTime('2026-11-20 00:59:00'), timestamp) as d from logs where id = 'edge-0025'",
            json!([["2026-11-20 01:15:00", 1]]),
        ),
        (
            "select count() from logs settings max_threads = 1",
            json!([[646]]),
        ),
        (
            "select mapContains(log_attributes, 'level') as has, length('äb') as l, \
             substring('hello', 2, 3) as s from logs where id = 'auth-0001'",
            json!([[true, 3, "ell"]]),
        ),
    ] {
        assert_eq!(json!(logs.rows(ClickHouse, sql).await), expected, "{sql}");
    }
}

#[tokio::test]
async fn bigquery_statements_return_expected_rows() {
    let logs = TestLogs::open(Bounds::default()).await;
    for (sql, expected) in [
        (
            "select timestamp, datetime(timestamp) as d from edge_logs where id = 'edge-0001'",
            json!([[DAY + HOUR / 20 + 1, "2026-11-20T00:03:00.000001"]]),
        ),
        (
            "select m.nothing from edge_logs cross join unnest(metadata) as m where id = \
             'edge-0001'",
            json!([[null]]),
        ),
        (
            "select method, path, status_code from edge_logs cross join unnest(metadata) as m \
             cross join unnest(m.request) as q cross join unnest(m.response) as s where id = \
             'edge-0001'",
            json!([["POST", "/storage/v1/object/a.png", 201]]),
        ),
        (
            "select count(*) as n, sum(m.status) as s from auth_logs, unnest(metadata) as m where \
             id = 'none'",
            json!([[0, null]]),
        ),
        (
            "select m.error from auth_logs cross join unnest(metadata) m where id in \
             ('auth-0000', 'auth-0001') order by m.error,",
            json!([[null], ["invalid password"]]),
        ),
        (
            "select 1 / 2 as half, \"a'b\" as t, `id` from edge_logs where id = \"edge-0001\"",
            json!([[0.5, "a'b", "edge-0001"]]),
        ),
        (
            "select cf.asn, cf.colo from edge_logs cross join unnest(metadata) m cross join \
             unnest(m.request) r cross join unnest(r.cf) cf where id = 'edge-0001'",
            json!([[64501, "FRA"]]),
        ),
        (
            "select count(*) as n from edge_logs where timestamp > 1795132800000000 and timestamp \
             <= 1795136400000001",
            json!([[21]]),
        ),
        (
            "select metadata from storage_logs where id = 'storage-1'",
            json!([[[{
                "req": [{ "method": "GET", "url": "/object/a" }],
                "res": [{ "statusCode": 200 }],
                "responseTime": 1.5,
            }]]]),
        ),
        (
            "select m.req from storage_logs cross join unnest(metadata) m where id = 'storage-1'",
            json!([[[{ "method": "GET", "url": "/object/a" }]]]),
        ),
        (
            "select safe_divide(1, 0) as a, safe_cast('x' as int64) as b, if(1 = 1, 'y', 'n') as c",
            json!([[null, null, "y"]]),
        ),
        (
            "select extract(hour from timestamp) as h, format_timestamp('%H:%M', timestamp) as f, \
             timestamp_diff(timestamp, timestamp_micros(1795132800000000), minute) as d from \
             edge_logs where id = 'edge-0025'",
            json!([[1, "01:15", 75]]),
        ),
        (
            "select id, row_number() over (partition by m.level order by id desc) as n from \
             auth_logs, unnest(metadata) as m order by n, id limit 3",
            json!([["auth-0057", 1], ["auth-0058", 1], ["auth-0059", 1]]),
        ),
        (
            "select json_value(event_message, '$.n') as n, split('a,b', ',')[offset(1)] as b from \
             auth_logs where id = 'auth-0004'",
            json!([["4", "b"]]),
        ),
    ] {
        assert_eq!(json!(logs.rows(BigQuery, sql).await), expected, "{sql}");
    }
    assert_eq!(logs.rows(BigQuery, DEFAULT_SQL).await.len(), 100);
}

#[tokio::test]
async fn rejected_statement_returns_the_documented_message() {
    let logs = TestLogs::open(Bounds::default()).await;
    for (dialect, sql, text) in [
        (
            ClickHouse,
            "select * from logs limit 5",
            "restricted wildcard (*) in a result column",
        ),
        (
            BigQuery,
            "select id from edge_logs; select id from edge_logs",
            "Only singular query allowed",
        ),
        (
            BigQuery,
            "select table_name from information_schema.tables",
            "can't find source information_schema.tables",
        ),
        (
            ClickHouse,
            "select id from edge_logs",
            "can't find source edge_logs",
        ),
        (
            ClickHouse,
            "select version(), currentUser()",
            "Restricted function version",
        ),
        (
            ClickHouse,
            "select repeat('a', 2000000000)",
            "Restricted function repeat",
        ),
        (
            ClickHouse,
            "select source_name from logs",
            "Field \"source_name\" does not exist.",
        ),
        (
            BigQuery,
            "select nothing from edge_logs",
            "Field \"nothing\" does not exist.",
        ),
        (
            BigQuery,
            "delete from edge_logs where true",
            "Only SELECT queries allowed",
        ),
        (
            BigQuery,
            "select id from edge_logs where id ilike 'a'",
            "Syntax error: ILIKE is not supported",
        ),
        (ClickHouse, "select intDiv(1, 0)", "Division by zero."),
        (
            ClickHouse,
            "select match(event_message, '(') from logs",
            "Invalid regular expression: error: unclosed group",
        ),
    ] {
        assert_eq!(logs.rejection(dialect, sql).await, text, "{sql}");
    }
}

#[tokio::test]
async fn rows_are_limited_and_outside_lines_are_invisible() {
    let logs = TestLogs::open(Bounds::default()).await;
    let all = logs
        .query(
            ClickHouse,
            "select a.id as one, b.id as other from logs as a cross join logs as b",
        )
        .await
        .unwrap();
    assert_eq!((all.rows.len(), all.truncated), (ROWS_MAX, true));
    let more = logs
        .query(ClickHouse, "select id from logs limit 5000")
        .await
        .unwrap();
    assert_eq!((more.rows.len(), more.truncated), (646, false));
    assert!(more.scanned_rows >= 646 && more.scanned_bytes > 0);
    let few = logs
        .query(BigQuery, "select id from edge_logs limit 3 offset 2")
        .await
        .unwrap();
    assert_eq!((few.rows.len(), few.truncated), (3, false));
    let outside = logs
        .rows(
            ClickHouse,
            "select count() as n from logs where event_message in ('outside', \
            'secret of another project')",
        )
        .await;
    assert_eq!(outside, [[json!(0)]]);
}

#[tokio::test]
async fn memory_and_time_limits_end_a_query() {
    let logs = TestLogs::open(Bounds {
        memory_query: 64 << 10,
        ..Bounds::default()
    })
    .await;
    let text = logs
        .rejection(
            ClickHouse,
            "select a.id as one, groupArray(b.event_message) as all \
        from logs as a cross join logs as b group by one",
        )
        .await;
    assert!(text.contains("Reduce the time range"), "{text}");

    let logs = TestLogs::open(Bounds {
        timeout: std::time::Duration::from_secs(4),
        running: 1,
        ..Bounds::default()
    })
    .await;
    let endless = "select count() as n from logs as a cross join logs as b cross join logs as c \
        where match(concat(a.id, b.id, c.id), 'none')";
    assert_eq!(
        logs.query(ClickHouse, endless).await,
        Err(QueryError::TimedOut)
    );
    // The timed-out query has released its slot.
    let logs = logs.query(ClickHouse, "select 1 as one").await;
    assert_eq!(logs.unwrap().rows.len(), 1);
}
