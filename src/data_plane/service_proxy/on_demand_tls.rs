//! For people who keep a proxy of their own before the edge: tells it whether a name is one of ours before it gets a certificate for
//! it, at `GET /?domain=<name>`. Listens on this machine only.

use hyper::{Request, Response, StatusCode, body::Incoming};

use super::{
    body::{DownloadBody, full},
    routes::RouteStatus,
};
use crate::data_plane::context::DataPlaneContext;

/// 200 for a name that leads to a project, 404 for any other, and for all of them as long as nothing is known.
pub(super) async fn answer(
    context: &DataPlaneContext,
    request: Request<Incoming>,
) -> Response<DownloadBody> {
    let mut response = Response::new(full(""));
    if !is_ours(context, request.uri().query().unwrap_or_default()).await {
        *response.status_mut() = StatusCode::NOT_FOUND;
    }
    response
}

async fn is_ours(context: &DataPlaneContext, query: &str) -> bool {
    let mut names = form_urlencoded::parse(query.as_bytes()).filter(|(name, _)| name == "domain");
    // Said twice it means nothing.
    let (Some((_, name)), None) = (names.next(), names.next()) else {
        return false;
    };
    let route = context
        .service_proxy
        .routes
        .find(&name.to_ascii_lowercase())
        .await;
    route.is_some_and(|route| route.status != RouteStatus::NotYet)
}
