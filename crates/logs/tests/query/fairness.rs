//! Turns of several projects.

use super::*;

/// Slow over little data.
const SLOW: &str = "select count() as n from logs as a cross join logs as b cross join logs as c \
     where match(concat(a.id, b.id, c.id), 'none')";

/// A project with several slow queries does not delay a query of another project.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_queries_of_one_project_leave_a_turn_to_others() {
    let bounds = Bounds {
        threads: 2,
        running: 2,
        wait: Duration::from_millis(100),
        timeout: Duration::from_secs(20),
        ..Bounds::default()
    };
    let logs = TestLogs::open(bounds).await;
    let mut slow: Vec<_> = (0..8)
        .map(|_| Box::pin(logs.query(Dialect::ClickHouse, SLOW)))
        .collect();
    // Queries beyond the slots of the project are rejected after the wait, the others still run.
    let mut busy = 0;
    while busy < 4 {
        let (result, _, rest) = futures_util::future::select_all(slow).await;
        assert!(matches!(result, Err(QueryError::Busy(_))), "{result:?}");
        busy += 1;
        slow = rest;
    }
    let question = Question {
        project: "other".into(),
        dialect: Dialect::ClickHouse,
        sql: "select count() as n from logs".into(),
        after: DAY,
        until: DAY + 24 * HOUR,
        now: DAY + 12 * HOUR,
    };
    let answer = logs.logs.query(question).await.unwrap();
    assert_eq!(answer.rows.len(), 1);
    drop(slow);
}
