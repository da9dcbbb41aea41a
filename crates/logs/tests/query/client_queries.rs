//! Statements in the shape that dashboards, the CLI and tools of assistants send. Those of the
//! first dialect that have an equivalent in the second one are in `dialects`.

use gantry_logs::{
    Dialect::{BigQuery, ClickHouse},
    engine::Bounds,
};

use super::{DAY, TestLogs};

/// Statement, number of rows, names of columns.
const CLICKHOUSE: &[(&str, usize, &[&str])] = &[
    (
        "select id, log_attributes['identifier'] as identifier, timestamp, event_message, \
         log_attributes['request.method'] as method, log_attributes['response.status_code'] as \
         status_code from logs where source = 'edge_logs' order by timestamp desc limit 100",
        100,
        &[
            "id",
            "identifier",
            "timestamp",
            "event_message",
            "method",
            "status_code",
        ],
    ),
    (
        "select toInt32OrZero(log_attributes['response.status_code']) as status, count() as count \
         from logs where source = 'edge_logs' group by status order by count desc, status asc \
         limit 50",
        5,
        &["status", "count"],
    ),
    (
        "select toStartOfMinute(timestamp) as timestamp, countIf(not \
         ((log_attributes['parsed.error_severity'] in ('ERROR','FATAL','PANIC')) or \
         (log_attributes['parsed.error_severity'] = 'WARNING'))) as ok_count, \
         countIf(log_attributes['parsed.error_severity'] in ('ERROR','FATAL','PANIC')) as \
         error_count, countIf(log_attributes['parsed.error_severity'] = 'WARNING') as \
         warning_count from logs where source = 'postgres_logs' group by timestamp order by \
         timestamp asc limit 300",
        96,
        &["timestamp", "ok_count", "error_count", "warning_count"],
    ),
    (
        "select 'total' as dimension, 'all' as value, count() as count from logs where 1 union \
         all select 'log_type' as dimension, 'edge' as value, countIf(source = 'edge_logs') as \
         count from logs where 1 union all (select 'method' as dimension, \
         (log_attributes['request.method']) as value, count() as count from logs where \
         (log_attributes['request.method']) is not null and (log_attributes['request.method']) != \
         '' group by value limit 20)",
        5,
        &["dimension", "value", "count"],
    ),
    (
        "select distinct source from logs order by source",
        4,
        &["source"],
    ),
    (
        "select id, timestamp, event_message, source, severity_text, log_attributes from logs \
         where source = 'edge_logs' order by timestamp desc limit 2",
        2,
        &[
            "id",
            "timestamp",
            "event_message",
            "source",
            "severity_text",
            "log_attributes",
        ],
    ),
    (
        "select log_attributes['request.method'] as method, \
         avg(toFloat64OrNull(log_attributes['response.origin_time'])) as avg, \
         max(toFloat64OrZero(log_attributes['response.origin_time'])) as mx from logs where \
         source = 'edge_logs' group by method order by method",
        3,
        &["method", "avg", "mx"],
    ),
    (
        "select log_attributes['request.cf.country'] as country, toFloat64(count()) as count from \
         logs where source = 'edge_logs' and notEmpty(log_attributes['request.cf.country']) and \
         match(log_attributes['request.path'], '^/(rest|auth)/v1/') and not \
         startsWith(log_attributes['request.path'], '/rest/v1/rpc') group by country order by \
         count desc, country limit 250",
        2,
        &["country", "count"],
    ),
    (
        "select JSONExtractString(event_message, 'level') as level, count() as n from logs where \
         source in ('auth_logs', 'realtime_logs') group by level order by n desc, level",
        2,
        &["level", "n"],
    ),
    (
        "with e as (select log_attributes['request.path'] as path, \
         toInt32OrZero(log_attributes['response.status_code']) as st from logs where source = \
         'edge_logs') select path, countIf(st >= 400) as bad, count() as n, round(countIf(st >= \
         400) / count(), 4) as ratio from e group by path having n > 20 order by bad desc, path \
         limit 20",
        5,
        &["path", "bad", "n", "ratio"],
    ),
];

#[tokio::test]
async fn statements_of_clients_are_answered() {
    let logs = TestLogs::open(Bounds::default()).await;
    for (sql, rows, columns) in CLICKHOUSE {
        let answer = logs.query(ClickHouse, sql).await;
        let answer = answer.unwrap_or_else(|error| panic!("{sql}\n{error:?}"));
        assert_eq!(answer.columns, *columns, "{sql}");
        assert_eq!(answer.rows.len(), *rows, "{sql}");
    }
}

/// A page after a position of time and id, as the CLI reads them.
#[tokio::test]
async fn pages_by_position_return_every_line_once() {
    let logs = TestLogs::open(Bounds::default()).await;
    let mut after = (DAY / 1_000, String::new());
    let mut found = 0;
    loop {
        let (millis, id) = &after;
        let sql = format!(
            "select id, toUnixTimestamp64Milli(timestamp) as ts_ms, source, severity_text, \
             multiIf(source = 'postgres_logs', lower(log_attributes['parsed.error_severity']), \
             source in ('edge_logs','function_edge_logs'), \
             multiIf(toInt32OrZero(log_attributes['response.status_code']) >= 500, 'error', \
             toInt32OrZero(log_attributes['response.status_code']) >= 400, 'warn', 'info'), '') \
             as level, event_message from logs where (source = 'edge_logs' or source = \
             'postgres_logs') and (toUnixTimestamp64Milli(timestamp) > {millis} or \
             (toUnixTimestamp64Milli(timestamp) = {millis} and id > '{id}')) order by ts_ms asc, \
             id asc limit 100"
        );
        let answer = logs.query(ClickHouse, &sql).await.unwrap();
        let Some(last) = answer.rows.last() else {
            break;
        };
        found += answer.rows.len();
        let id = last["id"].as_str().unwrap().to_owned();
        after = (last["ts_ms"].as_i64().unwrap(), id);
    }
    assert_eq!(found, 480 + 96);
}

#[tokio::test]
async fn whole_metadata_is_an_array_at_every_level() {
    let logs = TestLogs::open(Bounds::default()).await;
    let sql = "select id, timestamp, event_message, metadata from edge_logs order by timestamp \
               desc limit 3";
    let answer = logs.query(BigQuery, sql).await.unwrap();
    assert_eq!(answer.rows.len(), 3);
    for row in &answer.rows {
        assert!(row["timestamp"].is_i64(), "{row:?}");
        let method = &row["metadata"][0]["request"][0]["method"];
        assert!(method.is_string(), "{row:?}");
    }
}

#[tokio::test]
async fn rejected_statements_of_clients_have_their_reason() {
    let logs = TestLogs::open(Bounds::default()).await;
    for (dialect, sql, expected) in [
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
            "select version(), currentUser(), getSetting('max_threads')",
            "Restricted function version",
        ),
        (
            ClickHouse,
            "select repeat('a', 2000000000)",
            "Restricted function repeat",
        ),
    ] {
        let reason = logs.rejection(dialect, sql).await;
        assert_eq!(reason, expected, "{sql}");
    }
}
