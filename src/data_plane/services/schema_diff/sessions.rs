//! Sockets by which the process that compares schemas reaches exactly two databases.
//!
//! The process has no password. Gantry logs in for it, as the owner of the database, and passes
//! the bytes after the login on. Its first message is ignored, so it gets no other role and no
//! other database.

use std::{
    fs::{self, Permissions},
    io,
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::Arc,
};

use bytes::BytesMut;
use postgres_protocol::message::frontend;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{UnixListener, UnixStream},
    sync::Semaphore,
    task::JoinHandle,
    time::timeout,
};

use super::DIFF_MAX;
use crate::{
    base::supervisor::ProcessOwner,
    data_plane::{
        clusters,
        database_session::{DATABASE, OWNER, session::ConnectTarget},
    },
};

/// Concurrent sessions of one database.
const SESSIONS_MAX: usize = 4;
/// Largest first message of a client, in bytes. PostgreSQL has the same bound.
const STARTUP_BYTES_MAX: usize = 10_000;

/// A listening socket. Its sessions end when it is dropped.
#[derive(Debug)]
pub(super) struct SessionSocket(JoinHandle<()>);

impl Drop for SessionSocket {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl SessionSocket {
    /// Listens at `path` for the processes of `owner`.
    pub(super) fn listen(
        path: &Path,
        owner: ProcessOwner,
        target: ConnectTarget,
    ) -> io::Result<Self> {
        let listener = UnixListener::bind(path)?;
        fs::set_permissions(path, Permissions::from_mode(0o600))?;
        owner.own(path)?;
        Ok(Self(tokio::spawn(run(listener, target))))
    }
}

async fn run(listener: UnixListener, target: ConnectTarget) {
    let permits = Arc::new(Semaphore::new(SESSIONS_MAX));
    let mut sessions = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        while sessions.try_join_next().is_some() {}
        let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else {
            continue;
        };
        let target = target.clone();
        sessions.spawn(async move {
            if let Ok(Err(error)) = timeout(DIFF_MAX, serve(stream, &target)).await {
                tracing::debug!(%error, "session of a comparison of schemas ended");
            }
            drop(permit);
        });
    }
}

async fn serve(mut client: UnixStream, target: &ConnectTarget) -> io::Result<()> {
    let length = client.read_u32().await?;
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if !(8..=STARTUP_BYTES_MAX).contains(&length) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut ignored = vec![0; length - 4];
    client.read_exact(&mut ignored).await?;
    let mut server = target.connect().await?;
    let (user, setting) = clusters::peer_login(OWNER);
    let statement_timeout = DIFF_MAX.as_millis().to_string();
    let ours = [
        ("user", user),
        ("database", DATABASE),
        ("client_encoding", "UTF8"),
        ("application_name", "gantry diff"),
        ("default_transaction_read_only", "on"),
        ("statement_timeout", &statement_timeout),
        ("lock_timeout", "5000"),
        ("client_connection_check_interval", "2000"),
    ];
    let mut startup = BytesMut::new();
    frontend::startup_message(ours.into_iter().chain(setting), &mut startup)?;
    server.write_all(&startup).await?;
    copy_bidirectional(&mut client, &mut server).await.map(drop)
}
