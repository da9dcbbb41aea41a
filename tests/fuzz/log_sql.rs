//! Statements over logs, in both dialects.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use gantry_logs::{
    Dialect, Logs, QueryError, Question,
    engine::Bounds,
    store::{Options, Store},
};
use tempfile::TempDir;
use tokio::runtime::{self, Runtime};

use super::Target;

pub(super) const TARGET: Target = Target {
    name: "log_sql",
    check,
    cases: 1_000,
    tokens: &[
        "select ",
        "from logs",
        "from edge_logs",
        " where ",
        " group by ",
        " order by ",
        " limit 1",
        " as a",
        "count(*)",
        "(",
        ")",
        ",",
        "'",
        "\"",
        "`",
        "\\",
        "--",
        "/*",
        "*/",
        ";",
        "cast(",
        " as int64)",
        "interval 1 day",
        "unnest(metadata)",
        " cross join ",
        "log_attributes['a']",
        "toStartOfHour(timestamp)",
        "timestamp_trunc(timestamp, hour)",
        "[",
        "]",
        "null",
        "1e400",
        "99999999999999999999",
        "-1",
        "0.5",
        "::",
        "\0",
        "\u{1f600}",
    ],
};

/// Microseconds of an hour.
const HOUR: i64 = 3_600_000_000;

/// Empty logs.
struct Empty {
    runtime: Runtime,
    logs: Logs,
    _folder: TempDir,
}

static LOGS: LazyLock<Empty> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let store = runtime
        .block_on(Store::open(Options::new(folder.path(), "a")))
        .unwrap();
    let bounds = Bounds {
        timeout: Duration::from_secs(30),
        ..Bounds::default()
    };
    Empty {
        runtime,
        logs: Logs::new(Arc::new(store), bounds).unwrap(),
        _folder: folder,
    }
});

/// Checks that a statement returns rows or an error message for its author. A panic in the engine
/// is an internal error, which fails.
fn check(bytes: &[u8]) {
    let Ok(sql) = std::str::from_utf8(bytes) else {
        return;
    };
    for dialect in [Dialect::BigQuery, Dialect::ClickHouse] {
        let question = Question {
            project: "mine".into(),
            dialect,
            sql: sql.into(),
            after: 0,
            until: HOUR,
            now: HOUR / 2,
        };
        match LOGS.runtime.block_on(LOGS.logs.query(question)) {
            Ok(_) | Err(QueryError::TimedOut | QueryError::Busy(_)) => {}
            Err(QueryError::Invalid(text)) => assert!(!text.is_empty()),
            Err(error @ (QueryError::Unavailable(_) | QueryError::Backend(_))) => {
                panic!("{dialect:?}: {error:?}")
            }
        }
    }
}
