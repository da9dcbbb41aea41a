//! State that the files of the PostgreSQL proxy share.

use std::{fmt, ops::Deref, sync::Arc};

use super::{
    directory::{SessionDirectory, SessionServers},
    state::PostgresProxy,
};
use crate::{platform::context::PlatformContext, proxy::node_streams::NodeStreams};

/// Handle to the PostgreSQL proxy and its surroundings. Cheap to clone.
#[derive(Clone)]
pub struct PostgresProxyContext(Arc<PostgresProxyParts>);

/// The parts of the handle.
pub struct PostgresProxyParts {
    platform: PlatformContext,
    /// Sessions and their limits.
    pub proxy: Arc<PostgresProxy>,
    /// Decides on access.
    pub(super) directory: Arc<dyn SessionDirectory>,
    /// Reaches servers and poolers.
    pub(super) servers: Arc<dyn SessionServers>,
    /// Reaches other nodes.
    pub(super) nodes: Arc<dyn NodeStreams>,
}

impl PostgresProxyContext {
    /// Creates the handle.
    pub fn new(
        platform: PlatformContext,
        proxy: Arc<PostgresProxy>,
        directory: Arc<dyn SessionDirectory>,
        servers: Arc<dyn SessionServers>,
        nodes: Arc<dyn NodeStreams>,
    ) -> Self {
        Self(Arc::new(PostgresProxyParts {
            platform,
            proxy,
            directory,
            servers,
            nodes,
        }))
    }
}

impl fmt::Debug for PostgresProxyContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresProxyContext")
            .finish_non_exhaustive()
    }
}

impl Deref for PostgresProxyContext {
    type Target = PostgresProxyParts;

    fn deref(&self) -> &PostgresProxyParts {
        &self.0
    }
}

impl Deref for PostgresProxyParts {
    type Target = PlatformContext;

    fn deref(&self) -> &PlatformContext {
        &self.platform
    }
}
