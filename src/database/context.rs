//! The databases and schemas of a project.

use schemars::JsonSchema;
use serde::Serialize;
use tokio::time::timeout;

use super::{
    DATABASE, OWNER,
    session::{Limits, Session, Target},
};
use crate::error::Error;

/// Databases that are listed; each takes a session.
const DATABASES_MAX: usize = 100;

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

/// Every database the owner may connect to, templates left out, with its schemas but PostgreSQL's own
/// (`behaviour.md` §8). At most 100 databases; `limits.time` holds for all of them together.
///
/// Errors: [`Error::DatabaseUnreachable`], [`Error::TimedOut`].
pub async fn context(target: &Target, limits: Limits) -> Result<Context, Error> {
    timeout(limits.time, databases(target, limits)).await.unwrap_or(Err(Error::TimedOut(limits.time)))
}

async fn databases(target: &Target, limits: Limits) -> Result<Context, Error> {
    let mut session = Session::open(target, OWNER, DATABASE, &[], limits).await?;
    let names = names(
        &mut session,
        &format!(
            r#"select datname from pg_catalog.pg_database
               where datallowconn and not datistemplate and pg_catalog.has_database_privilege(oid, 'CONNECT')
               order by datname::text collate "C" limit {DATABASES_MAX}"#
        ),
    )
    .await?;
    drop(session);
    let mut databases = Vec::with_capacity(names.len());
    for name in names {
        match schemas(target, &name, limits).await {
            Ok(schemas) => databases.push(Database { name, schemas }),
            // Dropped, or closed to us, since it was listed.
            Err(Error::Sql(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Context { databases })
}

async fn schemas(target: &Target, database: &str, limits: Limits) -> Result<Vec<Schema>, Error> {
    let mut session = Session::open(target, OWNER, database, &[], limits).await?;
    let names = names(
        &mut session,
        r#"select nspname from pg_catalog.pg_namespace
           where nspname not like 'pg\_%' and nspname <> 'information_schema'
           order by nspname::text collate "C""#,
    )
    .await?;
    Ok(names.into_iter().map(|name| Schema { name }).collect())
}

async fn names(session: &mut Session, sql: &str) -> Result<Vec<String>, Error> {
    Ok(session.simple(sql).await?.rows.texts().into_iter().flatten().flatten().collect())
}
