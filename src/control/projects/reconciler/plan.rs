//! The desired state of a cluster, as read from its row.

use std::time::Duration;

use gantry_base::{ids::ProjectId, repeat::Backoff};
use gantry_node::{clusters::ClusterSpec, error::Result as ClusterResult};

use super::{copy, start::StartSettings};
use crate::{
    control::{
        context::ControlContext,
        metrics::Step,
        projects::{parameters, status::Status},
    },
    platform::error::{Context, Error},
};

/// The time that a server gets to accept connections after its start.
pub(crate) const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// Pauses between attempts, and between restarts of a server that crashes repeatedly.
pub(super) const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(1));

/// The desired state of a project's cluster, as read from its row.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "columns of a row, independent of each other"
)]
pub(super) struct ClusterPlan {
    pub(super) id: ProjectId,
    pub(super) cluster: ClusterSpec,
    pub(super) status: Status,
    /// Generation of the desired state. An outcome is recorded only if the row still has it.
    pub(super) generation: i64,
    pub(super) verifier: Option<String>,
    pub(super) attempts: i32,
    pub(super) settings: StartSettings,
    /// Whether the settings changed since the server last read them.
    pub(super) changed: bool,
    /// Settings of the last successful start.
    pub(super) started: StartSettings,
    /// Whether the schemas and grants are those of another version of Gantry.
    pub(super) outdated: bool,
    /// Whether new objects in `public` are open to the roles of the Data API.
    pub(super) grants_on_new_tables: bool,
    pub(super) creation: copy::ClusterCreation,
    /// Whether the cluster is kept after the removal of the project.
    pub(super) is_held: bool,
}

impl ClusterPlan {
    /// Returns whether the running server was started with the current values of all settings that
    /// take effect only at a start.
    pub(super) fn started_with_current_settings(&self) -> bool {
        self.status != Status::ActiveHealthy
            || !parameters::wait(&self.started.values, &self.settings.values)
    }
}

/// Returns the user id of a cluster, which no other cluster has.
pub(crate) fn uid(context: &ControlContext, account: i64) -> Result<u32, Error> {
    let uid = u32::try_from(account).ok().and_then(|account| {
        context
            .control_settings
            .project_uid_base
            .checked_add(account)
    });
    uid.ok_or("no user id left").context("choosing a user id")
}

/// Runs a step if this process holds the lease, and records its duration if it succeeds.
pub(super) async fn timed<T>(
    context: &ControlContext,
    step: Step,
    work: impl Future<Output = ClusterResult<T>>,
) -> Result<T, Error> {
    context.lease.check()?;
    let begun = context.clock.ticks();
    let done = work.await.context(step.doing())?;
    context
        .cluster_metrics
        .took(step, context.clock.ticks() - begun);
    Ok(done)
}
