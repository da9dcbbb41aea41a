//! Replacement of a pooler by one of another version, while the first keeps its clients.

use std::{sync::Arc, time::Duration};

use rustix::process::Signal;
use tokio::{sync::watch, time::timeout};

use super::STOP_SIGNAL;
use crate::data_plane::{
    context::DataPlaneContext,
    services::{
        folder::InstanceFolder,
        instance::{Instance, RunningInstance},
        limits, start,
        stop::end_processes,
    },
};

/// Longest time that the clients of a retired pooler keep their connections.
const RETIRED_MAX: Duration = Duration::from_hours(1);
/// Longest time that a retired pooler takes to end after its clients have lost their connections.
const END_MAX: Duration = Duration::from_secs(5);
/// The signal after which the process accepts no clients, and ends after the last one has left.
const RETIRE_SIGNAL: Signal = Signal::TERM;
/// End of the name of the second folder of a pooler, for one that starts while another is retired.
pub(in crate::data_plane::services) const SECOND: &str = "second";

/// A pooler that accepts no clients any more, and ends with the last of those that it has. Dropping
/// it does not end it.
#[derive(Debug)]
pub(in crate::data_plane::services) struct RetiredPooler {
    folder: InstanceFolder,
    /// Set to end it at once.
    end: watch::Sender<bool>,
}

impl RetiredPooler {
    /// Ends the process, and returns when its folder is free.
    async fn end(self) {
        self.end.send_replace(true);
        self.end.closed().await;
    }
}

/// Starts another process for the next clients. Those of the running one stay with it for at most
/// an hour, within which the server connections of both count.
pub(in crate::data_plane::services) async fn take_over(
    context: &DataPlaneContext,
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
        end,
    });
    tokio::spawn(retire(context.clone(), running, ended));
    instance.restarting();
    start::run(context.clone(), Arc::clone(instance)).await;
}

/// Ends the retired process of an instance, if there is one.
pub(in crate::data_plane::services) async fn end_retired(instance: &Instance) {
    let retired = instance.retired.lock().take();
    if let Some(retired) = retired {
        retired.end().await;
    }
}

/// Returns the folder of a new process: that of the service, unless a retired one has it.
pub(in crate::data_plane::services) fn free_folder(
    context: &DataPlaneContext,
    instance: &Instance,
) -> InstanceFolder {
    let first = InstanceFolder::of(&context.home, &instance.id);
    let retired = instance.retired.lock();
    let is_taken = retired
        .as_ref()
        .is_some_and(|retired| retired.folder == first && !retired.end.is_closed());
    if is_taken {
        let name = format!("{}.{SECOND}", instance.id.name());
        InstanceFolder::named(&context.home, &name)
    } else {
        first
    }
}

/// Waits for the last client of a process, then removes its folder. The receiver is closed at the
/// end.
async fn retire(
    context: DataPlaneContext,
    running: Arc<RunningInstance>,
    mut ended: watch::Receiver<bool>,
) {
    // Errors are ignored: a process that cannot be signalled has ended, or is killed below.
    let _ = running.handle.signal(RETIRE_SIGNAL);
    let must_end = async { drop(timeout(RETIRED_MAX, ended.wait_for(|end| *end)).await) };
    let has_ended = tokio::select! {
        _ = running.handle.ended() => true,
        () = must_end => false,
    };
    if !has_ended {
        let _ = running.handle.signal(STOP_SIGNAL);
        let _ = timeout(END_MAX, running.handle.ended()).await;
    }
    let outcome = end_processes(&running.folder, running.owner).await;
    running.output.finish().await;
    limits::release(&context, &running.folder).await;
    if let Err(error) = outcome.and_then(|()| running.folder.remove()) {
        let project = &running.id.reference;
        tracing::warn!(%project, %error, "failed to end a replaced pooler");
    }
    drop(ended);
}
