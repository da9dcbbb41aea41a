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
    Cancellable, Entry, Tls, login,
    login::Outcome,
    named,
    named::Named,
    packet,
    packet::{CancelKey, Opening, Startup},
    pipe,
    pipe::Ended,
    refusal::Refusal,
    wire::Wire,
};
use crate::{
    base::{
        clock::Ticks,
        error::Error,
        ids::{ProjectId, ProjectRef},
        net::connection_limit::Place,
    },
    data_plane::{
        clusters::ServerSocket,
        context::DataPlaneContext,
        database_access,
        database_access::{ConnectionAdmission, bans},
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
enum Client {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// A client that asked for a session, and how it came.
struct Asked<C> {
    client: C,
    peer: SocketAddr,
    /// The name it asked for with TLS.
    sni: Option<String>,
    encrypted: bool,
    startup: Startup,
}

/// What a connection is for.
enum Wish {
    Session(Client, Box<Startup>),
    Cancel(CancelKey),
    /// Nothing, or nothing that could be understood.
    None(Option<(Client, Refusal)>),
}

/// Serves one connection to its end. `entry` is given back when it is logged in.
pub(super) async fn serve(
    context: &DataPlaneContext,
    stream: TcpStream,
    peer: SocketAddr,
    tls: Option<Tls>,
    entry: Entry,
) {
    if let Err(error) = prepare(&stream) {
        tracing::debug!(%error, "a connection broke before it began");
        return;
    }
    let opened = Box::pin(timeout(OPENING, open(stream, tls))).await;
    match opened {
        Ok(Ok(Wish::Session(Client::Plain(client), startup))) => {
            session(
                context,
                Asked {
                    client,
                    peer,
                    sni: None,
                    encrypted: false,
                    startup: *startup,
                },
                entry,
            )
            .await;
        }
        Ok(Ok(Wish::Session(Client::Tls(client), startup))) => {
            let sni = client.get_ref().1.server_name().map(str::to_owned);
            session(
                context,
                Asked {
                    client,
                    peer,
                    sni,
                    encrypted: true,
                    startup: *startup,
                },
                entry,
            )
            .await;
        }
        Ok(Ok(Wish::Cancel(key))) => cancel(context, key).await,
        Ok(Ok(Wish::None(Some((Client::Plain(stream), refusal))))) => {
            refuse(context, stream, &refusal).await
        }
        Ok(Ok(Wish::None(Some((Client::Tls(stream), refusal))))) => {
            refuse(context, stream, &refusal).await
        }
        // Nobody is left to tell, or said nothing at all.
        Ok(Ok(Wish::None(None)) | Err(_)) => {}
        Err(_) => context
            .data_plane_metrics
            .postgres_proxy
            .count(Refusal::Late.outcome()),
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
async fn open(mut stream: TcpStream, tls: Option<Tls>) -> io::Result<Wish> {
    let mut first = [0];
    if stream.peek(&mut first).await? == 0 {
        return Ok(Wish::None(None));
    }
    if first == [TLS_RECORD] {
        return match tls {
            Some(tls) => open_encrypted(stream, &tls).await,
            None => Ok(Wish::None(None)),
        };
    }
    for _ in 0..=QUESTIONS_MAX {
        match opening(&mut stream).await? {
            Ok(Opening::Tls) => {
                if let Some(tls) = &tls {
                    // Only what was asked was read: nothing sent in clear can pass for something encrypted.
                    stream.write_all(b"S").await?;
                    return open_encrypted(stream, tls).await;
                }
                stream.write_all(b"N").await?;
            }
            Ok(Opening::Gss) => stream.write_all(b"N").await?,
            Ok(Opening::Cancel(key)) => return Ok(Wish::Cancel(key)),
            Ok(Opening::Start(startup)) => {
                return Ok(Wish::Session(Client::Plain(stream), Box::new(startup)));
            }
            Err(refusal) => return Ok(Wish::None(Some((Client::Plain(stream), refusal)))),
        }
    }
    Ok(Wish::None(Some((
        Client::Plain(stream),
        Refusal::Malformed("too many requests for encryption"),
    ))))
}

async fn open_encrypted(stream: TcpStream, tls: &Tls) -> io::Result<Wish> {
    let mut stream = Box::new(TlsAcceptor::from(tls.0.clone()).accept(stream).await?);
    let refusal = match opening(&mut stream).await? {
        Ok(Opening::Cancel(key)) => return Ok(Wish::Cancel(key)),
        Ok(Opening::Start(startup)) => {
            return Ok(Wish::Session(Client::Tls(stream), Box::new(startup)));
        }
        Ok(Opening::Tls | Opening::Gss) => {
            Refusal::Malformed("the connection is encrypted already")
        }
        Err(refusal) => refusal,
    };
    Ok(Wish::None(Some((Client::Tls(stream), refusal))))
}

/// One opening packet, and not a byte more.
async fn opening<S: AsyncRead + Unpin>(stream: &mut S) -> io::Result<Result<Opening, Refusal>> {
    let mut prefix = [0; 4];
    stream.read_exact(&mut prefix).await?;
    let length = match packet::opening_length(prefix) {
        Ok(length) => length,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let mut packet = vec![0; length - 4];
    stream.read_exact(&mut packet).await?;
    Ok(packet::opening(&packet))
}

/// Tells a client why it is turned away.
async fn refuse<S: AsyncRead + AsyncWrite + Unpin>(
    context: &DataPlaneContext,
    mut stream: S,
    refusal: &Refusal,
) {
    context
        .data_plane_metrics
        .postgres_proxy
        .count(refusal.outcome());
    let farewell = async {
        stream.write_all(&refusal.message()).await?;
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
    let Some(socket) = context.router.keys.lock().get(&key).cloned() else {
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
    _place: Place<ProjectId>,
    _cancellable: Option<Cancellable>,
}

async fn session<C: AsyncRead + AsyncWrite + Unpin>(
    context: &DataPlaneContext,
    asked: Asked<C>,
    entry: Entry,
) {
    // Boxed, so that a session that waits does not carry the room its login took.
    let begun = Box::pin(begin(context, asked)).await;
    drop(entry);
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
        context.router.stopping(),
    )
    .await;
    context
        .data_plane_metrics
        .postgres_proxy
        .sessions
        .decrement(1.0);
    if ended == Ended::Stopped {
        refuse(context, session.client, &Refusal::Stopping).await;
    } else {
        // What is still in a buffer of TLS, and its last words.
        let _ = timeout(FAREWELL, session.client.shutdown()).await;
    }
}

/// Finds the project's server and logs in there; or tells the client why not.
async fn begin<C: AsyncRead + AsyncWrite + Unpin>(
    context: &DataPlaneContext,
    asked: Asked<C>,
) -> Option<Session<C>> {
    let Asked {
        client,
        peer,
        sni,
        encrypted,
        startup,
    } = asked;
    let prepared = async {
        let named = named::find(&startup, sni.as_deref(), &context.settings.project_domain)?;
        let packet = startup.packet(&named.user, named.options.as_deref())?;
        let door = admit(context, &named, peer, encrypted).await?;
        let place = context
            .router
            .projects
            .take(door.id)
            .ok_or(Refusal::ProjectFull)?;
        let socket = context.driver.socket(&named.project);
        let server = reach(&socket).await?;
        Ok((named, door, place, socket, server, packet))
    };
    let (named, door, place, socket, server, packet) = match prepared.await {
        Ok(prepared) => prepared,
        Err(refusal) => {
            refuse(context, client, &refusal).await;
            return None;
        }
    };
    let (mut client, mut server) = (Wire::new(client), Wire::new(server));
    let login = async {
        server.send(&packet).await?;
        login::relay(&mut client, &mut server).await
    };
    let refusal = match timeout(LOGIN, login).await {
        Ok(Ok(Outcome::In(key))) => {
            let cancellable = key.map(|key| Cancellable::new(context, key, socket));
            let ((client, sent), (server, answered)) = (client.into_parts(), server.into_parts());
            return Some(Session {
                client,
                server,
                early: (sent, answered),
                _place: place,
                _cancellable: cancellable,
            });
        }
        Ok(Ok(Outcome::Out { wrong_password })) => {
            if wrong_password {
                context
                    .data_plane_metrics
                    .postgres_proxy
                    .count("wrong password");
                note_failure(context, &door, &named.project, peer).await;
            }
            return None;
        }
        Ok(Ok(Outcome::Refused(refusal))) => {
            if refusal == Refusal::Unguarded {
                tracing::warn!(project = %named.project, "the project's server lets somebody in without SCRAM-SHA-256; nobody gets there through the router");
            }
            refusal
        }
        // One of the two hung up.
        Ok(Err(_)) => return None,
        Err(_) => Refusal::Late,
    };
    refuse(context, client.into_parts().0, &refusal).await;
    None
}

/// Lets a client come to a project, or says why not. Waits for a server that is just starting, and starts one that sleeps.
async fn admit(
    context: &DataPlaneContext,
    named: &Named,
    peer: SocketAddr,
    encrypted: bool,
) -> Result<ConnectionAdmission, Refusal> {
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
                Status::Pausing | Status::Inactive => return Err(Refusal::Paused),
                Status::GoingDown | Status::Removed => return Err(Refusal::Unknown),
                Status::InitFailed | Status::PauseFailed | Status::RestoreFailed => {
                    return Err(Refusal::Away);
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
                            Error::Unavailable { .. } => Refusal::ControlAway,
                            _ => Refusal::Away,
                        })?;
                }
            }
        }
    };
    timeout(READY, open).await.unwrap_or(Err(Refusal::Away))
}

/// The project's door, if its rules let this client through it.
async fn door(
    context: &DataPlaneContext,
    named: &Named,
    address: IpAddr,
    encrypted: bool,
) -> Result<ConnectionAdmission, Refusal> {
    let door = database_access::admission(context, &named.project, address)
        .await
        .map_err(|error| fault(&error))?
        .ok_or(Refusal::Unknown)?;
    if door.banned {
        return Err(Refusal::Banned);
    }
    if !door.admitted
        || !temporary_access::permits_address(context, door.id, &named.user, address)
            .await
            .map_err(|error| fault(&error))?
    {
        return Err(Refusal::Restricted);
    }
    if door.tls_required && !encrypted {
        return Err(Refusal::TlsRequired);
    }
    if !door.here {
        return Err(Refusal::Elsewhere);
    }
    Ok(door)
}

fn fault(error: &Error) -> Refusal {
    if matches!(error, Error::Unavailable { .. }) {
        return Refusal::ControlAway;
    }
    tracing::error!(%error, "a connection to a database was refused");
    Refusal::Fault
}

async fn reach(socket: &ServerSocket) -> Result<UnixStream, Refusal> {
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
            Err(Refusal::Away)
        }
        Err(_) => Err(Refusal::ProjectFull),
    }
}

/// Counts a wrong password against the address, and bans it when there were too many.
async fn note_failure(
    context: &DataPlaneContext,
    door: &ConnectionAdmission,
    project: &ProjectRef,
    peer: SocketAddr,
) {
    let (block, now): (_, Ticks) = (bans::network_of(peer.ip()), context.clock.ticks());
    if !context.router.failures.note(door.id, block, now) {
        return;
    }
    tracing::info!(project = %door.id, address = %block, "banned: too many wrong passwords");
    if let Err(error) = bans::ban(context, door.id, project, block, context.clock.now() + BAN).await
    {
        tracing::error!(%error, "an address could not be banned");
    }
}
