//! ACME renewal information (RFC 9773), which Debian's pebble lacks: a proxy adds it, and records
//! which certificates orders replace.

use std::{convert::Infallible, path::Path, sync::Arc};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use bytes::Bytes;
use chrono::{DateTime, Utc};
use http_body_util::{BodyExt, Full};
use hyper::{Request, Response, body::Incoming, client, server, service::service_fn};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// The response to orders with `replaces`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Replacing {
    /// It says so too, as it must.
    #[default]
    Told,
    Refused,
    Ignored,
}

/// The behaviour of the authority.
#[derive(Default)]
pub(crate) struct Conduct {
    /// The suggested window; `None` if the authority is unavailable.
    pub(crate) window: Option<(DateTime<Utc>, DateTime<Utc>)>,
    pub(crate) retry_after: u32,
    pub(crate) replacing: Replacing,
    /// Certificates of the received requests.
    pub(crate) asked: Vec<String>,
    /// The `replaces` values of orders.
    pub(crate) replaced: Vec<Option<String>>,
}

/// A running proxy, stopped on drop.
pub(crate) struct Suggestions {
    pub(crate) directory: String,
    pub(crate) conduct: Arc<Mutex<Conduct>>,
    _tasks: JoinSet<()>,
}

impl Suggestions {
    /// Starts a proxy for the authority on this port, with the certificate in `dir`.
    pub(crate) async fn before(dir: &Path, port: u16) -> Self {
        let provider = || Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let (cert, key) = (dir.join("pebble.pem"), dir.join("pebble-key.pem"));
        let (cert, key) = (
            CertificateDer::from_pem_file(cert).unwrap(),
            PrivateKeyDer::from_pem_file(key).unwrap(),
        );
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(
            config
                .with_no_client_auth()
                .with_single_cert(vec![cert], key)
                .unwrap(),
        ));
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_file(dir.join("pebble-ca.pem")).unwrap())
            .unwrap();
        let config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap();
        let connector = TlsConnector::from(Arc::new(
            config.with_root_certificates(roots).with_no_client_auth(),
        ));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own = listener.local_addr().unwrap().port();
        let conduct = Arc::new(Mutex::new(Conduct {
            retry_after: 6 * 3600,
            ..Conduct::default()
        }));
        let (mut tasks, known) = (JoinSet::new(), conduct.clone());
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, connector, conduct) =
                    (acceptor.clone(), connector.clone(), known.clone());
                connections.spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else {
                        return;
                    };
                    let answer = service_fn(|request| {
                        answer(request, conduct.clone(), connector.clone(), port)
                    });
                    drop(
                        server::conn::http1::Builder::new()
                            .serve_connection(TokioIo::new(stream), answer)
                            .await,
                    );
                });
            }
        });
        Self {
            directory: format!("https://localhost:{own}/dir"),
            conduct,
            _tasks: tasks,
        }
    }
}

fn reply(status: u16, retry_after: u32, body: &Value) -> Response<Full<Bytes>> {
    let builder = Response::builder()
        .status(status)
        .header("content-type", "application/json")
        .header("retry-after", retry_after);
    builder.body(Full::from(body.to_string())).unwrap()
}

async fn answer(
    request: Request<Incoming>,
    conduct: Arc<Mutex<Conduct>>,
    connector: TlsConnector,
    port: u16,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (parts, body) = request.into_parts();
    let (path, body) = (
        parts.uri.path().to_owned(),
        body.collect().await.unwrap().to_bytes(),
    );
    if let Some(asked) = path.strip_prefix("/renewal-info/") {
        let mut conduct = conduct.lock();
        conduct.asked.push(asked.to_owned());
        let retry_after = conduct.retry_after;
        return Ok(match conduct.window {
            Some((start, end)) => reply(
                200,
                retry_after,
                &json!({"suggestedWindow": {"start": start, "end": end}}),
            ),
            None => reply(
                500,
                retry_after,
                &json!({"type": "urn:ietf:params:acme:error:serverInternal"}),
            ),
        });
    }
    let mut replaced = None;
    if path == "/order-plz" {
        let jws: Value = serde_json::from_slice(&body).unwrap();
        let payload = BASE64_URL_SAFE_NO_PAD
            .decode(jws["payload"].as_str().unwrap())
            .unwrap();
        let order: Value = serde_json::from_slice(&payload).unwrap();
        let mut conduct = conduct.lock();
        let replaces = order["replaces"].as_str().map(str::to_owned);
        // A client repeats a request after a rejected nonce.
        if conduct.replaced.last() != Some(&replaces) {
            conduct.replaced.push(replaces.clone());
        }
        match conduct.replacing {
            Replacing::Refused if replaces.is_some() => {
                return Ok(reply(
                    409,
                    1,
                    &json!({"type": "urn:ietf:params:acme:error:alreadyReplaced", "status": 409}),
                ));
            }
            Replacing::Told => replaced = replaces,
            Replacing::Refused | Replacing::Ignored => {}
        }
    }
    // `Host` stays as it is: pebble names its addresses by it.
    let host = parts.headers["host"].to_str().unwrap().to_owned();
    let (mut parts, mut body) = pass(
        Request::from_parts(parts, Full::from(body)),
        connector,
        port,
    )
    .await;
    let added = match path.as_str() {
        "/dir" => Some(("renewalInfo", format!("https://{host}/renewal-info"))),
        _ => replaced
            .filter(|_| parts.status.is_success())
            .map(|replaced| ("replaces", replaced)),
    };
    if let Some((field, value)) = added {
        let mut told: Value = serde_json::from_slice(&body).unwrap();
        told[field] = json!(value);
        body = Bytes::from(told.to_string());
        parts.headers.remove("content-length");
    }
    Ok(Response::from_parts(parts, Full::from(body)))
}

async fn pass(
    request: Request<Full<Bytes>>,
    connector: TlsConnector,
    port: u16,
) -> (hyper::http::response::Parts, Bytes) {
    let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let stream = connector
        .connect(ServerName::try_from("localhost").unwrap(), stream)
        .await
        .unwrap();
    let (mut sender, connection) = client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { drop(connection.await) });
    let (parts, body) = sender.send_request(request).await.unwrap().into_parts();
    (parts, body.collect().await.unwrap().to_bytes())
}
