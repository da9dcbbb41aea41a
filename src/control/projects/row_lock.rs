//! Locks on the row of a project. The removal of the project waits for each of them, and then
//! deletes the rows that were written meanwhile.

use gantry_base::ids::{OrganizationId, ProjectId};
use tokio_postgres::Transaction;
use uuid::Uuid;

use super::{Status, removed};
use crate::platform::{
    access::Project,
    error::{Context, Error},
};

/// The row to lock.
#[derive(Debug, Clone, Copy)]
pub struct RowToLock {
    project: ProjectId,
    /// Organization in which the request was admitted.
    organization: Option<OrganizationId>,
}

impl From<ProjectId> for RowToLock {
    fn from(project: ProjectId) -> Self {
        Self {
            project,
            organization: None,
        }
    }
}

/// Requires that the project is still in the organization in which the request was admitted: a
/// request that waited for a transfer of the project changes nothing.
impl From<&Project> for RowToLock {
    fn from(project: &Project) -> Self {
        Self {
            project: project.id,
            organization: Some(project.organization),
        }
    }
}

/// A project with a locked row. The lock ends with the transaction.
#[derive(Debug)]
pub struct LockedProject {
    /// Observed state.
    pub status: Status,
    /// Version of PostgreSQL.
    pub engine: String,
    /// Name that its owner chose.
    pub name: String,
    /// Node that holds it.
    pub node: Uuid,
}

macro_rules! select {
    ($lock:literal) => {
        concat!(
            "select status, engine, name, node, organization_id \
             from projects where id = $1 and desired <> 'removed' ",
            $lock
        )
    };
}

/// Locks a project `for update`: excludes every other lock, and new rows that refer to the project.
/// `doing` completes "failed while …".
///
/// Errors: that of [`removed`] if the project was removed, [`Error::NotFound`] if it is in another
/// organization than the request.
pub async fn lock(
    transaction: &Transaction<'_>,
    row: impl Into<RowToLock>,
    doing: &'static str,
) -> Result<LockedProject, Error> {
    execute(transaction, select!("for update"), row.into(), doing).await
}

/// As [`lock`], but `for no key update`: permits new rows that refer to the project.
pub async fn lock_no_key(
    transaction: &Transaction<'_>,
    row: impl Into<RowToLock>,
    doing: &'static str,
) -> Result<LockedProject, Error> {
    execute(transaction, select!("for no key update"), row.into(), doing).await
}

/// As [`lock`], but `for share`: permits other shared locks.
pub async fn lock_shared(
    transaction: &Transaction<'_>,
    row: impl Into<RowToLock>,
    doing: &'static str,
) -> Result<LockedProject, Error> {
    execute(transaction, select!("for share"), row.into(), doing).await
}

async fn execute(
    transaction: &Transaction<'_>,
    sql: &str,
    wanted: RowToLock,
    doing: &'static str,
) -> Result<LockedProject, Error> {
    let row = transaction.query_opt(sql, &[&wanted.project.0]).await;
    let row = row.context(doing)?.ok_or_else(removed)?;
    let organization = OrganizationId(row.get(4));
    if wanted.organization.is_some_and(|it| it != organization) {
        return Err(Error::NotFound);
    }
    Ok(LockedProject {
        status: Status::read(&row, 0)?,
        engine: row.get(1),
        name: row.get(2),
        node: row.get(3),
    })
}
