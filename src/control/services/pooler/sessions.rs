//! Uses of poolers by the PostgreSQL proxy.

use std::{sync::Arc, time::Duration};

use gantry_base::ids::{ProjectId, ProjectRef};
use gantry_node::{clusters::ServerSocket, kits::Service};
use tokio::time::timeout;

use super::identity::instance_id;
use crate::{
    control::{
        context::ControlContext,
        services::{
            acquire::WAIT_MAX,
            instance::{InstanceState, ServiceUse},
            kit_choice::has_kit,
            start,
        },
    },
    proxy::{
        service_proxy::upstreams::UpstreamAddress,
        unavailable::{Unavailable, UnavailableReason},
    },
};

/// Longest time until the end of a process is noticed.
const END_MAX: Duration = Duration::from_secs(2);

/// Returns whether connections of this process's projects are pooled.
pub fn is_installed(context: &ControlContext) -> bool {
    has_kit(context, Service::Pooler)
}

/// Returns the running pooler of a project and its socket. Starts it if necessary.
///
/// The callers are bounded by the connections of the proxy, so they need no room to wait in.
///
/// Errors: the reason for which there is no pooler, at most ten seconds later.
pub async fn acquire(
    context: &ControlContext,
    project: ProjectId,
    reference: &ProjectRef,
) -> Result<(ServiceUse, ServerSocket), Unavailable> {
    let id = instance_id(project, reference);
    let instance = context.services.instance(&id);
    let mut states = instance.subscribe();
    let running = async {
        loop {
            states.borrow_and_update();
            let now = context.clock.ticks();
            if let Some(used) = instance.begin_use(now, None)
                && let UpstreamAddress::Unix(socket) = &used.running.address
            {
                let socket = socket.clone();
                return Ok((used, socket));
            }
            if let Some(failed) = instance.failure(now) {
                return Err(failed);
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
                tokio::spawn(start::run(context.clone(), Arc::clone(&instance)));
            }
            // The instance has the sender, so this ends with a change only.
            let _ = states.changed().await;
        }
    };
    timeout(WAIT_MAX, running)
        .await
        .unwrap_or(Err(Unavailable::now(UnavailableReason::Starting)))
}

/// Returns when the process of a use is no longer that of the project, at most two seconds later:
/// it ended a moment ago.
pub(crate) async fn until_replaced(
    context: &ControlContext,
    project: ProjectId,
    reference: &ProjectRef,
    used: ServiceUse,
) {
    let pid = used.running.pid;
    drop(used);
    let instance = context.services.instance(&instance_id(project, reference));
    let mut states = instance.subscribe();
    let is_other = |state: &InstanceState| match state {
        InstanceState::Running(running) => running.pid != pid,
        _ => true,
    };
    let _ = timeout(END_MAX, states.wait_for(is_other)).await;
}
