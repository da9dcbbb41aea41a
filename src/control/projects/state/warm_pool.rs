//! The size of the warm pool, and the requests to it.

use std::collections::BTreeSet;

use gantry_node::engines::{Engine, Engines};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// The desired number of warm clusters for each PostgreSQL version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WarmPoolSize {
    /// Clusters without a running server.
    pub folders: u16,
    /// Clusters with a running server.
    pub servers: u16,
}

/// State of the warm pool: the wake-up of the task that fills it, and the requested versions.
#[derive(Debug, Default)]
pub struct Pool {
    pub(in crate::control) wake: Notify,
    /// Major versions requested since the start. The pool holds clusters of these and of the
    /// default.
    pub(in crate::control) requested: Mutex<BTreeSet<u16>>,
}

impl Pool {
    /// Returns the installations that the pool holds clusters of.
    pub(in crate::control) fn engines<'a>(&self, engines: &'a Engines) -> Vec<&'a Engine> {
        let requested = self.requested.lock();
        let default = engines.default_engine();
        engines
            .offered()
            .iter()
            .filter(|engine| *engine == default || requested.contains(&engine.major()))
            .collect()
    }

    /// Requests that clusters taken from the pool are replaced.
    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }
}

/// The kind of cluster that the pool lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::control) enum Shortage {
    Folder,
    Server,
}

impl WarmPoolSize {
    pub(in crate::control) fn shortage(self, folders: usize, servers: usize) -> Option<Shortage> {
        // Servers first: a server is started from a folder, which is then replaced.
        (servers < self.servers.into())
            .then_some(Shortage::Server)
            .or_else(|| (folders < self.folders.into()).then_some(Shortage::Folder))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortage_prefers_servers_and_ends_at_the_desired_size() {
        let wanted = WarmPoolSize {
            folders: 2,
            servers: 1,
        };
        for (folders, servers, lack) in [
            (0, 0, Some(Shortage::Server)),
            (2, 0, Some(Shortage::Server)),
            (1, 1, Some(Shortage::Folder)),
            (2, 1, None),
            (3, 2, None),
        ] {
            assert_eq!(
                wanted.shortage(folders, servers),
                lack,
                "{folders} folders, {servers} servers"
            );
        }
        assert_eq!(WarmPoolSize::default().shortage(0, 0), None);
    }
}
