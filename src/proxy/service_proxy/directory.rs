//! The traits by which the service proxy asks for routes, keys and processes of services.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use gantry_base::ids::{ProjectId, ProjectRef};
use gantry_node::kits::Service;

use super::{
    live_functions::{LiveFunction, LiveFunctions},
    routes::PublishedRoutes,
    upstreams::Upstream,
};
use crate::{
    platform::error::Error,
    proxy::{accepted_keys::AcceptedKeys, service_caller::ServiceCaller, unavailable::Unavailable},
};

/// Knows the state of projects. Implemented by the control plane.
#[async_trait]
pub trait ProjectDirectory: Send + Sync {
    /// Returns the routes of all projects.
    async fn routes(&self) -> Result<PublishedRoutes, Error>;

    /// Returns the keys that a project's services accept.
    async fn accepted_keys(&self, project: (ProjectId, &ProjectRef))
    -> Result<AcceptedKeys, Error>;

    /// Returns the live functions of a project. Cached.
    async fn functions(&self, project: ProjectId) -> Result<Arc<LiveFunctions>, Error>;
}

/// Runs the services of projects on this node.
#[async_trait]
pub trait ServiceRunner: Send + Sync {
    /// Returns whether a service can be run: its kit is installed.
    fn has_kit(&self, service: Service) -> bool;

    /// Returns a running process of a project's service that accepts the tokens of exactly `keys`.
    /// Starts it if necessary. Its end is charged to `caller`.
    async fn acquire(
        &self,
        project: (ProjectId, &ProjectRef),
        service: Service,
        keys: &Arc<AcceptedKeys>,
        caller: ServiceCaller,
    ) -> Result<Box<dyn RunningService>, Unavailable>;

    /// Returns a running process of a function. Starts it if necessary. `environment` is the number
    /// of the project's environment, and its keys.
    async fn acquire_function(
        &self,
        project: (ProjectId, &ProjectRef),
        function: &LiveFunction,
        environment: (i64, &AcceptedKeys),
        caller: ServiceCaller,
    ) -> Result<Box<dyn RunningService>, Unavailable>;
}

/// A running process of a service. It is not stopped as idle before this is dropped.
#[async_trait]
pub trait RunningService: fmt::Debug + Send + Sync {
    /// The address of the process.
    fn upstream(&self) -> &Arc<Upstream>;

    /// Marks the request as answered: only its response is under way.
    fn answered(&self);

    /// Waits a moment for the end of the process. Returns whether it used too many resources.
    async fn end_exceeded(&self) -> bool;

    /// Returns the process that replaces an ended one, or `None` if it has not ended.
    async fn replacement(&self) -> Result<Option<Box<dyn RunningService>>, Unavailable>;
}
