//! Roles that a client logs in as for some minutes, so that nobody has to keep the owner's password.
//!
//! The server itself refuses them when their time is over. They are dropped then; should that be missed, with the next one
//! that is made.

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

/// How long one can log in.
pub const TTL: Duration = Duration::from_mins(5);
/// Of one project at a time; the oldest go first.
const ROLES_MAX: i64 = 20;
/// Letters of a password: 188 bits.
const PASSWORD_LETTERS: usize = 40;

/// A role that was made, and its password, which is kept nowhere.
pub struct LoginRole {
    /// Its name.
    pub role: String,
    /// Its password.
    pub password: SecretString,
}

/// Makes one: the owner's right hand, or one that only reads.
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
    // The server's clock decides when it is too late to log in.
    let sql = format!(
        "select (now() + interval '{} seconds')::text",
        TTL.as_secs()
    );
    let until: String = admin.query_one(&sql, &[]).await.context(MAKING)?.get(0);
    let (name, verifier, until) = (
        escape_identifier(&role),
        escape_literal(&verifier),
        escape_literal(&until),
    );
    let grants = if read_only {
        format!(
            "grant pg_read_all_data to {name}; alter role {name} set default_transaction_read_only = on"
        )
    } else {
        format!("grant postgres to {name}")
    };
    // A reader uses what it was granted; who can be the owner must say so first.
    let (inherit, bypass) = if read_only {
        ("inherit", "bypassrls")
    } else {
        ("noinherit", "nobypassrls")
    };
    // A message of its own: PostgreSQL decides on logging a message before it runs any of it.
    admin.batch_execute(QUIET).await.context(MAKING)?;
    let sql = format!(
        "begin; create role {name} login {inherit} {bypass} password {verifier} valid until {until}; {grants}; commit"
    );
    admin.batch_execute(&sql).await.context(MAKING)?;
    expire(context, project.clone());
    Ok(LoginRole { role, password })
}

/// Ends the sessions of all of them, and drops them.
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

const MAKING: &str = "making a login role";
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

/// Names that we made, and nobody else's that look like them.
fn pattern(project: &ProjectRef) -> String {
    format!("^{LOGIN_ROLE_PREFIX}(postgres|read_only)_{project}_[a-z]{{8}}$")
}

/// Drops those whose time is over, and the oldest, until there are at most `kept`. One that is logged in goes later.
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
        // What it made without becoming the owner is the owner's all the same.
        let sql =
            format!("reassign owned by {name} to postgres; drop owned by {name}; drop role {name}");
        match admin.batch_execute(&sql).await {
            Ok(()) => {}
            // Others may sweep at the same time.
            Err(error)
                if error.code() == Some(&tokio_postgres::error::SqlState::UNDEFINED_OBJECT) => {}
            Err(error) => return Err(error).context(DROPPING),
        }
    }
    Ok(())
}

/// Sweeps once this role's time is over, if somebody is still there to do it.
fn expire(context: &DataPlaneContext, project: Project) {
    let context = context.clone();
    tokio::spawn(async move {
        sleep(TTL + Duration::from_secs(1)).await;
        // Paused, removed or elsewhere by now: then nobody can log in, and the next one that is made sweeps.
        if let Ok(admin) = context.driver.admin_session(&project.reference).await
            && let Err(error) = sweep(&admin, &project.reference, ROLES_MAX).await
        {
            tracing::warn!(project = %project.reference, %error, "login roles were not dropped");
        }
    });
}

impl LoginRole {
    /// The password, for the one answer that has it.
    pub fn expose(&self) -> &str {
        self.password.expose_secret()
    }
}
