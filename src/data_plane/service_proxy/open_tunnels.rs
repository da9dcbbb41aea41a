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
    gate,
    names::{Serving, Site},
};
use crate::{base::ids::ProjectId, data_plane::context::DataPlaneContext};

/// Projects whose API keys are read at once after a change.
const PROJECTS_AT_ONCE: usize = 16;

/// The WebSockets of this process. Their number is bounded by the connections of the edge.
#[derive(Default)]
pub(super) struct OpenTunnels {
    tunnels: Mutex<HashMap<u64, Arc<Grant>>>,
    next: AtomicU64,
}

/// The name, project and key that a WebSocket was granted for.
pub(super) struct Grant {
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
    pub(super) grant: Arc<Grant>,
}

impl Drop for OpenTunnel<'_> {
    fn drop(&mut self) {
        self.all.tunnels.lock().remove(&self.number);
    }
}

impl OpenTunnels {
    pub(super) fn add(&self, grant: Grant) -> OpenTunnel<'_> {
        let (number, grant) = (self.next.fetch_add(1, Ordering::Relaxed), Arc::new(grant));
        self.tunnels.lock().insert(number, Arc::clone(&grant));
        OpenTunnel {
            all: self,
            number,
            grant,
        }
    }
}

impl Grant {
    /// The site that the name leads to, if it is still the project's and is served.
    fn site(&self, context: &DataPlaneContext) -> Option<Arc<Site>> {
        let known = context.edge.names.known();
        known
            .get(&self.name)
            .filter(|site| site.project == self.project && site.serving == Serving::Yes)
            .cloned()
    }

    /// Whether the WebSocket would be granted now.
    pub(super) async fn holds(&self, context: &DataPlaneContext) -> bool {
        let Some(site) = self.site(context) else {
            return false;
        };
        if !self.needs_key || !gate::checks_keys(context, &site) {
            return true;
        }
        let Some(key) = &self.key else { return false };
        // Keys that cannot be read are taken to be as they were.
        context
            .edge
            .gate
            .accepted(context, &site)
            .await
            .map_or(true, |accepted| accepted.contains(key.expose_secret()))
    }
}

/// Ends WebSockets that would not be granted any more, after each change of names or keys. Runs until it is dropped.
pub(super) async fn run(context: DataPlaneContext) {
    let mut names = context.edge.names.readings();
    loop {
        tokio::select! {
            // The sender lives as long as the application.
            _ = names.changed() => {}
            () = context.edge.gate.changed() => {}
        }
        end_ungranted(&context).await;
    }
}

async fn end_ungranted(context: &DataPlaneContext) {
    let mut by_project: HashMap<ProjectId, Vec<Arc<Grant>>> = HashMap::new();
    for grant in context.edge.open_tunnels.tunnels.lock().values() {
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
