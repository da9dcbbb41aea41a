//! The body of a request, read at most once.

use bytes::Bytes;

use super::{body, body::Body};
use crate::platform::error::Error;

/// A body that is not read yet, or that was read for an earlier step.
pub(super) enum RequestBody {
    Pending(Body),
    Read(Bytes),
}

impl Default for RequestBody {
    fn default() -> Self {
        Self::Read(Bytes::new())
    }
}

impl RequestBody {
    /// Returns the body, of at most 1 MiB.
    pub(super) async fn read(&mut self) -> Result<Bytes, Error> {
        self.read_within(body::BYTES_MAX).await
    }

    /// Returns the body, of at most `bytes_max` bytes.
    pub(super) async fn read_within(&mut self, bytes_max: usize) -> Result<Bytes, Error> {
        let bytes = match std::mem::take(self) {
            Self::Pending(pending) => body::read(pending, bytes_max).await?,
            Self::Read(bytes) => bytes,
        };
        *self = Self::Read(bytes.clone());
        Ok(bytes)
    }

    /// Returns the body, read or not.
    pub(super) fn into_body(self) -> Body {
        match self {
            Self::Pending(body) => body,
            Self::Read(bytes) => Body::from(bytes),
        }
    }

    /// Returns the bytes if the body was read, else an empty slice.
    pub(super) fn as_read(&self) -> &[u8] {
        match self {
            Self::Pending(_) => &[],
            Self::Read(bytes) => bytes,
        }
    }
}
