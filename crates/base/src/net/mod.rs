//! Listening sockets, TLS, limits on connections, and requests to other servers.

pub mod accept;
pub mod address_block;
pub mod coalescing_stream;
pub mod connection_limit;
pub mod http_client;
pub mod outbound;
pub mod owned_port;
mod public_address;
pub mod tls;
pub mod tls_client;
