//! Accept loop and graceful shutdown of connections. Shutdown is requested by a
//! `CancellationToken`.

use std::{io, net::SocketAddr, pin::pin, time::Duration};

use hyper_util::server::graceful::GracefulConnection;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

/// The pause after a failure to accept a connection, usually because no file descriptor is left.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// A source of incoming connections.
pub trait Listener: Send {
    /// An accepted connection.
    type Stream;
    /// Address or credentials of the peer.
    type Peer;

    /// Waits for the next connection.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Stream, Self::Peer)>> + Send;
}

impl Listener for TcpListener {
    type Stream = TcpStream;
    type Peer = SocketAddr;

    fn accept(&self) -> impl Future<Output = io::Result<(TcpStream, SocketAddr)>> + Send {
        self.accept()
    }
}

/// Accepts connections until `shutdown`, then waits for them to end. Connections that are still
/// open after `drain` are aborted.
///
/// `serve` spawns a task for a connection, or drops it; limiting the number of connections is up to
/// `serve`. `protocol` names the connections in log messages.
pub async fn accept_until_shutdown<L: Listener>(
    protocol: &'static str,
    listener: L,
    shutdown: &CancellationToken,
    drain: Duration,
    mut serve: impl FnMut(&mut JoinSet<()>, L::Stream, L::Peer),
) {
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown.cancelled());
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut shutdown => break,
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => serve(&mut connections, stream, peer),
            Err(error) => {
                tracing::warn!(protocol, %error, "failed to accept a connection");
                // An immediate retry would fail again.
                if timeout(RETRY_PAUSE, &mut shutdown).await.is_ok() {
                    break;
                }
            }
        }
    }
    drop(listener);
    let drained = async { while connections.join_next().await.is_some() {} };
    if timeout(drain, drained).await.is_err() {
        tracing::warn!(
            protocol,
            connections = connections.len(),
            "connections aborted after the drain timeout"
        );
    }
    connections.shutdown().await;
}

/// Serves an HTTP connection until it ends. After `shutdown` the connection ends when its current
/// requests are finished.
pub async fn serve_until_shutdown<C: GracefulConnection>(
    connection: C,
    shutdown: &CancellationToken,
) -> Result<(), C::Error> {
    let mut connection = pin!(connection);
    tokio::select! {
        biased;
        ended = connection.as_mut() => ended,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    /// Spawns a task per connection that ends when a byte arrives, and reports each connection.
    async fn accept(
        listener: TcpListener,
        shutdown: CancellationToken,
        drain: Duration,
        accepted: oneshot::Sender<()>,
    ) {
        let mut accepted = Some(accepted);
        accept_until_shutdown(
            "test",
            listener,
            &shutdown,
            drain,
            |connections, stream, _| {
                connections.spawn(async move { drop(stream.readable().await) });
                if let Some(accepted) = accepted.take() {
                    accepted.send(()).unwrap();
                }
            },
        )
        .await;
    }

    #[tokio::test]
    async fn open_connections_are_drained_and_then_aborted() {
        for (drain, client_closes) in [(Duration::from_secs(20), true), (Duration::ZERO, false)] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let shutdown = CancellationToken::new();
            let (sender, accepted) = oneshot::channel();
            let server = tokio::spawn(accept(listener, shutdown.clone(), drain, sender));
            let client = TcpStream::connect(address).await.unwrap();
            accepted.await.unwrap();
            shutdown.cancel();
            let client = if client_closes {
                drop(client);
                None
            } else {
                Some(client)
            };
            timeout(Duration::from_secs(10), server)
                .await
                .unwrap()
                .unwrap();
            drop(client);
        }
    }
}
