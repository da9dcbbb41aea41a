//! The state that the reconciler shares with other tasks.

use std::{
    collections::HashSet,
    sync::{Arc, OnceLock},
};

use gantry_base::ids::ProjectId;
use parking_lot::Mutex;
use tokio::sync::{
    Notify, OwnedSemaphorePermit, Semaphore,
    watch::{Receiver, Sender, channel},
};

use super::watch::Watch;

/// Projects that are processed at the same time. More would only wait for disk and CPU (measured).
pub(in crate::control) const WORKERS: usize = 4;

/// Wakes the reconciler and publishes changes of status.
#[derive(Debug)]
pub struct Reconciler {
    pub(in crate::control) wake: Notify,
    /// Wakes the task that empties the trash.
    pub(in crate::control) trash: Notify,
    pub(in crate::control) changes: Sender<u64>,
    /// Reports servers that exit.
    pub(crate) watch: Watch,
    pub(in crate::control) busy: Mutex<HashSet<ProjectId>>,
    workers: Arc<Semaphore>,
    pub(in crate::control) stopping: OnceLock<()>,
}

/// Exclusive access to a project's cluster, taken from the reconciler. Released on drop.
pub(crate) struct Hold<'a> {
    reconciler: &'a Reconciler,
    project: ProjectId,
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.reconciler.busy.lock().remove(&self.project);
        // The desired state may have changed meanwhile.
        self.reconciler.notify();
    }
}

impl Default for Reconciler {
    fn default() -> Self {
        Self {
            wake: Notify::new(),
            trash: Notify::new(),
            changes: channel(0).0,
            watch: Watch::default(),
            busy: Mutex::default(),
            workers: Arc::new(Semaphore::new(WORKERS)),
            stopping: OnceLock::new(),
        }
    }
}

impl Reconciler {
    /// Requests a pass now.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Announces that a project changed, and requests a pass.
    pub(crate) fn notify(&self) {
        self.changes.send_modify(|count| *count += 1);
        self.wake();
    }

    /// Subscribes to changes of any project's status.
    pub fn changes(&self) -> Receiver<u64> {
        self.changes.subscribe()
    }

    /// Returns whether a project is being processed.
    pub(crate) fn is_busy(&self) -> bool {
        !self.busy.lock().is_empty()
    }

    /// Takes a project from the reconciler until the result is dropped. Returns `None` if the
    /// reconciler is processing it.
    pub(crate) fn hold(&self, project: ProjectId) -> Option<Hold<'_>> {
        let is_free = self.busy.lock().insert(project);
        // Made only then: the drop of a hold locks, and releases the project.
        is_free.then(|| Hold {
            reconciler: self,
            project,
        })
    }

    /// Waits for a free worker. Returns `None` during shutdown.
    pub(crate) async fn begin(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed.
        let permit = self.workers.clone().acquire_owned().await.ok()?;
        self.stopping.get().is_none().then_some(permit)
    }

    /// Requests that the trash is emptied.
    pub(crate) fn trash_filled(&self) {
        self.trash.notify_one();
    }

    /// Stops taking new work, and returns when work in progress is complete.
    pub async fn stop(&self) {
        // A second call has no effect.
        let _ = self.stopping.set(());
        self.wake();
        // All permits are available when no worker is active. The semaphore is never closed.
        let _ = self
            .workers
            .acquire_many(u32::try_from(WORKERS).unwrap_or(u32::MAX))
            .await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_project_is_not_taken_and_stays_held() {
        let reconciler = Reconciler::default();
        let (one, other) = (ProjectId(1), ProjectId(2));
        let held = reconciler.hold(one);
        assert!(held.is_some());
        for _ in 0..2 {
            assert!(reconciler.hold(one).is_none());
            assert!(reconciler.is_busy());
        }
        assert!(reconciler.hold(other).is_some());
        drop(held);
        assert!(!reconciler.is_busy());
        assert!(reconciler.hold(one).is_some());
    }
}
