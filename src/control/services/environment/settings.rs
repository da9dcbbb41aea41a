//! Changes of settings that a running program gets by its environment: put into effect before they
//! are stored.

use std::sync::Arc;

use gantry_node::kits::Service;
use serde_json::{Map, Value};

use crate::{
    control::{
        context::ControlContext,
        service_settings::{self, ServiceSettings},
        services::{
            environment::realtime, instance::Instance, instance_id::InstanceId,
            pooler::process as pooler, replace, rest::settings::runs_here,
            start_settings::StartSettings, stop,
        },
    },
    platform::{access::Project, audit::Recorder, error::Error},
    proxy::unavailable::UnavailableReason,
};

/// Changes the settings of a service. If its program can run here, it runs with the new settings
/// before they are stored.
///
/// Errors: those of [`service_settings::update`], and [`Error::Rejected`] with the output of the
/// program if it does not start with the new settings. The previous settings then remain.
pub async fn update(
    context: &ControlContext,
    project: &Project,
    service: Service,
    change: &Map<String, Value>,
    audit: &Recorder,
) -> Result<ServiceSettings, Error> {
    let Some(catalog) = super::catalog::catalog(service) else {
        return Err(Error::NotFound);
    };
    let id = InstanceId {
        project: project.id,
        reference: project.reference.clone(),
        service,
        function: None,
    };
    let instance = context.services.instance(&id);
    let _one = instance.replacing.lock().await;
    let before = service_settings::get(context, project, catalog).await?;
    let after = before.update(&project.reference, change)?;
    if service == Service::Pooler {
        // Checked above; its limits change in the running process.
        let after = service_settings::update(context, project, catalog, change, audit).await?;
        pooler::refresh(context, &instance).await?;
        return Ok(after);
    }
    if service == Service::Realtime {
        // Its limits change in the running process.
        let after = service_settings::update(context, project, catalog, change, audit).await?;
        push(context, &instance, &after).await;
        return Ok(after);
    }
    let is_tried = runs_here(context, project, service).await?;
    if is_tried {
        try_out(context, &instance, &after).await?;
    }
    let stored = service_settings::update(context, project, catalog, change, audit).await;
    let is_in_effect = stored
        .as_ref()
        .is_ok_and(|stored| stored.generation() == after.generation());
    if is_tried && !is_in_effect {
        // The next request starts it with the stored settings.
        stop::stop(context, &instance).await;
    }
    if stored.is_ok() {
        instance.forget_failure();
    }
    stored
}

/// Puts stored limits into effect in a running process. If that fails, the process ends: the next
/// request starts one with the stored limits.
pub(in crate::control::services) async fn push(
    context: &ControlContext,
    instance: &Arc<Instance>,
    after: &ServiceSettings,
) {
    let Some(running) = instance.running() else {
        return;
    };
    match realtime::change(context, &running, after).await {
        Ok(()) => running.settings.lock().generation = after.generation(),
        Err(error) => {
            let project = &instance.id.reference;
            tracing::warn!(%project, %error, "Realtime did not take its settings; it is stopped");
            stop::stop(context, instance).await;
        }
    }
}

/// Runs a program with new settings.
///
/// Errors: [`Error::Rejected`] with its output if it does not start with them.
pub(in crate::control::services) async fn try_out(
    context: &ControlContext,
    instance: &Arc<Instance>,
    after: &ServiceSettings,
) -> Result<(), Error> {
    let settings = StartSettings::Environment(Box::new(after.clone()));
    match replace::replace(context, instance, &settings).await {
        Err(failure) if failure.reason == UnavailableReason::Failed => {
            let service = instance.id.service;
            let why = format!(
                "{service} did not start with these settings: {}",
                failure.why
            );
            Err(Error::Rejected(why.into()))
        }
        // Another reason is not in the settings: they take effect with the next start.
        Ok(()) | Err(_) => Ok(()),
    }
}
