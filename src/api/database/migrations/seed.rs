//! Seeds: SQL that gives an empty database some rows.

use sha2::{Digest, Sha256};

use crate::{
    control::database_session::{
        DATABASE, OWNER,
        session::{ConnectTarget, DatabaseSession, SessionLimits},
        statements::TransactionScript,
    },
    platform::error::Error,
};

/// The table of seeds, which the command line has, too.
const CREATE_FILES: &str = "
    create schema if not exists supabase_migrations;
    create table if not exists supabase_migrations.seed_files (
        path text primary key,
        hash text not null
    )";
/// Row of the table for the seeds of a branch.
const PATH: &str = "gantry/seed.sql";

/// Runs the scripts in their order, in one transaction that also records them. Returns `false` if
/// the database has been seeded before.
///
/// Errors: [`Error::Invalid`] for a script that controls transactions; [`Error::Sql`];
/// [`Error::DatabaseUnreachable`].
pub async fn seed(
    target: &ConnectTarget,
    scripts: &[String],
    limits: SessionLimits,
) -> Result<bool, Error> {
    let mut hash = Sha256::new();
    let mut parsed = Vec::with_capacity(scripts.len());
    for (number, script) in (1..).zip(scripts) {
        hash.update(script.as_bytes());
        let field = format!("seed {number}");
        parsed.push(TransactionScript::parse("a seed", &field, script)?);
    }
    let hash = hex::encode(hash.finalize());
    let mut session = DatabaseSession::open(target, OWNER, DATABASE, &[], limits).await?;
    session.batch_execute("begin").await?;
    session.batch_execute(CREATE_FILES).await?;
    let sql = "insert into supabase_migrations.seed_files (path, hash) values ($1, $2)
               on conflict (path) do nothing returning path";
    let recorded = session.query(sql, &[Some(PATH), Some(&hash)]).await?;
    if recorded.rows.is_empty() {
        return Ok(false);
    }
    for script in &parsed {
        session.batch_execute(&script.text()).await?;
    }
    session.batch_execute("commit").await?;
    Ok(true)
}
