//! The servers of which the exit is watched.

use std::collections::{HashMap, HashSet};

use gantry_base::ids::ProjectId;
use gantry_node::clusters::ServerProcess;
use parking_lot::Mutex;

/// Watched servers, and projects to check in the next pass. Both are bounded by the projects of
/// this node.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// The process distinguishes consecutive servers of one project.
    watched: Mutex<HashMap<ProjectId, ServerProcess>>,
    ended: Mutex<HashSet<ProjectId>>,
}

impl Watch {
    /// Returns the projects to check: their server has exited or was just started.
    pub(crate) fn take_ended(&self) -> HashSet<ProjectId> {
        std::mem::take(&mut *self.ended.lock())
    }

    /// Registers a server as watched. Returns whether it was not watched before.
    pub(in crate::control) fn begin(&self, project: ProjectId, process: ServerProcess) -> bool {
        self.watched.lock().insert(project, process) != Some(process)
    }

    pub(in crate::control) fn end(&self, project: ProjectId, process: ServerProcess) {
        let mut watched = self.watched.lock();
        // The next server may be watched already.
        if watched.get(&project) == Some(&process) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_is_watched_once_and_its_end_reported_once() {
        let (watch, project) = (Watch::default(), ProjectId(1));
        let [first, second] = [10, 11].map(ServerProcess::new);
        assert!(watch.begin(project, first) && !watch.begin(project, first));
        // Started again before the exit of the first one is reported.
        assert!(watch.begin(project, second));
        watch.end(project, first);
        assert!(!watch.begin(project, second), "the second is still watched");
        watch.end(project, second);
        assert_eq!(
            (watch.take_ended(), watch.take_ended()),
            ([project].into(), HashSet::new())
        );
        assert!(watch.begin(project, second), "an identity may come back");
    }
}
