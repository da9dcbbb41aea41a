//! Requests to Edge Functions that Gantry runs: their processes and errors.

use std::sync::Arc;

use gantry_base::ids::ProjectId;
use gantry_node::kits::Service;
use hyper::{
    Method, Response, StatusCode,
    header::{self, HeaderValue},
    http::request::Parts,
};

use super::{
    client_connection::ClientConnection,
    directory::{ProjectDirectory, RunningService},
    function_auth::authorize,
    key_exchange::ServiceCredential,
    live_functions::LiveFunction,
    log::CalledFunction,
    rejection::RequestRejection,
    routes::Route,
    upstreams::Upstream,
};
use crate::proxy::{
    service_caller::ServiceCaller,
    unavailable::{Unavailable, UnavailableReason},
};

/// Header field with the code of an error.
const ERROR_CODE: &str = "sb-error-code";
/// Times that a request looks for the live version, if versions change meanwhile.
const ROUNDS_MAX: usize = 3;

/// Authorizes a request to a function, and starts the function if necessary. Sets `called` once the
/// function is known. The end of the process is charged to `caller`.
pub(super) async fn admit(
    connection: &ClientConnection,
    route: &Route,
    rest: &str,
    (parts, caller): (&Parts, ServiceCaller),
    called: &mut Option<CalledFunction>,
) -> Result<
    (
        Arc<Upstream>,
        Option<Box<dyn RunningService>>,
        ServiceCredential,
    ),
    RequestRejection,
> {
    let context = &connection.context;
    if !is_method(&parts.method) {
        return Err(RequestRejection::Method);
    }
    let slug = rest.trim_start_matches('/').split('/').next();
    let slug = slug.unwrap_or_default();
    let project = (route.project, &route.reference);
    for _ in 0..ROUNDS_MAX {
        let live = context.directory.functions(route.project).await;
        let live = live.map_err(|_| RequestRejection::KeysUnknown)?;
        let has_kit = context.services.has_kit(Service::Functions);
        if live.is_empty() && !has_kit {
            return Err(RequestRejection::NotConfigured(Service::Functions));
        }
        let function = live.get(slug).ok_or(RequestRejection::NoFunction)?;
        *called = Some(CalledFunction {
            id: function.id,
            slug: function.slug.clone(),
            version: function.version,
        });
        let keys = context.accepted_keys(route).await?;
        let mut caller = caller;
        if parts.method != Method::OPTIONS {
            let now = context.clock.now().timestamp();
            let token = authorize(&parts.headers, &keys, function.verify_jwt, now)
                .map_err(RequestRejection::FunctionAuth)?;
            caller = token.map_or(caller, |token| caller.with_token(token));
        }
        let environment = (live.environment, &*keys);
        let used = context
            .services
            .acquire_function(project, function, environment, caller)
            .await;
        // A version that was replaced meanwhile must not answer.
        let directory = &*context.directory;
        if !is_current(directory, route.project, function, live.environment).await {
            continue;
        }
        let used = used.map_err(|unavailable| {
            RequestRejection::Unavailable(Service::Functions, unavailable)
        })?;
        return Ok((
            used.upstream().clone(),
            Some(used),
            ServiceCredential::Unchanged,
        ));
    }
    let unavailable = Unavailable {
        reason: UnavailableReason::Starting,
        retry_secs: 1,
    };
    Err(RequestRejection::Unavailable(
        Service::Functions,
        unavailable,
    ))
}

/// Returns whether a version and an environment are still those of new requests.
async fn is_current(
    directory: &dyn ProjectDirectory,
    project: ProjectId,
    live: &LiveFunction,
    environment: i64,
) -> bool {
    let Ok(functions) = directory.functions(project).await else {
        return true;
    };
    let now = functions.get(&live.slug);
    functions.environment == environment && now.is_some_and(|now| now.deployment == live.deployment)
}

/// Returns whether functions are called with this method.
fn is_method(method: &Method) -> bool {
    [
        Method::GET,
        Method::HEAD,
        Method::POST,
        Method::PUT,
        Method::PATCH,
        Method::DELETE,
        Method::OPTIONS,
    ]
    .contains(method)
}

/// Replaces the error of a request that a function did not answer by the reason for which its
/// process ended.
pub(super) async fn with_reason<T>(
    outcome: Result<T, RequestRejection>,
    service_use: Option<&dyn RunningService>,
) -> Result<T, RequestRejection> {
    match (outcome, service_use) {
        (Err(RequestRejection::Unreachable(Service::Functions)), Some(used)) => {
            Err(if used.end_exceeded().await {
                RequestRejection::FunctionExceeded
            } else {
                RequestRejection::FunctionEnded
            })
        }
        (outcome, _) => outcome,
    }
}

/// Adjusts the response of a function as the hosted platform does: pages are shown as text on the
/// projects' own domain, and errors have a code.
pub(super) fn adjust<B>(response: &mut Response<B>, method: &Method, own_domain: bool) {
    let is_error = response.status().is_server_error();
    let status = response.status();
    let headers = response.headers_mut();
    let is_page = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| {
            value
                .trim_start()
                .to_ascii_lowercase()
                .starts_with("text/html")
        });
    if own_domain && *method == Method::GET && is_page {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    }
    if is_error && status != StatusCode::SWITCHING_PROTOCOLS && !headers.contains_key(ERROR_CODE) {
        headers.insert(ERROR_CODE, HeaderValue::from_static("EDGE_FUNCTION_ERROR"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_text_and_errors_have_a_code() {
        let of = |status: u16, media: &'static str, method: Method, own: bool| {
            let response = Response::builder()
                .status(status)
                .header("content-type", media);
            let mut response = response.body(()).unwrap();
            adjust(&mut response, &method, own);
            let headers = response.headers();
            (
                headers["content-type"].clone(),
                headers.contains_key(ERROR_CODE),
            )
        };
        let page = "text/html; charset=utf-8";
        assert_eq!(of(200, page, Method::GET, true).0, "text/plain");
        assert_eq!(of(200, page, Method::GET, false).0, page);
        assert_eq!(of(200, page, Method::POST, true).0, page);
        assert!(of(503, "text/x", Method::GET, true).1);
        assert!(!of(404, "text/x", Method::GET, true).1);
    }
}
