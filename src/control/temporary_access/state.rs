//! The signals of the reconciler of temporary logins.

use tokio::sync::{
    Notify,
    watch::{Receiver, Sender, channel},
};

/// Wakes the reconciler and publishes changes of logins.
#[derive(Debug)]
pub struct LoginReconciler {
    pub(super) wake: Notify,
    changes: Sender<u64>,
}

impl Default for LoginReconciler {
    fn default() -> Self {
        Self {
            wake: Notify::new(),
            changes: channel(0).0,
        }
    }
}

impl LoginReconciler {
    /// Starts a pass, after a change on this or another node.
    pub fn wake(&self) {
        self.wake.notify_one();
        self.notify_changed();
    }

    /// Subscribes to changes of logins.
    pub(crate) fn changes(&self) -> Receiver<u64> {
        self.changes.subscribe()
    }

    pub(super) fn notify_changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }
}
