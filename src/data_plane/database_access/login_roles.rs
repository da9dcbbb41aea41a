//! Short-lived login roles for clients, which need not store the owner's password.
//!
//! PostgreSQL rejects a role after its expiry. An expired role is dropped by a timer, or when the
//! next role is created.

use std::time::Duration;

use postgres_protocol::escape::{escape_identifier, escape_literal};
use secrecy::{ExposeSecret, SecretString};
use tokio::time::sleep;
use tokio_postgres::Client;

use super::LOGIN_ROLE_PREFIX;
use crate::{
    base::{
        error::{Context, Error},
        ids::ProjectRef,
    },
    data_plane::{
        clusters::{ClusterError, QUIET},
        context::DataPlaneContext,
        projects,
    },
    platform::access::Project,
};

/// Time in which a client can log in.
pub const TTL: Duration = Duration::from_mins(5);
/// Maximum number of roles of a project. The oldest are dropped first.
const ROLES_MAX: i64 = 20;
/// Letters of a password: 188 bits.
const PASSWORD_LETTERS: usize = 40;

/// A created role with its password, which is not stored.
pub struct LoginRole {
    /// Role name.
    pub role: String,
    /// Password.
    pub password: SecretString,
}

/// Creates a role that is a member of the owner role, or a read-only one.
pub async fn create(
    context: &DataPlaneContext,
    project: &Project,
    read_only: bool,
) -> Result<LoginRole, Error> {
    projects::target(context, project).await?;
    let admin = admin(context, project).await?;
    let kind = if read_only { "read_only" } else { "postgres" };
    let role = format!(
        "{LOGIN_ROLE_PREFIX}{kind}_{}_{}",
        project.reference,
        context.entropy.letters(8)
    );
    let password = SecretString::from(context.entropy.letters(PASSWORD_LETTERS));
    let verifier = projects::verifier(password.clone()).await?;
    sweep(&admin, &project.reference, ROLES_MAX - 1).await?;
    // The expiry is computed from the server's clock, which PostgreSQL compares it with.
    let sql = format!(
        "select (now() + interval '{} seconds')::text",
        TTL.as_secs()
    );
    let until: String = admin.query_one(&sql, &[]).await.context(MAKING)?.get(0);
    let name = escape_identifier(&role);
    let verifier = escape_literal(&verifier);
    let until = escape_literal(&until);
    let grants = if read_only {
        format!(
            "grant pg_read_all_data to {name}; alter role {name} set default_transaction_read_only = on"
        )
    } else {
        format!("grant postgres to {name}")
    };
    // A read-only role inherits its privileges. The other one must switch to the owner with `set
    // role`.
    let (inherit, bypass) = if read_only {
        ("inherit", "bypassrls")
    } else {
        ("noinherit", "nobypassrls")
    };
    // Sent as a separate message: PostgreSQL decides on logging a message before it executes any of
    // its statements.
    admin.batch_execute(QUIET).await.context(MAKING)?;
    let sql = format!(
        "begin; create role {name} login {inherit} {bypass} password {verifier} valid until {until}; {grants}; commit"
    );
    admin.batch_execute(&sql).await.context(MAKING)?;
    expire(context, project.clone());
    Ok(LoginRole { role, password })
}

/// Terminates the sessions of all login roles of the project and drops the roles.
pub async fn remove_all(context: &DataPlaneContext, project: &Project) -> Result<(), Error> {
    projects::target(context, project).await?;
    let admin = admin(context, project).await?;
    let sql = "select pg_terminate_backend(pid, 5000) from pg_stat_activity where usename ~ $1";
    admin
        .query(sql, &[&pattern(&project.reference)])
        .await
        .context("ending sessions of login roles")?;
    sweep(&admin, &project.reference, 0).await
}

const MAKING: &str = "creating a login role";
const DROPPING: &str = "dropping login roles";

async fn admin(context: &DataPlaneContext, project: &Project) -> Result<Client, Error> {
    context
        .driver
        .admin_session(&project.reference)
        .await
        .map_err(|error| match error {
            ClusterError::Missing(_)
            | ClusterError::Unreached { .. }
            | ClusterError::ConnectTimeout(_)
            | ClusterError::Sql { .. } => Error::DatabaseUnreachable,
            other => Error::internal("reaching a project's database", other),
        })
}

/// Returns a regular expression for names of login roles of the project. It matches no other roles
/// with the prefix.
fn pattern(project: &ProjectRef) -> String {
    format!("^{LOGIN_ROLE_PREFIX}(postgres|read_only)_{project}_[a-z]{{8}}$")
}

/// Drops expired roles, and the oldest ones until at most `kept` remain. Roles with an open session
/// are dropped later.
async fn sweep(admin: &Client, project: &ProjectRef, kept: i64) -> Result<(), Error> {
    let sql = "select rolname::text from \
               (select rolname, rolvaliduntil, row_number() over (order by rolvaliduntil desc, rolname) as place from pg_roles where rolname ~ $1) r \
               where (place > $2 or rolvaliduntil < now()) and not exists (select from pg_stat_activity where usename = rolname)";
    let rows = admin
        .query(sql, &[&pattern(project), &kept])
        .await
        .context(DROPPING)?;
    for row in rows {
        let name = escape_identifier(row.get(0));
        // Objects that the role owns go to the owner of the database.
        let sql =
            format!("reassign owned by {name} to postgres; drop owned by {name}; drop role {name}");
        match admin.batch_execute(&sql).await {
            Ok(()) => {}
            // A concurrent sweep dropped the role first.
            Err(error)
                if error.code() == Some(&tokio_postgres::error::SqlState::UNDEFINED_OBJECT) => {}
            Err(error) => return Err(error).context(DROPPING),
        }
    }
    Ok(())
}

/// Drops this role after its expiry, if the process still runs.
fn expire(context: &DataPlaneContext, project: Project) {
    let context = context.clone();
    tokio::spawn(async move {
        sleep(TTL + Duration::from_secs(1)).await;
        // If the project is paused, removed or on another node by now, no login is possible, and
        // the next creation sweeps.
        if let Ok(admin) = context.driver.admin_session(&project.reference).await
            && let Err(error) = sweep(&admin, &project.reference, ROLES_MAX).await
        {
            tracing::warn!(project = %project.reference, %error, "failed to drop login roles");
        }
    });
}

impl LoginRole {
    /// Returns the password for the response.
    pub fn expose(&self) -> &str {
        self.password.expose_secret()
    }
}
