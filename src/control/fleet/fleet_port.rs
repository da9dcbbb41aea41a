//! The fleet port: requests and streams from other nodes, over HTTP/2 and mutual TLS.
//!
//! A `CONNECT` request opens a stream to a proxy of this node. Any other request is one of the API
//! that another node passes on. Requests without the fields that describe a client are rejected.

use std::{convert::Infallible, pin::pin, sync::Arc, time::Duration};

use gantry_base::net::accept;
use http::{Method, Request, StatusCode};
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time::{interval, timeout},
};
use tokio_rustls::TlsAcceptor;
use uuid::Uuid;

use super::{
    forwarded_client, node_tls,
    peer_connections::{
        CONNECTION_WINDOW_BYTES, PING_INTERVAL, PING_TIMEOUT, STREAM_WINDOW_BYTES, STREAMS_MAX,
    },
};
use crate::{
    control::{context::ControlContext, proxies},
    platform::http::{Api, Body, Response},
    proxy::{
        node_streams::{ForwardedClient, StreamProtocol},
        postgres_proxy::{self, PostgresProxyContext, SessionKind},
        service_proxy::{self, ServiceProxyContext},
    },
};

/// Connections of all other nodes.
const CONNECTIONS_MAX: usize = 4096;
/// Time limit of the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for requests and streams at shutdown.
const DRAIN: Duration = Duration::from_secs(10);
/// The interval at which the membership of a connected node is checked.
const MEMBERSHIP_REVIEW: Duration = Duration::from_secs(5);

/// The services of the port.
#[derive(Clone)]
struct FleetPort {
    context: ControlContext,
    api: Api,
    postgres: PostgresProxyContext,
    services: ServiceProxyContext,
}

/// Accepts connections of other nodes until [`Fleet::shutdown`](super::state::Fleet::shutdown).
pub async fn serve(context: ControlContext, api: Api, listener: TcpListener) {
    let port = Arc::new(FleetPort {
        api,
        postgres: proxies::postgres_proxy(&context),
        services: proxies::service_proxy(&context),
        context: context.clone(),
    });
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let take = |connections: &mut JoinSet<()>, stream, _| {
        let Ok(permit) = permits.clone().try_acquire_owned() else {
            return;
        };
        let port = port.clone();
        connections.spawn(async move {
            serve_connection(&port, stream).await;
            drop(permit);
        });
    };
    let shutdown = &context.fleet.shutdown;
    accept::accept_until_shutdown("the fleet", listener, shutdown, DRAIN, take).await;
}

async fn serve_connection(port: &Arc<FleetPort>, stream: TcpStream) {
    let context = &port.context;
    let Some(tls) = context.fleet.tls.read().clone() else {
        return;
    };
    // A failure means that the other side has disconnected, which the next read reports.
    let _ = stream.set_nodelay(true);
    let accepting = TlsAcceptor::from(tls.server.clone()).accept(stream);
    let stream = match timeout(HANDSHAKE_TIMEOUT, accepting).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%error, "TLS handshake of the fleet port failed");
            return;
        }
        Err(_) => return,
    };
    let (_, session) = stream.get_ref();
    let node = session.peer_certificates().and_then(node_tls::node_of);
    // Clients of other protocols are not served, even with a certificate.
    let Some(node) = node.filter(|_| session.alpn_protocol() == Some(node_tls::ALPN)) else {
        return;
    };
    if !is_member(context, node).await {
        tracing::warn!(%node, "a node that was removed tried to connect");
        return;
    }
    let serving = port.clone();
    let service = service_fn(move |request| {
        let port = serving.clone();
        async move { Ok::<_, Infallible>(respond(&port, request).await) }
    });
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .enable_connect_protocol()
        .max_concurrent_streams(STREAMS_MAX * 2)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    let removed = async {
        let mut ticks = interval(MEMBERSHIP_REVIEW);
        loop {
            ticks.tick().await;
            let nodes = context.fleet.nodes();
            if !nodes.iter().any(|known| known.id == node) && !is_member(context, node).await {
                return;
            }
        }
    };
    tokio::select! {
        ended = accept::serve_until_shutdown(connection, &context.fleet.shutdown) => {
            if let Err(error) = ended {
                tracing::debug!(%node, %error, "connection of a node ended");
            }
        }
        () = removed => tracing::info!(%node, "closed the connection of a node that was removed"),
    }
}

/// Whether a node is registered and not removed. The control database is asked, so that a new node
/// need not wait. While it cannot be reached, the nodes read last are members.
async fn is_member(context: &ControlContext, node: Uuid) -> bool {
    let sql = "select from nodes where id = $1 and removed_at is null";
    match context.db.query(sql, &[&node]).await {
        Ok(rows) => !rows.is_empty(),
        Err(_) => context.fleet.node(node).is_some(),
    }
}

async fn respond(port: &FleetPort, mut request: Request<Incoming>) -> Response {
    if request.method() == Method::CONNECT {
        let Some(client) = forwarded_client::read_client(request.headers()) else {
            return status(StatusCode::BAD_REQUEST);
        };
        let upgraded = hyper::upgrade::on(&mut request);
        let port = port.clone();
        tokio::spawn(async move {
            match upgraded.await {
                Ok(stream) => serve_stream(&port, TokioIo::new(stream), client).await,
                Err(error) => tracing::debug!(%error, "stream of a node was not opened"),
            }
        });
        return status(StatusCode::OK);
    }
    match forwarded_client::take_peer(request.headers_mut()) {
        Some(peer) => port.api.serve_forwarded(request.map(Body::new), peer).await,
        None => status(StatusCode::BAD_REQUEST),
    }
}

fn status(status: StatusCode) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

async fn serve_stream(
    port: &FleetPort,
    stream: TokioIo<hyper::upgrade::Upgraded>,
    client: ForwardedClient,
) {
    let context = &port.context;
    let served = async {
        match client.protocol {
            StreamProtocol::PostgresDirect | StreamProtocol::PostgresCancel => {
                let kind = SessionKind::Direct;
                postgres_proxy::serve_forwarded(&port.postgres, stream, client, kind).await;
            }
            StreamProtocol::PostgresPooled => {
                let kind = SessionKind::Pooled;
                postgres_proxy::serve_forwarded(&port.postgres, stream, client, kind).await;
            }
            StreamProtocol::Http1 | StreamProtocol::Http2 => {
                service_proxy::serve_forwarded(&port.services, stream, client).await;
            }
        }
    };
    let mut served = pin!(served);
    tokio::select! {
        () = &mut served => return,
        () = context.fleet.shutdown.cancelled() => {}
    }
    // Sessions end by themselves when the proxies stop.
    let _ = timeout(DRAIN, served).await;
}
