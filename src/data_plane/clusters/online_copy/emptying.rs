//! Removes the rows of a copy in quarantine, so that it has only the schema of its original.
//!
//! Histories of migrations stay, and so do the tables of extensions, which are part of them. One
//! statement truncates all other tables, because of their foreign keys.

use postgres_protocol::escape::escape_identifier;
use tokio_postgres::{Client, Row};

use super::{
    super::{ClusterError, Result},
    isolation::{IsolationLog, run, sql_error, value},
};

/// Maximum number of tables of a database.
const TABLES_MAX: usize = 50_000;

/// Tables with rows that belong to the original. Tables of extensions are left out, but for those
/// of extensions that store requests, jobs and secrets.
const TABLES: &str = "
    select format('%I.%I', n.nspname, c.relname)
    from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
    where c.relkind in ('r', 'p') and n.nspname not like 'pg\\_%'
    and n.nspname not in ('information_schema', 'supabase_migrations')
    and not (n.nspname in ('auth', 'storage', 'realtime', '_realtime', 'supabase_functions')
             and c.relname like '%migrations')
    and (n.nspname in ('cron', 'net', 'vault') or not exists (
        select from pg_catalog.pg_depend d
        where d.classid = 'pg_catalog.pg_class'::regclass and d.objid = c.oid and d.deptype = 'e'))
    order by 1 limit 50001";

/// Materialized views that have rows.
const VIEWS: &str = "
    select format('%I.%I', n.nspname, c.relname)
    from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
    where c.relkind = 'm' and c.relispopulated order by 1 limit 50001";

/// Triggers of the tenant that would fire for a truncation, also in this session.
const TRIGGERS: &str = "
    select format('%I.%I', n.nspname, c.relname), t.tgname::text,
           case t.tgenabled when 'A' then 'enable always' else 'enable replica' end
    from pg_catalog.pg_trigger t join pg_catalog.pg_class c on c.oid = t.tgrelid
    join pg_catalog.pg_namespace n on n.oid = c.relnamespace
    where t.tgenabled in ('A', 'R') and t.tgtype & 32 <> 0 and not t.tgisinternal
    order by 1, 2";

/// Large objects with their owners, and statistics, which have samples of rows.
const REST: &[&str] = &[
    "delete from pg_catalog.pg_largeobject",
    "delete from pg_catalog.pg_largeobject_metadata",
    "delete from pg_catalog.pg_shdepend where classid = 'pg_catalog.pg_largeobject'::regclass
     and dbid = (select oid from pg_catalog.pg_database
                 where datname = pg_catalog.current_database())",
    "delete from pg_catalog.pg_statistic where starelid >= 16384",
    "delete from pg_catalog.pg_statistic_ext_data",
];

/// Catalogs with deleted rows. `pg_statistic` is rewritten afterwards in any case.
const REWRITTEN: &[&str] = &[
    "pg_catalog.pg_largeobject",
    "pg_catalog.pg_largeobject_metadata",
    "pg_catalog.pg_statistic_ext_data",
];

/// Empties the tables of one database, in the session that isolates it.
pub(super) async fn empty(client: &Client, log: &mut IsolationLog) -> Result<()> {
    let tables = names(client, TABLES).await?;
    run(client, "begin").await?;
    let triggers = client.query(TRIGGERS, &[]).await.map_err(sql_error)?;
    for row in &triggers {
        alter_trigger(client, row, "disable").await?;
    }
    if !tables.is_empty() {
        let sql = format!("truncate {} restart identity", tables.join(", "));
        run(client, &sql).await?;
    }
    log.add("tables emptied", tables.len() as u64);
    for row in &triggers {
        alter_trigger(client, row, value(row, 2)?).await?;
    }
    let views = names(client, VIEWS).await?;
    for view in &views {
        let sql = format!("refresh materialized view {view} with no data");
        run(client, &sql).await?;
    }
    log.add("materialized views emptied", views.len() as u64);
    for sql in REST {
        run(client, sql).await?;
    }
    run(client, "commit").await?;
    for catalog in REWRITTEN {
        run(client, &format!("vacuum full {catalog}")).await?;
    }
    Ok(())
}

async fn alter_trigger(client: &Client, row: &Row, change: &str) -> Result<()> {
    let (table, name): (String, String) = (value(row, 0)?, value(row, 1)?);
    let name = escape_identifier(&name);
    run(
        client,
        &format!("alter table {table} {change} trigger {name}"),
    )
    .await
}

/// Returns names with their schemas, quoted.
async fn names(client: &Client, sql: &str) -> Result<Vec<String>> {
    let rows = client.query(sql, &[]).await.map_err(sql_error)?;
    if rows.len() > TABLES_MAX {
        let text = format!("it has more than {TABLES_MAX} tables");
        return Err(ClusterError::Isolation(text));
    }
    rows.iter().map(|row| value(row, 0)).collect()
}
