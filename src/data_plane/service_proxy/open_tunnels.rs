//! Open WebSockets. A WebSocket is closed when it would no longer be granted: its host name no
//! longer routes to the project, the project is paused or deleted, or its API key was revoked.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use futures_util::{StreamExt, stream};
use gantry_base::ids::ProjectId;
use parking_lot::Mutex;
use secrecy::{ExposeSecret, SecretString};
use smol_str::SmolStr;
use tokio::sync::Notify;

use super::{
    api_key_check,
    routes::{Route, RouteStatus},
};
use crate::data_plane::context::DataPlaneContext;

/// Number of projects read concurrently after a change of keys.
const PROJECTS_AT_ONCE: usize = 16;

/// The WebSockets of this process. Bounded by the number of connections.
#[derive(Default)]
pub(super) struct OpenTunnels {
    tunnels: Mutex<HashMap<u64, Arc<TunnelGrant>>>,
    next: AtomicU64,
}

/// The host name, project and key that a WebSocket was granted for.
pub(super) struct TunnelGrant {
    /// Host name of the connection.
    pub(super) name: SmolStr,
    pub(super) project: ProjectId,
    /// Whether the request needs a key if the project checks keys.
    pub(super) needs_key: bool,
    /// The API key that the client sent, whether or not it was checked.
    pub(super) key: Option<SecretString>,
    /// Notified to close the WebSocket.
    pub(super) end: Notify,
}

/// Registration of an open WebSocket, removed on drop.
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
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let grant = Arc::new(grant);
        self.tunnels.lock().insert(number, Arc::clone(&grant));
        OpenTunnel {
            all: self,
            number,
            grant,
        }
    }
}

impl TunnelGrant {
    /// Returns the route of the host name, if it still routes to the project and is served.
    fn route(&self, context: &DataPlaneContext) -> Option<Arc<Route>> {
        let known = context.service_proxy.routes.current();
        known
            .get(&self.name)
            .filter(|route| route.project == self.project && route.status == RouteStatus::Active)
            .cloned()
    }

    /// Returns whether the WebSocket would be granted now.
    pub(super) async fn is_valid(&self, context: &DataPlaneContext) -> bool {
        let Some(route) = self.route(context) else {
            return false;
        };
        if !self.needs_key || !api_key_check::checks_keys(context, &route) {
            return true;
        }
        let Some(key) = &self.key else { return false };
        // If keys cannot be read, the previous decision stands.
        context
            .service_proxy
            .api_keys
            .accepted(context, &route)
            .await
            .map_or(true, |accepted| accepted.contains(key.expose_secret()))
    }
}

/// Closes WebSockets that would no longer be granted, after checks change of routes or keys. Runs
/// until it is dropped.
pub(super) async fn run(context: DataPlaneContext) {
    let mut routes = context.service_proxy.routes.reloads();
    loop {
        tokio::select! {
            // The sender lives as long as the application.
            _ = routes.changed() => {}
            () = context.service_proxy.api_keys.changed() => {}
        }
        close_invalid(&context).await;
    }
}

async fn close_invalid(context: &DataPlaneContext) {
    let mut by_project: HashMap<ProjectId, Vec<Arc<TunnelGrant>>> = HashMap::new();
    for grant in context.service_proxy.open_tunnels.tunnels.lock().values() {
        by_project
            .entry(grant.project)
            .or_default()
            .push(Arc::clone(grant));
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
