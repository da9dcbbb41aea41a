//! The outgoing client of a drain.

use crate::platform::outbound::{OutboundClient, UrlOwner};

/// The outgoing client with the owner of a drain.
#[derive(Clone)]
pub(in crate::api::log_drains) struct DrainClient {
    pub(in crate::api::log_drains) client: OutboundClient,
    pub(in crate::api::log_drains) owner: UrlOwner,
}
