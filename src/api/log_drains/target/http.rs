//! Delivery by HTTP requests.

use std::{io::Write, time::Duration};

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use gantry_base::net::outbound::{self, OutboundClient, OutboundPolicy};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use tokio::time::timeout;
use url::Url;

use super::DeliveryError;

/// Timeout of a request with its response.
const TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum size of a response body. Its content is not used.
const RESPONSE_BYTES_MAX: usize = 64 * 1024;
/// Maximum pause that a target can ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_mins(5);

/// Sends bodies to one URL.
pub(super) struct HttpSender {
    client: OutboundClient,
    url: Url,
    gzip: bool,
    policy: OutboundPolicy,
}

impl HttpSender {
    pub(super) fn new(policy: &OutboundPolicy, url: Url, http2: bool, gzip: bool) -> Self {
        Self {
            client: policy.client(http2),
            url,
            gzip,
            policy: policy.clone(),
        }
    }

    /// Compresses a body, if the drain asks for it.
    pub(super) fn encode(&self, body: Vec<u8>) -> Result<Bytes, DeliveryError> {
        if !self.gzip {
            return Ok(body.into());
        }
        gzip(&body)
    }

    /// Posts an encoded body. Returns after the target confirmed it with a status of 2xx.
    pub(super) async fn post(
        &self,
        mut headers: HeaderMap,
        content_type: &'static str,
        body: Bytes,
    ) -> Result<(), DeliveryError> {
        self.policy
            .check_literal(&self.url)
            .map_err(|error| DeliveryError::retry(error.to_string()))?;
        headers
            .entry(header::CONTENT_TYPE)
            .or_insert(HeaderValue::from_static(content_type));
        headers
            .entry(header::USER_AGENT)
            .or_insert(HeaderValue::from_static(concat!(
                "gantry/",
                env!("CARGO_PKG_VERSION")
            )));
        if self.gzip {
            let gzip = HeaderValue::from_static("gzip");
            headers.insert(header::CONTENT_ENCODING, gzip);
        }
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(self.url.as_str())
            .body(Full::new(body))
            .map_err(|_| DeliveryError::retry("the URL cannot be requested"))?;
        *request.headers_mut() = headers;
        timeout(TIMEOUT, self.exchange(request))
            .await
            .unwrap_or_else(|_| Err(DeliveryError::retry("the target did not answer in time")))
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<(), DeliveryError> {
        let response = self
            .client
            .request(request)
            .await
            .map_err(|error| DeliveryError::retry(connection_problem(&error)))?;
        let (parts, body) = response.into_parts();
        // Read to the end, so that the connection can be used again.
        let read = Limited::new(body, RESPONSE_BYTES_MAX).collect().await;
        if parts.status.is_success() {
            return Ok(());
        }
        drop(read);
        Err(status_problem(parts.status, &parts.headers))
    }
}

/// Compresses a body.
pub(super) fn gzip(body: &[u8]) -> Result<Bytes, DeliveryError> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    let encoded = encoder.write_all(body).and_then(|()| encoder.finish());
    encoded
        .map(Bytes::from)
        .map_err(|_| DeliveryError::retry("the lines cannot be compressed"))
}

/// Returns the error for a response that is not a success. The body is not part of it, because it
/// may repeat credentials.
fn status_problem(status: StatusCode, headers: &HeaderMap) -> DeliveryError {
    let hint = match status.as_u16() {
        300..=399 => "; redirects are not followed",
        401 | 403 => "; check the credentials",
        404 | 405 => "; check the URL",
        _ => "",
    };
    let text = format!("the target answered {status}{hint}");
    if matches!(status.as_u16(), 400 | 413 | 422) {
        return DeliveryError::refused(text);
    }
    let retry_after = headers
        .get(header::RETRY_AFTER)
        .and_then(|value| value.to_str().ok()?.parse().ok())
        .map(|seconds| Duration::from_secs(seconds).min(RETRY_AFTER_MAX));
    DeliveryError {
        retry_after,
        ..DeliveryError::retry(text)
    }
}

/// Describes why a request got no response.
fn connection_problem(error: &(dyn std::error::Error + 'static)) -> String {
    if let Some(refused) = outbound::refusal(error) {
        return refused.to_string();
    }
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    format!("the target cannot be reached: {cause}")
}
