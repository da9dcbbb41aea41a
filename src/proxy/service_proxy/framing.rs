//! Detects requests of an HTTP/1 connection that have both `Transfer-Encoding` and
//! `Content-Length`.
//!
//! hyper 1.12 accepts such a request: it removes `Content-Length` and closes the connection
//! afterwards, which satisfies RFC 9112 §6.1. A proxy in front may have used the other length, so
//! the request is rejected with 400 instead, which hyper alone cannot do because the removed field
//! is not visible. The attack suite requires that. After a chunked body or an upgrade nothing is
//! parsed, because the connection is not reused.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Longest line prefix that is kept. The relevant field names are shorter; hyper limits the rest.
const LINE_BYTES_MAX: usize = 64;

/// Set once an ambiguous request was read from a connection.
#[derive(Debug, Clone, Default)]
pub(super) struct AmbiguityFlag(Arc<AtomicBool>);

impl AmbiguityFlag {
    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A connection that checks its bytes while they are read.
pub(super) struct FramingGuard<S> {
    stream: S,
    framing: FramingParser,
}

impl<S> FramingGuard<S> {
    pub(super) fn new(stream: S) -> (Self, AmbiguityFlag) {
        let ambiguous = AmbiguityFlag::default();
        (
            Self {
                stream,
                framing: FramingParser::new(ambiguous.clone()),
            },
            ambiguous,
        )
    }
}

/// Position of the next byte within the requests of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FramingState {
    /// In a head.
    Head,
    /// In a body with this many bytes left.
    Body(u64),
    /// After a request with an untracked end.
    Beyond,
}

pub(super) struct FramingParser {
    at: FramingState,
    /// Prefix of the current line of a head.
    line: Vec<u8>,
    first_line: bool,
    length: Option<u64>,
    chunked: bool,
    upgrade: bool,
    ambiguous: AmbiguityFlag,
}

impl FramingParser {
    pub(super) fn new(ambiguous: AmbiguityFlag) -> Self {
        let line = Vec::with_capacity(LINE_BYTES_MAX);
        Self {
            at: FramingState::Head,
            line,
            first_line: true,
            length: None,
            chunked: false,
            upgrade: false,
            ambiguous,
        }
    }

    pub(super) fn see(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match self.at {
                FramingState::Beyond => return,
                FramingState::Body(left) => {
                    let here = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                    bytes = &bytes[here..];
                    self.at = match left - here as u64 {
                        0 => FramingState::Head,
                        left => FramingState::Body(left),
                    };
                }
                FramingState::Head => {
                    let end = bytes.iter().position(|byte| *byte == b'\n');
                    let part = &bytes[..end.unwrap_or(bytes.len())];
                    let room = LINE_BYTES_MAX - self.line.len();
                    self.line.extend_from_slice(&part[..part.len().min(room)]);
                    bytes = end.map_or(&[], |end| &bytes[end + 1..]);
                    if end.is_some() {
                        self.end_line();
                    }
                }
            }
        }
    }

    fn end_line(&mut self) {
        let line = self.line.strip_suffix(b"\r").unwrap_or(&self.line);
        if line.is_empty() {
            // Empty lines before a request line are ignored.
            if !self.first_line {
                self.end_head();
            }
        } else if self.first_line {
            self.first_line = false;
        } else if let Some(colon) = line.iter().position(|byte| *byte == b':') {
            let name = &line[..colon];
            let value = line[colon + 1..].trim_ascii();
            if name.eq_ignore_ascii_case(b"content-length") {
                // hyper rejects a value that is not a number. A value longer than the kept prefix
                // is treated as ambiguous.
                self.length = std::str::from_utf8(value)
                    .ok()
                    .and_then(|text| text.parse().ok())
                    .or(Some(0));
                self.chunked |= self.line.len() == LINE_BYTES_MAX;
            } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
                self.chunked = true;
            } else if name.eq_ignore_ascii_case(b"upgrade") {
                self.upgrade = true;
            }
        }
        self.line.clear();
    }

    fn end_head(&mut self) {
        if self.chunked && self.length.is_some() {
            self.ambiguous.0.store(true, Ordering::Relaxed);
        }
        self.at = match self.length {
            _ if self.chunked || self.upgrade => FramingState::Beyond,
            Some(length) if length > 0 => FramingState::Body(length),
            _ => FramingState::Head,
        };
        (self.first_line, self.length, self.chunked, self.upgrade) = (true, None, false, false);
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for FramingGuard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let this = &mut *self;
        ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
        this.framing.see(&buf.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FramingGuard<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the result is independent of how the bytes are split into reads.
    fn is_ambiguous(text: &str) -> bool {
        let seen = [1, 2, 7, text.len()].map(|size| {
            let ambiguous = AmbiguityFlag::default();
            let mut framing = FramingParser::new(ambiguous.clone());
            text.as_bytes()
                .chunks(size)
                .for_each(|part| framing.see(part));
            ambiguous.is_set()
        });
        assert!(seen.iter().all(|one| *one == seen[0]), "{text}");
        seen[0]
    }

    #[test]
    fn request_with_two_lengths_is_detected() {
        for text in [
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding:chunked\r\ncontent-length:0\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\n\r\nPOST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: x\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nabcdPOST / HTTP/1.1\nContent-Length: 5\nTransfer-Encoding: x\n\n",
            "POST / HTTP/1.1\r\nUpgrade: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 000000000000000000000000000000000000000000000000000000000000005\r\n\r\n",
            "\r\nPOST / HTTP/1.1\r\nContent-Length: 5\r\nX: y\r\nTransfer-Encoding: chunked\r\n\r\n",
        ] {
            assert!(is_ambiguous(text), "{text}");
        }
    }

    #[test]
    fn bodies_are_not_parsed_as_heads() {
        let both = "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n";
        for text in [
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(3),
            "POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nabcde".repeat(2),
            format!(
                "POST / HTTP/1.1\r\nContent-Length: {}\r\n\r\n{both}",
                both.len()
            ),
            format!("GET / HTTP/1.1\r\nUpgrade: websocket\r\n\r\n{both}"),
            format!(
                "GET /?{} HTTP/1.1\r\nX-Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
                "a".repeat(500)
            ),
        ] {
            assert!(!is_ambiguous(&text), "{text}");
        }
    }
}
