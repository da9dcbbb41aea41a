//! Connections to servers.

use std::{io, time::Duration};

use gantry_node::clusters::ServerSocket;
use tokio::{
    net::UnixStream,
    time::{sleep, timeout},
};

use super::rejection::ConnectionRejection;

/// Timeout for the login, and for the first answer of a pooler.
pub(super) const LOGIN: Duration = Duration::from_secs(30);
/// Timeout for connecting to a server, and for forwarding a cancel request.
pub(super) const CONNECT: Duration = Duration::from_secs(5);
/// Pause before another attempt to connect to a server with a full accept queue.
const QUEUE: Duration = Duration::from_millis(10);

/// Connects to a server.
pub(super) async fn reach(socket: &ServerSocket) -> Result<UnixStream, ConnectionRejection> {
    let reached = async {
        loop {
            match socket.connect().await {
                // The server's accept queue is full, and nothing announces free space in it.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(QUEUE).await,
                other => return other,
            }
        }
    };
    match timeout(CONNECT, reached).await {
        Ok(Ok(server)) => Ok(server),
        Ok(Err(error)) => {
            tracing::debug!(%error, socket = %socket.path().display(), "project server unreachable");
            Err(ConnectionRejection::Away)
        }
        Err(_) => Err(ConnectionRejection::ProjectFull),
    }
}
