//! Sends one call: to the services of its own project inside of this process, else to the internet
//! under the policy of the operator.

use std::time::Duration;

use bytes::Bytes;
use gantry_base::ids::ProjectId;
use http::{HeaderMap, HeaderValue, Request, StatusCode, header, uri::PathAndQuery};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use tokio::time::timeout;
use url::{Position, Url};

use super::{
    answer::{CallAnswer, CallFailure},
    call::{CallRequest, QueuedCall},
    state::CallResult,
};
use crate::{
    control::{context::ControlContext, proxies},
    platform::outbound::{OutboundError, UrlOwner, uses::DATABASE_CALL},
    proxy::service_proxy::local_client,
};

/// Longest body of a response of the project's own services, in bytes.
const RESPONSE_BYTES_MAX: usize = 1 << 20;

/// Status, header fields and body of a response.
type Received = (StatusCode, HeaderMap, Bytes);

/// Sends a call and returns its response, or the reason why there is none.
pub(super) async fn send(
    context: &ControlContext,
    project: ProjectId,
    call: QueuedCall,
) -> CallAnswer {
    let id = call.id;
    let received = match call.into_request() {
        Ok(request) => {
            let time = request.timeout;
            let exchange = follow(context, project, request);
            timeout(time, Box::pin(exchange))
                .await
                .unwrap_or_else(|_| Err(timed_out(time)))
        }
        Err(failure) => Err(failure),
    };
    match received {
        Ok((status, headers, body)) => CallAnswer::answered(id, status, &headers, &body),
        Err(failure) => CallAnswer::failed(id, failure),
    }
}

/// Sends a request, and those to which it is redirected. The policy applies to each.
async fn follow(
    context: &ControlContext,
    project: ProjectId,
    mut request: CallRequest,
) -> Result<Received, CallFailure> {
    for _ in 0..=DATABASE_CALL.redirects_max {
        let received = exchange(context, project, &request).await?;
        match request.redirected(received.0, &received.1) {
            Some(next) => request = next?,
            None => return Ok(received),
        }
    }
    let count = DATABASE_CALL.redirects_max;
    let message = format!("the receiver redirects more than {count} times");
    Err(CallFailure::failed(message))
}

async fn exchange(
    context: &ControlContext,
    project: ProjectId,
    request: &CallRequest,
) -> Result<Received, CallFailure> {
    let proxy = proxies::service_proxy(context);
    if local_client::is_host_of(&proxy, project, &request.url).await {
        return exchange_inside(context, request).await;
    }
    check_port(context, &request.url)?;
    let mut outgoing = Request::new(Full::new(request.body.clone()));
    *outgoing.method_mut() = request.method.clone();
    *outgoing.headers_mut() = request.headers.clone();
    *outgoing.uri_mut() = request.url[..Position::AfterQuery]
        .parse()
        .map_err(|_| CallFailure::failed("the URL cannot be requested"))?;
    let (owner, time) = (UrlOwner::Project(project), request.timeout);
    let sent = context
        .outbound
        .send_within(&DATABASE_CALL, owner, outgoing, time)
        .await;
    let response = sent.map_err(|error| failure(error, time))?;
    Ok((response.status, response.headers, response.body))
}

/// Sends a request to the services of the project, with the checks of requests from outside.
async fn exchange_inside(
    context: &ControlContext,
    request: &CallRequest,
) -> Result<Received, CallFailure> {
    let invalid = || CallFailure::failed("the URL cannot be requested");
    let host = request.url.host_str().unwrap_or_default();
    let path = &request.url[Position::BeforePath..Position::AfterQuery];
    let path: PathAndQuery = path.parse().map_err(|_| invalid())?;
    let mut outgoing = Request::new(Full::new(request.body.clone()));
    *outgoing.method_mut() = request.method.clone();
    *outgoing.uri_mut() = path.into();
    *outgoing.headers_mut() = request.headers.clone();
    let name = HeaderValue::from_str(host).map_err(|_| invalid())?;
    outgoing.headers_mut().insert(header::HOST, name);
    let proxy = proxies::service_proxy(context);
    let sent = local_client::send(&proxy, host, outgoing).await;
    // Its end ends the connection.
    let (response, _connection) = sent.map_err(|error| {
        tracing::debug!(%error, "call of a database to its own project failed");
        CallFailure::failed("the services of the project cannot be reached")
    })?;
    let (parts, body) = response.into_parts();
    let body = Limited::new(body, RESPONSE_BYTES_MAX).collect().await;
    let body = body.map_err(|error| body_failure(error.is::<LengthLimitError>()))?;
    Ok((parts.status, parts.headers, body.to_bytes()))
}

/// Rejects ports that functions may not connect to either.
fn check_port(context: &ControlContext, url: &Url) -> Result<(), CallFailure> {
    let ports = context.control_settings.services.egress.as_slice();
    let port = url.port_or_known_default().unwrap_or_default();
    if ports.is_empty() {
        let message = "the operator of this server permits no calls to other machines";
        return Err(CallFailure::refused(message));
    }
    if !ports.contains(&port) {
        let message = format!("the operator of this server permits no calls to port {port}");
        return Err(CallFailure::refused(message));
    }
    Ok(())
}

fn failure(error: OutboundError, time: Duration) -> CallFailure {
    match error {
        OutboundError::Refused(text) => CallFailure::refused(text),
        OutboundError::TimedOut => timed_out(time),
        OutboundError::Unreachable(_) => CallFailure::failed("the receiver cannot be reached"),
        OutboundError::Broken | OutboundError::TooLong(_) => CallFailure::failed(error.to_string()),
    }
}

fn timed_out(time: Duration) -> CallFailure {
    CallFailure {
        result: CallResult::TimedOut,
        message: format!("Timeout of {} ms reached", time.as_millis()),
    }
}

fn body_failure(is_too_long: bool) -> CallFailure {
    if is_too_long {
        let message = format!("the response has more than {RESPONSE_BYTES_MAX} bytes");
        return CallFailure::failed(message);
    }
    CallFailure::failed("the connection ended before the end of the response")
}
