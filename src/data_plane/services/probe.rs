//! Requests of Gantry itself to an instance.

use std::{io, pin::pin, time::Duration};

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
        let mut response = pin!(sender.send_request(request));
        let response = tokio::select! {
            biased;
            response = &mut response => response,
            // The response may have arrived with the end of the connection.
            _ = connection => response.await,
        };
        Ok(response.map_err(io::Error::other)?.status())
    };
    timeout(TIMEOUT, exchange).await?
}
