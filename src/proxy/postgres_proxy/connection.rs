//! Serves one client connection: startup, login at the project's server, then the session.

use std::{io, net::SocketAddr, os::fd::AsFd, time::Duration};

use bytes::BytesMut;
use gantry_base::{
    clock::Ticks,
    ids::{ProjectId, ProjectRef},
    net::{address_block::address_block, connection_limit::ConnectionPermit},
};
use rustix::net::sockopt;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpStream, UnixStream},
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::{
    SessionKind,
    context::PostgresProxyContext,
    directory::{Pooler, SessionClient},
    login,
    login::LoginOutcome,
    message_stream::MessageStream,
    pipe,
    pipe::PipeEnd,
    pooled,
    reach::{CONNECT, LOGIN, reach},
    rejection::ConnectionRejection,
    session_target, startup,
    startup::{CancelKey, StartupMessage, StartupRequest},
    state::{CancelRegistration, LoginPermits},
    tls::PostgresProxyTls,
};
use crate::proxy::node_streams::{ForwardedClient, NodeStream, StreamProtocol};

/// Timeout for the startup request, TLS handshake included.
const OPENING: Duration = Duration::from_secs(10);
/// Time that a rejected client gets to read the error.
const FAREWELL: Duration = Duration::from_secs(1);
/// Bytes that are read from a rejected client, so that the error is not lost with a connection
/// reset.
const FAREWELL_BYTES_MAX: usize = 64 * 1024;
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
    /// Whether another node passed the connection on. It is not passed on again.
    is_forwarded: bool,
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
    context: &PostgresProxyContext,
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
                    is_forwarded: false,
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
                    is_forwarded: false,
                },
                login_permits,
            )
            .await;
        }
        Ok(Ok(Intent::Cancel(key))) => {
            if !cancel(context, &key).await {
                // Its key does not tell the node that issued it.
                context.nodes.cancel(key.request(), peer).await;
            }
        }
        Ok(Ok(Intent::None(Some((ClientStream::Plain(stream), rejection))))) => {
            refuse(context, stream, &rejection).await;
        }
        Ok(Ok(Intent::None(Some((ClientStream::Tls(stream), rejection))))) => {
            refuse(context, stream, &rejection).await;
        }
        // The client disconnected, or sent nothing.
        Ok(Ok(Intent::None(None)) | Err(_)) => {}
        Err(_) => context
            .proxy
            .metrics
            .count(ConnectionRejection::Late.outcome()),
    }
}

/// Serves a connection that another node passed on, until it ends. Its TLS ended there.
pub(super) async fn serve_forwarded(
    context: &PostgresProxyContext,
    mut client: impl AsyncRead + AsyncWrite + Unpin,
    from: ForwardedClient,
    kind: SessionKind,
    login_permits: LoginPermits,
) {
    let startup = match timeout(OPENING, opening(&mut client)).await {
        Ok(Ok(Ok(StartupRequest::Start(startup)))) => startup,
        Ok(Ok(Ok(StartupRequest::Cancel(key)))) => {
            cancel(context, &key).await;
            return;
        }
        // Other nodes send nothing else.
        _ => return,
    };
    let request = SessionRequest {
        client,
        peer: from.address,
        sni: from.name.map(String::from),
        encrypted: from.encrypted,
        kind,
        startup,
        is_forwarded: true,
    };
    session(context, request, login_permits).await;
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
    context: &PostgresProxyContext,
    mut stream: S,
    rejection: &ConnectionRejection,
) {
    context.proxy.metrics.count(rejection.outcome());
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

/// Forwards a cancel request to the server that issued the key. Returns whether the key is known;
/// the client is not told.
async fn cancel(context: &PostgresProxyContext, key: &CancelKey) -> bool {
    context.proxy.metrics.count("cancel");
    let Some(socket) = context.proxy.keys.lock().get(key).cloned() else {
        return false;
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
    true
}

/// A session after its login.
struct ProxySession<C> {
    client: C,
    server: UnixStream,
    early: (BytesMut, BytesMut),
    _place: ConnectionPermit<ProjectId>,
    /// Keeps the pooler running.
    _pooler: Option<Box<dyn Pooler>>,
    _cancellable: Option<CancelRegistration>,
}

async fn session<C: AsyncRead + AsyncWrite + Unpin>(
    context: &PostgresProxyContext,
    request: SessionRequest<C>,
    login_permits: LoginPermits,
) {
    let request = match Box::pin(open_on_other_node(context, request)).await {
        Ok(opened) => {
            drop(login_permits);
            return pass_on(context, opened).await;
        }
        Err(request) => request,
    };
    // Boxed, so that an idle session does not hold the memory of its login.
    let begun = Box::pin(begin(context, request)).await;
    drop(login_permits);
    let Some(mut session) = begun else { return };
    let early = std::mem::take(&mut session.early);
    relay(context, session.client, session.server, early).await;
}

/// Relays a session until it ends, or until it is idle at shutdown.
async fn relay<C, S>(
    context: &PostgresProxyContext,
    mut client: C,
    mut server: S,
    early: (BytesMut, BytesMut),
) where
    C: AsyncRead + AsyncWrite + Unpin,
    S: AsyncRead + AsyncWrite + Unpin,
{
    context.proxy.metrics.count("session");
    context.proxy.metrics.sessions.increment(1.0);
    let stopping = context.proxy.shutdown.cancelled();
    let ended = pipe::run(&mut client, &mut server, early, stopping).await;
    context.proxy.metrics.sessions.decrement(1.0);
    if ended == PipeEnd::Stopped {
        refuse(context, client, &ConnectionRejection::Stopping).await;
    } else {
        // Flushes buffered TLS data and sends the closing alert.
        let _ = timeout(FAREWELL, client.shutdown()).await;
    }
}

/// A session with the proxy of another node, which checks access and relays the login.
struct ForwardedSession<C> {
    client: C,
    node: NodeStream,
    /// The startup packet, as the client sent it.
    startup: BytesMut,
}

/// Opens a session at the node that holds the project. Returns the request if this node does, if
/// that node cannot be reached, or if the request is invalid, which this node then tells.
async fn open_on_other_node<C>(
    context: &PostgresProxyContext,
    request: SessionRequest<C>,
) -> Result<ForwardedSession<C>, SessionRequest<C>> {
    let SessionRequest { startup, sni, .. } = &request;
    let domain = &context.settings.project_domain;
    let Ok(target) = session_target::find(startup, sni.as_deref(), domain) else {
        return Err(request);
    };
    let Ok(packet) = startup.packet(&startup.user, startup.options.as_deref()) else {
        return Err(request);
    };
    if request.is_forwarded {
        return Err(request);
    }
    let client = ForwardedClient {
        protocol: match request.kind {
            SessionKind::Direct => StreamProtocol::PostgresDirect,
            SessionKind::Pooled => StreamProtocol::PostgresPooled,
        },
        address: request.peer,
        encrypted: request.encrypted,
        name: request.sni.as_deref().map(Into::into),
    };
    match context.nodes.open(&target.project, &client).await {
        Some(node) => Ok(ForwardedSession {
            client: request.client,
            node,
            startup: BytesMut::from(&packet[..]),
        }),
        None => Err(request),
    }
}

/// Relays a session with another node until it ends.
async fn pass_on<C: AsyncRead + AsyncWrite + Unpin>(
    context: &PostgresProxyContext,
    session: ForwardedSession<C>,
) {
    let ForwardedSession {
        client,
        node,
        startup,
    } = session;
    relay(context, client, node, (startup, BytesMut::new())).await;
}

/// Finds the project's server and logs in there. Rejects the client on failure.
async fn begin<C: AsyncRead + AsyncWrite + Unpin>(
    context: &PostgresProxyContext,
    request: SessionRequest<C>,
) -> Option<ProxySession<C>> {
    let SessionRequest {
        client,
        peer,
        sni,
        encrypted,
        kind,
        startup,
        is_forwarded: _,
    } = request;
    let is_pooled = kind == SessionKind::Pooled && context.servers.has_pooler();
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
        let asking = SessionClient {
            project: &named.project,
            user: &named.user,
            address: peer.ip(),
            encrypted,
        };
        let grant = context.directory.admit(asking).await?;
        let proxy = &context.proxy;
        let (limit, max) = if is_pooled {
            (&proxy.pooled, grant.pooled_max)
        } else {
            (&proxy.projects, grant.direct_max)
        };
        let place = limit
            .try_acquire_within(grant.project, max)
            .ok_or(ConnectionRejection::ProjectFull)?;
        let (pooler, socket, server) = if is_pooled {
            let project = (grant.project, &named.project);
            let connected = pooled::connect(&*context.servers, project, &packet).await?;
            let socket = connected.pooler.socket().clone();
            (Some(connected.pooler), socket, connected.server)
        } else {
            let socket = context.servers.server(&named.project);
            let mut server = MessageStream::new(reach(&socket).await?);
            let sent = server.send(&packet).await;
            sent.map_err(|_| ConnectionRejection::Away)?;
            (None, socket, server)
        };
        Ok((named, grant, (place, pooler), socket, server))
    };
    let (named, grant, (place, pooler), socket, mut server) = match prepared.await {
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
            let cancellable = key.map(|key| CancelRegistration::new(&context.proxy, key, socket));
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
                context.proxy.metrics.count("wrong password");
                note_failure(context, (grant.project, &named.project), peer).await;
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

/// Counts a wrong password, and bans the address after too many.
async fn note_failure(
    context: &PostgresProxyContext,
    project: (ProjectId, &ProjectRef),
    peer: SocketAddr,
) {
    let block = address_block(peer.ip());
    let now: Ticks = context.clock.ticks();
    if context.proxy.failures.note(project.0, block, now) {
        tracing::info!(project = %project.0, address = %block, "address banned after too many wrong passwords");
        context.directory.ban(project, block).await;
    }
}
