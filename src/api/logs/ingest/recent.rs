//! Recently stored batches, so that a batch that its sender repeats is stored once.
//!
//! Senders repeat a batch when its answer was lost. A batch is recognised by the ids that the
//! sender gave to all of its lines.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use gantry_logs::event::Event;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio::sync::OwnedMutexGuard;

use crate::base::ids::ProjectRef;

/// Maximum number of remembered batches of a project.
const BATCHES_MAX: usize = 256;
/// Maximum number of projects with remembered batches. Beyond it, idle projects are forgotten.
const PROJECTS_MAX: usize = 4096;

/// SHA-256 of the source and the id of each line of a batch.
type BatchDigest = [u8; 32];

/// The remembered batches of all projects.
#[derive(Debug, Default)]
pub(in crate::api::logs) struct RecentBatches {
    projects: Mutex<HashMap<ProjectRef, Arc<ProjectBatches>>>,
}

/// The digests of one project, oldest first. Locked while a batch is stored, so that a concurrent
/// repetition waits for the outcome.
type ProjectBatches = tokio::sync::Mutex<VecDeque<BatchDigest>>;

/// A batch that is being stored.
pub(in crate::api::logs) struct NewBatch {
    batches: OwnedMutexGuard<VecDeque<BatchDigest>>,
    digest: BatchDigest,
}

impl RecentBatches {
    /// Waits for other batches of the project. Returns `None` if this one was stored before.
    pub(in crate::api::logs) async fn begin(
        &self,
        project: &ProjectRef,
        digest: BatchDigest,
    ) -> Option<NewBatch> {
        let batches = self.project(project).lock_owned().await;
        let is_new = !batches.contains(&digest);
        is_new.then_some(NewBatch { batches, digest })
    }

    fn project(&self, project: &ProjectRef) -> Arc<ProjectBatches> {
        let mut projects = self.projects.lock();
        if projects.len() >= PROJECTS_MAX && !projects.contains_key(project) {
            projects.retain(|_, batches| Arc::strong_count(batches) > 1);
        }
        Arc::clone(projects.entry(project.clone()).or_default())
    }
}

impl NewBatch {
    /// Remembers the batch after it was stored.
    pub(in crate::api::logs) fn stored(mut self) {
        if self.batches.len() >= BATCHES_MAX {
            self.batches.pop_front();
        }
        self.batches.push_back(self.digest);
    }
}

/// Returns the digest of a batch.
pub(super) fn digest(events: &[Event]) -> BatchDigest {
    let mut digest = Sha256::new();
    for event in events {
        for text in [event.source_name(), &event.id] {
            digest.update((text.len() as u64).to_le_bytes());
            digest.update(text);
        }
    }
    digest.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn project() -> ProjectRef {
        "abcdefghijklmnopqrst".parse().unwrap()
    }

    #[tokio::test]
    async fn repeated_batch_is_new_until_it_was_stored() {
        let recent = RecentBatches::default();
        let project = project();
        let failed = recent.begin(&project, [1; 32]).await;
        drop(failed.unwrap());
        let batch = recent.begin(&project, [1; 32]).await.unwrap();
        let mut repeated = std::pin::pin!(recent.begin(&project, [1; 32]));
        assert!(futures_util::poll!(&mut repeated).is_pending());
        batch.stored();
        assert!(repeated.await.is_none());
        let other: ProjectRef = "bbcdefghijklmnopqrst".parse().unwrap();
        assert!(recent.begin(&other, [1; 32]).await.is_some());
    }

    #[tokio::test]
    async fn remembered_batches_of_a_project_are_limited() {
        let recent = RecentBatches::default();
        for number in 0..=BATCHES_MAX {
            let mut digest = [0; 32];
            digest[..8].copy_from_slice(&(number as u64).to_le_bytes());
            recent.begin(&project(), digest).await.unwrap().stored();
        }
        assert!(recent.begin(&project(), [0; 32]).await.is_some());
    }
}
