//! The change of a request that is tried: it is known when the transaction would be committed.

use std::sync::OnceLock;

use serde_json::Value;

use super::change::Change;

/// A request that is tried, and its change once it is known.
#[derive(Debug, Default)]
pub(super) struct Trial {
    change: OnceLock<TriedChange>,
    approval: OnceLock<String>,
}

/// A change that was rolled back.
#[derive(Debug, Clone)]
pub struct TriedChange {
    /// Status of the response to the request itself.
    pub status: i16,
    /// State before the change, without secrets, if the operation records it.
    pub before: Option<Value>,
    /// State after the change, without secrets, if the operation records it.
    pub after: Option<Value>,
    /// Types of its events, in their order.
    pub events: Vec<&'static str>,
}

impl Trial {
    /// Keeps the change. Of several changes the first one counts.
    pub(super) fn keep(&self, status: i16, change: Change, redact: impl Fn(Value) -> Value) {
        let Change {
            before,
            after,
            events,
        } = change;
        let _ = self.change.set(TriedChange {
            status,
            before: before.map(&redact),
            after: after.map(&redact),
            events: events
                .iter()
                .map(crate::platform::events::NewEvent::name)
                .collect(),
        });
    }

    /// Returns the change, if the request has one.
    pub(super) fn change(&self) -> Option<&TriedChange> {
        self.change.get()
    }

    /// Notes the effect for which the request itself needs an approval.
    pub(super) fn note_approval(&self, effect: String) {
        let _ = self.approval.set(effect);
    }

    /// Returns the effect for which the request itself needs an approval.
    pub(super) fn approval(&self) -> Option<&str> {
        self.approval.get().map(String::as_str)
    }
}
