//! Rules for the attributes of endpoints.

use std::collections::BTreeMap;

use gantry_base::net::outbound::OutboundPolicy;
use http::{HeaderName, HeaderValue};
use url::{Host, Url};

use super::resources::{REDACTED, SubscribedType};
use crate::{
    control::platform_webhooks::endpoint::EVERY_TYPE,
    platform::{
        error::{Error, WebhookProblem},
        events, webhook_signature,
    },
};

/// Longest URL, in bytes.
const URL_BYTES_MAX: usize = 2048;
/// Longest description, in characters.
const DESCRIPTION_CHARS_MAX: usize = 512;
/// Length of a signing secret, in bytes.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 8..=64;
/// Header fields of an endpoint.
const HEADERS_MAX: usize = 20;
/// All names and values of header fields together, in bytes.
const HEADERS_BYTES_MAX: usize = 8 << 10;
/// Header fields that the server sets.
const RESERVED: [&str; 13] = [
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "host",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    webhook_signature::ID,
    webhook_signature::SIGNATURE,
    webhook_signature::TIMESTAMP,
];

/// Returns the error of an invalid attribute.
fn invalid(name: &str, problem: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::invalid(format!("data.attributes.{name}"), problem)
}

/// Checks a URL without resolving its name.
fn parse_url(text: &str) -> Result<Url, Error> {
    if text.len() > URL_BYTES_MAX {
        let problem = format!("Too big: expected string to have <={URL_BYTES_MAX} bytes");
        return Err(invalid("url", problem));
    }
    let url = Url::parse(text)
        .ok()
        .filter(|url| matches!(url.scheme(), "http" | "https"))
        .ok_or_else(|| invalid("url", "expected a URL that begins with https:// or http://"))?;
    if !url.username().is_empty() || url.password().is_some() {
        let problem = "contains a user name or password; send them in custom_headers";
        return Err(invalid("url", problem));
    }
    if url.fragment().is_some() {
        return Err(invalid("url", "contains a fragment"));
    }
    // The parser reads every notation of an IPv4 address, such as `0x7f.1`, as one.
    match url.host() {
        Some(Host::Domain(_)) => Ok(url),
        _ => Err(Error::Webhook(WebhookProblem::UnresolvableUrl)),
    }
}

/// Checks a URL: a domain name that resolves to a permitted address. Each connection is checked
/// again, because the name may resolve to another one later.
pub(super) async fn check_url(text: &str, policy: &OutboundPolicy) -> Result<Url, Error> {
    let url = parse_url(text)?;
    let host = url.host_str().unwrap_or_default();
    match policy.resolve(host, 0).await {
        Ok(_) => Ok(url),
        Err(_) => Err(Error::Webhook(WebhookProblem::UnresolvableUrl)),
    }
}

/// Returns whether two URLs have the same scheme, host and port, so that secrets for one may be
/// sent to the other.
pub(super) fn is_same_origin(one: &str, other: &str) -> bool {
    match (Url::parse(one), Url::parse(other)) {
        (Ok(one), Ok(other)) => one.origin() == other.origin(),
        _ => false,
    }
}

/// Returns the names of event types, each once.
pub(super) fn check_types(types: Vec<SubscribedType>) -> Result<Vec<String>, Error> {
    if types.is_empty() {
        let problem = "Too small: expected array to have >=1 items";
        return Err(invalid("event_types", problem));
    }
    let mut names: Vec<String> = Vec::new();
    for (index, given) in types.into_iter().enumerate() {
        let name = current_name(given.r#type);
        if name != EVERY_TYPE && events::find(&name).is_none() {
            let problem = "is no event type; use one that the reference lists, or *";
            return Err(invalid(&format!("event_types.{index}.type"), problem));
        }
        if !names.contains(&name) {
            names.push(name);
        }
    }
    Ok(names)
}

/// Returns the current name of an event type that a client may know by an earlier one:
/// `project.v1.paused` is `v1.project.paused`.
pub(super) fn current_name(name: String) -> String {
    let former = name.split_once(".v1.");
    match former.filter(|(subject, _)| matches!(*subject, "project" | "organization")) {
        Some(("project", "branch.deleted")) => "v1.project.branch.removed".to_owned(),
        Some((subject, rest)) => format!("v1.{subject}.{rest}"),
        None => name,
    }
}

pub(super) fn check_secret(secret: &str) -> Result<(), Error> {
    if SECRET_BYTES.contains(&secret.len()) && !secret.chars().any(char::is_control) {
        return Ok(());
    }
    let (min, max) = SECRET_BYTES.into_inner();
    let problem = format!("expected {min} to {max} characters, without control characters");
    Err(invalid("signing_secret", problem))
}

pub(super) fn check_description(text: Option<&str>) -> Result<(), Error> {
    if text.is_some_and(|text| text.chars().count() > DESCRIPTION_CHARS_MAX) {
        let problem =
            format!("Too big: expected string to have <={DESCRIPTION_CHARS_MAX} characters");
        return Err(invalid("description", problem));
    }
    Ok(())
}

/// Checks header fields, and restores values from `stored`. Returns them with lower-case names.
pub(super) fn check_headers(
    given: BTreeMap<String, String>,
    stored: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, Error> {
    let mut headers = BTreeMap::new();
    for (name, value) in given {
        let at = format!("custom_headers.{name}");
        let parsed = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| invalid(&at, "is not a name of an HTTP header field"))?;
        let name = parsed.as_str().to_owned();
        if RESERVED.contains(&&*name) {
            return Err(invalid(&at, "is set by the server"));
        }
        let value = if value == REDACTED {
            let problem = "[redacted] stands for a stored value, and there is none for this \
                           destination; send the value";
            let stored = stored.get(&name).cloned();
            stored.ok_or_else(|| invalid(&at, problem))?
        } else {
            value
        };
        if HeaderValue::from_str(&value).is_err() {
            return Err(invalid(&at, "is not a value of an HTTP header field"));
        }
        headers.insert(name, value);
    }
    let bytes: usize = headers
        .iter()
        .map(|(name, value)| name.len() + value.len())
        .sum();
    if headers.len() > HEADERS_MAX || bytes > HEADERS_BYTES_MAX {
        let problem =
            format!("has more than {HEADERS_MAX} fields, or {HEADERS_BYTES_MAX} bytes in all");
        return Err(invalid("custom_headers", problem));
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message<T: std::fmt::Debug>(checked: Result<T, Error>) -> String {
        checked.unwrap_err().message().into_owned()
    }

    #[test]
    fn url_with_an_address_in_any_notation_is_rejected() {
        for url in [
            "https://127.0.0.1/",
            "https://2130706433/",
            "https://0x7f.1/",
            "https://017700000001/",
            "https://127.1/",
            "https://[::1]/",
            "https://[::ffff:7f00:1]/",
            "https://8.8.8.8/",
            "https://%31%32%37.0.0.1/",
            "https://１２７.０.０.１/",
        ] {
            let error = parse_url(url).unwrap_err();
            assert_eq!(error.code().name, "endpoint_url_unresolvable", "{url}");
        }
    }

    #[test]
    fn url_needs_a_scheme_of_http_and_no_secrets() {
        assert!(parse_url("https://hooks.example.com:8443/a?b=c").is_ok());
        for url in [
            "ftp://a.example",
            "a.example",
            "file:///etc/passwd",
            "https://",
            "https://u:p@a.example",
            "https://a.example/#x",
            &format!("https://a.example/{}", "x".repeat(URL_BYTES_MAX)),
        ] {
            let error = parse_url(url).unwrap_err();
            assert_eq!(error.code().name, "validation_failed", "{url}");
        }
    }

    #[tokio::test]
    async fn url_whose_name_resolves_to_a_private_address_is_rejected() {
        let policy = OutboundPolicy::default();
        for url in ["http://localhost:1/", "https://does-not-exist.invalid/"] {
            let error = check_url(url, &policy).await.unwrap_err();
            assert_eq!(error.code().name, "endpoint_url_unresolvable", "{url}");
        }
        let permitted = OutboundPolicy::unrestricted();
        assert!(check_url("http://localhost:1/", &permitted).await.is_ok());
    }

    #[test]
    fn former_names_of_types_are_mapped() {
        for (given, name) in [
            ("project.v1.paused", "v1.project.paused"),
            ("project.v1.branch.deleted", "v1.project.branch.removed"),
            (
                "organization.v1.member.added",
                "v1.organization.member.added",
            ),
            ("v1.project.paused", "v1.project.paused"),
            ("other.v1.x", "other.v1.x"),
            ("*", "*"),
        ] {
            assert_eq!(current_name(given.to_owned()), name);
        }
    }

    #[test]
    fn unknown_and_missing_types_are_rejected_and_repeated_ones_are_merged() {
        let types = |names: &[&str]| {
            let given = names.iter().map(|name| SubscribedType {
                r#type: (*name).to_owned(),
            });
            check_types(given.collect())
        };
        assert!(message(types(&[])).starts_with("data.attributes.event_types: Too small"));
        let unknown = message(types(&["*", "v1.project.exploded"]));
        assert!(
            unknown.starts_with("data.attributes.event_types.1.type: "),
            "{unknown}"
        );
        let merged = types(&["project.v1.paused", "v1.project.paused", "*"]).unwrap();
        assert_eq!(merged, ["v1.project.paused", "*"]);
    }

    #[test]
    fn headers_are_checked_and_restored() {
        let headers = |fields: &[(&str, &str)]| {
            let fields = fields
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            fields.collect::<BTreeMap<_, _>>()
        };
        let none = BTreeMap::new();
        for (name, value, problem) in [
            ("Host", "a", "is set by the server"),
            ("Webhook-Signature", "a", "is set by the server"),
            ("a b", "c", "is not a name of an HTTP header field"),
            (
                "x",
                "a\r\nhost: b",
                "is not a value of an HTTP header field",
            ),
            ("x", REDACTED, "[redacted] stands for a stored value"),
        ] {
            let error = message(check_headers(headers(&[(name, value)]), &none));
            assert!(error.contains(problem), "{error}");
        }
        let long = "x".repeat(HEADERS_BYTES_MAX);
        assert!(check_headers(headers(&[("x", &long)]), &none).is_err());
        let stored = headers(&[("authorization", "Bearer hush")]);
        let restored = check_headers(headers(&[("Authorization", REDACTED)]), &stored);
        assert_eq!(restored.unwrap(), stored);
    }

    #[test]
    fn secrets_belong_to_an_origin() {
        assert!(is_same_origin(
            "https://a.example/x",
            "https://a.example:443/y"
        ));
        for other in [
            "https://b.example/x",
            "http://a.example/x",
            "https://a.example:1/x",
        ] {
            assert!(!is_same_origin("https://a.example/x", other), "{other}");
        }
    }

    #[test]
    fn secret_and_description_have_bounds() {
        for (length, valid) in [(7, false), (8, true), (64, true), (65, false)] {
            assert_eq!(check_secret(&"x".repeat(length)).is_ok(), valid, "{length}");
        }
        assert!(check_secret("abcdefgh\n").is_err());
        assert!(check_description(Some(&"é".repeat(512))).is_ok());
        assert!(check_description(Some(&"é".repeat(513))).is_err());
    }
}
