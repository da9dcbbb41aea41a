//! Roles, schemas and grants of a project before it becomes healthy.

use super::ClusterPlan;
use crate::{
    base::{
        db::Param,
        error::{Context, Error},
    },
    data_plane::{
        clusters::{ClusterError, PlatformConflict},
        context::DataPlaneContext,
        temporary_access,
    },
};

/// Repairs roles, updates schemas and grants, and revokes expired logins, before the project
/// becomes healthy.
pub(super) async fn update(context: &DataPlaneContext, project: &ClusterPlan) -> Result<(), Error> {
    let reference = &project.cluster.project;
    let admin = match context.driver.admin_session(reference).await {
        Err(ClusterError::Unsupported(_)) => return Ok(()),
        session => session.context("connecting to a cluster")?,
    };
    context
        .driver
        .repair_roles_over(&admin)
        .await
        .context("repairing the platform's roles")?;
    if project.outdated {
        let conflicts = context
            .driver
            .apply_platform(&admin)
            .await
            .context("applying the platform's schemas")?;
        record_conflicts(context, project, &conflicts).await?;
    }
    temporary_access::reconciler::revoke_expired(context, project.id, reference, &admin).await
}

/// Records the parts of the platform that could not be applied, for the health of the project.
async fn record_conflicts(
    context: &DataPlaneContext,
    project: &ClusterPlan,
    conflicts: &[PlatformConflict],
) -> Result<(), Error> {
    for conflict in conflicts {
        tracing::warn!(project = %project.cluster.project, %conflict, "part of the platform was not applied");
    }
    let texts: Vec<String> = conflicts.iter().map(ToString::to_string).collect();
    let text = (!texts.is_empty()).then(|| texts.join("; "));
    let lease = context.lease.check()?;
    let sql = fenced!("update projects set platform_conflicts = $4 where ");
    let params: [Param<'_>; 4] = [&project.id.0, &project.generation, &lease, &text];
    context
        .db
        .query(sql, &params)
        .await
        .context("recording conflicts with the platform")
        .map(drop)
}
