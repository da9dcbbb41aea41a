//! Keys of batches, so that a batch that its sender repeats is stored once.
//!
//! Senders repeat a batch when its answer was lost. A batch is recognised by the ids that the
//! sender gave to all of its lines. The store remembers the keys of recent batches.

use std::{collections::HashMap, sync::Arc};

use gantry_base::ids::ProjectRef;
use gantry_logs::{event::Event, store::BatchKey};
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio::sync::OwnedMutexGuard;

/// Number of projects beyond which locks that are not held are removed.
const PROJECTS_MAX: usize = 4096;

/// A lock for each project that is held while a batch is stored, so that a concurrent repetition
/// waits for the outcome.
#[derive(Debug, Default)]
pub(in crate::api::logs) struct BatchLocks {
    projects: Mutex<HashMap<ProjectRef, Arc<tokio::sync::Mutex<()>>>>,
}

impl BatchLocks {
    /// Waits for other batches of the project.
    pub(in crate::api::logs) async fn lock(&self, project: &ProjectRef) -> OwnedMutexGuard<()> {
        let lock = {
            let mut projects = self.projects.lock();
            if projects.len() >= PROJECTS_MAX && !projects.contains_key(project) {
                projects.retain(|_, lock| Arc::strong_count(lock) > 1);
            }
            Arc::clone(projects.entry(project.clone()).or_default())
        };
        lock.lock_owned().await
    }
}

/// Returns the key of a batch: the start of the SHA-256 of the source and the id of each line.
pub(super) fn batch_key(events: &[Event]) -> BatchKey {
    let mut digest = Sha256::new();
    for event in events {
        for text in [event.source_name(), &event.id] {
            digest.update((text.len() as u64).to_le_bytes());
            digest.update(text);
        }
    }
    let digest: [u8; 32] = digest.finalize().into();
    let mut key = BatchKey::default();
    key.copy_from_slice(&digest[..16]);
    key
}
