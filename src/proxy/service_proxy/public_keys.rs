//! The public keys of a project at the address of its authentication service, if no such service
//! is configured: clients verify tokens with them.

use gantry_node::kits::Service;
use hyper::{
    Method, Response, StatusCode,
    header::{self, HeaderValue},
    http::request::Parts,
};

use super::{
    body::full, client_connection::ClientConnection, forwarded::ProxyResponse,
    rejection::RequestRejection, routes::Route,
};

/// Path of the key set below that of the authentication service.
pub(super) const PATH: &str = "/.well-known/jwks.json";
/// As on the hosted platform: verifiers see a new key after ten minutes at the latest.
const CACHED: HeaderValue = HeaderValue::from_static("public, max-age=600");

/// Answers a request for the key set. No API key is required.
///
/// Errors: [`RequestRejection::NotConfigured`] for another request.
pub(super) async fn respond(
    connection: &ClientConnection,
    route: &Route,
    parts: &Parts,
) -> Result<ProxyResponse, RequestRejection> {
    let is_read = matches!(parts.method, Method::GET | Method::HEAD);
    let rest = Service::of_path(parts.uri.path()).map(|(_, rest)| rest);
    if !is_read || rest != Some(PATH) {
        return Err(RequestRejection::NotConfigured(Service::Auth));
    }
    let context = &connection.context;
    let keys = context.accepted_keys(route);
    let text = keys.await?.public_key_set().to_string();
    let length = HeaderValue::from(text.len());
    let body = if parts.method == Method::HEAD {
        String::new()
    } else {
        text
    };
    let mut response = Response::new(full(body));
    *response.status_mut() = StatusCode::OK;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, length);
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json; charset=utf-8"),
    );
    headers.insert(header::CACHE_CONTROL, CACHED);
    Ok(response)
}
