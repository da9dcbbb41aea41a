//! Connections of HTTP clients: taken up to a bound, with TLS or without, and seen out at the end.
//!
//! Our own over hyper's connections, as a general server takes any number of them, and boxes what it serves.

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use axum::http::Request;
use hyper::{
    body::Incoming,
    rt::{Read, Write},
    server::conn::{http1, http2},
    service::HttpService,
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ServerConfig;
use tokio::{
    net::{TcpListener, TcpStream, UnixStream},
    sync::Semaphore,
    task::JoinSet,
    time::timeout,
};
use tokio_rustls::TlsAcceptor;

use super::body::{Body, Response};
pub use crate::accepting::Stop;
use crate::accepting::{self, Listen};

/// Connections of one listener.
const CONNECTIONS_MAX: usize = 10_000;
/// How long a client may take to agree on TLS, and to send a request's headers.
const HEADERS_TIMEOUT: Duration = Duration::from_secs(10);
/// Requests that one HTTP/2 connection has in flight.
const STREAMS_MAX: u32 = 100;
/// How long requests in flight may take to finish when the server stops.
const DRAIN: Duration = Duration::from_secs(30);

/// What answers the requests of one connection.
pub trait Service: HttpService<Incoming, ResBody = Body, Error = Infallible, Future: Send> + Send + 'static {}

impl<S: HttpService<Incoming, ResBody = Body, Error = Infallible, Future: Send> + Send + 'static> Service for S {}

/// An answer to every request, from the function that gives it.
pub fn answering<F: Future<Output = Response> + Send>(answer: impl Fn(Request<Incoming>) -> F + Send + 'static) -> impl Service {
    hyper::service::service_fn(move |request| {
        let answer = answer(request);
        async move { Ok::<_, Infallible>(answer.await) }
    })
}

/// Serves who connects, as `service` says for each address, until it is stopped and what was begun is done. Whoever comes when
/// all places are taken is turned away.
pub async fn serve<S: Service>(listener: TcpListener, tls: Option<Arc<ServerConfig>>, service: impl Fn(SocketAddr) -> S, stop: Stop) {
    let (tls, places) = (tls.map(TlsAcceptor::from), Arc::new(Semaphore::new(CONNECTIONS_MAX)));
    let take = |connections: &mut JoinSet<()>, stream: TcpStream, peer| {
        let Ok(place) = places.clone().try_acquire_owned() else { return };
        let (tls, service, stop) = (tls.clone(), service(peer), stop.clone());
        connections.spawn(async move {
            // Without it an answer waits for more to come. A connection that is gone already shows that soon enough.
            let _ = stream.set_nodelay(true);
            greet(stream, tls, service, stop).await;
            drop(place);
        });
    };
    accepting::run(listener, stop.asked(), ("requests", DRAIN), take).await;
}

/// The same on this machine alone: HTTP/1 without TLS.
pub async fn serve_local<L, S>(listener: L, service: impl Fn(L::Peer) -> S, stop: Stop)
where
    L: Listen<Stream = UnixStream>,
    S: Service,
{
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let take = |connections: &mut JoinSet<()>, stream, peer| {
        let Ok(place) = places.clone().try_acquire_owned() else { return };
        let (service, stop) = (service(peer), stop.clone());
        connections.spawn(async move {
            first(stream, service, stop).await;
            drop(place);
        });
    };
    accepting::run(listener, stop.asked(), ("requests of the operator", DRAIN), take).await;
}

/// HTTP/1, or with TLS what the client asks for.
async fn greet(stream: TcpStream, tls: Option<TlsAcceptor>, service: impl Service, stop: Stop) {
    let Some(tls) = tls else { return first(stream, service, stop).await };
    // Who does not speak TLS, or takes its time, learns nothing.
    let Ok(Ok(stream)) = timeout(HEADERS_TIMEOUT, tls.accept(stream)).await else { return };
    if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.timer(TokioTimer::new()).max_concurrent_streams(STREAMS_MAX);
        // What a client does wrong ends its connection, and is nobody else's concern.
        let _ = accepting::see_out(builder.serve_connection(TokioIo::new(stream), service), stop.asked()).await;
    } else {
        first(stream, service, stop).await;
    }
}

async fn first<I>(stream: I, service: impl Service, stop: Stop)
where
    TokioIo<I>: Read + Write + Unpin + 'static,
{
    let mut builder = http1::Builder::new();
    builder.timer(accepting::ConnectionTimer::default()).header_read_timeout(HEADERS_TIMEOUT);
    // What a client does wrong ends its connection, and is nobody else's concern.
    let _ = accepting::see_out(builder.serve_connection(TokioIo::new(stream), service), stop.asked()).await;
}
