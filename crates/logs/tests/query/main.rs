//! End-to-end queries over known lines.

#![expect(clippy::unwrap_used, reason = "tests")]

mod behaviour;
mod client_queries;
mod damage;
mod dialects;
mod exact;
mod fairness;
mod hostile;
mod lines;
mod statements;
mod top_n;

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

/// Appends lines of the project `own`, in batches below the limit of the store.
async fn append(store: &Store, lines: &[Event]) {
    for chunk in lines.chunks(100) {
        let batch = Batch {
            project: "own".into(),
            events: chunk.to_vec(),
            reader_offset: None,
        };
        store.append(batch).await.unwrap();
    }
}

struct TestLogs {
    logs: Logs,
    _folder: tempfile::TempDir,
}

impl TestLogs {
    async fn open(bounds: Bounds) -> Self {
        Self::with_lines(bounds, lines::own_project()).await
    }

    /// Fills a store with the given lines of the project `own`.
    async fn with_lines(bounds: Bounds, mut flushed: Vec<Event>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(Options {
            retention_days: u32::MAX,
            seal_after: Duration::ZERO,
            ..Options::new(folder.path(), "a")
        })
        .await
        .unwrap();
        // Half of the lines are flushed to files, so that queries read files and the log.
        let recent = flushed.split_off(flushed.len() / 2);
        append(&store, &flushed).await;
        while store.stats(DAY).pending_rows > 0 {
            store.upkeep(DAY).await;
        }
        append(&store, &recent).await;
        store
            .append(Batch {
                project: "other".into(),
                events: lines::other_project(),
                reader_offset: None,
            })
            .await
            .unwrap();
        Self {
            logs: Logs::new(Arc::new(store), bounds).unwrap(),
            _folder: folder,
        }
    }

    async fn query(&self, dialect: Dialect, sql: &str) -> Result<Answer, QueryError> {
        let question = Question {
            project: "own".into(),
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
            .query(dialect, sql)
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

    async fn rejection(&self, dialect: Dialect, sql: &str) -> String {
        match self.query(dialect, sql).await {
            Err(QueryError::Invalid(text)) => text,
            other => panic!("{sql}\n{other:?}"),
        }
    }
}
