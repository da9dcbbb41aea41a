//! Login roles in a project's server. A login has a password and an expiry, and switches to the
//! granted role when a session starts.

use postgres_protocol::escape::{escape_identifier, escape_literal};
use tokio_postgres::{Client, error::SqlState};

use super::TemporaryLogin;
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

/// Name prefix of logins. No other role of a project's server has it.
pub const LOGIN_PREFIX: &str = "gantry_jit_";
/// Group of all logins, for a single line in `pg_hba.conf`.
const GROUP: &str = "gantry_jit";
/// Maximum number of concurrent sessions of a login.
const SESSIONS_MAX: u8 = 10;
/// Attempts to terminate sessions, which may be opening concurrently.
const TERMINATE_ATTEMPTS: usize = 10;
/// Maximum number of roles and databases read by a statement.
const LIST_MAX: i64 = 1_000;
/// Result of opening a login.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LoginOutcome {
    /// The login can be used.
    Open,
    /// The role cannot be granted, for this reason.
    Rejected(String),
}

/// Creates the login, or sets its new expiry and password. Idempotent.
pub(crate) async fn open(admin: &Client, login: &TemporaryLogin) -> Result<LoginOutcome, Error> {
    let doing = "opening a login";
    // Only roles that the owner could grant: no superuser and no predefined role of PostgreSQL.
    // The owner could also grant the login of the Data API, which is for one service only.
    let sql = "select not rolsuper and rolname not like 'pg\\_%' and rolname <> 'authenticator' and (rolname = any($2) or pg_has_role($3, oid, 'member')) \
               from pg_roles where rolname = $1";
    let own: &[&str] = &[OWNER, READER];
    match admin
        .query_opt(sql, &[&login.role, &own, &OWNER])
        .await
        .context(doing)?
        .map(|row| row.get::<_, bool>(0))
    {
        None => {
            return Ok(LoginOutcome::Rejected(format!(
                "There is no role {} in this database",
                login.role
            )));
        }
        Some(false) => {
            return Ok(LoginOutcome::Rejected(format!(
                "The role {} cannot be given to members",
                login.role
            )));
        }
        Some(true) => {}
    }
    // Sent as a separate message: PostgreSQL decides on logging a message before it executes any of
    // its statements.
    admin.batch_execute(QUIET).await.context(doing)?;
    let name = escape_identifier(&login.name);
    let role = escape_identifier(&login.role);
    let group = escape_identifier(GROUP);
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
    Ok(LoginOutcome::Open)
}

/// Disables the login, terminates its sessions and drops the role. Idempotent.
pub(crate) async fn end(
    driver: &dyn ClusterDriver,
    project: &ProjectRef,
    admin: &Client,
    name: &str,
) -> Result<(), Error> {
    let doing = "removing a login";
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
        // An open session may hold a lock on the role.
        terminate(admin, name).await?;
        admin.batch_execute(&shut).await.context(doing)?;
    }
    terminate(admin, name).await?;
    if let Err(error) = remove(driver, project, admin, name).await {
        // The login is disabled. The next pass drops the role.
        tracing::warn!(%project, role = name, %error, "failed to drop an expired login role");
    }
    Ok(())
}

/// Lists the logins of the server.
pub(crate) async fn list(admin: &Client) -> Result<Vec<String>, Error> {
    let sql = "select rolname::text from pg_roles where starts_with(rolname, $1) and not rolsuper order by 1 limit $2";
    let rows = admin
        .query(sql, &[&LOGIN_PREFIX, &LIST_MAX])
        .await
        .context("listing logins")?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

async fn terminate(admin: &Client, name: &str) -> Result<(), Error> {
    // Waits up to a second for each session.
    let sql =
        "select count(pg_terminate_backend(pid, 1000)) from pg_stat_activity where usename = $1";
    for _ in 0..TERMINATE_ATTEMPTS {
        if admin
            .query_one(sql, &[&name])
            .await
            .context("terminating sessions")?
            .get::<_, i64>(0)
            == 0
        {
            return Ok(());
        }
    }
    Err(Error::internal(
        "terminating sessions",
        "some sessions are still open",
    ))
}

/// Drops the role. Objects that it owns go to the owner of the database, and its privileges are
/// revoked.
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

/// Opens a superuser session in the project's server.
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
