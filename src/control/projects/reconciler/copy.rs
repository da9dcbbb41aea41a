//! Creation of a cluster as a copy of another project's.

use std::time::Duration;

use gantry_base::ids::{OrganizationId, ProjectId, ProjectRef};
use gantry_node::{
    clusters::{CopyProgress, CopyReport, CopySpec, ResourceLimits},
    error::ClusterError,
};
use tokio_postgres::Row;

use super::plan::{ClusterPlan, timed};
use crate::{
    control::{
        api_keys,
        context::ControlContext,
        metrics::Step,
        projects::{Status, idle},
    },
    platform::{
        access::Project,
        error::{Context, Error},
    },
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
    /// Whether it is made of a backup of another project.
    pub(super) from_backup: bool,
}

impl ClusterCreation {
    /// Whether a failed attempt is the last one. Each attempt to copy costs the original a
    /// checkpoint and bandwidth; those to restore a backup continue until it is known that none can
    /// succeed.
    pub(super) fn is_last_attempt(&self, status: Status, error: &Error) -> bool {
        let is_refused = matches!(error, Error::Unprocessable(_));
        let is_final = status == Status::InitFailed || is_refused;
        (self.source.is_some() && is_final) || (self.from_backup && is_refused)
    }
}

/// Pause until the next attempt while other clusters are being copied.
const BUSY_PAUSE: Duration = Duration::from_secs(2);

/// The row of a branch, as far as it matters for its copy.
#[derive(Debug, Default)]
struct BranchCopy {
    /// Id of the branch.
    marker: String,
    schema_only: bool,
    masking: Vec<String>,
}

impl BranchCopy {
    /// Reads the branch that is a project, and the masking of its parent.
    async fn read(context: &ControlContext, project: ProjectId) -> Result<Self, Error> {
        let sql = "select b.id::text, not b.with_data, coalesce(m.rules, '{}') from branches b \
                   left join branch_maskings m on m.project_id = b.parent_id \
                   where b.project_id = $1";
        let rows = context.db.query(sql, &[&project.0]).await;
        let rows = rows.context("reading a branch")?;
        Ok(rows.first().map_or_else(Self::default, |row| Self {
            marker: row.get(0),
            schema_only: row.get(1),
            masking: row.get(2),
        }))
    }
}

/// Copies the cluster of the source, and stores the report with the branch.
///
/// Errors: [`Error::Unprocessable`] if the copy cannot be isolated, also not by another attempt;
/// [`Error::Unavailable`] while other clusters are being copied.
pub(super) async fn create(
    context: &ControlContext,
    plan: &ClusterPlan,
    source: &CopySource,
) -> Result<(), Error> {
    let original = &source.project;
    // Starts a server that sleeps.
    let awake = idle::wake(context, original.id, &original.reference).await;
    awake.map_err(|error| match error {
        Error::DatabaseUnreachable => {
            Error::Rejected("the project that it is made of does not run; restore it".into())
        }
        other => other,
    })?;
    let branch = Project {
        id: plan.id,
        reference: plan.cluster.project.clone(),
        organization: original.organization,
    };
    let copy = BranchCopy::read(context, plan.id).await?;
    let limits = context.driver.resource_limits();
    let spec = CopySpec {
        cluster: plan.cluster.clone(),
        source: original.reference.clone(),
        marker: copy.marker,
        secrets: api_keys::replacements(context, original, &branch).await?,
        masking: copy.masking,
        schema_only: copy.schema_only,
        rebuild: plan.creation.rebuild.then_some(plan.generation),
        bytes_max: limits.map_or(BYTES_MAX, ResourceLimits::disk_stop_bytes),
        progress: CopyProgress::default(),
    };
    let report = observed(context, plan, &spec).await?;
    let report = serde_json::to_value(report).context("writing the report of a copy")?;
    let sql = "update branches set copy_report = $2, copy_phase = null where project_id = $1";
    let stored = context.db.query(sql, &[&plan.id.0, &report]).await;
    stored.context("writing the report of a copy").map(drop)
}

/// Makes the copy, and stores its phases for the branch's run.
async fn observed(
    context: &ControlContext,
    plan: &ClusterPlan,
    spec: &CopySpec,
) -> Result<CopyReport, Error> {
    let mut phases = spec.progress.observe();
    let follow = async {
        while phases.changed().await.is_ok() {
            let phase = phases.borrow_and_update().name();
            let sql = "update branches set copy_phase = $2 where project_id = $1";
            // Only for observers: the copy does not depend on it.
            if let Err(error) = context.db.query(sql, &[&plan.id.0, &phase]).await {
                tracing::warn!(%error, "the phase of a copy was not stored");
            }
        }
        std::future::pending::<()>().await;
    };
    let mut refusal = None;
    let copy = async {
        let copied = context.driver.create_copy(spec).await;
        refusal = copied.as_ref().err().and_then(refusal_of);
        copied
    };
    let copied = tokio::select! {
        copied = timed(context, Step::Create, copy) => copied,
        () = follow => Err(ClusterError::ShuttingDown).context("copying a cluster"),
    };
    copied.map_err(|error| refusal.unwrap_or(error))
}

/// Returns the error for reasons that the reconciler distinguishes.
fn refusal_of(error: &ClusterError) -> Option<Error> {
    match error {
        ClusterError::CopiesBusy => Some(Error::Unavailable {
            what: "Other clusters are being copied".into(),
            retry: BUSY_PAUSE,
        }),
        ClusterError::Isolation(_) => Some(Error::Unprocessable(error.to_string().into())),
        ClusterError::Copy(_) => Some(Error::Rejected(error.to_string().into())),
        _ => None,
    }
}
