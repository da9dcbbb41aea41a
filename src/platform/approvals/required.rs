//! The answer to a request that needs an approval. Imports no other part, because errors have it.

use std::borrow::Cow;

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

/// Time in which an approved request can run.
pub const USE_LIFE: TimeDelta = TimeDelta::minutes(15);

/// The approval that a refused request waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequiredApproval {
    /// Id of the approval.
    pub id: Uuid,
    /// The effect of the request. Completes "this request …".
    pub reason: Cow<'static, str>,
    /// Path of the page on which it is decided.
    pub page: String,
    /// URL of the page; only its path if the server has no public URL.
    pub url: String,
    /// End of the time to decide.
    pub expires_at: DateTime<Utc>,
}

impl RequiredApproval {
    /// Returns the message for the caller.
    pub fn message(&self) -> String {
        let Self { reason, url, .. } = self;
        let minutes = USE_LIFE.num_minutes();
        format!(
            "This project is protected, and this request {reason}. Have it approved at {url}, then send the same \
             request again within {minutes} minutes"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_names_effect_and_page() {
        let required = RequiredApproval {
            id: Uuid::nil(),
            reason: "deletes the project".into(),
            page: "/projects/x/approvals/1".to_owned(),
            url: "https://api.example.com/projects/x/approvals/1".to_owned(),
            expires_at: DateTime::UNIX_EPOCH,
        };
        assert_eq!(
            required.message(),
            "This project is protected, and this request deletes the project. Have it approved at \
             https://api.example.com/projects/x/approvals/1, then send the same request again within 15 minutes"
        );
    }
}
