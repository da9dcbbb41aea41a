//! Cache of the live functions of projects.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use gantry_base::ids::ProjectId;
use parking_lot::Mutex;
use quick_cache::sync::Cache;
use uuid::Uuid;

use crate::proxy::service_proxy::{LiveFunction, LiveFunctions};

/// Projects with cached functions.
const PROJECTS_MAX: usize = 10_000;

/// Cached functions of projects.
pub(crate) struct FunctionCache {
    pub(super) cached: Cache<ProjectId, (u64, Arc<LiveFunctions>)>,
    /// Raised by each change of any function.
    pub(super) changes: AtomicU64,
    /// Versions that are being deployed, by the id of their files.
    candidates: Mutex<HashMap<Uuid, Arc<LiveFunction>>>,
}

impl Default for FunctionCache {
    fn default() -> Self {
        Self {
            cached: Cache::new(PROJECTS_MAX),
            changes: AtomicU64::new(0),
            candidates: Mutex::default(),
        }
    }
}

impl std::fmt::Debug for FunctionCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FunctionCache").finish_non_exhaustive()
    }
}

impl FunctionCache {
    /// Invalidates all entries.
    pub(crate) fn change(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns a version that is being deployed.
    pub(super) fn candidate(&self, deployment: Uuid) -> Option<Arc<LiveFunction>> {
        self.candidates.lock().get(&deployment).cloned()
    }

    pub(super) fn add_candidate(&self, live: LiveFunction) {
        self.candidates
            .lock()
            .insert(live.deployment, Arc::new(live));
    }

    pub(super) fn remove_candidate(&self, deployment: Uuid) {
        self.candidates.lock().remove(&deployment);
    }
}
