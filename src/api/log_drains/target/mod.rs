//! Targets of drains: each turns a batch of lines into requests of its protocol.

pub(in crate::api::log_drains) mod datadog;
mod http;
mod loki;
mod otlp;
mod s3;
mod syslog;
mod webhook;

use std::time::Duration;

use ::http::{HeaderMap, HeaderName, HeaderValue};
use gantry_base::{
    clock::{Clock, Entropy},
    ids::ProjectRef,
};
use gantry_logs::{
    event::{Event, Value as AttributeValue},
    store::TailLimit,
};
use serde_json::{Map, Value, json};
use url::Url;

use self::{
    datadog::DatadogTarget, loki::LokiTarget, otlp::OtlpTarget, s3::S3Target, syslog::SyslogTarget,
    webhook::WebhookTarget,
};
use super::{
    Options,
    config::{BackendType, Settings},
};
use crate::platform::error::Error;

/// Maximum number of lines of a batch.
const BATCH_LINES_MAX: usize = 250;
/// Approximate maximum size of a batch in memory, in bytes.
const BATCH_BYTES_MAX: usize = 1 << 20;
/// Time for which lines are collected.
const BATCH_WAIT: Duration = Duration::from_secs(1);

/// Lines to deliver.
#[derive(Debug)]
pub(super) struct OutgoingBatch<'a> {
    pub(super) project: &'a ProjectRef,
    /// Idempotency key: drain, store and number of the first line. Retries repeat it.
    pub(super) id: String,
    pub(super) events: &'a [Event],
}

/// A failed delivery. The text contains no secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub(super) struct DeliveryError {
    pub(super) text: String,
    /// Whether the target rejects the content, so that a smaller batch may be accepted.
    pub(super) refused: bool,
    /// The pause that the target asks for.
    pub(super) retry_after: Option<Duration>,
}

impl DeliveryError {
    /// Returns an error of the target or of the connection.
    fn retry(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            refused: false,
            retry_after: None,
        }
    }

    /// Returns the error of a rejected content.
    fn refused(text: impl Into<String>) -> Self {
        Self {
            refused: true,
            ..Self::retry(text)
        }
    }
}

/// The target of a drain.
pub(super) enum Target {
    Webhook(Box<WebhookTarget>),
    Datadog(DatadogTarget),
    Loki(LokiTarget),
    Otlp(OtlpTarget),
    S3(S3Target),
    Syslog(SyslogTarget),
}

impl Target {
    /// Creates the target of checked settings. Sends nothing.
    pub(super) fn new(
        backend: BackendType,
        settings: &Settings,
        options: &Options,
        (clock, entropy): (&Clock, &Entropy),
    ) -> Result<Self, Error> {
        let policy = &options.outbound;
        Ok(match backend {
            BackendType::Webhook => {
                let target = WebhookTarget::new(settings, policy, clock.clone())?;
                Self::Webhook(Box::new(target))
            }
            BackendType::Datadog => Self::Datadog(DatadogTarget::new(settings, options)?),
            BackendType::Loki => Self::Loki(LokiTarget::new(settings, policy)?),
            BackendType::Otlp => Self::Otlp(OtlpTarget::new(settings, policy)?),
            BackendType::S3 => {
                let random = entropy.clone();
                Self::S3(S3Target::new(settings, policy, clock.clone(), random)?)
            }
            BackendType::Syslog => Self::Syslog(SyslogTarget::new(settings, policy)?),
            _ => return Err(Error::invalid("backend_type", "is not supported")),
        })
    }

    /// Returns the size of batches, and the time for which their lines are collected.
    pub(super) fn batching(&self) -> (TailLimit, Duration) {
        let (lines, bytes, wait) = match self {
            Self::S3(target) => (s3::OBJECT_LINES_MAX, s3::OBJECT_BYTES_MAX, target.wait()),
            _ => (BATCH_LINES_MAX, BATCH_BYTES_MAX, BATCH_WAIT),
        };
        (TailLimit { lines, bytes }, wait)
    }

    /// Sends a batch. Returns after the target confirmed it.
    pub(super) async fn send(&self, batch: &OutgoingBatch<'_>) -> Result<(), DeliveryError> {
        match self {
            Self::Webhook(target) => target.send(batch).await,
            Self::Datadog(target) => target.send(batch).await,
            Self::Loki(target) => target.send(batch).await,
            Self::Otlp(target) => target.send(batch).await,
            Self::S3(target) => target.send(batch).await,
            Self::Syslog(target) => target.send(batch).await,
        }
    }
}

/// Checks settings with valid fields.
pub(super) fn check_settings(backend: BackendType, settings: &Settings) -> Result<(), Error> {
    match backend {
        BackendType::S3 => s3::check(settings),
        BackendType::Syslog => syslog::check(settings),
        _ => Ok(()),
    }
}

/// Returns the error of an invalid field.
fn invalid(field: &str, problem: &'static str) -> Error {
    Error::invalid(format!("data.attributes.config.{field}"), problem)
}

fn text<'a>(settings: &'a Settings, field: &str) -> Option<&'a str> {
    settings.get(field).and_then(Value::as_str)
}

fn flag(settings: &Settings, field: &str) -> Option<bool> {
    settings.get(field).and_then(Value::as_bool)
}

fn url(settings: &Settings, field: &str) -> Result<Url, Error> {
    text(settings, field)
        .and_then(|text| Url::parse(text).ok())
        .ok_or_else(|| invalid(field, "expected a URL"))
}

/// Returns the header fields of the settings. Their values are marked as sensitive.
fn headers(settings: &Settings) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let given = settings.get("headers").and_then(Value::as_object);
    for (name, value) in given.into_iter().flatten() {
        let name = HeaderName::from_bytes(name.as_bytes());
        let value = value.as_str().map(HeaderValue::from_str);
        if let (Ok(name), Some(Ok(mut value))) = (name, value) {
            value.set_sensitive(true);
            headers.insert(name, value);
        }
    }
    headers
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
fn metadata(event: &Event) -> Map<String, Value> {
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
fn line(project: &ProjectRef, event: &Event) -> Value {
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
