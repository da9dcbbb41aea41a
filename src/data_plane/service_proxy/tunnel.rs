//! WebSockets: an upgrade on both sides, then bytes both ways.

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
    connection::ClientConnection,
    forward,
    forward::{Forwarded, ProxyResponse},
    open_tunnels::TunnelGrant,
    rejection::RequestRejection,
    request,
    upstream_pool::{UpstreamBody, UpstreamPool},
};

/// How long nothing may be said. Between this and twice as long a silent tunnel is closed.
const SILENCE: Duration = Duration::from_mins(5);

/// Passes on the wish for a WebSocket. If the service grants it, what follows is forwarded on as it is.
pub(super) async fn open(
    visit: &ClientConnection,
    forwarded: Forwarded<'_>,
    parts: Parts,
    client: OnUpgrade,
) -> Result<ProxyResponse, RequestRejection> {
    let service = forwarded.service;
    let (capacity, now) = (
        &visit.context.service_proxy.capacity,
        visit.context.clock.ticks(),
    );
    let held = capacity.request(forwarded.capacity_key, now)?;
    let counted = capacity.websocket(forwarded.capacity_key, now)?;
    let grant = TunnelGrant {
        name: visit.name.clone(),
        project: forwarded.route.project,
        needs_key: api_key_check::needs_key(service, forwarded.rest, &parts.method),
        key: api_key_check::presented(&parts)
            .ok()
            .map(SecretString::from),
        end: Notify::new(),
    };
    let mut request = forward::outgoing(visit, &forwarded, parts, Either::Left(Empty::new()))?;
    mark(request.headers_mut());
    let sent = Notify::new();
    sent.notify_one();
    let asked = UpstreamPool::ask_to_upgrade(forwarded.upstream.authority(), request);
    let mut response = forward::in_time(service, &sent, asked).await?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        let mut refused = forward::incoming(response.map(UpstreamBody::from), held);
        super::rejection::close(refused.headers_mut());
        return Ok(refused);
    }
    let granted = response
        .headers()
        .get(header::UPGRADE)
        .is_some_and(|to| to.as_bytes().eq_ignore_ascii_case(b"websocket"));
    if !granted {
        return Err(RequestRejection::Unreachable(service));
    }
    let (context, server) = (visit.context.clone(), hyper::upgrade::on(&mut response));
    let places = (counted, Arc::clone(&visit.place));
    tokio::spawn(async move {
        let tunnels = context.data_plane_metrics.service_proxy.tunnels();
        tunnels.increment(1);
        let open = context.service_proxy.open_tunnels.add(grant);
        // Looked at again now that changes are told to it: one may have come since the request was let in.
        if let (Ok(client), Ok(server)) = tokio::join!(client, server)
            && open.grant.holds(&context).await
        {
            tokio::select! {
                () = carry(client, server) => {}
                () = open.grant.end.notified() => {}
                () = context.service_proxy.shutdown.cancelled() => {}
            }
        }
        tunnels.decrement(1);
        drop(places);
    });
    let mut answer = Response::new(full(""));
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *answer.headers_mut() = std::mem::take(response.headers_mut());
    request::strip(answer.headers_mut());
    mark(answer.headers_mut());
    Ok(answer)
}

fn mark(headers: &mut HeaderMap) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
}

/// Until a side hangs up, or both have been silent for long.
async fn carry(client: Upgraded, server: Upgraded) {
    let read = Arc::new(AtomicU64::new(0));
    let [mut client, mut server] = [client, server].map(|side| CountingStream {
        stream: TokioIo::new(side),
        read: read.clone(),
    });
    let mut copying = std::pin::pin!(copy_bidirectional(&mut client, &mut server));
    let mut before = 0;
    while timeout(SILENCE, copying.as_mut()).await.is_err() {
        let now = read.load(Ordering::Relaxed);
        if now == before {
            return;
        }
        before = now;
    }
}

/// One side of a tunnel, with a count of what was heard from both.
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
