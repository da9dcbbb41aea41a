//! Connections to services: kept for the next request, and driven by the request that uses them.
//!
//! Nothing else looks after a connection, so a request and its answer never wait for another task to be woken. What a service
//! did to a connection that nobody used is seen when it is taken up again.

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
use hyper::{
    Request, Response,
    body::{Body, Frame, Incoming, SizeHint},
    client::conn::{TrySendError, http1},
    http::uri::Authority,
};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::{
    net::{TcpStream, lookup_host},
    time::{Instant, timeout},
};

use super::body::{Error, UploadBody};
use crate::base::net::coalescing_stream::CoalescingStream;

/// Connections to one service that a worker keeps,
const SERVICE_IDLE_MAX: usize = 64;
/// and all workers to all services.
pub(super) const IDLE_MAX: usize = 1024;
/// How long a connection is kept that nobody uses.
const IDLE: Duration = Duration::from_mins(1);
/// What a service gets to take a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// Addresses of one service that are tried.
const ADDRESSES_MAX: usize = 4;

/// The connections of one worker that nobody uses.
pub(super) struct UpstreamPool(Mutex<Idle>);

struct Idle {
    /// The one that was used last is the last one.
    of: HashMap<Authority, VecDeque<(Instant, Box<UpstreamConnection>)>>,
    count: usize,
    max: usize,
}

impl Idle {
    fn take(&mut self, service: &Authority) -> Option<Box<UpstreamConnection>> {
        let pool = self.of.get_mut(service)?;
        let (since, connection) = pool.pop_back()?;
        self.count -= 1;
        if since.elapsed() < IDLE {
            return Some(connection);
        }
        // All before it are older.
        self.count -= pool.len();
        self.of.remove(service);
        None
    }

    fn keep(&mut self, connection: Box<UpstreamConnection>) {
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

    fn tidy(&mut self) {
        for pool in self.of.values_mut() {
            let old = pool
                .iter()
                .take_while(|(since, _)| since.elapsed() >= IDLE)
                .count();
            pool.drain(..old);
        }
        self.of.retain(|_, pool| !pool.is_empty());
        self.count = self.of.values().map(VecDeque::len).sum();
    }
}

/// A connection to a service.
struct UpstreamConnection {
    service: Authority,
    sender: http1::SendRequest<UploadBody>,
    connection: http1::Connection<TokioIo<CoalescingStream>, UploadBody>,
    ended: bool,
}

impl UpstreamConnection {
    async fn new(service: &Authority) -> Result<Self, Error> {
        let (sender, connection) =
            http1::handshake(TokioIo::new(connect(service).await?.into())).await?;
        Ok(Self {
            service: service.clone(),
            sender,
            connection,
            ended: false,
        })
    }

    /// Reads and writes what can be.
    fn drive(&mut self, cx: &mut Context<'_>) {
        if !self.ended {
            // What went wrong is told to the request.
            self.ended = Pin::new(&mut self.connection).poll(cx).is_ready();
        }
    }

    /// Whether it can take a request: the answer before was read to its end, and the service did not hang up.
    fn is_free(&mut self) -> bool {
        self.drive(&mut Context::from_waker(Waker::noop()));
        !self.ended && self.sender.is_ready()
    }

    async fn exchange(
        &mut self,
        request: Request<UploadBody>,
    ) -> Result<Response<Incoming>, TrySendError<Request<UploadBody>>> {
        let mut answered = pin!(self.sender.try_send_request(request));
        poll_fn(|cx| {
            self.drive(cx);
            answered.as_mut().poll(cx)
        })
        .await
    }
}

/// Connects to the first address of a service that takes it.
async fn connect(service: &Authority) -> Result<TcpStream, Error> {
    let host = service.host().trim_start_matches('[').trim_end_matches(']');
    let connected = timeout(CONNECT, async {
        let addresses: Vec<_> = lookup_host((host, service.port_u16().unwrap_or(80)))
            .await?
            .take(ADDRESSES_MAX)
            .collect();
        let each = CONNECT / u32::try_from(addresses.len().max(1)).unwrap_or(1);
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
    /// Keeps at most so many.
    pub(super) fn new(max: usize) -> Self {
        Self(Mutex::new(Idle {
            of: HashMap::new(),
            count: 0,
            max,
        }))
    }

    /// A service's answer. A request that a kept connection did not take goes over another one.
    pub(super) async fn ask(
        self: &Arc<Self>,
        service: &Authority,
        mut request: Request<UploadBody>,
    ) -> Result<Response<UpstreamBody>, Error> {
        loop {
            // Its own statement: the lock is not held while the connection is looked at.
            let kept = self.0.lock().take(service);
            let (mut connection, new) = match kept {
                Some(mut kept) => {
                    if !kept.is_free() {
                        continue;
                    }
                    (kept, false)
                }
                None => (
                    Box::new(Box::pin(UpstreamConnection::new(service)).await?),
                    true,
                ),
            };
            match connection.exchange(request).await {
                Ok(response) => {
                    let (parts, body) = response.into_parts();
                    return Ok(Response::from_parts(
                        parts,
                        UpstreamBody {
                            body,
                            over: Some((connection, self.clone())),
                        },
                    ));
                }
                Err(mut error) => match error.take_message() {
                    Some(untouched) if !new => request = untouched,
                    _ => return Err(error.into_error().into()),
                },
            }
        }
    }

    /// A service's answer over a connection that may become something else.
    pub(super) async fn ask_to_upgrade(
        service: &Authority,
        request: Request<UploadBody>,
    ) -> Result<Response<Incoming>, Error> {
        let UpstreamConnection {
            mut sender,
            connection,
            ..
        } = UpstreamConnection::new(service).await?;
        tokio::spawn(connection.with_upgrades());
        Ok(sender.send_request(request).await?)
    }

    /// Ends connections that nobody uses, every now and then.
    pub(super) async fn run(self: Arc<Self>) {
        let mut rounds = tokio::time::interval(IDLE);
        loop {
            rounds.tick().await;
            self.0.lock().tidy();
        }
    }
}

/// The body of an answer, with the connection that it comes over. Read to its end, it gives the connection back.
pub(super) struct UpstreamBody {
    body: Incoming,
    over: Option<(Box<UpstreamConnection>, Arc<UpstreamPool>)>,
}

impl From<Incoming> for UpstreamBody {
    /// A body whose connection something else looks after.
    fn from(body: Incoming) -> Self {
        Self { body, over: None }
    }
}

impl UpstreamBody {
    fn release(&mut self) {
        if let Some((mut connection, pool)) = self.over.take()
            && connection.is_free()
        {
            pool.0.lock().keep(connection);
        }
    }
}

impl Drop for UpstreamBody {
    fn drop(&mut self) {
        // Who knows its length may not ask for its end.
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
            && let Some((connection, _)) = &mut this.over
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
