//! The settings of a process, publishing it, and replacing it by one with other settings.

use std::sync::{Arc, atomic::Ordering};

use gantry_base::clock::Ticks;

use super::{
    crashes::ChargedCaller,
    instance::{Instance, RunningInstance},
    instance_id::InstanceId,
    limits, start,
    start_failure::StartFailure,
    stop::end,
};
use crate::{
    control::{context::ControlContext, services::start_settings::StartSettings},
    proxy::unavailable::UnavailableReason,
};

/// Time since the last request within which an ended process is replaced at once, in milliseconds.
const REPLACED_MAX: Ticks = 60_000;

/// Publishes a started process, and replaces it when it ends.
pub(super) fn publish(
    context: &ControlContext,
    instance: &Arc<Instance>,
    running: RunningInstance,
) {
    let running = Arc::new(running);
    instance.started(Arc::clone(&running), context.clock.ticks());
    let (context, instance) = (context.clone(), Arc::clone(instance));
    // Watched after it was published: an end in between is reported as well.
    tokio::spawn(async move {
        let _ = running.handle.ended().await;
        // From here on, requests wait for the next process.
        let is_current = instance.begin_end(running.pid);
        let charged = running.requests.charged();
        let killed = limits::killed_by_kernel(&context, &running.folder, &running.kit.manifest);
        if killed.is_some() {
            running.exceeded.store(true, Ordering::Release);
        }
        let why = match killed {
            None => running.output.last_line().await,
            killed => killed,
        };
        running.settled.send_replace(true);
        if is_current {
            let why = why.unwrap_or_else(|| "the program ended".to_owned());
            // The next process has the same output, so all lines of this one are read before.
            running.output.finish().await;
            after_crash(&context, &instance, &running, (why, charged));
        }
    });
}

/// Charges the end of a process that was ready to its callers, and starts the next one if it served
/// requests. Of a function, a spare is started too.
fn after_crash(
    context: &ControlContext,
    instance: &Arc<Instance>,
    running: &RunningInstance,
    (why, charged): (String, Vec<ChargedCaller>),
) {
    let InstanceId {
        reference, service, ..
    } = &instance.id;
    tracing::warn!(project = %reference, %service, why, "service ended unexpectedly");
    let now = context.clock.ticks();
    let crashes = &context.services.crashes;
    let start_at = crashes.record(instance.id.crash_scope(), &charged, now);
    instance.crashed(why, start_at, now);
    if start_at > now {
        tracing::warn!(project = %reference, %service, "service slowed: it ends for many callers");
        return;
    }
    let recently = now.saturating_sub(REPLACED_MAX);
    if !running.requests.has_served_since(recently) {
        return;
    }
    let spare = instance.id.spare().map(|id| context.services.instance(&id));
    for next in [Some(Arc::clone(instance)), spare].into_iter().flatten() {
        if next.begin_start(now) {
            tokio::spawn(start::run(context.clone(), next));
        }
    }
}

/// Replaces the process of an instance by one with these settings, and returns the output of the
/// program if that does not start. Requests wait meanwhile.
pub(super) async fn replace(
    context: &ControlContext,
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
