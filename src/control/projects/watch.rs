//! Detects the exit of a healthy project's server at once, by pidfd instead of polling.

use gantry_base::ids::ProjectId;
use gantry_node::clusters::RunningServer;

use crate::control::context::ControlContext;

/// Wakes the reconciler when this server exits. Does nothing if the server is watched already.
pub(crate) fn begin(context: &ControlContext, project: ProjectId, server: RunningServer) {
    let process = server.process();
    if !context.reconciler.watch.begin(project, process) {
        return;
    }
    let context = context.clone();
    tokio::spawn(async move {
        // If watching fails, the project is checked now and watched again in the next full pass.
        if let Err(error) = server.ended().await {
            tracing::warn!(%error, "cannot watch a server process");
        }
        context.reconciler.watch.end(project, process);
        context.reconciler.wake();
    });
}
