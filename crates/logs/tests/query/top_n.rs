//! Statements sorted by time, which run as incremental scans, return the same rows as full scans.

use gantry_logs::{
    Dialect::{self, BigQuery, ClickHouse},
    engine::Bounds,
    event::{Attributes, Event, Source, Value},
};
use serde_json::{Value as Json, json};

use super::{DAY, HOUR, TestLogs};

/// A burst within a few seconds and an even distribution over the day, with several lines per
/// timestamp.
fn lines() -> Vec<Event> {
    let burst = (0..3_000_i64).map(|n| 20 * HOUR + n / 3 * 2_000);
    let rest = (0..3_000_i64).map(|n| 1 + n * 24 * HOUR / 3_000);
    let line = |(n, at): (usize, i64)| {
        let mut attributes = Attributes::default();
        attributes.add(
            "response.status_code",
            Value::Integer(if n % 50 == 7 { 500 } else { 200 }),
        );
        let source = if n % 10 == 3 {
            Source::Auth
        } else {
            Source::Edge
        };
        Event::new(
            format!("{n:05}"),
            DAY + at,
            source,
            format!("message {n}"),
            attributes,
        )
    };
    burst.chain(rest).enumerate().map(line).collect()
}

/// Truncates a timestamp to the precision of a sort key.
type Key = fn(i64) -> i64;
/// Whether a line matches a condition.
type Matches = fn(&Event) -> bool;

#[tokio::test]
async fn incremental_scan_returns_the_rows_of_a_full_scan() {
    let all = lines();
    let logs = TestLogs::with_lines(Bounds::default(), all.clone()).await;
    let orders: [(Dialect, &str, Key); 5] = [
        (ClickHouse, "timestamp", |at| at),
        (ClickHouse, "toUnixTimestamp64Milli(timestamp)", |at| {
            at / 1_000
        }),
        (ClickHouse, "toUnixTimestamp(timestamp)", |at| {
            at / 1_000_000
        }),
        (ClickHouse, "toStartOfMinute(timestamp)", |at| {
            at / 60_000_000
        }),
        (BigQuery, "cast(timestamp as datetime)", |at| at),
    ];
    let every: Matches = |line| line.source == Source::Edge;
    let few: Matches = |line| {
        line.source == Source::Edge
            && line.attributes.get("response.status_code") == Some(&Value::Integer(500))
    };
    for (dialect, key, of) in orders {
        let (from, status) = match dialect {
            ClickHouse => (
                "logs where source = 'edge_logs'",
                "toInt32OrZero(log_attributes['response.status_code']) = 500",
            ),
            BigQuery => (
                "edge_logs cross join unnest(metadata) as m cross join unnest(m.response) as r \
                 where true",
                "r.status_code = 500",
            ),
        };
        for (condition, matches_line) in [("", every), (&*format!(" and {status}"), few)] {
            for (rows, skipped) in [(1, 0), (5, 3), (100, 0), (900, 20)] {
                for direction in ["desc", "asc"] {
                    let sql = format!(
                        "select id, {key} as k from {from}{condition} order by k {direction}, id \
                         limit {rows} offset {skipped}"
                    );
                    let mut expected: Vec<&Event> =
                        all.iter().filter(|line| matches_line(line)).collect();
                    expected.sort_by_key(|line| {
                        let key = of(line.timestamp);
                        (
                            if direction == "desc" { -key } else { key },
                            line.id.clone(),
                        )
                    });
                    let expected: Vec<Json> = expected
                        .iter()
                        .skip(skipped)
                        .take(rows)
                        .map(|line| json!(line.id))
                        .collect();
                    let found: Vec<Json> = logs
                        .rows(dialect, &sql)
                        .await
                        .into_iter()
                        .map(|row| row[0].clone())
                        .collect();
                    assert_eq!(found, expected, "{sql}");
                }
            }
        }
    }
}

#[tokio::test]
async fn statements_that_depend_on_other_lines_see_all_lines() {
    let logs = TestLogs::with_lines(Bounds::default(), lines()).await;
    for (sql, expected) in [
        (
            "select count() over () as n from logs order by timestamp desc limit 1",
            json!(6_000),
        ),
        (
            "select (select count() from logs) as n from logs order by timestamp desc limit 1",
            json!(6_000),
        ),
        (
            "select count() as n from logs where id in (select id from logs order by timestamp \
             limit 10)",
            json!(10),
        ),
        (
            "select id from logs where id in (select max(id) from logs) order by timestamp desc \
             limit 1",
            json!("05999"),
        ),
        (
            "select id from (select id, timestamp from logs order by id limit 1) order by \
             timestamp desc limit 1",
            json!("00000"),
        ),
        (
            "select count() as n from logs group by source order by min(timestamp) desc limit 1",
            json!(600),
        ),
    ] {
        assert_eq!(logs.rows(ClickHouse, sql).await[0][0], expected, "{sql}");
    }
}
