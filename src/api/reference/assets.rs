//! The API reference page and the files of its viewer. All files are embedded in the binary.

use std::sync::LazyLock;

use axum::{
    Router,
    body::Body as AxumBody,
    extract::Request,
    http::{HeaderValue, StatusCode, header},
};
use swagger_ui_dist::{ApiDefinition, OpenApiSource, generate_routes};
use tower::ServiceExt;

use crate::platform::{
    error::{Context, Error},
    http::{Body, Output, Response, body::read, operation_doc::OperationDoc},
};

/// Permits only scripts and styles of this server; no inline code and no framing.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// Maximum size of a viewer file in bytes.
const FILE_BYTES_MAX: usize = 8 << 20;

const PAGE: &str = include_str!("../../../static/docs.html");
const SCRIPT: &str = include_str!("../../../static/docs.js");

/// The viewer as packaged by its crate. Its index page has an inline script, so it is replaced by
/// ours.
static VIEWER: LazyLock<Router> = LazyLock::new(|| {
    generate_routes(ApiDefinition {
        uri_prefix: "/docs",
        api_definition: OpenApiSource::Uri("/api/v1-json"),
        title: None,
    })
});

/// A file of the reference page.
pub(super) struct Asset {
    content_type: HeaderValue,
    body: Body,
}

impl Output for Asset {
    fn describe(described: &mut OperationDoc) {
        described.reply_empty(StatusCode::OK);
    }

    fn respond(self) -> Response {
        let mut response = Response::new(self.body);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, self.content_type);
        headers.insert(
            header::CONTENT_SECURITY_POLICY,
            HeaderValue::from_static(POLICY),
        );
        headers.insert(
            header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        );
        headers.insert(
            header::REFERRER_POLICY,
            HeaderValue::from_static("no-referrer"),
        );
        response
    }
}

/// Returns the page.
#[expect(clippy::unnecessary_wraps, reason = "handlers answer results")]
pub(super) fn page() -> Result<Asset, Error> {
    Ok(Asset {
        content_type: HeaderValue::from_static("text/html; charset=utf-8"),
        body: PAGE.into(),
    })
}

/// Returns a script or style sheet of the page.
pub(super) async fn file(name: &str) -> Result<Asset, Error> {
    match name {
        "docs.js" => Ok(Asset {
            content_type: HeaderValue::from_static("text/javascript; charset=utf-8"),
            body: SCRIPT.into(),
        }),
        "swagger-ui.css" | "swagger-ui-bundle.js" => {
            let request = Request::get(format!("/docs/{name}"))
                .body(AxumBody::empty())
                .context("reading a file of the viewer")?;
            let answer = VIEWER
                .clone()
                .oneshot(request)
                .await
                .context("reading a file of the viewer")?;
            let content_type = HeaderValue::from_static(if name.ends_with("css") {
                "text/css; charset=utf-8"
            } else {
                "text/javascript; charset=utf-8"
            });
            let body = read(Body::new(answer.into_body()), FILE_BYTES_MAX)
                .await
                .context("reading a file of the viewer")?;
            Ok(Asset {
                content_type,
                body: body.into(),
            })
        }
        _ => Err(Error::NotFound),
    }
}
