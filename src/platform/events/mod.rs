//! Events: one append-only log of changes for each organization, numbered without gaps.
//!
//! An event is appended in the transaction of its change, so both or neither are committed. The
//! number is taken while the head of the log is locked, so the order of the numbers is the order
//! of the commits, and a reader that has a number has all events up to it.
//!
//! [`catalog()`] lists the types. A transaction that also writes the audit log locks the head of
//! its chain first: [`crate::platform::audit::Change`] carries the events of a change, and
//! [`append`] is called after the recorder otherwise.

pub mod catalog;
mod event_type;
pub mod hub;
pub mod log;
pub mod payloads;
pub mod retention;

use chrono::{DateTime, SecondsFormat, Utc};
use gantry_base::ids::{OrganizationId, ProjectRef};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};
use uuid::Uuid;

pub use catalog::{catalog, find};
pub use event_type::{EventPayload, EventScope, EventType};
pub use log::append;

/// An event that is not appended yet.
#[derive(Debug, Clone)]
pub struct NewEvent {
    organization: OrganizationId,
    project: Option<ProjectRef>,
    name: &'static str,
    payload: String,
}

impl NewEvent {
    fn new(
        organization: OrganizationId,
        project: Option<ProjectRef>,
        payload: &impl EventPayload,
    ) -> Self {
        Self {
            organization,
            project,
            name: type_of(payload).name,
            // Payloads are structs of texts and numbers, which always have a JSON form.
            payload: serde_json::to_string(payload).unwrap_or_else(|_| "{}".to_owned()),
        }
    }
}

impl NewEvent {
    /// Returns the name of the type.
    pub const fn name(&self) -> &'static str {
        self.name
    }
}

const fn type_of<P: EventPayload>(_: &P) -> EventType {
    P::TYPE
}

/// An event of the log: a row of `events`.
#[derive(Debug, Clone)]
pub struct Event {
    /// Number in the log of the organization, from 1.
    pub number: i64,
    /// UUID version 7.
    pub id: Uuid,
    /// Name of the type.
    pub name: String,
    /// Time of the change.
    pub at: DateTime<Utc>,
    /// Ref of the project or branch. `None` for events of the organization.
    pub project: Option<String>,
    /// The user that made the change. `None` for changes by Gantry and its operator.
    pub actor: Option<Uuid>,
    /// JSON of the payload, without the fields that all events have.
    pub payload: String,
}

/// An event on the wire.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "GantryEvent")]
pub struct EventEnvelope {
    /// UUID version 7.
    pub id: Uuid,
    /// Name of the type, such as `v1.project.paused`.
    #[serde(rename = "type")]
    pub name: String,
    /// Time of the change, RFC 3339 with milliseconds.
    pub timestamp: String,
    /// The fields that all events have, and those of the type.
    pub payload: EnvelopePayload,
}

/// The payload of an event on the wire.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "GantryEventPayload")]
pub struct EnvelopePayload {
    /// Slug of the organization.
    pub organization_slug: String,
    /// Ref of the project; null for events of the organization.
    pub project_ref: Option<String>,
    /// The user that made the change; null for changes by the system.
    pub actor: Option<EventActor>,
    /// Whether the event was made to test a receiver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub is_test: Option<bool>,
    /// The fields of the type.
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

/// The user that made a change.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "GantryEventActor")]
pub struct EventActor {
    /// Id of the user.
    pub user_id: Uuid,
}

impl Event {
    /// Returns the event on the wire. `slug` is that of its organization.
    pub fn envelope(&self, slug: &str) -> EventEnvelope {
        EventEnvelope {
            id: self.id,
            name: self.name.clone(),
            timestamp: self.at.to_rfc3339_opts(SecondsFormat::Millis, true),
            payload: EnvelopePayload {
                organization_slug: slug.to_owned(),
                project_ref: self.project.clone(),
                actor: self.actor.map(|user_id| EventActor { user_id }),
                is_test: None,
                fields: serde_json::from_str(&self.payload).unwrap_or_default(),
            },
        }
    }
}
