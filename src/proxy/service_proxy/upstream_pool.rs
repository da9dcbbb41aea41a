//! Pool of idle HTTP/1 connections to upstreams.
//!
//! The request that uses a connection also polls it, so that a request needs no task switch
//! (decision 0077). A connection that the upstream closed while idle is detected when it is taken
//! from the pool.

use std::{
    collections::{HashMap, VecDeque},
    future::poll_fn,
    io,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use gantry_base::{net::coalescing_stream::CoalescingStream, repeat};
use hyper::{
    Method, Request, Response,
    body::{Body, Frame, Incoming, SizeHint},
    client::conn::{TrySendError, http1},
    header::CONTENT_LENGTH,
    http::uri::Authority,
};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream, lookup_host},
    time::{Instant, timeout},
};

use super::{
    body::{BodyError, UploadBody},
    upstreams::{Upstream, UpstreamAddress},
};

/// Maximum number of idle connections to one upstream per worker thread.
const SERVICE_IDLE_MAX: usize = 64;
/// Maximum number of idle connections of all worker threads.
pub(super) const IDLE_MAX: usize = 1024;
/// Time after which an idle connection is closed.
const IDLE_TIMEOUT: Duration = Duration::from_mins(1);
/// Timeout for connecting to an upstream.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of addresses of one upstream that are tried.
const ADDRESSES_MAX: usize = 4;

/// Idle connections of one worker thread.
pub(super) struct UpstreamPool(Mutex<Idle>);

struct Idle {
    /// By upstream, least recently used first.
    of: HashMap<UpstreamAddress, VecDeque<(Instant, Box<UpstreamConnection>)>>,
    count: usize,
    max: usize,
}

impl Idle {
    fn take(&mut self, service: &UpstreamAddress) -> Option<Box<UpstreamConnection>> {
        let pool = self.of.get_mut(service)?;
        let (since, connection) = pool.pop_back()?;
        self.count -= 1;
        if since.elapsed() < IDLE_TIMEOUT {
            return Some(connection);
        }
        // All other connections of this upstream have been idle for longer.
        self.count -= pool.len();
        self.of.remove(service);
        None
    }

    fn put(&mut self, connection: Box<UpstreamConnection>) {
        if self.count >= self.max {
            return;
        }
        let pool = match self.of.get_mut(&connection.service) {
            Some(pool) => pool,
            None => self.of.entry(connection.service.clone()).or_default(),
        };
        if pool.len() < SERVICE_IDLE_MAX {
            pool.push_back((Instant::now(), connection));
            self.count += 1;
        }
    }

    fn remove_expired(&mut self) {
        for pool in self.of.values_mut() {
            let old = pool
                .iter()
                .take_while(|(since, _)| since.elapsed() >= IDLE_TIMEOUT)
                .count();
            pool.drain(..old);
        }
        self.of.retain(|_, pool| !pool.is_empty());
        self.count = self.of.values().map(VecDeque::len).sum();
    }
}

/// A connection to an upstream.
pub(super) struct UpstreamConnection {
    service: UpstreamAddress,
    sender: http1::SendRequest<UploadBody>,
    connection: http1::Connection<TokioIo<UpstreamStream>, UploadBody>,
    ended: bool,
}

impl UpstreamConnection {
    async fn new(service: &UpstreamAddress) -> Result<Self, BodyError> {
        let (sender, connection) = http1::handshake(TokioIo::new(connect(service).await?)).await?;
        Ok(Self {
            service: service.clone(),
            sender,
            connection,
            ended: false,
        })
    }

    /// Sends an upgrade request, and hands the connection over to its task.
    pub(super) async fn upgrade(
        mut self,
        request: Request<UploadBody>,
    ) -> Result<Response<Incoming>, BodyError> {
        tokio::spawn(self.connection.with_upgrades());
        Ok(self.sender.send_request(request).await?)
    }

    /// Reads and writes without blocking.
    fn drive(&mut self, cx: &mut Context<'_>) {
        if !self.ended {
            // The error is reported to the request.
            self.ended = Pin::new(&mut self.connection).poll(cx).is_ready();
        }
    }

    /// Returns whether the connection can take a request: the previous response was read completely
    /// and the upstream has not closed the connection.
    fn is_free(&mut self) -> bool {
        self.drive(&mut Context::from_waker(Waker::noop()));
        !self.ended && self.sender.is_ready()
    }

    async fn exchange(
        &mut self,
        request: Request<UploadBody>,
    ) -> Result<Response<Incoming>, TrySendError<Request<UploadBody>>> {
        let mut response = pin!(self.sender.try_send_request(request));
        poll_fn(|cx| {
            self.drive(cx);
            response.as_mut().poll(cx)
        })
        .await
    }
}

/// The reason for which a request has no response.
pub(super) enum SendFailure {
    /// No connection was made, so that the request can be sent elsewhere.
    Unsent(Box<Request<UploadBody>>, BodyError),
    /// The upstream may have received the request.
    Failed(BodyError),
}

impl SendFailure {
    pub(super) fn into_error(self) -> BodyError {
        match self {
            Self::Unsent(_, error) | Self::Failed(error) => error,
        }
    }
}

/// A connection to an upstream, without HTTP.
enum UpstreamStream {
    Tcp(CoalescingStream),
    Unix(UnixStream),
}

impl AsyncRead for UpstreamStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for UpstreamStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// Connects to an upstream.
async fn connect(address: &UpstreamAddress) -> Result<UpstreamStream, BodyError> {
    match address {
        UpstreamAddress::Tcp(authority) => {
            Ok(UpstreamStream::Tcp(connect_tcp(authority).await?.into()))
        }
        UpstreamAddress::Unix(socket) => {
            let connected = timeout(CONNECT_TIMEOUT, socket.connect()).await;
            Ok(UpstreamStream::Unix(connected.map_err(io::Error::from)??))
        }
        UpstreamAddress::Port(port) => {
            let connected = timeout(CONNECT_TIMEOUT, port.connect()).await;
            let stream = connected.map_err(io::Error::from)??;
            Ok(UpstreamStream::Tcp(stream.into()))
        }
    }
}

impl Upstream {
    /// Returns whether a connection can be opened within a time, without sending a byte.
    pub async fn accepts_connections(&self, patience: Duration) -> bool {
        let connected = timeout(patience, connect(self.address())).await;
        matches!(connected, Ok(Ok(_)))
    }
}

/// Connects to the first address of an upstream that accepts.
async fn connect_tcp(service: &Authority) -> Result<TcpStream, BodyError> {
    let host = service.host().trim_start_matches('[').trim_end_matches(']');
    let connected = timeout(CONNECT_TIMEOUT, async {
        let addresses: Vec<_> = lookup_host((host, service.port_u16().unwrap_or(80)))
            .await?
            .take(ADDRESSES_MAX)
            .collect();
        let each = CONNECT_TIMEOUT / u32::try_from(addresses.len().max(1)).unwrap_or(1);
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for address in addresses {
            match timeout(each, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => last = error,
                Err(late) => last = late.into(),
            }
        }
        Err(last)
    });
    let stream = connected.await.map_err(io::Error::from)??;
    stream.set_nodelay(true)?;
    Ok(stream)
}

impl UpstreamPool {
    /// Creates a pool of at most `max` idle connections.
    pub(super) fn new(max: usize) -> Self {
        Self(Mutex::new(Idle {
            of: HashMap::new(),
            count: 0,
            max,
        }))
    }

    /// Sends a request and returns the head of the response. A request that a reused connection
    /// rejected unsent is retried on another connection.
    pub(super) async fn send(
        self: &Arc<Self>,
        service: &UpstreamAddress,
        mut request: Request<UploadBody>,
    ) -> Result<Response<UpstreamBody>, SendFailure> {
        let is_head = request.method() == Method::HEAD;
        loop {
            // In a statement of its own, so that the lock is released before the connection is
            // polled.
            let idle = self.0.lock().take(service);
            let (mut connection, new) = match idle {
                Some(mut idle) => {
                    if !idle.is_free() {
                        continue;
                    }
                    (idle, false)
                }
                None => match Box::pin(UpstreamConnection::new(service)).await {
                    Ok(connection) => (Box::new(connection), true),
                    Err(error) => return Err(SendFailure::Unsent(Box::new(request), error)),
                },
            };
            match connection.exchange(request).await {
                Ok(response) => {
                    let (parts, body) = response.into_parts();
                    // Without a length, servers such as PostgREST close the connection after the
                    // response to HEAD. That may be noticed too late by the next request.
                    let is_reused = !is_head || parts.headers.contains_key(CONTENT_LENGTH);
                    let via = is_reused.then(|| (connection, self.clone()));
                    return Ok(Response::from_parts(parts, UpstreamBody { body, via }));
                }
                Err(mut error) => match error.take_message() {
                    Some(untouched) if !new => request = untouched,
                    _ => return Err(SendFailure::Failed(error.into_error().into())),
                },
            }
        }
    }

    /// Opens a connection that is not pooled.
    pub(super) async fn connect(
        service: &UpstreamAddress,
    ) -> Result<UpstreamConnection, BodyError> {
        UpstreamConnection::new(service).await
    }

    /// Closes expired connections periodically.
    pub(super) async fn run(self: Arc<Self>) {
        repeat::every(IDLE_TIMEOUT, || async {
            self.0.lock().remove_expired();
        })
        .await;
    }
}

/// The body of an upstream's response. When it was read to its end, the connection returns to the
/// pool.
pub(super) struct UpstreamBody {
    body: Incoming,
    via: Option<(Box<UpstreamConnection>, Arc<UpstreamPool>)>,
}

impl From<Incoming> for UpstreamBody {
    /// A body of a connection that another task drives.
    fn from(body: Incoming) -> Self {
        Self { body, via: None }
    }
}

impl UpstreamBody {
    fn release(&mut self) {
        if let Some((mut connection, pool)) = self.via.take()
            && connection.is_free()
        {
            pool.0.lock().put(connection);
        }
    }
}

impl Drop for UpstreamBody {
    fn drop(&mut self) {
        // A caller that knows the length may drop the body without polling for its end.
        if self.body.is_end_stream() {
            self.release();
        }
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = &mut *self;
        let mut polled = Pin::new(&mut this.body).poll_frame(cx);
        if polled.is_pending()
            && let Some((connection, _)) = &mut this.via
        {
            connection.drive(cx);
            polled = Pin::new(&mut this.body).poll_frame(cx);
        }
        if matches!(polled, Poll::Ready(None)) {
            this.release();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{Either, Empty};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
        task::JoinSet,
    };

    use super::*;

    /// Answers each request with this head, and with the number of its connection as a field.
    async fn serve(listener: TcpListener, head: &'static str) {
        let mut connections = JoinSet::new();
        for number in 1.. {
            let (mut stream, _) = listener.accept().await.unwrap();
            connections.spawn(async move {
                let mut request = [0; 1024];
                while stream.read(&mut request).await.is_ok_and(|read| read > 0) {
                    let answer = format!("HTTP/1.1 200 OK\r\nx-number: {number}\r\n{head}\r\n");
                    stream.write_all(answer.as_bytes()).await.unwrap();
                }
            });
        }
    }

    /// Returns the connections by which a server is reached for requests with these methods.
    async fn connections(head: &'static str, methods: [Method; 2]) -> Vec<String> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let authority = listener.local_addr().unwrap().to_string();
        let address = UpstreamAddress::Tcp(authority.parse().unwrap());
        let mut server = JoinSet::new();
        server.spawn(serve(listener, head));
        let pool = Arc::new(UpstreamPool::new(4));
        let mut numbers = Vec::new();
        for method in methods {
            let body: UploadBody = Either::Left(Empty::new());
            let request = Request::builder().method(method).uri("/").body(body);
            let response = pool.send(&address, request.unwrap()).await;
            let response = response.map_err(SendFailure::into_error).unwrap();
            let number = response.headers()["x-number"].to_str().unwrap();
            numbers.push(number.to_owned());
        }
        numbers
    }

    #[tokio::test]
    async fn connection_is_not_reused_after_a_response_to_head_without_length() {
        let (get, head) = (Method::GET, Method::HEAD);
        let sized = "content-length: 0\r\n";
        for (fields, methods, expected) in [
            (sized, [get.clone(), get.clone()], ["1", "1"]),
            (sized, [head.clone(), get.clone()], ["1", "1"]),
            ("", [head, get], ["1", "2"]),
        ] {
            assert_eq!(connections(fields, methods).await, expected, "{fields}");
        }
    }
}
