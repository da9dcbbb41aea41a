//! Conversion of errors into responses.

use std::{borrow::Cow, sync::Arc};

use http::{HeaderValue, StatusCode, header};
use serde::Serialize;
use serde_json::{Value, json};

use super::{body::Response, client_kind::RejectedRequest, output};
use crate::platform::error::{Denial, Error, KeyProblem};

/// `Retry-After` of an operation that is not implemented: a day. Clients that retry every 5xx stop
/// at once if the wait exceeds their limit (10 s in the CLI).
const NOT_BUILT_RETRY_SECS: u64 = 86_400;

/// Logs an internal error with its request id.
pub(crate) fn log(error: &Error, request: &RejectedRequest<'_>) {
    if let Error::Internal(report) = error {
        tracing::error!(
            request_id = request.request_id,
            operation = request.operation,
            error = %report,
            "operation failed"
        );
    }
}

/// Returns the status of an error.
pub(crate) fn status(error: &Error) -> StatusCode {
    StatusCode::from_u16(error.code().status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// Returns the response to another operation of this process, with the error as an extension.
pub(super) fn internal(error: Error) -> Response {
    let mut response = output::empty(status(&error));
    response.extensions_mut().insert(Arc::new(error));
    response
}

/// Returns the JSON response to a program.
pub(crate) fn error(error: &Error, request: &RejectedRequest<'_>) -> Response {
    log(error, request);
    let body = body(
        error,
        request.uri.path().starts_with("/v2/"),
        request.request_id,
    );
    let mut response = output::json(status(error), &body);
    if let Some(challenge) = request.challenge {
        let challenge =
            HeaderValue::try_from(challenge).unwrap_or(HeaderValue::from_static("Bearer"));
        response
            .headers_mut()
            .insert(header::WWW_AUTHENTICATE, challenge);
    }
    match error {
        Error::OAuth(fault) => {
            response
                .headers_mut()
                .insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
            if fault.error == "invalid_client" {
                response.headers_mut().insert(
                    header::WWW_AUTHENTICATE,
                    HeaderValue::from_static("Basic realm=\"OAuth client\""),
                );
            }
        }
        Error::Unavailable { retry, .. }
        | Error::Busy { retry }
        | Error::IdempotencyKey(KeyProblem::Running { retry }) => {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, retry.as_secs().max(1).into());
        }
        Error::NotBuilt(_) => {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, NOT_BUILT_RETRY_SECS.into());
        }
        _ => {}
    }
    response
}

/// The body of an error: v1 has `{message}`, v2 has `{error: {code, message}}` and also `message`.
#[derive(Serialize)]
struct Body<'a> {
    message: Cow<'static, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_description: Option<&'a str>,
    #[serde(rename = "errorEventId", skip_serializing_if = "Option::is_none")]
    event: Option<&'a str>,
}

fn body<'a>(error: &'a Error, v2: bool, request_id: &'a str) -> Body<'a> {
    let mut body = Body {
        message: error.message(),
        error: None,
        error_description: None,
        event: None,
    };
    match error {
        Error::Forbidden(Denial::Permissions(missing)) => {
            body.error = Some(json!({ "missing_permissions": missing }));
        }
        Error::ApprovalRequired(approval) => {
            body.error = Some(json!({
                "approval_id": approval.id,
                "approval_url": approval.url,
                "expires_at": approval.expires_at,
            }));
        }
        Error::OAuth(fault) => {
            body.error = Some(fault.error.into());
            body.error_description = Some(fault.description.as_ref());
        }
        Error::Internal(_) => body.event = Some(request_id),
        _ => {}
    }
    // OAuth errors have the form of RFC 6749 §5.2.
    if v2 && body.error_description.is_none() {
        let details = body.error.get_or_insert_default();
        details["code"] = error.code().name.into();
        details["message"] = body.message.as_ref().into();
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::error::Context;

    fn body(error: &Error, v2: bool, request_id: &str) -> Value {
        serde_json::to_value(super::body(error, v2, request_id)).unwrap()
    }

    #[test]
    fn error_bodies_of_v1_and_v2() {
        assert_eq!(
            body(&Error::NotFound, false, "r"),
            json!({"message": "Not Found"})
        );
        assert_eq!(
            body(&Error::NotFound, true, "r"),
            json!({"message": "Not Found", "error": {"code": "not_found", "message": "Not Found"}})
        );
        let missing =
            Error::Forbidden(Denial::Permissions(vec!["database_read", "database_write"]));
        assert_eq!(
            body(&missing, false, "r"),
            json!({"message": "Missing required permission(s): database_read, database_write", "error": {"missing_permissions": ["database_read", "database_write"]}})
        );
        let failed: Result<(), _> = Err("secret").context("x");
        assert_eq!(
            body(&failed.unwrap_err(), false, "abc"),
            json!({"message": "Internal Server Error", "errorEventId": "abc"})
        );
    }
}
