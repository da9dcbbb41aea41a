//! Reads and writes single messages of the protocol, limited in size. Used for the login.

use std::io;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Longest message during a login.
const MESSAGE_BYTES_MAX: usize = 64 * 1024;

/// A stream with a read buffer.
pub(super) struct MessageStream<S> {
    stream: S,
    inbox: BytesMut,
}

impl<S: AsyncRead + AsyncWrite + Unpin> MessageStream<S> {
    pub(super) fn new(stream: S) -> Self {
        Self {
            stream,
            inbox: BytesMut::new(),
        }
    }

    /// Reads the next message, including its type and length.
    pub(super) async fn message(&mut self) -> io::Result<BytesMut> {
        let length = self.until_message().await?;
        Ok(self.inbox.split_to(length))
    }

    /// Reads until the next message is complete, and leaves it in the buffer. Returns its length.
    pub(super) async fn until_message(&mut self) -> io::Result<usize> {
        loop {
            if let Some(length) = message_length(&self.inbox)? {
                return Ok(length);
            }
            self.inbox.reserve(1024);
            if self.stream.read_buf(&mut self.inbox).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    pub(super) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await?;
        self.stream.flush().await
    }

    /// Returns the stream and the bytes that were read beyond the last message.
    pub(super) fn into_parts(self) -> (S, BytesMut) {
        (self.stream, self.inbox)
    }
}

/// Returns the length of the first message in the buffer, if the message is complete.
fn message_length(inbox: &[u8]) -> io::Result<Option<usize>> {
    let Some((mut header, _)) = inbox.split_at_checked(5) else {
        return Ok(None);
    };
    header.advance(1);
    let length = usize::try_from(header.get_u32()).unwrap_or(usize::MAX);
    if !(4..MESSAGE_BYTES_MAX).contains(&length) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "a message of an impossible length",
        ));
    }
    Ok((inbox.len() > length).then_some(length + 1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[tokio::test]
    async fn messages_are_split_at_their_lengths() {
        let (near, far) = tokio::io::duplex(3);
        let mut message_stream = MessageStream::new(near);
        let sent: &[u8] = b"R\0\0\0\x08\0\0\0\x0aZ\0\0\0\x05Irest!";
        let writer = tokio::spawn(async move {
            let mut far = far;
            far.write_all(sent).await.unwrap();
        });
        assert_eq!(message_stream.message().await.unwrap(), &sent[..9]);
        assert_eq!(message_stream.message().await.unwrap(), &sent[9..15]);
        assert_eq!(
            message_stream.message().await.unwrap_err().kind(),
            io::ErrorKind::InvalidData,
            "`rest!` has no length that could be"
        );
        writer.await.unwrap();
    }

    proptest! {
        #[test]
        fn message_length_is_within_the_buffer(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(Some(length)) = message_length(&bytes) {
                prop_assert!(length <= bytes.len() && length >= 5);
            }
        }
    }
}
