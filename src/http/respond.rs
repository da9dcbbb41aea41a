//! The one place that turns an error into a response.

use std::sync::Arc;

use axum::http::{HeaderValue, StatusCode, header};
use serde_json::{Value, json};

use super::{body::Response, face::Refused, output};
use crate::error::{Denial, Error};

/// Logs a fault of ours, once, with its request id.
pub(crate) fn log(error: &Error, refused: &Refused<'_>) {
    if let Error::Internal(report) = error {
        tracing::error!(request_id = refused.request_id, operation = refused.operation, error = %report, "the operation failed");
    }
}

/// Status of the answer to an error.
pub(crate) fn status(error: &Error) -> StatusCode {
    StatusCode::from_u16(error.code().status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// The answer to an operation of this process, which reads the error itself.
pub(super) fn within(error: Error) -> Response {
    let mut response = output::empty(status(&error));
    response.extensions_mut().insert(Arc::new(error));
    response
}

/// The answer to a program.
pub(super) fn error(error: &Error, refused: &Refused<'_>) -> Response {
    log(error, refused);
    let mut response = output::json(status(error), &body(error, refused.uri.path().starts_with("/v2/"), refused.request_id));
    match error {
        Error::Unauthenticated(_) => {
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, HeaderValue::try_from(refused.challenge).unwrap_or(HeaderValue::from_static("Bearer")));
        }
        Error::Oauth(fault) => {
            response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
            if fault.error == "invalid_client" {
                response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Basic realm=\"OAuth client\""));
            }
        }
        Error::Unavailable { retry, .. } => {
            response.headers_mut().insert(header::RETRY_AFTER, retry.as_secs().max(1).into());
        }
        _ => {}
    }
    response
}

/// v1 answers `{message}`; v2 answers `{error: {code, message}}` and keeps `message`, which clients of either read.
fn body(error: &Error, v2: bool, request_id: &str) -> Value {
    let message = error.message();
    let mut body = json!({ "message": message });
    if let Error::Forbidden(Denial::Permissions(missing)) = error {
        let missing: Vec<_> = missing.iter().map(|permission| permission.name()).collect();
        body["error"]["missing_permissions"] = missing.into();
    }
    if let Error::Oauth(fault) = error {
        body["error"] = fault.error.into();
        body["error_description"] = fault.description.as_ref().into();
    }
    if v2 {
        body["error"]["code"] = error.code().name.into();
        body["error"]["message"] = message.into();
    }
    if matches!(error, Error::Internal(_)) {
        body["errorEventId"] = request_id.into();
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{access::Permission, error::Context};

    #[test]
    fn v1_and_v2_bodies() {
        assert_eq!(body(&Error::NotFound, false, "r"), json!({"message": "Not Found"}));
        assert_eq!(
            body(&Error::NotFound, true, "r"),
            json!({"message": "Not Found", "error": {"code": "not_found", "message": "Not Found"}})
        );
        let missing = Error::Forbidden(Denial::Permissions(vec![Permission::DatabaseRead, Permission::DatabaseWrite]));
        assert_eq!(
            body(&missing, false, "r"),
            json!({"message": "Missing required permission(s): database_read, database_write", "error": {"missing_permissions": ["database_read", "database_write"]}})
        );
        let failed: Result<(), _> = Err("secret").context("x");
        assert_eq!(body(&failed.unwrap_err(), false, "abc"), json!({"message": "Internal Server Error", "errorEventId": "abc"}));
    }
}
