//! Requests of Gantry itself to an instance.

use std::{io, pin::pin, time::Duration};

use bytes::Bytes;
use gantry_node::kits::manifest::Ready;
use http_body_util::Full;
use hyper::{Method, Request, StatusCode, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout,
};

use crate::proxy::service_proxy::upstreams::UpstreamAddress;

/// Timeout of one request.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Sends a `HEAD` request and returns the status of the response.
pub(super) async fn head(
    address: &UpstreamAddress,
    path: &str,
    headers: &[(&str, &str)],
) -> io::Result<StatusCode> {
    send(address, Method::HEAD, path, headers).await
}

/// Sends the request of a manifest. Returns whether the program is ready.
pub(super) async fn is_ready(address: &UpstreamAddress, ready: &Ready) -> io::Result<bool> {
    let status = send(address, ready.method.into(), &ready.path, &[]).await?;
    Ok(!ready.not.contains(&status.as_u16()))
}

/// Sends a JSON document with an authorization, and returns the status of the response.
pub(super) async fn send_json(
    address: &UpstreamAddress,
    method: Method,
    path: &str,
    authorization: &str,
    body: &serde_json::Value,
) -> io::Result<StatusCode> {
    let headers = [
        ("authorization", authorization),
        ("content-type", "application/json"),
    ];
    let body = Bytes::from(body.to_string());
    send_with(address, method, path, (&headers, body)).await
}

async fn send(
    address: &UpstreamAddress,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
) -> io::Result<StatusCode> {
    send_with(address, method, path, (headers, Bytes::new())).await
}

async fn send_with(
    address: &UpstreamAddress,
    method: Method,
    path: &str,
    (headers, body): (&[(&str, &str)], Bytes),
) -> io::Result<StatusCode> {
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, "localhost");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::new(body)).map_err(io::Error::other)?;
    let exchange = async {
        match address {
            UpstreamAddress::Unix(socket) => exchange(socket.connect().await?, request).await,
            UpstreamAddress::Port(port) => exchange(port.connect().await?, request).await,
            UpstreamAddress::Tcp(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    };
    timeout(TIMEOUT, exchange).await?
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> io::Result<StatusCode> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    let mut response = pin!(sender.send_request(request));
    let response = tokio::select! {
        biased;
        response = &mut response => response,
        // The response may have arrived with the end of the connection.
        _ = connection => response.await,
    };
    Ok(response.map_err(io::Error::other)?.status())
}
