//! Names of a project besides its reference: a vanity subdomain of the projects' domain, or a
//! custom hostname.

pub mod hostnames;
mod reserved;
pub mod vanity;
pub mod zone;

use gantry_base::ids::ProjectId;
use tokio_postgres::{Row, Transaction};

use crate::{
    control::{context::ControlContext, projects},
    platform::{
        access::Project,
        error::{Context, Error},
    },
    proxy::service_proxy::{PublishedHostname, PublishedProject},
};

/// Locks the names of a project until the transaction ends. Rejects a removed project.
async fn lock_project_names(transaction: &Transaction<'_>, project: &Project) -> Result<(), Error> {
    let doing = "holding a project's names";
    projects::lock(transaction, project, doing).await.map(drop)
}

/// Returns the custom hostname and the vanity subdomain of a project, of which at most one is set.
async fn current_names(
    transaction: &Transaction<'_>,
    project: ProjectId,
) -> Result<(Option<String>, Option<String>), Error> {
    let sql = "select (select host from custom_hostnames where project_id = $1), (select name from vanity_subdomains where project_id = $1)";
    let row = transaction
        .query_one(sql, &[&project.0])
        .await
        .context("reading a project's names")?;
    Ok((row.get(0), row.get(1)))
}

/// Returns every project that is not removed, with its names.
pub async fn published(context: &ControlContext) -> Result<Vec<PublishedProject>, Error> {
    let sql = "select p.id, p.ref, p.desired = 'paused', v.name, c.host, c.state, c.id, k.chain, k.sealed_key, k.not_after, c.hsts_secs from projects p \
               left join vanity_subdomains v on v.project_id = p.id \
               left join custom_hostnames c on c.project_id = p.id and c.state in ('certified', 'active') and not is_blocked(c.host) \
               left join hostname_certificates k on k.hostname_id = c.id where p.desired <> 'removed'";
    let rows = context
        .db
        .query(sql, &[])
        .await
        .context("reading the names of projects")?;
    rows.iter()
        .map(|row| read_published(context, row))
        .collect()
}

fn read_published(context: &ControlContext, row: &Row) -> Result<PublishedProject, Error> {
    let host: Option<&str> = row.get(4);
    let certificate = match (row.get(7), row.get(8), row.get(9)) {
        (Some(chain), Some(sealed), Some(until)) => hostnames::certificates::open(
            context,
            row.get(6),
            chain,
            sealed,
            until,
        )
        // An unreadable certificate must not prevent other names from being served.
        .inspect_err(
            |error| tracing::error!(host, %error, "failed to load the certificate of a hostname"),
        )
        .ok(),
        _ => None,
    };
    Ok(PublishedProject {
        project: ProjectId(row.get(0)),
        reference: row
            .get::<_, &str>(1)
            .parse()
            .context("reading a project's ref")?,
        paused: row.get(2),
        vanity: row.get(3),
        hostname: host.map(|host| PublishedHostname {
            host: host.into(),
            active: row.get::<_, &str>(5) == "active",
            certificate,
            hsts_secs: row.get(10),
        }),
    })
}
