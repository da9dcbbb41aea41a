//! Serves one client connection: server name, TLS handshake, then HTTP requests.

use std::{convert::Infallible, io, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use gantry_base::net::{accept, coalescing_stream::CoalescingStream};
use hyper::{
    Request,
    body::Incoming,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::server::Acceptor;
use smol_str::SmolStr;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, copy, split},
    net::{TcpStream, UnixStream},
    time::timeout,
};
use tokio_rustls::{LazyConfigAcceptor, server::TlsStream};

use super::{
    client_connection::ClientConnection,
    context::ServiceProxyContext,
    forward,
    forwarded::ProxyResponse,
    framing::{AmbiguityFlag, FramingGuard},
    state::ConnectionPermits,
    tls,
    tls::{ACME_ALPN, Tls},
    upstream_pool::UpstreamPool,
};
use crate::proxy::node_streams::{ForwardedClient, NodeStream, StreamProtocol};

/// Timeout for the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout for the head of a request, and for an idle connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest request head, in bytes.
const HEAD_BYTES_MAX: usize = 32 * 1024;
/// Read buffer of a connection, in bytes. hyper itself limits a head to 100 header fields.
const BUFFER_BYTES_MAX: usize = 64 * 1024;
/// Maximum number of concurrent HTTP/2 streams of a connection.
const STREAMS_MAX: u32 = 100;
/// Interval of HTTP/2 keep-alive pings.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// Time that a client gets to answer a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves a connection until it ends.
pub(super) async fn serve(
    context: &ServiceProxyContext,
    stream: TcpStream,
    from: (SocketAddr, ConnectionPermits),
    tls: &Tls,
    pool: Arc<UpstreamPool>,
) {
    let handshake = timeout(
        HANDSHAKE_TIMEOUT,
        Box::pin(accept_tls(context, stream, tls)),
    )
    .await;
    let metrics = &context.proxy.metrics;
    let (stream, name) = match handshake {
        Ok(Ok(handshake)) => handshake,
        Ok(Err(outcome)) => return metrics.connection(outcome),
        Err(_) => return metrics.connection("late"),
    };
    metrics.connection("open");
    let stream = match pass_on(context, stream, from.0, &name).await {
        Ok(()) => return,
        Err(stream) => stream,
    };
    if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
        serve_http2(
            ClientConnection::new(context, from, pool, name, AmbiguityFlag::default()),
            stream,
        )
        .await;
    } else {
        let (stream, ambiguous) = FramingGuard::new(stream);
        serve_http1(
            ClientConnection::new(context, from, pool, name, ambiguous),
            stream,
        )
        .await;
    }
}

/// Relays a connection to the node that holds the project of the name, until it ends. Returns the
/// stream if this node does, or if that node cannot be reached.
async fn pass_on(
    context: &ServiceProxyContext,
    stream: TlsStream<CoalescingStream>,
    peer: SocketAddr,
    name: &SmolStr,
) -> Result<(), TlsStream<CoalescingStream>> {
    let Some(route) = context.proxy.routes.find(name).await else {
        return Err(stream);
    };
    let client = ForwardedClient {
        protocol: match stream.get_ref().1.alpn_protocol() {
            Some(b"h2") => StreamProtocol::Http2,
            _ => StreamProtocol::Http1,
        },
        address: peer,
        encrypted: true,
        name: Some(name.clone()),
    };
    let Some(node) = context.nodes.open_by_id(route.project, &client).await else {
        return Err(stream);
    };
    if let Err(error) = relay(stream, node).await {
        tracing::debug!(%error, "connection that was passed on ended with an error");
    }
    Ok(())
}

/// Relays a connection until the other node ends it, which it does with idle connections and with
/// clients that are too slow.
async fn relay(client: impl AsyncRead + AsyncWrite, node: NodeStream) -> io::Result<()> {
    let (mut from_client, mut to_client) = split(client);
    let (mut from_node, mut to_node) = split(node);
    let requests = async {
        copy(&mut from_client, &mut to_node).await?;
        to_node.shutdown().await
    };
    let mut responses = pin!(async {
        copy(&mut from_node, &mut to_client).await?;
        to_client.shutdown().await
    });
    tokio::select! {
        ended = &mut responses => return ended,
        ended = requests => ended?,
    }
    responses.await
}

/// Serves a connection that another node passed on, until it ends. Its TLS ended there.
pub(super) async fn serve_forwarded<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
    context: &ServiceProxyContext,
    stream: S,
    client: ForwardedClient,
    permits: ConnectionPermits,
    pool: Arc<UpstreamPool>,
) {
    let Some(name) = client.name else { return };
    context.proxy.metrics.connection("open");
    let from = (client.address, permits);
    if client.protocol == StreamProtocol::Http2 {
        let ambiguous = AmbiguityFlag::default();
        let client = ClientConnection::new(context, from, pool, name, ambiguous);
        serve_http2(client, stream).await;
    } else {
        let (stream, ambiguous) = FramingGuard::new(stream);
        let client = ClientConnection::new(context, from, pool, name, ambiguous);
        serve_http1(client, stream).await;
    }
}

/// Performs the TLS handshake. A client that requests an unknown server name gets no response.
/// Errors are outcome labels.
async fn accept_tls(
    context: &ServiceProxyContext,
    stream: TcpStream,
    tls: &Tls,
) -> Result<(TlsStream<CoalescingStream>, SmolStr), &'static str> {
    // A failure means that the client has disconnected, which the next read reports.
    let _ = stream.set_nodelay(true);
    let start = LazyConfigAcceptor::new(Acceptor::default(), CoalescingStream::from(stream))
        .await
        .map_err(|_| "malformed")?;
    let hello = start.client_hello();
    let name: SmolStr = hello
        .server_name()
        .ok_or("no name")?
        .to_ascii_lowercase()
        .into();
    if hello
        .alpn()
        .is_some_and(|mut protocols| protocols.any(|protocol| protocol == ACME_ALPN))
    {
        let challenge = context
            .proxy
            .routes
            .challenge(&name)
            .await
            .ok_or("unknown name")?;
        let config = tls::for_challenge(&name, &challenge).map_err(|_| "malformed")?;
        // The handshake itself is the response to the challenge.
        start
            .into_stream(config)
            .await
            .map_err(|_| "handshake failed")?;
        return Err("challenge");
    }
    let route = context
        .proxy
        .routes
        .find(&name)
        .await
        .ok_or("unknown name")?;
    if route.certificate.is_none()
        && !(route.own_domain
            && (tls.has_wildcard || context.proxy.routes.current().wildcard.is_some()))
    {
        return Err("no certificate");
    }
    let stream = start
        .into_stream(tls.config.clone())
        .await
        .map_err(|_| "handshake failed")?;
    Ok((stream, name))
}

/// Serves a connection of this machine, without TLS, for the host `name`, until it ends.
pub(super) async fn serve_plain(
    context: &ServiceProxyContext,
    stream: UnixStream,
    from: (SocketAddr, ConnectionPermits),
    pool: Arc<UpstreamPool>,
    name: SmolStr,
) {
    let (stream, ambiguous) = FramingGuard::new(stream);
    let client = ClientConnection::new(context, from, pool, name, ambiguous);
    serve_http1(client, stream).await;
}

async fn serve_http1<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
    client: ClientConnection,
    stream: FramingGuard<S>,
) {
    let context = client.context.clone();
    let client = Arc::new(client);
    let service = service_fn(move |request: Request<Incoming>| respond(client.clone(), request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_header_size(HEAD_BYTES_MAX)
        .max_buf_size(BUFFER_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    // `serve_until_shutdown` does not support connections that can be upgraded.
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => ended,
        () = context.proxy.shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    log_error(ended);
}

async fn serve_http2<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
    client: ClientConnection,
    stream: S,
) {
    let context = client.context.clone();
    let client = Arc::new(client);
    let service = service_fn(move |request: Request<Incoming>| respond(client.clone(), request));
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_header_list_size(u32::try_from(HEAD_BYTES_MAX).unwrap_or(u32::MAX))
        .max_concurrent_streams(STREAMS_MAX)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    log_error(accept::serve_until_shutdown(connection, &context.proxy.shutdown).await);
}

async fn respond(
    client: Arc<ClientConnection>,
    request: Request<Incoming>,
) -> Result<ProxyResponse, Infallible> {
    Ok(forward::serve(&client, request).await)
}

/// Logs at debug level: disconnects and protocol errors of clients are expected.
fn log_error(ended: Result<(), hyper::Error>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended with an error");
    }
}
