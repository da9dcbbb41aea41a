//! The HTTP server: a bounded number of connections, with or without TLS, and graceful shutdown.
//!
//! Uses hyper's connections directly: general servers neither limit connections nor avoid boxing
//! the service.

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use futures_util::FutureExt;
use gantry_base::net::accept::{self, Listener};
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

/// Largest number of connections of one listener.
const CONNECTIONS_MAX: usize = 10_000;
/// Time limit of the TLS handshake, and of the headers of a request.
const HEADERS_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest number of concurrent requests of an HTTP/2 connection.
const STREAMS_MAX: u32 = 100;
/// Time limit of requests in flight at shutdown.
const DRAIN: Duration = Duration::from_secs(30);

/// The service of one connection.
pub trait Service:
    HttpService<Incoming, ResBody = Body, Error = Infallible, Future: Send> + Send + 'static
{
}

impl<S: HttpService<Incoming, ResBody = Body, Error = Infallible, Future: Send> + Send + 'static>
    Service for S
{
}

/// Returns a service that calls `respond` for each request.
pub fn service<F: Future<Output = Response> + Send + 'static>(
    respond: impl Fn(Request<Incoming>) -> F + Send + 'static,
) -> impl Service {
    hyper::service::service_fn(move |request| respond(request).map(Ok::<_, Infallible>))
}

/// Serves connections until shutdown is requested and requests in flight have completed. `service`
/// returns the service of a client address. Connections over the limit are closed.
pub async fn serve<S: Service>(
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    service: impl Fn(SocketAddr) -> S,
    shutdown: CancellationToken,
) {
    let tls = tls.map(TlsAcceptor::from);
    let begin = |stream: TcpStream, peer| {
        // Without it, the kernel delays small responses. Fails only for closed connections.
        let _ = stream.set_nodelay(true);
        negotiate_tls(stream, tls.clone(), service(peer), shutdown.clone())
    };
    accept_loop("requests", listener, &shutdown, begin).await;
}

/// Serves HTTP/1 without TLS on a Unix socket, as [`serve`] does.
pub async fn serve_local<L, S>(
    listener: L,
    service: impl Fn(L::Peer) -> S,
    shutdown: CancellationToken,
) where
    L: Listener<Stream = UnixStream>,
    S: Service,
{
    accept_loop("operator requests", listener, &shutdown, |stream, peer| {
        serve_http1(stream, service(peer), shutdown.clone())
    })
    .await;
}

/// Accepts connections up to the limit.
async fn accept_loop<L, F>(
    what: &'static str,
    listener: L,
    shutdown: &CancellationToken,
    begin: impl Fn(L::Stream, L::Peer) -> F,
) where
    L: Listener,
    F: Future<Output = ()> + Send + 'static,
{
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let take = |connections: &mut JoinSet<()>, stream, peer| {
        let Ok(permit) = permits.clone().try_acquire_owned() else {
            return;
        };
        let connection = begin(stream, peer);
        connections.spawn(async move {
            connection.await;
            drop(permit);
        });
    };
    accept::accept_until_shutdown(what, listener, shutdown, DRAIN, take).await;
}

/// Serves HTTP/1, or the protocol negotiated by TLS.
async fn negotiate_tls(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    service: impl Service,
    shutdown: CancellationToken,
) {
    let Some(tls) = tls else {
        return serve_http1(stream, service, shutdown).await;
    };
    // A failed or slow handshake closes the connection without a response.
    let Ok(Ok(stream)) = timeout(HEADERS_TIMEOUT, tls.accept(stream)).await else {
        return;
    };
    if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS_MAX);
        // Protocol errors of a client only close its connection.
        let _ = accept::serve_until_shutdown(
            builder.serve_connection(TokioIo::new(stream), service),
            &shutdown,
        )
        .await;
    } else {
        serve_http1(stream, service, shutdown).await;
    }
}

/// Serves HTTP/1.
async fn serve_http1<I>(stream: I, service: impl Service, shutdown: CancellationToken)
where
    TokioIo<I>: Read + Write + Unpin + 'static,
{
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        // Writes head and body at once: most bodies are small.
        .writev(false)
        .header_read_timeout(HEADERS_TIMEOUT);
    // Protocol errors of a client only close its connection.
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
    async fn pipelined_requests_are_answered_in_order() {
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
