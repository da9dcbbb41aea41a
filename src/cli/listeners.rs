//! Listeners of the server: default addresses, and binding.

use std::net::{SocketAddr, TcpListener};

/// Default listener addresses and certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ListenerDefaults {
    /// Configured addresses and certificates only (`gantry serve`).
    None,
    /// Loopback addresses and a local certificate authority where nothing is configured (`gantry
    /// dev`).
    Local,
}

/// Binds a TCP listener. `flag` is the option that error messages name.
pub(super) fn bind(address: SocketAddr, flag: &str) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(address).map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            anyhow::anyhow!("{address} is in use by another program; stop it, or choose another address with {flag}")
        }
        _ => anyhow::anyhow!("cannot listen on {address}: {error}"),
    })?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Checks whether the address can be bound.
pub(super) async fn can_bind(address: SocketAddr) -> bool {
    tokio::net::TcpListener::bind(address).await.is_ok()
}
