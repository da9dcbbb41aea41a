//! A local HTTP server that records requests, as the target of log drains. It can reject requests
//! and be unavailable.

use std::{
    collections::VecDeque,
    io::Read,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use flate2::read::GzDecoder;
use http_body_util::{BodyExt, Full};
use hyper::{
    HeaderMap, Request, Response, body::Incoming, server::conn::http1, service::service_fn,
};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::{net::TcpListener, sync::watch, task::JoinSet, time::timeout};

use super::machine::PATIENCE;

/// A request that was answered with 2xx.
#[derive(Debug, Clone)]
pub(crate) struct Collected {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    /// The body as sent.
    pub(crate) raw: Bytes,
    /// The body, decompressed.
    pub(crate) body: Vec<u8>,
}

impl Collected {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers[name].to_str().unwrap()
    }
}

/// Judges the body of a request: the status of the response.
type Judge = Box<dyn Fn(&[u8]) -> u16 + Send + Sync>;

struct State {
    collected: watch::Sender<Vec<Collected>>,
    statuses: Mutex<VecDeque<u16>>,
    judge: Mutex<Judge>,
    /// Number of requests that were answered with another status, or not.
    rejected: watch::Sender<usize>,
    away: AtomicBool,
}

/// A running server, stopped on drop.
pub(crate) struct Collector {
    address: SocketAddr,
    state: Arc<State>,
    _connections: JoinSet<()>,
}

impl Collector {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let state = Arc::new(State {
            collected: watch::channel(Vec::new()).0,
            statuses: Mutex::default(),
            judge: Mutex::new(Box::new(|_| 200)),
            rejected: watch::channel(0).0,
            away: AtomicBool::new(false),
        });
        let address = listener.local_addr().unwrap();
        let (mut connections, serving) = (JoinSet::new(), state.clone());
        connections.spawn(async move {
            let mut inner = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let state = serving.clone();
                let service = service_fn(move |request| answer(state.clone(), request));
                inner.spawn(async move {
                    let connection =
                        http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                    drop(connection.await);
                });
            }
        });
        Self {
            address,
            state,
            _connections: connections,
        }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Sets the statuses of the next responses.
    pub(crate) fn answer(&self, statuses: impl IntoIterator<Item = u16>) {
        self.state.statuses.lock().extend(statuses);
    }

    /// Sets the function that decides the status of responses.
    pub(crate) fn judge(&self, judge: impl Fn(&[u8]) -> u16 + Send + Sync + 'static) {
        *self.state.judge.lock() = Box::new(judge);
    }

    /// Sets whether requests get no response.
    pub(crate) fn away(&self, away: bool) {
        self.state.away.store(away, Ordering::SeqCst);
    }

    /// Returns the requests so far.
    pub(crate) fn collected(&self) -> Vec<Collected> {
        self.state.collected.borrow().clone()
    }

    /// Waits until the accepted requests fulfil a condition, and returns them.
    pub(crate) async fn until(&self, fulfilled: impl Fn(&[Collected]) -> bool) -> Vec<Collected> {
        let mut changes = self.state.collected.subscribe();
        let waiting = changes.wait_for(|collected| fulfilled(collected));
        let Ok(collected) = timeout(PATIENCE, waiting).await else {
            panic!("not collected: {:?}", self.collected());
        };
        collected.unwrap().clone()
    }

    /// Waits until this many requests were not accepted.
    pub(crate) async fn until_rejected(&self, count: usize) {
        let mut changes = self.state.rejected.subscribe();
        let waiting = changes.wait_for(|rejected| *rejected >= count);
        timeout(PATIENCE, waiting).await.unwrap().unwrap();
    }
}

async fn answer(
    state: Arc<State>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, std::io::Error> {
    let (parts, body) = request.into_parts();
    let raw = body
        .collect()
        .await
        .map_err(std::io::Error::other)?
        .to_bytes();
    let mut body = raw.to_vec();
    if parts.headers.get("content-encoding").is_some() {
        body.clear();
        GzDecoder::new(&raw[..]).read_to_end(&mut body)?;
    }
    if state.away.load(Ordering::SeqCst) {
        state.rejected.send_modify(|count| *count += 1);
        return Err(std::io::Error::other("away"));
    }
    let planned = state.statuses.lock().pop_front();
    let status = planned.unwrap_or_else(|| state.judge.lock()(&body));
    if (200..300).contains(&status) {
        let collected = Collected {
            path: parts.uri.to_string(),
            headers: parts.headers,
            raw,
            body,
        };
        state.collected.send_modify(|all| all.push(collected));
    } else {
        state.rejected.send_modify(|count| *count += 1);
    }
    Ok(Response::builder()
        .status(status)
        .body(Full::from("hush: what the target says is not repeated"))
        .unwrap())
}
