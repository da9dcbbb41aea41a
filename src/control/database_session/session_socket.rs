//! Sockets by which a program reaches exactly one database, with one login.
//!
//! The program has no password. Gantry logs in for it, and passes the bytes after the login on. Its
//! first message is ignored, so it gets no other role and no other database.

use std::{
    fs::{self, Permissions},
    io,
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::Arc,
    time::Duration,
};

use bytes::BytesMut;
use gantry_node::{clusters, supervisor::ProcessOwner};
use postgres_protocol::message::frontend;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{UnixListener, UnixStream},
    sync::Semaphore,
    task::JoinHandle,
    time::timeout,
};

use super::{DATABASE, session::ConnectTarget};

/// Concurrent sessions of one database.
const SESSIONS_MAX: usize = 4;
/// Largest first message of a client, in bytes. PostgreSQL has the same bound.
const STARTUP_BYTES_MAX: usize = 10_000;
/// Time limit of the first messages of a client.
const STARTUP_MAX: Duration = Duration::from_secs(30);
/// Codes of the requests for TLS and for encryption by GSSAPI, which precede the first message.
const ENCRYPTION_REQUESTS: [u32; 2] = [80_877_103, 80_877_104];

/// The login of the sessions of a socket.
#[derive(Debug, Clone)]
pub(in crate::control) struct SessionLogin {
    /// The role. Gantry's account must be able to log in as it.
    role: &'static str,
    application: &'static str,
    /// Further settings.
    settings: Vec<(&'static str, String)>,
    /// Time limit of a session and of its statements.
    lifetime: Option<Duration>,
}

impl SessionLogin {
    /// A login without a time limit.
    pub(in crate::control) fn unbounded(role: &'static str, application: &'static str) -> Self {
        Self {
            role,
            application,
            settings: Vec::new(),
            lifetime: None,
        }
    }

    /// A login that reads only, within a time limit.
    pub(in crate::control) fn reading(
        role: &'static str,
        application: &'static str,
        lifetime: Duration,
    ) -> Self {
        let milliseconds = lifetime.as_millis().to_string();
        Self {
            settings: vec![
                ("default_transaction_read_only", "on".to_owned()),
                ("statement_timeout", milliseconds),
                ("lock_timeout", "5000".to_owned()),
            ],
            lifetime: Some(lifetime),
            ..Self::unbounded(role, application)
        }
    }
}

/// A listening socket. Its sessions end when it is dropped.
#[derive(Debug)]
pub(in crate::control) struct SessionSocket(JoinHandle<()>);

impl Drop for SessionSocket {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl SessionSocket {
    /// Listens at `path` for the processes of `owner`.
    pub(in crate::control) fn listen(
        path: &Path,
        owner: ProcessOwner,
        target: ConnectTarget,
        login: SessionLogin,
    ) -> io::Result<Self> {
        let listener = UnixListener::bind(path)?;
        fs::set_permissions(path, Permissions::from_mode(0o600))?;
        owner.own(path)?;
        Ok(Self(tokio::spawn(run(listener, target, login))))
    }
}

async fn run(listener: UnixListener, target: ConnectTarget, login: SessionLogin) {
    let permits = Arc::new(Semaphore::new(SESSIONS_MAX));
    let mut sessions = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        while sessions.try_join_next().is_some() {}
        let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else {
            continue;
        };
        let (target, login) = (target.clone(), login.clone());
        sessions.spawn(async move {
            let session = serve(stream, &target, &login);
            let ended = match login.lifetime {
                Some(lifetime) => timeout(lifetime, session).await.unwrap_or(Ok(())),
                None => session.await,
            };
            if let Err(error) = ended {
                tracing::debug!(%error, application = login.application, "session of a program ended");
            }
            drop(permit);
        });
    }
}

/// Serves one connection of a program.
pub(in crate::control) async fn serve(
    mut client: UnixStream,
    target: &ConnectTarget,
    login: &SessionLogin,
) -> io::Result<()> {
    timeout(STARTUP_MAX, read_startup(&mut client)).await??;
    let mut server = target.connect().await?;
    let (user, setting) = clusters::peer_login(login.role);
    let mut ours = vec![
        ("user", user),
        ("database", DATABASE),
        ("client_encoding", "UTF8"),
        ("application_name", login.application),
        ("client_connection_check_interval", "2000"),
        clusters::NO_LIBRARIES,
    ];
    ours.extend(setting);
    for (name, value) in &login.settings {
        ours.push((name, value));
    }
    let mut startup = BytesMut::new();
    frontend::startup_message(ours, &mut startup)?;
    server.write_all(&startup).await?;
    copy_bidirectional(&mut client, &mut server).await.map(drop)
}

/// Reads the first message of a client, and ignores it. Requests for encryption are declined.
async fn read_startup(client: &mut UnixStream) -> io::Result<()> {
    for _ in 0..=ENCRYPTION_REQUESTS.len() {
        let length = usize::try_from(client.read_u32().await?).unwrap_or(usize::MAX);
        if !(8..=STARTUP_BYTES_MAX).contains(&length) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let code = client.read_u32().await?;
        let mut ignored = vec![0; length - 8];
        client.read_exact(&mut ignored).await?;
        if !ENCRYPTION_REQUESTS.contains(&code) {
            return Ok(());
        }
        client.write_all(b"N").await?;
    }
    Err(io::ErrorKind::InvalidData.into())
}
