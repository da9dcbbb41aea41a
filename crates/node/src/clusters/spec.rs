//! The properties of a new cluster.

use gantry_base::ids::ProjectRef;

/// The properties of a new cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterSpec {
    /// The project of the cluster.
    pub project: ProjectRef,
    /// User and group id of its files and processes, which no other project has. Without root, they
    /// belong to Gantry's own account.
    pub uid: u32,
    /// Major version of its PostgreSQL.
    pub major: u16,
}

/// The scheduling priority of the copy that creates a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyPriority {
    /// Normal priority: a client waits for the cluster.
    Foreground,
    /// The lowest priority: no client waits for the cluster.
    Background,
}
