//! Databases and schemas of a project.

use futures_util::{StreamExt, TryStreamExt, stream};
use schemars::JsonSchema;
use serde::Serialize;
use tokio::time::timeout;

use crate::{
    control::database_session::{
        DATABASE, OWNER,
        session::{ConnectTarget, DatabaseSession, SessionLimits},
    },
    platform::error::Error,
};

/// Databases of a project's cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "Context")]
pub struct ClusterCatalog {
    /// Databases, by name.
    pub databases: Vec<CatalogDatabase>,
}

/// A database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "Database")]
pub struct CatalogDatabase {
    /// Name.
    pub name: String,
    /// Schemas, ordered by name.
    pub schemas: Vec<CatalogSchema>,
}

/// A schema.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "Schema")]
pub struct CatalogSchema {
    /// Name.
    pub name: String,
}

/// Maximum number of concurrent sessions.
const SESSIONS_MAX: usize = 4;

/// Lists the databases to which the owner can connect, except templates, with their schemas, except
/// PostgreSQL's own (`behaviour.md` §8). At most 100 databases; `limits.time` applies to the whole
/// call.
///
/// A session sees only the schemas of its own database. The default database returns both lists in
/// one statement; each other database needs a session.
///
/// Errors: [`Error::DatabaseUnreachable`], [`Error::TimedOut`].
pub async fn context(
    target: &ConnectTarget,
    limits: SessionLimits,
) -> Result<ClusterCatalog, Error> {
    timeout(limits.time, databases(target, limits))
        .await
        .unwrap_or(Err(Error::TimedOut(limits.time)))
}

/// Kind and name of databases, and of schemas of the current database.
macro_rules! schemas {
    () => {
        r#"select 's', nspname::text collate "C" from pg_catalog.pg_namespace where nspname not like 'pg\_%' and nspname <> 'information_schema'"#
    };
}
const BOTH: &str = concat!(
    r#"(select 'd', datname::text collate "C" from pg_catalog.pg_database
        where datallowconn and not datistemplate and pg_catalog.has_database_privilege(oid, 'CONNECT') order by 2 limit "#,
    // Maximum number of databases.
    100,
    ") union all (",
    schemas!(),
    ") order by 1, 2"
);
const SCHEMAS: &str = concat!(schemas!(), " order by 2");

async fn databases(target: &ConnectTarget, limits: SessionLimits) -> Result<ClusterCatalog, Error> {
    let (databases, schemas): (Vec<_>, Vec<_>) = rows(target, DATABASE, BOTH, limits)
        .await?
        .into_iter()
        .partition(|(kind, _)| kind == "d");
    let own = named(schemas);
    let others = databases.into_iter().map(|(_, name)| {
        let own = (name == DATABASE).then(|| own.clone());
        async move {
            let schemas = match own {
                Some(schemas) => schemas,
                None => match rows(target, &name, SCHEMAS, limits).await {
                    Ok(schemas) => named(schemas),
                    // The database was dropped or closed since it was listed.
                    Err(Error::Sql(_)) => return Ok(None),
                    Err(error) => return Err(error),
                },
            };
            Ok(Some(CatalogDatabase { name, schemas }))
        }
    });
    let databases: Vec<Option<CatalogDatabase>> = stream::iter(others)
        .buffered(SESSIONS_MAX)
        .try_collect()
        .await?;
    Ok(ClusterCatalog {
        databases: databases.into_iter().flatten().collect(),
    })
}

fn named(rows: Vec<(String, String)>) -> Vec<CatalogSchema> {
    rows.into_iter()
        .map(|(_, name)| CatalogSchema { name })
        .collect()
}

async fn rows(
    target: &ConnectTarget,
    database: &str,
    sql: &str,
    limits: SessionLimits,
) -> Result<Vec<(String, String)>, Error> {
    let mut session = DatabaseSession::open(target, OWNER, database, &[], limits).await?;
    let rows = session.simple_query(sql).await?.rows.texts();
    Ok(rows
        .into_iter()
        .filter_map(|row| {
            Some(row.into_iter().flatten()).and_then(|mut row| Some((row.next()?, row.next()?)))
        })
        .collect())
}
