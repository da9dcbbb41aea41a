//! Types of log drains, and the values of their settings.

use std::borrow::Cow;

use http::{HeaderMap, HeaderName, HeaderValue};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use url::Url;

use crate::platform::error::Error;

/// Field of the settings in error messages.
const FIELD: &str = "data.attributes.config";

/// The settings of a drain, as JSON object.
pub(super) type Settings = Map<String, Value>;

/// The kind of target that a drain delivers to. The names are those of the contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "LogDrainType")]
#[expect(missing_docs, reason = "the words of the contract")]
pub enum BackendType {
    Postgres,
    Bigquery,
    Clickhouse,
    Webhook,
    Datadog,
    Loki,
    Sentry,
    S3,
    Axiom,
    Last9,
    Otlp,
    Syslog,
}

impl BackendType {
    /// Types by name.
    const NAMES: [(&str, Self); 12] = [
        ("postgres", Self::Postgres),
        ("bigquery", Self::Bigquery),
        ("clickhouse", Self::Clickhouse),
        ("webhook", Self::Webhook),
        ("datadog", Self::Datadog),
        ("loki", Self::Loki),
        ("sentry", Self::Sentry),
        ("s3", Self::S3),
        ("axiom", Self::Axiom),
        ("last9", Self::Last9),
        ("otlp", Self::Otlp),
        ("syslog", Self::Syslog),
    ];

    /// Returns the name.
    pub fn name(self) -> &'static str {
        Self::NAMES
            .iter()
            .find(|(_, kind)| *kind == self)
            .map_or("", |(name, _)| name)
    }

    /// Returns the type with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMES
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, kind)| *kind)
    }
}

/// Returns the error of an invalid field.
pub(super) fn invalid(name: &str, problem: impl Into<Cow<'static, str>>) -> Error {
    Error::invalid(format!("{FIELD}.{name}"), problem)
}

pub(super) fn text<'a>(settings: &'a Settings, field: &str) -> Option<&'a str> {
    settings.get(field).and_then(Value::as_str)
}

pub(super) fn flag(settings: &Settings, field: &str) -> Option<bool> {
    settings.get(field).and_then(Value::as_bool)
}

pub(super) fn url(settings: &Settings, field: &str) -> Result<Url, Error> {
    text(settings, field)
        .and_then(|text| Url::parse(text).ok())
        .ok_or_else(|| invalid(field, "expected a URL"))
}

/// Returns the header fields of the settings. Their values are marked as sensitive.
pub(super) fn headers(settings: &Settings) -> HeaderMap {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_has_a_name() {
        for (name, kind) in BackendType::NAMES {
            assert_eq!(BackendType::from_name(name), Some(kind));
            assert_eq!(kind.name(), name);
            assert_eq!(serde_json::to_value(kind).unwrap(), name);
        }
        assert_eq!(BackendType::from_name("splunk"), None);
    }
}
