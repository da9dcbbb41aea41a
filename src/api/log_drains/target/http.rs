//! Delivery by HTTP requests.

use std::{io::Write, time::Duration};

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http::{HeaderMap, HeaderValue, Method, Request, header};
use http_body_util::Full;
use url::Url;

use super::{delivery::DeliveryError, drain_client::DrainClient};
use crate::platform::outbound::{OutboundError, OutboundResponse, OutboundUse};

/// Maximum pause that a target can ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_mins(5);

/// Sends bodies to one URL.
pub(super) struct HttpSender {
    client: DrainClient,
    usage: &'static OutboundUse,
    url: Url,
    gzip: bool,
}

impl HttpSender {
    pub(super) fn new(
        client: &DrainClient,
        usage: &'static OutboundUse,
        url: Url,
        gzip: bool,
    ) -> Self {
        Self {
            client: client.clone(),
            usage,
            url,
            gzip,
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
        headers
            .entry(header::CONTENT_TYPE)
            .or_insert(HeaderValue::from_static(content_type));
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
        let DrainClient { client, owner } = &self.client;
        let sent = client.send(self.usage, *owner, request);
        let response = sent.await.map_err(|error| connection_problem(&error))?;
        if response.status.is_success() {
            return Ok(());
        }
        Err(status_problem(&response))
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
fn status_problem(response: &OutboundResponse) -> DeliveryError {
    let status = response.status;
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
    let retry_after = response.retry_after();
    DeliveryError {
        retry_after: retry_after.map(|pause| pause.min(RETRY_AFTER_MAX)),
        ..DeliveryError::retry(text)
    }
}

/// Returns the error for a request without a response.
pub(super) fn connection_problem(error: &OutboundError) -> DeliveryError {
    DeliveryError::retry(match error {
        OutboundError::TimedOut => "the target did not answer in time".to_owned(),
        OutboundError::Unreachable(cause) => format!("the target cannot be reached: {cause}"),
        other => other.to_string(),
    })
}
