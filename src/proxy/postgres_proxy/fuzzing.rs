//! Entry points for `tests/fuzz`: parsers of bytes that arrive before authentication. Not an
//! interface for other code.

use super::startup::{StartupRequest, opening};

/// Reads an opening packet without its length, and returns the whole packet that the proxy writes
/// to a server for it.
///
/// Returns `None` for a packet that the proxy rejects or answers itself.
pub fn rewrite_opening(packet: &[u8]) -> Option<Vec<u8>> {
    match opening(packet).ok()? {
        StartupRequest::Tls | StartupRequest::Gss => None,
        StartupRequest::Cancel(key) => Some(key.request()),
        StartupRequest::Start(startup) => {
            let written = startup.packet(&startup.user, startup.options.as_deref());
            written.ok().map(|packet| packet.to_vec())
        }
    }
}
