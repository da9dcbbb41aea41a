//! Connections of HTTP clients: taken up to a bound, with TLS or without, and seen out at the end.
//!
//! Our own over hyper's connections, as a general server takes any number of them, and boxes what it serves.

use std::{
    cell::Cell,
    convert::Infallible,
    future::{poll_fn, ready},
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use axum::http::Request;
use futures_util::{FutureExt, future::Either};
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
pub use crate::base::net::accept::Stop;
use crate::base::net::{accept, accept::Listener, coalescing_stream::CoalescingStream};

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

/// An answer to every request, from the function that gives it.
///
/// What needs not wait is answered within the call. What the request held is free then when the connection looks for more to
/// read, which it does right after, and is read into again.
pub fn answering<F: Future<Output = Response> + Send + 'static>(
    answer: impl Fn(Request<Incoming>) -> F + Send + 'static,
) -> impl Service {
    // Where a request is worked on, for the next one.
    let place = Cell::new(None::<Pin<Box<Option<F>>>>);
    hyper::service::service_fn(move |request| {
        let mut working = place.take().unwrap_or_else(|| Box::pin(None));
        working.set(Some(answer(request)));
        // If it has to wait, whoever will be woken asks again at once.
        match working
            .as_mut()
            .as_pin_mut()
            .and_then(FutureExt::now_or_never)
        {
            Some(response) => {
                working.set(None);
                place.set(Some(working));
                Either::Left(ready(Ok::<_, Infallible>(response)))
            }
            None => Either::Right(poll_fn(move |cx| match working.as_mut().as_pin_mut() {
                Some(answer) => answer.poll(cx).map(Ok),
                None => Poll::Pending,
            })),
        }
    })
}

/// Serves who connects, as `service` says for each address, until it is stopped and what was begun is done. Whoever comes when
/// all places are taken is turned away.
pub async fn serve<S: Service>(
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    service: impl Fn(SocketAddr) -> S,
    stop: Stop,
) {
    let tls = tls.map(TlsAcceptor::from);
    let begin = |stream: TcpStream, peer| {
        // Without it an answer waits for more to come. A connection that is gone already shows that soon enough.
        let _ = stream.set_nodelay(true);
        greet(stream.into(), tls.clone(), service(peer), stop.clone())
    };
    take("requests", listener, &stop, begin).await;
}

/// The same on this machine alone: HTTP/1 without TLS.
pub async fn serve_local<L, S>(listener: L, service: impl Fn(L::Peer) -> S, stop: Stop)
where
    L: Listener<Stream = UnixStream>,
    S: Service,
{
    take(
        "requests of the operator",
        listener,
        &stop,
        |stream, peer| first(stream, service(peer), stop.clone()),
    )
    .await;
}

/// Begins with everybody who comes while there are places.
async fn take<L, F>(
    what: &'static str,
    listener: L,
    stop: &Stop,
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
    accept::run(listener, stop.asked(), (what, DRAIN), take).await;
}

/// HTTP/1, or with TLS what the client asks for.
async fn greet(
    stream: CoalescingStream,
    tls: Option<TlsAcceptor>,
    service: impl Service,
    stop: Stop,
) {
    let Some(tls) = tls else {
        return first(stream, service, stop).await;
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
        let _ = accept::see_out(
            builder.serve_connection(TokioIo::new(stream), service),
            stop.asked(),
        )
        .await;
    } else {
        first(stream, service, stop).await;
    }
}

async fn first<I>(stream: I, service: impl Service, stop: Stop)
where
    TokioIo<I>: Read + Write + Unpin + 'static,
{
    let mut builder = http1::Builder::new();
    builder
        .timer(accept::ConnectionTimer::default())
        .header_read_timeout(HEADERS_TIMEOUT);
    // What a client does wrong ends its connection, and is nobody else's concern.
    let _ = accept::see_out(
        builder.serve_connection(TokioIo::new(stream), service),
        stop.asked(),
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
        let (says, waits, stop) = (begun.clone(), may.clone(), Stop::default());
        let service = move |_| {
            let (begun, may) = (says.clone(), waits.clone());
            answering(move |request| {
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
        let server = tokio::spawn(serve(listener, None, service, stop.clone()));
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
        stop.stop();
        server.await.unwrap();
    }
}
