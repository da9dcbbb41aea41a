//! Batches of lines to deliver, with the JSON form of a line, and failed deliveries.

use std::time::Duration;

use gantry_base::ids::ProjectRef;
use gantry_logs::event::{Event, Value as AttributeValue};
use serde_json::{Map, Value, json};

/// Lines to deliver.
#[derive(Debug)]
pub(in crate::api::log_drains) struct OutgoingBatch<'a> {
    pub(in crate::api::log_drains) project: &'a ProjectRef,
    /// Idempotency key: drain, store and number of the first line. Retries repeat it.
    pub(in crate::api::log_drains) id: String,
    pub(in crate::api::log_drains) events: &'a [Event],
}

/// A failed delivery. The text contains no secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub(in crate::api::log_drains) struct DeliveryError {
    pub(in crate::api::log_drains) text: String,
    /// Whether the target rejects the content, so that a smaller batch may be accepted.
    pub(in crate::api::log_drains) refused: bool,
    /// The pause that the target asks for.
    pub(in crate::api::log_drains) retry_after: Option<Duration>,
}

impl DeliveryError {
    /// Returns an error of the target or of the connection.
    pub(super) fn retry(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            refused: false,
            retry_after: None,
        }
    }

    /// Returns the error of a rejected content.
    pub(super) fn refused(text: impl Into<String>) -> Self {
        Self {
            refused: true,
            ..Self::retry(text)
        }
    }
}

fn attribute(value: &AttributeValue) -> Value {
    match value {
        AttributeValue::Boolean(value) => (*value).into(),
        AttributeValue::Integer(value) => (*value).into(),
        AttributeValue::Float(value) => (*value).into(),
        AttributeValue::Text(value) => value.as_str().into(),
    }
}

/// Returns the attributes of a line as nested objects: the key `request.path` becomes a field of
/// `request`. A key below one that has a value itself stays dotted.
pub(super) fn metadata(event: &Event) -> Map<String, Value> {
    let mut object = Map::new();
    for (key, value) in event.attributes.iter() {
        insert_nested(&mut object, key, attribute(value));
    }
    object
}

fn insert_nested(object: &mut Map<String, Value>, key: &str, value: Value) {
    if let Some((first, rest)) = key.split_once('.')
        && !first.is_empty()
        && !rest.is_empty()
    {
        let inner = object
            .entry(first)
            .or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(inner) = inner {
            return insert_nested(inner, rest, value);
        }
    }
    object.insert(key.to_owned(), value);
}

/// Returns a line as JSON object.
pub(super) fn line(project: &ProjectRef, event: &Event) -> Value {
    json!({
        "id": event.id,
        "timestamp": event.timestamp,
        "event_message": event.message,
        "source": event.source_name(),
        "severity": event.severity.as_str(),
        "project": project.as_str(),
        "metadata": metadata(event),
    })
}

#[cfg(test)]
mod tests {
    use gantry_logs::event::{Attributes, Source};

    use super::*;

    #[test]
    fn line_has_nested_metadata() {
        let mut attributes = Attributes::default();
        for (key, value) in [
            ("a", "scalar"),
            ("a.b", "below a scalar"),
            ("request.headers.host", "h"),
            ("request.path", "/x"),
        ] {
            attributes.add(key, AttributeValue::Text(value.into()));
        }
        attributes.add("n", AttributeValue::Integer(3));
        let project = "abcdefghijklmnopqrst".parse().unwrap();
        let event = Event::new(
            "i".into(),
            1_500_000,
            Source::Edge,
            "GET".into(),
            attributes,
        );
        assert_eq!(
            line(&project, &event),
            json!({
                "id": "i", "timestamp": 1_500_000, "event_message": "GET", "source": "edge_logs",
                "severity": "INFO", "project": "abcdefghijklmnopqrst",
                "metadata": {
                    "a": "scalar", "a.b": "below a scalar", "n": 3,
                    "request": { "headers": { "host": "h" }, "path": "/x" },
                },
            })
        );
    }
}
