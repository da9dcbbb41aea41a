//! Cache of the keys that projects accept.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use gantry_base::ids::ProjectId;
use quick_cache::sync::Cache;
use tokio::sync::Notify;

use super::{directory::ProjectDirectory, rejection::RequestRejection, routes::Route};
use crate::{platform::error::Error, proxy::accepted_keys::AcceptedKeys};

/// Number of projects with cached keys.
const PROJECTS_MAX: usize = 10_000;

/// Cached keys of projects.
pub(super) struct ApiKeyCache {
    accepted: Cache<ProjectId, (u64, Arc<AcceptedKeys>)>,
    /// Generation counter, incremented when keys of any project change.
    changes: AtomicU64,
    /// Notified on each change.
    notify: Notify,
}

impl Default for ApiKeyCache {
    fn default() -> Self {
        Self {
            accepted: Cache::new(PROJECTS_MAX),
            changes: AtomicU64::new(0),
            notify: Notify::new(),
        }
    }
}

impl ApiKeyCache {
    /// Invalidates all cached keys.
    pub(super) fn change(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
        self.notify.notify_one();
    }

    /// Waits until keys have changed since the last call returned.
    pub(super) async fn changed(&self) {
        self.notify.notified().await;
    }

    /// Returns the keys of a project. Falls back to outdated keys if the control database is
    /// unreachable.
    pub(super) async fn accepted(
        &self,
        directory: &dyn ProjectDirectory,
        route: &Route,
    ) -> Result<Arc<AcceptedKeys>, RequestRejection> {
        // Read before the query, so that a concurrent change invalidates its result.
        let now = self.changes.load(Ordering::Acquire);
        let known = self.accepted.get(&route.project);
        if let Some((then, accepted)) = &known
            && *then == now
        {
            return Ok(accepted.clone());
        }
        match directory
            .accepted_keys((route.project, &route.reference))
            .await
        {
            Ok(accepted) => {
                let accepted = Arc::new(accepted);
                self.accepted.insert(route.project, (now, accepted.clone()));
                Ok(accepted)
            }
            Err(error) => {
                // An outage of the control database is logged elsewhere, once.
                if !matches!(error, Error::Unavailable { .. }) {
                    tracing::warn!(project = %route.reference, %error, "failed to read a project's API keys");
                }
                known
                    .map(|(_, accepted)| accepted)
                    .ok_or(RequestRejection::KeysUnknown)
            }
        }
    }
}
