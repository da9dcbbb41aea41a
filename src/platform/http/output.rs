//! What handlers answer: the return type says the status.

use std::marker::PhantomData;

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    body::{Body, Response},
    input::Json,
    openapi::Described,
};
use crate::base::error::{Context, Error};

/// Content type of our own JSON.
const JSON: &str = "application/json; charset=utf-8";

/// An answer that can describe itself.
pub trait Output: Send {
    /// Adds status and schema to the document.
    fn describe(described: &mut Described);
    /// Becomes the response.
    fn respond(self) -> Response;
}

/// 200 with a JSON body.
impl<T: Serialize + JsonSchema + Send> Output for Json<T> {
    fn describe(described: &mut Described) {
        described.reply_schema::<T>(StatusCode::OK);
    }

    fn respond(self) -> Response {
        json(StatusCode::OK, &self.0)
    }
}

/// 200, with a JSON body where the request asked for one.
impl<T: Serialize + JsonSchema + Send> Output for Option<Json<T>> {
    fn describe(described: &mut Described) {
        described.reply_schema_or_empty::<T>(StatusCode::OK);
    }

    fn respond(self) -> Response {
        self.map_or_else(|| Done.respond(), Json::respond)
    }
}

/// 201 with a JSON body.
pub struct Created<T>(pub T);

impl<T: Serialize + JsonSchema + Send> Output for Created<T> {
    fn describe(described: &mut Described) {
        described.reply_schema::<T>(StatusCode::CREATED);
    }

    fn respond(self) -> Response {
        json(StatusCode::CREATED, &self.0)
    }
}

/// 200 with an empty body and no content type, as clients expect of void operations.
pub struct Done;

impl Output for Done {
    fn describe(described: &mut Described) {
        described.reply_empty(StatusCode::OK);
    }

    fn respond(self) -> Response {
        empty(StatusCode::OK)
    }
}

/// 201 with an empty body and no content type: the contract's answer to some commands.
pub struct Begun;

impl Output for Begun {
    fn describe(described: &mut Described) {
        described.reply_empty(StatusCode::CREATED);
    }

    fn respond(self) -> Response {
        empty(StatusCode::CREATED)
    }
}

/// 204.
pub struct Nothing;

impl Output for Nothing {
    fn describe(described: &mut Described) {
        described.reply_empty(StatusCode::NO_CONTENT);
    }

    fn respond(self) -> Response {
        empty(StatusCode::NO_CONTENT)
    }
}

/// 303: the browser goes on there, and tells nobody where it was.
pub struct Onward(pub String);

impl Output for Onward {
    fn describe(described: &mut Described) {
        described.reply_empty(StatusCode::SEE_OTHER);
    }

    fn respond(self) -> Response {
        let mut response = empty(StatusCode::SEE_OTHER);
        for (name, value) in [
            (header::REFERRER_POLICY, "no-referrer"),
            (header::CACHE_CONTROL, "no-store"),
        ] {
            response
                .headers_mut()
                .insert(name, HeaderValue::from_static(value));
        }
        response
            .headers_mut()
            .extend(HeaderValue::try_from(self.0).map(|to| (header::LOCATION, to)));
        response
    }
}

/// The same answer, which nobody may keep.
pub struct Unkept<T>(pub T);

impl<T: Output> Output for Unkept<T> {
    fn describe(described: &mut Described) {
        T::describe(described);
    }

    fn respond(self) -> Response {
        let mut response = self.0.respond();
        response
            .headers_mut()
            .insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
            .headers_mut()
            .insert(header::PRAGMA, HeaderValue::from_static("no-cache"));
        response
    }
}

/// 200 with a JSON body that was written before: the bytes of a `T`.
pub struct Written<T> {
    bytes: Bytes,
    of: PhantomData<fn() -> T>,
}

impl<T: Serialize> Written<T> {
    /// Writes `value`.
    pub fn new(value: &T) -> Result<Self, Error> {
        Ok(Self::from(Bytes::from(
            serde_json::to_vec(value).context("writing an answer")?,
        )))
    }

    /// The bytes, to be answered again.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}

impl<T> From<Bytes> for Written<T> {
    fn from(bytes: Bytes) -> Self {
        Self {
            bytes,
            of: PhantomData,
        }
    }
}

impl<T: JsonSchema> Output for Written<T> {
    fn describe(described: &mut Described) {
        described.reply_schema::<T>(StatusCode::OK);
    }

    fn respond(self) -> Response {
        with_type(StatusCode::OK, JSON, self.bytes)
    }
}

/// 201 with the rows of a customer's query: JSON already written.
pub struct Rows(pub Bytes);

impl Output for Rows {
    fn describe(described: &mut Described) {
        described
            .reply_schema::<Vec<serde_json::Map<String, serde_json::Value>>>(StatusCode::CREATED);
    }

    fn respond(self) -> Response {
        let mut response = with_type(StatusCode::CREATED, "application/json", self.0);
        response
            .headers_mut()
            .insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        response
    }
}

/// 200 with lines of JSON, already written.
pub struct Lines(pub Bytes);

impl Output for Lines {
    fn describe(described: &mut Described) {
        described.reply_empty(StatusCode::OK);
    }

    fn respond(self) -> Response {
        with_type(StatusCode::OK, "application/x-ndjson", self.0)
    }
}

/// A response without a body.
pub(crate) fn empty(status: StatusCode) -> Response {
    let mut response = Response::default();
    *response.status_mut() = status;
    response
}

/// A response with a body of this content type.
pub(crate) fn with_type(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Body>,
) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// A JSON response. Serializing a wire type does not fail; if it did, the response would be a 500.
pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(body) => with_type(status, JSON, Bytes::from(body)),
        Err(error) => {
            tracing::error!(%error, "response could not be serialized");
            with_type(
                StatusCode::INTERNAL_SERVER_ERROR,
                JSON,
                r#"{"message":"Internal Server Error"}"#,
            )
        }
    }
}
