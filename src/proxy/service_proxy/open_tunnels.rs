//! Open WebSockets. A WebSocket is closed when it would no longer be granted: its host name no
//! longer routes to the project, the project is paused or deleted, or its API key was revoked.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use gantry_base::ids::ProjectId;
use parking_lot::Mutex;
use secrecy::SecretString;
use smol_str::SmolStr;
use tokio::sync::Notify;

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
    /// Returns the grants of all open WebSockets.
    pub(super) fn grants(&self) -> Vec<Arc<TunnelGrant>> {
        self.tunnels.lock().values().cloned().collect()
    }

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
