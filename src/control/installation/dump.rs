//! Reading the control database into contents of the store.
//!
//! All tables are copied in one transaction, which sees one moment. Rows are cut into contents at
//! places that depend on the rows themselves, so that a changed row changes one content, and the
//! others are not stored again.

use std::collections::{BTreeMap, HashSet};

use bytes::Bytes;
use futures_util::{StreamExt, pin_mut};
use gantry_base::clock::Clock;
use sha2::{Digest, Sha256};
use tokio_postgres::{Client, IsolationLevel, Transaction};
use uuid::Uuid;

use super::{
    content::{self, ControlSnapshot, FORMAT, TableContent},
    error::{Result, sql_error},
    objects::InstallationStore,
};
use crate::platform::{db::Db, error::Context};

/// Tables with rows of the running processes of a machine.
pub(super) const OF_THE_MACHINE: [&str; 2] = ["node_leases", "prepared_clusters"];
/// The table of migrations.
const MIGRATIONS: &str = "refinery_schema_history";
/// Sizes between which contents are cut, in bytes.
const CHUNK_BYTES_MIN: usize = 64 << 10;
const CHUNK_BYTES_MAX: usize = 4 << 20;
/// One row of so many ends a content.
const ROWS_PER_CUT: u32 = 256;
const APPLICATION: &str = "gantry backup";

/// Writes contents that the store does not have yet.
#[derive(Debug)]
pub struct ChunkWriter<'a> {
    store: &'a InstallationStore,
    known: &'a mut HashSet<String>,
    /// Stored bytes.
    pub written: u64,
}

impl<'a> ChunkWriter<'a> {
    /// Writes to `store`, which has the contents with the digests `known`.
    pub fn new(store: &'a InstallationStore, known: &'a mut HashSet<String>) -> Self {
        Self {
            store,
            known,
            written: 0,
        }
    }

    /// Stores a content, and returns its digest.
    pub async fn put(&mut self, content: Vec<u8>) -> Result<String> {
        let digest = self.store.digest(&content);
        if !self.known.contains(&digest) {
            let object = content::chunk_object(&digest);
            self.written += self.store.put(&object, content).await?;
            self.known.insert(digest.clone());
        }
        Ok(digest)
    }
}

/// A table to copy.
struct TableToRead {
    name: String,
    columns: Vec<String>,
    key: Option<String>,
}

/// Copies the control database.
pub async fn dump(
    db: &Db,
    clock: &Clock,
    node: Uuid,
    writer: &mut ChunkWriter<'_>,
) -> Result<ControlSnapshot> {
    let doing = "connecting to the control database";
    let (mut client, connection) = db.dedicated(APPLICATION).await.map_err(sql_error(doing))?;
    let driver = tokio::spawn(connection);
    let snapshot = dump_over(&mut client, clock, node, writer).await;
    drop(client);
    driver.abort();
    snapshot
}

async fn dump_over(
    client: &mut Client,
    clock: &Clock,
    node: Uuid,
    writer: &mut ChunkWriter<'_>,
) -> Result<ControlSnapshot> {
    let doing = "reading the control database";
    client
        .batch_execute("set timezone = 'UTC'; set datestyle = 'ISO'; set intervalstyle = 'postgres'; set extra_float_digits = 1")
        .await
        .map_err(sql_error(doing))?;
    let taken_at = clock.now();
    let transaction = client
        .build_transaction()
        .isolation_level(IsolationLevel::RepeatableRead)
        .read_only(true)
        .start()
        .await
        .map_err(sql_error(doing))?;
    let migrations = format!("select coalesce(max(version), 0)::int from {MIGRATIONS}");
    let schema = transaction.query_one(migrations.as_str(), &[]).await;
    let schema = schema.map_err(sql_error(doing))?.get(0);
    let mut tables = BTreeMap::new();
    for table in tables_of(&transaction).await? {
        let content = dump_table(&transaction, &table, writer).await?;
        tables.insert(table.name, content);
    }
    let sql = "select sequencename::text, last_value from pg_sequences where schemaname = current_schema() and last_value is not null";
    let sequences = transaction.query(sql, &[]).await;
    let sequences = sequences.map_err(sql_error(doing))?;
    Ok(ControlSnapshot {
        format: FORMAT,
        taken_at,
        gantry: env!("CARGO_PKG_VERSION").to_owned(),
        node,
        schema,
        tables,
        sequences: sequences
            .iter()
            .map(|row| (row.get(0), row.get(1)))
            .collect(),
    })
}

/// Returns the tables with rows to keep.
async fn tables_of(transaction: &Transaction<'_>) -> Result<Vec<TableToRead>> {
    let sql = "select c.relname::text,
                      array(select a.attname::text from pg_attribute a
                            where a.attrelid = c.oid and a.attnum > 0
                              and not a.attisdropped and a.attgenerated = '' order by a.attnum),
                      (select string_agg(quote_ident(a.attname), ', ' order by k.place)
                       from pg_index i cross join unnest(i.indkey) with ordinality k(attnum, place)
                       join pg_attribute a on a.attrelid = c.oid and a.attnum = k.attnum
                       where i.indrelid = c.oid and i.indisprimary)
               from pg_class c
               where c.relnamespace = current_schema()::regnamespace
                 and c.relkind = 'r' and c.relpersistence = 'p'
               order by c.relname";
    let rows = transaction.query(sql, &[]).await;
    let rows = rows.map_err(sql_error("reading the control database"))?;
    let tables = rows.iter().map(|row| TableToRead {
        name: row.get(0),
        columns: row.get(1),
        key: row.get(2),
    });
    Ok(tables
        .filter(|table| table.name != MIGRATIONS && !OF_THE_MACHINE.contains(&table.name.as_str()))
        .collect())
}

async fn dump_table(
    transaction: &Transaction<'_>,
    table: &TableToRead,
    writer: &mut ChunkWriter<'_>,
) -> Result<TableContent> {
    let doing = "reading a table of the control database";
    let columns: Vec<String> = table.columns.iter().map(|name| quoted(name)).collect();
    let order = table
        .key
        .as_ref()
        .map_or(String::new(), |key| format!(" order by {key}"));
    let sql = format!(
        "copy (select {} from {}{order}) to stdout",
        columns.join(", "),
        quoted(&table.name)
    );
    let copied = transaction
        .copy_out(sql.as_str())
        .await
        .map_err(sql_error(doing))?;
    pin_mut!(copied);
    let mut content = TableContent {
        columns: table.columns.clone(),
        rows: 0,
        chunks: Vec::new(),
        sha256: String::new(),
    };
    let mut digest = Sha256::new();
    let mut cutter = RowCutter::default();
    while let Some(piece) = copied.next().await {
        let piece: Bytes = piece.map_err(sql_error(doing))?;
        digest.update(&piece);
        for row in piece.split_inclusive(|byte| *byte == b'\n') {
            content.rows += u64::from(row.ends_with(b"\n"));
            if let Some(chunk) = cutter.add(row) {
                content.chunks.push(writer.put(chunk).await?);
            }
        }
    }
    if !cutter.chunk.is_empty() {
        content.chunks.push(writer.put(cutter.chunk).await?);
    }
    content.sha256 = hex::encode(digest.finalize());
    Ok(content)
}

/// Cuts rows into contents.
#[derive(Default)]
struct RowCutter {
    chunk: Vec<u8>,
    /// Digest of the current row so far: FNV-1a.
    row: u32,
}

impl RowCutter {
    /// Adds a row, or a part of one. Returns a content that ends with it.
    fn add(&mut self, part: &[u8]) -> Option<Vec<u8>> {
        self.chunk.extend_from_slice(part);
        for byte in part {
            self.row = (self.row ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        }
        if !part.ends_with(b"\n") {
            return None;
        }
        let row = std::mem::take(&mut self.row);
        // The low bits of this digest depend on few bytes.
        let cuts = (row >> 12).is_multiple_of(ROWS_PER_CUT) && self.chunk.len() >= CHUNK_BYTES_MIN;
        (cuts || self.chunk.len() >= CHUNK_BYTES_MAX).then(|| std::mem::take(&mut self.chunk))
    }
}

/// Returns a quoted name for SQL.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Returns a number that changes with every change of a table that a snapshot has, at most ten
/// seconds later.
pub async fn changes(db: &Db) -> Result<i64> {
    let sql = "select coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0)::bigint from pg_stat_user_tables
               where schemaname = current_schema() and not relname = any($1)";
    let machine: &[&str] = &OF_THE_MACHINE;
    let rows = db.query(sql, &[&machine]).await;
    let rows = rows.context("looking for changes of the control database")?;
    Ok(rows.first().map_or(0, |row| row.get(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(rows: &[String]) -> Vec<Vec<u8>> {
        let mut cutter = RowCutter::default();
        let mut chunks: Vec<Vec<u8>> = rows
            .iter()
            .filter_map(|row| {
                let (begin, end) = row.as_bytes().split_at(3);
                assert!(cutter.add(begin).is_none());
                cutter.add(end)
            })
            .collect();
        chunks.push(cutter.chunk);
        chunks
    }

    #[test]
    fn changed_row_changes_few_contents() {
        let mut rows: Vec<String> = (0..20_000)
            .map(|number| format!("{number}\t{}\n", "some text of a row ".repeat(3)))
            .collect();
        let before = cut(&rows);
        assert_eq!(before.concat(), rows.concat().into_bytes());
        assert!((5..=20).contains(&before.len()), "{}", before.len());
        rows[9000].insert(5, 'x');
        rows.insert(100, "new row\n".to_owned());
        rows.push("last row\n".to_owned());
        let after = cut(&rows);
        let new = after.iter().filter(|chunk| !before.contains(chunk)).count();
        assert!(new <= 5, "{new} of {}", after.len());
    }

    #[test]
    fn large_rows_are_cut_at_the_bound() {
        let rows = vec![format!("{}\n", "x".repeat(CHUNK_BYTES_MAX)); 3];
        assert_eq!(cut(&rows).len(), 4);
    }
}
