//! The live versions of functions, cached by project for the service proxy.

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

use super::versions;
use crate::{
    data_plane::context::DataPlaneContext,
    platform::error::{Context, Error},
};

/// Projects with cached functions.
const PROJECTS_MAX: usize = 10_000;

/// A live version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LiveFunction {
    pub(crate) id: Uuid,
    pub(crate) slug: String,
    pub(crate) version: i32,
    pub(crate) deployment: Uuid,
    pub(crate) verify_jwt: bool,
    pub(crate) entrypoint: String,
    pub(crate) import_map: Option<String>,
}

/// The live versions of a project, and the number of their environment.
#[derive(Debug, Default)]
pub(crate) struct LiveFunctions {
    by_slug: HashMap<String, Arc<LiveFunction>>,
    pub(crate) environment: i64,
}

impl LiveFunctions {
    /// Returns the live version of a function.
    pub(crate) fn get(&self, slug: &str) -> Option<&Arc<LiveFunction>> {
        self.by_slug.get(slug)
    }

    /// Returns the live version with these files.
    pub(crate) fn of_deployment(&self, deployment: Uuid) -> Option<&Arc<LiveFunction>> {
        self.by_slug
            .values()
            .find(|one| one.deployment == deployment)
    }

    /// Whether the project has no function.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_slug.is_empty()
    }
}

/// Cached functions of projects.
pub(crate) struct FunctionCache {
    cached: Cache<ProjectId, (u64, Arc<LiveFunctions>)>,
    /// Raised by each change of any function.
    changes: AtomicU64,
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

/// Returns the live versions of a project. Falls back to outdated ones while the control database
/// cannot be reached.
pub(crate) async fn live_functions(
    context: &DataPlaneContext,
    project: ProjectId,
) -> Result<Arc<LiveFunctions>, Error> {
    let cache = &context.services.functions;
    // Read before the query, so that a concurrent change invalidates its result.
    let now = cache.changes.load(Ordering::Acquire);
    let known = cache.cached.get(&project);
    if let Some((then, live)) = &known
        && *then == now
    {
        return Ok(live.clone());
    }
    match Box::pin(read(context, project)).await {
        Ok(live) => {
            let live = Arc::new(live);
            cache.cached.insert(project, (now, live.clone()));
            Ok(live)
        }
        Err(error) => known.map(|(_, live)| live).ok_or(error),
    }
}

async fn read(context: &DataPlaneContext, project: ProjectId) -> Result<LiveFunctions, Error> {
    let sql = "select generation from function_environments where project_id = $1";
    let rows = context.db.query(sql, &[&project.0]).await;
    let rows = rows.context("reading the environment of functions")?;
    let environment = rows.first().map_or(0, |row| row.get(0));
    let mut by_slug = HashMap::new();
    for record in versions::list(context, project).await? {
        let live = LiveFunction {
            id: record.id,
            slug: record.slug.clone(),
            version: record.version,
            deployment: record.deployment,
            verify_jwt: record.verify_jwt,
            entrypoint: record.entrypoint,
            import_map: record.import_map,
        };
        by_slug.insert(record.slug, Arc::new(live));
    }
    Ok(LiveFunctions {
        by_slug,
        environment,
    })
}
