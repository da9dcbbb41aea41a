//! Connections to other nodes, for the proxies.

use std::net::SocketAddr;

use async_trait::async_trait;
use gantry_base::ids::{ProjectId, ProjectRef};

use crate::{
    control::{context::ControlContext, fleet::connections},
    proxy::node_streams::{ForwardedClient, NodeStream, NodeStreams},
};

/// The other nodes.
pub(super) struct Nodes(pub(super) ControlContext);

#[async_trait]
impl NodeStreams for Nodes {
    async fn open(&self, project: &ProjectRef, client: &ForwardedClient) -> Option<NodeStream> {
        connections::open_stream_by_ref(&self.0, project, client).await
    }

    async fn open_by_id(&self, project: ProjectId, client: &ForwardedClient) -> Option<NodeStream> {
        connections::open_stream(&self.0, project, client).await
    }

    async fn cancel(&self, request: Vec<u8>, address: SocketAddr) {
        connections::send_cancel(&self.0, request, address).await;
    }
}
