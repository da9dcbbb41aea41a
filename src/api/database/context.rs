//! The databases and schemas of a project.

use futures_util::{StreamExt, TryStreamExt, stream};
use schemars::JsonSchema;
use serde::Serialize;
use tokio::time::timeout;

use crate::{
    base::error::Error,
    data_plane::database_session::{
        DATABASE, OWNER,
        session::{Limits, Session, Target},
    },
};

/// What a project's cluster contains.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Context {
    /// Databases, by name.
    pub databases: Vec<Database>,
}

/// A database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Database {
    /// Its name.
    pub name: String,
    /// Its schemas, by name.
    pub schemas: Vec<Schema>,
}

/// A schema.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Schema {
    /// Its name.
    pub name: String,
}

/// Databases that are asked at the same time.
const SESSIONS_MAX: usize = 4;

/// Every database the owner may connect to, templates left out, with its schemas but PostgreSQL's own
/// (`behaviour.md` §8). At most 100 databases; `limits.time` holds for all of them together.
///
/// A session sees the schemas of its own database only: that which every project has is asked for both in one statement, and
/// each further one takes a session.
///
/// Errors: [`Error::DatabaseUnreachable`], [`Error::TimedOut`].
pub async fn context(target: &Target, limits: Limits) -> Result<Context, Error> {
    timeout(limits.time, databases(target, limits))
        .await
        .unwrap_or(Err(Error::TimedOut(limits.time)))
}

/// Kind and name: of databases, of schemas of this one.
macro_rules! schemas {
    () => {
        r#"select 's', nspname::text collate "C" from pg_catalog.pg_namespace where nspname not like 'pg\_%' and nspname <> 'information_schema'"#
    };
}
const BOTH: &str = concat!(
    r#"(select 'd', datname::text collate "C" from pg_catalog.pg_database
        where datallowconn and not datistemplate and pg_catalog.has_database_privilege(oid, 'CONNECT') order by 2 limit "#,
    // Databases that are listed.
    100,
    ") union all (",
    schemas!(),
    ") order by 1, 2"
);
const SCHEMAS: &str = concat!(schemas!(), " order by 2");

async fn databases(target: &Target, limits: Limits) -> Result<Context, Error> {
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
                    // Dropped, or closed to us, since it was listed.
                    Err(Error::Sql(_)) => return Ok(None),
                    Err(error) => return Err(error),
                },
            };
            Ok(Some(Database { name, schemas }))
        }
    });
    let databases: Vec<Option<Database>> = stream::iter(others)
        .buffered(SESSIONS_MAX)
        .try_collect()
        .await?;
    Ok(Context {
        databases: databases.into_iter().flatten().collect(),
    })
}

fn named(rows: Vec<(String, String)>) -> Vec<Schema> {
    rows.into_iter().map(|(_, name)| Schema { name }).collect()
}

async fn rows(
    target: &Target,
    database: &str,
    sql: &str,
    limits: Limits,
) -> Result<Vec<(String, String)>, Error> {
    let mut session = Session::open(target, OWNER, database, &[], limits).await?;
    let rows = session.simple(sql).await?.rows.texts();
    Ok(rows
        .into_iter()
        .filter_map(|row| {
            Some(row.into_iter().flatten()).and_then(|mut row| Some((row.next()?, row.next()?)))
        })
        .collect())
}
