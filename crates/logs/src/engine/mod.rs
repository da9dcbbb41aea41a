//! Executes translated statements with `DataFusion`. The only module that plans and executes
//! queries.
//!
//! Statements are written by the `sql` module, never by a client. Each runs in its own
//! session, and the catalog contains a single table: the lines of one project within the time
//! window. Other projects are unreachable by construction.

mod admission;
mod aggregates;
mod batch_hook;
mod bounds;
mod budget;
mod cancellation;
mod count_keys;
mod counts;
mod error;
mod fill;
mod fragments;
mod functions;
mod plan;
mod query_engine;
mod render;
mod reservation;
mod session;
mod statement;
mod table;
mod top_n;

pub use self::{bounds::Bounds, query_engine::Engine, statement::Statement};
pub(crate) use self::{
    fill::{Fill, FillUnit},
    functions::escape_like,
    statement::{RelaxedSql, TABLE},
};
pub(crate) use datafusion::arrow::array::timezone::Tz as TimeZone;
pub(crate) use datafusion::sql::sqlparser;
