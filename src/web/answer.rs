//! What pages answer: a page, or the way to one; always with the headers that keep it safe.

use askama::Template;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};

use serde::Serialize;

use crate::{
    base::error::{Context, Error},
    platform::http::{Body, Output, Response, openapi::OperationDoc},
};

/// Only our own files; nothing inline, nothing framed, and forms lead nowhere else.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// On every page and redirect.
const HEADERS: [(HeaderName, &str); 7] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "same-origin"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
    (header::CACHE_CONTROL, "no-store"),
    (
        HeaderName::from_static("permissions-policy"),
        "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    ),
];

/// What a page answers.
pub struct Answer(Response);

impl Answer {
    /// A page.
    pub fn page(template: &impl Template) -> Result<Self, Error> {
        let html = template.render().context("writing a page")?;
        let mut answer = Self::plain(StatusCode::OK, html.into());
        answer.0.headers_mut().insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("text/html; charset=utf-8"),
        );
        Ok(answer)
    }

    /// A file to be kept.
    pub fn file(
        name: &str,
        content_type: &'static str,
        bytes: impl Into<Body>,
    ) -> Result<Self, Error> {
        let mut answer = Self::plain(StatusCode::OK, bytes.into());
        let headers = answer.0.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        let kept = HeaderValue::try_from(format!("attachment; filename=\"{name}\""))
            .context("naming a file")?;
        headers.insert(header::CONTENT_DISPOSITION, kept);
        Ok(answer)
    }

    /// What a script of ours asked for.
    pub fn json(value: &impl Serialize) -> Result<Self, Error> {
        let mut answer = Self::plain(
            StatusCode::OK,
            serde_json::to_vec(value)
                .context("answering a script")?
                .into(),
        );
        answer.0.headers_mut().insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        Ok(answer)
    }

    /// The way to a page of ours: what a form answers when it did something, so that loading again does nothing twice.
    pub fn to(path: &str) -> Result<Self, Error> {
        let mut answer = Self::plain(StatusCode::SEE_OTHER, Body::empty());
        answer.0.headers_mut().insert(
            header::LOCATION,
            HeaderValue::try_from(path).context("naming a page")?,
        );
        Ok(answer)
    }

    /// The way to an application's address: nobody there learns where the browser was.
    pub fn away(address: &str) -> Result<Self, Error> {
        let mut answer = Self::to(address)?;
        answer.0.headers_mut().insert(
            header::REFERRER_POLICY,
            HeaderValue::from_static("no-referrer"),
        );
        Ok(answer)
    }

    /// The same page, whose form may lead to an application's address: browsers hold a form to the policy on all of its way.
    #[must_use]
    pub fn leading_to(mut self, origin: Option<&str>) -> Self {
        let policy = origin.map(|origin| {
            POLICY.replace(
                "form-action 'self'",
                &format!("form-action 'self' {origin}"),
            )
        });
        if let Some(policy) = policy.and_then(|policy| HeaderValue::try_from(policy).ok()) {
            self.0
                .headers_mut()
                .insert(header::CONTENT_SECURITY_POLICY, policy);
        }
        self
    }

    /// The same with another status: a form that is shown again says why.
    #[must_use]
    pub fn status(mut self, status: StatusCode) -> Self {
        *self.0.status_mut() = status;
        self
    }

    /// The same with another header.
    #[must_use]
    pub fn with(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.0.headers_mut().append(name, value);
        self
    }

    fn plain(status: StatusCode, body: Body) -> Self {
        let mut response = Response::new(body);
        *response.status_mut() = status;
        protect(response.headers_mut());
        Self(response)
    }
}

fn protect(headers: &mut HeaderMap) {
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

impl Output for Answer {
    fn describe(described: &mut OperationDoc) {
        described.reply_empty(StatusCode::OK);
    }

    fn respond(self) -> Response {
        self.0
    }
}
