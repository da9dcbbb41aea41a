//! A local HTTP server that records the calls of databases.

use std::{convert::Infallible, net::SocketAddr, sync::Arc};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{
    HeaderMap, Request, Response, body::Incoming, server::conn::http1, service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpListener, sync::watch, task::JoinSet, time::timeout};

use crate::support::machine::PATIENCE;

/// A received call.
#[derive(Debug, Clone)]
pub(super) struct Received {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// A running server, stopped on drop. Its answer depends on the path.
pub(super) struct Receiver {
    pub(super) address: SocketAddr,
    received: Arc<watch::Sender<Vec<Received>>>,
    released: Arc<watch::Sender<bool>>,
    _tasks: JoinSet<()>,
}

impl Receiver {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let received = Arc::new(watch::Sender::new(Vec::new()));
        let released = Arc::new(watch::Sender::new(false));
        let (mut tasks, sink) = (JoinSet::new(), (received.clone(), released.clone()));
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let sink = sink.clone();
                let service = service_fn(move |request| answer(sink.clone(), request));
                connections.spawn(async move {
                    let builder = http1::Builder::new();
                    drop(
                        builder
                            .serve_connection(TokioIo::new(stream), service)
                            .await,
                    );
                });
            }
        });
        Self {
            address,
            received,
            released,
            _tasks: tasks,
        }
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Answers calls of `/slow`.
    pub(super) fn release(&self) {
        self.released.send_replace(true);
    }

    /// Returns the number of calls with a path so far.
    pub(super) fn count(&self, path: &str) -> usize {
        let received = self.received.borrow();
        received.iter().filter(|call| call.path == path).count()
    }

    /// Waits for this many calls with a path, and returns them.
    pub(super) async fn until(&self, path: &str, count: usize) -> Vec<Received> {
        let at = |all: &[Received]| -> Vec<Received> {
            let all = all.iter().filter(|call| call.path == path);
            all.cloned().collect()
        };
        let mut changes = self.received.subscribe();
        let waiting = changes.wait_for(|all| at(all).len() >= count);
        let Ok(all) = timeout(PATIENCE, waiting).await else {
            panic!("not received: {:?}", self.received.borrow());
        };
        at(&all.unwrap())
    }
}

async fn answer(
    (received, released): (Arc<watch::Sender<Vec<Received>>>, Arc<watch::Sender<bool>>),
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (parts, body) = request.into_parts();
    let call = Received {
        method: parts.method.to_string(),
        path: parts.uri.to_string(),
        headers: parts.headers,
        body: body.collect().await.unwrap().to_bytes(),
    };
    let path = call.path.clone();
    received.send_modify(|all| all.push(call));
    let redirect = |to: &str| {
        let builder = Response::builder().status(302).header("location", to);
        builder.body(Full::default()).unwrap()
    };
    Ok(match path.as_str() {
        "/slow" => {
            let mut released = released.subscribe();
            drop(released.wait_for(|released| *released).await);
            Response::new(Full::default())
        }
        "/moved" => redirect("/echo"),
        "/away" => redirect("http://10.0.0.1/"),
        "/large" => Response::new(Full::from(vec![b'a'; (1 << 20) + 1])),
        _ => Response::builder()
            .status(201)
            .header("content-type", "text/plain")
            .header("x-b", "2")
            .body(Full::from("noted"))
            .unwrap(),
    })
}
