//! A client connection, as its requests see it.

use std::{net::SocketAddr, sync::Arc};

use smol_str::SmolStr;

use super::{
    context::ServiceProxyContext, framing::AmbiguityFlag, request_headers::ClientHeaders,
    state::ConnectionPermits, upstream_pool::UpstreamPool,
};

/// A client connection, after the TLS handshake if there is one.
pub(super) struct ClientConnection {
    pub(super) context: ServiceProxyContext,
    pub(super) peer: SocketAddr,
    /// Server name of the TLS handshake, or the host of the socket, in lower case.
    pub(super) name: SmolStr,
    /// Idle connections to upstreams, of the same worker thread.
    pub(super) pool: Arc<UpstreamPool>,
    /// Header values that identify the client to upstreams.
    pub(super) client_headers: ClientHeaders,
    /// Set when the connection carried an ambiguously framed request.
    pub(super) ambiguous: AmbiguityFlag,
    /// Permits of the connection. WebSockets share them.
    pub(super) permits: Arc<ConnectionPermits>,
}

impl ClientConnection {
    pub(super) fn new(
        context: &ServiceProxyContext,
        (peer, permits): (SocketAddr, ConnectionPermits),
        pool: Arc<UpstreamPool>,
        name: SmolStr,
        ambiguous: AmbiguityFlag,
    ) -> Self {
        let client_headers = ClientHeaders::new(peer.ip().to_canonical(), &name);
        Self {
            context: context.clone(),
            peer,
            pool,
            client_headers,
            name,
            ambiguous,
            permits: Arc::new(permits),
        }
    }
}
