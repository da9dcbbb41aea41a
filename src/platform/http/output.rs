//! What handlers answer: the return type says the status.

use std::{cell::Cell, marker::PhantomData};

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use bytes::Bytes;
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    body::{Body, Response},
    fields,
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

/// A response of a given content type.
pub(crate) fn with_type(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Body>,
) -> Response {
    under(fields::head, status, content_type, body)
}

fn under(
    head: Head,
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Body>,
) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    *response.headers_mut() = head(HeaderValue::from_static(content_type));
    response
}

/// A JSON response. Our wire types always serialise; if one ever did not, the caller sees a 500 rather than half a body.
pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Response {
    json_under(fields::head, status, value)
}

/// Makes the head of an answer of a content type.
type Head = fn(HeaderValue) -> HeaderMap;

/// The same under a head of another kind.
pub(super) fn json_under(head: Head, status: StatusCode, value: &impl Serialize) -> Response {
    match written(value) {
        Ok(body) => under(head, status, JSON, body),
        Err(error) => {
            tracing::error!(%error, "an answer could not be serialised");
            with_type(
                StatusCode::INTERNAL_SERVER_ERROR,
                JSON,
                r#"{"message":"Internal Server Error"}"#,
            )
        }
    }
}

/// Bytes of JSON that most answers do not go beyond.
const USUAL_BYTES: usize = 1024;

thread_local! {
    /// Where answers are written, one after the other.
    static SHEET: Cell<Vec<u8>> = Cell::default();
}

/// The value as JSON: a copy that has no more memory than it needs, unless it is long.
fn written(value: &impl Serialize) -> serde_json::Result<Bytes> {
    let mut sheet = SHEET.take();
    sheet.clear();
    sheet.reserve(USUAL_BYTES);
    serde_json::to_writer(&mut sheet, value)?;
    if sheet.len() > USUAL_BYTES {
        return Ok(sheet.into());
    }
    let body = Bytes::copy_from_slice(&sheet);
    SHEET.set(sheet);
    Ok(body)
}
