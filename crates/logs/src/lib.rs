//! Log lines of projects: durable before they are acknowledged, kept as Parquet, read by SQL of two dialects.
//!
//! Knows nothing of the rest of Gantry: a project is a text here. [`event`] is what a line is, [`layout`] how lines are laid
//! out in columns, `store` keeps them, [`engine`] runs statements over them, `bigquery` and `clickhouse` read what clients send.

mod bigquery;
mod clickhouse;
pub mod engine;
pub mod event;
pub mod fields;
pub mod layout;
mod sql;
pub mod store;

use std::sync::Arc;

use serde_json::{Map, Value as Json};

/// The seam to where files are kept: [`store::Options::objects`].
pub use datafusion::object_store;

pub use self::sql::{Dialect, SQL_BYTES_MAX};
use self::{
    engine::{Bounds, Engine},
    store::Store,
};

/// Rows of an answer at most.
pub const ROWS_MAX: usize = 1_000;

/// What a query found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Answer {
    /// The names of its columns, in order.
    pub columns: Vec<String>,
    /// Its rows.
    pub rows: Vec<Map<String, Json>>,
    /// Whether there were more rows than are given.
    pub cut: bool,
    /// Lines that were looked at.
    pub scanned_rows: u64,
    /// Bytes that were read for them.
    pub scanned_bytes: u64,
}

/// A query has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// It says something that cannot be done. The text is for whoever wrote it.
    #[error("{0}")]
    Refused(String),
    /// It took too long.
    #[error("Query timed out. Retry your query or reduce the time range.")]
    TimedOut,
    /// Files of lines cannot be read at the moment. The text is not for whoever wrote it.
    #[error("The files of the logs cannot be read at the moment. Retry your query.")]
    Away(String),
    /// It could not be answered, which is not its fault. The text is not for whoever wrote it.
    #[error("Backend error! Retry your query. Please contact support if this continues.")]
    Backend(String),
}

impl QueryError {
    /// What keeps from an answer, told apart by whether files could be read.
    pub(crate) fn of(error: &(dyn std::error::Error + 'static)) -> Self {
        let causes: Vec<_> = causes(error).collect();
        let mut text = String::new();
        for cause in causes.iter().map(ToString::to_string) {
            // Many say what they come from as well.
            if !text.contains(&cause) {
                text = if text.is_empty() {
                    cause
                } else {
                    format!("{text}: {cause}")
                };
            }
        }
        if causes.iter().any(|cause| cause.is::<object_store::Error>()) {
            Self::Away(text)
        } else {
            Self::Backend(text)
        }
    }
}

/// An error, what it comes from, and so on.
pub(crate) fn causes<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| error.source())
}

/// What is asked of the lines of a project.
#[derive(Debug, Clone)]
pub struct Question {
    /// Whose lines.
    pub project: String,
    /// Which SQL it is asked in.
    pub dialect: Dialect,
    /// The statement.
    pub sql: String,
    /// Lines after this moment, in microseconds since 1970,
    pub after: i64,
    /// up to and including this one.
    pub until: i64,
    /// The present, for statements that ask for it.
    pub now: i64,
}

/// What one dialect asks where nothing is asked.
pub const NOTHING_ASKED: &str =
    "SELECT id, timestamp, event_message, metadata FROM edge_logs LIMIT 100";

/// The lines of all projects, to be asked.
pub struct Logs {
    store: Arc<Store>,
    engine: Engine,
}

impl Logs {
    /// Asks what a store keeps.
    pub fn new(store: Arc<Store>, bounds: Bounds) -> std::io::Result<Self> {
        Ok(Self {
            store,
            engine: Engine::new(bounds)?,
        })
    }

    /// Answers a question.
    pub async fn query(&self, question: Question) -> Result<Answer, QueryError> {
        let Question {
            project,
            dialect,
            sql,
            after,
            until,
            now,
        } = question;
        let view = self
            .store
            .view(&project, after, until)
            .await
            .map_err(|error| QueryError::of(&error))?;
        self.engine
            .run(&project, view, (after, until), move || {
                sql::write(dialect, &sql, now)
            })
            .await
    }
}
