//! A login in a project's server: a role with a password and an end, that is another role from the first moment on.

use postgres_protocol::escape::{escape_identifier, escape_literal};
use tokio_postgres::{Client, error::SqlState};

use super::Login;
use crate::{
    base::{
        error::{Context, Error},
        ids::ProjectRef,
    },
    data_plane::{
        cluster_driver::ClusterDriver,
        clusters::QUIET,
        context::DataPlaneContext,
        database_session::{OWNER, READER},
    },
};

/// Names of logins begin so, and nothing else in a server of ours does.
pub const LOGIN_PREFIX: &str = "gantry_jit_";
/// Every login is a member of it: one line of `pg_hba.conf` can mean them all.
const GROUP: &str = "gantry_jit";
/// Sessions that one login can have at once.
const SESSIONS_MAX: u8 = 10;
/// How often to look for sessions that were just being opened.
const LOOKS: usize = 10;
/// Roles and databases read at once.
const LIST_MAX: i64 = 1_000;
/// What the server made of a login.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It can be used.
    Open,
    /// Nobody can be given this role.
    Refused(String),
}

/// Makes the login, or gives it its new end and password. Can be repeated.
pub(crate) async fn open(admin: &Client, login: &Login) -> Result<Outcome, Error> {
    let doing = "opening a login";
    // Only what the owner could pass on: no superuser, and none of PostgreSQL's own roles.
    let sql = "select not rolsuper and rolname not like 'pg\\_%' and (rolname = any($2) or pg_has_role($3, oid, 'member')) \
               from pg_roles where rolname = $1";
    let own: &[&str] = &[OWNER, READER];
    match admin
        .query_opt(sql, &[&login.role, &own, &OWNER])
        .await
        .context(doing)?
        .map(|row| row.get::<_, bool>(0))
    {
        None => {
            return Ok(Outcome::Refused(format!(
                "There is no role {} in this database",
                login.role
            )));
        }
        Some(false) => {
            return Ok(Outcome::Refused(format!(
                "The role {} cannot be given to members",
                login.role
            )));
        }
        Some(true) => {}
    }
    // A message of its own: PostgreSQL decides on logging a message before it runs any of it.
    admin.batch_execute(QUIET).await.context(doing)?;
    let (name, role, group) = (
        escape_identifier(&login.name),
        escape_identifier(&login.role),
        escape_identifier(GROUP),
    );
    let make = |name: &str| {
        let exists = format!(
            "select from pg_roles where rolname = {}",
            escape_literal(name)
        );
        let make = escape_literal(&format!(
            "create role {} nologin noinherit",
            escape_identifier(name)
        ));
        format!("if not exists ({exists}) then execute {make}; end if;")
    };
    let password = login
        .verifier
        .as_deref()
        .map(|verifier| format!("password {}", escape_literal(verifier)))
        .unwrap_or_default();
    let until = escape_literal(&login.until.to_rfc3339());
    let statements = format!(
        "begin; do {}; grant {group}, {role} to {name}; alter role {name} set role = {role};
         alter role {name} login connection limit {SESSIONS_MAX} valid until {until} {password}; commit",
        escape_literal(&format!("begin {} {} end", make(GROUP), make(&login.name))),
    );
    admin.batch_execute(&statements).await.context(doing)?;
    Ok(Outcome::Open)
}

/// Lets nobody in as this role any more, ends the sessions of those who are, and removes it. Can be repeated.
pub(crate) async fn end(
    driver: &dyn ClusterDriver,
    project: &ProjectRef,
    admin: &Client,
    name: &str,
) -> Result<(), Error> {
    let doing = "ending a login";
    if admin
        .query_opt("select from pg_roles where rolname = $1", &[&name])
        .await
        .context(doing)?
        .is_none()
    {
        return Ok(());
    }
    let role = escape_identifier(name);
    let shut = format!("alter role {role} nologin password null valid until '-infinity'");
    if admin.batch_execute(&shut).await.is_err() {
        // Whoever is in may keep the role locked.
        terminate(admin, name).await?;
        admin.batch_execute(&shut).await.context(doing)?;
    }
    terminate(admin, name).await?;
    if let Err(error) = remove(driver, project, admin, name).await {
        // It lets nobody in. The next look at this server finds it again.
        tracing::warn!(%project, role = name, %error, "a login that is over could not be removed");
    }
    Ok(())
}

/// Logins in the server.
pub(crate) async fn list(admin: &Client) -> Result<Vec<String>, Error> {
    let sql = "select rolname::text from pg_roles where starts_with(rolname, $1) and not rolsuper order by 1 limit $2";
    let rows = admin
        .query(sql, &[&LOGIN_PREFIX, &LIST_MAX])
        .await
        .context("listing logins")?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

async fn terminate(admin: &Client, name: &str) -> Result<(), Error> {
    // Waits up to a second for each.
    let sql =
        "select count(pg_terminate_backend(pid, 1000)) from pg_stat_activity where usename = $1";
    for _ in 0..LOOKS {
        if admin
            .query_one(sql, &[&name])
            .await
            .context("ending sessions")?
            .get::<_, i64>(0)
            == 0
        {
            return Ok(());
        }
    }
    Err(Error::internal("ending sessions", "some are still there"))
}

/// What was made in the role's own name goes to the owner, and what was granted to it is taken back.
async fn remove(
    driver: &dyn ClusterDriver,
    project: &ProjectRef,
    admin: &Client,
    name: &str,
) -> Result<(), Error> {
    let doing = "removing a login";
    let role = escape_identifier(name);
    let drop = format!("drop role if exists {role}");
    match admin.batch_execute(&drop).await {
        Err(error) if error.code() == Some(&SqlState::DEPENDENT_OBJECTS_STILL_EXIST) => {}
        done => return done.context(doing),
    }
    let sql = "select datname::text from pg_database where datallowconn order by 1 limit $1";
    for row in admin.query(sql, &[&LIST_MAX]).await.context(doing)? {
        let there = driver
            .admin_session_in(project, row.get(0))
            .await
            .context(doing)?;
        let empty = format!(
            "reassign owned by {role} to {}; drop owned by {role}",
            escape_identifier(OWNER)
        );
        there.batch_execute(&empty).await.context(doing)?;
    }
    admin.batch_execute(&drop).await.context(doing)
}

/// A superuser's session in the project's server.
pub(crate) async fn connect(
    context: &DataPlaneContext,
    project: &ProjectRef,
) -> Result<Client, Error> {
    context
        .driver
        .admin_session(project)
        .await
        .context("connecting to a cluster")
}
