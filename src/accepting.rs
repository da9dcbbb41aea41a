//! Listeners: every connection is begun with or turned away at once, and at the end they are seen out.

use std::{net::SocketAddr, pin::pin, time::Duration};

use hyper_util::server::graceful::GracefulConnection;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::timeout,
};

/// The pause after a connection could not be taken: no file descriptor is left, as a rule.
const PAUSE: Duration = Duration::from_millis(100);

/// Takes connections until `stopping`, and returns when they have ended, or when `drain` is over.
///
/// `take` begins with a connection in the set, or turns it away: how many there are at a time is its to bound. `what` names
/// the connections in the log.
pub async fn run(
    listener: TcpListener,
    stopping: impl Future<Output = ()>,
    (what, drain): (&'static str, Duration),
    mut take: impl FnMut(&mut JoinSet<()>, TcpStream, SocketAddr),
) {
    let mut connections = JoinSet::new();
    let mut stopping = pin!(stopping);
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut stopping => break,
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => take(&mut connections, stream, peer),
            Err(error) => {
                tracing::warn!(what, %error, "a connection could not be taken");
                // Asked again at once it would fail again.
                if timeout(PAUSE, &mut stopping).await.is_ok() {
                    break;
                }
            }
        }
    }
    drop(listener);
    if timeout(drain, async { while connections.join_next().await.is_some() {} }).await.is_err() {
        tracing::warn!(what, connections = connections.len(), "what still worked was ended");
    }
    connections.shutdown().await;
}

/// Runs an HTTP connection to its end, which is after the requests it has begun once it is `stopping`.
pub async fn see_out<C: GracefulConnection>(connection: C, stopping: impl Future<Output = ()>) -> Result<(), C::Error> {
    let mut connection = pin!(connection);
    tokio::select! {
        biased;
        ended = connection.as_mut() => ended,
        () = stopping => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    }
}
