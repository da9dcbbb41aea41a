//! Masking: SQL of the operator that removes personal data from a copy in quarantine.
//!
//! The rules run in a session that is logged in as the owner of the database: functions of the
//! tenant that they call have no other rights. Changed tables are rewritten afterwards, by their
//! owners, with their statistics, because old rows stay in the files.

use crate::{
    clusters::{
        online_copy::isolation::{execute, run, run_with, sql_error, value},
        platform_roles,
        quarantine::OwnerLogins,
        superuser::{self, SqlArgument, SuperuserSession},
    },
    error::{ClusterError, Result},
};

/// The database of the project, which the rules change.
pub(super) const DATABASE: &str = "postgres";
/// Maximum number of tables that the rules change.
const TABLES_MAX: usize = 1000;
/// Tables that the open transaction has changed.
const CHANGED: &str = "select format('%I.%I', schemaname, relname)
    from pg_catalog.pg_stat_xact_user_tables where n_tup_ins + n_tup_upd + n_tup_del > 0";

/// Runs the rules in one transaction, in their order. Returns the changed tables.
///
/// Errors: [`ClusterError::Isolation`] with the number of the rule and its SQLSTATE. The message of
/// the server is left out, because it may quote data.
pub(super) async fn apply(logins: &OwnerLogins, rules: &[String]) -> Result<Vec<String>> {
    let client = logins.session(platform_roles::OWNER, DATABASE).await?;
    execute(&client, "begin").await?;
    for (number, rule) in (1..).zip(rules) {
        client.batch_execute(rule).await.map_err(|error| {
            let code = error.code().map_or("no SQLSTATE", |state| state.code());
            ClusterError::Isolation(format!("masking rule {number} failed: {code}"))
        })?;
    }
    let rows = client.query(CHANGED, &[]).await;
    let rows = rows.map_err(sql_error)?;
    if rows.len() > TABLES_MAX {
        let text = format!("masking rules changed more than {TABLES_MAX} tables");
        return Err(ClusterError::Isolation(text));
    }
    let tables: Result<Vec<String>> = rows.iter().map(|row| value(row, 0)).collect();
    execute(&client, "commit").await?;
    tables
}

/// Rewrites changed tables without the rows of before, each in a session of its owner.
pub(super) async fn rewrite(
    session: &SuperuserSession,
    logins: &OwnerLogins,
    tables: &[String],
) -> Result<()> {
    let named = session.query(&superuser::TABLES_NAMED, &[&tables]).await;
    let mut numbers = Vec::new();
    for row in &named.map_err(sql_error)? {
        let (oid, table): (u32, String) = (value(row, 0)?, value(row, 1)?);
        numbers.push(oid);
        if value(row, 3)? {
            let table = [SqlArgument::Quoted(&table)];
            run_with(session, &superuser::REWRITE_PLATFORM_TABLE, &table).await?;
            continue;
        }
        let client = logins.session(value(row, 2)?, DATABASE).await?;
        execute(&client, &format!("vacuum (full, analyze) {table}")).await?;
    }
    // Collected from the old rows; a later analysis collects them again.
    for statement in [
        &superuser::DELETE_STATISTICS,
        &superuser::DELETE_EXTENDED_STATISTICS,
    ] {
        let deleted = session.execute(statement, &[&numbers]).await;
        deleted.map_err(sql_error)?;
    }
    run(session, &superuser::REWRITE_EXTENDED_STATISTICS).await?;
    run(session, &superuser::REWRITE_STATISTICS).await
}
