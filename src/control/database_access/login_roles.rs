//! Short-lived login roles for clients, which need not store the owner's password.
//!
//! PostgreSQL rejects a role after its expiry. An expired role is dropped by a timer, or when the
//! next role is created.

use std::time::Duration;

use gantry_base::ids::ProjectRef;
use gantry_node::{
    clusters::superuser::{self, SqlArgument, SuperuserSession},
    error::ClusterError,
};
use secrecy::{ExposeSecret, SecretString};
use tokio::time::sleep;

use crate::{
    control::{context::ControlContext, projects},
    platform::{
        access::Project,
        error::{Context, Error},
    },
    proxy::postgres_proxy::LOGIN_ROLE_PREFIX,
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
    context: &ControlContext,
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
    let seconds = TTL.as_secs_f64();
    let until = admin.query_one(&superuser::TIME_AFTER, &[&seconds]).await;
    let until: String = until.context(MAKING)?.get(0);
    admin.run(&superuser::QUIET).await.context(MAKING)?;
    let name = SqlArgument::Identifier(&role);
    let arguments = [
        name,
        SqlArgument::Literal(&verifier),
        SqlArgument::Literal(&until),
        name,
        name,
    ];
    // A read-only role inherits its privileges. The other one must switch to the owner with `set
    // role`.
    let created = if read_only {
        admin
            .run_with(&superuser::CREATE_READING_LOGIN, &arguments)
            .await
    } else {
        admin
            .run_with(&superuser::CREATE_OWNER_LOGIN, &arguments[..4])
            .await
    };
    created.context(MAKING)?;
    expire(context, project.clone());
    Ok(LoginRole { role, password })
}

/// Terminates the sessions of all login roles of the project and drops the roles.
pub async fn remove_all(context: &ControlContext, project: &Project) -> Result<(), Error> {
    projects::target(context, project).await?;
    let admin = admin(context, project).await?;
    let pattern = pattern(&project.reference);
    admin
        .query(&superuser::END_MATCHING_SESSIONS, &[&pattern])
        .await
        .context("ending sessions of login roles")?;
    sweep(&admin, &project.reference, 0).await
}

const MAKING: &str = "creating a login role";
const DROPPING: &str = "dropping login roles";

async fn admin(context: &ControlContext, project: &Project) -> Result<SuperuserSession, Error> {
    context
        .driver
        .superuser_session(&project.reference)
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
async fn sweep(admin: &SuperuserSession, project: &ProjectRef, kept: i64) -> Result<(), Error> {
    let rows = admin
        .query(&superuser::UNUSED_LOGIN_ROLES, &[&pattern(project), &kept])
        .await
        .context(DROPPING)?;
    for row in rows {
        let name = [SqlArgument::Identifier(row.get(0)); 3];
        // Objects that the role owns go to the owner of the database.
        match admin.run_with(&superuser::DROP_LOGIN_ROLE, &name).await {
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
fn expire(context: &ControlContext, project: Project) {
    let context = context.clone();
    tokio::spawn(async move {
        sleep(TTL + Duration::from_secs(1)).await;
        // If the project is paused, removed or on another node by now, no login is possible, and
        // the next creation sweeps.
        if let Ok(admin) = context.driver.superuser_session(&project.reference).await
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
