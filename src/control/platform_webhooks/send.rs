//! The request of an attempt. The only place that uses the client of requests to other servers.

use std::time::Duration;

use bytes::Bytes;
use gantry_base::net::http_client::RequestError;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{Full, LengthLimitError};
use url::Url;

use super::state::AttemptResult;
use crate::control::context::ControlContext;

/// Time in which a response must be complete.
pub(super) const TIMEOUT: Duration = Duration::from_secs(20);
/// Longest body of a response that is read, in bytes. A longer one is not stored.
const RESPONSE_BYTES_MAX: usize = 64 << 10;

/// Status, header fields and body of a response. The body is absent if it is too long.
pub(super) type Received = (StatusCode, HeaderMap, Option<Bytes>);

/// Posts a body. Redirects are not followed.
pub(super) async fn post(
    context: &ControlContext,
    url: &str,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Received, SendError> {
    let invalid = || SendError::failed("the URL cannot be requested");
    // In the form of requests: other characters are encoded, and the name is ASCII.
    let url = Url::parse(url).map_err(|_| invalid())?;
    let mut request = Request::post(url.as_str())
        .body(Full::new(body))
        .map_err(|_| invalid())?;
    *request.headers_mut() = headers;
    let client = context
        .platform_webhooks
        .client(&context.control_settings.outbound);
    let sent = client.send(request, TIMEOUT, RESPONSE_BYTES_MAX);
    let mut response = sent.await.map_err(SendError::from)?;
    let body = match response.bytes().await {
        Ok(body) => Some(body),
        Err(RequestError::Body(error)) if error.is::<LengthLimitError>() => None,
        Err(error) => return Err(error.into()),
    };
    Ok((response.status, response.headers, body))
}

/// The reason why an attempt has no response. The text contains no secret.
#[derive(Debug)]
pub(super) struct SendError {
    pub(super) result: AttemptResult,
    pub(super) text: String,
}

impl SendError {
    fn failed(text: impl Into<String>) -> Self {
        Self {
            result: AttemptResult::Failed,
            text: text.into(),
        }
    }
}

impl From<RequestError> for SendError {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Refused(refused) => Self {
                result: AttemptResult::Refused,
                text: refused.to_string(),
            },
            RequestError::TimedOut(_) => Self {
                result: AttemptResult::TimedOut,
                text: format!("the receiver did not answer within {} s", TIMEOUT.as_secs()),
            },
            RequestError::Connection(error) if error.is_connect() => {
                Self::failed("the receiver cannot be reached")
            }
            RequestError::Connection(_) => Self::failed("the connection ended before the response"),
            RequestError::Body(_) => {
                Self::failed("the connection ended before the end of the response")
            }
        }
    }
}
