//! The traits by which the PostgreSQL proxy asks for access and for servers.

use std::net::IpAddr;

use async_trait::async_trait;
use gantry_base::ids::{ProjectId, ProjectRef};
use gantry_node::clusters::ServerSocket;
use ipnet::IpNet;

use super::rejection::ConnectionRejection;
use crate::proxy::unavailable::Unavailable;

/// A client that requests a session with a project's database.
#[derive(Debug, Clone, Copy)]
pub struct SessionClient<'a> {
    /// The project.
    pub project: &'a ProjectRef,
    /// The role.
    pub user: &'a str,
    /// Address of the client.
    pub address: IpAddr,
    /// Whether the connection is encrypted.
    pub encrypted: bool,
}

/// A session that the access rules of a project permit. Its server runs.
#[derive(Debug, Clone, Copy)]
pub struct SessionGrant {
    /// The project.
    pub project: ProjectId,
    /// Concurrent sessions with the server that the project may have.
    pub direct_max: usize,
    /// Concurrent sessions with the pooler that the project may have.
    pub pooled_max: usize,
}

/// Decides on sessions. Implemented by the control plane.
#[async_trait]
pub trait SessionDirectory: Send + Sync {
    /// Checks the access rules of a project. Waits for a server that is starting, and starts one
    /// that was stopped for lack of use.
    async fn admit(&self, client: SessionClient<'_>) -> Result<SessionGrant, ConnectionRejection>;

    /// Bans an address block from a project, after too many wrong passwords.
    async fn ban(&self, project: (ProjectId, &ProjectRef), block: IpNet);
}

/// Reaches the servers and poolers of this node.
#[async_trait]
pub trait SessionServers: Send + Sync {
    /// Returns the server of a project.
    fn server(&self, project: &ProjectRef) -> ServerSocket;

    /// Returns whether sessions can be pooled: the pooler is installed.
    fn has_pooler(&self) -> bool;

    /// Returns the running pooler of a project. Starts it if necessary.
    async fn pooler(
        &self,
        project: (ProjectId, &ProjectRef),
    ) -> Result<Box<dyn Pooler>, Unavailable>;
}

/// A running pooler. It is not stopped as idle before this is dropped.
#[async_trait]
pub trait Pooler: Send + Sync {
    /// Where it accepts sessions.
    fn socket(&self) -> &ServerSocket;

    /// Returns when the process is no longer that of the project, at most two seconds later.
    async fn until_replaced(self: Box<Self>);
}
