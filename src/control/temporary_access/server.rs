//! Login roles in a project's server. A login has a password and an expiry, and switches to the
//! granted role when a session starts.

use gantry_base::ids::ProjectRef;
use gantry_node::{
    cluster_driver::ClusterDriver,
    clusters::superuser::{self, SqlArgument, SqlError, SuperuserSession},
};
use tokio_postgres::error::SqlState;

use super::TemporaryLogin;
use crate::{
    control::{
        context::ControlContext,
        database_session::{OWNER, READER},
    },
    platform::error::{Context, Error},
    proxy::postgres_proxy::TEMPORARY_LOGIN_PREFIX,
};

/// Group of all logins, for a single line in `pg_hba.conf`.
const GROUP: &str = "gantry_jit";
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
pub(crate) async fn open(
    admin: &SuperuserSession,
    login: &TemporaryLogin,
) -> Result<LoginOutcome, Error> {
    let doing = "opening a login";
    // Only roles that the owner could grant: no superuser and no predefined role of PostgreSQL.
    // The owner could also grant the login of the Data API, which is for one service only.
    let own: &[&str] = &[OWNER, READER];
    match admin
        .query_opt(&superuser::IS_GRANTABLE, &[&login.role, &own, &OWNER])
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
    admin.run(&superuser::QUIET).await.context(doing)?;
    for name in [GROUP, &login.name] {
        create_role(admin, name).await.context(doing)?;
    }
    let until = login.until.to_rfc3339();
    let (name, role) = (
        SqlArgument::Identifier(&login.name),
        SqlArgument::Identifier(&login.role),
    );
    let group = SqlArgument::Identifier(GROUP);
    let until = SqlArgument::Literal(&until);
    let mut arguments = vec![group, role, name, name, role, name, until];
    let opened = match login.verifier.as_deref() {
        Some(verifier) => {
            arguments.push(SqlArgument::Literal(verifier));
            admin
                .run_with(&superuser::OPEN_LOGIN_WITH_PASSWORD, &arguments)
                .await
        }
        None => admin.run_with(&superuser::OPEN_LOGIN, &arguments).await,
    };
    if let Err(error) = opened {
        admin.roll_back().await.context(doing)?;
        return Err(error).context(doing);
    }
    Ok(LoginOutcome::Open)
}

/// Creates a role unless it exists, also if another process does so at the same time.
async fn create_role(admin: &SuperuserSession, name: &str) -> Result<(), SqlError> {
    let there = admin.query_opt(&superuser::ROLE_EXISTS, &[&name]).await?;
    if there.is_some() {
        return Ok(());
    }
    let name = [SqlArgument::Identifier(name)];
    match admin.run_with(&superuser::CREATE_ROLE, &name).await {
        Err(error)
            if [SqlState::DUPLICATE_OBJECT, SqlState::UNIQUE_VIOLATION]
                .iter()
                .any(|state| error.code() == Some(state)) =>
        {
            Ok(())
        }
        created => created,
    }
}

/// Disables the login, terminates its sessions and drops the role. Idempotent.
pub(crate) async fn end(
    driver: &dyn ClusterDriver,
    project: &ProjectRef,
    admin: &SuperuserSession,
    name: &str,
) -> Result<(), Error> {
    let doing = "removing a login";
    if admin
        .query_opt(&superuser::ROLE_EXISTS, &[&name])
        .await
        .context(doing)?
        .is_none()
    {
        return Ok(());
    }
    let role = [SqlArgument::Identifier(name)];
    let closed = admin.run_with(&superuser::CLOSE_LOGIN, &role).await;
    if closed.is_err() {
        // An open session may hold a lock on the role.
        terminate(admin, name).await?;
        let closed = admin.run_with(&superuser::CLOSE_LOGIN, &role).await;
        closed.context(doing)?;
    }
    terminate(admin, name).await?;
    if let Err(error) = remove(driver, project, admin, name).await {
        // The login is disabled. The next pass drops the role.
        tracing::warn!(%project, role = name, %error, "failed to drop an expired login role");
    }
    Ok(())
}

/// Lists the logins of the server.
pub(crate) async fn list(admin: &SuperuserSession) -> Result<Vec<String>, Error> {
    let rows = admin
        .query(
            &superuser::ROLES_WITH_PREFIX,
            &[&TEMPORARY_LOGIN_PREFIX, &LIST_MAX],
        )
        .await
        .context("listing logins")?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

async fn terminate(admin: &SuperuserSession, name: &str) -> Result<(), Error> {
    // Waits up to a second for each session.
    for _ in 0..TERMINATE_ATTEMPTS {
        if admin
            .query_one(&superuser::END_SESSIONS, &[&name])
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
    admin: &SuperuserSession,
    name: &str,
) -> Result<(), Error> {
    let doing = "removing a login";
    let role = SqlArgument::Identifier(name);
    match admin.run_with(&superuser::DROP_ROLE, &[role]).await {
        Err(error) if error.code() == Some(&SqlState::DEPENDENT_OBJECTS_STILL_EXIST) => {}
        done => return done.context(doing),
    }
    let databases = admin.query(&superuser::OPEN_DATABASES, &[&LIST_MAX]);
    for row in databases.await.context(doing)? {
        let there = driver
            .superuser_session_in(project, row.get(0))
            .await
            .context(doing)?;
        let disowned = there.run_with(&superuser::DISOWN_ROLE, &[role; 2]).await;
        disowned.context(doing)?;
    }
    let dropped = admin.run_with(&superuser::DROP_ROLE, &[role]).await;
    dropped.context(doing)
}

/// Opens a superuser session in the project's server.
pub(crate) async fn connect(
    context: &ControlContext,
    project: &ProjectRef,
) -> Result<SuperuserSession, Error> {
    context
        .driver
        .superuser_session(project)
        .await
        .context("connecting to a cluster")
}
