//! A TCP stream that merges small vectored writes into one `send`.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

/// Largest vectored write that is copied into one buffer, in bytes. Covers a response head and most
/// bodies.
const COALESCED_BYTES_MAX: usize = 8 * 1024;

/// A TCP stream for HTTP connections.
///
/// An HTTP library writes a head and a body as two slices. `writev` costs the kernel half a
/// microsecond more than `send`, even for one slice, which is more than copying a small message
/// (decision 0077).
#[derive(Debug)]
pub struct CoalescingStream {
    stream: TcpStream,
    /// Buffer for merged writes, reused between calls.
    buffer: Vec<u8>,
}

impl From<TcpStream> for CoalescingStream {
    fn from(stream: TcpStream) -> Self {
        Self {
            stream,
            buffer: Vec::new(),
        }
    }
}

impl AsyncRead for CoalescingStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for CoalescingStream {
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
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let Self { stream, buffer } = &mut *self;
        let stream = Pin::new(stream);
        match bufs {
            [one] => stream.poll_write(cx, one),
            several
                if several.iter().map(|piece| piece.len()).sum::<usize>() > COALESCED_BYTES_MAX =>
            {
                stream.poll_write_vectored(cx, several)
            }
            several => {
                buffer.clear();
                for piece in several {
                    buffer.extend_from_slice(piece);
                }
                stream.poll_write(cx, buffer)
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
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
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    #[tokio::test]
    async fn vectored_writes_arrive_in_order() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut far = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let mut wire = CoalescingStream::from(listener.accept().await.unwrap().0);
        for sizes in [
            &[5][..],
            &[600, 14],
            &[600, 14],
            &[1, 0, 8191],
            &[600, 20_000],
            &[3],
        ] {
            let pieces: Vec<Vec<u8>> = (b'a'..)
                .zip(sizes)
                .map(|(letter, size)| vec![letter; *size])
                .collect();
            let slices: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
            let whole = pieces.concat();
            let written = wire.write_vectored(&slices).await.unwrap();
            assert!(
                written == whole.len() || sizes.len() > 1 && written > 8192,
                "{sizes:?}: {written}"
            );
            let mut read = vec![0; written];
            far.read_exact(&mut read).await.unwrap();
            assert!(read == whole[..written], "{sizes:?}");
        }
    }
}
