//! A pooler that was replaced while it has clients.

use std::sync::{Arc, Weak};

use gantry_node::clusters::Home;
use tokio::sync::watch;

use crate::control::services::{
    folder::{InstanceFolder, SECOND_POOLER},
    instance::{Instance, RunningInstance},
};

/// A pooler that gets no clients any more, and ends with the last of those that it has. Dropping it
/// does not end it.
#[derive(Debug)]
pub(in crate::control::services) struct RetiredPooler {
    pub(super) folder: InstanceFolder,
    pub(super) process: Weak<RunningInstance>,
    /// Set to end it at once.
    pub(super) end: watch::Sender<bool>,
}

impl RetiredPooler {
    /// Returns the process, unless it has ended.
    pub(super) fn process(&self) -> Option<Arc<RunningInstance>> {
        let is_ended = self.end.is_closed();
        self.process.upgrade().filter(|_| !is_ended)
    }

    /// Ends the process, and returns when its folder is free.
    pub(super) async fn end(self) {
        self.end.send_replace(true);
        self.end.closed().await;
    }
}

/// Ends the retired process of an instance, if there is one.
pub(in crate::control::services) async fn end_retired(instance: &Instance) {
    let retired = instance.retired.lock().take();
    if let Some(retired) = retired {
        retired.end().await;
    }
}

/// Returns the folder of a new process: that of the service, unless a retired one has it.
pub(in crate::control::services) fn free_folder(
    home: &Home,
    instance: &Instance,
) -> InstanceFolder {
    let first = InstanceFolder::of(home, &instance.id);
    let retired = instance.retired.lock();
    let is_taken = retired
        .as_ref()
        .is_some_and(|retired| retired.folder == first && !retired.end.is_closed());
    if is_taken {
        let name = format!("{}.{SECOND_POOLER}", instance.id.name());
        InstanceFolder::named(home, &name)
    } else {
        first
    }
}
