//! Upgrade of a project to another major version of PostgreSQL.

use gantry_node::clusters::{ClusterSpec, UpgradeSpec, UpgradeStep};
use tokio::sync::watch;

use super::{
    bring_up,
    plan::{ClusterPlan, timed},
};
use crate::{
    control::{
        backups::settle::archive_end,
        context::ControlContext,
        metrics::Step,
        projects::upgrades::{self, ProjectUpgrade, UpgradeProgress},
    },
    platform::error::{Context, Error},
};

/// Carries out the upgrade of a project, and starts its server. After a failure the previous
/// version is started.
pub(super) async fn settle(
    context: &ControlContext,
    project: &ClusterPlan,
) -> Result<Option<String>, Error> {
    // None is running if a previous attempt was interrupted after the outcome was recorded.
    let Some(upgrade) = upgrades::running(context, project.id).await? else {
        return bring_up(context, project).await;
    };
    let mut reached = upgrade.progress;
    let outcome = if upgrade.attempts < upgrades::ATTEMPTS_MAX {
        upgrades::count_attempt(context, &upgrade).await?;
        attempt(context, project, &upgrade, &mut reached).await
    } else {
        let text = "the upgrade was interrupted repeatedly";
        Err(Error::Rejected(text.into()))
    };
    // Without the lease, another process continues.
    context.lease.check()?;
    match outcome {
        Ok(fallback_reason) => {
            upgrades::record_success(context, &upgrade).await?;
            Ok(fallback_reason)
        }
        Err(error) => {
            let reference = &project.cluster.project;
            tracing::warn!(project = %reference, %error, "upgrade failed; starting the previous version");
            context
                .driver
                .revert_upgrade(reference, upgrade.number)
                .await
                .context("restoring the cluster from before an upgrade")?;
            let detail = error.to_string();
            upgrades::record_failure(context, &upgrade, reached.failure(), &detail).await?;
            bring_up(context, project).await
        }
    }
}

/// Upgrades the cluster, records each step in `reached` and in the row, and starts the server.
async fn attempt(
    context: &ControlContext,
    project: &ClusterPlan,
    upgrade: &ProjectUpgrade,
    reached: &mut UpgradeProgress,
) -> Result<Option<String>, Error> {
    let spec = UpgradeSpec {
        cluster: ClusterSpec {
            major: upgrade.target_major(),
            ..project.cluster.clone()
        },
        number: upgrade.number,
    };
    // The last commits of the earlier version are archived, too: its log ends here.
    let stop = context.driver.stop(&project.cluster.project);
    timed(context, Step::Stop, stop).await?;
    archive_end(context, project.id, &project.cluster).await;
    let (sender, mut steps) = watch::channel(UpgradeStep::Started);
    let work = timed(
        context,
        Step::Upgrade,
        context.driver.upgrade(&spec, &sender),
    );
    tokio::pin!(work);
    loop {
        tokio::select! {
            biased;
            done = &mut work => {
                *reached = UpgradeProgress::after(*steps.borrow());
                done?;
                break;
            }
            Ok(()) = steps.changed() => {
                *reached = UpgradeProgress::after(*steps.borrow_and_update());
                upgrades::record_progress(context, upgrade, *reached).await?;
            }
        }
    }
    *reached = UpgradeProgress::InPlace;
    upgrades::record_progress(context, upgrade, *reached).await?;
    bring_up(context, project).await
}
