//! Listening sockets, TLS and limits on connections.

pub mod accept;
pub mod coalescing_stream;
pub mod connection_limit;
pub mod document;
pub mod outbound;
pub mod owned_port;
pub mod tls;
