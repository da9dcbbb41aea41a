//! Roles, schemas and grants of a project before it becomes healthy.

use gantry_base::ids::OrganizationId;
use gantry_node::{
    clusters::{PlatformConflict, PrivilegeFinding, SuperuserSession},
    error::ClusterError,
};
use serde_json::json;

use super::plan::ClusterPlan;
use crate::{
    control::{context::ControlContext, temporary_access},
    platform::{
        audit::Recorder,
        db::Param,
        error::{Context, Error},
    },
};

/// Maximum number of findings that are recorded for a project.
const FINDINGS_MAX: usize = 100;

/// Repairs roles, revokes privileges that only the platform has, updates schemas and grants, and
/// revokes expired logins, before the project becomes healthy.
pub(super) async fn update(context: &ControlContext, project: &ClusterPlan) -> Result<(), Error> {
    let reference = &project.cluster.project;
    let admin = match context.driver.superuser_session(reference).await {
        Err(ClusterError::Unsupported(_)) => return Ok(()),
        session => session.context("connecting to a cluster")?,
    };
    context
        .driver
        .repair_roles_over(&admin)
        .await
        .context("repairing the platform's roles")?;
    context
        .driver
        .refresh_access(reference)
        .await
        .context("updating the rules of authentication")?;
    repair_privileges(context, project, &admin).await?;
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

/// Finds privileges that only the platform has, records them, and revokes them. They are recorded
/// first: a process that ends in between finds them again.
async fn repair_privileges(
    context: &ControlContext,
    project: &ClusterPlan,
    admin: &SuperuserSession,
) -> Result<(), Error> {
    let doing = "comparing the privileges of roles";
    let cluster = &project.cluster;
    let found = context.driver.find_privileges(admin).await.context(doing)?;
    // Privileges that Gantry itself granted in the past, and takes back with its next grants, are
    // no evidence of an intrusion.
    let is_evidence =
        |finding: &&PrivilegeFinding| !(project.outdated && finding.is_former_grant(cluster.major));
    let evidence: Vec<&PrivilegeFinding> = found.iter().filter(is_evidence).collect();
    record_privileges(context, project, &evidence).await?;
    let driver = &context.driver;
    let revoked = driver.revoke_privileges(&cluster.project, admin, &found);
    revoked.await.context("revoking privileges of roles")
}

/// Records privileges that only the platform has, for the health of the project, and in the audit
/// log if they are others than at the last start.
async fn record_privileges(
    context: &ControlContext,
    project: &ClusterPlan,
    found: &[&PrivilegeFinding],
) -> Result<(), Error> {
    let doing = "recording privileges of roles";
    let reference = &project.cluster.project;
    let mut texts: Vec<String> = found.iter().map(ToString::to_string).collect();
    let others = texts.len().saturating_sub(FINDINGS_MAX);
    if others > 0 {
        texts.truncate(FINDINGS_MAX);
        texts.push(format!("{others} more"));
    }
    for finding in &texts {
        tracing::warn!(project = %reference, %finding, "privilege of the platform found");
    }
    let text = (!texts.is_empty()).then(|| texts.join("; "));
    let lease = context.lease.check()?;
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let update = fenced!(
        "update projects set privilege_findings = $4 \
         where privilege_findings is distinct from $4 and "
    );
    let sql = format!("{update} returning organization_id");
    let params: [Param<'_>; 4] = [&project.id.0, &project.generation, &lease, &text];
    let changed = transaction.query_opt(&sql, &params).await.context(doing)?;
    if let (Some(row), false) = (changed, texts.is_empty()) {
        let audit = Recorder::system(&context.entropy, "repair_project_privileges");
        let audit = audit.about(OrganizationId(row.get(0)), reference);
        let change = (Some(json!({"privileges": texts})), None);
        let now = context.clock.now();
        audit.write_in(&transaction, 200, change, now).await?;
    }
    transaction.commit().await.context(doing)
}

/// Records the parts of the platform that could not be applied, for the health of the project.
async fn record_conflicts(
    context: &ControlContext,
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
