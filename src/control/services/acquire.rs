//! Uses of instances: the one way to a process of a service.

use std::{sync::Arc, time::Duration};

use gantry_base::ids::{ProjectId, ProjectRef};
use gantry_node::kits::Service;
use tokio::time::timeout;

use super::{
    instance::{Instance, ServiceUse},
    instance_id::InstanceId,
    rest::process::load_keys,
    start, stop,
};
use crate::{
    control::context::ControlContext,
    proxy::{
        accepted_keys::AcceptedKeys,
        service_caller::ServiceCaller,
        unavailable::{Unavailable, UnavailableReason},
    },
};

/// Longest time that a request waits for an instance: for the requests in flight of a process that
/// stops, and for the start of the next one.
pub(super) const WAIT_MAX: Duration = stop::DRAIN_MAX.saturating_add(START_MAX);

/// Longest time that a request waits for the start of an instance.
const START_MAX: Duration = Duration::from_secs(10);

/// Returns a running instance of a project's service, started if necessary. It accepts the tokens
/// of exactly `keys`.
///
/// A request that is cancelled does not cancel the start. The end of the process is charged to
/// `caller`, if there is one.
///
/// Errors: the reason for which there is no instance, at most ten seconds later.
pub async fn acquire(
    context: &ControlContext,
    (project, reference): (ProjectId, &ProjectRef),
    service: Service,
    keys: &Arc<AcceptedKeys>,
    caller: Option<ServiceCaller>,
) -> Result<ServiceUse, Unavailable> {
    let id = InstanceId {
        project,
        reference: reference.clone(),
        service,
        function: None,
    };
    let now = context.clock.ticks();
    context.services.check_caller(&id, caller, now)?;
    let instance = context.services.instance(&id);
    let used = match instance.begin_use(now, caller) {
        Some(used) => used,
        None => Box::pin(wait_for_use(context, &instance, caller)).await?,
    };
    if used.running.keys_loaded(keys) {
        return Ok(used);
    }
    if used.running.kit.manifest.needs.settings {
        drop(used);
        return Box::pin(restart_with_keys(context, &instance, keys, caller)).await;
    }
    Box::pin(load_keys(context, &used.running, keys)).await?;
    Ok(used)
}

/// Replaces a process that has other keys in its environment, and returns the new one.
async fn restart_with_keys(
    context: &ControlContext,
    instance: &Arc<Instance>,
    keys: &AcceptedKeys,
    caller: Option<ServiceCaller>,
) -> Result<ServiceUse, Unavailable> {
    let _one = instance.replacing.lock().await;
    let running = instance.running();
    // Another request may have replaced it.
    if running.is_some_and(|running| !running.keys_loaded(keys)) {
        stop::stop(context, instance).await;
    }
    let used = wait_for_use(context, instance, caller).await?;
    if used.running.keys_loaded(keys) {
        Ok(used)
    } else {
        // The keys changed again: the next request finds them.
        Err(Unavailable::now(UnavailableReason::Starting))
    }
}

/// Returns a use of the process that replaces an ended one, for a request that did not reach it.
/// `None`: the process has not ended.
pub(crate) async fn replacement(
    context: &ControlContext,
    used: &ServiceUse,
) -> Result<Option<ServiceUse>, Unavailable> {
    if !used.has_ended().await {
        return Ok(None);
    }
    let spare = spare_use(context, &used.instance.id, used.caller);
    if spare.is_some() {
        return Ok(spare);
    }
    let used = wait_for_use(context, &used.instance, used.caller).await;
    used.map(Some)
}

/// Waits until the instance runs. Starts it if it is stopped.
pub(super) async fn wait_for_use(
    context: &ControlContext,
    instance: &Arc<Instance>,
    caller: Option<ServiceCaller>,
) -> Result<ServiceUse, Unavailable> {
    let Some(_room) = context.services.wait_room(instance) else {
        return Err(Unavailable::now(UnavailableReason::Full));
    };
    let mut states = instance.subscribe();
    let running = async {
        loop {
            states.borrow_and_update();
            let now = context.clock.ticks();
            if let Some(used) = instance.begin_use(now, caller) {
                return Ok(used);
            }
            if let Some(failed) = instance.failure(now) {
                if failed.reason != UnavailableReason::Slowed {
                    return Err(failed);
                }
                // Its start is near enough to wait for.
                let pause = Duration::from_secs(failed.retry_secs.into());
                let _ = timeout(pause, states.changed()).await;
                continue;
            }
            if context.services.is_adopting() && context.lease.leads() {
                // Its folder may have a process of an earlier Gantry.
                tokio::select! {
                    () = context.services.until_adopted() => {}
                    _ = states.changed() => {}
                }
                continue;
            }
            if instance.begin_start(now) {
                tokio::spawn(start::run(context.clone(), Arc::clone(instance)));
            }
            // The instance has the sender, so this ends with a change only.
            let _ = states.changed().await;
        }
    };
    timeout(WAIT_MAX, running).await.unwrap_or_else(|_| {
        let failure = instance.failure(context.clock.ticks());
        Err(failure.unwrap_or(Unavailable::now(UnavailableReason::Starting)))
    })
}

/// Returns a use of the spare process of a version, if it runs.
pub(super) fn spare_use(
    context: &ControlContext,
    id: &InstanceId,
    caller: Option<ServiceCaller>,
) -> Option<ServiceUse> {
    let spare = context.services.existing(&id.spare()?)?;
    spare.begin_use(context.clock.ticks(), caller)
}
