//! Access to projects' databases, and their servers, for the PostgreSQL proxy.

use std::time::Duration;

use async_trait::async_trait;
use gantry_base::ids::{ProjectId, ProjectRef};
use gantry_node::clusters::ServerSocket;
use ipnet::IpNet;
use tokio::time::timeout;

use super::nodes::Nodes;
use crate::{
    control::{
        context::ControlContext,
        database_access::{self, bans, rules::ConnectionAdmission},
        projects::{self, Status},
        services::{ServiceUse, pooler},
        temporary_access,
    },
    platform::error::Error,
    proxy::{
        postgres_proxy::{
            ConnectionRejection, Pooler, PostgresProxyContext, SessionClient, SessionDirectory,
            SessionGrant, SessionServers,
        },
        unavailable::Unavailable,
    },
};

/// Time that a connection waits for a project that is starting.
const READY: Duration = Duration::from_secs(15);
/// Duration of a ban after too many wrong passwords.
const BAN: chrono::TimeDelta = chrono::TimeDelta::minutes(30);

/// Returns the handle of the PostgreSQL proxy.
pub fn postgres_proxy(context: &ControlContext) -> PostgresProxyContext {
    let sessions = std::sync::Arc::new(Sessions(context.clone()));
    PostgresProxyContext::new(
        context.platform.clone(),
        context.postgres_proxy.clone(),
        sessions.clone(),
        sessions,
        std::sync::Arc::new(Nodes(context.clone())),
    )
}

struct Sessions(ControlContext);

#[async_trait]
impl SessionDirectory for Sessions {
    async fn admit(&self, client: SessionClient<'_>) -> Result<SessionGrant, ConnectionRejection> {
        let admission = admit(&self.0, client).await?;
        let max = |connections: u32| usize::try_from(connections).unwrap_or(usize::MAX);
        Ok(SessionGrant {
            project: admission.id,
            direct_max: max(admission.connections.direct),
            pooled_max: max(admission.connections.pooled),
        })
    }

    async fn ban(&self, (project, reference): (ProjectId, &ProjectRef), block: IpNet) {
        let until = self.0.clock.now() + BAN;
        if let Err(error) = bans::ban(&self.0, project, reference, block, until).await {
            tracing::error!(%error, "failed to ban an address");
        }
    }
}

#[async_trait]
impl SessionServers for Sessions {
    fn server(&self, project: &ProjectRef) -> ServerSocket {
        self.0.driver.socket(project)
    }

    fn has_pooler(&self) -> bool {
        pooler::is_installed(&self.0)
    }

    async fn pooler(
        &self,
        (project, reference): (ProjectId, &ProjectRef),
    ) -> Result<Box<dyn Pooler>, Unavailable> {
        let (used, socket) = pooler::acquire(&self.0, project, reference).await?;
        Ok(Box::new(ProjectPooler {
            context: self.0.clone(),
            project,
            reference: reference.clone(),
            used,
            socket,
        }))
    }
}

struct ProjectPooler {
    context: ControlContext,
    project: ProjectId,
    reference: ProjectRef,
    used: ServiceUse,
    socket: ServerSocket,
}

#[async_trait]
impl Pooler for ProjectPooler {
    fn socket(&self) -> &ServerSocket {
        &self.socket
    }

    async fn until_replaced(self: Box<Self>) {
        let Self {
            context,
            project,
            reference,
            used,
            ..
        } = *self;
        pooler::until_replaced(&context, project, &reference, used).await;
    }
}

/// Checks the access rules of a project. Waits for a server that is starting, and starts one that
/// was stopped for lack of use.
async fn admit(
    context: &ControlContext,
    client: SessionClient<'_>,
) -> Result<ConnectionAdmission, ConnectionRejection> {
    let open = async {
        loop {
            let admission = permitted(context, client).await?;
            match admission.status {
                Status::ActiveHealthy if !admission.asleep => {
                    match projects::note_use(context, admission.id).await {
                        // No project is stopped for lack of use while the control database is
                        // unreachable.
                        Ok(()) | Err(Error::Unavailable { .. }) => return Ok(admission),
                        Err(error) => return Err(fault(&error)),
                    }
                }
                Status::Pausing | Status::Inactive => return Err(ConnectionRejection::Paused),
                Status::GoingDown | Status::Removed => return Err(ConnectionRejection::Unknown),
                Status::InitFailed
                | Status::PauseFailed
                | Status::RestoreFailed
                | Status::Upgrading => {
                    return Err(ConnectionRejection::Away);
                }
                // The rules are checked again afterwards, because they may have changed meanwhile.
                Status::ActiveHealthy
                | Status::ComingUp
                | Status::ActiveUnhealthy
                | Status::Restoring
                | Status::Restarting => {
                    projects::wake(context, admission.id, client.project)
                        .await
                        .map_err(|error| match error {
                            Error::Unavailable { .. } => ConnectionRejection::ControlAway,
                            _ => ConnectionRejection::Away,
                        })?;
                }
            }
        }
    };
    timeout(READY, open)
        .await
        .unwrap_or(Err(ConnectionRejection::Away))
}

/// Returns the project's access rules if they permit this client.
async fn permitted(
    context: &ControlContext,
    client: SessionClient<'_>,
) -> Result<ConnectionAdmission, ConnectionRejection> {
    let admission = database_access::admission(context, client.project, client.address)
        .await
        .map_err(|error| fault(&error))?
        .ok_or(ConnectionRejection::Unknown)?;
    if admission.banned {
        return Err(ConnectionRejection::Banned);
    }
    if !admission.admitted
        || !temporary_access::permits_address(context, admission.id, client.user, client.address)
            .await
            .map_err(|error| fault(&error))?
    {
        return Err(ConnectionRejection::Restricted);
    }
    if admission.tls_required && !client.encrypted {
        return Err(ConnectionRejection::TlsRequired);
    }
    if !admission.here {
        return Err(ConnectionRejection::Elsewhere);
    }
    Ok(admission)
}

fn fault(error: &Error) -> ConnectionRejection {
    if matches!(error, Error::Unavailable { .. }) {
        return ConnectionRejection::ControlAway;
    }
    tracing::error!(%error, "failed to check access to a database");
    ConnectionRejection::Fault
}
