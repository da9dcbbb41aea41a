//! Stopping the process of an instance.

use std::{io, sync::Arc, time::Duration};

use futures_util::{StreamExt, stream};
use gantry_node::{
    kits::Service,
    supervisor::{ProcessHandle, ProcessOwner},
};
use rustix::process::Signal;
use tokio::time::timeout;

use super::{
    folder::InstanceFolder,
    instance::{Instance, RunningInstance},
    instance_id::InstanceId,
    limits,
    pooler::{identity::STOP_SIGNAL, retired::end_retired},
};
use crate::control::context::ControlContext;

/// Longest time that requests in flight get before an instance is stopped.
pub(super) const DRAIN_MAX: Duration = Duration::from_secs(10);
/// The time that the kernel gets to end a killed process.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// Rounds in which left processes are killed. One forked meanwhile appears in the next round.
const KILL_ROUNDS: usize = 20;
/// Concurrent stops when all instances are stopped.
const STOPS_MAX: usize = 16;

/// Stops a running instance: waits for the requests in flight, then ends its processes.
pub(super) async fn stop(context: &ControlContext, instance: &Arc<Instance>) {
    if let Some(running) = instance.begin_stop() {
        end(context, instance, &running).await;
        instance.stopped();
    }
    end_retired(instance).await;
}

/// Ends the processes of an instance that accepts no more uses.
pub(super) async fn end(
    context: &ControlContext,
    instance: &Arc<Instance>,
    running: &Arc<RunningInstance>,
) {
    let signal = if instance.id.service == Service::Pooler {
        // Its uses are sessions of clients: the program itself waits for their transactions.
        STOP_SIGNAL
    } else {
        let _ = timeout(DRAIN_MAX, instance.unused()).await;
        Signal::TERM
    };
    let patience = Duration::from_secs(running.kit.manifest.stop.seconds.into());
    let ended = async {
        running.handle.signal(signal)?;
        // After the time, it is killed below.
        let _ = timeout(patience, running.handle.ended()).await;
        end_processes(&running.folder, running.owner).await?;
        running.output.finish().await;
        limits::release(context, &running.folder).await;
        running.folder.remove()
    };
    if let Err(error) = ended.await {
        let InstanceId {
            reference, service, ..
        } = &instance.id;
        tracing::warn!(project = %reference, %service, %error, "failed to end a service");
    }
}

/// Stops all instances of this process. Used before all clusters are stopped.
pub async fn stop_all(context: &ControlContext) {
    let stops = context.services.instances();
    stream::iter(stops)
        .for_each_concurrent(STOPS_MAX, |instance| async move {
            stop(context, &instance).await;
        })
        .await;
}

/// Kills the processes of a folder, and all others of its user id if no other program has it.
pub(super) async fn end_processes(folder: &InstanceFolder, owner: ProcessOwner) -> io::Result<()> {
    for _ in 0..KILL_ROUNDS {
        let (listed, uid) = (folder.clone(), owner.own_uid());
        let pids = tokio::task::spawn_blocking(move || listed.processes(uid))
            .await
            .map_err(io::Error::other)??;
        if pids.is_empty() {
            return Ok(());
        }
        for pid in pids {
            let Some(handle) = ProcessHandle::open(pid)? else {
                continue;
            };
            // Checked again: the pid may have been reused before it was opened.
            if !folder.is_process(pid, owner.own_uid()) {
                continue;
            }
            handle.signal(Signal::KILL)?;
            let _ = timeout(KILL_TIMEOUT, handle.ended()).await;
        }
    }
    Err(io::Error::other("processes are left after SIGKILL"))
}
