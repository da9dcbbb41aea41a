//! Client credentials of OAuth clients, from the `Authorization` header field.

use base64::{Engine, prelude::BASE64_STANDARD};
use http::{HeaderMap, header};
use secrecy::SecretString;

/// The client credentials of the `Authorization` field (RFC 6749 §2.3.1).
#[derive(Debug)]
pub enum ClientCredentials {
    /// The request has no such field.
    Absent,
    /// A bearer token, which does not identify the client. The management SDK sends one with every
    /// request.
    Bearer,
    /// More than one field, or a field that cannot be parsed.
    Unreadable,
    /// The credentials of HTTP Basic.
    Basic {
        /// The client id, before the colon.
        name: String,
        /// The client secret, after the colon.
        secret: SecretString,
    },
}

/// Reads the client credentials of HTTP Basic. Id and secret are form-encoded each (RFC 6749
/// §2.3.1).
pub(super) fn read(headers: &HeaderMap) -> ClientCredentials {
    let mut lines = headers.get_all(header::AUTHORIZATION).iter();
    let Some(line) = lines.next() else {
        return ClientCredentials::Absent;
    };
    let parsed = || {
        let (scheme, encoded) = line.to_str().ok()?.split_once(' ')?;
        if scheme.eq_ignore_ascii_case("bearer") {
            return Some(ClientCredentials::Bearer);
        }
        let text = String::from_utf8(BASE64_STANDARD.decode(encoded).ok()?).ok()?;
        let (name, secret) = text
            .split_once(':')
            .filter(|_| scheme.eq_ignore_ascii_case("basic"))?;
        Some(ClientCredentials::Basic {
            name: decoded(name),
            secret: decoded(secret).into(),
        })
    };
    if lines.next().is_some() {
        ClientCredentials::Unreadable
    } else {
        parsed().unwrap_or(ClientCredentials::Unreadable)
    }
}

/// Reads the bearer token of the `Authorization` field, or `None` if there is no single one.
pub(super) fn bearer(headers: &HeaderMap) -> Option<SecretString> {
    let mut lines = headers.get_all(header::AUTHORIZATION).iter();
    let line = lines.next()?;
    let (scheme, token) = line.to_str().ok()?.split_once(' ')?;
    let is_bearer = scheme.eq_ignore_ascii_case("bearer") && lines.next().is_none();
    is_bearer.then(|| token.trim().into())
}

/// Decodes a form-encoded text: the name of a form's only field.
fn decoded(text: &str) -> String {
    form_urlencoded::parse(text.as_bytes())
        .next()
        .map(|(text, _)| text.into_owned())
        .unwrap_or_default()
}
