//! Connections of HTTP clients: taken up to a bound, with TLS or without, and seen out at the end.
//!
//! Our own over hyper's connections, as a general server takes any number of them, and boxes what it serves.

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use futures_util::FutureExt;
use http::Request;
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
use tokio_util::sync::CancellationToken;

use super::body::{Body, Response};
use crate::base::net::{accept, accept::Listener};

/// Connections of one listener.
const CONNECTIONS_MAX: usize = 10_000;
/// How long a client may take to agree on TLS, and to send a request's headers.
const HEADERS_TIMEOUT: Duration = Duration::from_secs(10);
/// Requests that one HTTP/2 connection has in flight.
const STREAMS_MAX: u32 = 100;
/// How long requests in flight may take to finish when the server stops.
const DRAIN: Duration = Duration::from_secs(30);

/// What answers the requests of one connection.
pub trait Service:
    HttpService<Incoming, ResBody = Body, Error = Infallible, Future: Send> + Send + 'static
{
}

impl<S: HttpService<Incoming, ResBody = Body, Error = Infallible, Future: Send> + Send + 'static>
    Service for S
{
}

/// A service that calls `respond` for each request.
pub fn service<F: Future<Output = Response> + Send + 'static>(
    respond: impl Fn(Request<Incoming>) -> F + Send + 'static,
) -> impl Service {
    hyper::service::service_fn(move |request| respond(request).map(Ok::<_, Infallible>))
}

/// Serves who connects, as `service` says for each address, until it is stopped and what was begun is done. Whoever comes when
/// all places are taken is turned away.
pub async fn serve<S: Service>(
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    service: impl Fn(SocketAddr) -> S,
    shutdown: CancellationToken,
) {
    let tls = tls.map(TlsAcceptor::from);
    let begin = |stream: TcpStream, peer| {
        // Without it an answer waits for more to come. A connection that is gone already shows that soon enough.
        let _ = stream.set_nodelay(true);
        greet(stream, tls.clone(), service(peer), shutdown.clone())
    };
    take("requests", listener, &shutdown, begin).await;
}

/// The same on this machine alone: HTTP/1 without TLS.
pub async fn serve_local<L, S>(
    listener: L,
    service: impl Fn(L::Peer) -> S,
    shutdown: CancellationToken,
) where
    L: Listener<Stream = UnixStream>,
    S: Service,
{
    take(
        "requests of the operator",
        listener,
        &shutdown,
        |stream, peer| first(stream, service(peer), shutdown.clone()),
    )
    .await;
}

/// Begins with everybody who comes while there are places.
async fn take<L, F>(
    what: &'static str,
    listener: L,
    shutdown: &CancellationToken,
    begin: impl Fn(L::Stream, L::Peer) -> F,
) where
    L: Listener,
    F: Future<Output = ()> + Send + 'static,
{
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let take = |connections: &mut JoinSet<()>, stream, peer| {
        let Ok(place) = places.clone().try_acquire_owned() else {
            return;
        };
        let connection = begin(stream, peer);
        connections.spawn(async move {
            connection.await;
            drop(place);
        });
    };
    accept::accept_until_shutdown(what, listener, shutdown, DRAIN, take).await;
}

/// HTTP/1, or with TLS what the client asks for.
async fn greet(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    service: impl Service,
    shutdown: CancellationToken,
) {
    let Some(tls) = tls else {
        return first(stream, service, shutdown).await;
    };
    // Who does not speak TLS, or takes its time, learns nothing.
    let Ok(Ok(stream)) = timeout(HEADERS_TIMEOUT, tls.accept(stream)).await else {
        return;
    };
    if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS_MAX);
        // What a client does wrong ends its connection, and is nobody else's concern.
        let _ = accept::serve_until_shutdown(
            builder.serve_connection(TokioIo::new(stream), service),
            &shutdown,
        )
        .await;
    } else {
        first(stream, service, shutdown).await;
    }
}

async fn first<I>(stream: I, service: impl Service, shutdown: CancellationToken)
where
    TokioIo<I>: Read + Write + Unpin + 'static,
{
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        // One write for head and body: most bodies are small.
        .writev(false)
        .header_read_timeout(HEADERS_TIMEOUT);
    // What a client does wrong ends its connection, and is nobody else's concern.
    let _ = accept::serve_until_shutdown(
        builder.serve_connection(TokioIo::new(stream), service),
        &shutdown,
    )
    .await;
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        sync::Notify,
    };

    use super::*;

    #[tokio::test]
    async fn what_waits_is_answered_when_it_may_and_what_follows_after_it() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (begun, may) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (says, waits, shutdown) = (begun.clone(), may.clone(), CancellationToken::new());
        let service = move |_| {
            let (begun, may) = (says.clone(), waits.clone());
            super::service(move |request| {
                let (path, begun, may) =
                    (request.uri().path().to_owned(), begun.clone(), may.clone());
                async move {
                    if path.starts_with("/later") {
                        begun.notify_one();
                        may.notified().await;
                    }
                    Response::new(path.into())
                }
            })
        };
        let server = tokio::spawn(serve(listener, None, service, shutdown.clone()));
        let mut client = TcpStream::connect(address).await.unwrap();
        for path in ["/now", "/later", "/now", "/later/again", "/later", "/now"] {
            client
                .write_all(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n").as_bytes())
                .await
                .unwrap();
            if path.starts_with("/later") {
                begun.notified().await;
                may.notify_one();
            }
            let mut answer = Vec::new();
            while !answer.ends_with(format!("\r\n\r\n{path}").as_bytes()) {
                assert_ne!(client.read_buf(&mut answer).await.unwrap(), 0);
            }
        }
        shutdown.cancel();
        server.await.unwrap();
    }
}
