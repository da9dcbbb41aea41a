//! Bodies of requests and responses, and reading a body up to a size limit.

use std::{
    error::Error as StdError,
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, combinators::UnsyncBoxBody};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::timeout;

use crate::platform::error::Error;

/// Default limit of a request body, in bytes.
pub(super) const BYTES_MAX: usize = 1 << 20;

/// Bytes of a body beyond its limit that are read and dropped.
const DRAINED_BYTES_MAX: usize = 64 << 20;
/// Longest time in which they are read.
const DRAIN_MAX: Duration = Duration::from_secs(10);

/// The error of a body that ends early.
pub type BodyError = Box<dyn StdError + Send + Sync>;

/// A response.
pub type Response = hyper::Response<Body>;

/// The body of a request or response. Bodies in memory need no box.
#[derive(Debug)]
pub enum Body {
    /// A complete body in memory.
    Whole(Bytes),
    /// A streamed body.
    Arriving(UnsyncBoxBody<Bytes, BodyError>),
}

impl Body {
    /// Returns an empty body.
    pub const fn empty() -> Self {
        Self::Whole(Bytes::new())
    }

    /// Wraps another body.
    pub fn new<B: HttpBody<Data = Bytes, Error: Into<BodyError>> + Send + 'static>(
        body: B,
    ) -> Self {
        if body.is_end_stream() {
            Self::empty()
        } else {
            Self::Arriving(body.map_err(Into::into).boxed_unsync())
        }
    }
}

impl Default for Body {
    fn default() -> Self {
        Self::empty()
    }
}

impl<T: Into<Bytes>> From<T> for Body {
    fn from(whole: T) -> Self {
        Self::Whole(whole.into())
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut *self {
            Self::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Arriving(body) => Pin::new(body).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Arriving(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Arriving(body) => body.size_hint(),
        }
    }
}

/// Reads a body that was rejected, up to a bound. Clients that send a body before they read the
/// response would see a broken connection otherwise.
fn drain(mut body: Body) {
    if body.is_end_stream() || matches!(body, Body::Whole(_)) {
        return;
    }
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

/// Reads the whole body. Rejects it as soon as its declared or received size exceeds `bytes_max`.
pub async fn read(mut body: Body, bytes_max: usize) -> Result<Bytes, Error> {
    if body.size_hint().lower() > bytes_max as u64 {
        drain(body);
        return Err(Error::TooLarge { bytes_max });
    }
    let mut whole = BytesMut::new();
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let frame = frame.map_err(|_| Error::invalid("body", "could not be read to its end"))?;
        if let Ok(data) = frame.into_data() {
            if whole.len() + data.len() > bytes_max {
                drain(body);
                return Err(Error::TooLarge { bytes_max });
            }
            whole.extend_from_slice(&data);
        }
    }
    Ok(whole.freeze())
}
