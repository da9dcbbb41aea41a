//! Routes, keys and processes of services, for the service proxy.

use std::{fmt, io, path::Path, sync::Arc};

use async_trait::async_trait;
use gantry_base::ids::{ProjectId, ProjectRef};
use gantry_node::{kits::Service, supervisor::ProcessOwner};

use super::nodes::Nodes;
use crate::{
    control::{
        api_keys,
        context::ControlContext,
        domains::{
            self,
            hostnames::{acme, wildcard},
        },
        operator_settings::{key_checks, upstreams},
        services::{self, ServiceUse, functions},
    },
    platform::error::Error,
    proxy::{
        accepted_keys::AcceptedKeys,
        service_caller::ServiceCaller,
        service_proxy::{
            FunctionGateway, LiveFunction, LiveFunctions, ProjectDirectory, PublishedRoutes,
            RunningService, ServiceProxyContext, ServiceRunner, upstreams::Upstream,
        },
        unavailable::Unavailable,
    },
};

/// Returns the handle of the service proxy.
pub fn service_proxy(context: &ControlContext) -> ServiceProxyContext {
    let projects = Arc::new(Projects(context.clone()));
    ServiceProxyContext::new(
        context.platform.clone(),
        context.service_proxy.clone(),
        projects.clone(),
        projects,
        Arc::new(Nodes(context.clone())),
    )
}

/// Opens the socket at `path` by which the processes of `owner` reach the services of a project.
pub fn open_function_gateway(
    context: &ControlContext,
    project: &ProjectRef,
    path: &Path,
    owner: ProcessOwner,
) -> io::Result<FunctionGateway> {
    FunctionGateway::listen(&service_proxy(context), project, path, owner)
}

struct Projects(ControlContext);

impl Projects {
    fn running(&self, used: ServiceUse) -> Box<dyn RunningService> {
        Box::new(HeldService {
            context: self.0.clone(),
            used,
        })
    }
}

#[async_trait]
impl ProjectDirectory for Projects {
    async fn routes(&self) -> Result<PublishedRoutes, Error> {
        let context = &self.0;
        let (projects, upstreams, key_checks, challenges, wildcard) = tokio::try_join!(
            domains::published(context),
            upstreams::all(&context.db),
            key_checks::all(&context.db),
            acme::challenges(context),
            wildcard::certificate(context)
        )?;
        Ok(PublishedRoutes {
            projects,
            upstreams,
            key_checks,
            challenges,
            wildcard,
        })
    }

    async fn accepted_keys(
        &self,
        (project, reference): (ProjectId, &ProjectRef),
    ) -> Result<AcceptedKeys, Error> {
        api_keys::accepted_keys(&self.0, project, reference).await
    }

    async fn functions(&self, project: ProjectId) -> Result<Arc<LiveFunctions>, Error> {
        functions::live_functions(&self.0, project).await
    }
}

#[async_trait]
impl ServiceRunner for Projects {
    fn has_kit(&self, service: Service) -> bool {
        services::has_kit(&self.0, service)
    }

    async fn acquire(
        &self,
        project: (ProjectId, &ProjectRef),
        service: Service,
        keys: &Arc<AcceptedKeys>,
        caller: ServiceCaller,
    ) -> Result<Box<dyn RunningService>, Unavailable> {
        let used = services::acquire(&self.0, project, service, keys, Some(caller)).await?;
        Ok(self.running(used))
    }

    async fn acquire_function(
        &self,
        project: (ProjectId, &ProjectRef),
        function: &LiveFunction,
        environment: (i64, &AcceptedKeys),
        caller: ServiceCaller,
    ) -> Result<Box<dyn RunningService>, Unavailable> {
        let used = functions::acquire(&self.0, project, function, environment, caller).await?;
        Ok(self.running(used))
    }
}

/// A use of a process, with the state in which its replacement is found.
struct HeldService {
    context: ControlContext,
    used: ServiceUse,
}

impl fmt::Debug for HeldService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.used.fmt(f)
    }
}

#[async_trait]
impl RunningService for HeldService {
    fn upstream(&self) -> &Arc<Upstream> {
        self.used.upstream()
    }

    fn answered(&self) {
        self.used.answered();
    }

    async fn end_exceeded(&self) -> bool {
        self.used.end_exceeded().await
    }

    async fn replacement(&self) -> Result<Option<Box<dyn RunningService>>, Unavailable> {
        let replaced = services::replacement(&self.context, &self.used).await?;
        Ok(replaced.map(|used| {
            let context = self.context.clone();
            Box::new(Self { context, used }) as Box<dyn RunningService>
        }))
    }
}
