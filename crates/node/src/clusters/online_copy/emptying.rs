//! Removes the rows of a copy in quarantine, so that it has only the schema of its original.
//!
//! Histories of migrations stay, and so do the tables of extensions, which are part of them. Every
//! owner empties its own tables, while their triggers and rules are hidden. Hidden, too, are the
//! triggers of foreign keys, so tables of several owners that reference each other can be emptied.

use std::collections::BTreeMap;

use crate::{
    clusters::{
        online_copy::isolation::{IsolationLog, execute, run, run_with, sql_error, value},
        platform_roles::SERVICE_ROLES,
        quarantine::{OwnerLogins, SchemaUsage},
        superuser::{self, SqlArgument, SuperuserSession},
    },
    error::{ClusterError, Result},
};

/// Maximum number of tables of a database.
const TABLES_MAX: i64 = 50_000;
/// Number of tables that one statement empties.
const TABLES_PER_STATEMENT: usize = 200;

/// A table to empty.
struct EmptiedTable {
    oid: u32,
    quoted: String,
}

/// Empties the tables of one database, in the session that isolates it.
pub(super) async fn empty(
    session: &SuperuserSession,
    logins: &OwnerLogins,
    database: &str,
    log: &mut IsolationLog,
) -> Result<()> {
    let (own, platforms) = tables(session).await?;
    let all = own.values().flatten().chain(&platforms);
    let numbers: Vec<u32> = all.map(|table| table.oid).collect();
    let hidden = session
        .execute(&superuser::HIDE_TRIGGERS, &[&numbers])
        .await;
    hidden.map_err(sql_error)?;
    let usage = SchemaUsage::grant(session).await?;
    for (owner, tables) in &own {
        let client = logins.session(owner, database).await?;
        for some in tables.chunks(TABLES_PER_STATEMENT) {
            let names: Vec<String> = some
                .iter()
                .map(|table| format!("only {}", table.quoted))
                .collect();
            let sql = format!("truncate {} restart identity", names.join(", "));
            execute(&client, &sql).await?;
        }
    }
    for table in &platforms {
        let name = [SqlArgument::Quoted(&table.quoted)];
        run_with(session, &superuser::TRUNCATE_PLATFORM_TABLE, &name).await?;
    }
    log.add("tables emptied", numbers.len() as u64);
    let views = empty_views(session, logins, database).await?;
    log.add("materialized views emptied", views);
    usage.revoke(session).await?;
    let shown = session.execute(&superuser::SHOW_TRIGGERS, &[]).await;
    shown.map_err(sql_error)?;
    run(session, &superuser::DELETE_REST).await?;
    for catalog in [
        &superuser::REWRITE_LARGE_OBJECTS,
        &superuser::REWRITE_LARGE_OBJECT_OWNERS,
        &superuser::REWRITE_EXTENDED_STATISTICS,
    ] {
        run(session, catalog).await?;
    }
    Ok(())
}

/// Returns the tables to empty by owner, and those of the superuser.
async fn tables(
    session: &SuperuserSession,
) -> Result<(BTreeMap<String, Vec<EmptiedTable>>, Vec<EmptiedTable>)> {
    let limit = TABLES_MAX + 1;
    let services = SERVICE_ROLES.as_slice();
    let rows = session
        .query(&superuser::TABLES_WITH_ROWS, &[&limit, &services])
        .await;
    let rows = rows.map_err(sql_error)?;
    if i64::try_from(rows.len()).is_ok_and(|count| count > TABLES_MAX) {
        let text = format!("it has more than {TABLES_MAX} tables");
        return Err(ClusterError::Isolation(text));
    }
    let (mut own, mut platforms) = (BTreeMap::<String, Vec<EmptiedTable>>::new(), Vec::new());
    for row in &rows {
        let table = EmptiedTable {
            oid: value(row, 0)?,
            quoted: value(row, 1)?,
        };
        if value(row, 3)? {
            platforms.push(table);
        } else {
            own.entry(value(row, 2)?).or_default().push(table);
        }
    }
    Ok((own, platforms))
}

/// Empties materialized views, each in a session of its owner. Returns their number.
async fn empty_views(
    session: &SuperuserSession,
    logins: &OwnerLogins,
    database: &str,
) -> Result<u64> {
    let limit = TABLES_MAX;
    let rows = session.query(&superuser::VIEWS_WITH_ROWS, &[&limit]).await;
    let rows = rows.map_err(sql_error)?;
    for row in &rows {
        let view: String = value(row, 0)?;
        if value(row, 2)? {
            let name = [SqlArgument::Quoted(&view)];
            run_with(session, &superuser::EMPTY_PLATFORM_VIEW, &name).await?;
            continue;
        }
        let client = logins.session(value(row, 1)?, database).await?;
        let sql = format!("refresh materialized view {view} with no data");
        execute(&client, &sql).await?;
    }
    Ok(rows.len() as u64)
}
