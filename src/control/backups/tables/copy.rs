//! Copies tables from a recovered cluster to the server of its project.
//!
//! Only data types, NOT NULL and the primary key are copied. Defaults, triggers, policies and
//! references would tie the copies to tables of the present, or run code.

use std::fmt::Write as _;

use futures_util::{SinkExt, TryStreamExt};
use gantry_node::clusters;
use postgres_protocol::escape::{escape_identifier, escape_literal};
use tokio_postgres::{Client, NoTls, Row, types::FromSql};

use super::RestoredTable;
use crate::control::{
    backups::error::BackupError,
    database_session::{ConnectTarget, DATABASE, OWNER},
};

/// Settings of the session that writes. They override those of the role and the database. An
/// interrupted connection ends the statement, and with it the transaction.
const WRITER_OPTIONS: &str = "-c search_path=pg_catalog -c statement_timeout=0 \
    -c lock_timeout=10s -c default_transaction_read_only=off -c client_encoding=UTF8 \
    -c datestyle=ISO -c intervalstyle=postgres -c client_connection_check_interval=2000 \
    -c local_preload_libraries=";

/// A table of the recovered cluster.
struct PastTable {
    /// Its quoted name with its schema.
    source: String,
    /// Quoted names of its columns, in order.
    columns: String,
    /// Definitions of its columns.
    definitions: String,
    /// Quoted names of the columns of its primary key.
    primary_key: Option<String>,
}

/// Copies tables into a new schema, in one transaction. `marker` is the comment of the schema, by
/// which a repetition recognizes its result.
///
/// Errors: [`BackupError::Refused`] if a table does not exist or cannot be copied.
pub(super) async fn tables(
    reader: &Client,
    target: &ConnectTarget,
    schema: &str,
    marker: &str,
    wanted: &[RestoredTable],
) -> Result<Vec<RestoredTable>, BackupError> {
    let mut found = Vec::with_capacity(wanted.len());
    for table in wanted {
        found.push(describe(reader, table).await?);
    }
    let writer = writer(target).await?;
    let existing = "select coalesce(obj_description(oid, 'pg_namespace'), '') from pg_namespace where nspname = $1";
    let existing = writer.query_opt(existing, &[&schema]).await;
    if let Some(row) = existing.map_err(refused)? {
        if value::<String>(&row, 0)? == marker {
            // The restore was complete when it was interrupted.
            return Ok(wanted.to_vec());
        }
        let text = format!("schema {schema} exists already; rename it, and repeat the restore");
        return Err(BackupError::Refused(text));
    }
    let quoted = escape_identifier(schema);
    let begin = format!(
        "begin; create schema {quoted}; comment on schema {quoted} is {}",
        escape_literal(marker)
    );
    writer.batch_execute(&begin).await.map_err(refused)?;
    let mut copied = Vec::with_capacity(wanted.len());
    for (table, past) in wanted.iter().zip(&found) {
        let rows = copy(reader, &writer, &quoted, table, past).await?;
        copied.push(RestoredTable {
            rows: Some(rows),
            ..table.clone()
        });
    }
    writer.batch_execute("commit").await.map_err(refused)?;
    Ok(copied)
}

/// Copies a table within the open transaction. Returns the number of rows.
async fn copy(
    reader: &Client,
    writer: &Client,
    schema: &str,
    table: &RestoredTable,
    past: &PastTable,
) -> Result<u64, BackupError> {
    let refused = |error| of_table(table, error);
    let place = format!("{schema}.{}", escape_identifier(&table.name));
    let create = format!("create table {place} ({})", past.definitions);
    writer.batch_execute(&create).await.map_err(refused)?;
    let read = format!(
        "copy (select {} from {}) to stdout",
        past.columns, past.source
    );
    let write = format!("copy {place} ({}) from stdin", past.columns);
    let mut rows = Box::pin(reader.copy_out(&read).await.map_err(refused)?);
    let mut sink = Box::pin(
        writer
            .copy_in::<_, bytes::Bytes>(&write)
            .await
            .map_err(refused)?,
    );
    while let Some(chunk) = rows.try_next().await.map_err(refused)? {
        sink.feed(chunk).await.map_err(refused)?;
    }
    let count = sink.as_mut().finish().await.map_err(refused)?;
    if let Some(key) = &past.primary_key {
        let add = format!("alter table {place} add primary key ({key})");
        writer.batch_execute(&add).await.map_err(refused)?;
    }
    Ok(count)
}

/// Reads the columns of a table.
async fn describe(reader: &Client, table: &RestoredTable) -> Result<PastTable, BackupError> {
    let sql = "select c.oid, c.relkind::text, has_table_privilege(c.oid, 'select'),
                      exists (with recursive parts as (
                                  select i.inhrelid from pg_inherits i where i.inhparent = c.oid
                                  union select i.inhrelid from pg_inherits i
                                  join parts p on i.inhparent = p.inhrelid)
                              select from parts p join pg_class f on f.oid = p.inhrelid
                              where f.relkind = 'f')
               from pg_class c join pg_namespace n on n.oid = c.relnamespace
               where n.nspname = $1 and c.relname = $2";
    let (schema, name) = (&table.schema, &table.name);
    let row = reader.query_opt(sql, &[schema, name]).await;
    let row = row.map_err(|error| of_table(table, error))?;
    let refuse = |problem: &str| {
        let text = format!("{schema}.{name} {problem}");
        Err(BackupError::Refused(text))
    };
    let Some(row) = row else {
        return refuse("did not exist at that moment");
    };
    let kind: String = value(&row, 1)?;
    if kind != "r" && kind != "p" {
        return refuse("is not a table");
    }
    if !value::<bool>(&row, 2)? {
        return refuse("cannot be read by the owner of the project");
    }
    if value::<bool>(&row, 3)? {
        return refuse("has foreign tables as partitions; restore its other partitions instead");
    }
    let id: u32 = value(&row, 0)?;
    let sql = "select a.attname::text, format_type(a.atttypid, a.atttypmod), a.attnotnull,
                      case when a.attcollation <> t.typcollation
                           then format('%I.%I', n.nspname, k.collname) end
               from pg_attribute a join pg_type t on t.oid = a.atttypid
               left join pg_collation k on k.oid = a.attcollation
               left join pg_namespace n on n.oid = k.collnamespace
               where a.attrelid = $1 and a.attnum > 0 and not a.attisdropped order by a.attnum";
    let rows = reader.query(sql, &[&id]).await;
    let rows = rows.map_err(|error| of_table(table, error))?;
    if rows.is_empty() {
        return refuse("has no columns");
    }
    let mut past = PastTable {
        source: format!("{}.{}", escape_identifier(schema), escape_identifier(name)),
        columns: String::new(),
        definitions: String::new(),
        primary_key: primary_key(reader, id).await?,
    };
    for row in &rows {
        let column = escape_identifier(&value::<String>(row, 0)?);
        // With its schema, because the search path has only that of PostgreSQL.
        let kind: String = value(row, 1)?;
        let separator = if past.columns.is_empty() { "" } else { ", " };
        let _ = write!(past.columns, "{separator}{column}");
        let _ = write!(past.definitions, "{separator}{column} {kind}");
        if let Some(collation) = value::<Option<String>>(row, 3)? {
            let _ = write!(past.definitions, " collate {collation}");
        }
        if value::<bool>(row, 2)? {
            past.definitions.push_str(" not null");
        }
    }
    Ok(past)
}

async fn primary_key(reader: &Client, table: u32) -> Result<Option<String>, BackupError> {
    let sql = "select a.attname::text from pg_constraint c
               cross join unnest(c.conkey) with ordinality k(number, position)
               join pg_attribute a on a.attrelid = c.conrelid and a.attnum = k.number
               where c.conrelid = $1 and c.contype = 'p' order by k.position";
    let rows = reader.query(sql, &[&table]).await.map_err(refused)?;
    let mut names = Vec::with_capacity(rows.len());
    for row in &rows {
        names.push(escape_identifier(&value::<String>(row, 0)?));
    }
    Ok((!names.is_empty()).then(|| names.join(", ")))
}

/// Opens a session in the project's database as its owner.
async fn writer(target: &ConnectTarget) -> Result<Client, BackupError> {
    let (user, setting) = clusters::peer_login(OWNER);
    let role = setting.map_or_else(String::new, |(name, value)| format!(" -c {name}={value}"));
    let mut config = tokio_postgres::Config::new();
    config
        .user(user)
        .dbname(DATABASE)
        .application_name("gantry restore")
        .options(format!("{WRITER_OPTIONS}{role}"));
    let stream = target.connect().await.map_err(BackupError::Files)?;
    let (client, connection) = config.connect_raw(stream, NoTls).await.map_err(refused)?;
    tokio::spawn(connection);
    Ok(client)
}

/// Returns a column of a row. The catalogs are those of a tenant.
fn value<'a, T: FromSql<'a>>(row: &'a Row, column: usize) -> Result<T, BackupError> {
    row.try_get(column).map_err(refused)
}

/// An error of a statement. A lost connection can succeed later.
fn refused(error: tokio_postgres::Error) -> BackupError {
    match error.as_db_error() {
        Some(refusal) if refusal.code().code().starts_with("57") => lost(error),
        Some(refusal) => BackupError::Refused(refusal.message().to_owned()),
        None => lost(error),
    }
}

fn lost(error: tokio_postgres::Error) -> BackupError {
    BackupError::Files(std::io::Error::other(error))
}

fn of_table(table: &RestoredTable, error: tokio_postgres::Error) -> BackupError {
    match refused(error) {
        BackupError::Refused(text) => {
            BackupError::Refused(format!("{}.{}: {text}", table.schema, table.name))
        }
        other => other,
    }
}
