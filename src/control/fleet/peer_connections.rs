//! HTTP/2 connections to the fleet ports of other nodes.

use std::{collections::HashMap, io, sync::Arc, time::Duration};

use http::Request;
use hyper::{
    body::Incoming,
    client::conn::http2::{self, SendRequest},
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{
    net::TcpStream,
    time::{Instant, timeout},
};
use tokio_rustls::TlsConnector;
use uuid::Uuid;

use crate::platform::http::Body;

/// Time limit of a connection with its TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Time after a failed connection in which no other one is tried.
const FAILURE_PAUSE: Duration = Duration::from_secs(1);
/// Concurrent requests and streams of a connection. Another connection is opened for more.
pub(super) const STREAMS_MAX: u32 = 200;
/// Connections on which a request is tried. A request that was sent is not tried again.
const SEND_ATTEMPTS_MAX: u32 = 2;
/// Connections to a node.
const CONNECTIONS_MAX: usize = 32;
/// Bytes of a stream that the receiver has not read.
pub(super) const STREAM_WINDOW_BYTES: u32 = 256 << 10;
/// Bytes of a connection that the receiver has not read: enough that streams do not wait for others
/// that are not read.
pub(super) const CONNECTION_WINDOW_BYTES: u32 = STREAM_WINDOW_BYTES * STREAMS_MAX;
/// Interval of pings, also on connections without streams.
pub(super) const PING_INTERVAL: Duration = Duration::from_secs(5);
/// Time for the answer to a ping. Then the connection is closed.
pub(super) const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Where and how a node is reached.
pub(super) struct PeerAddress {
    pub(super) node: Uuid,
    /// Host and port.
    pub(super) address: String,
    pub(super) name: ServerName<'static>,
    pub(super) tls: Arc<ClientConfig>,
}

/// Open connections to other nodes.
#[derive(Default)]
pub(super) struct PeerConnections(Mutex<HashMap<Uuid, Peer>>);

#[derive(Default)]
struct Peer {
    connections: Vec<PeerConnection>,
    /// When the last attempt to connect failed.
    failed_at: Option<Instant>,
}

#[derive(Clone)]
struct PeerConnection {
    sender: SendRequest<Body>,
    /// One more than the number of streams.
    streams: Arc<()>,
}

/// A stream of a connection. It counts until this is dropped.
pub(super) struct StreamPermit(#[expect(dead_code, reason = "counted by its references")] Arc<()>);

impl PeerConnections {
    /// Sends a request to a node, over an open connection if there is one.
    ///
    /// Errors: [`SendError::Unsent`] if the node cannot be reached and did not get the request.
    pub(super) async fn send(
        &self,
        peer: &PeerAddress,
        request: Request<Body>,
    ) -> Result<(hyper::Response<Incoming>, StreamPermit), SendError> {
        let mut request = request;
        let mut attempts = 0;
        loop {
            attempts += 1;
            let (mut sender, permit) = match self.connection(peer).await {
                Ok(connection) => connection,
                Err(error) => return Err(SendError::Unsent(Box::new(request), error)),
            };
            let mut error = match sender.try_send_request(request).await {
                Ok(response) => return Ok((response, permit)),
                Err(error) => error,
            };
            let unsent = error.take_message();
            let error = io::Error::other(error.into_error());
            match unsent {
                // The connection ended a moment ago, for example because the node restarts.
                Some(unsent) if attempts < SEND_ATTEMPTS_MAX => request = unsent,
                Some(unsent) => return Err(SendError::Unsent(Box::new(unsent), error)),
                None => return Err(SendError::Lost(error)),
            }
        }
    }

    async fn connection(
        &self,
        peer: &PeerAddress,
    ) -> io::Result<(SendRequest<Body>, StreamPermit)> {
        if let Some(open) = self.open_connection(peer.node)? {
            return Ok(open);
        }
        let connected = timeout(CONNECT_TIMEOUT, connect(peer)).await;
        let connected = connected.unwrap_or_else(|late| Err(late.into()));
        let mut peers = self.0.lock();
        let known = peers.entry(peer.node).or_default();
        match connected {
            Ok(sender) => {
                known.failed_at = None;
                let connection = PeerConnection {
                    sender,
                    streams: Arc::default(),
                };
                let permit = StreamPermit(connection.streams.clone());
                known.connections.push(connection.clone());
                Ok((connection.sender, permit))
            }
            Err(error) => {
                known.failed_at = Some(Instant::now());
                Err(error)
            }
        }
    }

    /// Returns an open connection with room for a stream.
    ///
    /// Errors: no other connection is to be opened now.
    fn open_connection(&self, node: Uuid) -> io::Result<Option<(SendRequest<Body>, StreamPermit)>> {
        let mut peers = self.0.lock();
        let known = peers.entry(node).or_default();
        known
            .connections
            .retain(|connection| !connection.sender.is_closed());
        let streams_max = usize::try_from(STREAMS_MAX).unwrap_or(usize::MAX);
        let room = known
            .connections
            .iter()
            .find(|connection| Arc::strong_count(&connection.streams) <= streams_max);
        if let Some(connection) = room {
            let permit = StreamPermit(connection.streams.clone());
            return Ok(Some((connection.sender.clone(), permit)));
        }
        if known.connections.len() >= CONNECTIONS_MAX {
            return Err(io::Error::other("too many connections to the node"));
        }
        let failed = known.failed_at.map(|failed_at| failed_at.elapsed());
        if failed.is_some_and(|ago| ago < FAILURE_PAUSE) {
            return Err(io::Error::other("the last connection failed a moment ago"));
        }
        Ok(None)
    }
}

/// A failure to send a request.
pub(super) enum SendError {
    /// The node did not get the request, which can be used otherwise.
    Unsent(Box<Request<Body>>, io::Error),
    /// The connection ended before the response: the request may have had an effect.
    Lost(io::Error),
}

async fn connect(peer: &PeerAddress) -> io::Result<SendRequest<Body>> {
    let stream = TcpStream::connect(&peer.address).await?;
    stream.set_nodelay(true)?;
    let connector = TlsConnector::from(peer.tls.clone());
    let stream = connector.connect(peer.name.clone(), stream).await?;
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    let address = peer.address.clone();
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, address, "connection to a node ended");
        }
    });
    Ok(sender)
}
