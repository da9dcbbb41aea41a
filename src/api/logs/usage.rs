//! Usage of project services over time. Counted over the stored log lines, so the figures match the
//! logs.

use chrono::{DateTime, DurationRound, TimeDelta, Utc};
use gantry_base::ids::ProjectRef;
use gantry_logs::Answer;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{query, window::Window};
use crate::{api::context::ApiContext, platform::error::Error};

/// Range of a usage query and its bucket length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
#[expect(missing_docs, reason = "the words of the contract")]
pub enum Interval {
    #[serde(rename = "15min")]
    Quarter,
    #[serde(rename = "30min")]
    Half,
    #[serde(rename = "1hr")]
    Hour,
    #[serde(rename = "3hr")]
    Hours,
    #[serde(rename = "1day")]
    #[default]
    Day,
    #[serde(rename = "3day")]
    Days,
    #[serde(rename = "7day")]
    Week,
}

impl Interval {
    /// Length of a bucket in seconds, and number of buckets.
    const fn shape(self) -> (i64, i64) {
        match self {
            Self::Quarter => (60, 15),
            Self::Half => (60, 30),
            Self::Hour => (60, 60),
            Self::Hours => (60, 180),
            Self::Day => (3_600, 24),
            Self::Days => (3_600, 72),
            Self::Week => (86_400, 7),
        }
    }

    /// Returns the start times of the buckets. The last bucket is incomplete.
    pub fn buckets(self, now: DateTime<Utc>) -> Vec<DateTime<Utc>> {
        let (seconds, count) = self.shape();
        let length = TimeDelta::seconds(seconds);
        // Rounding fails only for times outside the calendar.
        let last = now.duration_trunc(length).unwrap_or(now);
        (0..count)
            .map(|n| last - length * i32::try_from(count - 1 - n).unwrap_or_default())
            .collect()
    }

    /// Returns the range from the first bucket to now. Ranges exclude their start, buckets include
    /// it.
    fn window(self, now: DateTime<Utc>) -> Window {
        let first = self.buckets(now).first().copied().unwrap_or(now);
        Window {
            start: first - TimeDelta::microseconds(1),
            ..Window::around(first, now)
        }
    }

    /// SQL expression for the start of a line's bucket, in seconds.
    fn sql(self) -> String {
        let seconds = self.shape().0;
        format!("intDiv(toUnixTimestamp(timestamp), {seconds}) * {seconds}")
    }
}

/// Services with their own counter, and their path prefixes.
const SERVICES: [(&str, &str); 4] = [
    ("total_auth_requests", "/auth/"),
    ("total_realtime_requests", "/realtime/"),
    ("total_rest_requests", "/rest/"),
    ("total_storage_requests", "/storage/"),
];

/// The rows of a usage response.
pub(super) struct UsageRows {
    pub(super) rows: Vec<Value>,
    /// The reason that counts are incomplete.
    pub(super) warning: Option<String>,
}

/// Returns requests per service, with a row for every bucket.
pub(super) async fn by_service(
    context: &ApiContext,
    project: &ProjectRef,
    interval: Interval,
) -> Result<UsageRows, Error> {
    let counts = SERVICES.map(|(name, path)| {
        format!("countIf(startsWith(log_attributes['request.path'], '{path}')) as {name}")
    });
    let sql = format!(
        "select {} as bucket, {} from logs where source = 'edge_logs' group by bucket order by bucket",
        interval.sql(),
        counts.join(", ")
    );
    let now = context.clock.now();
    let answer = query::count(context, project, sql, interval.window(now)).await?;
    Ok(fill(&answer, &interval.buckets(now), &SERVICES))
}

/// Returns the number of requests to all services of a project in the last day.
pub(super) async fn in_all(context: &ApiContext, project: &ProjectRef) -> Result<UsageRows, Error> {
    let sql =
        "select count() as count from logs where source in ('edge_logs', 'function_edge_logs')"
            .to_owned();
    let answer = query::count(
        context,
        project,
        sql,
        Interval::Day.window(context.clock.now()),
    )
    .await?;
    let count = answer
        .rows
        .first()
        .and_then(|row| row.get("count"))
        .and_then(Value::as_i64)
        .unwrap_or_default();
    Ok(UsageRows {
        rows: vec![json!({ "count": count })],
        warning: answer.warning(),
    })
}

/// Columns of function call statistics.
const CALLS: [(&str, &str); 7] = [
    ("requests_count", "count()"),
    ("success_count", "countIf(status >= 200 and status < 300)"),
    ("redirect_count", "countIf(status >= 300 and status < 400)"),
    (
        "client_err_count",
        "countIf(status >= 400 and status < 500)",
    ),
    ("server_err_count", "countIf(status >= 500)"),
    ("avg_execution_time", "avg(took)"),
    ("max_execution_time", "max(took)"),
];

/// Returns calls of one function, with a row for every bucket.
pub(super) async fn of_function(
    context: &ApiContext,
    project: &ProjectRef,
    function: &str,
    interval: Interval,
) -> Result<UsageRows, Error> {
    let counts = CALLS.map(|(name, what)| format!("{what} as {name}"));
    // Quoted as a string literal of the dialect: backslashes and quotes are escaped.
    let function = function.replace('\\', "\\\\").replace('\'', "\\'");
    let sql = format!(
        "select bucket, {} from (select {} as bucket, toInt32OrZero(log_attributes['response.status_code']) as status, \
         toFloat64OrZero(log_attributes['execution_time_ms']) as took from logs where source = 'function_edge_logs' \
         and log_attributes['function_id'] = '{function}') as calls group by bucket order by bucket",
        counts.join(", "),
        interval.sql(),
    );
    let now = context.clock.now();
    let answer = query::count(context, project, sql, interval.window(now)).await?;
    Ok(fill(&answer, &interval.buckets(now), &CALLS))
}

/// Returns a row for each bucket. Buckets without rows have zero in each of the columns.
fn fill(answer: &Answer, buckets: &[DateTime<Utc>], columns: &[(&str, &str)]) -> UsageRows {
    let zeros: Map<String, Value> = columns
        .iter()
        .map(|(name, _)| ((*name).to_owned(), json!(0)))
        .collect();
    let counted = |at: &DateTime<Utc>| {
        answer
            .rows
            .iter()
            .find(|row| row.get("bucket").and_then(Value::as_i64) == Some(at.timestamp()))
    };
    let row = |at: &DateTime<Utc>| {
        let mut row = counted(at).cloned().unwrap_or_else(|| zeros.clone());
        row.remove("bucket");
        row.insert(
            "timestamp".to_owned(),
            at.format("%Y-%m-%dT%H:%M:%SZ").to_string().into(),
        );
        Value::Object(row)
    };
    UsageRows {
        rows: buckets.iter().map(row).collect(),
        warning: answer.warning(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_whole_and_have_no_gap() {
        let now = "2026-11-21T09:15:03Z".parse().unwrap();
        for (interval, count, first, last) in [
            (Interval::Quarter, 15, "21 09:01", "21 09:15"),
            (Interval::Half, 30, "21 08:46", "21 09:15"),
            (Interval::Hour, 60, "21 08:16", "21 09:15"),
            (Interval::Hours, 180, "21 06:16", "21 09:15"),
            (Interval::Day, 24, "20 10:00", "21 09:00"),
            (Interval::Days, 72, "18 10:00", "21 09:00"),
            (Interval::Week, 7, "15 00:00", "21 00:00"),
        ] {
            let buckets: Vec<String> = interval
                .buckets(now)
                .iter()
                .map(|at| at.format("%d %H:%M").to_string())
                .collect();
            assert_eq!(
                (buckets.len(), &*buckets[0], &*buckets[count - 1]),
                (count, first, last),
                "{interval:?}"
            );
        }
    }

    #[test]
    fn buckets_without_a_line_are_zero() {
        let now: DateTime<Utc> = "2026-11-21T09:15:03Z".parse().unwrap();
        let buckets = Interval::Quarter.buckets(now);
        let row = json!({ "bucket": buckets[1].timestamp(), "n": 7 });
        let answer = Answer {
            rows: vec![row.as_object().unwrap().clone()],
            ..Answer::default()
        };
        let filled = fill(&answer, &buckets, &[("n", "count()")]).rows;
        assert_eq!(
            filled[..3],
            [
                json!({ "timestamp": "2026-11-21T09:01:00Z", "n": 0 }),
                json!({ "timestamp": "2026-11-21T09:02:00Z", "n": 7 }),
                json!({ "timestamp": "2026-11-21T09:03:00Z", "n": 0 }),
            ]
        );
        assert_eq!(filled.len(), 15);
    }
}
