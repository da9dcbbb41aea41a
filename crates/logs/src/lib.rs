//! Log lines of projects: appended durably, stored as Parquet and queried with SQL in two dialects.
//!
//! The package is independent of the rest of Gantry: a project is an opaque name. [`event`] defines
//! a line and its attributes, [`layout`] maps lines to Arrow columns, [`store`] persists them,
//! [`engine`] executes queries, and the private `sql` module translates client SQL with the
//! function table of a dialect from `dialects`. [`Logs`] combines the store and the engine.
//!
//! Imports go in one direction: `lib`, `dialects`, `sql`, `engine`, `store`, `layout`, `event`.

mod answer;
mod dialects;
pub mod engine;
pub mod event;
pub mod fields;
pub mod layout;
mod sql;
pub mod store;

use std::sync::Arc;

/// Re-exported because [`store::Options::objects`] takes an implementation of its trait.
pub use datafusion::object_store;

pub use self::{
    answer::{Answer, QueryError, ROWS_MAX},
    sql::{Dialect, SQL_BYTES_MAX},
    store::objects::LocalObjects,
};
use self::{
    engine::{Bounds, Engine},
    store::Store,
};

/// A statement with its project and time window.
#[derive(Debug, Clone)]
pub struct Question {
    /// The queried project.
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

/// Maximum number of attempts of a query that finds damaged files.
const ATTEMPTS_MAX: usize = 16;

/// The statement, in the `BigQuery` dialect, that runs when a client sends none.
pub const DEFAULT_SQL: &str =
    "SELECT id, timestamp, event_message, metadata FROM edge_logs LIMIT 100";

/// Runs queries over the lines of all projects.
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

    /// Translates and runs a statement. At most [`ROWS_MAX`] rows are returned. Damaged files are
    /// set aside, and the statement runs over the others.
    pub async fn query(&self, question: Question) -> Result<Answer, QueryError> {
        tokio::time::timeout(self.engine.timeout(), self.query_readable_files(&question))
            .await
            .unwrap_or(Err(QueryError::TimedOut))
    }

    async fn query_readable_files(&self, question: &Question) -> Result<Answer, QueryError> {
        let unavailable = |error| QueryError::from_source(&error);
        let window = (question.after, question.until);
        for _ in 0..ATTEMPTS_MAX {
            let view = self
                .store
                .view(&question.project, question.after, question.until)
                .await
                .map_err(unavailable)?;
            let failures = Arc::clone(&view.failures);
            let damaged = view.damaged.clone();
            let (dialect, sql, now) = (question.dialect, question.sql.clone(), question.now);
            let translate = move || dialects::translate(dialect, &sql, now);
            let result = self
                .engine
                .run(&question.project, view, window, translate)
                .await;
            let suspects = failures.take_damaged();
            if !suspects.is_empty() {
                self.store.examine(&suspects).await.map_err(unavailable)?;
                continue;
            }
            // Damage of files without checksums is found only by decoding them.
            let unchecked = failures.take_unchecked();
            let may_be_damaged = matches!(
                result,
                Err(QueryError::Backend(_) | QueryError::Unavailable(_))
            );
            if may_be_damaged && self.store.examine(&unchecked).await.map_err(unavailable)? {
                continue;
            }
            return result.map(|answer| Answer { damaged, ..answer });
        }
        Err(QueryError::Unavailable("too many files are damaged".into()))
    }
}
