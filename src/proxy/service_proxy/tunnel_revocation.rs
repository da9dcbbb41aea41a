//! Closes WebSockets that would no longer be granted.

use std::{collections::HashMap, sync::Arc};

use futures_util::{StreamExt, stream};
use gantry_base::ids::ProjectId;
use secrecy::ExposeSecret;

use super::{
    api_key_check,
    context::ServiceProxyContext,
    open_tunnels::TunnelGrant,
    routes::{Route, RouteStatus},
};

/// Number of projects read concurrently after a change of keys.
const PROJECTS_AT_ONCE: usize = 16;

impl TunnelGrant {
    /// Returns the route of the host name, if it still routes to the project and is served.
    fn route(&self, context: &ServiceProxyContext) -> Option<Arc<Route>> {
        let known = context.proxy.routes.current();
        known
            .get(&self.name)
            .filter(|route| route.project == self.project && route.status == RouteStatus::Active)
            .cloned()
    }

    /// Returns whether the WebSocket would be granted now.
    pub(super) async fn is_valid(&self, context: &ServiceProxyContext) -> bool {
        let Some(route) = self.route(context) else {
            return false;
        };
        if !self.needs_key || !api_key_check::checks_keys(context, &route) {
            return true;
        }
        let Some(key) = &self.key else { return false };
        // If keys cannot be read, the previous decision stands.
        context
            .accepted_keys(&route)
            .await
            .map_or(true, |accepted| accepted.contains(key.expose_secret()))
    }
}

/// Closes WebSockets that would no longer be granted, after checks change of routes or keys. Runs
/// until it is dropped.
pub(super) async fn run(context: ServiceProxyContext) {
    let mut routes = context.proxy.routes.reloads();
    loop {
        tokio::select! {
            // The sender lives as long as the application.
            _ = routes.changed() => {}
            () = context.proxy.api_keys.changed() => {}
        }
        close_invalid(&context).await;
    }
}

async fn close_invalid(context: &ServiceProxyContext) {
    let mut by_project: HashMap<ProjectId, Vec<Arc<TunnelGrant>>> = HashMap::new();
    for grant in context.proxy.open_tunnels.grants() {
        by_project.entry(grant.project).or_default().push(grant);
    }
    let checks = by_project.into_values().map(|grants| async move {
        // Sequential within a project, so that the first check loads the project's keys into the
        // cache.
        for grant in grants {
            if !grant.is_valid(context).await {
                grant.end.notify_one();
            }
        }
    });
    stream::iter(checks)
        .buffer_unordered(PROJECTS_AT_ONCE)
        .collect::<()>()
        .await;
}
