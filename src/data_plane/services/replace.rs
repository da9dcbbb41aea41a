//! Publishing a started process, and replacing it by one with other settings.

use std::sync::{Arc, atomic::Ordering};

use super::{
    instance::{Instance, InstanceId, RunningInstance, UnavailableReason},
    limits, start,
    start::{StartFailure, StartSettings},
    stop::end,
};
use crate::data_plane::context::DataPlaneContext;

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
