//! Responses of pages. Every response has the security headers.

use askama::Template;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use serde::Serialize;

use crate::platform::{
    error::{Context, Error},
    http::{Body, Output, Response, operation_doc::OperationDoc},
};

/// Permits only files of this server: no inline code, no frames, no forms to other origins.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// Headers of every page and redirect.
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

/// The response of a page.
pub struct PageResponse(Response);

impl PageResponse {
    /// Renders a page.
    pub fn page(template: &impl Template) -> Result<Self, Error> {
        let html = template.render().context("rendering a page")?;
        let mut answer = Self::plain(StatusCode::OK, html.into());
        answer.0.headers_mut().insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("text/html; charset=utf-8"),
        );
        Ok(answer)
    }

    /// Renders a page with a form. The status is 422 if the form was rejected.
    pub fn form(template: &impl Template, is_rejected: bool) -> Result<Self, Error> {
        let page = Self::page(template)?;
        Ok(if is_rejected {
            page.status(StatusCode::UNPROCESSABLE_ENTITY)
        } else {
            page
        })
    }

    /// Returns a download.
    pub fn file(
        name: &str,
        content_type: &'static str,
        bytes: impl Into<Body>,
    ) -> Result<Self, Error> {
        let mut answer = Self::plain(StatusCode::OK, bytes.into());
        let headers = answer.0.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        let disposition = HeaderValue::try_from(format!("attachment; filename=\"{name}\""))
            .context("naming a download")?;
        headers.insert(header::CONTENT_DISPOSITION, disposition);
        Ok(answer)
    }

    /// Returns JSON, for `static/web/gantry.js`.
    pub fn json(value: &impl Serialize) -> Result<Self, Error> {
        let mut answer = Self::plain(
            StatusCode::OK,
            serde_json::to_vec(value)
                .context("serializing a response")?
                .into(),
        );
        answer.0.headers_mut().insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        Ok(answer)
    }

    /// Redirects (303) to a page of this server. A form that changed something redirects, so that
    /// a reload does not submit it again.
    pub fn redirect(path: &str) -> Result<Self, Error> {
        let mut answer = Self::plain(StatusCode::SEE_OTHER, Body::empty());
        answer.0.headers_mut().insert(
            header::LOCATION,
            HeaderValue::try_from(path).context("redirecting")?,
        );
        Ok(answer)
    }

    /// Redirects to the address of an OAuth application, without a `Referer`.
    pub fn redirect_external(address: &str) -> Result<Self, Error> {
        let mut answer = Self::redirect(address)?;
        answer.0.headers_mut().insert(
            header::REFERRER_POLICY,
            HeaderValue::from_static("no-referrer"),
        );
        Ok(answer)
    }

    /// Adds the origin to `form-action`. Browsers apply the policy to every redirect that follows a
    /// form, so the consent page has to name the application's origin.
    #[must_use]
    pub fn allow_form_action(mut self, origin: Option<&str>) -> Self {
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

    /// Replaces the status, for a form that is shown again with its errors.
    #[must_use]
    pub fn status(mut self, status: StatusCode) -> Self {
        *self.0.status_mut() = status;
        self
    }

    /// Adds a header.
    #[must_use]
    pub fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.0.headers_mut().append(name, value);
        self
    }

    fn plain(status: StatusCode, body: Body) -> Self {
        let mut response = Response::new(body);
        *response.status_mut() = status;
        add_security_headers(response.headers_mut());
        Self(response)
    }
}

fn add_security_headers(headers: &mut HeaderMap) {
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

impl Output for PageResponse {
    fn describe(described: &mut OperationDoc) {
        described.reply_empty(StatusCode::OK);
    }

    fn respond(self) -> Response {
        self.0
    }
}
