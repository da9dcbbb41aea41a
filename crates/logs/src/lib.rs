//! Log lines of projects: appended durably, stored as Parquet and queried with SQL in two dialects.
//!
//! The package is independent of the rest of Gantry: a project is an opaque name. [`event`] defines
//! a line and its attributes, [`layout`] maps lines to Arrow columns, [`store`] persists them,
//! [`engine`] executes queries, and the private `sql` module translates client SQL with the
//! function tables of `bigquery` and `clickhouse`. [`Logs`] combines the store and the engine.

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

/// Re-exported because [`store::Options::objects`] takes an implementation of its trait.
pub use datafusion::object_store;

pub use self::sql::{Dialect, SQL_BYTES_MAX};
use self::{
    engine::{Bounds, Engine},
    store::Store,
};

/// Maximum number of rows in an answer.
pub const ROWS_MAX: usize = 1_000;

/// The result of a query.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Answer {
    /// Column names in the order of the select list.
    pub columns: Vec<String>,
    /// Rows as JSON objects keyed by column name.
    pub rows: Vec<Map<String, Json>>,
    /// Whether more rows matched than the answer contains.
    pub cut: bool,
    /// Number of lines scanned.
    pub scanned_rows: u64,
    /// Number of bytes read by the scan.
    pub scanned_bytes: u64,
}

/// The reason why a query failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// The statement is invalid or unsupported. The text is safe to show to the client.
    #[error("{0}")]
    Refused(String),
    /// The query exceeded [`engine::Bounds::timeout`].
    #[error("Query timed out. Retry your query or reduce the time range.")]
    TimedOut,
    /// The object store could not be read. The text is for the operator's log, not for the client.
    #[error("The files of the logs cannot be read at the moment. Retry your query.")]
    Away(String),
    /// An internal error. The text is for the operator's log, not for the client.
    #[error("Backend error! Retry your query. Please contact support if this continues.")]
    Backend(String),
}

impl QueryError {
    /// Classifies an error as [`Self::Unavailable`] if an object-store error caused it, otherwise
    /// as [`Self::Backend`].
    pub(crate) fn of(error: &(dyn std::error::Error + 'static)) -> Self {
        let causes: Vec<_> = causes(error).collect();
        let mut text = String::new();
        for cause in causes.iter().map(ToString::to_string) {
            // Many errors already contain the text of their source.
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

/// Iterates over an error and its sources, outermost first.
pub(crate) fn causes<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| error.source())
}

/// A statement with its project and time window.
#[derive(Debug, Clone)]
pub struct Question {
    /// The project whose lines are queried.
    pub project: String,
    /// The SQL dialect of the statement.
    pub dialect: Dialect,
    /// The statement as the client sent it.
    pub sql: String,
    /// Exclusive lower bound of the time window, in microseconds since 1970.
    pub after: i64,
    /// Inclusive upper bound of the time window, in microseconds since 1970.
    pub until: i64,
    /// The result of `now()` in the statement, in microseconds since 1970.
    pub now: i64,
}

/// The statement, in the BigQuery dialect, that runs when a client sends none.
pub const NOTHING_ASKED: &str =
    "SELECT id, timestamp, event_message, metadata FROM edge_logs LIMIT 100";

/// Answers questions about the lines of all projects.
pub struct Logs {
    store: Arc<Store>,
    engine: Engine,
}

impl Logs {
    /// Creates the query engine over a store. Fails if its threads cannot be started.
    pub fn new(store: Arc<Store>, bounds: Bounds) -> std::io::Result<Self> {
        Ok(Self {
            store,
            engine: Engine::new(bounds)?,
        })
    }

    /// Translates and runs a statement. At most [`ROWS_MAX`] rows are returned.
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
