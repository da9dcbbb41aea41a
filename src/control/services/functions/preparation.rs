//! Preparation of the process of a function, before its start.

use std::sync::Arc;

use gantry_node::{kits::kit::InstalledKit, supervisor::ProcessOwner};

use super::{
    live::live_functions,
    output::{FunctionLog, LoggedFunction},
    process::{self, PreparedFunction},
};
use crate::{
    control::{
        context::ControlContext,
        services::{
            folder::InstanceFolder,
            instance_id::{FunctionVersion, InstanceId},
            start_failure::StartFailure,
        },
    },
    proxy::{service_proxy::LiveFunction, unavailable::UnavailableReason},
};

/// Prepares a version for its start.
pub(in crate::control::services) async fn prepare(
    context: &ControlContext,
    id: &InstanceId,
    function: &FunctionVersion,
    place: (&InstanceFolder, ProcessOwner, &InstalledKit),
) -> Result<PreparedFunction, StartFailure> {
    let live = version_of(context, id, function).await;
    let live = live.ok_or_else(|| {
        StartFailure::new(UnavailableReason::Starting, "the version was replaced")
    })?;
    process::prepare(context, id, function, &live, place).await
}

/// Returns the log of a process that an earlier Gantry started.
pub(in crate::control::services) async fn adopted_log(
    context: &ControlContext,
    id: &InstanceId,
    function: &FunctionVersion,
) -> Option<FunctionLog> {
    let live = version_of(context, id, function).await?;
    let logged = LoggedFunction {
        function: live.id,
        slug: live.slug.clone(),
        version: live.version,
        execution: context.entropy.uuid(),
    };
    Some(FunctionLog::new(context, id, logged))
}

async fn version_of(
    context: &ControlContext,
    id: &InstanceId,
    function: &FunctionVersion,
) -> Option<Arc<LiveFunction>> {
    if let Some(candidate) = context.services.functions.candidate(function.deployment) {
        return Some(candidate);
    }
    let functions = live_functions(context, id.project).await.ok()?;
    functions.of_deployment(function.deployment).cloned()
}
