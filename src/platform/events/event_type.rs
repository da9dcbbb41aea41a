//! Declarations of event types.

use gantry_base::ids::{OrganizationId, ProjectRef};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde_json::{Map, Value};

use super::NewEvent;
use crate::platform::access::Project;

/// The subject of events of one type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventScope {
    /// The organization. Such events have no `project_ref`.
    Organization,
    /// A project of the organization, or a branch of one.
    Project,
}

impl EventScope {
    /// Returns the name in documents.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Organization => "organization",
            Self::Project => "project",
        }
    }
}

/// The declaration of an event type. Documents, filters, the event types of webhook endpoints and
/// tests are derived from it.
#[derive(Clone, Copy)]
pub struct EventType {
    /// Name on the wire, such as `v1.project.paused`.
    pub name: &'static str,
    /// The change, in one sentence.
    pub summary: &'static str,
    /// The subject.
    pub scope: EventScope,
    /// Whether this server appends such events. The others are declared because the contract has
    /// them.
    pub is_emitted: bool,
    schema: fn(&mut SchemaGenerator) -> Schema,
    sample: fn() -> Value,
}

impl EventType {
    /// Returns the declaration of a type with the payload `P`.
    pub(super) const fn of<P: EventPayload>(
        name: &'static str,
        scope: EventScope,
        summary: &'static str,
    ) -> Self {
        Self {
            name,
            summary,
            scope,
            is_emitted: true,
            schema: P::json_schema,
            sample: sample::<P>,
        }
    }

    /// Returns the declaration of a type that this server never appends.
    pub(super) const fn never_emitted(self) -> Self {
        Self {
            is_emitted: false,
            ..self
        }
    }

    /// Returns the schema of the payload, without the fields that all events have.
    pub fn payload_schema(&self) -> Schema {
        (self.schema)(&mut SchemaGenerator::default())
    }

    /// Returns a payload for tests of receivers, without the fields that all events have.
    pub fn sample_payload(&self) -> Map<String, Value> {
        match (self.sample)() {
            Value::Object(fields) => fields,
            _ => Map::new(),
        }
    }
}

impl PartialEq for EventType {
    /// Compares the names, which are unique.
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for EventType {}

impl std::fmt::Debug for EventType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

fn sample<P: EventPayload>() -> Value {
    serde_json::to_value(P::sample()).unwrap_or_default()
}

/// The payload of one event type, without the fields that all events have.
pub trait EventPayload: Serialize + JsonSchema + Sized {
    /// The type of the event.
    const TYPE: EventType;

    /// Returns a payload as documents and tests of receivers show it.
    fn sample() -> Self;

    /// Returns the event about a project or branch.
    fn about(&self, project: &Project) -> NewEvent {
        self.about_ref(project.organization, &project.reference)
    }

    /// Returns the event about the project or branch of this ref.
    fn about_ref(&self, organization: OrganizationId, reference: &ProjectRef) -> NewEvent {
        NewEvent::new(organization, Some(reference.clone()), self)
    }

    /// Returns the event about an organization.
    fn about_organization(&self, organization: OrganizationId) -> NewEvent {
        NewEvent::new(organization, None, self)
    }
}
