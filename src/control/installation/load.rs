//! Writing a snapshot into an empty control database.
//!
//! The schema is that of the snapshot's version; later migrations follow. All rows are written in
//! one transaction, so that an interrupted recovery leaves nothing. Triggers are off meanwhile, and
//! foreign keys are created again at the end, which checks every row.

use bytes::Bytes;
use futures_util::{SinkExt, pin_mut};
use sha2::{Digest, Sha256};
use tokio_postgres::{Client, Transaction};

use super::{
    content::{self, ControlSnapshot, TableContent},
    dump::quoted,
    error::{InstallationError, Result, damaged, sql_error},
    objects::InstallationStore,
};
use crate::platform::db::Db;

const DOING: &str = "writing the control database";
const APPLICATION: &str = "gantry recover";

/// Replaces the content of the control database by a snapshot, runs `finish` in the same
/// transaction, and applies later migrations.
///
/// Errors: [`InstallationError::Store`] if the snapshot is not
/// complete. Nothing is written then.
pub async fn load<T>(
    db: &Db,
    store: &InstallationStore,
    snapshot: &ControlSnapshot,
    finish: impl AsyncFnOnce(&Transaction<'_>) -> Result<T>,
) -> Result<T> {
    db.migrate_to(Some(snapshot.schema)).await?;
    let (mut client, connection) = db.dedicated(APPLICATION).await.map_err(sql_error(DOING))?;
    let driver = tokio::spawn(connection);
    let loaded = load_over(&mut client, store, snapshot, finish).await;
    drop(client);
    driver.abort();
    let loaded = loaded?;
    db.migrate().await?;
    Ok(loaded)
}

async fn load_over<T>(
    client: &mut Client,
    store: &InstallationStore,
    snapshot: &ControlSnapshot,
    finish: impl AsyncFnOnce(&Transaction<'_>) -> Result<T>,
) -> Result<T> {
    let transaction = client.transaction().await.map_err(sql_error(DOING))?;
    let keys = foreign_keys(&transaction).await?;
    let tables = tables(&transaction).await?;
    for key in &keys {
        let sql = format!("alter table {} drop constraint {}", key.table, key.name);
        run(&transaction, &sql).await?;
    }
    for table in &tables {
        let sql = format!("alter table {} disable trigger user", quoted(table));
        run(&transaction, &sql).await?;
    }
    let all: Vec<String> = tables.iter().map(|table| quoted(table)).collect();
    run(&transaction, &format!("truncate {}", all.join(", "))).await?;
    for (name, table) in &snapshot.tables {
        if !tables.contains(name) {
            return Err(other_schema(snapshot, &format!("no table {name}")));
        }
        load_table(&transaction, store, name, table).await?;
    }
    for (name, last) in &snapshot.sequences {
        let sql = "select setval(quote_ident($1)::regclass, $2)";
        let set = transaction.execute(sql, &[name, last]).await;
        set.map_err(|_| other_schema(snapshot, &format!("no sequence {name}")))?;
    }
    for table in &tables {
        let sql = format!("alter table {} enable trigger user", quoted(table));
        run(&transaction, &sql).await?;
    }
    for key in &keys {
        let sql = format!(
            "alter table {} add constraint {} {}",
            key.table, key.name, key.definition
        );
        run(&transaction, &sql).await?;
    }
    let finished = finish(&transaction).await?;
    transaction.commit().await.map_err(sql_error(DOING))?;
    Ok(finished)
}

async fn run(transaction: &Transaction<'_>, sql: &str) -> Result<()> {
    let done = transaction.batch_execute(sql).await;
    done.map_err(sql_error(DOING))
}

struct ForeignKey {
    table: String,
    name: String,
    definition: String,
}

async fn foreign_keys(transaction: &Transaction<'_>) -> Result<Vec<ForeignKey>> {
    let sql = "select conrelid::regclass::text, quote_ident(conname), pg_get_constraintdef(oid)
               from pg_constraint where contype = 'f' and connamespace = current_schema()::regnamespace";
    let rows = transaction
        .query(sql, &[])
        .await
        .map_err(sql_error(DOING))?;
    let key = |row: &tokio_postgres::Row| ForeignKey {
        table: row.get(0),
        name: row.get(1),
        definition: row.get(2),
    };
    Ok(rows.iter().map(key).collect())
}

/// Returns the names of all tables but that of the migrations.
async fn tables(transaction: &Transaction<'_>) -> Result<Vec<String>> {
    let sql = "select tablename::text from pg_tables where schemaname = current_schema() and tablename <> 'refinery_schema_history'";
    let rows = transaction
        .query(sql, &[])
        .await
        .map_err(sql_error(DOING))?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

async fn load_table(
    transaction: &Transaction<'_>,
    store: &InstallationStore,
    name: &str,
    table: &TableContent,
) -> Result<()> {
    if table.chunks.is_empty() {
        return Ok(());
    }
    let columns: Vec<String> = table.columns.iter().map(|name| quoted(name)).collect();
    let sql = format!("copy {} ({}) from stdin", quoted(name), columns.join(", "));
    let sink = transaction.copy_in::<str, Bytes>(&sql).await;
    let sink = sink.map_err(sql_error(DOING))?;
    pin_mut!(sink);
    let mut digest = Sha256::new();
    for chunk in &table.chunks {
        let content = content::read_chunk(store, chunk).await?;
        digest.update(&content);
        let sent = sink.send(content.into()).await;
        sent.map_err(sql_error(DOING))?;
    }
    let rows = sink.finish().await.map_err(sql_error(DOING))?;
    if rows != table.rows || hex::encode(digest.finalize()) != table.sha256 {
        let problem = format!("{rows} of {} rows", table.rows);
        return Err(damaged(&format!("the table {name}"), problem));
    }
    Ok(())
}

fn other_schema(snapshot: &ControlSnapshot, problem: &str) -> InstallationError {
    InstallationError::Refused(format!(
        "the control database was written by Gantry {}, whose schema this version does not know ({problem}): recover with that version, then upgrade",
        snapshot.gantry
    ))
}
