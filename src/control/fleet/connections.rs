//! Streams to the proxies of other nodes.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    task::{Context as TaskContext, Poll},
    time::Duration,
};

use gantry_base::ids::{ProjectId, ProjectRef};
use http::{Method, Request, Uri};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf},
    task::JoinSet,
    time::timeout,
};

use super::{
    forwarded_client,
    holders::reachable_holder,
    node::{Node, NodeState},
    node_tls,
    peer_connections::{PeerAddress, SendError, StreamPermit},
};
use crate::{
    control::context::ControlContext,
    platform::http::Body,
    proxy::node_streams::{ForwardedClient, NodeStream, StreamProtocol},
};

/// Time limit of the start of a stream.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit of a cancel request.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);
/// Nodes that are asked to carry out a cancel request.
const CANCEL_NODES_MAX: usize = 64;

/// Returns how a node is reached. `None` if one of the two nodes has no fleet port.
pub(super) fn address_of(context: &ControlContext, node: &Node) -> Option<PeerAddress> {
    let tls = context.fleet.tls.read().as_ref()?.client.clone();
    Some(PeerAddress {
        node: node.id,
        address: node.address.clone()?,
        name: node_tls::server_name(node.id).ok()?,
        tls,
    })
}

/// Opens a stream to the node that holds a project. `None`: this node does, or that node cannot be
/// reached.
pub(in crate::control) async fn open_stream(
    context: &ControlContext,
    project: ProjectId,
    client: &ForwardedClient,
) -> Option<NodeStream> {
    let node = match reachable_holder(context, project).await {
        Ok(node) => node?,
        Err(error) => {
            tracing::debug!(%error, "failed to find the node of a project");
            return None;
        }
    };
    match open(context, &node, client).await {
        Ok(stream) => Some(stream),
        Err(error) => {
            tracing::warn!(node = node.name, %error, "node cannot be reached");
            None
        }
    }
}

/// Opens a stream to the node that holds a project, as [`open_stream`] does.
pub(in crate::control) async fn open_stream_by_ref(
    context: &ControlContext,
    project: &ProjectRef,
    client: &ForwardedClient,
) -> Option<NodeStream> {
    if context.fleet.is_alone(context.settings.node) {
        return None;
    }
    let sql = "select id from projects where ref = $1 and desired <> 'removed'";
    let rows = context.db.query(sql, &[&project.as_str()]).await.ok()?;
    let project = ProjectId(rows.first()?.get(0));
    open_stream(context, project, client).await
}

async fn open(
    context: &ControlContext,
    node: &Node,
    client: &ForwardedClient,
) -> io::Result<NodeStream> {
    let peer = address_of(context, node).ok_or(io::ErrorKind::NotConnected)?;
    let mut request = Request::new(Body::empty());
    *request.method_mut() = Method::CONNECT;
    *request.uri_mut() = Uri::from_static("stream.nodes.gantry:443");
    forwarded_client::write_client(request.headers_mut(), client);
    let opened = async {
        let sent = context.fleet.connections.send(&peer, request).await;
        let (response, permit) = sent.map_err(|error| match error {
            SendError::Unsent(_, error) | SendError::Lost(error) => error,
        })?;
        if !response.status().is_success() {
            let status = response.status();
            return Err(io::Error::other(format!("the node answered {status}")));
        }
        let stream = hyper::upgrade::on(response)
            .await
            .map_err(io::Error::other)?;
        Ok(PeerStream {
            stream: TokioIo::new(stream),
            _permit: permit,
        })
    };
    let stream = timeout(OPEN_TIMEOUT, opened).await??;
    Ok(Box::pin(stream))
}

/// Sends a cancel request to all other nodes, and returns when they have carried it out.
pub(in crate::control) async fn send_cancel(
    context: &ControlContext,
    request: Vec<u8>,
    address: SocketAddr,
) {
    let own = context.settings.node;
    let nodes = context.fleet.nodes();
    let others = nodes
        .iter()
        .filter(|node| node.id != own && node.state != NodeState::Down && node.address.is_some());
    let client = ForwardedClient {
        protocol: StreamProtocol::PostgresCancel,
        address,
        encrypted: true,
        name: None,
    };
    let mut sent = JoinSet::new();
    for node in others.take(CANCEL_NODES_MAX).cloned() {
        let (context, client, request) = (context.clone(), client.clone(), request.clone());
        sent.spawn(async move {
            let cancelled = async {
                let mut stream = open(&context, &node, &client).await?;
                stream.write_all(&request).await?;
                stream.flush().await?;
                // The node closes the stream once the signal was sent.
                stream.read(&mut [0]).await.map(drop)
            };
            if let Ok(Err(error)) = timeout(CANCEL_TIMEOUT, cancelled).await {
                tracing::debug!(node = node.name, %error, "failed to pass on a cancel request");
            }
        });
    }
    sent.join_all().await;
}

/// A stream to another node.
struct PeerStream {
    stream: TokioIo<Upgraded>,
    _permit: StreamPermit,
}

impl AsyncRead for PeerStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for PeerStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
