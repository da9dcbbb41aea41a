//! Approvals of destructive requests in protected projects.
//!
//! Such a request is refused and stored. After a person has approved it on the account pages, the
//! same request of the same user runs once.

pub mod required;
mod rows;

use std::borrow::Cow;

use chrono::{DateTime, TimeDelta, Utc};
use gantry_base::clock::Entropy;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

pub use required::{RequiredApproval, USE_LIFE};
pub use rows::{ApprovalDecision, decide, find, is_protected, list, request, take};

use super::{
    access::{Project, User},
    audit::record,
    error::Error,
    idempotency::RequestDigest,
    sealing::SealingKey,
};

/// Time in which a request can be approved.
pub const REQUEST_LIFE: TimeDelta = TimeDelta::hours(24);
/// Largest number of undecided requests of a project.
pub const PENDING_MAX: i64 = 100;
/// Longest begin of a body that the page of the approval shows, in bytes.
const BODY_BYTES_MAX: usize = 64 << 10;
/// Longest body in which secret fields are replaced, in bytes. Longer ones are SQL.
const REDACTED_BYTES_MAX: usize = 1 << 20;
/// Age at which a request is deleted.
const KEPT: TimeDelta = TimeDelta::days(90);

/// The state of an approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ApprovalStatus {
    /// The request is not decided yet.
    Pending,
    /// The request may run once.
    Approved,
    /// The request must not run.
    Denied,
    /// The request has run, or was begun.
    Used,
    /// The time to decide, or to run the approved request, is over.
    Expired,
}

/// A person in an approval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ApprovalUser {
    /// The user's UUID.
    pub user_id: Uuid,
    /// The user's name.
    pub username: String,
}

/// A destructive request of a protected project, and the decision on it.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Approval {
    /// Id of the approval.
    pub id: Uuid,
    /// The state.
    pub status: ApprovalStatus,
    /// Id of the operation.
    pub operation: String,
    /// HTTP method of the request.
    pub method: String,
    /// Path and query of the request.
    pub path: String,
    /// The effect of the request. Completes "this request …".
    pub reason: String,
    /// The user that sent the request.
    pub requested_by: ApprovalUser,
    /// Time of the request.
    pub requested_at: DateTime<Utc>,
    /// End of the time to decide.
    pub expires_at: DateTime<Utc>,
    /// The person that decided; null before.
    pub decided_by: Option<ApprovalUser>,
    /// Time of the decision; null before.
    pub decided_at: Option<DateTime<Utc>>,
    /// End of the time in which the approved request may run; null unless it was approved.
    pub usable_until: Option<DateTime<Utc>>,
    /// Time when the approved request ran; null before.
    pub used_at: Option<DateTime<Utc>>,
}

impl Approval {
    /// Returns the state at `now`.
    fn status_at(&self, approved: Option<bool>, now: DateTime<Utc>) -> ApprovalStatus {
        match approved {
            Some(false) => ApprovalStatus::Denied,
            Some(true) if self.used_at.is_some() => ApprovalStatus::Used,
            Some(true) if self.usable_until.is_some_and(|until| until > now) => {
                ApprovalStatus::Approved
            }
            None if self.expires_at > now => ApprovalStatus::Pending,
            Some(true) | None => ApprovalStatus::Expired,
        }
    }
}

/// A request that needs an approval.
pub struct DestructiveRequest<'a> {
    /// The protected project.
    pub project: &'a Project,
    /// The caller.
    pub user: &'a User,
    /// Id of the operation.
    pub operation: &'static str,
    /// HTTP method.
    pub method: &'a str,
    /// Path and query as sent.
    pub path: &'a str,
    /// The effect. Completes "this request …".
    pub reason: Cow<'static, str>,
    /// The digest by which the request is recognized when it is sent again.
    pub digest: RequestDigest,
    /// The body.
    pub body: &'a [u8],
}

/// Seals the begin of a body, as text. Returns `None` for an empty one.
fn seal_body(
    sealing: &SealingKey,
    entropy: &Entropy,
    id: Uuid,
    body: &[u8],
) -> Result<Option<Vec<u8>>, Error> {
    if body.is_empty() {
        return Ok(None);
    }
    sealing
        .seal(entropy, &place(id), &shown_body(body).into())
        .map(Some)
}

/// Returns the begin of a body as text, with the values of secret fields replaced.
fn shown_body(body: &[u8]) -> String {
    let parsed: Option<Value> = (body.len() <= REDACTED_BYTES_MAX)
        .then(|| serde_json::from_slice(body).ok())
        .flatten();
    let redacted = parsed.map(|value| record::redacted(value).to_string());
    let body = redacted.as_ref().map_or(body, |text| text.as_bytes());
    let begin = &body[..body.len().min(BODY_BYTES_MAX)];
    let text = String::from_utf8_lossy(begin).replace('\0', "\u{fffd}");
    match body.len() - begin.len() {
        0 => text,
        left => format!("{text}\n… and {left} more bytes"),
    }
}

/// The context in which the body of a request is sealed.
fn place(id: Uuid) -> String {
    format!("approval {id}")
}

/// Returns the path of the page of an approval.
pub fn page_path(project: &Project, id: Uuid) -> String {
    format!("/projects/{}/approvals/{id}", project.reference)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn approval() -> Approval {
        let at = DateTime::UNIX_EPOCH;
        Approval {
            id: Uuid::nil(),
            status: ApprovalStatus::Pending,
            operation: "v1-delete-a-project".to_owned(),
            method: "DELETE".to_owned(),
            path: "/v1/projects/x".to_owned(),
            reason: "deletes the project".to_owned(),
            requested_by: ApprovalUser {
                user_id: Uuid::nil(),
                username: "a".to_owned(),
            },
            requested_at: at,
            expires_at: at + REQUEST_LIFE,
            decided_by: None,
            decided_at: None,
            usable_until: None,
            used_at: None,
        }
    }

    #[test]
    fn status_follows_from_decision_use_and_time() {
        let at = DateTime::UNIX_EPOCH;
        let late = at + REQUEST_LIFE;
        let asked = approval();
        assert_eq!(asked.status_at(None, at), ApprovalStatus::Pending);
        assert_eq!(asked.status_at(None, late), ApprovalStatus::Expired);
        assert_eq!(asked.status_at(Some(false), at), ApprovalStatus::Denied);
        let approved = Approval {
            usable_until: Some(at + USE_LIFE),
            ..asked
        };
        let usable = approved.status_at(Some(true), at);
        assert_eq!(usable, ApprovalStatus::Approved);
        let over = approved.status_at(Some(true), at + USE_LIFE);
        assert_eq!(over, ApprovalStatus::Expired);
        let used = Approval {
            used_at: Some(at),
            ..approved
        };
        assert_eq!(used.status_at(Some(true), late), ApprovalStatus::Used);
    }

    #[test]
    fn sealed_body_is_cut_and_opens_for_its_approval_only() {
        let sealing = SealingKey::new(&[7; 32]).unwrap();
        let entropy = Entropy::seeded(1);
        let id = Uuid::from_u128(1);
        let seal = |body: &[u8]| seal_body(&sealing, &entropy, id, body).unwrap();
        assert!(seal(b"").is_none());
        let sealed = seal(&vec![b'x'; BODY_BYTES_MAX + 5]).unwrap();
        let opened = sealing.open(&place(id), &sealed).unwrap();
        let text = secrecy::ExposeSecret::expose_secret(&opened).to_owned();
        assert!(text.ends_with("x\n… and 5 more bytes"));
        assert!(sealing.open(&place(Uuid::nil()), &sealed).is_err());
    }

    #[test]
    fn secret_fields_of_a_body_are_not_shown() {
        let shown = shown_body(br#"{"password": "horse", "query": "select 'horse'"}"#);
        let shown: Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(shown["password"], "[redacted]");
        assert_eq!(shown["query"], "select 'horse'");
        assert_eq!(shown_body(b"not json\0"), "not json\u{fffd}");
    }
}
