//! Responses of plain text.

use http::StatusCode;

use crate::platform::http::{
    body::Response,
    operation_doc::OperationDoc,
    output::{Output, with_type},
};

/// 200 with lines of text.
pub(super) struct PlainText(pub(super) String);

impl Output for PlainText {
    fn describe(described: &mut OperationDoc) {
        described.reply_empty(StatusCode::OK);
    }

    fn respond(self) -> Response {
        with_type(StatusCode::OK, "text/plain; charset=utf-8", self.0)
    }
}
