//! API key check: the services that require a key, and the places where a client may send it.

use gantry_node::kits::Service;
use hyper::{Method, http::request::Parts};

use super::{context::ServiceProxyContext, rejection::RequestRejection, routes::Route};
use crate::proxy::accepted_keys::KEY_BYTES_MAX;

/// Paths of `auth` that need no key: browsers are redirected to them, or callers have no key of the
/// project.
const PATHS_WITHOUT_KEY: [&str; 6] = [
    "/authorize",
    "/callback",
    "/verify",
    "/sso/saml/acs",
    "/sso/saml/metadata",
    "/.well-known",
];

/// Returns whether requests to a project need an API key: the project's setting, or the default.
pub(super) fn checks_keys(context: &ServiceProxyContext, route: &Route) -> bool {
    route.check_keys.unwrap_or(context.proxy.options.check_keys)
}

/// Checks the API key of a request, if the request needs one.
pub(super) async fn check(
    context: &ServiceProxyContext,
    route: &Route,
    service: Service,
    rest: &str,
    parts: &Parts,
) -> Result<(), RequestRejection> {
    if !checks_keys(context, route) || !needs_key(service, rest, &parts.method) {
        return Ok(());
    }
    let key = presented(parts)?;
    let accepted = context.accepted_keys(route).await?;
    if accepted.contains(&key) {
        Ok(())
    } else {
        Err(RequestRejection::WrongKey)
    }
}

/// Returns whether a request needs a key where keys are checked. Storage objects may be public,
/// functions authenticate callers themselves, and browsers cannot send a key with `OPTIONS`.
pub(super) fn needs_key(service: Service, rest: &str, method: &Method) -> bool {
    if method == Method::OPTIONS {
        return false;
    }
    match service {
        Service::Storage | Service::Functions => false,
        Service::Rest | Service::Realtime | Service::Pooler => true,
        Service::Auth => !PATHS_WITHOUT_KEY.iter().any(|open| {
            rest.strip_prefix(open)
                .is_some_and(|more| more.is_empty() || more.starts_with('/'))
        }),
    }
}

/// Returns the key that the client sent: the header or query parameter `apikey`, otherwise the
/// bearer token.
pub(super) fn presented(parts: &Parts) -> Result<String, RequestRejection> {
    let header = |name: &str| {
        let mut values = parts.headers.get_all(name).iter();
        match (values.next(), values.next()) {
            (None, _) => Ok(None),
            (Some(value), None) => value
                .to_str()
                .map(|text| Some(text.to_owned()))
                .map_err(|_| RequestRejection::WrongKey),
            (Some(_), Some(_)) => Err(RequestRejection::WrongKey),
        }
    };
    let query = parts.uri.query().unwrap_or_default();
    let parameter = || {
        form_urlencoded::parse(query.as_bytes())
            .find(|(name, _)| name == "apikey")
            .map(|(_, key)| key.into_owned())
    };
    let bearer = || -> Result<Option<String>, RequestRejection> {
        let text = header(hyper::header::AUTHORIZATION.as_str())?;
        Ok(text.and_then(|text| {
            let (scheme, token) = text.split_once(' ')?;
            scheme
                .eq_ignore_ascii_case("bearer")
                .then(|| token.trim().to_owned())
        }))
    };
    let key = match header("apikey")?.or_else(parameter) {
        Some(key) => key,
        None => bearer()?.ok_or(RequestRejection::NoKey)?,
    };
    if key.is_empty() {
        return Err(RequestRejection::NoKey);
    }
    if key.len() > KEY_BYTES_MAX {
        Err(RequestRejection::WrongKey)
    } else {
        Ok(key)
    }
}

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;

    #[test]
    fn key_is_required_for_project_data() {
        let get = Method::GET;
        let post = Method::POST;
        for (service, rest, method, open) in [
            (Service::Rest, "/todos", &get, false),
            (Service::Rest, "/todos", &Method::OPTIONS, true),
            (Service::Realtime, "/websocket", &get, false),
            (Service::Storage, "/object/public/a", &get, true),
            (Service::Functions, "/hello", &post, true),
            (Service::Auth, "/token", &post, false),
            (Service::Auth, "/user", &get, false),
            (Service::Auth, "/authorize", &get, true),
            (Service::Auth, "/callback", &get, true),
            (Service::Auth, "/verify", &get, true),
            (Service::Auth, "/.well-known/jwks.json", &get, true),
            (Service::Auth, "/sso/saml/acs", &post, true),
            (Service::Auth, "/sso", &post, false),
            (Service::Auth, "/verifying", &get, false),
            (Service::Auth, "/admin/users/verify", &get, false),
            (Service::Auth, "", &get, false),
        ] {
            assert_eq!(
                needs_key(service, rest, method),
                !open,
                "{service} {rest} {method}"
            );
        }
    }

    #[test]
    fn key_is_read_from_header_query_or_bearer_token() {
        let sent = |query: &str, headers: &[(&str, &str)]| {
            let request = headers.iter().fold(
                Request::builder().uri(format!("/rest/v1/{query}")),
                |request, (name, value)| request.header(*name, *value),
            );
            presented(&request.body(()).unwrap().into_parts().0)
        };
        let bearer = ("authorization", "Bearer b");
        for (query, headers, expected) in [
            ("", &[("apikey", "a")][..], Ok("a")),
            ("?x=1&apikey=q%2B", &[], Ok("q+")),
            ("", &[bearer], Ok("b")),
            ("", &[("authorization", "bearer  b ")], Ok("b")),
            ("?apikey=q", &[("apikey", "a"), bearer], Ok("a")),
            ("?apikey=q", &[bearer], Ok("q")),
            ("", &[], Err(RequestRejection::NoKey)),
            ("", &[("apikey", "")], Err(RequestRejection::NoKey)),
            (
                "",
                &[("authorization", "Basic YTpi")],
                Err(RequestRejection::NoKey),
            ),
            (
                "",
                &[("apikey", "a"), ("apikey", "b")],
                Err(RequestRejection::WrongKey),
            ),
            (
                "",
                &[("apikey", &"a".repeat(2000))],
                Err(RequestRejection::WrongKey),
            ),
        ] {
            assert_eq!(
                sent(query, headers)
                    .as_deref()
                    .map_err(|rejection| *rejection),
                expected,
                "{query} {headers:?}"
            );
        }
    }
}
