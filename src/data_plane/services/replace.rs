//! The settings of a process, publishing it, and replacing it by one with other settings.

use std::sync::{Arc, atomic::Ordering};

use super::{
    environment,
    instance::{Instance, InstanceId, RunningInstance, UnavailableReason},
    limits, rest,
    rest::StoredSettings,
    start,
    start::StartFailure,
    stop::end,
};
use crate::data_plane::{
    context::DataPlaneContext, service_proxy::upstreams::Service, service_settings::ServiceSettings,
};

/// The settings that a process is started with. No `Debug`, because they may contain secrets.
pub(super) enum StartSettings {
    /// Those of a Data API, or none.
    DataApi(StoredSettings),
    /// Those of a program that reads them from its environment.
    Environment(Box<ServiceSettings>),
}

impl StartSettings {
    /// Returns the settings of a Data API. For others, its defaults with their generation.
    pub(super) fn of_data_api(&self) -> StoredSettings {
        match self {
            Self::DataApi(stored) => stored.clone(),
            Self::Environment(settings) => StoredSettings {
                generation: settings.generation(),
                ..StoredSettings::default()
            },
        }
    }

    /// Reads the stored settings of a service.
    pub(super) async fn stored(
        context: &DataPlaneContext,
        id: &InstanceId,
    ) -> Result<Self, StartFailure> {
        if let Some(settings) = environment::stored(context, id).await? {
            return Ok(Self::Environment(Box::new(settings)));
        }
        if id.service != Service::Rest {
            return Ok(Self::DataApi(StoredSettings::default()));
        }
        let stored = rest::stored(&context.db, id.project).await;
        stored
            .map(Self::DataApi)
            .map_err(|error| StartFailure::new(UnavailableReason::DatabaseAway, error))
    }
}

/// Publishes a started process, and notes its end.
pub(super) fn publish(
    context: &DataPlaneContext,
    instance: &Arc<Instance>,
    running: RunningInstance,
) {
    let running = Arc::new(running);
    instance.started(Arc::clone(&running), context.clock.ticks());
    let (context, instance) = (context.clone(), Arc::clone(instance));
    // Watched after it was published: an end in between is reported as well.
    tokio::spawn(async move {
        let _ = running.handle.ended().await;
        let killed = limits::killed_by_kernel(&context, &instance.id, &running.kit.manifest);
        if killed.is_some() {
            running.exceeded.store(true, Ordering::Release);
        }
        let why = match killed {
            None => running.output.last_line().await,
            killed => killed,
        };
        let why = why.unwrap_or_else(|| "the program ended".to_owned());
        if instance.ended(running.pid, Some(why.clone()), context.clock.ticks()) {
            let InstanceId {
                reference, service, ..
            } = &instance.id;
            tracing::warn!(project = %reference, %service, why, "service ended unexpectedly");
        }
    });
}

/// Replaces the process of an instance by one with these settings, and returns the output of the
/// program if that does not start. Requests wait meanwhile.
pub(super) async fn replace(
    context: &DataPlaneContext,
    instance: &Arc<Instance>,
    settings: &StartSettings,
) -> Result<(), StartFailure> {
    let now = context.clock.ticks();
    if let Some(running) = instance.begin_stop() {
        end(context, instance, &running).await;
        instance.restarting();
    } else {
        instance.forget_failure();
        if !instance.begin_start(now) {
            return Err(StartFailure::new(
                UnavailableReason::Starting,
                "the service is starting or stopping",
            ));
        }
    }
    match start::start(context, instance, settings).await {
        Ok(running) => {
            publish(context, instance, running);
            Ok(())
        }
        Err(failure) => {
            // Requests that wait start it with the stored settings.
            instance.stopped();
            Err(failure)
        }
    }
}
