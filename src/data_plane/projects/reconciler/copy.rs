//! Creation of a cluster as a copy of another project's.

use tokio_postgres::Row;

use super::{ClusterPlan, timed};
use crate::{
    base::{
        error::{Context, Error},
        ids::{OrganizationId, ProjectId, ProjectRef},
    },
    data_plane::{
        api_keys,
        clusters::{CopySpec, ResourceLimits},
        context::DataPlaneContext,
        metrics::Step,
        projects::idle,
    },
    platform::access::Project,
};

/// Maximum size of a copied cluster without a limit of disk space, in bytes.
const BYTES_MAX: u64 = 1 << 40;

/// The project that a new cluster is copied from.
#[derive(Debug)]
pub(super) struct CopySource {
    project: Project,
}

impl CopySource {
    /// Reads id, ref and organization from three columns. `None` if the first is null.
    pub(super) fn read(row: &Row, at: usize) -> Result<Option<Self>, Error> {
        let Some(id) = row.get::<_, Option<i64>>(at) else {
            return Ok(None);
        };
        let reference: ProjectRef = row
            .get::<_, &str>(at + 1)
            .parse()
            .context("reading a project's ref")?;
        let project = Project {
            id: ProjectId(id),
            reference,
            organization: OrganizationId(row.get(at + 2)),
        };
        Ok(Some(Self { project }))
    }
}

/// The way in which a new cluster is created.
#[derive(Debug)]
pub(super) struct ClusterCreation {
    /// The project to copy; otherwise the new cluster is empty.
    pub(super) source: Option<CopySource>,
    /// Whether an existing cluster is removed and made anew.
    pub(super) rebuild: bool,
}

/// Copies the cluster of the source, and stores the report with the branch.
pub(super) async fn create(
    context: &DataPlaneContext,
    plan: &ClusterPlan,
    source: &CopySource,
) -> Result<(), Error> {
    let original = &source.project;
    // Starts a server that sleeps.
    idle::wake(context, original.id, &original.reference).await?;
    let branch = Project {
        id: plan.id,
        reference: plan.cluster.project.clone(),
        organization: original.organization,
    };
    let rows = context
        .db
        .query(
            "select id::text from branches where project_id = $1",
            &[&plan.id.0],
        )
        .await
        .context("reading a branch")?;
    let marker = rows.first().map_or_else(String::new, |row| row.get(0));
    let sql = "select rules from branch_maskings where project_id = $1";
    let masking = context.db.query(sql, &[&original.id.0]).await;
    let masking = masking.context("reading the masking of a project")?;
    let limits = context.driver.resource_limits();
    let spec = CopySpec {
        cluster: plan.cluster.clone(),
        source: original.reference.clone(),
        marker,
        secrets: api_keys::replacements(context, original, &branch).await?,
        masking: masking.first().map_or_else(Vec::new, |row| row.get(0)),
        bytes_max: limits.map_or(BYTES_MAX, ResourceLimits::disk_stop_bytes),
    };
    let report = timed(context, Step::Create, context.driver.create_copy(&spec)).await?;
    let report = serde_json::to_value(report).context("writing the report of a copy")?;
    context
        .db
        .query(
            "update branches set copy_report = $2 where project_id = $1",
            &[&plan.id.0, &report],
        )
        .await
        .context("writing the report of a copy")
        .map(drop)
}
