//! Detects the exit of a healthy project's server at once, by pidfd instead of polling.

use std::collections::{HashMap, HashSet};

use gantry_base::ids::ProjectId;
use gantry_node::clusters::RunningServer;
use parking_lot::Mutex;

use crate::data_plane::context::DataPlaneContext;

/// Watched servers, and projects to check in the next pass. Both are bounded by the projects of
/// this node.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// The pid distinguishes consecutive servers of one project.
    watched: Mutex<HashMap<ProjectId, i32>>,
    ended: Mutex<HashSet<ProjectId>>,
}

impl Watch {
    /// Returns the projects to check: their server has exited or was just started.
    pub(crate) fn take_ended(&self) -> HashSet<ProjectId> {
        std::mem::take(&mut *self.ended.lock())
    }

    /// Registers a server as watched. Returns whether it was not watched before.
    fn begin(&self, project: ProjectId, pid: i32) -> bool {
        self.watched.lock().insert(project, pid) != Some(pid)
    }

    fn end(&self, project: ProjectId, pid: i32) {
        let mut watched = self.watched.lock();
        // The next server may be watched already.
        if watched.get(&project) == Some(&pid) {
            watched.remove(&project);
        }
        drop(watched);
        self.look_at(project);
    }

    /// Makes the next pass check this project.
    pub(crate) fn look_at(&self, project: ProjectId) {
        self.ended.lock().insert(project);
    }
}

/// Wakes the reconciler when this server exits. Does nothing if the server is watched already.
pub(crate) fn begin(context: &DataPlaneContext, project: ProjectId, server: RunningServer) {
    let pid = server.pid();
    if !context.reconciler.watch.begin(project, pid) {
        return;
    }
    let context = context.clone();
    tokio::spawn(async move {
        // If watching fails, the project is checked now and watched again in the next full pass.
        if let Err(error) = server.ended().await {
            tracing::warn!(%error, "cannot watch a server process");
        }
        context.reconciler.watch.end(project, pid);
        context.reconciler.wake();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_is_watched_once_and_its_end_reported_once() {
        let (watch, project) = (Watch::default(), ProjectId(1));
        assert!(watch.begin(project, 10) && !watch.begin(project, 10));
        // Started again before the exit of the first one is reported.
        assert!(watch.begin(project, 11));
        watch.end(project, 10);
        assert!(!watch.begin(project, 11), "the second is still watched");
        watch.end(project, 11);
        assert_eq!(
            (watch.take_ended(), watch.take_ended()),
            ([project].into(), HashSet::new())
        );
        assert!(watch.begin(project, 11), "a pid may come back");
    }
}
