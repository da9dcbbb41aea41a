//! HTTP client for the identity provider: TLS, no redirects, bounded in time and size.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{Request, Response, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use openidconnect::{HttpRequest, HttpResponse, url};
use rustls::{ClientConfig, RootCertStore, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsConnector;

/// Maximum duration of a request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a response body in bytes.
const RESPONSE_BYTES_MAX: usize = 1 << 20;

/// Reason for a failed request.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    /// The URL scheme or host is not permitted.
    #[error("{0} is neither https nor http on this machine")]
    Address(String),
    /// The connection failed.
    #[error("no connection to {0}")]
    Connection(String, #[source] Box<dyn std::error::Error + Send + Sync>),
    /// The request timed out.
    #[error("{0} did not answer in time")]
    Timeout(String),
}

/// Shared, because loading the root certificates of the system is slow.
static TLS: LazyLock<TlsConnector> = LazyLock::new(|| {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    Arc::new(
        ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth(),
    )
    .into()
});

/// Returns whether requests to the URL are permitted: https, or http on a loopback address.
/// Responses of the provider authenticate users.
pub(super) fn is_permitted_url(url: &url::Url) -> bool {
    let local = match url.host() {
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        Some(url::Host::Domain(name)) => name == "localhost",
        None => false,
    };
    url.host().is_some() && (url.scheme() == "https" || url.scheme() == "http" && local)
}

/// Sends a request and returns the response. Redirects are not followed.
pub(super) async fn fetch(request: HttpRequest) -> Result<HttpResponse, FetchError> {
    let text = request.uri().to_string();
    let url = url::Url::parse(&text)
        .ok()
        .filter(is_permitted_url)
        .ok_or_else(|| FetchError::Address(text.clone()))?;
    let host = url.host_str().unwrap_or_default().to_owned();
    timeout(TIMEOUT, connect_and_send(request, &url, &host))
        .await
        .map_err(|_| FetchError::Timeout(host.clone()))?
        .map_err(|cause| FetchError::Connection(host, cause))
}

type SendError = Box<dyn std::error::Error + Send + Sync>;

async fn connect_and_send(
    request: HttpRequest,
    url: &url::Url,
    host: &str,
) -> Result<HttpResponse, SendError> {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let stream = TcpStream::connect((bare, url.port_or_known_default().unwrap_or(443))).await?;
    if url.scheme() == "https" {
        let name = ServerName::try_from(bare.to_owned())?;
        exchange(TLS.connect(name, stream).await?, request, url).await
    } else {
        exchange(stream, request, url).await
    }
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: HttpRequest,
    url: &url::Url,
) -> Result<HttpResponse, SendError> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let talk = async {
        let response = sender.send_request(to_origin_form(request, url)?).await?;
        let (parts, body) = response.into_parts();
        let bytes = Limited::new(body, RESPONSE_BYTES_MAX)
            .collect()
            .await?
            .to_bytes();
        Ok::<_, SendError>(Response::from_parts(parts, bytes.to_vec()))
    };
    tokio::pin!(talk, connection);
    // The connection may end before the response is complete.
    tokio::select! {
        answer = &mut talk => answer,
        ended = &mut connection => {
            ended?;
            talk.await
        }
    }
}

/// Converts the request target to origin form (RFC 9112, 3.2.1) and adds the `Host` header.
fn to_origin_form(request: HttpRequest, url: &url::Url) -> Result<Request<Full<Bytes>>, SendError> {
    let (mut parts, body) = request.into_parts();
    let host = match url.port() {
        Some(port) => format!("{}:{port}", url.host_str().unwrap_or_default()),
        None => url.host_str().unwrap_or_default().to_owned(),
    };
    let query = url
        .query()
        .map(|query| format!("?{query}"))
        .unwrap_or_default();
    parts.uri = format!("{}{query}", url.path()).parse()?;
    parts.headers.insert(header::HOST, host.parse()?);
    Ok(Request::from_parts(parts, Full::from(body)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_is_permitted_to_loopback_only() {
        let may = |url: &str| is_permitted_url(&url.parse().unwrap());
        for url in [
            "https://id.example",
            "https://192.0.2.1/x",
            "http://127.0.0.1:9000",
            "http://[::1]/",
            "http://localhost/x",
        ] {
            assert!(may(url), "{url}");
        }
        for url in [
            "http://id.example",
            "http://192.0.2.1",
            "http://localhost.evil.example",
            "ftp://id.example",
            "file:///etc/passwd",
            "data:,x",
        ] {
            assert!(!may(url), "{url}");
        }
    }
}
