//! Replacement of a pooler by one of another version, while the first keeps its clients.

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time::timeout};

use super::{identity::STOP_SIGNAL, retired::end_retired};
use crate::control::{
    context::ControlContext,
    services::{
        instance::{Instance, RunningInstance},
        limits,
        pooler::retired::RetiredPooler,
        start,
        stop::end_processes,
    },
};

/// Longest time that the clients of a retired pooler keep their connections.
const RETIRED_MAX: Duration = Duration::from_hours(1);
/// Longest time that a retired pooler takes to end after its clients have lost their connections.
const END_MAX: Duration = Duration::from_secs(5);

/// Starts another process for the next clients. Those of the running one stay with it for at most
/// an hour, within which the server connections of both count.
pub(in crate::control::services) async fn take_over(
    context: &ControlContext,
    instance: &Arc<Instance>,
) {
    // Clients that arrive from here on wait for the next process. Only one caller gets the process.
    let Some(running) = instance.begin_stop() else {
        return;
    };
    end_retired(instance).await;
    let (end, ended) = watch::channel(false);
    *instance.retired.lock() = Some(RetiredPooler {
        folder: running.folder.clone(),
        process: Arc::downgrade(&running),
        end,
    });
    tokio::spawn(retire(context.clone(), running, ended));
    instance.restarting();
    start::run(context.clone(), Arc::clone(instance)).await;
}

/// Waits for the last client of a process, then ends it and removes its folder. The receiver is
/// closed at the end.
async fn retire(
    context: ControlContext,
    running: Arc<RunningInstance>,
    mut ended: watch::Receiver<bool>,
) {
    let must_end = timeout(RETIRED_MAX, ended.wait_for(|end| *end));
    tokio::select! {
        _ = running.handle.ended() => {}
        () = running.requests.unused() => {}
        _ = must_end => {}
    }
    // Errors are ignored: a process that cannot be signalled has ended, or is killed below.
    let _ = running.handle.signal(STOP_SIGNAL);
    let _ = timeout(END_MAX, running.handle.ended()).await;
    let outcome = end_processes(&running.folder, running.owner).await;
    running.output.finish().await;
    limits::release(&context, &running.folder).await;
    if let Err(error) = outcome.and_then(|()| running.folder.remove()) {
        let project = &running.id.reference;
        tracing::warn!(%project, %error, "failed to end a replaced pooler");
    }
    drop(ended);
}
