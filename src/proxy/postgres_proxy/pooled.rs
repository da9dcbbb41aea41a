//! Sessions with the pooler of a project.

use gantry_base::ids::{ProjectId, ProjectRef};
use tokio::{net::UnixStream, time::timeout};

use super::{
    directory::{Pooler, SessionServers},
    message_stream::MessageStream,
    reach::{LOGIN, reach},
    rejection::ConnectionRejection,
    startup::StartupMessage,
};
use crate::proxy::unavailable::{Unavailable, UnavailableReason};

/// Name of the pooler's console among databases.
pub const CONSOLE: &str = "pgbouncer";

/// Attempts to reach a pooler: one that ended a moment ago is replaced by another.
const ATTEMPTS_MAX: usize = 3;

/// Rejects the console of the pooler, which is a database for its clients.
pub(super) fn check(startup: &StartupMessage, user: &str) -> Result<(), ConnectionRejection> {
    if startup.database.as_deref().unwrap_or(user) == CONSOLE {
        return Err(ConnectionRejection::Console);
    }
    Ok(())
}

/// Rejections of the pooler that mean a wrong password. All of its rejections have one SQLSTATE,
/// and a role that does not exist another text.
const WRONG_PASSWORD: [&str; 3] = [
    "SASL authentication failed",
    "password authentication failed",
    "no such user",
];

/// Returns whether an `ErrorResponse` of a pooler, without its header, means a wrong password.
pub(super) fn is_wrong_password(body: &[u8]) -> bool {
    let message = body
        .split(|byte| *byte == 0)
        .find_map(|field| field.strip_prefix(b"M"));
    let is_known = |text: &&str| message == Some(text.as_bytes());
    WRONG_PASSWORD.iter().any(is_known)
}

/// A connection to a pooler that has answered the startup message.
pub(super) struct PooledConnection {
    pub(super) pooler: Box<dyn Pooler>,
    /// The answer is in its buffer.
    pub(super) server: MessageStream<UnixStream>,
}

/// Connects to the pooler of a project and sends the startup message. Starts the pooler if
/// necessary.
///
/// A process that was killed accepts connections until its socket is closed, and answers none. So
/// a connection counts from the first message of the pooler; before it, another process can still
/// take the client.
pub(super) async fn connect(
    servers: &dyn SessionServers,
    project: (ProjectId, &ProjectRef),
    startup: &[u8],
) -> Result<PooledConnection, ConnectionRejection> {
    for _ in 0..ATTEMPTS_MAX {
        let pooler = servers.pooler(project).await.map_err(rejection)?;
        match reach(pooler.socket()).await {
            Ok(stream) => {
                let mut server = MessageStream::new(stream);
                let answered = async {
                    server.send(startup).await?;
                    server.until_message().await
                };
                match timeout(LOGIN, answered).await {
                    Ok(Ok(_)) => {
                        return Ok(PooledConnection { pooler, server });
                    }
                    Ok(Err(error)) => {
                        tracing::debug!(%error, project = %project.0, "pooler ended before its first message");
                    }
                    Err(_) => return Err(ConnectionRejection::Late),
                }
            }
            Err(ConnectionRejection::Away) => {}
            Err(other) => return Err(other),
        }
        pooler.until_replaced().await;
    }
    Err(ConnectionRejection::PoolerAway(
        UnavailableReason::Failed.message(),
    ))
}

fn rejection(unavailable: Unavailable) -> ConnectionRejection {
    match unavailable.reason {
        UnavailableReason::DatabaseAway => ConnectionRejection::Away,
        UnavailableReason::Elsewhere => ConnectionRejection::Elsewhere,
        reason => ConnectionRejection::PoolerAway(reason.message()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_password_is_recognised_by_its_text() {
        let body = |text: &str| format!("SFATAL\0C08P01\0M{text}\0\0").into_bytes();
        for text in WRONG_PASSWORD {
            assert!(is_wrong_password(&body(text)), "{text}");
        }
        for other in [
            "no more connections allowed (max_client_conn)",
            "",
            "pgbouncer",
        ] {
            assert!(!is_wrong_password(&body(other)), "{other}");
        }
        assert!(!is_wrong_password(b""));
    }
}
