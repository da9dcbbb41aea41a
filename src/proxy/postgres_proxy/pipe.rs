//! Relays bytes between client and server.
//!
//! Optimized for many idle sessions: an idle session holds no buffer. Bytes are read into a
//! thread-local buffer and written at once; only what the receiver does not accept is kept, and
//! reading pauses until that is written.

use std::{
    cell::RefCell,
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Size of one read, and so the maximum number of bytes kept per direction.
const CHUNK: usize = 32 * 1024;
/// `ReadyForQuery` outside of a transaction: the session is idle.
const IDLE: [u8; 6] = *b"Z\0\0\0\x05I";

thread_local! {
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; CHUNK].into_boxed_slice());
}

/// The reason for the end of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PipeEnd {
    /// One side disconnected or failed.
    HungUp,
    /// Shutdown, while the session was idle.
    Stopped,
}

/// Relays bytes in both directions until one side disconnects or, once `stopping` resolves, the
/// session is idle.
///
/// `early` holds the bytes read from client and server during the login.
pub(super) async fn run<C, S>(
    client: &mut C,
    server: &mut S,
    early: (BytesMut, BytesMut),
    stopping: impl Future<Output = ()>,
) -> PipeEnd
where
    C: AsyncRead + AsyncWrite + Unpin,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut up = PipeDirection::new(early.0);
    let mut down = PipeDirection::new(early.1);
    let mut tail = ResponseTail { last: IDLE };
    if !up.kept.is_empty() || !down.kept.is_empty() {
        tail.client_sent();
    }
    let mut stopping = std::pin::pin!(stopping);
    let mut stopped = false;
    let mut deaf = false;
    poll_fn(|cx| {
        stopped = stopped || stopping.as_mut().poll(cx).is_ready();
        if !deaf {
            match up.poll(cx, client, server, |_| tail.client_sent()) {
                Poll::Ready(DirectionEnd::Reader) => return Poll::Ready(PipeEnd::HungUp),
                // The server has closed its receiving side; its remaining output is still relayed.
                Poll::Ready(DirectionEnd::Writer) => deaf = true,
                Poll::Pending => {}
            }
        }
        if down
            .poll(cx, server, client, |bytes| tail.server_sent(bytes))
            .is_ready()
        {
            return Poll::Ready(PipeEnd::HungUp);
        }
        if stopped && tail.last == IDLE && down.kept.is_empty() {
            Poll::Ready(PipeEnd::Stopped)
        } else {
            Poll::Pending
        }
    })
    .await
}

/// Last bytes that the server has sent since the client's last message.
struct ResponseTail {
    last: [u8; 6],
}

impl ResponseTail {
    fn client_sent(&mut self) {
        self.last = [0; 6];
    }

    fn server_sent(&mut self, bytes: &[u8]) {
        let new = &bytes[bytes.len().saturating_sub(6)..];
        self.last.copy_within(new.len().., 0);
        self.last[6 - new.len()..].copy_from_slice(new);
    }
}

/// One direction of a session.
struct PipeDirection {
    /// Bytes read and not yet written.
    kept: BytesMut,
    /// Whether bytes may remain in a buffer of the writer.
    unflushed: bool,
}

impl PipeDirection {
    fn new(kept: BytesMut) -> Self {
        Self {
            kept,
            unflushed: false,
        }
    }

    /// Relays available bytes. Ready when the reader has ended and all bytes are written, or on
    /// failure.
    fn poll<R, W>(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut R,
        to: &mut W,
        mut saw: impl FnMut(&[u8]),
    ) -> Poll<DirectionEnd>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        loop {
            while !self.kept.is_empty() {
                match ready!(Pin::new(&mut *to).poll_write(cx, &self.kept)) {
                    Ok(0) | Err(_) => return Poll::Ready(DirectionEnd::Writer),
                    Ok(written) => self.kept.advance(written),
                }
                self.unflushed = true;
            }
            self.kept = BytesMut::new();
            let read = SCRATCH.with_borrow_mut(|scratch| {
                let mut buffer = ReadBuf::new(scratch);
                ready!(Pin::new(&mut *from).poll_read(cx, &mut buffer)).ok();
                let bytes = buffer.filled();
                if !bytes.is_empty() {
                    saw(bytes);
                    self.kept = self.offer(cx, to, bytes);
                }
                Poll::Ready(bytes.len())
            });
            match read {
                Poll::Ready(0) => {
                    let _ = ready!(Pin::new(&mut *to).poll_flush(cx));
                    return Poll::Ready(DirectionEnd::Reader);
                }
                Poll::Ready(_) => {}
                Poll::Pending => {
                    if self.unflushed && Pin::new(&mut *to).poll_flush(cx).is_ready() {
                        self.unflushed = false;
                    }
                    return Poll::Pending;
                }
            }
        }
    }

    /// Writes without waiting and returns the rest. An error is reported by the next write.
    fn offer<W: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        to: &mut W,
        bytes: &[u8],
    ) -> BytesMut {
        self.unflushed = true;
        match Pin::new(to).poll_write(cx, bytes) {
            Poll::Ready(Ok(written)) => BytesMut::from(&bytes[written..]),
            Poll::Ready(Err(_)) | Poll::Pending => BytesMut::from(bytes),
        }
    }
}

/// The side that ended a direction.
enum DirectionEnd {
    /// The reader ended or failed.
    Reader,
    /// The writer failed.
    Writer,
}

#[cfg(test)]
mod tests {
    use std::{future::pending, time::Duration};

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, duplex},
        time::timeout,
    };

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn bytes_are_relayed_in_order_with_any_buffer_size() {
        for narrow in [1, 7, 4096, 1 << 20] {
            let (mut client, near) = duplex(narrow);
            let (far, mut server) = duplex(narrow.min(3000));
            let pipe = tokio::spawn(async move {
                let mut near = near;
                let mut far = far;
                run(
                    &mut near,
                    &mut far,
                    (BytesMut::from(&b"early"[..]), BytesMut::new()),
                    pending(),
                )
                .await
            });
            let sent: Vec<u8> = (0..100_000_u32)
                .map(|n| u8::try_from(n % 251).unwrap())
                .collect();
            let copy = sent.clone();
            let writer = tokio::spawn(async move {
                client.write_all(&copy).await.unwrap();
                client
            });
            let mut arrived = vec![0; sent.len() + 5];
            timeout(PATIENCE, server.read_exact(&mut arrived))
                .await
                .unwrap()
                .unwrap();
            assert!(
                arrived.starts_with(b"early") && arrived[5..] == sent,
                "{narrow}"
            );
            let mut client = writer.await.unwrap();
            // The last bytes of a server are delivered although it disconnects immediately.
            let farewell = async move { server.write_all(b"FATAL").await.unwrap() };
            let mut last = Vec::new();
            timeout(PATIENCE, async {
                tokio::join!(farewell, client.read_to_end(&mut last))
            })
            .await
            .unwrap()
            .1
            .unwrap();
            assert_eq!(
                (last.as_slice(), pipe.await.unwrap()),
                (&b"FATAL"[..], PipeEnd::HungUp)
            );
        }
    }

    #[tokio::test]
    async fn active_session_is_not_stopped() {
        let (mut client, mut near) = duplex(64);
        let (mut far, mut server) = duplex(64);
        let (stop, mut stopping) = tokio::sync::watch::channel(false);
        let pipe = tokio::spawn(async move {
            let stopping = async { stopping.wait_for(|stop| *stop).await.map(drop).unwrap() };
            run(&mut near, &mut far, Default::default(), stopping).await
        });
        client.write_all(b"Q....select").await.unwrap();
        server.read_exact(&mut [0; 11]).await.unwrap();
        stop.send(true).unwrap();
        // The session is not idle within a transaction.
        for (answer, last) in [
            (&b"C....Z\0\0\0\x05T"[..], false),
            (b"C....Z\0\0\0", false),
            (b"\x05I", true),
        ] {
            server.write_all(answer).await.unwrap();
            client.read_exact(&mut vec![0; answer.len()]).await.unwrap();
            if !last {
                assert!(!pipe.is_finished());
            }
        }
        assert_eq!(
            timeout(PATIENCE, pipe).await.unwrap().unwrap(),
            PipeEnd::Stopped
        );
    }

    #[test]
    fn response_tail_is_independent_of_read_boundaries() {
        for cut in 0..=6 {
            let mut tail = ResponseTail { last: [0; 6] };
            tail.server_sent(&[b"DataRow", &IDLE[..cut]].concat());
            tail.server_sent(&IDLE[cut..]);
            assert_eq!(tail.last, IDLE, "{cut}");
        }
    }
}
