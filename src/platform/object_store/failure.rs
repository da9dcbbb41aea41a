//! Failures of store requests. Each message contains the remedy.

use std::fmt::{self, Write as _};

use gantry_logs::object_store;
use hyper::{HeaderMap, StatusCode};

use super::{listing, options::Place};

/// Name of this store in errors.
pub(super) const STORE: &str = "S3";
/// Maximum number of characters quoted from an error message of the store.
const WORDS_MAX: usize = 200;

/// Kind of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The store is unreachable or reports an internal error. The request may be retried.
    Away,
    /// The object does not exist.
    Missing,
    /// The access key lacks a permission.
    Denied,
    /// A permanent failure.
    Refused,
}

/// A failed request.
#[derive(Debug)]
pub struct Failure {
    pub(super) kind: Kind,
    text: String,
}

impl Failure {
    pub(super) fn new(kind: Kind, text: impl Into<String>) -> Self {
        Self {
            kind,
            text: text.into(),
        }
    }

    /// Whether a retry may succeed.
    pub fn passes(&self) -> bool {
        self.kind == Kind::Away
    }

    /// Describes the failure to a customer, without names of the operator's options.
    pub fn summary(&self) -> &'static str {
        match self.kind {
            Kind::Away => "the object store cannot be reached, or reports an internal error",
            Kind::Denied => "the object store rejects the access key; check it and its permissions",
            Kind::Missing | Kind::Refused => {
                "the object store rejects the request; check bucket, region and endpoint"
            }
        }
    }

    /// Converts the failure of a request for an object to an error of the `object_store` crate.
    pub(super) fn about(self, path: impl fmt::Display) -> object_store::Error {
        let path = path.to_string();
        let kind = self.kind;
        let source = self.into();
        match kind {
            Kind::Missing => object_store::Error::NotFound { path, source },
            Kind::Denied => object_store::Error::PermissionDenied { path, source },
            Kind::Away | Kind::Refused => object_store::Error::Generic {
                store: STORE,
                source,
            },
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Failure {}

/// Returns the failure of a request without a response.
pub(super) fn unanswered(place: &Place, cause: &(dyn std::error::Error + 'static)) -> Failure {
    let mut text = format!("{} does not answer: {cause}", place.endpoint);
    let mut source = cause.source();
    while let Some(cause) = source {
        let _ = write!(text, ": {cause}");
        source = cause.source();
    }
    if text.contains("certificate") {
        text.push_str("; give its CA certificate with --logs-s3-root");
    }
    Failure::new(Kind::Away, text)
}

/// Returns the failure for an error response. `wanted` completes "may not …"; the request addressed
/// the bucket or an `object`.
pub(super) fn refused(
    place: &Place,
    wanted: &str,
    object: bool,
    status: StatusCode,
    headers: &HeaderMap,
    body: &[u8],
) -> Failure {
    let fault = listing::fault(body);
    let code = words(&fault.code);
    let bucket = &place.bucket;
    let id = &place.credentials.access_key_id;
    let region = headers
        .get("x-amz-bucket-region")
        .and_then(|value| value.to_str().ok())
        .map(words)
        .or(fault.region.as_deref().map(words));
    if let Some(region) = region.filter(|region| !region.is_empty() && *region != place.region)
        && matches!(status.as_u16(), 301 | 307 | 400 | 403)
    {
        return Failure::new(
            Kind::Refused,
            format!("bucket {bucket} is in region {region}: give --logs-s3-region {region}"),
        );
    }
    let said = || {
        format!(
            "{} answered {} {code}: {}",
            place.endpoint,
            status.as_u16(),
            words(&fault.message)
        )
    };
    let passing = [
        "InternalError",
        "RequestTimeout",
        "ServiceUnavailable",
        "SlowDown",
    ]
    .contains(&code.as_str());
    match (status.as_u16(), code.as_str()) {
        (408 | 429 | 500 | 502 | 503 | 504, _) => Failure::new(Kind::Away, said()),
        _ if passing => Failure::new(Kind::Away, said()),
        (_, "SignatureDoesNotMatch") => Failure::new(
            Kind::Denied,
            format!(
                "the signature for access key {id} is wrong: check --logs-s3-secret-access-key, and that no proxy changes requests"
            ),
        ),
        (_, "InvalidAccessKeyId") => Failure::new(
            Kind::Denied,
            format!(
                "{} knows no access key {id}: check --logs-s3-access-key-id",
                place.endpoint
            ),
        ),
        (_, "ExpiredToken" | "InvalidToken") => Failure::new(
            Kind::Denied,
            format!(
                "the session token of access key {id} is invalid or expired: write a new one to its file and restart"
            ),
        ),
        (_, "RequestTimeTooSkewed") => Failure::new(
            Kind::Denied,
            "the clocks of this machine and of the object store are too far apart: set the clock of this machine",
        ),
        (401 | 403, _) => {
            let objects = if place.prefix.is_empty() {
                String::new()
            } else {
                format!("{}/", place.prefix)
            };
            let text = format!(
                "access key {id} may not {wanted} in bucket {bucket}: check that it is active and has the permissions s3:ListBucket on the bucket, and \
                 s3:GetObject, s3:PutObject and s3:DeleteObject on {objects}*"
            );
            Failure::new(Kind::Denied, text)
        }
        (404, code) if code == "NoSuchBucket" || !object => Failure::new(
            Kind::Refused,
            format!(
                "{} has no bucket {bucket}: make it, or check --logs-url and --logs-s3-endpoint",
                place.endpoint
            ),
        ),
        (404, _) => Failure::new(
            Kind::Missing,
            format!("cannot {wanted} in bucket {bucket}: no such object"),
        ),
        (300..=399, _) => {
            let text = format!(
                "bucket {bucket} is not at {}: check --logs-s3-endpoint and --logs-s3-region",
                place.endpoint
            );
            Failure::new(Kind::Refused, text)
        }
        _ => Failure::new(
            Kind::Refused,
            format!("{} (request to {wanted} in bucket {bucket})", said()),
        ),
    }
}

/// Shortens a text of the store to one line.
fn words(text: &str) -> String {
    text.chars()
        .take(WORDS_MAX)
        .map(|it| if it.is_control() { ' ' } else { it })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::object_store::{options::Style, sign::Credentials};

    fn place() -> Place {
        Place {
            endpoint: "https://s3.example".parse().unwrap(),
            region: "us-east-1".into(),
            style: Style::Path,
            bucket: "logs".into(),
            prefix: "a/b".into(),
            credentials: Credentials {
                access_key_id: "KEY".into(),
                secret_access_key: "hush".into(),
                session_token: Some("hush".into()),
            },
            root: None,
        }
    }

    fn answered(status: u16, region: Option<&str>, body: &str) -> Failure {
        let mut headers = HeaderMap::new();
        if let Some(region) = region {
            headers.insert("x-amz-bucket-region", region.parse().unwrap());
        }
        refused(
            &place(),
            "write a/b/c",
            true,
            StatusCode::from_u16(status).unwrap(),
            &headers,
            body.as_bytes(),
        )
    }

    fn error(code: &str) -> String {
        format!(
            "<Error><Code>{code}</Code><Message>because\nof hush</Message><StringToSign>hidden</StringToSign></Error>"
        )
    }

    #[test]
    fn error_response_message_names_the_option() {
        let long = format!(
            "<Error><Code>X</Code><Message>{}</Message></Error>",
            "x".repeat(9999)
        );
        for (status, region, body, kind, parts) in [
            (
                403,
                None,
                error("AccessDenied"),
                Kind::Denied,
                &[
                    "KEY",
                    "may not write a/b/c",
                    "bucket logs",
                    "s3:PutObject",
                    "a/b/*",
                ][..],
            ),
            (403, None, String::new(), Kind::Denied, &["s3:ListBucket"]),
            (
                403,
                None,
                error("SignatureDoesNotMatch"),
                Kind::Denied,
                &["--logs-s3-secret-access-key", "KEY"],
            ),
            (
                403,
                None,
                error("InvalidAccessKeyId"),
                Kind::Denied,
                &["--logs-s3-access-key-id"],
            ),
            (
                400,
                None,
                error("ExpiredToken"),
                Kind::Denied,
                &["session token"],
            ),
            (
                403,
                None,
                error("RequestTimeTooSkewed"),
                Kind::Denied,
                &["clocks"],
            ),
            (
                404,
                None,
                error("NoSuchBucket"),
                Kind::Refused,
                &["bucket logs", "https://s3.example", "--logs-url"],
            ),
            (404, None, error("NoSuchKey"), Kind::Missing, &["a/b/c"]),
            (
                301,
                Some("eu-west-1"),
                error("PermanentRedirect"),
                Kind::Refused,
                &["--logs-s3-region eu-west-1"],
            ),
            (
                400,
                None,
                "<Error><Code>X</Code><Region>eu-west-2</Region></Error>".into(),
                Kind::Refused,
                &["--logs-s3-region eu-west-2"],
            ),
            (
                403,
                Some("us-east-1"),
                error("AccessDenied"),
                Kind::Denied,
                &["may not"],
            ),
            (
                307,
                None,
                String::new(),
                Kind::Refused,
                &["is not at", "--logs-s3-endpoint"],
            ),
            (
                503,
                Some("eu-west-1"),
                error("SlowDown"),
                Kind::Away,
                &["503 SlowDown: because of hush"],
            ),
            (400, None, error("RequestTimeout"), Kind::Away, &["400"]),
            (418, None, long, Kind::Refused, &["418 X"]),
        ] {
            let failure = answered(status, region, &body);
            assert_eq!(failure.kind, kind, "{status} {body}");
            let text = failure.to_string();
            assert!(parts.iter().all(|part| text.contains(part)), "{text}");
            assert!(
                text.len() < 500 && !text.contains('\n') && !text.contains("hidden"),
                "{text}"
            );
        }
    }

    #[test]
    fn untrusted_certificate_message_names_the_root_option() {
        let cause = |text: &str| std::io::Error::other(text.to_owned());
        let said = unanswered(&place(), &cause("invalid peer certificate: UnknownIssuer"));
        assert!(
            said.passes()
                && said
                    .to_string()
                    .ends_with("UnknownIssuer; give its CA certificate with --logs-s3-root"),
            "{said}"
        );
        assert_eq!(
            unanswered(&place(), &cause("reset")).to_string(),
            "https://s3.example/ does not answer: reset"
        );
    }

    #[test]
    fn failures_convert_to_not_found_and_permission_denied() {
        let seam = |kind| Failure::new(kind, "why").about("a/b");
        assert!(
            matches!(seam(Kind::Missing), object_store::Error::NotFound { path, .. } if path == "a/b")
        );
        assert!(matches!(
            seam(Kind::Denied),
            object_store::Error::PermissionDenied { .. }
        ));
        assert!(seam(Kind::Away).to_string().contains("why"));
    }
}
