//! Server-Sent Events (HTML Living Standard, § 9.2) as another form of a JSON response.

use bytes::Bytes;
use futures_util::Stream;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use http_body_util::StreamBody;
use hyper::body::Frame;
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    body::{Body, BodyError, Response},
    call::{Call, Input},
    input::Json,
    operation_doc::OperationDoc,
    output::{Output, with_type},
};
use crate::platform::error::Error;

const MEDIA_TYPE: &str = "text/event-stream";
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// Stops the buffering of proxies.
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// The form of the response that a client asks for.
#[derive(Debug, Clone, Default)]
pub struct StreamRequest {
    /// Whether the client asks for a stream.
    pub is_stream: bool,
    /// The id of the last event that the client has.
    pub last_event_id: Option<String>,
}

impl StreamRequest {
    fn of(headers: &HeaderMap) -> Self {
        let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        let accepts = text(header::ACCEPT).unwrap_or_default().split(',');
        let essence = |range: &str| {
            range
                .split(';')
                .next()
                .unwrap_or_default()
                .trim()
                .to_owned()
        };
        Self {
            is_stream: accepts.map(essence).any(|it| it == MEDIA_TYPE),
            last_event_id: text(LAST_EVENT_ID).map(str::to_owned),
        }
    }
}

impl Input for StreamRequest {
    fn describe(described: &mut OperationDoc) {
        described.header(
            "Last-Event-ID",
            "Resumes a stream after this event: `after`, as EventSource sends it.",
        );
    }

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        Ok(Self::of(call.headers()))
    }
}

/// 200 with a JSON body, or with a stream of events.
pub enum JsonOrEvents<T> {
    /// The JSON body.
    Json(T),
    /// The stream.
    Events(EventStreamResponse),
}

impl<T> JsonOrEvents<T> {
    /// Returns a stream of these texts, which are blocks of the event stream format.
    pub fn stream(blocks: impl Stream<Item = Bytes> + Send + 'static) -> Self {
        Self::Events(EventStreamResponse::new(blocks))
    }
}

/// 200 with a stream of events.
pub struct EventStreamResponse(Body);

impl EventStreamResponse {
    /// Returns a stream of these texts, which are blocks of the event stream format.
    pub fn new(blocks: impl Stream<Item = Bytes> + Send + 'static) -> Self {
        use futures_util::StreamExt;
        let frames = blocks.map(|block| Ok::<_, BodyError>(Frame::data(block)));
        Self(Body::new(StreamBody::new(frames)))
    }
}

impl Output for EventStreamResponse {
    fn describe(_: &mut OperationDoc) {}

    fn respond(self) -> Response {
        let mut response = with_type(StatusCode::OK, MEDIA_TYPE, self.0);
        let headers = response.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(ACCEL_BUFFERING, HeaderValue::from_static("no"));
        response
    }
}

impl<T: Serialize + JsonSchema + Send> Output for JsonOrEvents<T> {
    fn describe(described: &mut OperationDoc) {
        <Json<T> as Output>::describe(described);
    }

    fn respond(self) -> Response {
        match self {
            Self::Json(value) => Json(value).respond(),
            Self::Events(stream) => stream.respond(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_is_requested_by_the_accept_field() {
        for (accept, is_stream) in [
            (None, false),
            (Some("application/json"), false),
            (Some("*/*"), false),
            (Some("text/event-stream"), true),
            (Some("text/html, text/event-stream;q=0.9"), true),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(accept) = accept {
                headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
            }
            assert_eq!(
                StreamRequest::of(&headers).is_stream,
                is_stream,
                "{accept:?}"
            );
        }
    }
}
