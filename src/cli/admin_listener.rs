//! Requests of commands to the admin listener of their own server.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use gantry_base::net::{http_client::HttpClient, outbound::OutboundPolicy};
use http::{Request, StatusCode};
use http_body_util::Full;

/// Time limit of a response.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Largest response, in bytes. Metrics of 10,000 projects take a few megabytes.
const RESPONSE_BYTES_MAX: usize = 64 << 20;

/// Returns the status and the text of a path, such as `metrics`.
pub(super) async fn get(address: SocketAddr, path: &str) -> anyhow::Result<(StatusCode, String)> {
    let client = HttpClient::new(&OutboundPolicy::unrestricted());
    let request = Request::get(format!("http://{address}/{path}"));
    let request = request.body(Full::<Bytes>::default())?;
    let mut response = client.send(request, TIMEOUT, RESPONSE_BYTES_MAX).await?;
    let body = response.bytes().await?;
    let text = String::from_utf8_lossy(&body).into_owned();
    Ok((response.status, text))
}
