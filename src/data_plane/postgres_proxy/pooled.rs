//! Sessions with the pooler of a project.

use tokio::net::UnixStream;

use super::{connection, rejection::ConnectionRejection, startup::StartupMessage};
use crate::{
    base::ids::{ProjectId, ProjectRef},
    data_plane::{
        clusters::ServerSocket,
        context::DataPlaneContext,
        services::{ServiceUse, Unavailable, UnavailableReason, pooler},
    },
};

/// Attempts to reach a pooler: one that ended a moment ago is replaced by another.
const ATTEMPTS_MAX: usize = 3;

/// Rejects the console of the pooler, which is a database for its clients.
pub(super) fn check(startup: &StartupMessage, user: &str) -> Result<(), ConnectionRejection> {
    if startup.database.as_deref().unwrap_or(user) == pooler::CONSOLE {
        return Err(ConnectionRejection::Console);
    }
    Ok(())
}

/// Connects to the pooler of a project. Starts it if necessary.
pub(super) async fn reach(
    context: &DataPlaneContext,
    project: ProjectId,
    reference: &ProjectRef,
) -> Result<(ServiceUse, ServerSocket, UnixStream), ConnectionRejection> {
    for _ in 0..ATTEMPTS_MAX {
        let acquired = pooler::acquire(context, project, reference).await;
        let (used, socket) = acquired.map_err(rejection)?;
        match connection::reach(&socket).await {
            Ok(stream) => return Ok((used, socket, stream)),
            Err(ConnectionRejection::Away) => {
                used.end_exceeded().await;
            }
            Err(other) => return Err(other),
        }
    }
    Err(ConnectionRejection::PoolerAway(
        UnavailableReason::Failed.message(),
    ))
}

fn rejection(unavailable: Unavailable) -> ConnectionRejection {
    match unavailable.reason {
        UnavailableReason::DatabaseAway => ConnectionRejection::Away,
        UnavailableReason::Elsewhere => ConnectionRejection::Elsewhere,
        reason => ConnectionRejection::PoolerAway(reason.message()),
    }
}
