//! End-to-end queries over known lines.

#![expect(clippy::unwrap_used, reason = "tests")]

mod alike;
mod hostile;
mod latest;
mod lines;
mod rules;

use std::{sync::Arc, time::Duration};

use gantry_logs::{
    Answer, Dialect, Logs, QueryError, Question,
    engine::Bounds,
    event::Event,
    store::{Batch, Options, Store},
};
use serde_json::Value as Json;

/// The day of the lines, in microseconds since 1970.
const DAY: i64 = 1_795_132_800_000_000;
const HOUR: i64 = 3_600_000_000;

struct Asked {
    logs: Logs,
    _folder: tempfile::TempDir,
}

impl Asked {
    async fn open(bounds: Bounds) -> Self {
        Self::with(bounds, lines::mine()).await
    }

    /// Fills a store with the given lines of the project `mine`.
    async fn with(bounds: Bounds, mut filed: Vec<Event>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(Options {
            retention_days: u32::MAX,
            seal_after: Duration::ZERO,
            ..Options::new(folder.path(), "a")
        })
        .await
        .unwrap();
        // Half of the lines are flushed to files, so that queries read files and the log.
        let recent = filed.split_off(filed.len() / 2);
        store
            .append(Batch {
                project: "mine".into(),
                events: filed,
                mark: None,
            })
            .await
            .unwrap();
        while store.stats(DAY).pending_rows > 0 {
            store.upkeep(DAY).await;
        }
        store
            .append(Batch {
                project: "mine".into(),
                events: recent,
                mark: None,
            })
            .await
            .unwrap();
        store
            .append(Batch {
                project: "other".into(),
                events: lines::other(),
                mark: None,
            })
            .await
            .unwrap();
        Self {
            logs: Logs::new(Arc::new(store), bounds).unwrap(),
            _folder: folder,
        }
    }

    async fn ask(&self, dialect: Dialect, sql: &str) -> Result<Answer, QueryError> {
        let question = Question {
            project: "mine".into(),
            dialect,
            sql: sql.into(),
            after: DAY,
            until: DAY + 24 * HOUR,
            now: DAY + 12 * HOUR,
        };
        self.logs.query(question).await
    }

    /// Returns the rows as lists of values in column order.
    async fn rows(&self, dialect: Dialect, sql: &str) -> Vec<Vec<Json>> {
        let answer = self
            .ask(dialect, sql)
            .await
            .unwrap_or_else(|error| panic!("{sql}\n{error:?}"));
        assert!(
            answer
                .rows
                .iter()
                .all(|row| row.len() == answer.columns.len())
        );
        answer
            .rows
            .into_iter()
            .map(|mut row| {
                answer
                    .columns
                    .iter()
                    .map(|it| row.remove(it).unwrap())
                    .collect()
            })
            .collect()
    }

    async fn refusal(&self, dialect: Dialect, sql: &str) -> String {
        match self.ask(dialect, sql).await {
            Err(QueryError::Refused(text)) => text,
            other => panic!("{sql}\n{other:?}"),
        }
    }
}
