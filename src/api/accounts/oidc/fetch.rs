//! HTTP client for the identity provider: TLS, no redirects, bounded in time and size.

use http_body_util::Full;
use openidconnect::{HttpRequest, HttpResponse, url};

use crate::platform::outbound::{OutboundClient, OutboundError, UrlOwner, uses::IDENTITY_PROVIDER};

/// Reason for a failed request.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    /// The URL scheme or host is not permitted.
    #[error("{0} is neither https nor http on this machine")]
    Address(String),
    /// There is no complete response.
    #[error("no response of {0}")]
    Response(String, #[source] OutboundError),
}

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
pub(super) async fn fetch(
    client: OutboundClient,
    request: HttpRequest,
) -> Result<HttpResponse, FetchError> {
    let text = request.uri().to_string();
    let url = url::Url::parse(&text)
        .ok()
        .filter(is_permitted_url)
        .ok_or_else(|| FetchError::Address(text.clone()))?;
    let host = url.host_str().unwrap_or_default().to_owned();
    let request = request.map(Full::from);
    let sent = client
        .send(&IDENTITY_PROVIDER, UrlOwner::Operator, request)
        .await;
    let response = sent.map_err(|error| FetchError::Response(host, error))?;
    let mut answer = HttpResponse::new(response.body.to_vec());
    *answer.status_mut() = response.status;
    *answer.headers_mut() = response.headers;
    Ok(answer)
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
