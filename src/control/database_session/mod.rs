//! Sessions in a project's PostgreSQL that run a customer's SQL and return JSON.
//!
//! [`session`] logs in as the role that runs the SQL and implements the protocol; [`stop`]
//! terminates statements that exceed the deadline. A customer's SQL never runs as a superuser.

mod concurrency_limit;
pub(crate) mod json;
pub mod rows;
pub(crate) mod segments;
pub mod session;
pub(in crate::control) mod session_socket;
pub mod sql_error;
pub mod statements;
pub mod stop;
pub mod target;
pub mod types;

use std::time::Duration;

pub use concurrency_limit::{ConcurrencyLimit, ConcurrencyLimits};
pub use session::{ConnectTarget, DatabaseSession, SessionLimits};

use crate::platform::error::Error;

/// Checks within `time` that the owner role can log in and run a query. Does not repair platform
/// roles, so that the caller can report the cause.
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

/// Owner of a project's database. A customer's SQL and migrations run as this role.
pub const OWNER: &str = "postgres";
/// Role of read-only queries: a member of `pg_read_all_data`, without write privileges.
pub const READER: &str = "supabase_read_only_user";
/// Database that clients of a project use.
pub const DATABASE: &str = "postgres";
