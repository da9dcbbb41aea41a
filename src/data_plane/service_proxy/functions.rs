//! Requests to Edge Functions that Gantry runs: authorization, and their errors.

use std::sync::Arc;

use gantry_node::kits::Service;
use hyper::{
    HeaderMap, Method, Response, StatusCode,
    header::{self, HeaderValue},
    http::request::Parts,
};

use super::{
    api_key_check::KEY_BYTES_MAX, connection::ClientConnection, key_exchange::ServiceCredential,
    log::CalledFunction, rejection::RequestRejection, routes::Route, upstreams::Upstream,
};
use crate::data_plane::{
    api_keys::{AcceptedKeys, TokenProblem},
    services,
    services::{
        ServiceCaller, ServiceUse, Unavailable, UnavailableReason,
        functions::{self, live_functions},
    },
};

/// Beginning of generated keys.
const KEY_PREFIX: &str = "sb_";
/// Header field with the code of an error.
const ERROR_CODE: &str = "sb-error-code";
/// Times that a request looks for the live version, if versions change meanwhile.
const ROUNDS_MAX: usize = 3;

/// The reason why a request to a function is not authorized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FunctionAuthProblem {
    /// The request has neither a token nor a key.
    NoHeader,
    /// The key is not of the project.
    WrongKey,
    /// The token is not accepted.
    Token(TokenProblem),
}

impl FunctionAuthProblem {
    /// The code of the hosted platform.
    pub(super) const fn code(self) -> &'static str {
        match self {
            Self::NoHeader => "UNAUTHORIZED_NO_AUTH_HEADER",
            Self::WrongKey => "UNAUTHORIZED_INVALID_API_KEY",
            Self::Token(TokenProblem::Format) => "UNAUTHORIZED_INVALID_JWT_FORMAT",
            Self::Token(TokenProblem::Legacy) => "UNAUTHORIZED_LEGACY_JWT",
            Self::Token(TokenProblem::Asymmetric) => "UNAUTHORIZED_ASYMMETRIC_JWT",
            Self::Token(TokenProblem::Unsupported(_)) => "UNAUTHORIZED_UNSUPPORTED_TOKEN_ALGORITHM",
        }
    }

    /// The message of the hosted platform.
    pub(super) fn message(self) -> String {
        match self {
            Self::NoHeader => "Missing authorization header".to_owned(),
            Self::WrongKey => "Invalid API key".to_owned(),
            Self::Token(TokenProblem::Format) => "Invalid JWT format".to_owned(),
            Self::Token(TokenProblem::Legacy | TokenProblem::Asymmetric) => {
                "Invalid JWT".to_owned()
            }
            Self::Token(TokenProblem::Unsupported(algorithm)) => {
                format!("Unsupported JWT algorithm {algorithm}")
            }
        }
    }
}

/// Authorizes a request to a function, and starts the function if necessary. Sets `called` once the
/// function is known. The end of the process is charged to `caller`.
pub(super) async fn admit(
    connection: &ClientConnection,
    route: &Route,
    rest: &str,
    (parts, caller): (&Parts, ServiceCaller),
    called: &mut Option<CalledFunction>,
) -> Result<(Arc<Upstream>, Option<ServiceUse>, ServiceCredential), RequestRejection> {
    let context = &connection.context;
    if !is_method(&parts.method) {
        return Err(RequestRejection::Method);
    }
    let slug = rest.trim_start_matches('/').split('/').next();
    let slug = slug.unwrap_or_default();
    let project = (route.project, &route.reference);
    for _ in 0..ROUNDS_MAX {
        let live = live_functions(context, route.project)
            .await
            .map_err(|_| RequestRejection::KeysUnknown)?;
        let has_kit = services::has_kit(context, Service::Functions);
        if live.is_empty() && !has_kit {
            return Err(RequestRejection::NotConfigured(Service::Functions));
        }
        let function = live.get(slug).ok_or(RequestRejection::NoFunction)?;
        *called = Some(CalledFunction {
            id: function.id,
            slug: function.slug.clone(),
            version: function.version,
        });
        let keys = context
            .service_proxy
            .api_keys
            .accepted(context, route)
            .await?;
        let mut caller = caller;
        if parts.method != Method::OPTIONS {
            let now = context.clock.now().timestamp();
            let token = authorize(&parts.headers, &keys, function.verify_jwt, now)
                .map_err(RequestRejection::FunctionAuth)?;
            caller = token.map_or(caller, |token| caller.with_token(token));
        }
        let environment = (live.environment, &*keys);
        let used = functions::acquire(context, project, function, environment, caller).await;
        // A version that was replaced meanwhile must not answer.
        if !functions::is_current(context, route.project, function, live.environment).await {
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

/// Checks the credentials of a request, and returns the verified token, if that is not a key. A key
/// that is not of the project is rejected even where no token is needed.
fn authorize<'a>(
    headers: &'a HeaderMap,
    keys: &AcceptedKeys,
    verify_jwt: bool,
    now: i64,
) -> Result<Option<&'a str>, FunctionAuthProblem> {
    let single = |name: &str| {
        let mut values = headers.get_all(name).iter();
        match (values.next(), values.next()) {
            (None, _) => Ok(None),
            (Some(value), None) => {
                let text = value.to_str().ok();
                let text = text.filter(|text| text.len() <= KEY_BYTES_MAX * 16);
                text.map(Some).ok_or(FunctionAuthProblem::WrongKey)
            }
            (Some(_), Some(_)) => Err(FunctionAuthProblem::WrongKey),
        }
    };
    let key = single("apikey")?.filter(|key| !key.is_empty());
    let authorization = single(header::AUTHORIZATION.as_str())?;
    let bearer = authorization.and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    let mut is_key = false;
    for sent in [key, bearer].into_iter().flatten() {
        if keys.contains(sent) {
            is_key = true;
        } else if sent.starts_with(KEY_PREFIX) {
            return Err(FunctionAuthProblem::WrongKey);
        }
    }
    if !verify_jwt {
        return Ok(None);
    }
    let token = match (authorization, bearer) {
        (None, _) if is_key => return Ok(None),
        // A token in the place of a key.
        (None, _) => key.ok_or(FunctionAuthProblem::NoHeader)?,
        (Some(_), None) => return Err(FunctionAuthProblem::Token(TokenProblem::Format)),
        (Some(_), Some(token)) if keys.contains(token) => return Ok(None),
        (Some(_), Some(token)) => token,
    };
    keys.check_token(token, now)
        .map_err(FunctionAuthProblem::Token)?;
    Ok(Some(token))
}

/// Replaces the error of a request that a function did not answer by the reason for which its
/// process ended.
pub(super) async fn with_reason<T>(
    outcome: Result<T, RequestRejection>,
    service_use: Option<&ServiceUse>,
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
    fn credentials_are_judged_by_the_published_table() {
        let keys = AcceptedKeys::for_tests(&[("sb_publishable_p", "anon")]);
        let of = |verify_jwt: bool, sent: &[(&'static str, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in sent {
                headers.append(*name, value.parse().unwrap());
            }
            let outcome = authorize(&headers, &keys, verify_jwt, 0);
            outcome.map(|_| ()).map_err(FunctionAuthProblem::code)
        };
        let (key, wrong) = (("apikey", "sb_publishable_p"), ("apikey", "sb_secret_x"));
        let token = ("authorization", "Bearer eyJhbGciOiJIUzI1NiJ9.e30.eA");
        for (sent, expected, open) in [
            (&[][..], Err("UNAUTHORIZED_NO_AUTH_HEADER"), Ok(())),
            (&[key], Ok(()), Ok(())),
            (
                &[("authorization", "Bearer sb_publishable_p")],
                Ok(()),
                Ok(()),
            ),
            (
                &[wrong],
                Err("UNAUTHORIZED_INVALID_API_KEY"),
                Err("UNAUTHORIZED_INVALID_API_KEY"),
            ),
            (
                &[key, ("authorization", "Bearer sb_secret_x")],
                Err("UNAUTHORIZED_INVALID_API_KEY"),
                Err("UNAUTHORIZED_INVALID_API_KEY"),
            ),
            (
                &[("authorization", "Basic x")],
                Err("UNAUTHORIZED_INVALID_JWT_FORMAT"),
                Ok(()),
            ),
            (
                &[("authorization", "Bearer x")],
                Err("UNAUTHORIZED_INVALID_JWT_FORMAT"),
                Ok(()),
            ),
            (&[key, token], Err("UNAUTHORIZED_LEGACY_JWT"), Ok(())),
            (
                &[key, key],
                Err("UNAUTHORIZED_INVALID_API_KEY"),
                Err("UNAUTHORIZED_INVALID_API_KEY"),
            ),
        ] {
            assert_eq!(of(true, sent), expected, "{sent:?}");
            assert_eq!(of(false, sent), open, "{sent:?}");
        }
    }

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
