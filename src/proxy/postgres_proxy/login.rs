//! Relays the login between client and server until the session is ready.
//!
//! The SCRAM messages are forwarded unchanged; they do not disclose the password. The proxy checks
//! that the server completes SCRAM-SHA-256 before it accepts the client.

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{
    message_stream::MessageStream,
    pooled,
    rejection::{ConnectionRejection, sqlstate},
    startup::CancelKey,
};

/// Result of a login, other than an I/O error.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LoginOutcome {
    /// The login succeeded. The key cancels queries of the session.
    In(Option<CancelKey>),
    /// The server rejected the login, and the client has received the error.
    Out {
        /// The password is wrong, or the role must not log in.
        wrong_password: bool,
    },
    /// The server did not follow the protocol. The client has not received a response.
    Refused(ConnectionRejection),
}

/// Relays messages until the server is ready for queries or rejects the login. The rejections of a
/// pooler are those of PostgreSQL for `pooled_user`.
pub(super) async fn relay<C, S>(
    client: &mut MessageStream<C>,
    server: &mut MessageStream<S>,
    pooled_user: Option<&str>,
) -> std::io::Result<LoginOutcome>
where
    C: AsyncRead + AsyncWrite + Unpin,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut exchange = ScramExchange::default();
    let mut key = None;
    // Consecutive messages to the client are sent together.
    let mut outbox = BytesMut::new();
    loop {
        let message = server.message().await?;
        let step = exchange.see(&message);
        if message[0] == b'K' {
            key = CancelKey::read(&message[5..]);
        }
        match step {
            RelayStep::Refuse => return Ok(LoginOutcome::Refused(ConnectionRejection::Unguarded)),
            RelayStep::Pass => outbox.extend_from_slice(&message),
            RelayStep::Answer => {
                outbox.extend_from_slice(&message);
                client.send(&outbox.split()).await?;
                let answer = client.message().await?;
                if answer[0] != b'p' {
                    return Ok(LoginOutcome::Refused(ConnectionRejection::Malformed(
                        "expected an answer to the server's challenge",
                    )));
                }
                server.send(&answer).await?;
            }
            RelayStep::Ready => {
                outbox.extend_from_slice(&message);
                client.send(&outbox).await?;
                return Ok(LoginOutcome::In(key));
            }
            RelayStep::End
                if !exchange.is_open()
                    && pooled_user.is_some()
                    && pooled::is_wrong_password(&message[5..]) =>
            {
                let user = pooled_user.unwrap_or_default().to_owned();
                outbox.extend_from_slice(&ConnectionRejection::WrongPassword(user).message());
                client.send(&outbox).await?;
                return Ok(LoginOutcome::Out {
                    wrong_password: true,
                });
            }
            RelayStep::End => {
                outbox.extend_from_slice(&message);
                client.send(&outbox).await?;
                let wrong_password = !exchange.is_open()
                    && matches!(sqlstate(&message[5..]), Some(b"28P01" | b"28000"));
                return Ok(LoginOutcome::Out { wrong_password });
            }
        }
    }
}

/// Action for a message of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RelayStep {
    Pass,
    /// Forward it; the client must answer.
    Answer,
    /// Forward it; the session is ready.
    Ready,
    /// Forward it; the login failed.
    End,
    /// Reject the server.
    Refuse,
}

/// State of the SCRAM exchange.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum ScramExchange {
    #[default]
    Initial,
    Requested,
    Challenged,
    /// The server has verified the client's proof and sent its own.
    Proven,
    Open,
}

impl ScramExchange {
    fn is_open(self) -> bool {
        self == Self::Open
    }

    /// Advances the state. `message` includes its five-byte header.
    fn see(&mut self, message: &[u8]) -> RelayStep {
        let kind = message[0];
        let body = message.get(5..).unwrap_or_default();
        let (next, step) = match (*self, kind, request(kind, body)) {
            (_, b'E', _) => (*self, RelayStep::End),
            (_, b'N', _) | (Self::Initial, b'v', _) | (Self::Open, b'S' | b'K', _) => {
                (*self, RelayStep::Pass)
            }
            // Only `SCRAM-SHA-256` without channel binding: the channel ends at the proxy.
            (Self::Initial, _, Some((10, b"SCRAM-SHA-256\0\0"))) => {
                (Self::Requested, RelayStep::Answer)
            }
            (Self::Requested, _, Some((11, _))) => (Self::Challenged, RelayStep::Answer),
            (Self::Challenged, _, Some((12, _))) => (Self::Proven, RelayStep::Pass),
            (Self::Proven, _, Some((0, _))) => (Self::Open, RelayStep::Pass),
            (Self::Open, b'Z', _) => (*self, RelayStep::Ready),
            _ => (*self, RelayStep::Refuse),
        };
        *self = next;
        step
    }
}

/// Returns the code and the data of an authentication request.
fn request(kind: u8, body: &[u8]) -> Option<(u32, &[u8])> {
    let (code, rest) = body.split_first_chunk()?;
    (kind == b'R').then_some((u32::from_be_bytes(*code), rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 4).unwrap();
        [&[kind][..], &length.to_be_bytes(), body].concat()
    }

    fn asks(code: u32, rest: &[u8]) -> Vec<u8> {
        message(b'R', &[&code.to_be_bytes()[..], rest].concat())
    }

    const SCRAM: &[u8] = b"SCRAM-SHA-256\0\0";

    #[test]
    fn complete_scram_exchange_is_accepted() {
        let mut exchange = ScramExchange::default();
        let dialogue = [
            (message(b'v', b"\0\x03\0\0\0\0\0\0"), RelayStep::Pass),
            (asks(10, SCRAM), RelayStep::Answer),
            (asks(11, b"r=x"), RelayStep::Answer),
            (asks(12, b"v=x"), RelayStep::Pass),
            (asks(0, b""), RelayStep::Pass),
            (message(b'S', b"a\0b\0"), RelayStep::Pass),
            (message(b'K', b"12345678"), RelayStep::Pass),
            (message(b'Z', b"I"), RelayStep::Ready),
        ];
        for (message, step) in dialogue {
            assert_eq!(exchange.see(&message), step, "{message:?}");
        }
        assert!(exchange.is_open());
    }

    #[test]
    fn incomplete_exchange_is_rejected() {
        for dialogue in [
            // `trust` and `peer`.
            vec![asks(0, b"")],
            // Password in plain text, MD5 and Kerberos; mechanisms with channel binding; no
            // mechanism.
            vec![asks(3, b"")],
            vec![asks(5, b"salt")],
            vec![asks(7, b"")],
            vec![asks(10, b"SCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0")],
            vec![asks(10, b"\0")],
            // Accepted before the proof.
            vec![asks(10, SCRAM), asks(0, b"")],
            vec![asks(10, SCRAM), asks(11, b""), asks(0, b"")],
            vec![asks(12, b""), asks(0, b"")],
            vec![asks(10, SCRAM), asks(12, b"")],
            vec![message(b'Z', b"I")],
            vec![message(b'K', b"12345678")],
            vec![message(b'S', b"a\0b\0")],
            vec![
                asks(10, SCRAM),
                asks(11, b""),
                asks(12, b""),
                message(b'Z', b"I"),
            ],
            vec![
                asks(10, SCRAM),
                asks(11, b""),
                asks(12, b""),
                asks(0, b""),
                asks(3, b""),
            ],
            vec![message(b'R', b"\0\0")],
        ] {
            let mut exchange = ScramExchange::default();
            let steps: Vec<_> = dialogue
                .iter()
                .map(|message| exchange.see(message))
                .collect();
            assert_eq!(
                steps.last(),
                Some(&RelayStep::Refuse),
                "{dialogue:?}: {steps:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn random_exchange_is_accepted_only_if_complete(
            messages in proptest::collection::vec((prop_oneof![Just(b'R'), Just(b'S'), Just(b'Z'), Just(b'K'), any::<u8>()],
                prop_oneof![Just(0_u32), Just(10), Just(11), Just(12), any::<u32>()]), 0..12))
        {
            let mut exchange = ScramExchange::default();
            let mut codes = Vec::new();
            for (kind, code) in messages {
                let body = if code == 10 { SCRAM } else { b"" };
                let message = message(kind, &[&code.to_be_bytes()[..], body].concat());
                if exchange.see(&message) == RelayStep::Refuse { break; }
                if kind == b'R' { codes.push(code); }
            }
            prop_assert!(!exchange.is_open() || codes == [10, 11, 12, 0]);
        }
    }
}
