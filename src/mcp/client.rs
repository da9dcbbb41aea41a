//! Calls of operations with the rights of the caller.

use std::fmt;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, header};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use crate::platform::{
    audit::client_name::ClientName,
    error::{Context, Error},
    http::{Body, body, client_kind::InternalClient},
};

/// Largest response of an operation that a tool returns, in bytes.
const RESPONSE_BYTES_MAX: usize = 4 << 20;
const DOING: &str = "calling an operation for a tool";

/// Calls operations for the caller of a tool.
#[derive(Clone)]
pub(super) struct OperationClient(InternalClient);

impl OperationClient {
    pub(super) fn new(client: InternalClient) -> Self {
        Self(client)
    }

    /// Returns the client with another name of the program that calls tools.
    pub(super) fn named(&self, name: ClientName) -> Self {
        Self(self.0.clone().named(Some(name)))
    }

    /// Sends a request and returns the header fields and the body of the response.
    pub(super) async fn send(&self, request: Request<Body>) -> Result<(HeaderMap, Bytes), Error> {
        let (head, body) = self.0.send(request).await?.into_parts();
        let body = body::read(body, RESPONSE_BYTES_MAX).await;
        Ok((head.headers, body.context(DOING)?))
    }

    /// Calls an operation with a JSON body, if there is one, and parses its response. An empty
    /// response is `null`.
    pub(super) async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, Error> {
        let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::CONTENT_TYPE, "application/json");
        let (_, response) = self.send(request.body(body).context(DOING)?).await?;
        if response.is_empty() {
            return Ok(Value::Null);
        }
        // Some operations answer with text, such as generated types.
        Ok(serde_json::from_slice(&response)
            .unwrap_or_else(|_| String::from_utf8_lossy(&response).into()))
    }

    /// Calls a GET operation.
    pub(super) async fn get(&self, path: &str) -> Result<Value, Error> {
        self.call(Method::GET, path, None).await
    }
}

impl fmt::Debug for OperationClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OperationClient")
    }
}

/// All characters but the unreserved ones (RFC 3986 §2.3).
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Encodes a value for a segment of a path or a value of a query.
pub(super) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_sent_as_they_are_and_separators_are_encoded() {
        assert_eq!(encoded("8c1f-a_b.c~1"), "8c1f-a_b.c~1");
        assert_eq!(encoded("a/b?c#d%&=+"), "a%2Fb%3Fc%23d%25%26%3D%2B");
    }
}
