//! Stops a statement from outside: with a cancel request, then by terminating the backend as the
//! superuser.
//!
//! A customer can disable `statement_timeout`, and a PL/pgSQL loop that catches `query_canceled`
//! survives a cancellation. Termination cannot be caught.

use std::{error::Error as StdError, io, time::Duration};

use bytes::BytesMut;
use gantry_node::clusters::superuser::{self, SuperuserSession};
use postgres_protocol::message::frontend;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::{sleep, timeout},
};

use super::{DATABASE, session::ConnectTarget};

/// Time that a cancelled statement has to end.
pub(crate) const CANCEL_GRACE: Duration = Duration::from_secs(1);
/// Maximum time of a request to the server. An overloaded server is found by the health check.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Identifiers of a backend, with the secret that permits cancelling it. Never logged.
#[derive(Clone, Copy)]
pub(crate) struct Backend {
    pub(crate) pid: i32,
    pub(crate) secret: i32,
}

/// Cancels the statement, waits [`CANCEL_GRACE`], and terminates the backend if it still exists.
pub(crate) async fn cancel_and_terminate(target: ConnectTarget, backend: Backend) {
    cancel(&target, backend).await;
    sleep(CANCEL_GRACE).await;
    terminate(&target, backend).await;
}

/// Sends a cancel request for the backend's current statement. Failures are only logged.
pub(crate) async fn cancel(target: &ConnectTarget, backend: Backend) {
    let result = timeout(REQUEST_TIMEOUT, request_cancel(target, backend))
        .await
        .unwrap_or_else(|elapsed| Err(elapsed.into()));
    if let Err(error) = result {
        tracing::warn!(pid = backend.pid, %error, "failed to cancel a statement");
    }
}

async fn request_cancel(target: &ConnectTarget, backend: Backend) -> io::Result<()> {
    let mut request = BytesMut::new();
    frontend::cancel_request(backend.pid, backend.secret, &mut request);
    let mut stream = target.connect().await?;
    stream.write_all(&request).await?;
    // The server sends no answer and closes the connection after signalling the backend.
    stream.read(&mut [0]).await.map(drop)
}

/// Terminates the backend, at least [`CANCEL_GRACE`] after it was cancelled.
pub(crate) async fn terminate(target: &ConnectTarget, backend: Backend) {
    let result = timeout(REQUEST_TIMEOUT, request_terminate(target, backend))
        .await
        .unwrap_or_else(|elapsed| Err(elapsed.into()));
    if let Err(error) = result {
        tracing::warn!(pid = backend.pid, error, "failed to terminate a backend");
    }
}

async fn request_terminate(
    target: &ConnectTarget,
    backend: Backend,
) -> Result<(), Box<dyn StdError + Send + Sync>> {
    let stream = target.connect().await?;
    let session = SuperuserSession::over(stream, DATABASE).await?;
    session
        .execute(&superuser::END_OLD_BACKEND, &[&backend.pid])
        .await?;
    Ok(())
}
