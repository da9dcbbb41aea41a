//! Ending a statement from outside: first as a client may, then as the superuser.
//!
//! `statement_timeout` is the customer's to switch off, and a PL/pgSQL loop that catches `query_canceled` survives
//! a cancel. Ending the backend is the one thing it cannot survive.

use std::{error::Error as StdError, io, time::Duration};

use bytes::BytesMut;
use postgres_protocol::message::frontend;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::{sleep, timeout},
};
use tokio_postgres::NoTls;

use super::{ADMIN, DATABASE, session::ConnectTarget};

/// How long a cancelled statement has to end by itself.
pub(crate) const CANCEL_GRACE: Duration = Duration::from_secs(1);
/// How long asking the server may take. A server that is too busy for this is the health check's to find.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// What the server calls a session: enough to cancel it, so never logged.
#[derive(Clone, Copy)]
pub(crate) struct Backend {
    pub(crate) pid: i32,
    pub(crate) secret: i32,
}

/// Cancels, waits [`CANCEL_GRACE`], ends the backend if it is still there.
pub(crate) async fn cancel_and_terminate(target: ConnectTarget, backend: Backend) {
    cancel(&target, backend).await;
    sleep(CANCEL_GRACE).await;
    terminate(&target, backend).await;
}

/// Asks the backend to give up its current statement. A failure is logged: the caller's deadline goes on either way.
pub(crate) async fn cancel(target: &ConnectTarget, backend: Backend) {
    let asked = timeout(REQUEST_TIMEOUT, request_cancel(target, backend))
        .await
        .unwrap_or_else(|elapsed| Err(elapsed.into()));
    if let Err(error) = asked {
        tracing::warn!(pid = backend.pid, %error, "cancelling a statement failed");
    }
}

async fn request_cancel(target: &ConnectTarget, backend: Backend) -> io::Result<()> {
    let mut request = BytesMut::new();
    frontend::cancel_request(backend.pid, backend.secret, &mut request);
    let mut stream = target.connect().await?;
    stream.write_all(&request).await?;
    // The server answers nothing and closes once it has signalled the backend.
    stream.read(&mut [0]).await.map(drop)
}

/// Ends the backend. It must have been cancelled at least [`CANCEL_GRACE`] ago.
pub(crate) async fn terminate(target: &ConnectTarget, backend: Backend) {
    let asked = timeout(REQUEST_TIMEOUT, request_terminate(target, backend))
        .await
        .unwrap_or_else(|elapsed| Err(elapsed.into()));
    if let Err(error) = asked {
        tracing::warn!(pid = backend.pid, error, "ending a backend failed");
    }
}

async fn request_terminate(
    target: &ConnectTarget,
    backend: Backend,
) -> Result<(), Box<dyn StdError + Send + Sync>> {
    let stream = target.connect().await?;
    let mut config = tokio_postgres::Config::new();
    config
        .user(ADMIN)
        .dbname(DATABASE)
        .options("-c search_path=pg_catalog");
    let (client, connection) = config.connect_raw(stream, NoTls).await?;
    let connection = tokio::spawn(connection);
    // A process id may be another backend's by now. That one began after the cancel, so within the grace.
    let ended = client
        .execute(
            "select pg_catalog.pg_terminate_backend(pid) from pg_catalog.pg_stat_activity
             where pid = $1 and backend_start < pg_catalog.clock_timestamp() - interval '1 second'",
            &[&backend.pid],
        )
        .await;
    connection.abort();
    ended?;
    Ok(())
}
