//! Masking: SQL of the operator that removes personal data from a copy in quarantine.
//!
//! The rules run as the owner of the database, in a session that has no other rights: functions of
//! the tenant that they call cannot become a superuser. Changed tables are rewritten afterwards,
//! with their statistics, because old rows stay in the files.

use postgres_protocol::escape::escape_literal;
use tokio_postgres::Client;

use super::{
    super::{ClusterError, Result, server::Server, template},
    isolation::{run, sql_error, value},
};

/// The database of the project, which the rules change.
pub(super) const DATABASE: &str = "postgres";
/// Maximum number of tables that the rules change.
const TABLES_MAX: usize = 1000;
/// Settings of the session.
const SETTINGS: &str = "set statement_timeout = '10min'; set lock_timeout = '10s'; \
    set search_path = pg_catalog; set default_transaction_read_only = off";
/// Tables that the open transaction has changed.
const CHANGED: &str = "select format('%I.%I', schemaname, relname)
    from pg_catalog.pg_stat_xact_user_tables where n_tup_ins + n_tup_upd + n_tup_del > 0";

/// Runs the rules in one transaction, in their order. Returns the changed tables.
///
/// Errors: [`ClusterError::Isolation`] with the number of the rule and its SQLSTATE. The message of
/// the server is left out, because it may quote data.
pub(super) async fn apply(server: &Server, rules: &[String]) -> Result<Vec<String>> {
    let client = server.connect(template::OWNER, DATABASE).await?;
    run(&client, SETTINGS).await?;
    run(&client, "begin").await?;
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
    run(&client, "commit").await?;
    tables
}

/// Rewrites changed tables without the rows of before, in a session of the superuser.
pub(super) async fn rewrite(client: &Client, tables: &[String]) -> Result<()> {
    for table in tables {
        run(client, &format!("vacuum (full, analyze) {table}")).await?;
        let table = escape_literal(table);
        // Collected from the old rows; a later analysis collects them again.
        for sql in [
            format!("delete from pg_catalog.pg_statistic where starelid = {table}::regclass"),
            format!(
                "delete from pg_catalog.pg_statistic_ext_data where stxoid in
                 (select oid from pg_catalog.pg_statistic_ext where stxrelid = {table}::regclass)"
            ),
        ] {
            run(client, &sql).await?;
        }
    }
    run(client, "vacuum full pg_catalog.pg_statistic_ext_data").await?;
    run(client, "vacuum full pg_catalog.pg_statistic").await
}
