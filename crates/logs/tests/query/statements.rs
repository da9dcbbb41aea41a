//! Forms of statements: clauses, unnested records, names of columns, and the memory budget.

use gantry_logs::{
    Dialect::{BigQuery, ClickHouse},
    engine::Bounds,
    event::{Attributes, Event, Source},
};
use serde_json::json;

use super::{DAY, TestLogs};

#[tokio::test]
async fn forms_of_clickhouse() {
    let logs = TestLogs::open(Bounds::default()).await;
    for (sql, expected) in [
        (
            "select l.log_attributes['request.method'] as m, logs2.id as i from logs as l join \
             logs as logs2 on l.id = logs2.id where l.id = 'edge-0001'",
            json!([["POST", "edge-0001"]]),
        ),
        (
            "select logs.log_attributes['request.method'] as m from logs where id = 'edge-0001'",
            json!([["POST"]]),
        ),
        (
            "select workflow_run, id from logs where id = 'edge-0001'",
            json!([["", "edge-0001"]]),
        ),
        (
            "with (select max(id) from logs where source = 'edge_logs') as last select id, last \
             as l from logs where id = last",
            json!([["edge-0479", "edge-0479"]]),
        ),
        (
            "with 'edge-0002' as a, e as (select id from logs where id <= a), length(a) as n \
             select count() as c, n as length from e where startsWith(id, 'edge') group by n",
            json!([[3, 9]]),
        ),
        (
            "select part, count() as n from logs array join splitByChar('-', id) as part where \
             source = 'edge_logs' and id < 'edge-0002' group by part order by part",
            json!([["0000", 1], ["0001", 1], ["edge", 2]]),
        ),
        (
            "select k, v from logs array join mapKeys(log_attributes) as k, \
             mapValues(log_attributes) as v where id = 'edge-0001' and k = 'request.method'",
            json!([["request.method", "POST"]]),
        ),
        (
            "select id, x from (select id, extractAll(id, '[5-9]') as xs from logs where id in \
             ('edge-0001', 'edge-0057')) left array join xs as x order by id, x",
            json!([["edge-0001", ""], ["edge-0057", "5"], ["edge-0057", "7"]]),
        ),
        (
            "select arrayJoin([1, 2]) as a, arrayJoin([3, 4]) as b from logs where id = \
             'edge-0001' order by a, b",
            json!([[1, 3], [1, 4], [2, 3], [2, 4]]),
        ),
        (
            "select toStartOfMinute(timestamp) as t, count() as c, any(source) as s from logs \
             where id in ('edge-0001', 'edge-0002') group by t order by t with fill step 60",
            json!([
                ["2026-11-20T00:03:00", 1, "edge_logs"],
                ["2026-11-20T00:04:00", 0, ""],
                ["2026-11-20T00:05:00", 0, ""],
                ["2026-11-20T00:06:00", 1, "edge_logs"]
            ]),
        ),
        (
            "select toStartOfHour(timestamp) as t, count() as c from logs where source = \
             'storage_logs' and id > 'storage-7' group by t order by t desc with fill from \
             toDateTime('2026-11-20 11:00:00') to toDateTime('2026-11-20 07:00:00') step interval \
             -1 hour limit 4",
            json!([
                ["2026-11-20T11:00:00", 0],
                ["2026-11-20T10:00:00", 0],
                ["2026-11-20T09:00:00", 1],
                ["2026-11-20T08:00:00", 1]
            ]),
        ),
    ] {
        assert_eq!(json!(logs.rows(ClickHouse, sql).await), expected, "{sql}");
    }
    for (sql, reason) in [
        (
            "select leadInFrame(id) over (order by id) as x from logs",
            "Restricted function leadInFrame",
        ),
        (
            "select id from (select id from logs order by id with fill) as l",
            "WITH FILL is not supported in a subquery",
        ),
        (
            "select groupArray(0)(id) as x from logs",
            "A parameter must be a positive number",
        ),
        (
            "select groupArray(id) over () as x from logs",
            "Function groupArray does not support OVER",
        ),
        (
            "select id from logs where toTimeZone(timestamp, 'Asia/Tokyo') > now()",
            "A time in a time zone is comparable only in the same time zone",
        ),
    ] {
        assert_eq!(logs.rejection(ClickHouse, sql).await, reason, "{sql}");
    }
}

#[tokio::test]
async fn columns_without_alias_have_the_names_of_clickhouse() {
    let logs = TestLogs::open(Bounds::default()).await;
    for (expression, name) in [
        ("count(*)", "count()"),
        ("count()", "count()"),
        ("sum(1) / count(*)", "divide(sum(1), count())"),
        ("quantile(0.90)(1)", "quantile(0.9)(1)"),
        (
            "max(log_attributes['status'])",
            "max(arrayElement(log_attributes, 'status'))",
        ),
        (
            "countIf(source = 'a' and not 1)",
            "countIf(and(equals(source, 'a'), not(1)))",
        ),
        ("count(distinct id)", "countDistinct(id)"),
    ] {
        let answer = logs
            .query(ClickHouse, &format!("select {expression} from logs"))
            .await
            .unwrap();
        assert_eq!(answer.columns, [name], "{expression}");
    }
}

#[tokio::test]
async fn cross_join_drops_lines_without_the_record() {
    let lines = [
        (
            "both",
            json!({ "request": { "method": "GET" }, "response": { "status_code": 200 } }),
        ),
        ("rare", json!({ "request": { "cf": { "colo": "FRA" } } })),
        ("none", json!({ "response": { "status_code": 200 } })),
        ("other", json!({ "requests": "x" })),
    ];
    let lines = lines.map(|(id, body)| {
        let attributes = Attributes::of_json(body.as_object().unwrap());
        Event::new(id.into(), DAY + 1, Source::Edge, "m".into(), attributes)
    });
    let logs = TestLogs::with_lines(Bounds::default(), lines.to_vec()).await;
    let from = "from edge_logs cross join unnest(metadata) as m";
    for (sql, expected) in [
        (
            format!("select id {from} cross join unnest(m.request) as r order by id"),
            json!([["both"], ["rare"]]),
        ),
        (
            format!("select count(*) as n {from}, unnest(m.request) as r"),
            json!([[2]]),
        ),
        (
            format!(
                "select r.method as method, count(*) as n {from} cross join unnest(m.request) as \
                 r group by method order by method"
            ),
            json!([[null, 1], ["GET", 1]]),
        ),
        (
            format!(
                "select count(*) as n {from} cross join unnest(m.request) as r cross join \
                 unnest(r.cf) as cf"
            ),
            json!([[1]]),
        ),
        (
            format!("select count(*) as n {from} left join unnest(m.request) as r on true"),
            json!([[4]]),
        ),
        (
            format!("select count(*) as n {from}, unnest(m.response) as r"),
            json!([[2]]),
        ),
    ] {
        assert_eq!(json!(logs.rows(BigQuery, &sql).await), expected, "{sql}");
    }
}

/// 32 MiB of texts are collected within a budget of 24 MiB.
#[tokio::test]
async fn collected_texts_are_charged_to_the_budget_of_the_query() {
    let mut lines = Vec::new();
    for n in 0..512_i64 {
        let message = format!("{n:05}").repeat(64 * 1024 / 5);
        lines.push(Event::new(
            format!("l{n}"),
            DAY + 1 + n,
            Source::Edge,
            message,
            Attributes::default(),
        ));
    }
    let bounds = Bounds {
        memory_query: 24 << 20,
        ..Bounds::default()
    };
    let logs = TestLogs::with_lines(bounds, lines).await;
    for (dialect, sql) in [
        (
            ClickHouse,
            "select length(groupArray(event_message)) as n from logs",
        ),
        (
            ClickHouse,
            "select length(groupUniqArray(event_message)) as n from logs",
        ),
        (
            ClickHouse,
            "select length(topK(3)(event_message)) as n from logs",
        ),
        (
            ClickHouse,
            "select source, length(groupArray(event_message)) as n from logs group by source",
        ),
        (
            ClickHouse,
            "select length(groupArray(tuple(event_message, id))) as n from logs",
        ),
        (
            BigQuery,
            "select array_length(array_agg(event_message order by id)) as n from edge_logs",
        ),
        (
            BigQuery,
            "select length(string_agg(event_message)) as n from edge_logs",
        ),
        (
            ClickHouse,
            "select count() over (partition by event_message) as n, event_message from logs",
        ),
    ] {
        let text = logs.rejection(dialect, sql).await;
        assert!(
            text.starts_with("Query needs too much memory"),
            "{sql}: {text}"
        );
    }
    for (dialect, sql, expected) in [
        (
            ClickHouse,
            "select length(groupArray(3)(event_message)) as n from logs",
            json!([[3]]),
        ),
        (
            BigQuery,
            "select array_length(array_agg(event_message order by id desc limit 2)) as n from \
             edge_logs",
            json!([[2]]),
        ),
    ] {
        assert_eq!(json!(logs.rows(dialect, sql).await), expected, "{sql}");
    }
}
