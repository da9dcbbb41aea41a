//! Sessions in a project's PostgreSQL that run a customer's SQL and answer JSON.
//!
//! [`session`] logs in as the role that the SQL runs as and speaks the protocol; `stop` ends a
//! statement that runs too long. No customer's text runs as a superuser.

pub mod json;
pub mod session;
pub mod sql_error;
pub mod statements;
pub mod stop;
pub mod types;

use std::time::Duration;

pub use session::{ConnectTarget, DatabaseSession, SessionLimits};

use crate::base::error::Error;

/// Whether the database lets the customer's role in and answers, within `time`. Repairs nothing, so that a cause can be told.
pub async fn ping(target: &ConnectTarget, time: Duration) -> Result<(), Error> {
    let limits = SessionLimits {
        time,
        ..SessionLimits::default()
    };
    DatabaseSession::open_once(target, OWNER, DATABASE, &[], limits)
        .await?
        .simple_query("select 1")
        .await
        .map(drop)
}

/// The role that owns a project's database: a customer's SQL and migrations run as it.
pub const OWNER: &str = "postgres";
/// The role of read-only queries: member of `pg_read_all_data`, and of nothing that writes.
pub const READER: &str = "supabase_read_only_user";
/// The superuser of a project's cluster. Only `stop` logs in as it, and never with a customer's text.
const ADMIN: &str = "supabase_admin";
/// The database a project's clients work in.
pub const DATABASE: &str = "postgres";
