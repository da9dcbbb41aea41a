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
            .map_err(|error| QueryError::from_source(&error))?;
        self.engine
            .run(&project, view, (after, until), move || {
                dialects::translate(dialect, &sql, now)
            })
            .await
    }
}
