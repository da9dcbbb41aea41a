//! Exchange of API keys for the credentials that a service understands: a key of the project
//! becomes a short token of an internal key, while the token of a user is passed on. Pure.

use std::borrow::Cow;

use gantry_node::kits::Service;
use hyper::{
    HeaderMap,
    header::{self, HeaderName, HeaderValue},
    http::request::Parts,
};
use secrecy::{ExposeSecret, SecretString};

use super::rejection::RequestRejection;
use crate::proxy::accepted_keys::{AcceptedKeys, KEY_BYTES_MAX, KeyExchange};

/// Header field and query parameter of a key.
const API_KEY: &str = "apikey";
/// Beginning of generated keys.
const KEY_PREFIX: &str = "sb_";
/// Header field with the token of a WebSocket of Realtime.
const REALTIME_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// The credential of a request to a service.
#[derive(Debug, Clone)]
pub(super) enum ServiceCredential {
    /// The request is forwarded as it came. The service is not one that Gantry runs.
    Unchanged,
    /// The client's own token, or none.
    Own,
    /// A token in place of the client's key.
    Token(SecretString),
}

impl ServiceCredential {
    /// Sets the credential. Realtime reads that of a WebSocket from a field of its own.
    pub(super) fn apply(&self, headers: &mut HeaderMap, service: Service) {
        let Self::Token(token) = self else {
            return;
        };
        let token = token.expose_secret();
        let mut set = |name: HeaderName, text: String| {
            if let Ok(mut value) = HeaderValue::try_from(text) {
                value.set_sensitive(true);
                headers.insert(name, value);
            }
        };
        set(header::AUTHORIZATION, format!("Bearer {token}"));
        if service == Service::Realtime {
            set(REALTIME_KEY, token.to_owned());
        }
    }

    /// Returns the query for the service, without a key: services would take it for a filter.
    pub(super) fn query<'a>(&self, query: Option<&'a str>) -> Option<Cow<'a, str>> {
        let query = query?;
        if matches!(self, Self::Unchanged) || !(query.contains(API_KEY) || query.contains('%')) {
            return Some(query.into());
        }
        let kept: Vec<&str> = query
            .split('&')
            .filter(|part| !is_key_parameter(part))
            .collect();
        (!kept.is_empty()).then(|| kept.join("&").into())
    }
}

fn is_key_parameter(part: &str) -> bool {
    form_urlencoded::parse(part.as_bytes()).any(|(name, _)| name == API_KEY)
}

/// Returns the credential for a request to a service that Gantry runs. `now` is in seconds since
/// 1970.
///
/// A bearer token other than a key takes precedence over the key. Without one, the key in `apikey`
/// counts, then a key as bearer token. A text like a key that is not of the project is rejected,
/// even where keys are not required: it is no credential for any service.
pub(super) fn exchange(
    parts: &Parts,
    keys: &AcceptedKeys,
    now: i64,
) -> Result<ServiceCredential, RequestRejection> {
    let header_key = single(&parts.headers, API_KEY)?;
    let parameters = form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes());
    let query_key = parameters
        .filter(|(name, _)| name == API_KEY)
        .map(|(_, key)| key.into_owned())
        .next();
    let key = header_key.map(str::to_owned).or(query_key);
    let key = key.filter(|key| !key.is_empty());
    let bearer = single(&parts.headers, header::AUTHORIZATION.as_str())?.and_then(bearer);
    let too_long = |key: &str| key.len() > KEY_BYTES_MAX;
    if key.as_deref().is_some_and(too_long) {
        return Err(RequestRejection::WrongKey);
    }
    let exchanged = |key: &str| match keys.exchange(key, now) {
        KeyExchange::Disabled => Err(RequestRejection::WrongKey),
        KeyExchange::Unknown if key.starts_with(KEY_PREFIX) => Err(RequestRejection::WrongKey),
        // The service judges it: it may be a token of a key that it trusts.
        KeyExchange::Unknown | KeyExchange::IsToken => {
            Ok(ServiceCredential::Token(key.to_owned().into()))
        }
        KeyExchange::Token(token) => Ok(ServiceCredential::Token(token)),
    };
    if bearer.is_some_and(|token| keys.is_disabled(token)) {
        return Err(RequestRejection::WrongKey);
    }
    // Judged first: a wrong key is refused next to any token.
    let of_key = key.as_deref().map(exchanged).transpose()?;
    match (bearer, of_key) {
        (Some(token), of_key) if token.starts_with(KEY_PREFIX) => {
            let of_bearer = exchanged(token)?;
            Ok(of_key.unwrap_or(of_bearer))
        }
        (Some(_), _) | (None, None) => Ok(ServiceCredential::Own),
        (None, Some(of_key)) => Ok(of_key),
    }
}

/// Returns the value of a header field that may be present once.
fn single<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, RequestRejection> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => value
            .to_str()
            .map(Some)
            .map_err(|_| RequestRejection::WrongKey),
        (Some(_), Some(_)) => Err(RequestRejection::WrongKey),
    }
}

fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;

    fn of(query: &str, headers: &[(&str, &str)]) -> Result<String, RequestRejection> {
        let keys =
            AcceptedKeys::for_tests(&[("sb_publishable_p", "anon"), ("sb_secret_s", "admin")]);
        let request = headers.iter().fold(
            Request::builder().uri(format!("/rest/v1/t{query}")),
            |request, (name, value)| request.header(*name, *value),
        );
        let parts = request.body(()).unwrap().into_parts().0;
        exchange(&parts, &keys, 0).map(|credential| match credential {
            ServiceCredential::Token(token) => {
                let token = token.expose_secret();
                match AcceptedKeys::role_for_tests(token) {
                    Some(role) => role,
                    None => token.to_owned(),
                }
            }
            ServiceCredential::Own => "own".to_owned(),
            ServiceCredential::Unchanged => "unchanged".to_owned(),
        })
    }

    #[test]
    fn key_becomes_a_token_and_user_token_takes_precedence() {
        let publishable = ("apikey", "sb_publishable_p");
        let secret = ("apikey", "sb_secret_s");
        let user = ("authorization", "Bearer x.y.z");
        for (query, headers, expected) in [
            ("", &[][..], "own"),
            ("", &[publishable], "anon"),
            ("", &[secret], "admin"),
            ("", &[publishable, user], "own"),
            ("", &[user], "own"),
            ("", &[("authorization", "Bearer sb_secret_s")], "admin"),
            (
                "",
                &[publishable, ("authorization", "Bearer sb_secret_s")],
                "anon",
            ),
            (
                "",
                &[secret, ("authorization", "Bearer sb_secret_s")],
                "admin",
            ),
            (
                "",
                &[secret, ("authorization", "bearer  sb_publishable_p ")],
                "admin",
            ),
            ("?select=a&apikey=sb_secret_s", &[], "admin"),
            ("?apikey=sb_secret_s", &[publishable], "anon"),
            ("", &[("apikey", "a.b.c")], "a.b.c"),
            ("", &[secret, ("authorization", "Basic YTpi")], "admin"),
            ("", &[("apikey", "")], "own"),
        ] {
            assert_eq!(
                of(query, headers).as_deref(),
                Ok(expected),
                "{query} {headers:?}"
            );
        }
        for headers in [
            &[("apikey", "sb_secret_other")][..],
            &[("authorization", "Bearer sb_secret_other")],
            &[("apikey", "sb_secret_other"), user],
            &[publishable, ("authorization", "Bearer sb_other")],
            &[publishable, secret],
            &[("apikey", &"x".repeat(2000))],
        ] {
            assert_eq!(
                of("", headers),
                Err(RequestRejection::WrongKey),
                "{headers:?}"
            );
        }
    }

    #[test]
    fn realtime_gets_the_token_in_the_field_that_it_reads() {
        let credential = ServiceCredential::Token("x.y.z".into());
        for (service, expected) in [(Service::Realtime, Some("x.y.z")), (Service::Rest, None)] {
            let mut headers = HeaderMap::new();
            credential.apply(&mut headers, service);
            assert_eq!(headers[header::AUTHORIZATION], "Bearer x.y.z");
            let own = headers
                .get(REALTIME_KEY)
                .and_then(|value| value.to_str().ok());
            assert_eq!(own, expected, "{service}");
        }
    }

    #[test]
    fn key_is_removed_from_the_query() {
        let own = ServiceCredential::Own;
        for (query, expected) in [
            (None, None),
            (Some("a=1"), Some("a=1")),
            (Some("apikey=x"), None),
            (Some("a=1&apikey=x&b=%20"), Some("a=1&b=%20")),
            (Some("%61pikey=x&b=2&apikey=y"), Some("b=2")),
            (Some("select=apikey"), Some("select=apikey")),
        ] {
            assert_eq!(own.query(query).as_deref(), expected, "{query:?}");
        }
        let unchanged = ServiceCredential::Unchanged.query(Some("apikey=x"));
        assert_eq!(unchanged.as_deref(), Some("apikey=x"));
    }
}
