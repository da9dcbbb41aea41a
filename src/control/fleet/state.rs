//! State of the connections with other nodes.

use std::sync::Arc;

use gantry_base::ids::ProjectId;
use parking_lot::RwLock;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{
    node::{Node, NodeState},
    node_tls::NodeTls,
    peer_connections::PeerConnections,
};
use crate::{control::projects::regions::Region, platform::cache::EpochCache};

/// Bound of the cache of nodes by project; the least used entries are evicted first.
const HOLDERS_MAX: usize = 100_000;

/// Settings of the operator for this node.
#[derive(Debug, Clone, Default)]
pub struct NodeSettings {
    /// Its name. Default: the host name.
    pub name: Option<String>,
    /// Region of its projects. `None`: any.
    pub region: Option<Region>,
    /// Host and port by which other nodes reach its fleet port. `None`: it has none.
    pub address: Option<String>,
}

/// The other nodes, as this one knows them.
pub struct Fleet {
    /// All nodes with this one, as last read.
    pub(super) nodes: RwLock<Arc<[Node]>>,
    /// Certificate of this node. `None`: it has no fleet port.
    pub(super) tls: RwLock<Option<Arc<NodeTls>>>,
    /// Nodes of projects, this one included. Moves of projects are announced.
    pub(super) holders: EpochCache<ProjectId, Uuid>,
    /// Open connections to other nodes.
    pub(super) connections: PeerConnections,
    /// Ends the fleet port.
    pub shutdown: CancellationToken,
}

impl Default for Fleet {
    fn default() -> Self {
        Self {
            nodes: RwLock::new(Arc::new([])),
            tls: RwLock::default(),
            holders: EpochCache::new(HOLDERS_MAX),
            connections: PeerConnections::default(),
            shutdown: CancellationToken::new(),
        }
    }
}

impl Fleet {
    /// Returns all nodes, as last read.
    pub fn nodes(&self) -> Arc<[Node]> {
        self.nodes.read().clone()
    }

    /// Returns whether no other node than `own` is known.
    pub(super) fn is_alone(&self, own: Uuid) -> bool {
        self.nodes.read().iter().all(|node| node.id == own)
    }

    /// Forgets which nodes hold projects.
    pub(in crate::control) fn forget_holders(&self) {
        self.holders.clear();
    }

    /// Enables or disables the cache of holders: a process without notifications must not cache.
    pub(in crate::control) fn set_subscribed(&self, subscribed: bool) {
        self.holders.set_trusted(subscribed);
    }

    /// Returns whether a node is known to be down.
    pub fn is_down(&self, id: Uuid) -> bool {
        let nodes = self.nodes.read();
        let mut down = nodes.iter().filter(|node| node.state == NodeState::Down);
        down.any(|node| node.id == id)
    }

    /// Returns a node, as last read.
    pub fn node(&self, id: Uuid) -> Option<Node> {
        self.nodes().iter().find(|node| node.id == id).cloned()
    }
}
