//! Connections of clients that are passed on to the node of their project.

use std::{net::SocketAddr, pin::Pin};

use async_trait::async_trait;
use gantry_base::ids::{ProjectId, ProjectRef};
use smol_str::SmolStr;
use tokio::io::{AsyncRead, AsyncWrite};

/// A connection to the proxy of another node.
pub type NodeStream = Pin<Box<dyn AsyncDuplex>>;

/// A stream in both directions.
pub trait AsyncDuplex: AsyncRead + AsyncWrite + Send {}

impl<S: AsyncRead + AsyncWrite + Send> AsyncDuplex for S {}

/// The protocol of a connection after TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamProtocol {
    /// A session with a server, from the startup message.
    PostgresDirect,
    /// A session with a pooler, from the startup message.
    PostgresPooled,
    /// A cancel request of PostgreSQL.
    PostgresCancel,
    /// HTTP/1.1 requests to services.
    Http1,
    /// HTTP/2 requests to services.
    Http2,
}

/// A client with a connection that is passed on. Its TLS ended at the first node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForwardedClient {
    /// Protocol of the connection.
    pub protocol: StreamProtocol,
    /// Address of the client.
    pub address: SocketAddr,
    /// Whether the client used TLS.
    pub encrypted: bool,
    /// Server name of the TLS handshake, if it has one. Required for HTTP.
    pub name: Option<SmolStr>,
}

/// Opens connections to other nodes. Implemented by the control plane.
#[async_trait]
pub trait NodeStreams: Send + Sync {
    /// Opens a connection to the node that holds a project. `None`: this node does, or that node
    /// cannot be reached.
    async fn open(&self, project: &ProjectRef, client: &ForwardedClient) -> Option<NodeStream>;

    /// Opens a connection to the node that holds a project, as [`Self::open`] does.
    async fn open_by_id(&self, project: ProjectId, client: &ForwardedClient) -> Option<NodeStream>;

    /// Sends a cancel request to all other nodes: its key does not tell which one issued it.
    /// Returns when they have carried it out.
    async fn cancel(&self, request: Vec<u8>, address: SocketAddr);
}
