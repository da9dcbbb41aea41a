//! The embedded style sheet, scripts and icon. Their names contain a hash of the content, so that
//! browsers can cache them forever.

use std::sync::LazyLock;

use http::{HeaderValue, StatusCode, header};
use sha2::{Digest, Sha256};

use crate::{
    platform::{
        error::Error,
        http::{Body, Endpoint, Output, Response, Verb, mount, operation_doc::OperationDoc},
        rate_limits::{Limit, LimitKey, per},
    },
    web::{page::public_page, path::PathFile},
};

/// A browser requests each file once.
static FILES: Limit = Limit {
    key: LimitKey::Path,
    windows: &[per(1_000, 60)],
};

pub(super) static ASSET: Endpoint = Endpoint {
    limit: &FILES,
    ..public_page(
        "page-asset",
        "Static file",
        Verb::Get,
        "/assets/{file}",
        || mount(asset),
    )
};

/// An embedded file.
struct EmbeddedFile {
    name: String,
    content_type: &'static str,
    bytes: &'static [u8],
}

impl EmbeddedFile {
    fn new(stem: &str, ending: &str, content_type: &'static str, bytes: &'static [u8]) -> Self {
        let digest = Sha256::digest(bytes);
        Self {
            name: format!("{stem}-{}.{ending}", hex::encode(&digest[..6])),
            content_type,
            bytes,
        }
    }
}

/// The paths of the files, for templates.
pub(super) struct Assets {
    pub(super) style: String,
    pub(super) script: String,
    pub(super) htmx: String,
    pub(super) icon: String,
    files: [EmbeddedFile; 4],
}

pub(super) static ASSETS: LazyLock<Assets> = LazyLock::new(|| {
    let script = "text/javascript; charset=utf-8";
    let files = [
        EmbeddedFile::new(
            "gantry",
            "css",
            "text/css; charset=utf-8",
            include_bytes!("../../static/web/gantry.css"),
        ),
        EmbeddedFile::new(
            "gantry",
            "js",
            script,
            include_bytes!("../../static/web/gantry.js"),
        ),
        EmbeddedFile::new(
            "htmx-2.0.11",
            "js",
            script,
            include_bytes!("../../static/web/htmx.min.js"),
        ),
        EmbeddedFile::new(
            "icon",
            "svg",
            "image/svg+xml",
            include_bytes!("../../static/web/icon.svg"),
        ),
    ];
    let [style, script, htmx, icon] = files
        .each_ref()
        .map(|file| format!("/assets/{}", file.name));
    Assets {
        style,
        script,
        htmx,
        icon,
        files,
    }
});

async fn asset(PathFile(name): PathFile) -> Result<FileResponse, Error> {
    ASSETS
        .files
        .iter()
        .find(|file| file.name == name)
        .map(FileResponse)
        .ok_or(Error::NotFound)
}

struct FileResponse(&'static EmbeddedFile);

impl Output for FileResponse {
    fn describe(described: &mut OperationDoc) {
        described.reply_empty(StatusCode::OK);
    }

    fn respond(self) -> Response {
        let mut response = Response::new(Body::from(self.0.bytes));
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static(self.0.content_type),
        );
        headers.insert(
            header::CACHE_CONTROL,
            HeaderValue::from_static("public, max-age=31536000, immutable"),
        );
        headers.insert(
            header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        );
        response
    }
}
