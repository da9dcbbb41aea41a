//! Records the outcomes of attempts to reach a project's desired state.

use super::plan::{BACKOFF, ClusterPlan};
use crate::{
    control::{
        context::ControlContext,
        projects::{
            Status,
            parameters::fallback,
            status_events::{self, StatusUpdate},
        },
    },
    platform::{
        db::Param,
        error::{Context, Error},
        tables::Table,
    },
};

/// Records that a project has its desired state. A newer desired state is kept and processed next.
pub(super) async fn record_success(
    context: &ControlContext,
    project: &ClusterPlan,
    fallback_reason: Option<String>,
) -> Result<(), Error> {
    // One statement: the verifier is deleted only when it was set or is not needed any more.
    let lease = context.lease.check()?;
    let sql = fenced!(
        "update projects set status = $4, attempts = 0, last_error = $6, updated_at = $5, settled_at = $5, asleep = false, \
         settings = case when $6::text is null then settings else settings_started end, \
         settings_started = case when $6::text is null and $8 then settings else settings_started end, \
         instance_size = case when $6::text is null then instance_size \
         else coalesce(started_size, 'micro') end, \
         started_size = case when $6::text is null and $8 then instance_size \
         else started_size end, \
         settings_before = case when $4 = 'INACTIVE' then settings_before end, \
         grants = case when outdated and $4 = 'ACTIVE_HEALTHY' then $7 else grants end, outdated = outdated and $4 = 'INACTIVE', \
         password_verifier = case when $4 = 'INACTIVE' then password_verifier end, \
         rebuild = rebuild and $4 = 'INACTIVE' where "
    );
    let goal = project.status.goal();
    let now = context.clock.now();
    let grants = context.driver.platform_version();
    let started = goal == Status::ActiveHealthy && project.started_with_current_settings();
    let params: [Param<'_>; 8] = [
        &project.id.0,
        &project.generation,
        &lease,
        &goal.name(),
        &now,
        &fallback_reason,
        &grants,
        &started,
    ];
    let doing = "announcing a project";
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let announced = transaction.execute(sql, &params).await.context(doing)?;
    let settles = goal == Status::ActiveHealthy && (project.changed || fallback_reason.is_some());
    if announced > 0 {
        if settles {
            fallback::settle(&transaction, project.id, fallback_reason.is_some()).await?;
        }
        let events = status_events::changed(&transaction, &[project.id]).await?;
        status_events::append(context, &transaction, &events).await?;
    }
    transaction.commit().await.context(doing)?;
    if settles {
        context.table_changed(Table::RestSettings);
    }
    tracing::info!(project = %project.cluster.project, status = goal.name(), "project has reached its desired state");
    Ok(())
}

/// Records a failed attempt and the time of the next one: after 1, 2, 4 … 60 seconds. A copy of
/// another cluster is attempted a bounded number of times, and then waits for a change of the
/// desired state.
pub(super) async fn record_failure(context: &ControlContext, project: &ClusterPlan, error: &Error) {
    // Without the lease, another process retries.
    let Some(lease) = context.lease.generation() else {
        return;
    };
    let now = context.clock.now();
    let mut attempts = project.attempts.saturating_add(1);
    let mut pause = BACKOFF.pause(attempts);
    if let Error::Unavailable { retry, .. } = error {
        // Not the project's fault.
        attempts = project.attempts;
        pause = *retry;
    }
    let mut status = project.status.after_failure(attempts);
    let is_last = project.creation.is_last_attempt(status, error);
    if is_last && project.status == Status::ComingUp {
        status = Status::InitFailed;
    }
    tracing::warn!(project = %project.cluster.project, attempts, is_last, %error, "project could not be reconciled");
    let sql = fenced!(
        "update projects set attempts = $4, not_before = coalesce($5, 'infinity'::timestamptz), last_error = $6, status = $7, updated_at = $8 where "
    );
    let cause = error.to_string();
    let next = (!is_last).then(|| now + pause);
    let params: [Param<'_>; 8] = [
        &project.id.0,
        &project.generation,
        &lease,
        &attempts,
        &next,
        &cause,
        &status.name(),
        &now,
    ];
    let update = StatusUpdate {
        project: project.id,
        sql,
        params: &params,
        doing: "recording a failed attempt",
    };
    if let Err(error) = update.execute(context, Vec::new()).await {
        tracing::warn!(%error, "cannot record a failed attempt");
    }
}
