//! The socket by which a function reaches the database of its own project: a function has no way to
//! private addresses, and the public address of the database may be one.
//!
//! Each process of a function has a socket of its own, which only its account may connect to. Its
//! sessions have the rights of the project's owner. A database that sleeps is started.

use std::{io, path::Path, sync::Arc};

use gantry_base::ids::{ProjectId, ProjectRef};
use gantry_node::supervisor::{ProcessOwner, owned_socket};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::Semaphore,
    task::JoinSet,
};

use crate::control::{
    context::ControlContext,
    database_session::{
        OWNER,
        session_socket::{SessionLogin, serve},
    },
    projects::idle,
    services::task::AbortOnDrop,
};

/// Concurrent sessions of one process, with those that wait for a permit among the sessions of all
/// functions of the project. Further ones are closed.
const SESSIONS_MAX: usize = 32;

/// Listens for sessions at `path` for the processes of `owner`. A socket of an earlier server is
/// replaced.
pub(in crate::control::services) fn listen_for_database(
    context: &ControlContext,
    project: (ProjectId, &ProjectRef),
    path: &Path,
    owner: ProcessOwner,
) -> io::Result<AbortOnDrop> {
    let listener = owned_socket::listen(path, owner)?;
    let database = DatabaseOfFunction {
        context: context.clone(),
        id: project.0,
        reference: project.1.clone(),
    };
    Ok(AbortOnDrop(tokio::spawn(run(listener, Arc::new(database)))))
}

struct DatabaseOfFunction {
    context: ControlContext,
    id: ProjectId,
    reference: ProjectRef,
}

impl DatabaseOfFunction {
    async fn serve(&self, client: UnixStream) -> io::Result<()> {
        let target = idle::wake(&self.context, self.id, &self.reference).await;
        let target = target.map_err(io::Error::other)?;
        let limit = self.context.services.function_sessions.of(self.id);
        let _permit = limit.acquire().await.map_err(io::Error::other)?;
        let login = SessionLogin::unbounded(OWNER, "edge function");
        serve(client, &target, &login).await
    }
}

async fn run(listener: UnixListener, database: Arc<DatabaseOfFunction>) {
    let permits = Arc::new(Semaphore::new(SESSIONS_MAX));
    let mut sessions = JoinSet::new();
    loop {
        // An error is that of one connection.
        let Ok((client, _)) = listener.accept().await else {
            tokio::task::yield_now().await;
            continue;
        };
        while sessions.try_join_next().is_some() {}
        let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else {
            continue;
        };
        let database = Arc::clone(&database);
        sessions.spawn(async move {
            if let Err(error) = database.serve(client).await {
                let project = &database.reference;
                tracing::debug!(%project, %error, "session of a function ended");
            }
            drop(permit);
        });
    }
}
