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
    framing::{Ambiguous, Watched},
    links::Links,
    request::Client,
    tls,
    tls::{ACME_ALPN, Tls},
};
use crate::{
    base::net::{accept, coalescing_stream::Wire},
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
pub(super) struct Visit {
    pub(super) context: DataPlaneContext,
    pub(super) peer: SocketAddr,
    /// The name it asked for with TLS, in lower case.
    pub(super) name: SmolStr,
    /// What leads to services from here.
    pub(super) links: Arc<Links>,
    /// What services are told of it.
    pub(super) told: Client,
    /// Whether it sent a request that can be read in two ways.
    pub(super) ambiguous: Ambiguous,
    /// The connection's place among all. WebSockets keep it.
    pub(super) place: Arc<ConnectionPlace>,
}

impl Visit {
    fn new(
        context: &DataPlaneContext,
        (peer, place): (SocketAddr, ConnectionPlace),
        links: Arc<Links>,
        name: SmolStr,
        ambiguous: Ambiguous,
    ) -> Self {
        let told = Client::new(peer.ip().to_canonical(), &name);
        Self {
            context: context.clone(),
            peer,
            links,
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
    links: Arc<Links>,
) {
    let opened = timeout(HANDSHAKE, Box::pin(open(context, stream, tls))).await;
    let tally = &context.data_plane_metrics.service_proxy;
    let (stream, name) = match opened {
        Ok(Ok(opened)) => opened,
        Ok(Err(outcome)) => return tally.connection(outcome),
        Err(_) => return tally.connection("late"),
    };
    tally.connection("open");
    if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
        requests_2(
            Visit::new(context, from, links, name, Ambiguous::default()),
            stream,
        )
        .await;
    } else {
        let (stream, ambiguous) = Watched::new(stream);
        requests_1(Visit::new(context, from, links, name, ambiguous), stream).await;
    }
}

/// TLS, for a name that is known. Nobody else is answered at all.
async fn open(
    context: &DataPlaneContext,
    stream: TcpStream,
    tls: &Tls,
) -> Result<(TlsStream<Wire>, SmolStr), &'static str> {
    // What broke off is nobody's fault here.
    let _ = stream.set_nodelay(true);
    let start = LazyConfigAcceptor::new(Acceptor::default(), Wire::from(stream))
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
            .edge
            .names
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
    let site = context.edge.names.find(&name).await.ok_or("unknown name")?;
    if site.certificate.is_none()
        && !(site.own_domain && (tls.has_wildcard || context.edge.names.known().wildcard.is_some()))
    {
        return Err("no certificate");
    }
    let stream = start
        .into_stream(tls.config.clone())
        .await
        .map_err(|_| "handshake failed")?;
    Ok((stream, name))
}

async fn requests_1(visit: Visit, stream: Watched<TlsStream<Wire>>) {
    let (context, visit) = (visit.context.clone(), Arc::new(visit));
    let service = service_fn(move |request: Request<Incoming>| answer(visit.clone(), request));
    let connection = http1::Builder::new()
        .timer(accept::ConnectionTimer::default())
        .header_read_timeout(HEAD)
        .max_header_size(HEAD_BYTES_MAX)
        .max_buf_size(BUFFER_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    // Connections that may be upgraded are not among those that `accept::see_out` knows.
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => ended,
        () = context.edge.stopping() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    note(ended);
}

async fn requests_2(visit: Visit, stream: TlsStream<Wire>) {
    let (context, visit) = (visit.context.clone(), Arc::new(visit));
    let service = service_fn(move |request: Request<Incoming>| answer(visit.clone(), request));
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_header_list_size(u32::try_from(HEAD_BYTES_MAX).unwrap_or(u32::MAX))
        .max_concurrent_streams(STREAMS_MAX)
        .keep_alive_interval(PING.0)
        .keep_alive_timeout(PING.1)
        .serve_connection(TokioIo::new(stream), service);
    note(accept::see_out(connection, context.edge.stopping()).await);
}

async fn answer(
    visit: Arc<Visit>,
    request: Request<Incoming>,
) -> Result<forward::Answer, Infallible> {
    Ok(forward::serve(&visit, request).await)
}

/// Clients go away, and send nonsense; that is no news.
fn note(ended: Result<(), hyper::Error>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}
