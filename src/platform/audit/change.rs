//! The change of a request: its states for the audit log, and its events.

use serde_json::Value;

use crate::platform::events::NewEvent;

/// A change that [`super::Recorder`] writes.
#[derive(Debug, Default)]
pub struct Change {
    /// State before the change, without secrets, if the operation records it.
    pub(super) before: Option<Value>,
    /// State after the change, without secrets, if the operation records it.
    pub(super) after: Option<Value>,
    /// Events of the change, in their order.
    pub(super) events: Vec<NewEvent>,
}

impl Change {
    /// Returns a change of these states with these events.
    pub fn new(
        (before, after): (Option<Value>, Option<Value>),
        events: impl IntoIterator<Item = NewEvent>,
    ) -> Self {
        Self {
            before,
            after,
            events: events.into_iter().collect(),
        }
    }
}

impl From<(Option<Value>, Option<Value>)> for Change {
    /// Returns a change without events.
    fn from(states: (Option<Value>, Option<Value>)) -> Self {
        Self::new(states, [])
    }
}
