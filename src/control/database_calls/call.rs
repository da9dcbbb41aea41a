//! A queued request, as a tenant wrote it, and the request that it makes. Pure.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use serde_json::Value;
use url::Url;

use super::{
    answer::CallFailure,
    queue::{BODY_BYTES_MAX, HEADERS_BYTES_MAX, URL_BYTES_MAX},
};

/// Longest time of a call. A longer timeout is shortened to it.
const TIMEOUT_MAX: Duration = Duration::from_mins(5);
/// Timeout of a row without one, as that of the functions of the extension.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);
/// Largest number of header fields.
const FIELDS_MAX: usize = 100;
/// Value of `User-Agent`, unless the request has one.
const USER_AGENT: HeaderValue = HeaderValue::from_static("pg_net/0.19.5");
/// Header fields with credentials, which another host does not get by a redirect.
const CREDENTIALS: [HeaderName; 4] = [
    header::AUTHORIZATION,
    header::COOKIE,
    header::PROXY_AUTHORIZATION,
    HeaderName::from_static("apikey"),
];
/// Header fields that the sender sets itself.
const OWN_FIELDS: [HeaderName; 9] = [
    header::HOST,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    header::CONNECTION,
    header::UPGRADE,
    header::TE,
    header::TRAILER,
    header::EXPECT,
    HeaderName::from_static("keep-alive"),
];

/// A row of `net.http_request_queue`. Its values are not checked.
pub(super) struct QueuedCall {
    pub(super) id: i64,
    method: Option<String>,
    url: Option<String>,
    /// A JSON object. Empty if it was too long.
    headers: Option<String>,
    /// Hexadecimal digits.
    body: Option<String>,
    timeout_millis: Option<String>,
}

/// A request that can be sent.
#[derive(Clone)]
pub(super) struct CallRequest {
    pub(super) method: Method,
    pub(super) url: Url,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) timeout: Duration,
}

impl QueuedCall {
    /// Reads a row. Returns `None` if it has no id.
    pub(super) fn of_row(row: [Option<String>; 6]) -> Option<Self> {
        let [id, method, url, headers, body, timeout_millis] = row;
        Some(Self {
            id: id?.parse().ok()?,
            method,
            url,
            headers,
            body,
            timeout_millis,
        })
    }

    /// Returns the method and the URL as the tenant wrote them.
    pub(super) fn line(&self) -> (&str, &str) {
        let method = self.method.as_deref().unwrap_or_default();
        (method, self.url.as_deref().unwrap_or_default())
    }

    /// Returns about the memory of the request, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.body.as_ref().map_or(0, |hex| hex.len() / 2)
    }

    /// Checks the values.
    pub(super) fn into_request(self) -> Result<CallRequest, CallFailure> {
        let method = match self
            .method
            .unwrap_or_default()
            .to_ascii_uppercase()
            .as_str()
        {
            "GET" => Method::GET,
            "POST" => Method::POST,
            "DELETE" => Method::DELETE,
            _ => {
                return Err(CallFailure::failed(
                    "the method must be GET, POST or DELETE",
                ));
            }
        };
        let timeout = timeout(self.timeout_millis.as_deref())?;
        let url = self.url.unwrap_or_default();
        if url.len() > URL_BYTES_MAX {
            let message = format!("the URL must have at most {URL_BYTES_MAX} bytes");
            return Err(CallFailure::failed(message));
        }
        let url = Url::parse(&url)
            .map_err(|error| CallFailure::failed(format!("the URL is invalid: {error}")))?;
        check_scheme(&url)?;
        let body = match &self.body {
            None => Bytes::new(),
            Some(digits) => hex::decode(digits).map(Bytes::from).map_err(|_| {
                let message = format!("the body must have at most {BODY_BYTES_MAX} bytes");
                CallFailure::failed(message)
            })?,
        };
        let mut headers = fields(self.headers.as_deref())?;
        headers.entry(header::USER_AGENT).or_insert(USER_AGENT);
        Ok(CallRequest {
            method,
            url,
            headers,
            body,
            timeout,
        })
    }
}

impl CallRequest {
    /// Returns the request to which a response redirects, or `None` if it is no redirect. As in
    /// curl, a POST becomes a GET with the older statuses.
    pub(super) fn redirected(
        &self,
        status: StatusCode,
        headers: &HeaderMap,
    ) -> Option<Result<Self, CallFailure>> {
        if !matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308) {
            return None;
        }
        let location = headers.get(header::LOCATION)?.to_str().ok()?;
        let url = self.url.join(location).ok()?;
        if let Err(failure) = check_scheme(&url) {
            return Some(Err(failure));
        }
        let mut next = Self {
            url,
            ..self.clone()
        };
        if self.method == Method::POST && matches!(status.as_u16(), 301..=303) {
            next.method = Method::GET;
            next.body = Bytes::new();
            next.headers.remove(header::CONTENT_TYPE);
        }
        if next.url.origin() != self.url.origin() {
            for name in &CREDENTIALS {
                next.headers.remove(name);
            }
        }
        Some(Ok(next))
    }
}

fn check_scheme(url: &Url) -> Result<(), CallFailure> {
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        let message = "the URL must begin with http:// or https://";
        return Err(CallFailure::failed(message));
    }
    Ok(())
}

/// Returns the timeout of a number of milliseconds.
fn timeout(millis: Option<&str>) -> Result<Duration, CallFailure> {
    let Some(millis) = millis else {
        return Ok(TIMEOUT_DEFAULT);
    };
    match millis.parse::<u64>() {
        Ok(millis @ 1..) => Ok(Duration::from_millis(millis).min(TIMEOUT_MAX)),
        _ => Err(CallFailure::failed(
            "timeout_milliseconds must be greater than 0",
        )),
    }
}

/// Returns the header fields of a JSON object. An error names the field and not its value, which
/// may be a credential.
fn fields(json: Option<&str>) -> Result<HeaderMap, CallFailure> {
    let mut headers = HeaderMap::new();
    let Some(json) = json.filter(|json| *json != "null") else {
        return Ok(headers);
    };
    if json.is_empty() {
        let message = format!("the headers must have at most {HEADERS_BYTES_MAX} bytes");
        return Err(CallFailure::failed(message));
    }
    let Ok(Value::Object(object)) = serde_json::from_str(json) else {
        return Err(CallFailure::failed("the headers must be a JSON object"));
    };
    if object.len() > FIELDS_MAX {
        let message = format!("there must be at most {FIELDS_MAX} headers");
        return Err(CallFailure::failed(message));
    }
    for (name, value) in object {
        let value = match value {
            Value::Null => continue,
            Value::String(text) => text,
            other => other.to_string(),
        };
        let invalid = || {
            let name: String = name.chars().take(100).collect();
            CallFailure::failed(format!("the header {name:?} is not valid in HTTP"))
        };
        let field = HeaderName::try_from(name.trim()).map_err(|_| invalid())?;
        let value = HeaderValue::from_str(&value).map_err(|_| invalid())?;
        if !OWN_FIELDS.contains(&field) {
            headers.append(field, value);
        }
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(
        method: &str,
        url: &str,
        headers: Option<&str>,
        body: Option<&str>,
        timeout: Option<&str>,
    ) -> Result<CallRequest, String> {
        let texts = [Some("1"), Some(method), Some(url), headers, body, timeout];
        let call = QueuedCall::of_row(texts.map(|text| text.map(str::to_owned)));
        let request = call.unwrap().into_request();
        request.map_err(|failure| failure.message)
    }

    #[test]
    fn row_becomes_a_request() {
        let headers = r#"{"X-A": "1", "x-n": 2, "Host": "b", "content-length": "9", "x-z": null}"#;
        let call = request(
            "post",
            "https://a.test/x?y",
            Some(headers),
            Some("7b7d"),
            None,
        );
        let call = call.unwrap();
        assert_eq!((call.method, call.timeout), (Method::POST, TIMEOUT_DEFAULT));
        assert_eq!(call.body, "{}");
        let names: Vec<_> = call.headers.keys().map(HeaderName::as_str).collect();
        assert_eq!(names.len(), 3, "{names:?}");
        assert_eq!(call.headers["x-n"], "2");
        assert_eq!(call.headers["user-agent"], USER_AGENT);
        let long = request("get", "http://a", None, None, Some("86400000")).unwrap();
        assert_eq!(long.timeout, TIMEOUT_MAX);
    }

    #[test]
    fn invalid_rows_are_rejected_with_the_reason() {
        let long = format!("http://a/{}", "a".repeat(URL_BYTES_MAX));
        for (method, url, headers, body, timeout, expected) in [
            ("PUT", "http://a", None, None, None, "GET, POST or DELETE"),
            ("GET", "a b", None, None, None, "the URL is invalid"),
            (
                "GET",
                "file:///etc/passwd",
                None,
                None,
                None,
                "http:// or https://",
            ),
            ("GET", long.as_str(), None, None, None, "at most 8192 bytes"),
            (
                "GET",
                "http://a",
                Some(""),
                None,
                None,
                "at most 65536 bytes",
            ),
            ("GET", "http://a", Some("[1]"), None, None, "a JSON object"),
            (
                "GET",
                "http://a",
                Some(r#"{"a": "s\r\nb: c"}"#),
                None,
                None,
                "\"a\"",
            ),
            (
                "GET",
                "http://a",
                Some(r#"{"a b": "secret"}"#),
                None,
                None,
                "\"a b\"",
            ),
            (
                "GET",
                "http://a",
                None,
                Some("too long"),
                None,
                "at most 1048576",
            ),
            ("GET", "http://a", None, None, Some("0"), "greater than 0"),
            ("GET", "http://a", None, None, Some("-5"), "greater than 0"),
        ] {
            let error = request(method, url, headers, body, timeout).err().unwrap();
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn redirect_to_another_host_has_no_credentials() {
        let headers = r#"{"Authorization": "Bearer t", "apikey": "k", "x-a": "1"}"#;
        let call = request(
            "POST",
            "https://a.test/x",
            Some(headers),
            Some("7b7d"),
            None,
        )
        .unwrap();
        let to = |location: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::LOCATION, location.parse().unwrap());
            headers
        };
        let see = call.redirected(StatusCode::SEE_OTHER, &to("/y"));
        let see = see.unwrap().ok().unwrap();
        assert_eq!(
            (see.method, see.url.as_str()),
            (Method::GET, "https://a.test/y")
        );
        assert!(see.body.is_empty() && see.headers.contains_key("apikey"));
        let away = call.redirected(StatusCode::PERMANENT_REDIRECT, &to("https://b.test/"));
        let away = away.unwrap().ok().unwrap();
        assert_eq!((away.method, away.body.len()), (Method::POST, 2));
        let names: Vec<_> = away.headers.keys().map(HeaderName::as_str).collect();
        assert_eq!(names.len(), 2, "{names:?}");
        let file = call.redirected(StatusCode::FOUND, &to("file:///etc/passwd"));
        assert!(file.unwrap().is_err());
        assert!(call.redirected(StatusCode::OK, &to("/y")).is_none());
        assert!(
            call.redirected(StatusCode::FOUND, &HeaderMap::new())
                .is_none()
        );
    }
}
