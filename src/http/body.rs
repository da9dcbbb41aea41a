//! Reading a request's body within its bound.

use axum::body::{Body, HttpBody};
use bytes::{Bytes, BytesMut};
use std::{future::poll_fn, pin::Pin};

use crate::error::Error;

/// Largest body an operation reads, in bytes, unless it says otherwise.
pub(super) const BYTES_MAX: usize = 1 << 20;

/// Reads the whole body, or refuses it once it is over `bytes_max`, declared or not.
pub(super) async fn read(mut body: Body, bytes_max: usize) -> Result<Bytes, Error> {
    if body.size_hint().lower() > bytes_max as u64 {
        return Err(Error::TooLarge { bytes_max });
    }
    let mut whole = BytesMut::new();
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let frame = frame.map_err(|_| Error::invalid("body", "could not be read to its end"))?;
        if let Ok(data) = frame.into_data() {
            if whole.len() + data.len() > bytes_max {
                return Err(Error::TooLarge { bytes_max });
            }
            whole.extend_from_slice(&data);
        }
    }
    Ok(whole.freeze())
}
