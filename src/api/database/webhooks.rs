//! Database webhooks: a schema with triggers that send row changes to a URL.
//!
//! The schema is created as the owner, so that objects of the customer cannot gain privileges.
//! Requests are queued by the extension `pg_net`, if the project has it, and sent from outside of
//! the server. Without it, a webhook raises a warning.

use crate::{
    control::database_session::{
        DATABASE, OWNER,
        session::{ConnectTarget, DatabaseSession, SessionLimits},
    },
    platform::error::Error,
};

/// Creates the schema and records its version.
const INSTALL: &str = include_str!("webhooks.sql");
/// Advisory lock of concurrent calls for one project: "hooks" in ASCII.
const ADVISORY_LOCK: i64 = 0x68_6f6f_6b73;

/// Creates the schema `supabase_functions`, unless it exists. An existing schema stays unchanged.
///
/// Errors: [`Error::DatabaseUnreachable`]; [`Error::Sql`] if another object has this name.
pub async fn enable(target: &ConnectTarget, limits: SessionLimits) -> Result<(), Error> {
    let settings = [
        ("search_path", "pg_catalog"),
        ("lock_timeout", "4s"),
        ("default_transaction_read_only", "off"),
    ];
    let mut session = DatabaseSession::open(target, OWNER, DATABASE, &settings, limits).await?;
    // Read committed independently of the customer's default, so that changes of the previous lock
    // holder are visible.
    session
        .batch_execute(&format!(
            "begin isolation level read committed; select pg_advisory_xact_lock({ADVISORY_LOCK})"
        ))
        .await?;
    if !enabled(&mut session).await? {
        session.batch_execute(INSTALL).await?;
    }
    session.batch_execute("commit").await.map(drop)
}

async fn enabled(session: &mut DatabaseSession) -> Result<bool, Error> {
    let there = session
        .simple_query(
            "select from pg_class where oid = to_regclass('supabase_functions.migrations')",
        )
        .await?;
    if there.rows.is_empty() {
        return Ok(false);
    }
    let recorded = session
        .simple_query("select from supabase_functions.migrations where version = 'initial'")
        .await?;
    Ok(!recorded.rows.is_empty())
}
