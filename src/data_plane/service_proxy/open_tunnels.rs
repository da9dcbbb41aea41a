//! WebSockets that are open, and the end of those that would not be granted any more: their name no longer leads to the project,
//! the project is paused or deleted, or the API key that they were opened with is none of the project's.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use secrecy::{ExposeSecret, SecretString};
use smol_str::SmolStr;
use tokio::sync::Notify;

use super::{
    api_key_check,
    routes::{Route, RouteStatus},
};
use crate::{base::ids::ProjectId, data_plane::context::DataPlaneContext};

/// Projects whose API keys are read at once after a change.
const PROJECTS_AT_ONCE: usize = 16;

/// The WebSockets of this process. Their number is bounded by the connections of the edge.
#[derive(Default)]
pub(super) struct OpenTunnels {
    tunnels: Mutex<HashMap<u64, Arc<TunnelGrant>>>,
    next: AtomicU64,
}

/// The name, project and key that a WebSocket was granted for.
pub(super) struct TunnelGrant {
    /// The name that the connection was made for.
    pub(super) name: SmolStr,
    pub(super) project: ProjectId,
    /// Whether a project that has keys checked wants one for this request.
    pub(super) needs_key: bool,
    /// The API key that came with the request, whether or not it was checked then.
    pub(super) key: Option<SecretString>,
    /// Rung to end the WebSocket.
    pub(super) end: Notify,
}

/// A WebSocket among the open ones until this is dropped.
pub(super) struct OpenTunnel<'a> {
    all: &'a OpenTunnels,
    number: u64,
    pub(super) grant: Arc<TunnelGrant>,
}

impl Drop for OpenTunnel<'_> {
    fn drop(&mut self) {
        self.all.tunnels.lock().remove(&self.number);
    }
}

impl OpenTunnels {
    pub(super) fn add(&self, grant: TunnelGrant) -> OpenTunnel<'_> {
        let (number, grant) = (self.next.fetch_add(1, Ordering::Relaxed), Arc::new(grant));
        self.tunnels.lock().insert(number, Arc::clone(&grant));
        OpenTunnel {
            all: self,
            number,
            grant,
        }
    }
}

impl TunnelGrant {
    /// The route that the name leads to, if it is still the project's and is served.
    fn route(&self, context: &DataPlaneContext) -> Option<Arc<Route>> {
        let known = context.service_proxy.routes.known();
        known
            .get(&self.name)
            .filter(|route| route.project == self.project && route.status == RouteStatus::Yes)
            .cloned()
    }

    /// Whether the WebSocket would be granted now.
    pub(super) async fn holds(&self, context: &DataPlaneContext) -> bool {
        let Some(route) = self.route(context) else {
            return false;
        };
        if !self.needs_key || !api_key_check::checks_keys(context, &route) {
            return true;
        }
        let Some(key) = &self.key else { return false };
        // Keys that cannot be read are taken to be as they were.
        context
            .service_proxy
            .api_keys
            .accepted(context, &route)
            .await
            .map_or(true, |accepted| accepted.has(key.expose_secret()))
    }
}

/// Ends WebSockets that would not be granted any more, after each change of names or keys. Runs until it is dropped.
pub(super) async fn run(context: DataPlaneContext) {
    let mut routes = context.service_proxy.routes.readings();
    loop {
        tokio::select! {
            // The sender lives as long as the application.
            _ = routes.changed() => {}
            () = context.service_proxy.api_keys.changed() => {}
        }
        end_ungranted(&context).await;
    }
}

async fn end_ungranted(context: &DataPlaneContext) {
    let mut by_project: HashMap<ProjectId, Vec<Arc<TunnelGrant>>> = HashMap::new();
    for grant in context.service_proxy.open_tunnels.tunnels.lock().values() {
        by_project
            .entry(grant.project)
            .or_default()
            .push(Arc::clone(grant));
    }
    let each = by_project.into_values().map(|grants| async move {
        // One after another: the first reads the project's keys for all.
        for grant in grants {
            if !grant.holds(context).await {
                grant.end.notify_one();
            }
        }
    });
    stream::iter(each)
        .buffer_unordered(PROJECTS_AT_ONCE)
        .collect::<()>()
        .await;
}
