//! WebSockets: upgrades both connections, then copies bytes in both directions.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use http_body_util::{Either, Empty};
use hyper::{
    Response, StatusCode,
    header::{self, HeaderMap, HeaderValue},
    http::request::Parts,
    upgrade::{OnUpgrade, Upgraded},
};
use hyper_util::rt::TokioIo;
use secrecy::SecretString;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional},
    sync::Notify,
    time::timeout,
};

use super::{
    api_key_check,
    body::full,
    client_connection::ClientConnection,
    forward,
    forwarded::{Forwarded, ProxyResponse},
    functions,
    open_tunnels::TunnelGrant,
    rejection::RequestRejection,
    replacement, request_headers,
    upstream_pool::UpstreamBody,
};

/// Idle timeout. A tunnel without traffic is closed after one to two times this duration.
const IDLE_TIMEOUT: Duration = Duration::from_mins(5);

/// Forwards an upgrade request. If the upstream accepts, a task copies bytes until the WebSocket
/// closes.
pub(super) async fn open(
    connection: &ClientConnection,
    mut forwarded: Forwarded<'_>,
    parts: Parts,
    client: OnUpgrade,
) -> Result<ProxyResponse, RequestRejection> {
    let service = forwarded.service;
    let capacity = &connection.context.proxy.capacity;
    let now = connection.context.clock.ticks();
    let request_permit = capacity.request(forwarded.capacity_key, now)?;
    let websocket_permit = capacity.websocket(forwarded.capacity_key, now)?;
    let grant = TunnelGrant {
        name: connection.name.clone(),
        project: forwarded.route.project,
        needs_key: api_key_check::needs_key(service, forwarded.rest, &parts.method),
        key: api_key_check::presented(&parts)
            .ok()
            .map(SecretString::from),
        end: Notify::new(),
    };
    let mut request =
        forward::upstream_request(connection, &forwarded, parts, Either::Left(Empty::new()))?;
    set_upgrade_headers(request.headers_mut());
    let sent = Notify::new();
    sent.notify_one();
    let exchange = async {
        let opened = replacement::connect(&mut forwarded).await?;
        opened.upgrade(request).await
    };
    let patience = service.response_timeout();
    let response = forward::with_response_timeout(service, patience, &sent, exchange).await;
    let mut response = functions::with_reason(response, forwarded.service_use.as_deref()).await?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        let mut declined = forward::client_response(
            response.map(UpstreamBody::from),
            (request_permit, forwarded.service_use.take()),
        );
        super::rejection::close(declined.headers_mut());
        return Ok(declined);
    }
    let upgraded = response
        .headers()
        .get(header::UPGRADE)
        .is_some_and(|to| to.as_bytes().eq_ignore_ascii_case(b"websocket"));
    if !upgraded {
        return Err(RequestRejection::Unreachable(service));
    }
    if let Some(used) = &forwarded.service_use {
        // Its processor time no longer counts as that of one request.
        used.answered();
    }
    let context = connection.context.clone();
    let server = hyper::upgrade::on(&mut response);
    let permits = (
        websocket_permit,
        Arc::clone(&connection.permits),
        forwarded.service_use.take(),
    );
    tokio::spawn(async move {
        let tunnels = context.proxy.metrics.tunnels();
        tunnels.increment(1);
        let open = context.proxy.open_tunnels.add(grant);
        // Checked again after the registration, because a change may have been announced since the
        // request was checked.
        if let (Ok(client), Ok(server)) = tokio::join!(client, server)
            && open.grant.is_valid(&context).await
        {
            tokio::select! {
                () = relay(client, server) => {}
                () = open.grant.end.notified() => {}
                () = context.proxy.shutdown.cancelled() => {}
            }
        }
        tunnels.decrement(1);
        drop(permits);
    });
    let mut response_to_client = Response::new(full(""));
    *response_to_client.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *response_to_client.headers_mut() = std::mem::take(response.headers_mut());
    request_headers::strip(response_to_client.headers_mut());
    set_upgrade_headers(response_to_client.headers_mut());
    Ok(response_to_client)
}

fn set_upgrade_headers(headers: &mut HeaderMap) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
}

/// Copies bytes until one side closes or both have been idle for [`IDLE_TIMEOUT`].
async fn relay(client: Upgraded, server: Upgraded) {
    let read = Arc::new(AtomicU64::new(0));
    let [mut client, mut server] = [client, server].map(|side| CountingStream {
        stream: TokioIo::new(side),
        read: read.clone(),
    });
    let mut copying = std::pin::pin!(copy_bidirectional(&mut client, &mut server));
    let mut before = 0;
    while timeout(IDLE_TIMEOUT, copying.as_mut()).await.is_err() {
        let now = read.load(Ordering::Relaxed);
        if now == before {
            return;
        }
        before = now;
    }
}

/// One side of a tunnel, which adds the bytes it reads to a counter shared by both sides.
struct CountingStream<S> {
    stream: S,
    read: Arc<AtomicU64>,
}

impl<S: AsyncRead + Unpin> AsyncRead for CountingStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.read
            .fetch_add((buf.filled().len() - before) as u64, Ordering::Relaxed);
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CountingStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
