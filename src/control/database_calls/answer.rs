//! The response of a call, as the database stores it.

use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use serde::Serialize;
use serde_json::{Map, Value};

use super::state::CallResult;

/// A row of `net._http_response`.
#[derive(Debug, Clone, Serialize)]
pub(super) struct CallAnswer {
    pub(super) id: i64,
    status_code: Option<u16>,
    content_type: Option<String>,
    headers: Option<Map<String, Value>>,
    /// The body as text. Bytes that are not UTF-8 are replaced; `NULL` if it is empty.
    content: Option<String>,
    timed_out: bool,
    error_msg: Option<String>,
    #[serde(skip)]
    pub(super) result: CallResult,
}

/// The reason why a call has no response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CallFailure {
    pub(super) result: CallResult,
    /// The text for the tenant.
    pub(super) message: String,
}

impl CallFailure {
    /// Returns the failure of a call that was tried, or that is invalid.
    pub(super) fn failed(message: impl Into<String>) -> Self {
        Self {
            result: CallResult::Failed,
            message: message.into(),
        }
    }

    /// Returns the failure of a call to a destination that the operator does not permit.
    pub(super) fn refused(message: impl Into<String>) -> Self {
        Self {
            result: CallResult::Refused,
            message: message.into(),
        }
    }
}

impl CallAnswer {
    /// Returns the row of a response.
    pub(super) fn answered(id: i64, status: StatusCode, headers: &HeaderMap, body: &Bytes) -> Self {
        let mut fields = Map::with_capacity(headers.len());
        for (name, value) in headers {
            fields.insert(name.as_str().to_owned(), text(value.as_bytes()).into());
        }
        let content_type = headers.get(header::CONTENT_TYPE);
        Self {
            id,
            status_code: Some(status.as_u16()),
            content_type: content_type.map(|value| text(value.as_bytes())),
            headers: Some(fields),
            content: (!body.is_empty()).then(|| text(body)),
            timed_out: false,
            error_msg: None,
            result: CallResult::Answered,
        }
    }

    /// Returns the row of a call without a response.
    pub(super) fn failed(id: i64, failure: CallFailure) -> Self {
        Self {
            id,
            status_code: None,
            content_type: None,
            headers: None,
            content: None,
            timed_out: failure.result == CallResult::TimedOut,
            error_msg: Some(failure.message),
            result: failure.result,
        }
    }

    /// Returns the status of the response, if there is one.
    pub(super) fn status(&self) -> Option<u16> {
        self.status_code
    }

    /// Returns the reason why there is no response.
    pub(super) fn error(&self) -> Option<&str> {
        self.error_msg.as_deref()
    }

    /// Returns about the memory of the response, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.content.as_ref().map_or(0, String::len)
    }
}

/// Returns a text that PostgreSQL can store: it ends at the first zero byte, as that of C.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0);
    let bytes = &bytes[..end.unwrap_or(bytes.len())];
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn response_becomes_a_row() {
        let mut headers = HeaderMap::new();
        headers.insert("content-type", "text/plain".parse().unwrap());
        let body = Bytes::from_static(b"a\xffb\0c");
        let row = CallAnswer::answered(7, StatusCode::IM_A_TEAPOT, &headers, &body);
        let expected = json!({
            "id": 7, "status_code": 418, "content_type": "text/plain",
            "headers": {"content-type": "text/plain"}, "content": "a\u{fffd}b",
            "timed_out": false, "error_msg": null,
        });
        assert_eq!(serde_json::to_value(&row).unwrap(), expected);
        let empty = CallAnswer::answered(7, StatusCode::OK, &HeaderMap::new(), &Bytes::new());
        assert_eq!(
            serde_json::to_value(&empty).unwrap()["content"],
            json!(null)
        );
    }

    #[test]
    fn failure_becomes_a_row_without_status() {
        let row = CallAnswer::failed(1, CallFailure::refused("no"));
        let row = serde_json::to_value(&row).unwrap();
        assert_eq!(row["status_code"], json!(null));
        assert_eq!(
            (&row["timed_out"], &row["error_msg"]),
            (&json!(false), &json!("no"))
        );
    }
}
