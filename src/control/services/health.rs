//! The states of services, for health checks.

use std::collections::BTreeSet;

use gantry_base::ids::ProjectId;
use gantry_node::kits::Service;

use super::{kit_choice::find_kit, pooler::process, probe, state::ServiceState};
use crate::control::context::ControlContext;

/// Returns the state of a project's service. A running one is asked.
pub async fn observe(
    context: &ControlContext,
    project: ProjectId,
    service: Service,
) -> ServiceState {
    let Some(running) = context.services.running(project, service) else {
        let state = context.services.state(project, service);
        return match find_kit(context, service) {
            // The next request would not start it.
            Err(error) if state == ServiceState::Asleep => ServiceState::Failed(error.to_string()),
            _ => state,
        };
    };
    if service == Service::Pooler {
        return if process::is_ready(&running).await {
            ServiceState::Running
        } else {
            ServiceState::Failed("the program does not answer its console".to_owned())
        };
    }
    match probe::is_ready(&running.address, &running.kit.manifest.ready).await {
        Ok(true) => ServiceState::Running,
        Ok(false) if service == Service::Rest => {
            ServiceState::Failed("PostgREST is not connected with the database".to_owned())
        }
        Ok(false) => ServiceState::Failed("the program answers that it is not ready".to_owned()),
        Err(error) => ServiceState::Failed(error.to_string()),
    }
}

/// Returns a note for each function with a slowed version: its processes ended under the requests
/// of many callers (decision 0170).
pub fn function_notes(context: &ControlContext, project: ProjectId) -> Vec<String> {
    let services = &context.services;
    let slowed = services.crashes.slowed(project, context.clock.ticks());
    if slowed.is_empty() {
        return Vec::new();
    }
    let mut slugs = BTreeSet::new();
    for instance in services.instances() {
        if slowed.contains(&instance.id.crash_scope())
            && let Some(function) = &instance.id.function
        {
            slugs.insert(function.slug.clone());
        }
    }
    let note = |slug| {
        format!(
            "processes of the function {slug} ended under the requests of many clients; one is \
             started every 5 seconds"
        )
    };
    slugs.into_iter().map(note).collect()
}
