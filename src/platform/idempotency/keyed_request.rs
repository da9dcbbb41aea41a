//! A running request with a key, and its record in the transaction of its change.

use std::{any::Any, fmt};

use chrono::{DateTime, Utc};
use gantry_base::clock::Entropy;
use parking_lot::Mutex;
use tokio_postgres::Transaction;
use uuid::Uuid;

use super::{KeptAnswer, KeyStage, LIFETIME, RequestDigest, ScopedKey, rows};
use crate::platform::{error::Error, http::body::Response, sealing::SealingKey};

/// Makes the response from the result of a change, if the result has the expected type.
type Renderer = Box<dyn Fn(&dyn Any) -> Option<Response> + Send>;

/// A running request with a key.
pub struct KeyedRequest {
    /// The key.
    pub key: ScopedKey,
    /// Digest of the request.
    pub digest: RequestDigest,
    /// Id of the operation.
    pub operation: &'static str,
    /// Id of the request.
    pub request_id: String,
    /// Tells the requests with one key apart.
    pub attempt: Uuid,
    /// Time of the request.
    pub at: DateTime<Utc>,
    sealing: SealingKey,
    entropy: Entropy,
    renderer: Mutex<Option<Renderer>>,
    /// The answer, as soon as it is known.
    answer: Mutex<Option<KeptAnswer>>,
    /// The step that the transaction of the change recorded.
    recorded: Mutex<Option<KeyStage>>,
}

impl fmt::Debug for KeyedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyedRequest({})", self.attempt)
    }
}

impl KeyedRequest {
    /// Returns the request of this key. `answer` is that of an operation that always answers the
    /// same.
    pub fn new(
        (key, digest): (ScopedKey, RequestDigest),
        (operation, request_id, at): (&'static str, &str, DateTime<Utc>),
        answer: Option<KeptAnswer>,
        (sealing, entropy): (&SealingKey, &Entropy),
    ) -> Self {
        Self {
            key,
            digest,
            operation,
            request_id: request_id.to_owned(),
            attempt: entropy.uuid(),
            at,
            sealing: sealing.clone(),
            entropy: entropy.clone(),
            renderer: Mutex::default(),
            answer: Mutex::new(answer),
            recorded: Mutex::default(),
        }
    }

    /// Time at which the key may be used anew.
    pub(super) fn expires_at(&self) -> DateTime<Utc> {
        self.at + LIFETIME
    }

    /// Sets how the response is made from the result of the change.
    pub fn render_with(&self, renderer: Renderer) {
        *self.renderer.lock() = Some(renderer);
    }

    /// Makes the response from the result of the change.
    pub fn render(&self, result: &dyn Any) {
        if let Some(response) = self.renderer.lock().as_ref().and_then(|make| make(result)) {
            self.set_answer(&response);
        }
    }

    /// Sets the response.
    pub fn set_answer(&self, response: &Response) {
        *self.answer.lock() = KeptAnswer::of(response);
    }

    /// The answer that the transaction of the change recorded, or would have if it were smaller.
    pub fn answer(&self) -> Option<KeptAnswer> {
        self.answer.lock().clone()
    }

    /// The step that the transaction of the change recorded.
    pub fn recorded(&self) -> Option<KeyStage> {
        *self.recorded.lock()
    }

    /// Seals an answer.
    pub(super) fn seal(&self, answer: &KeptAnswer) -> Result<Vec<u8>, Error> {
        answer.seal(&self.sealing, &self.entropy, &self.key)
    }

    /// Records the key in the transaction of the change, with the answer if it is known.
    ///
    /// Waits for another transaction with the key. Errors: [`Error::IdempotencyKey`] if that is
    /// committed; the change must not be made a second time.
    pub async fn record_in(&self, transaction: &Transaction<'_>) -> Result<(), Error> {
        let answer = self.answer();
        let step = answer
            .as_ref()
            .map_or(KeyStage::Changed, |_| KeyStage::Answered);
        rows::record_in(transaction, self, step, answer.as_ref()).await?;
        *self.recorded.lock() = Some(step);
        Ok(())
    }
}
