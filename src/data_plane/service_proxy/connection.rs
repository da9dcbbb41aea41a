//! One connection: the name it is for, TLS, then requests.

use std::{convert::Infallible, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use hyper::{
    Request,
    body::Incoming,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::server::Acceptor;
use smol_str::SmolStr;
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::{LazyConfigAcceptor, server::TlsStream};

use super::{
    ConnectionPlace, forward,
    framing::{AmbiguityFlag, FramingGuard},
    request::ClientHeaders,
    tls,
    tls::{ACME_ALPN, Tls},
    upstream_pool::UpstreamPool,
};
use crate::{
    base::net::{accept, coalescing_stream::CoalescingStream},
    data_plane::context::DataPlaneContext,
};

/// What a client gets to say whom it wants, and to agree on keys.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// What a client gets to send the head of a request, and how long a connection is kept for the next.
const HEAD: Duration = Duration::from_secs(30);
/// Longest head of a request.
const HEAD_BYTES_MAX: usize = 32 * 1024;
/// What is read ahead of a body. Of headers hyper takes a hundred by itself.
const BUFFER_BYTES_MAX: usize = 64 * 1024;
/// Requests of one connection at once, over HTTP/2.
const STREAMS_MAX: u32 = 100;
/// A connection that was silent for so long is asked whether it is still there, and gets so long to say so.
const PING: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(10));

/// A client that is connected.
pub(super) struct ClientConnection {
    pub(super) context: DataPlaneContext,
    pub(super) peer: SocketAddr,
    /// The name it asked for with TLS, in lower case.
    pub(super) name: SmolStr,
    /// What leads to services from here.
    pub(super) pool: Arc<UpstreamPool>,
    /// What services are told of it.
    pub(super) told: ClientHeaders,
    /// Whether it sent a request that can be read in two ways.
    pub(super) ambiguous: AmbiguityFlag,
    /// The connection's place among all. WebSockets keep it.
    pub(super) place: Arc<ConnectionPlace>,
}

impl ClientConnection {
    fn new(
        context: &DataPlaneContext,
        (peer, place): (SocketAddr, ConnectionPlace),
        pool: Arc<UpstreamPool>,
        name: SmolStr,
        ambiguous: AmbiguityFlag,
    ) -> Self {
        let told = ClientHeaders::new(peer.ip().to_canonical(), &name);
        Self {
            context: context.clone(),
            peer,
            pool,
            told,
            name,
            ambiguous,
            place: Arc::new(place),
        }
    }
}

/// Serves one connection to its end.
pub(super) async fn serve(
    context: &DataPlaneContext,
    stream: TcpStream,
    from: (SocketAddr, ConnectionPlace),
    tls: &Tls,
    pool: Arc<UpstreamPool>,
) {
    let opened = timeout(HANDSHAKE, Box::pin(open(context, stream, tls))).await;
    let metrics = &context.data_plane_metrics.service_proxy;
    let (stream, name) = match opened {
        Ok(Ok(opened)) => opened,
        Ok(Err(outcome)) => return metrics.connection(outcome),
        Err(_) => return metrics.connection("late"),
    };
    metrics.connection("open");
    if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
        requests_2(
            ClientConnection::new(context, from, pool, name, AmbiguityFlag::default()),
            stream,
        )
        .await;
    } else {
        let (stream, ambiguous) = FramingGuard::new(stream);
        requests_1(
            ClientConnection::new(context, from, pool, name, ambiguous),
            stream,
        )
        .await;
    }
}

/// TLS, for a name that is known. Nobody else is answered at all.
async fn open(
    context: &DataPlaneContext,
    stream: TcpStream,
    tls: &Tls,
) -> Result<(TlsStream<CoalescingStream>, SmolStr), &'static str> {
    // What broke off is nobody's fault here.
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
        // Nothing is said: the handshake is the answer.
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
            && (tls.has_wildcard || context.service_proxy.routes.known().wildcard.is_some()))
    {
        return Err("no certificate");
    }
    let stream = start
        .into_stream(tls.config.clone())
        .await
        .map_err(|_| "handshake failed")?;
    Ok((stream, name))
}

async fn requests_1(visit: ClientConnection, stream: FramingGuard<TlsStream<CoalescingStream>>) {
    let (context, visit) = (visit.context.clone(), Arc::new(visit));
    let service = service_fn(move |request: Request<Incoming>| answer(visit.clone(), request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_header_size(HEAD_BYTES_MAX)
        .max_buf_size(BUFFER_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    // Connections that may be upgraded are not among those that `accept::serve_until_shutdown` knows.
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => ended,
        () = context.service_proxy.shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    note(ended);
}

async fn requests_2(visit: ClientConnection, stream: TlsStream<CoalescingStream>) {
    let (context, visit) = (visit.context.clone(), Arc::new(visit));
    let service = service_fn(move |request: Request<Incoming>| answer(visit.clone(), request));
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_header_list_size(u32::try_from(HEAD_BYTES_MAX).unwrap_or(u32::MAX))
        .max_concurrent_streams(STREAMS_MAX)
        .keep_alive_interval(PING.0)
        .keep_alive_timeout(PING.1)
        .serve_connection(TokioIo::new(stream), service);
    note(accept::serve_until_shutdown(connection, &context.service_proxy.shutdown).await);
}

async fn answer(
    visit: Arc<ClientConnection>,
    request: Request<Incoming>,
) -> Result<forward::ProxyResponse, Infallible> {
    Ok(forward::serve(&visit, request).await)
}

/// Clients go away, and send nonsense; that is no news.
fn note(ended: Result<(), hyper::Error>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}
