//! Outputs of handlers. The type determines the status.

use std::marker::PhantomData;

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    body::{Body, Response},
    input::Json,
    operation_doc::OperationDoc,
};
use crate::platform::error::{Context, Error};

/// Content type of JSON that this server serializes.
const JSON: &str = "application/json; charset=utf-8";

/// A result of a handler.
pub trait Output: Send {
    /// Adds status and schema to the document.
    fn describe(described: &mut OperationDoc);
    /// Returns the response.
    fn respond(self) -> Response;
}

/// 200 with a JSON body.
impl<T: Serialize + JsonSchema + Send> Output for Json<T> {
    fn describe(described: &mut OperationDoc) {
        described.reply_schema::<T>(StatusCode::OK);
    }

    fn respond(self) -> Response {
        json(StatusCode::OK, &self.0)
    }
}

/// 200, with a JSON body if the request asked for one.
impl<T: Serialize + JsonSchema + Send> Output for Option<Json<T>> {
    fn describe(described: &mut OperationDoc) {
        described.reply_schema_or_empty::<T>(StatusCode::OK);
    }

    fn respond(self) -> Response {
        self.map_or_else(|| OkEmpty.respond(), Json::respond)
    }
}

/// 201 with a JSON body.
pub struct Created<T>(pub T);

impl<T: Serialize + JsonSchema + Send> Output for Created<T> {
    fn describe(described: &mut OperationDoc) {
        described.reply_schema::<T>(StatusCode::CREATED);
    }

    fn respond(self) -> Response {
        json(StatusCode::CREATED, &self.0)
    }
}

/// 200 with an empty body and no content type.
pub struct OkEmpty;

impl Output for OkEmpty {
    fn describe(described: &mut OperationDoc) {
        described.reply_empty(StatusCode::OK);
    }

    fn respond(self) -> Response {
        empty(StatusCode::OK)
    }
}

/// 201 with an empty body and no content type.
pub struct CreatedEmpty;

impl Output for CreatedEmpty {
    fn describe(described: &mut OperationDoc) {
        described.reply_empty(StatusCode::CREATED);
    }

    fn respond(self) -> Response {
        empty(StatusCode::CREATED)
    }
}

/// 204 without a body.
pub struct NoContent;

impl Output for NoContent {
    fn describe(described: &mut OperationDoc) {
        described.reply_empty(StatusCode::NO_CONTENT);
    }

    fn respond(self) -> Response {
        empty(StatusCode::NO_CONTENT)
    }
}

/// 303 to this URL, without a referrer.
pub struct SeeOther(pub String);

impl Output for SeeOther {
    fn describe(described: &mut OperationDoc) {
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

/// The response of `T`, which caches must not store.
pub struct NoStore<T>(pub T);

impl<T: Output> Output for NoStore<T> {
    fn describe(described: &mut OperationDoc) {
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

/// 200 with a JSON body that is already serialized: the bytes of a `T`.
pub struct PrerenderedJson<T> {
    bytes: Bytes,
    of: PhantomData<fn() -> T>,
}

impl<T: Serialize> PrerenderedJson<T> {
    /// Serializes `value`.
    pub fn new(value: &T) -> Result<Self, Error> {
        Ok(Self::from(Bytes::from(
            serde_json::to_vec(value).context("serializing a response")?,
        )))
    }

    /// Returns the serialized body.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}

impl<T> From<Bytes> for PrerenderedJson<T> {
    fn from(bytes: Bytes) -> Self {
        Self {
            bytes,
            of: PhantomData,
        }
    }
}

impl<T: JsonSchema> Output for PrerenderedJson<T> {
    fn describe(described: &mut OperationDoc) {
        described.reply_schema::<T>(StatusCode::OK);
    }

    fn respond(self) -> Response {
        with_type(StatusCode::OK, JSON, self.bytes)
    }
}

/// 201 with the rows of a tenant's query, as serialized JSON.
pub struct JsonRows(pub Bytes);

impl Output for JsonRows {
    fn describe(described: &mut OperationDoc) {
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

/// 200 with newline-delimited JSON, already serialized.
pub struct JsonLines(pub Bytes);

impl Output for JsonLines {
    fn describe(described: &mut OperationDoc) {
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
