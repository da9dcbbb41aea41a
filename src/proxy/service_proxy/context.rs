//! State that the files of the service proxy share.

use std::{fmt, ops::Deref, sync::Arc};

use super::{
    directory::{ProjectDirectory, ServiceRunner},
    rejection::RequestRejection,
    routes::Route,
    state::ServiceProxy,
};
use crate::{
    platform::context::PlatformContext,
    proxy::{accepted_keys::AcceptedKeys, node_streams::NodeStreams},
};

/// Handle to the service proxy and its surroundings. Cheap to clone.
#[derive(Clone)]
pub struct ServiceProxyContext(Arc<ServiceProxyParts>);

/// The parts of the handle.
pub struct ServiceProxyParts {
    platform: PlatformContext,
    /// Caches, limits and metrics.
    pub proxy: Arc<ServiceProxy>,
    /// Knows routes, keys and functions.
    pub(super) directory: Arc<dyn ProjectDirectory>,
    /// Runs services.
    pub(super) services: Arc<dyn ServiceRunner>,
    /// Reaches other nodes.
    pub(super) nodes: Arc<dyn NodeStreams>,
}

impl ServiceProxyContext {
    /// Creates the handle.
    pub fn new(
        platform: PlatformContext,
        proxy: Arc<ServiceProxy>,
        directory: Arc<dyn ProjectDirectory>,
        services: Arc<dyn ServiceRunner>,
        nodes: Arc<dyn NodeStreams>,
    ) -> Self {
        Self(Arc::new(ServiceProxyParts {
            platform,
            proxy,
            directory,
            services,
            nodes,
        }))
    }

    /// Returns the keys that a project's services accept.
    pub(super) async fn accepted_keys(
        &self,
        route: &Route,
    ) -> Result<Arc<AcceptedKeys>, RequestRejection> {
        let cache = &self.proxy.api_keys;
        cache.accepted(&*self.directory, route).await
    }
}

impl fmt::Debug for ServiceProxyContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceProxyContext")
            .finish_non_exhaustive()
    }
}

impl Deref for ServiceProxyContext {
    type Target = ServiceProxyParts;

    fn deref(&self) -> &ServiceProxyParts {
        &self.0
    }
}

impl Deref for ServiceProxyParts {
    type Target = PlatformContext;

    fn deref(&self) -> &PlatformContext {
        &self.platform
    }
}
