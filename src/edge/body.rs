//! Bodies on their way through: bounded in time while they stand still, and holding what they take until they end.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{Either, Empty, Full, Limited};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::{
    sync::Notify,
    time::{Instant, Sleep, sleep_until},
};

use super::links::Arriving;

/// How long a body may stand still.
const STILL: Duration = Duration::from_mins(5);

/// What went wrong with a body.
pub(super) type Error = Box<dyn std::error::Error + Send + Sync>;

/// What is sent to a service.
pub(super) type Upload = Either<Empty<Bytes>, Limited<Moving<Incoming, Option<Sent>>>>;

/// What is sent to a client.
pub(super) type Download = Either<Full<Bytes>, Moving<Arriving, Option<super::InFlight>>>;

/// Tells when a request was sent, or given up.
pub(super) struct Sent(pub(super) Arc<Notify>);

impl Drop for Sent {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

/// A body of ours.
pub(super) fn full(text: impl Into<Bytes>) -> Download {
    Either::Left(Full::new(text.into()))
}

/// A body that stood still for too long.
#[derive(Debug, thiserror::Error)]
#[error("the body stood still for {} s", STILL.as_secs())]
pub(super) struct StoodStill;

/// A body that must keep moving, and what is held until it ends.
pub(super) struct Moving<B, H> {
    body: B,
    held: H,
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<B, H> Moving<B, H> {
    pub(super) fn new(body: B, held: H) -> Self {
        Self { body, held, deadline: None }
    }
}

impl<B, H> Body for Moving<B, H>
where
    B: Body<Data = Bytes, Error = hyper::Error> + Unpin,
    H: Unpin + Default,
{
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let this = &mut *self;
        match Pin::new(&mut this.body).poll_frame(cx) {
            Poll::Ready(frame) => {
                this.deadline = None;
                if frame.is_none() {
                    this.held = H::default();
                }
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
            // Most frames are there when they are asked for: only one that is not needs a timer.
            Poll::Pending => {
                let deadline = this.deadline.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + STILL)));
                deadline.as_mut().poll(cx).map(|()| Some(Err(StoodStill.into())))
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
