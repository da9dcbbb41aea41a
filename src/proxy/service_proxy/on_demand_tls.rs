//! Host name check for a proxy in front that issues certificates on demand, such as Caddy: `GET
//! /?domain=<name>`. Listens on loopback only.

use hyper::{Request, Response, StatusCode, body::Incoming};

use super::{
    body::{DownloadBody, full},
    context::ServiceProxyContext,
    routes::RouteStatus,
};

/// Returns 200 for a host name of a project, and 404 for any other name or before the routes are
/// loaded.
pub(super) async fn respond(
    context: &ServiceProxyContext,
    request: Request<Incoming>,
) -> Response<DownloadBody> {
    let mut response = Response::new(full(""));
    if !is_ours(context, request.uri().query().unwrap_or_default()).await {
        *response.status_mut() = StatusCode::NOT_FOUND;
    }
    response
}

async fn is_ours(context: &ServiceProxyContext, query: &str) -> bool {
    let mut names = form_urlencoded::parse(query.as_bytes()).filter(|(name, _)| name == "domain");
    // A repeated parameter is ambiguous.
    let (Some((_, name)), None) = (names.next(), names.next()) else {
        return false;
    };
    let route = context.proxy.routes.find(&name.to_ascii_lowercase()).await;
    route.is_some_and(|route| route.status != RouteStatus::NotActivated)
}
