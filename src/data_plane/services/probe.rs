//! Requests of Gantry itself to an instance.

use std::{io, time::Duration};

use bytes::Bytes;
use http_body_util::Empty;
use hyper::{Method, Request, StatusCode, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use tokio::time::timeout;

use crate::data_plane::clusters::ServerSocket;

/// Timeout of one request.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Sends a `HEAD` request and returns the status of the response.
pub(super) async fn head(
    socket: &ServerSocket,
    path: &str,
    headers: &[(&str, &str)],
) -> io::Result<StatusCode> {
    let exchange = async {
        let stream = socket.connect().await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(io::Error::other)?;
        let mut request = Request::builder()
            .method(Method::HEAD)
            .uri(path)
            .header(header::HOST, "localhost");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request
            .body(Empty::<Bytes>::new())
            .map_err(io::Error::other)?;
        let response = async { sender.send_request(request).await.map_err(io::Error::other) };
        tokio::select! {
            response = response => Ok(response?.status()),
            // Ends first only if the connection fails.
            ended = connection => Err(ended.err().map_or_else(
                || io::ErrorKind::ConnectionReset.into(),
                io::Error::other,
            )),
        }
    };
    timeout(TIMEOUT, exchange).await?
}
