//! A validated request with its destination.

use std::sync::Arc;

use gantry_node::kits::Service;
use hyper::Response;

use super::{
    body::DownloadBody, capacity::CapacityKey, directory::RunningService,
    key_exchange::ServiceCredential, routes::Route, upstreams::Upstream,
};

/// Response to a client.
pub(super) type ProxyResponse = Response<DownloadBody>;

/// A validated request with its destination.
pub(super) struct Forwarded<'a> {
    pub(super) route: Arc<Route>,
    pub(super) service: Service,
    pub(super) upstream: Arc<Upstream>,
    /// Held until the response has ended, if Gantry runs the service.
    pub(super) service_use: Option<Box<dyn RunningService>>,
    /// The request's credential for the service.
    pub(super) credential: ServiceCredential,
    /// The path after the service's prefix.
    pub(super) rest: &'a str,
    /// The project and the client that the request is counted for.
    pub(super) capacity_key: CapacityKey,
}
