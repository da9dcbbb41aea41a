//! Serves one client connection: server name, TLS handshake, then HTTP requests.

use std::{convert::Infallible, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

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
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
    time::timeout,
};
use tokio_rustls::{LazyConfigAcceptor, server::TlsStream};

use super::{
    ConnectionPermits, forward,
    framing::{AmbiguityFlag, FramingGuard},
    request_headers::ClientHeaders,
    tls,
    tls::{ACME_ALPN, Tls},
    upstream_pool::UpstreamPool,
};
use crate::data_plane::context::DataPlaneContext;

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

/// A client connection, after the TLS handshake if there is one.
pub(super) struct ClientConnection {
    pub(super) context: DataPlaneContext,
    pub(super) peer: SocketAddr,
    /// Server name of the TLS handshake, or the host of the socket, in lower case.
    pub(super) name: SmolStr,
    /// Idle connections to upstreams, of the same worker thread.
    pub(super) pool: Arc<UpstreamPool>,
    /// Header values that identify the client to upstreams.
    pub(super) client_headers: ClientHeaders,
    /// Set when the connection carried an ambiguously framed request.
    pub(super) ambiguous: AmbiguityFlag,
    /// Permits of the connection. WebSockets share them.
    pub(super) permits: Arc<ConnectionPermits>,
}

impl ClientConnection {
    fn new(
        context: &DataPlaneContext,
        (peer, permits): (SocketAddr, ConnectionPermits),
        pool: Arc<UpstreamPool>,
        name: SmolStr,
        ambiguous: AmbiguityFlag,
    ) -> Self {
        let client_headers = ClientHeaders::new(peer.ip().to_canonical(), &name);
        Self {
            context: context.clone(),
            peer,
            pool,
            client_headers,
            name,
            ambiguous,
            permits: Arc::new(permits),
        }
    }
}

/// Serves a connection until it ends.
pub(super) async fn serve(
    context: &DataPlaneContext,
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
    let metrics = &context.data_plane_metrics.service_proxy;
    let (stream, name) = match handshake {
        Ok(Ok(handshake)) => handshake,
        Ok(Err(outcome)) => return metrics.connection(outcome),
        Err(_) => return metrics.connection("late"),
    };
    metrics.connection("open");
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

/// Performs the TLS handshake. A client that requests an unknown server name gets no response.
/// Errors are outcome labels.
async fn accept_tls(
    context: &DataPlaneContext,
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
            .service_proxy
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
        .service_proxy
        .routes
        .find(&name)
        .await
        .ok_or("unknown name")?;
    if route.certificate.is_none()
        && !(route.own_domain
            && (tls.has_wildcard || context.service_proxy.routes.current().wildcard.is_some()))
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
    context: &DataPlaneContext,
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
        () = context.service_proxy.shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    log_error(ended);
}

async fn serve_http2(client: ClientConnection, stream: TlsStream<CoalescingStream>) {
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
    log_error(accept::serve_until_shutdown(connection, &context.service_proxy.shutdown).await);
}

async fn respond(
    client: Arc<ClientConnection>,
    request: Request<Incoming>,
) -> Result<forward::ProxyResponse, Infallible> {
    Ok(forward::serve(&client, request).await)
}

/// Logs at debug level: disconnects and protocol errors of clients are expected.
fn log_error(ended: Result<(), hyper::Error>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended with an error");
    }
}
