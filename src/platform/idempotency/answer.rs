//! The answer of a request as it is stored: status, headers and body, sealed.

use std::fmt;

use gantry_base::clock::Entropy;
use http::{HeaderName, HeaderValue, StatusCode};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};

use super::ScopedKey;
use crate::platform::{
    error::{Context, Error},
    http::body::{Body, Response},
    sealing::SealingKey,
};

/// Largest answer that is kept, in bytes of its body.
pub const ANSWER_BYTES_MAX: usize = 1 << 20;

/// An answer of an operation, without the headers that every response gets.
#[derive(Clone, PartialEq, Eq)]
pub struct KeptAnswer {
    head: Head,
    body: String,
}

/// The first line of a stored answer.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Head {
    status: u16,
    headers: Vec<(String, String)>,
}

impl fmt::Debug for KeptAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeptAnswer({})", self.head.status)
    }
}

impl KeptAnswer {
    /// Returns the answer without a body.
    pub fn empty(status: StatusCode) -> Self {
        Self {
            head: Head {
                status: status.as_u16(),
                headers: Vec::new(),
            },
            body: String::new(),
        }
    }

    /// Returns the content of a response. `None` if it is streamed, not text, or larger than
    /// [`ANSWER_BYTES_MAX`].
    pub fn of(response: &Response) -> Option<Self> {
        let Body::Whole(bytes) = response.body() else {
            return None;
        };
        if bytes.len() > ANSWER_BYTES_MAX {
            return None;
        }
        let header = |(name, value): (&HeaderName, &HeaderValue)| {
            Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned()))
        };
        Some(Self {
            head: Head {
                status: response.status().as_u16(),
                headers: response
                    .headers()
                    .iter()
                    .map(header)
                    .collect::<Option<_>>()?,
            },
            body: String::from_utf8(bytes.to_vec()).ok()?,
        })
    }

    /// Returns the response.
    pub fn into_response(self) -> Result<Response, Error> {
        let doing = "reading a recorded answer";
        let mut response = Response::new(Body::from(self.body));
        *response.status_mut() = StatusCode::from_u16(self.head.status).context(doing)?;
        for (name, value) in self.head.headers {
            let name = HeaderName::try_from(name).context(doing)?;
            let value = HeaderValue::try_from(value).context(doing)?;
            response.headers_mut().append(name, value);
        }
        Ok(response)
    }

    /// Seals the answer. It can only be opened for the same key.
    pub(super) fn seal(
        &self,
        sealing: &SealingKey,
        entropy: &Entropy,
        key: &ScopedKey,
    ) -> Result<Vec<u8>, Error> {
        let head = serde_json::to_string(&self.head).context("recording an answer")?;
        let text = SecretString::from([&head, "\n", &self.body].concat());
        sealing.seal(entropy, &place(key), &text)
    }

    /// Opens a sealed answer.
    pub fn open(sealing: &SealingKey, key: &ScopedKey, sealed: &[u8]) -> Result<Self, Error> {
        let doing = "reading a recorded answer";
        let text = sealing.open(&place(key), sealed)?;
        let parts = text.expose_secret().split_once('\n');
        let (head, body) = parts.ok_or("it has no head").context(doing)?;
        Ok(Self {
            head: serde_json::from_str(head).context(doing)?,
            body: body.to_owned(),
        })
    }
}

/// The context in which an answer is sealed. No part contains a line break.
fn place(key: &ScopedKey) -> String {
    format!("answer\n{}\n{}\n{}", key.caller, key.target, key.key)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(key: &str) -> ScopedKey {
        ScopedKey {
            caller: "user 1".to_owned(),
            target: String::new(),
            key: key.to_owned(),
        }
    }

    #[test]
    fn answers_that_cannot_be_kept_are_not() {
        let sized = |bytes: usize| KeptAnswer::of(&Response::new(Body::from(vec![b'x'; bytes])));
        assert!(sized(ANSWER_BYTES_MAX).is_some() && sized(ANSWER_BYTES_MAX + 1).is_none());
        assert!(KeptAnswer::of(&Response::new(Body::from(vec![0xff]))).is_none());
        let streamed =
            http_body_util::StreamBody::new(futures_util::stream::iter([Ok::<_, std::io::Error>(
                hyper::body::Frame::data(bytes::Bytes::from("x")),
            )]));
        assert!(KeptAnswer::of(&Response::new(Body::new(streamed))).is_none());
    }

    proptest! {
        #[test]
        fn sealed_answer_is_returned_unchanged_for_its_key_only(
            status in 200_u16..400, body in "(?s).{0,60}", value in "[ -~&&[^ ]]{1,20}",
        ) {
            let sealing = SealingKey::new(&[7; 32]).unwrap();
            let mut response = Response::new(Body::from(body.clone()));
            *response.status_mut() = StatusCode::from_u16(status).unwrap();
            response.headers_mut().insert("x-a", HeaderValue::try_from(value).unwrap());
            let answer = KeptAnswer::of(&response).unwrap();
            let sealed = answer.seal(&sealing, &Entropy::seeded(1), &key("a")).unwrap();
            let opened = KeptAnswer::open(&sealing, &key("a"), &sealed).unwrap();
            let again = opened.clone().into_response().unwrap();
            prop_assert_eq!(again.status(), response.status());
            prop_assert_eq!(again.headers(), response.headers());
            prop_assert_eq!(opened, answer);
            prop_assert!(KeptAnswer::open(&sealing, &key("b"), &sealed).is_err());
        }
    }
}
