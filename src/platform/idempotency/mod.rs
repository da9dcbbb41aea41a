//! `Idempotency-Key`: a request that is sent again with its key gets the first answer, and its
//! change is made once (draft-ietf-httpapi-idempotency-key-header).
//!
//! The key of a change of the control database is recorded in the transaction of the change,
//! together with the answer. Before an effect elsewhere, the key is recorded as begun.

mod answer;
pub mod cleanup;
mod digest;
mod keyed_request;
mod rows;

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use http::{HeaderMap, HeaderName};
use uuid::Uuid;

use crate::platform::error::{Error, KeyProblem};

pub use answer::{ANSWER_BYTES_MAX, KeptAnswer};
pub use digest::{RequestDigest, digest};
pub use keyed_request::KeyedRequest;
pub use rows::{KEYS_MAX, claim, forget, keep, read, require_room};

/// The header with the key.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// The header of an answer that is not the first.
pub const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// Longest key, in bytes.
const KEY_BYTES_MAX: usize = 255;
/// Time for which a key is kept.
pub const LIFETIME: TimeDelta = TimeDelta::hours(24);
/// Time after which a request without an answer has ended: the time limit of every operation and
/// some seconds.
const RUNNING_MAX: TimeDelta = TimeDelta::seconds(130);
/// `Retry-After` while the first request may still run.
const RETRY: Duration = Duration::from_secs(5);

/// The treatment of keys by an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Idempotency {
    /// The operation changes nothing or has no authenticated caller: keys are not read.
    Ignored,
    /// The key and the answer are recorded in the transaction of the change.
    Recorded,
    /// The key is recorded in the transaction of the change, and the answer when it is known. After
    /// a crash the answer is lost.
    Marked,
    /// The effect is outside of the control database, and the key is recorded before it. After a
    /// crash the outcome is unknown.
    Announced,
    /// As announced; after a crash the operation runs again, which has no further effect.
    Repeatable,
    /// The operation keeps its own record of keys, together with its effect.
    Own,
}

impl Idempotency {
    /// The name in documents. `None`: keys are not read.
    pub const fn name(self) -> Option<&'static str> {
        match self {
            Self::Ignored => None,
            Self::Recorded => Some("recorded"),
            Self::Marked => Some("marked"),
            Self::Announced => Some("announced"),
            Self::Repeatable => Some("repeatable"),
            Self::Own => Some("own"),
        }
    }

    /// Whether the key is recorded before the handler runs.
    pub const fn is_claimed(self) -> bool {
        matches!(self, Self::Announced | Self::Repeatable)
    }
}

/// A key with its scope: equal keys of different callers or about different targets are
/// independent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScopedKey {
    /// The user, or the approved application.
    pub caller: String,
    /// The organization or project as the request names it; empty for the account.
    pub target: String,
    /// The value of the header.
    pub key: String,
}

/// Returns the key of a request, or `None` without one.
///
/// Errors: [`Error::Invalid`] unless it is one field with 1 to 255 printable characters.
pub fn read_key(headers: &HeaderMap) -> Result<Option<String>, Error> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    let is_printable = |byte: &u8| matches!(byte, b' '..=b'~');
    let bytes = value.as_bytes();
    let is_valid = (1..=KEY_BYTES_MAX).contains(&bytes.len()) && bytes.iter().all(is_printable);
    match std::str::from_utf8(bytes) {
        Ok(key) if is_valid && values.next().is_none() => Ok(Some(key.to_owned())),
        _ => Err(Error::invalid(
            "Idempotency-Key",
            "expected one field with 1 to 255 printable characters",
        )),
    }
}

/// How far the first request with a key came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyStage {
    /// It was announced, and its effect may have happened.
    Begun,
    /// Its change is committed, and its answer is not recorded.
    Changed,
    /// Its answer is recorded, or was too large for that.
    Answered,
}

impl KeyStage {
    const fn name(self) -> &'static str {
        match self {
            Self::Begun => "begun",
            Self::Changed => "changed",
            Self::Answered => "answered",
        }
    }

    fn from_name(name: &str) -> Self {
        match name {
            "begun" => Self::Begun,
            "changed" => Self::Changed,
            _ => Self::Answered,
        }
    }
}

/// The record of a key.
#[derive(Debug, Clone)]
pub struct KeyRecord {
    /// Digest of the first request.
    pub digest: RequestDigest,
    /// Id of the first request, by which the audit log has it.
    pub request_id: String,
    /// Tells the requests with one key apart.
    pub attempt: Uuid,
    /// How far the first request came.
    pub step: KeyStage,
    /// The sealed answer.
    pub answer: Option<Vec<u8>>,
    /// Time of the first request.
    pub at: DateTime<Utc>,
}

/// The treatment of a request with a key.
#[derive(Debug, PartialEq, Eq)]
pub enum Decision {
    /// It runs.
    Run,
    /// It gets the recorded answer.
    Replay,
    /// It is rejected with 409.
    Refuse(KeyProblem),
}

/// Decides about a request with a key. `record` is the live record of the key.
pub fn decide(
    kind: Idempotency,
    record: Option<&KeyRecord>,
    digest: &RequestDigest,
    now: DateTime<Utc>,
) -> Decision {
    let Some(record) = record else {
        return Decision::Run;
    };
    if record.digest != *digest {
        return Decision::Refuse(KeyProblem::OtherRequest);
    }
    let request_id = || record.request_id.clone();
    match record.step {
        KeyStage::Answered if record.answer.is_some() => Decision::Replay,
        KeyStage::Begun | KeyStage::Changed if now < record.at + RUNNING_MAX => {
            Decision::Refuse(KeyProblem::Running { retry: RETRY })
        }
        KeyStage::Begun if kind == Idempotency::Repeatable => Decision::Run,
        KeyStage::Begun => Decision::Refuse(KeyProblem::OutcomeUnknown(request_id())),
        KeyStage::Answered | KeyStage::Changed => {
            Decision::Refuse(KeyProblem::AnswerNotKept(request_id()))
        }
    }
}

#[cfg(test)]
mod tests;
