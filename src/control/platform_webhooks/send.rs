//! The request of an attempt.

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::Full;
use url::Url;

use super::{
    endpoint::{WebhookEndpoint, WebhookScope},
    state::AttemptResult,
};
use crate::{
    control::context::ControlContext,
    platform::outbound::{OutboundError, UrlOwner, uses::PLATFORM_WEBHOOK},
};

/// Status, header fields and body of a response. The body is absent if it is too long.
pub(super) type Received = (StatusCode, HeaderMap, Option<Bytes>);

/// Posts a body to an endpoint. Redirects are not followed.
pub(super) async fn post(
    context: &ControlContext,
    endpoint: &WebhookEndpoint,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Received, SendError> {
    let invalid = || SendError::failed("the URL cannot be requested");
    // In the form of requests: other characters are encoded, and the name is ASCII.
    let url = Url::parse(&endpoint.url).map_err(|_| invalid())?;
    let mut request = Request::post(url.as_str())
        .body(Full::new(body))
        .map_err(|_| invalid())?;
    *request.headers_mut() = headers;
    let owner = owner(endpoint.scope);
    let sent = context.outbound.send(&PLATFORM_WEBHOOK, owner, request);
    let response = sent.await.map_err(SendError::from)?;
    let body = (!response.is_body_omitted).then_some(response.body);
    Ok((response.status, response.headers, body))
}

/// Returns the party that chose the URLs of a scope.
fn owner(scope: WebhookScope) -> UrlOwner {
    match scope.project {
        Some(project) => UrlOwner::Project(project),
        None => UrlOwner::Organization(scope.organization),
    }
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

impl From<OutboundError> for SendError {
    fn from(error: OutboundError) -> Self {
        match error {
            OutboundError::Refused(text) => Self {
                result: AttemptResult::Refused,
                text,
            },
            OutboundError::TimedOut => Self {
                result: AttemptResult::TimedOut,
                text: format!(
                    "the receiver did not answer within {} s",
                    PLATFORM_WEBHOOK.timeout.as_secs()
                ),
            },
            // The cause would show the state of ports to the caller.
            OutboundError::Unreachable(_) => Self::failed("the receiver cannot be reached"),
            OutboundError::Broken | OutboundError::TooLong(_) => {
                Self::failed("the connection ended before the end of the response")
            }
        }
    }
}
