//! Address of a project's PostgreSQL, and the repair of its platform roles.

use std::{io, sync::Arc, time::Duration};

use gantry_base::ids::ProjectRef;
use gantry_node::{cluster_driver::ClusterDriver, clusters::ServerSocket};
use tokio::{net::UnixStream, sync::OwnedSemaphorePermit, time::timeout};

use super::concurrency_limit::ConcurrencyLimit;
use crate::platform::error::Error;

/// Maximum time for repairing the platform's roles.
const REPAIR_TIMEOUT: Duration = Duration::from_secs(5);

/// Address of a project's PostgreSQL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectTarget {
    socket: ServerSocket,
    /// Project whose platform roles are repaired after a rejected login.
    repair: Option<RoleRepair>,
    /// Places of the project's sessions. `None`: their number is not bounded here.
    session_limit: Option<LimitOfTarget>,
}

/// The limit on sessions of the project of a target.
#[derive(Debug, Clone)]
struct LimitOfTarget(Arc<ConcurrencyLimit>);

impl PartialEq for LimitOfTarget {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for LimitOfTarget {}

/// Project whose platform roles can be repaired.
#[derive(Debug, Clone)]
struct RoleRepair {
    driver: Arc<dyn ClusterDriver>,
    project: ProjectRef,
}

impl PartialEq for RoleRepair {
    fn eq(&self, other: &Self) -> bool {
        self.project == other.project
    }
}

impl Eq for RoleRepair {}

impl ConnectTarget {
    /// Returns the server behind a socket.
    pub fn new(socket: ServerSocket) -> Self {
        Self {
            socket,
            repair: None,
            session_limit: None,
        }
    }

    /// Returns the server of a project. If the owner disabled the platform's roles, the next
    /// rejected session repairs them.
    pub fn of(driver: &Arc<dyn ClusterDriver>, project: &ProjectRef) -> Self {
        let repair = RoleRepair {
            driver: driver.clone(),
            project: project.clone(),
        };
        Self {
            socket: driver.socket(project),
            repair: Some(repair),
            session_limit: None,
        }
    }

    /// Returns the target with a limit on its sessions.
    #[must_use]
    pub fn with_limit(self, limit: Arc<ConcurrencyLimit>) -> Self {
        Self {
            session_limit: Some(LimitOfTarget(limit)),
            ..self
        }
    }

    /// Waits for a permit, if the sessions are limited.
    pub(super) async fn session_permit(&self) -> Result<Option<OwnedSemaphorePermit>, Error> {
        match &self.session_limit {
            Some(limit) => limit.0.acquire().await.map(Some),
            None => Ok(None),
        }
    }

    /// Repairs the platform's roles. Returns whether the login can be retried.
    pub(crate) async fn repair(&self) -> bool {
        let Some(RoleRepair { driver, project }) = &self.repair else {
            return false;
        };
        match timeout(REPAIR_TIMEOUT, driver.repair_roles(project)).await {
            Ok(Ok(())) => {
                tracing::warn!(%project, "platform roles were rejected and have been repaired");
                true
            }
            Ok(Err(error)) => {
                tracing::warn!(%project, %error, "failed to repair the platform roles of a project");
                false
            }
            Err(_) => {
                tracing::warn!(%project, "timed out while repairing the platform roles of a project");
                false
            }
        }
    }

    /// Returns the socket of the server.
    pub fn socket(&self) -> &ServerSocket {
        &self.socket
    }

    /// Connects to the server and checks its identity.
    pub(crate) async fn connect(&self) -> io::Result<UnixStream> {
        self.socket.connect().await
    }
}
