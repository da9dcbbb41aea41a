//! The live versions of functions, cached by project for the service proxy.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering},
};

use gantry_base::ids::ProjectId;

use super::versions;
use crate::{
    control::context::ControlContext,
    platform::error::{Context, Error},
    proxy::service_proxy::{LiveFunction, LiveFunctions},
};

/// Returns the live versions of a project. Falls back to outdated ones while the control database
/// cannot be reached.
pub(crate) async fn live_functions(
    context: &ControlContext,
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

async fn read(context: &ControlContext, project: ProjectId) -> Result<LiveFunctions, Error> {
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
    Ok(LiveFunctions::new(by_slug, environment))
}
