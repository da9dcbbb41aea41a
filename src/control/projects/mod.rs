//! The life of a project: desired and observed state, and the tasks that reconcile them.

pub mod held;
pub mod idle;
pub mod lease;
pub mod lifecycle;
pub mod new_table_grants;
pub mod parameters;
pub mod reconciler;
pub mod regions;
pub mod request;
pub mod row_lock;
pub mod sizes;
pub mod state;
pub mod status;
pub(crate) mod status_events;
pub mod upgrades;
pub mod upkeep;
pub mod usage_metrics;
pub mod warm_pool;
pub mod watch;
pub mod watchdog;

use std::time::Duration;

pub use idle::{note_use, wake};
pub use new_table_grants::NewTableGrants;
pub use request::{NewProject, verifier};
pub use row_lock::{LockedProject, RowToLock, lock, lock_no_key, lock_shared};
pub use sizes::InstanceSize;
pub use status::{Command, Status};

use gantry_base::ids::ProjectId;

use crate::{
    control::{context::ControlContext, database_session::ConnectTarget},
    platform::{
        access::Project,
        error::{Context, Error},
    },
};

/// The time that an operation waits for the reconciler to start a server or to set a password.
pub const SETTLE_WAIT: Duration = Duration::from_secs(15);

/// Returns the connection target of a project. Waits for a server that is starting, so that clients
/// need not poll, and starts one that sleeps.
pub async fn target(context: &ControlContext, project: &Project) -> Result<ConnectTarget, Error> {
    idle::wake(context, project.id, &project.reference).await
}

/// Returns the recorded status of a project.
pub async fn status(context: &ControlContext, id: ProjectId) -> Result<Status, Error> {
    let rows = context
        .db
        .query("select status from projects where id = $1", &[&id.0])
        .await
        .context("reading a project's status")?;
    Status::read(rows.first().ok_or(Error::NotFound)?, 0)
}

/// Returns the major version of a project's PostgreSQL.
pub async fn engine_major(context: &ControlContext, project: &Project) -> Result<u16, Error> {
    let version = engine_version(context, project).await?;
    major(&version)
        .ok_or("no version")
        .context("reading a project's version")
}

/// Returns the recorded version of a project's PostgreSQL.
async fn engine_version(context: &ControlContext, project: &Project) -> Result<String, Error> {
    let sql = "select engine from projects where id = $1 and desired <> 'removed'";
    let rows = context.db.query(sql, &[&project.id.0]).await;
    let rows = rows.context("reading a project's version")?;
    Ok(rows.first().ok_or_else(removed)?.get(0))
}

/// Returns the major version of a stored version: 15 for `15.18`, 17 for `17beta1`.
pub(crate) fn major(version: &str) -> Option<u16> {
    let end = version
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(version.len());
    version[..end].parse().ok()
}

/// Returns the error for a removed project, for callers that may know that it existed.
pub fn removed() -> Error {
    Error::Rejected("Resource has been removed".into())
}
