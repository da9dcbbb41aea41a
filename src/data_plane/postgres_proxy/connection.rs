//! One connection, from its first byte to its last.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::AsFd,
    time::Duration,
};

use bytes::BytesMut;
use rustix::net::sockopt;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpStream, UnixStream},
    time::{sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::{
    CancelRegistration, LoginPermits, PostgresProxyTls, login,
    login::LoginOutcome,
    message_stream::MessageStream,
    pipe,
    pipe::PipeEnd,
    rejection::ConnectionRejection,
    session_target,
    session_target::SessionTarget,
    startup,
    startup::{CancelKey, StartupMessage, StartupRequest},
};
use crate::{
    base::{
        clock::Ticks,
        error::Error,
        ids::{ProjectId, ProjectRef},
        net::connection_limit::ConnectionPermit,
    },
    data_plane::{
        clusters::ServerSocket,
        context::DataPlaneContext,
        database_access,
        database_access::{Door, bans},
        projects,
        projects::Status,
        temporary_access,
    },
};

/// What a client gets to say what it wants, TLS included.
const OPENING: Duration = Duration::from_secs(10);
/// What client and server together get to log in.
const LOGIN: Duration = Duration::from_secs(30);
/// How long a connection waits for a project that is just starting.
const READY: Duration = Duration::from_secs(15);
/// One attempt to reach a server; passing on a cancel request.
const CONNECT: Duration = Duration::from_secs(5);
/// The pause before a server whose queue was full is asked again.
const QUEUE: Duration = Duration::from_millis(10);
/// What a client that is turned away gets to take its leave.
const FAREWELL: Duration = Duration::from_secs(1);
/// Bytes a client that is turned away may still send, so that the answer is not lost with them.
const FAREWELL_BYTES_MAX: usize = 64 * 1024;
/// How long too many wrong passwords ban an address.
const BAN: chrono::TimeDelta = chrono::TimeDelta::minutes(30);
/// A connection that was silent for so long is asked whether it is still there, so often and so many times.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_mins(1), Duration::from_secs(10), 6);
/// The first byte of TLS itself: some clients do not ask before.
const TLS_RECORD: u8 = 0x16;
/// Questions before a session is asked for: one for TLS and one for Kerberos.
const QUESTIONS_MAX: usize = 2;

/// A client that asked for a session.
enum ClientStream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// A client that asked for a session, and how it came.
struct SessionRequest<C> {
    client: C,
    peer: SocketAddr,
    /// The name it asked for with TLS.
    sni: Option<String>,
    encrypted: bool,
    startup: StartupMessage,
}

/// What a connection is for.
enum Intent {
    Session(ClientStream, Box<StartupMessage>),
    Cancel(CancelKey),
    /// Nothing, or nothing that could be understood.
    None(Option<(ClientStream, ConnectionRejection)>),
}

/// Serves one connection to its end. `login_permits` is given back when it is logged in.
pub(super) async fn serve(
    context: &DataPlaneContext,
    stream: TcpStream,
    peer: SocketAddr,
    tls: Option<PostgresProxyTls>,
    login_permits: LoginPermits,
) {
    if let Err(error) = prepare(&stream) {
        tracing::debug!(%error, "a connection broke before it began");
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
                    startup: *startup,
                },
                login_permits,
            )
            .await;
        }
        Ok(Ok(Intent::Cancel(key))) => cancel(context, key).await,
        Ok(Ok(Intent::None(Some((ClientStream::Plain(stream), rejection))))) => {
            refuse(context, stream, &rejection).await
        }
        Ok(Ok(Intent::None(Some((ClientStream::Tls(stream), rejection))))) => {
            refuse(context, stream, &rejection).await
        }
        // Nobody is left to tell, or said nothing at all.
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

/// Reads until the client has said what it wants, with TLS if it asked for that.
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
                    // Only what was asked was read: nothing sent in clear can pass for something encrypted.
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

/// One opening packet, and not a byte more.
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

/// Tells a client why it is turned away.
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
        // Closing with bytes unread resets the connection, and the answer may be lost.
        let (mut rest, mut read) = ([0; 1024], 0);
        while read < FAREWELL_BYTES_MAX {
            match stream.read(&mut rest).await? {
                0 => break,
                n => read += n,
            }
        }
        io::Result::Ok(())
    };
    // It may be gone already.
    let _ = timeout(FAREWELL, farewell).await;
}

/// Passes a cancel request on to the server that knows the key, and to no other. Nobody is told whether there was one.
async fn cancel(context: &DataPlaneContext, key: CancelKey) {
    context.data_plane_metrics.postgres_proxy.count("cancel");
    let Some(socket) = context.postgres_proxy.keys.lock().get(&key).cloned() else {
        return;
    };
    let asked = timeout(CONNECT, async {
        let mut server = socket.connect().await?;
        server.write_all(&key.request()).await?;
        // The server closes once it has sent the signal; the client waits for us to do the same.
        server.read(&mut [0]).await
    });
    if let Ok(Err(error)) = asked.await {
        tracing::debug!(%error, "a cancel request could not be passed on");
    }
}

/// A session that is logged in.
struct Session<C> {
    client: C,
    server: UnixStream,
    early: (BytesMut, BytesMut),
    _place: ConnectionPermit<ProjectId>,
    _cancellable: Option<CancelRegistration>,
}

async fn session<C: AsyncRead + AsyncWrite + Unpin>(
    context: &DataPlaneContext,
    asked: SessionRequest<C>,
    login_permits: LoginPermits,
) {
    // Boxed, so that a session that waits does not carry the room its login took.
    let begun = Box::pin(begin(context, asked)).await;
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
        // What is still in a buffer of TLS, and its last words.
        let _ = timeout(FAREWELL, session.client.shutdown()).await;
    }
}

/// Finds the project's server and logs in there; or tells the client why not.
async fn begin<C: AsyncRead + AsyncWrite + Unpin>(
    context: &DataPlaneContext,
    asked: SessionRequest<C>,
) -> Option<Session<C>> {
    let SessionRequest {
        client,
        peer,
        sni,
        encrypted,
        startup,
    } = asked;
    let prepared = async {
        let named =
            session_target::find(&startup, sni.as_deref(), &context.settings.project_domain)?;
        let packet = startup.packet(&named.user, named.options.as_deref())?;
        let door = admit(context, &named, peer, encrypted).await?;
        let place = context
            .postgres_proxy
            .projects
            .try_acquire(door.id)
            .ok_or(ConnectionRejection::ProjectFull)?;
        let socket = context.clusters.socket(&named.project);
        let server = reach(&socket).await?;
        Ok((named, door, place, socket, server, packet))
    };
    let (named, door, place, socket, server, packet) = match prepared.await {
        Ok(prepared) => prepared,
        Err(rejection) => {
            refuse(context, client, &rejection).await;
            return None;
        }
    };
    let (mut client, mut server) = (MessageStream::new(client), MessageStream::new(server));
    let login = async {
        server.send(&packet).await?;
        login::relay(&mut client, &mut server).await
    };
    let rejection = match timeout(LOGIN, login).await {
        Ok(Ok(LoginOutcome::In(key))) => {
            let cancellable = key.map(|key| CancelRegistration::new(context, key, socket));
            let ((client, sent), (server, answered)) = (client.into_parts(), server.into_parts());
            return Some(Session {
                client,
                server,
                early: (sent, answered),
                _place: place,
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
                tracing::warn!(project = %named.project, "the project's server lets somebody in without SCRAM-SHA-256; nobody gets there through the router");
            }
            rejection
        }
        // One of the two hung up.
        Ok(Err(_)) => return None,
        Err(_) => ConnectionRejection::Late,
    };
    refuse(context, client.into_parts().0, &rejection).await;
    None
}

/// Lets a client come to a project, or says why not. Waits for a server that is just starting, and starts one that sleeps.
async fn admit(
    context: &DataPlaneContext,
    named: &SessionTarget,
    peer: SocketAddr,
    encrypted: bool,
) -> Result<Door, ConnectionRejection> {
    let open = async {
        loop {
            let door = door(context, named, peer.ip(), encrypted).await?;
            match door.status {
                Status::ActiveHealthy if !door.asleep => {
                    match projects::note_use(context, door.id).await {
                        // Nothing puts a project to sleep while the control database is away.
                        Ok(()) | Err(Error::Unavailable { .. }) => return Ok(door),
                        Err(error) => return Err(fault(&error)),
                    }
                }
                Status::Pausing | Status::Inactive => return Err(ConnectionRejection::Paused),
                Status::GoingDown | Status::Removed => return Err(ConnectionRejection::Unknown),
                Status::InitFailed | Status::PauseFailed | Status::RestoreFailed => {
                    return Err(ConnectionRejection::Away);
                }
                // Then the door is looked at once more: its rules may have changed meanwhile.
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

/// The project's door, if its rules let this client through it.
async fn door(
    context: &DataPlaneContext,
    named: &SessionTarget,
    address: IpAddr,
    encrypted: bool,
) -> Result<Door, ConnectionRejection> {
    let door = database_access::door(context, &named.project, address)
        .await
        .map_err(|error| fault(&error))?
        .ok_or(ConnectionRejection::Unknown)?;
    if door.banned {
        return Err(ConnectionRejection::Banned);
    }
    if !door.admitted
        || !temporary_access::admits(context, door.id, &named.user, address)
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
    tracing::error!(%error, "a connection to a database was refused");
    ConnectionRejection::Fault
}

async fn reach(socket: &ServerSocket) -> Result<UnixStream, ConnectionRejection> {
    let reached = async {
        loop {
            match socket.connect().await {
                // More come at once than the server has room for in its queue, and nothing announces that there is some.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(QUEUE).await,
                other => return other,
            }
        }
    };
    match timeout(CONNECT, reached).await {
        Ok(Ok(server)) => Ok(server),
        Ok(Err(error)) => {
            tracing::debug!(%error, socket = %socket.path().display(), "a project's server cannot be reached");
            Err(ConnectionRejection::Away)
        }
        Err(_) => Err(ConnectionRejection::ProjectFull),
    }
}

/// Counts a wrong password against the address, and bans it when there were too many.
async fn note_failure(
    context: &DataPlaneContext,
    door: &Door,
    project: &ProjectRef,
    peer: SocketAddr,
) {
    let (block, now): (_, Ticks) = (bans::block(peer.ip()), context.clock.ticks());
    if !context.postgres_proxy.failures.note(door.id, block, now) {
        return;
    }
    tracing::info!(project = %door.id, address = %block, "banned: too many wrong passwords");
    if let Err(error) = bans::ban(context, door.id, project, block, context.clock.now() + BAN).await
    {
        tracing::error!(%error, "an address could not be banned");
    }
}
