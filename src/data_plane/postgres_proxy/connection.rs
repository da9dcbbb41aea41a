//! Serves one client connection: startup, login at the project's server, then the session.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::AsFd,
    time::Duration,
};

use bytes::BytesMut;
use gantry_base::{
    clock::Ticks,
    ids::{ProjectId, ProjectRef},
    net::connection_limit::ConnectionPermit,
};
use gantry_node::clusters::ServerSocket;
use rustix::net::sockopt;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpStream, UnixStream},
    time::{sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::{
    CancelRegistration, LoginPermits, PostgresProxyTls, SessionKind, login,
    login::LoginOutcome,
    message_stream::MessageStream,
    pipe,
    pipe::PipeEnd,
    pooled,
    rejection::ConnectionRejection,
    session_target,
    session_target::SessionTarget,
    startup,
    startup::{CancelKey, StartupMessage, StartupRequest},
};
use crate::{
    data_plane::{
        context::DataPlaneContext,
        database_access::{self, ConnectionAdmission, bans},
        projects::{self, Status},
        services::{ServiceUse, pooler},
        temporary_access,
    },
    platform::error::Error,
};

/// Timeout for the startup request, TLS handshake included.
const OPENING: Duration = Duration::from_secs(10);
/// Timeout for the login, and for the first answer of a pooler.
pub(super) const LOGIN: Duration = Duration::from_secs(30);
/// Time that a connection waits for a project that is starting.
const READY: Duration = Duration::from_secs(15);
/// Timeout for connecting to a server, and for forwarding a cancel request.
const CONNECT: Duration = Duration::from_secs(5);
/// Pause before another attempt to connect to a server with a full accept queue.
const QUEUE: Duration = Duration::from_millis(10);
/// Time that a rejected client gets to read the error.
const FAREWELL: Duration = Duration::from_secs(1);
/// Bytes that are read from a rejected client, so that the error is not lost with a connection
/// reset.
const FAREWELL_BYTES_MAX: usize = 64 * 1024;
/// Duration of a ban after too many wrong passwords.
const BAN: chrono::TimeDelta = chrono::TimeDelta::minutes(30);
/// TCP keepalive: idle time, interval and number of probes.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_mins(1), Duration::from_secs(10), 6);
/// First byte of a TLS record, sent by clients that negotiate TLS directly.
const TLS_RECORD: u8 = 0x16;
/// Encryption requests before the startup message: one for TLS and one for GSSAPI.
const QUESTIONS_MAX: usize = 2;

/// A client connection, with or without TLS.
enum ClientStream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// A client that requests a session.
struct SessionRequest<C> {
    client: C,
    peer: SocketAddr,
    /// Server name of the TLS handshake.
    sni: Option<String>,
    encrypted: bool,
    kind: SessionKind,
    startup: StartupMessage,
}

/// Purpose of a connection.
enum Intent {
    Session(ClientStream, Box<StartupMessage>),
    Cancel(CancelKey),
    /// The connection was closed, or its startup request is rejected.
    None(Option<(ClientStream, ConnectionRejection)>),
}

/// Serves a connection until it ends. `login_permits` is released after the login.
pub(super) async fn serve(
    context: &DataPlaneContext,
    (stream, peer): (TcpStream, SocketAddr),
    tls: Option<PostgresProxyTls>,
    kind: SessionKind,
    login_permits: LoginPermits,
) {
    if let Err(error) = prepare(&stream) {
        tracing::debug!(%error, "failed to configure a client connection");
        return;
    }
    let opened = Box::pin(timeout(OPENING, open(stream, tls))).await;
    match opened {
        Ok(Ok(Intent::Session(ClientStream::Plain(client), startup))) => {
            session(
                context,
                SessionRequest {
                    client,
                    peer,
                    sni: None,
                    encrypted: false,
                    kind,
                    startup: *startup,
                },
                login_permits,
            )
            .await;
        }
        Ok(Ok(Intent::Session(ClientStream::Tls(client), startup))) => {
            let sni = client.get_ref().1.server_name().map(str::to_owned);
            session(
                context,
                SessionRequest {
                    client,
                    peer,
                    sni,
                    encrypted: true,
                    kind,
                    startup: *startup,
                },
                login_permits,
            )
            .await;
        }
        Ok(Ok(Intent::Cancel(key))) => cancel(context, key).await,
        Ok(Ok(Intent::None(Some((ClientStream::Plain(stream), rejection))))) => {
            refuse(context, stream, &rejection).await;
        }
        Ok(Ok(Intent::None(Some((ClientStream::Tls(stream), rejection))))) => {
            refuse(context, stream, &rejection).await;
        }
        // The client disconnected, or sent nothing.
        Ok(Ok(Intent::None(None)) | Err(_)) => {}
        Err(_) => context
            .data_plane_metrics
            .postgres_proxy
            .count(ConnectionRejection::Late.outcome()),
    }
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (after, every, times) = KEEPALIVE;
    sockopt::set_socket_keepalive(stream.as_fd(), true)?;
    sockopt::set_tcp_keepidle(stream.as_fd(), after)?;
    sockopt::set_tcp_keepintvl(stream.as_fd(), every)?;
    sockopt::set_tcp_keepcnt(stream.as_fd(), times)?;
    Ok(())
}

/// Reads startup requests until the client asks for a session or a cancellation. Negotiates TLS if
/// requested.
async fn open(mut stream: TcpStream, tls: Option<PostgresProxyTls>) -> io::Result<Intent> {
    let mut first = [0];
    if stream.peek(&mut first).await? == 0 {
        return Ok(Intent::None(None));
    }
    if first == [TLS_RECORD] {
        return match tls {
            Some(tls) => open_encrypted(stream, &tls).await,
            None => Ok(Intent::None(None)),
        };
    }
    for _ in 0..=QUESTIONS_MAX {
        match opening(&mut stream).await? {
            Ok(StartupRequest::Tls) => {
                if let Some(tls) = &tls {
                    // Only the request itself was read, so bytes sent in plain text cannot pass as
                    // encrypted.
                    stream.write_all(b"S").await?;
                    return open_encrypted(stream, tls).await;
                }
                stream.write_all(b"N").await?;
            }
            Ok(StartupRequest::Gss) => stream.write_all(b"N").await?,
            Ok(StartupRequest::Cancel(key)) => return Ok(Intent::Cancel(key)),
            Ok(StartupRequest::Start(startup)) => {
                return Ok(Intent::Session(
                    ClientStream::Plain(stream),
                    Box::new(startup),
                ));
            }
            Err(rejection) => {
                return Ok(Intent::None(Some((ClientStream::Plain(stream), rejection))));
            }
        }
    }
    Ok(Intent::None(Some((
        ClientStream::Plain(stream),
        ConnectionRejection::Malformed("too many requests for encryption"),
    ))))
}

async fn open_encrypted(stream: TcpStream, tls: &PostgresProxyTls) -> io::Result<Intent> {
    let mut stream = Box::new(TlsAcceptor::from(tls.0.clone()).accept(stream).await?);
    let rejection = match opening(&mut stream).await? {
        Ok(StartupRequest::Cancel(key)) => return Ok(Intent::Cancel(key)),
        Ok(StartupRequest::Start(startup)) => {
            return Ok(Intent::Session(
                ClientStream::Tls(stream),
                Box::new(startup),
            ));
        }
        Ok(StartupRequest::Tls | StartupRequest::Gss) => {
            ConnectionRejection::Malformed("the connection is encrypted already")
        }
        Err(rejection) => rejection,
    };
    Ok(Intent::None(Some((ClientStream::Tls(stream), rejection))))
}

/// Reads exactly one startup packet.
async fn opening<S: AsyncRead + Unpin>(
    stream: &mut S,
) -> io::Result<Result<StartupRequest, ConnectionRejection>> {
    let mut prefix = [0; 4];
    stream.read_exact(&mut prefix).await?;
    let length = match startup::opening_length(prefix) {
        Ok(length) => length,
        Err(rejection) => return Ok(Err(rejection)),
    };
    let mut packet = vec![0; length - 4];
    stream.read_exact(&mut packet).await?;
    Ok(startup::opening(&packet))
}

/// Sends the error to a rejected client.
async fn refuse<S: AsyncRead + AsyncWrite + Unpin>(
    context: &DataPlaneContext,
    mut stream: S,
    rejection: &ConnectionRejection,
) {
    context
        .data_plane_metrics
        .postgres_proxy
        .count(rejection.outcome());
    let farewell = async {
        stream.write_all(&rejection.message()).await?;
        stream.shutdown().await?;
        // Closing with unread bytes resets the connection, and the error may be lost.
        let mut rest = [0; 1024];
        let mut read = 0;
        while read < FAREWELL_BYTES_MAX {
            match stream.read(&mut rest).await? {
                0 => break,
                n => read += n,
            }
        }
        io::Result::Ok(())
    };
    // The client may have disconnected.
    let _ = timeout(FAREWELL, farewell).await;
}

/// Forwards a cancel request to the server that issued the key. The client is not told whether the
/// key is known.
async fn cancel(context: &DataPlaneContext, key: CancelKey) {
    context.data_plane_metrics.postgres_proxy.count("cancel");
    let Some(socket) = context.postgres_proxy.keys.lock().get(&key).cloned() else {
        return;
    };
    let request = timeout(CONNECT, async {
        let mut server = socket.connect().await?;
        server.write_all(&key.request()).await?;
        // The server closes the connection once it has sent the signal; the client waits for that.
        server.read(&mut [0]).await
    });
    if let Ok(Err(error)) = request.await {
        tracing::debug!(%error, "failed to forward a cancel request");
    }
}

/// A session after its login.
struct ProxySession<C> {
    client: C,
    server: UnixStream,
    early: (BytesMut, BytesMut),
    _place: ConnectionPermit<ProjectId>,
    /// Keeps the pooler running.
    _pooler: Option<ServiceUse>,
    _cancellable: Option<CancelRegistration>,
}

async fn session<C: AsyncRead + AsyncWrite + Unpin>(
    context: &DataPlaneContext,
    request: SessionRequest<C>,
    login_permits: LoginPermits,
) {
    // Boxed, so that an idle session does not hold the memory of its login.
    let begun = Box::pin(begin(context, request)).await;
    drop(login_permits);
    let Some(mut session) = begun else { return };
    context.data_plane_metrics.postgres_proxy.count("session");
    context
        .data_plane_metrics
        .postgres_proxy
        .sessions
        .increment(1.0);
    let early = std::mem::take(&mut session.early);
    let ended = pipe::run(
        &mut session.client,
        &mut session.server,
        early,
        context.postgres_proxy.shutdown.cancelled(),
    )
    .await;
    context
        .data_plane_metrics
        .postgres_proxy
        .sessions
        .decrement(1.0);
    if ended == PipeEnd::Stopped {
        refuse(context, session.client, &ConnectionRejection::Stopping).await;
    } else {
        // Flushes buffered TLS data and sends the closing alert.
        let _ = timeout(FAREWELL, session.client.shutdown()).await;
    }
}

/// Finds the project's server and logs in there. Rejects the client on failure.
async fn begin<C: AsyncRead + AsyncWrite + Unpin>(
    context: &DataPlaneContext,
    request: SessionRequest<C>,
) -> Option<ProxySession<C>> {
    let SessionRequest {
        client,
        peer,
        sni,
        encrypted,
        kind,
        startup,
    } = request;
    let is_pooled = kind == SessionKind::Pooled && pooler::is_installed(context);
    let prepared = async {
        let named =
            session_target::find(&startup, sni.as_deref(), &context.settings.project_domain)?;
        let options = if is_pooled {
            // The pooler accepts none of its own.
            pooled::check(&startup, &named.user)?;
            named.options.clone()
        } else {
            Some(startup::without_libraries(named.options.as_deref()))
        };
        let packet = startup.packet(&named.user, options.as_deref())?;
        let door = admit(context, &named, peer, encrypted).await?;
        let proxy = &context.postgres_proxy;
        let (limit, max) = if is_pooled {
            (&proxy.pooled, door.connections.pooled)
        } else {
            (&proxy.projects, door.connections.direct)
        };
        let place = limit
            .try_acquire_within(door.id, usize::try_from(max).unwrap_or(usize::MAX))
            .ok_or(ConnectionRejection::ProjectFull)?;
        let (pooler, socket, server) = if is_pooled {
            let connected = pooled::connect(context, door.id, &named.project, &packet).await?;
            (Some(connected.pooler), connected.socket, connected.server)
        } else {
            let socket = context.driver.socket(&named.project);
            let mut server = MessageStream::new(reach(&socket).await?);
            let sent = server.send(&packet).await;
            sent.map_err(|_| ConnectionRejection::Away)?;
            (None, socket, server)
        };
        Ok((named, door, (place, pooler), socket, server))
    };
    let (named, door, (place, pooler), socket, mut server) = match prepared.await {
        Ok(prepared) => prepared,
        Err(rejection) => {
            refuse(context, client, &rejection).await;
            return None;
        }
    };
    let mut client = MessageStream::new(client);
    let login = login::relay(&mut client, &mut server, is_pooled.then_some(&*named.user));
    let rejection = match timeout(LOGIN, login).await {
        Ok(Ok(LoginOutcome::In(key))) => {
            let cancellable = key.map(|key| CancelRegistration::new(context, key, socket));
            let ((client, sent), (server, answered)) = (client.into_parts(), server.into_parts());
            return Some(ProxySession {
                client,
                server,
                early: (sent, answered),
                _place: place,
                _pooler: pooler,
                _cancellable: cancellable,
            });
        }
        Ok(Ok(LoginOutcome::Out { wrong_password })) => {
            if wrong_password {
                context
                    .data_plane_metrics
                    .postgres_proxy
                    .count("wrong password");
                note_failure(context, &door, &named.project, peer).await;
            }
            return None;
        }
        Ok(Ok(LoginOutcome::Refused(rejection))) => {
            if rejection == ConnectionRejection::Unguarded {
                tracing::warn!(project = %named.project, "the project's server does not authenticate by SCRAM-SHA-256; connections are rejected");
            }
            rejection
        }
        // The client or the server disconnected.
        Ok(Err(_)) => return None,
        Err(_) => ConnectionRejection::Late,
    };
    refuse(context, client.into_parts().0, &rejection).await;
    None
}

/// Checks the access rules of a project. Waits for a server that is starting, and starts one that
/// was stopped for lack of use.
async fn admit(
    context: &DataPlaneContext,
    named: &SessionTarget,
    peer: SocketAddr,
    encrypted: bool,
) -> Result<ConnectionAdmission, ConnectionRejection> {
    let open = async {
        loop {
            let door = door(context, named, peer.ip(), encrypted).await?;
            match door.status {
                Status::ActiveHealthy if !door.asleep => {
                    match projects::note_use(context, door.id).await {
                        // No project is stopped for lack of use while the control database is
                        // unreachable.
                        Ok(()) | Err(Error::Unavailable { .. }) => return Ok(door),
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
                    projects::wake(context, door.id, &named.project)
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
async fn door(
    context: &DataPlaneContext,
    named: &SessionTarget,
    address: IpAddr,
    encrypted: bool,
) -> Result<ConnectionAdmission, ConnectionRejection> {
    let door = database_access::admission(context, &named.project, address)
        .await
        .map_err(|error| fault(&error))?
        .ok_or(ConnectionRejection::Unknown)?;
    if door.banned {
        return Err(ConnectionRejection::Banned);
    }
    if !door.admitted
        || !temporary_access::permits_address(context, door.id, &named.user, address)
            .await
            .map_err(|error| fault(&error))?
    {
        return Err(ConnectionRejection::Restricted);
    }
    if door.tls_required && !encrypted {
        return Err(ConnectionRejection::TlsRequired);
    }
    if !door.here {
        return Err(ConnectionRejection::Elsewhere);
    }
    Ok(door)
}

fn fault(error: &Error) -> ConnectionRejection {
    if matches!(error, Error::Unavailable { .. }) {
        return ConnectionRejection::ControlAway;
    }
    tracing::error!(%error, "failed to check access to a database");
    ConnectionRejection::Fault
}

/// Connects to a server.
pub(super) async fn reach(socket: &ServerSocket) -> Result<UnixStream, ConnectionRejection> {
    let reached = async {
        loop {
            match socket.connect().await {
                // The server's accept queue is full, and nothing announces free space in it.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(QUEUE).await,
                other => return other,
            }
        }
    };
    match timeout(CONNECT, reached).await {
        Ok(Ok(server)) => Ok(server),
        Ok(Err(error)) => {
            tracing::debug!(%error, socket = %socket.path().display(), "project server unreachable");
            Err(ConnectionRejection::Away)
        }
        Err(_) => Err(ConnectionRejection::ProjectFull),
    }
}

/// Counts a wrong password, and bans the address after too many.
async fn note_failure(
    context: &DataPlaneContext,
    door: &ConnectionAdmission,
    project: &ProjectRef,
    peer: SocketAddr,
) {
    let block = bans::network_of(peer.ip());
    let now: Ticks = context.clock.ticks();
    if !context.postgres_proxy.failures.note(door.id, block, now) {
        return;
    }
    tracing::info!(project = %door.id, address = %block, "address banned after too many wrong passwords");
    if let Err(error) = bans::ban(context, door.id, project, block, context.clock.now() + BAN).await
    {
        tracing::error!(%error, "failed to ban an address");
    }
}
