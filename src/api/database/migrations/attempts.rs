//! Statements outside of a transaction: the state before the first run, and completion of a run
//! that was interrupted.

use sha2::{Digest, Sha256};

use super::progress::StandaloneAttempt;
use crate::{
    control::database_session::{segments::StandaloneCommand, session::DatabaseSession},
    platform::error::Error,
};

/// Returns the SHA-256 of a statement.
pub(super) fn digest(statement: &str) -> String {
    hex::encode(Sha256::digest(statement))
}

/// Reads the state before the first run of a statement.
pub(super) async fn observe(
    session: &mut DatabaseSession,
    statement: &str,
    command: &StandaloneCommand,
) -> Result<StandaloneAttempt, Error> {
    let mut attempt = StandaloneAttempt {
        statement: digest(statement),
        object: None,
        name: None,
        builds_indexes: *command == StandaloneCommand::Reindex,
        indexes: Vec::new(),
    };
    let object = |name| (name, "select pg_catalog.to_regclass($1)::oid");
    let (name, sql) = match command {
        StandaloneCommand::CreateIndex { table, .. } => object(table),
        StandaloneCommand::DropIndex { name } => object(name),
        StandaloneCommand::DetachPartition { partition, .. } => (
            partition,
            "select inhrelid from pg_catalog.pg_inherits where inhrelid = pg_catalog.to_regclass($1)",
        ),
        StandaloneCommand::CreateDatabase { name } | StandaloneCommand::DropDatabase { name } => (
            name,
            "select oid from pg_catalog.pg_database where datname = (pg_catalog.parse_ident($1))[1]",
        ),
        StandaloneCommand::Reindex => {
            let sql = "select indexrelid from pg_catalog.pg_index where not indisvalid";
            attempt.indexes = column(session, sql, &[]).await?;
            return Ok(attempt);
        }
        StandaloneCommand::Repeat => return Ok(attempt),
    };
    attempt.object = column(session, sql, &[Some(name)]).await?.pop();
    if let StandaloneCommand::CreateIndex { name, .. } = command {
        attempt.builds_indexes = attempt.object.is_some();
        let sql = "select indexrelid from pg_catalog.pg_index where indrelid = $1::oid";
        attempt.indexes = column(session, sql, &[attempt.object.as_deref()]).await?;
        if let Some(name) = name {
            let sql = "select (pg_catalog.parse_ident($1))[1]";
            attempt.name = column(session, sql, &[Some(name)]).await?.pop();
        }
    }
    Ok(attempt)
}

/// Undoes or completes an interrupted run. Returns whether the statement has taken effect.
pub(super) async fn complete(
    session: &mut DatabaseSession,
    attempt: &StandaloneAttempt,
    command: &StandaloneCommand,
) -> Result<bool, Error> {
    let object = attempt.object.as_deref();
    match command {
        StandaloneCommand::CreateIndex { .. } => {
            let is_valid = "select 1 from pg_catalog.pg_index i join pg_catalog.pg_class c on c.oid = i.indexrelid
                            where i.indrelid = $1::oid and i.indisvalid
                            and i.indexrelid <> all ($2::oid[]) and ($3::text is null or c.relname = $3)";
            let indexes = array(&attempt.indexes);
            let values = [object, Some(&indexes), attempt.name.as_deref()];
            if !column(session, is_valid, &values).await?.is_empty() {
                return Ok(true);
            }
            drop_invalid(session, attempt).await?;
            Ok(false)
        }
        StandaloneCommand::Reindex => {
            drop_invalid(session, attempt).await?;
            Ok(false)
        }
        StandaloneCommand::DropIndex { .. } => {
            let sql = "select 1 from pg_catalog.pg_class where oid = $1::oid";
            Ok(object.is_some() && column(session, sql, &[object]).await?.is_empty())
        }
        StandaloneCommand::DetachPartition { table, partition } => {
            let sql =
                "select inhdetachpending from pg_catalog.pg_inherits where inhrelid = $1::oid";
            match column(session, sql, &[object]).await?.pop().as_deref() {
                None => Ok(object.is_some()),
                Some("t") => {
                    let finalize =
                        format!("alter table {table} detach partition {partition} finalize");
                    session.batch_execute(&finalize).await?;
                    Ok(true)
                }
                Some(_) => Ok(false),
            }
        }
        StandaloneCommand::CreateDatabase { name } => {
            Ok(object.is_none() && database_exists(session, name).await?)
        }
        StandaloneCommand::DropDatabase { name } => {
            Ok(object.is_some() && !database_exists(session, name).await?)
        }
        StandaloneCommand::Repeat => Ok(false),
    }
}

async fn database_exists(session: &mut DatabaseSession, name: &str) -> Result<bool, Error> {
    let sql =
        "select 1 from pg_catalog.pg_database where datname = (pg_catalog.parse_ident($1))[1]";
    Ok(!column(session, sql, &[Some(name)]).await?.is_empty())
}

/// Drops the indexes that an interrupted `create index concurrently` or `reindex concurrently` left
/// invalid. Does nothing for other statements.
pub(super) async fn drop_invalid(
    session: &mut DatabaseSession,
    attempt: &StandaloneAttempt,
) -> Result<(), Error> {
    if !attempt.builds_indexes {
        return Ok(());
    }
    // Without a table, the interrupted statement was `reindex`, which marks its indexes by name.
    let sql = r"select pg_catalog.format('drop index concurrently if exists %I.%I', n.nspname, c.relname)
                from pg_catalog.pg_index i join pg_catalog.pg_class c on c.oid = i.indexrelid
                join pg_catalog.pg_namespace n on n.oid = c.relnamespace
                where not i.indisvalid and c.relkind = 'i' and i.indexrelid <> all ($2::oid[])
                and case when $1::oid is null
                    then c.relname ~ '_cc(new|old)[0-9]*$' and n.nspname !~ '^pg_'
                    else i.indrelid = $1::oid and ($3::text is null or c.relname = $3) end";
    let indexes = array(&attempt.indexes);
    let values = [
        attempt.object.as_deref(),
        Some(&indexes),
        attempt.name.as_deref(),
    ];
    for statement in column(session, sql, &values).await? {
        session.batch_execute(&statement).await?;
    }
    Ok(())
}

fn array(ids: &[String]) -> String {
    format!("{{{}}}", ids.join(","))
}

/// Returns the values of the first column that are not null.
async fn column(
    session: &mut DatabaseSession,
    sql: &str,
    values: &[Option<&str>],
) -> Result<Vec<String>, Error> {
    let rows = session.query(sql, values).await?.rows;
    Ok(rows.values().collect())
}
