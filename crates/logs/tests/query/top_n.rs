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
    let times = burst.chain(rest).enumerate();
    times.map(|(n, at)| line(n, at)).collect()
}

fn line(n: usize, at: i64) -> Event {
    let status = if n % 50 == 7 { 500 } else { 200 };
    let mut attributes = Attributes::default();
    attributes.add("response.status_code", Value::Integer(status));
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
}

/// Truncates a timestamp to the precision of a sort key.
type SortKey = fn(i64) -> i64;
/// Whether a line matches a condition.
type Matches = fn(&Event) -> bool;

#[tokio::test]
async fn incremental_scan_returns_the_rows_of_a_full_scan() {
    let all = lines();
    let logs = TestLogs::with_lines(Bounds::default(), all.clone()).await;
    let orders: [(Dialect, &str, SortKey); 5] = [
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
    for (dialect, key, truncate) in orders {
        let (from, has_status_500) = match dialect {
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
        let filters: [(&str, Matches); 2] = [("true", is_request), (has_status_500, is_failure)];
        for (condition, matches) in filters {
            for (rows, offset) in [(1, 0), (5, 3), (100, 0), (900, 20)] {
                for direction in ["desc", "asc"] {
                    let sql = format!(
                        "select id, {key} as k from {from} and {condition} \
                         order by k {direction}, id limit {rows} offset {offset}"
                    );
                    let sorted = sorted_ids(&all, matches, truncate, direction == "desc");
                    let expected: Vec<_> = sorted.into_iter().skip(offset).take(rows).collect();
                    let mut found = Vec::new();
                    for row in logs.rows(dialect, &sql).await {
                        found.push(row[0].clone());
                    }
                    assert_eq!(found, expected, "{sql}");
                }
            }
        }
    }
}

fn is_request(line: &Event) -> bool {
    line.source == Source::Edge
}

fn is_failure(line: &Event) -> bool {
    is_request(line) && line.attributes.get("response.status_code") == Some(&Value::Integer(500))
}

/// Returns the ids of matching lines sorted by time, then id.
fn sorted_ids(all: &[Event], matches: Matches, truncate: SortKey, descending: bool) -> Vec<Json> {
    let mut lines: Vec<_> = all.iter().filter(|line| matches(line)).collect();
    lines.sort_by_key(|line| {
        let key = truncate(line.timestamp);
        let key = if descending { -key } else { key };
        (key, line.id.clone())
    });
    lines.into_iter().map(|line| json!(line.id)).collect()
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
