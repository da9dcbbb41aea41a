//! Request and response bodies with a stall timeout. Each holds its capacity permit until it ends.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use gantry_base::clock::Clock;
use http_body_util::{BodyExt, Either, Empty, Full};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::{
    sync::Notify,
    time::{Instant, Sleep, sleep_until, timeout},
};

use super::{
    capacity::{CapacityKey, CapacityPermit, ProxyCapacity, UnfinishedBody},
    directory::RunningService,
    rejection::RequestRejection,
    upstream_pool::UpstreamBody,
};

/// Longest time without progress.
const STALL_TIMEOUT: Duration = Duration::from_mins(5);

/// Error of a body.
pub(super) type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// Request body sent to an upstream.
pub(super) type UploadBody = Either<Empty<Bytes>, TimedBody<ClientBody, Option<SentSignal>>>;

/// Response body sent to a client.
pub(super) type DownloadBody = Either<Full<Bytes>, TimedBody<UpstreamBody, Option<HeldByResponse>>>;

/// Held until a response has ended: its share of the capacity, and the use of a service that Gantry
/// runs.
pub(super) type HeldByResponse = (CapacityPermit, Option<Box<dyn RunningService>>);

/// Notifies when a request body was sent completely or dropped.
pub(super) struct SentSignal(pub(super) Arc<Notify>);

impl Drop for SentSignal {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

/// Returns a complete body in memory.
pub(super) fn full(text: impl Into<Bytes>) -> DownloadBody {
    Either::Left(Full::new(text.into()))
}

/// A body made no progress for too long.
#[derive(Debug, thiserror::Error)]
#[error("the body stood still for {} s", STALL_TIMEOUT.as_secs())]
pub(super) struct BodyTimedOut;

/// A body with a stall timeout. `held` is dropped when the body ends.
pub(super) struct TimedBody<B, H> {
    body: B,
    held: H,
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<B, H> TimedBody<B, H> {
    pub(super) fn new(body: B, held: H) -> Self {
        Self {
            body,
            held,
            deadline: None,
        }
    }
}

impl<B, H> Body for TimedBody<B, H>
where
    B: Body<Data = Bytes, Error: Into<BodyError>> + Unpin,
    H: Unpin + Default,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        match Pin::new(&mut this.body).poll_frame(cx) {
            Poll::Ready(frame) => {
                this.deadline = None;
                if frame.is_none() {
                    this.held = H::default();
                }
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
            // Most frames are available at once, so the timer is only created when one is not.
            Poll::Pending => {
                let deadline = this
                    .deadline
                    .get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + STALL_TIMEOUT)));
                deadline
                    .as_mut()
                    .poll(cx)
                    .map(|()| Some(Err(BodyTimedOut.into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A failure to receive a client's body.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientBodyError {
    /// Invalid framing, or the client disconnected.
    #[error("the client's body could not be read: {0}")]
    Unreadable(#[source] hyper::Error),
    /// The body stalled and was aborted to free capacity for another request.
    #[error("the client's body stalled, and others needed the room")]
    Ended,
    /// The body is larger than the service accepts.
    #[error("the client's body is too large")]
    TooLarge,
}

impl ClientBodyError {
    /// Returns the response to the client.
    pub(super) const fn rejection(&self) -> RequestRejection {
        match self {
            Self::Unreadable(_) => RequestRejection::Malformed,
            Self::Ended => RequestRejection::Stalled,
            Self::TooLarge => RequestRejection::TooLarge,
        }
    }
}

/// Bytes of a body beyond its limit that are read and dropped.
const DRAINED_BYTES_MAX: usize = 64 << 20;
/// Longest time in which they are read.
const DRAIN_MAX: Duration = Duration::from_secs(10);

/// Reads a body that was rejected, up to a bound. Clients that send a body before they read the
/// response would see a broken connection otherwise.
pub(super) fn drain(mut body: Incoming) {
    tokio::spawn(timeout(DRAIN_MAX, async move {
        let mut left = DRAINED_BYTES_MAX;
        while let Some(Ok(frame)) = body.frame().await {
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            match left.checked_sub(bytes) {
                Some(rest) => left = rest,
                None => return,
            }
        }
    }));
}

/// The body of a client's request, counted as unfinished until it ends. Trailers are dropped, as
/// RFC 9110 §6.5.1 permits, because an upstream could merge them into header fields that the proxy
/// did not check.
pub(super) struct ClientBody {
    /// First bytes, read before the request is forwarded.
    first: Option<Bytes>,
    /// The rest. `None`: the body was larger than its limit.
    rest: Option<Incoming>,
    /// Bytes that may still arrive.
    bytes_left: usize,
    unfinished: Option<UnfinishedBody>,
    clock: Clock,
}

impl ClientBody {
    pub(super) const fn new(
        body: Incoming,
        unfinished: UnfinishedBody,
        bytes_max: usize,
        clock: Clock,
    ) -> Self {
        Self {
            first: None,
            rest: Some(body),
            bytes_left: bytes_max,
            unfinished: Some(unfinished),
            clock,
        }
    }

    /// Waits for the first bytes, then counts the request as in flight. Returns `None` if the body
    /// is empty.
    pub(super) async fn start(
        mut self,
        capacity: &Arc<ProxyCapacity>,
        capacity_key: CapacityKey,
    ) -> Result<Option<(Self, CapacityPermit)>, RequestRejection> {
        loop {
            let Ok(frame) = timeout(STALL_TIMEOUT, self.frame()).await else {
                return Err(RequestRejection::Stalled);
            };
            let Some(frame) = frame else { return Ok(None) };
            let first = frame
                .map_err(|error| error.rejection())?
                .into_data()
                .unwrap_or_default();
            if !first.is_empty() {
                self.first = Some(first);
                break;
            }
        }
        let held = match &self.unfinished {
            Some(unfinished) => unfinished.request(self.clock.ticks())?,
            // The whole body has arrived.
            None => capacity.request(capacity_key, self.clock.ticks())?,
        };
        Ok(Some((self, held)))
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = ClientBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ClientBodyError>>> {
        let this = &mut *self;
        if let Some(first) = this.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        let Some(rest) = &mut this.rest else {
            return Poll::Ready(Some(Err(ClientBodyError::TooLarge)));
        };
        let polled = Pin::new(&mut *rest).poll_frame(cx);
        let is_complete = rest.is_end_stream();
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            let Some(left) = this.bytes_left.checked_sub(bytes) else {
                this.unfinished = None;
                if let Some(rest) = this.rest.take() {
                    drain(rest);
                }
                return Poll::Ready(Some(Err(ClientBodyError::TooLarge)));
            };
            this.bytes_left = left;
        }
        if let Some(unfinished) = &this.unfinished {
            match &polled {
                Poll::Pending => unfinished.waits(cx, this.clock.ticks()),
                Poll::Ready(Some(Ok(frame)))
                    if frame.data_ref().is_some_and(|data| !data.is_empty()) =>
                {
                    unfinished.moved();
                }
                Poll::Ready(_) => {}
            }
            if unfinished.is_ended() {
                return Poll::Ready(Some(Err(ClientBodyError::Ended)));
            }
        }
        match polled {
            Poll::Ready(Some(Ok(frame))) if frame.is_data() => {
                if is_complete {
                    this.unfinished = None;
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                Poll::Ready(Some(Err(ClientBodyError::Unreadable(error))))
            }
            Poll::Ready(_) => {
                this.unfinished = None;
                Poll::Ready(None)
            }
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.rest.as_ref().is_some_and(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.as_ref().map_or(SizeHint::new(), Body::size_hint);
        let first = self.first.as_ref().map_or(0, |first| first.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(first));
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(first));
        }
        hint
    }
}
