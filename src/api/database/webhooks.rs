//! Database webhooks: the schema whose triggers send changes of rows to a URL.
//!
//! Made as the owner, in the owner's database: nothing here needs more than a customer can do, so nothing a customer put in the
//! way can make it more. What sends is the extension `pg_net`, if the operator installed it; without it a webhook says in a
//! warning that it was not sent.

use crate::{
    base::error::Error,
    data_plane::database_session::{
        DATABASE, OWNER,
        session::{ConnectTarget, DatabaseSession, SessionLimits},
    },
};

/// Makes the schema and notes that it did.
const INSTALL: &str = include_str!("webhooks.sql");
/// Serialises those who enable webhooks in one project: "hooks" in ASCII.
const ADVISORY_LOCK: i64 = 0x68_6f6f_6b73;

/// Makes sure of the schema `supabase_functions`. What is there already stays as it is, also if the customer changed it since.
///
/// Errors: [`Error::DatabaseUnreachable`]; [`Error::Sql`] if the customer has something else of this name.
pub async fn enable(target: &ConnectTarget, limits: SessionLimits) -> Result<(), Error> {
    let settings = [
        ("search_path", "pg_catalog"),
        ("lock_timeout", "4s"),
        ("default_transaction_read_only", "off"),
    ];
    let mut session = DatabaseSession::open(target, OWNER, DATABASE, &settings, limits).await?;
    // Read committed, whatever the customer's default is: what the one before us made must be seen after the wait.
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
    let noted = session
        .simple_query("select from supabase_functions.migrations where version = 'initial'")
        .await?;
    Ok(!noted.rows.is_empty())
}
