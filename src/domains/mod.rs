//! Names under which a project is reached: a vanity subdomain of the projects' domain, or a hostname of its owner's.

pub mod api;
pub mod vanity;

use chrono::{DateTime, Utc};
use tokio_postgres::Transaction;

use crate::{
    error::{Context, Error},
    ids::{OrganizationId, ProjectId},
    projects,
};

/// Takes a project's names from it, when it is removed.
pub async fn forget(
    transaction: &Transaction<'_>,
    project: ProjectId,
    organization: OrganizationId,
    now: DateTime<Utc>,
) -> Result<(), Error> {
    vanity::release(transaction, project, organization, now).await?;
    let sql = "delete from custom_hostnames where project_id = $1";
    transaction.execute(sql, &[&project.0]).await.context("forgetting a project's hostname").map(drop)
}

/// Keeps others from changing the names of a project until the transaction ends. Refuses one that was removed.
async fn hold(transaction: &Transaction<'_>, project: ProjectId) -> Result<(), Error> {
    let sql = "select from projects where id = $1 and desired <> 'removed' for update";
    let found = transaction.query_opt(sql, &[&project.0]).await.context("holding a project's names")?;
    found.map(drop).ok_or_else(projects::removed)
}

/// The hostname a project has or wants, and its vanity subdomain: it has one of them at most.
async fn taken(transaction: &Transaction<'_>, project: ProjectId) -> Result<(Option<String>, Option<String>), Error> {
    let sql =
        "select (select host from custom_hostnames where project_id = $1), (select name from vanity_subdomains where project_id = $1)";
    let row = transaction.query_one(sql, &[&project.0]).await.context("reading a project's names")?;
    Ok((row.get(0), row.get(1)))
}
