//! Requests within the process, and the checks of every response.

use axum::{
    body::Body,
    http::{HeaderMap, Method, Request, StatusCode, header},
};
use bytes::Bytes;
use gantry::platform::http::Api;
use http_body_util::BodyExt;
use serde_json::Value;
use tower::ServiceExt;

use super::{Actor, document};

/// A builder of a request.
#[must_use = "it is not sent yet"]
pub(crate) struct Call {
    api: Api,
    request: Request<Body>,
}

/// The rate-limit state of the response headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Quota {
    pub(crate) limit: u32,
    pub(crate) remaining: u32,
    pub(crate) reset: u32,
}

/// A response that passed the checks of every response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) quota: Quota,
    line: String,
}

impl Call {
    pub(crate) fn new(api: Api, method: &str, path: &str) -> Self {
        let request = Request::builder()
            .method(Method::from_bytes(method.as_bytes()).unwrap())
            .uri(path)
            .body(Body::empty())
            .unwrap();
        Self { api, request }
    }

    /// With the actor's token.
    pub(crate) fn as_(self, actor: &Actor) -> Self {
        self.token(&actor.token)
    }

    pub(crate) fn token(self, token: &str) -> Self {
        self.header("authorization", &format!("Bearer {token}"))
    }

    pub(crate) fn header(mut self, name: &'static str, value: &str) -> Self {
        self.request
            .headers_mut()
            .append(name, value.parse().unwrap());
        self
    }

    pub(crate) fn without(mut self, name: &'static str) -> Self {
        self.request.headers_mut().remove(name);
        self
    }

    /// From another address than this machine's.
    pub(crate) fn from(mut self, address: &str) -> Self {
        self.api = self.api.for_client(address.parse().unwrap());
        self
    }

    pub(crate) fn json(self, body: &Value) -> Self {
        self.header("content-type", "application/json")
            .body(body.to_string())
    }

    pub(crate) fn form(self, fields: &[(&str, &str)]) -> Self {
        let body = form_urlencoded::Serializer::new(String::new())
            .extend_pairs(fields)
            .finish();
        self.header("content-type", "application/x-www-form-urlencoded")
            .body(body)
    }

    pub(crate) fn body(mut self, body: impl Into<Body>) -> Self {
        *self.request.body_mut() = body.into();
        self
    }

    /// Sends the request, and returns the body as it arrives.
    pub(crate) async fn open(self) -> (StatusCode, HeaderMap, gantry::platform::http::Body) {
        let (parts, body) = self.api.oneshot(self.request).await.unwrap().into_parts();
        (parts.status, parts.headers, body)
    }

    /// Sends the request, and checks the response against the document.
    pub(crate) async fn send(self) -> Answer {
        let (method, path) = (
            self.request.method().clone(),
            self.request.uri().path().to_owned(),
        );
        let response = self.api.oneshot(self.request).await.unwrap();
        let (parts, body) = response.into_parts();
        let line = format!("{method} {path}");
        let body = body.collect().await.unwrap().to_bytes();
        let number = |name: &str| -> u32 {
            let value = parts
                .headers
                .get(name)
                .unwrap_or_else(|| panic!("{line}: no {name}"));
            value.to_str().unwrap().parse().unwrap()
        };
        let quota = Quota {
            limit: number("x-ratelimit-limit"),
            remaining: number("x-ratelimit-remaining"),
            reset: number("x-ratelimit-reset"),
        };
        let answer = Answer {
            status: parts.status,
            headers: parts.headers,
            body,
            quota,
            line,
        };
        answer.check_headers();
        if method != Method::HEAD {
            answer.check_body(&method, &path);
        }
        answer
    }
}

impl Answer {
    fn check_headers(&self) {
        assert!(
            self.quota.remaining <= self.quota.limit && self.quota.reset >= 1,
            "{self:?}"
        );
        assert!(
            self.header("x-request-id").is_some_and(|id| !id.is_empty()),
            "{self:?}"
        );
        let challenge = self.header("www-authenticate");
        assert_eq!(
            self.status == 401,
            challenge.is_some_and(|value| !value.contains("insufficient_scope")),
            "{self:?}"
        );
        assert!(
            self.status == 403
                || challenge.is_none_or(|value| !value.contains("insufficient_scope")),
            "{self:?}"
        );
        self.check_limit_fields();
    }

    /// The `RateLimit` fields list every window of the policy; the tightest of them is the one in
    /// the three headers.
    fn check_limit_fields(&self) {
        let Quota {
            limit,
            remaining,
            reset,
        } = self.quota;
        let items = |name: &str| -> Vec<_> {
            let field = self
                .header(name)
                .unwrap_or_else(|| panic!("no {name}: {self:?}"));
            field
                .split(", ")
                .map(|item| item.split_once(';').unwrap())
                .collect()
        };
        let (policy, standing) = (items("ratelimit-policy"), items("ratelimit"));
        assert!(
            policy
                .iter()
                .map(|(name, _)| name)
                .eq(standing.iter().map(|(name, _)| name)),
            "{self:?}"
        );
        let tightest = format!("r={remaining};t={reset}");
        let binds = policy
            .iter()
            .zip(&standing)
            .any(|((_, p), (_, s))| *s == tightest && p.starts_with(&format!("q={limit};w=")));
        assert!(binds, "{self:?}");
    }

    fn check_body(&self, method: &Method, path: &str) {
        if self.header("dry-run").is_some() {
            assert_eq!(self.json()["dry_run"], true, "{self:?}");
        } else if self.status.is_success() {
            document::check(
                method,
                path,
                self.status,
                self.header("content-type"),
                &self.body,
            );
        } else if self.status.is_redirection() {
            assert!(
                self.headers.contains_key(header::LOCATION) && self.body.is_empty(),
                "{self:?}"
            );
        } else {
            assert_eq!(
                self.header("content-type"),
                Some("application/json; charset=utf-8"),
                "{self:?}"
            );
            assert!(self.json()["message"].is_string(), "{self:?}");
        }
    }

    /// Fails the test, with the whole answer, unless the status is this.
    #[track_caller]
    pub(crate) fn expect(self, status: u16) -> Self {
        assert_eq!(
            self.status,
            status,
            "{} answered {}: {}",
            self.line,
            self.status,
            self.text()
        );
        self
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The message of an error.
    pub(crate) fn message(&self) -> String {
        self.json()["message"]
            .as_str()
            .unwrap_or_else(|| panic!("no message: {self:?}"))
            .to_owned()
    }

    /// The body with what differs from run to run replaced: refs and slugs, UUIDs, times.
    pub(crate) fn redacted(&self) -> Value {
        redact(self.json())
    }
}

fn redact(value: Value) -> Value {
    match value {
        Value::String(text) => redact_text(text).into(),
        Value::Array(values) => values.into_iter().map(redact).collect(),
        Value::Object(fields) => fields
            .into_iter()
            .map(|(name, value)| (name, redact(value)))
            .collect(),
        other => other,
    }
}

fn redact_text(text: String) -> String {
    if text.len() == 20 && text.bytes().all(|b| b.is_ascii_lowercase()) {
        "[ref]".to_owned()
    } else if uuid::Uuid::try_parse(&text).is_ok() {
        "[uuid]".to_owned()
    } else if chrono::DateTime::parse_from_rfc3339(&text).is_ok() {
        "[time]".to_owned()
    } else {
        text
    }
}
