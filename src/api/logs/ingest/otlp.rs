//! OpenTelemetry log records in protobuf and JSON: the fields of
//! `opentelemetry.proto.collector.logs.v1` that log lines store.

use chrono::{DateTime, Utc};
use gantry_logs::{
    event,
    event::{Attributes, Event, Source},
};
use prost::{Message, Oneof};
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::{Map, Value as Json};

use super::{ID_BYTES_MAX, LINES_MAX, source, too_many, within_reach};
use crate::platform::error::Error;

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Export {
    #[prost(message, repeated, tag = "1")]
    resource_logs: Vec<ResourceLogs>,
}

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ResourceLogs {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_logs: Vec<ScopeLogs>,
}

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ScopeLogs {
    #[prost(message, optional, tag = "1")]
    scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    log_records: Vec<LogRecord>,
}

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Scope {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LogRecord {
    #[prost(fixed64, tag = "1")]
    #[serde(deserialize_with = "number")]
    time_unix_nano: u64,
    #[prost(int32, tag = "2")]
    severity_number: i32,
    #[prost(string, tag = "3")]
    severity_text: String,
    #[prost(message, optional, tag = "5")]
    body: Option<AnyValue>,
    #[prost(message, repeated, tag = "6")]
    attributes: Vec<KeyValue>,
    #[prost(bytes = "vec", tag = "9")]
    #[serde(deserialize_with = "hex_bytes")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "10")]
    #[serde(deserialize_with = "hex_bytes")]
    span_id: Vec<u8>,
    #[prost(fixed64, tag = "11")]
    #[serde(deserialize_with = "number")]
    observed_time_unix_nano: u64,
}

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message, Deserialize)]
struct AnyValue {
    #[prost(oneof = "Kind", tags = "1, 2, 3, 4, 5, 6, 7")]
    #[serde(flatten)]
    kind: Option<Kind>,
}

#[derive(Clone, PartialEq, Oneof, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(
    clippy::enum_variant_names,
    reason = "as the protocol spells them in JSON"
)]
enum Kind {
    #[prost(string, tag = "1")]
    StringValue(String),
    #[prost(bool, tag = "2")]
    BoolValue(bool),
    #[prost(int64, tag = "3")]
    IntValue(#[serde(deserialize_with = "number")] i64),
    #[prost(double, tag = "4")]
    DoubleValue(f64),
    #[prost(message, tag = "5")]
    ArrayValue(ArrayValue),
    #[prost(message, tag = "6")]
    KvlistValue(KvlistValue),
    #[prost(bytes, tag = "7")]
    BytesValue(#[serde(deserialize_with = "text_bytes")] Vec<u8>),
}

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default)]
struct ArrayValue {
    #[prost(message, repeated, tag = "1")]
    values: Vec<AnyValue>,
}

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default)]
struct KvlistValue {
    #[prost(message, repeated, tag = "1")]
    values: Vec<KeyValue>,
}

/// Parses a 64-bit number: a string in OTLP JSON, and a number from senders that deviate from it.
fn number<'de, D: Deserializer<'de>, T: TryFrom<i128>>(from: D) -> Result<T, D::Error> {
    let number = match Json::deserialize(from)? {
        Json::String(text) => text.parse().ok(),
        Json::Number(number) => number
            .as_i64()
            .map(i128::from)
            .or_else(|| number.as_u64().map(i128::from)),
        _ => None,
    };
    number
        .and_then(|number: i128| T::try_from(number).ok())
        .ok_or_else(|| D::Error::custom("expected an integer of 64 bits"))
}

fn hex_bytes<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
    hex::decode(String::deserialize(from)?).map_err(|_| D::Error::custom("expected hex digits"))
}

/// Base64 is stored unchanged, because attributes are text.
fn text_bytes<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
    String::deserialize(from).map(String::into_bytes)
}

impl From<AnyValue> for Json {
    fn from(value: AnyValue) -> Self {
        match value.kind {
            None => Self::Null,
            Some(Kind::StringValue(it)) => it.into(),
            Some(Kind::BoolValue(it)) => it.into(),
            Some(Kind::IntValue(it)) => it.into(),
            Some(Kind::DoubleValue(it)) => it.into(),
            Some(Kind::ArrayValue(it)) => {
                Self::Array(it.values.into_iter().map(Self::from).collect())
            }
            Some(Kind::KvlistValue(it)) => Self::Object(object(it.values)),
            Some(Kind::BytesValue(it)) => String::from_utf8_lossy(&it).into_owned().into(),
        }
    }
}

fn object(list: Vec<KeyValue>) -> Map<String, Json> {
    list.into_iter()
        .map(|entry| (entry.key, entry.value.map_or(Json::Null, Json::from)))
        .collect()
}

/// Encoding of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    Protobuf,
    Json,
}

/// Parses the lines of a body. `named` is the source of all lines; without it, each resource's
/// `service.name` is used.
pub(super) fn events(
    body: &[u8],
    encoding: Encoding,
    named: Option<Source>,
    now: DateTime<Utc>,
    mut id: impl FnMut() -> String,
) -> Result<Vec<Event>, Error> {
    let export = match encoding {
        Encoding::Protobuf => {
            Export::decode(body).map_err(|_| Error::invalid("body", "is not an export of logs"))?
        }
        Encoding::Json => serde_json::from_slice(body)
            .map_err(|error| Error::invalid("body", error.to_string()))?,
    };
    let mut events = Vec::new();
    for ResourceLogs {
        resource,
        scope_logs,
    } in export.resource_logs
    {
        let resource = object(resource.unwrap_or_default().attributes);
        let named = match (named, resource.get("service.name")) {
            (Some(named), _) => named,
            (None, Some(Json::String(name))) => service(name)?,
            (None, _) => {
                return Err(Error::invalid(
                    "x-source",
                    "Required, as a resource has no service.name",
                ));
            }
        };
        for ScopeLogs { scope, log_records } in scope_logs {
            let scope = scope.unwrap_or_default().name;
            for record in log_records {
                if events.len() == LINES_MAX {
                    return Err(too_many());
                }
                events.push(line(record, named, (&resource, &scope), now, &mut id));
            }
        }
    }
    Ok(events)
}

/// Returns the source for a `service.name`. A service that is not a source keeps its name.
fn service(name: &str) -> Result<Source, Error> {
    match source(name) {
        Err(_) if event::is_source_name(name) => Ok(Source::Other),
        known => known,
    }
}

fn line(
    record: LogRecord,
    source: Source,
    (resource, scope): (&Map<String, Json>, &str),
    now: DateTime<Utc>,
    id: &mut impl FnMut() -> String,
) -> Event {
    let nanos = if record.time_unix_nano > 0 {
        record.time_unix_nano
    } else {
        record.observed_time_unix_nano
    };
    let at = i64::try_from(nanos / 1_000)
        .ok()
        .filter(|at| *at > 0 && within_reach(*at, now))
        .unwrap_or(now.timestamp_micros());
    let mut body = object(record.attributes);
    let message = match record.body.map(Json::from) {
        Some(Json::String(text)) => text,
        Some(Json::Object(fields)) => {
            let message = fields
                .get("event_message")
                .or_else(|| fields.get("message"))
                .and_then(Json::as_str)
                .map(str::to_owned);
            let message = message.unwrap_or_else(|| Json::Object(fields.clone()).to_string());
            body.extend(fields);
            message
        }
        Some(Json::Null) | None => String::new(),
        Some(other) => other.to_string(),
    };
    let severity = if record.severity_text.is_empty() {
        level(record.severity_number)
    } else {
        &record.severity_text
    };
    let texts = [
        ("severity_text", severity.to_owned()),
        ("scope.name", scope.to_owned()),
    ];
    let ids = [
        ("trace_id", hex::encode(record.trace_id)),
        ("span_id", hex::encode(record.span_id)),
    ];
    for (key, value) in texts
        .into_iter()
        .chain(ids)
        .filter(|(_, value)| !value.is_empty())
    {
        body.insert(key.to_owned(), value.into());
    }
    // The unique id of a record, by the semantic conventions of OpenTelemetry.
    let given = match body.get("log.record.uid") {
        Some(Json::String(given)) if (1..=ID_BYTES_MAX).contains(&given.len()) => {
            Some(given.clone())
        }
        _ => None,
    };
    if !resource.is_empty() {
        body.insert("resource".to_owned(), Json::Object(resource.clone()));
    }
    let id = given.unwrap_or_else(id);
    Event::new(id, at, source, message, Attributes::of_json(&body))
}

/// Returns the name of a severity number.
const fn level(number: i32) -> &'static str {
    match number {
        1..=4 => "TRACE",
        5..=8 => "DEBUG",
        9..=12 => "INFO",
        13..=16 => "WARN",
        17..=20 => "ERROR",
        21..=24 => "FATAL",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sample() -> Json {
        json!({ "resourceLogs": [{
            "resource": { "attributes": [{ "key": "service.name", "value": { "stringValue": "storage_logs" } }] },
            "scopeLogs": [{ "scope": { "name": "lib" }, "logRecords": [{
                "timeUnixNano": "1795252500000000000", "severityNumber": 17, "body": { "stringValue": "m" },
                "traceId": "5b8efff798038103d269b633813fc60c", "flags": 1,
                "attributes": [
                    { "key": "res.statusCode", "value": { "intValue": "500" } },
                    { "key": "tags", "value": { "arrayValue": { "values": [{ "boolValue": true }, { "doubleValue": 1.5 }] } } },
                    { "key": "req", "value": { "kvlistValue": { "values": [{ "key": "method", "value": { "stringValue": "GET" } }] } } },
                ],
            }] }],
        }] })
    }

    fn read(body: &[u8], encoding: Encoding, named: Option<Source>) -> Result<Vec<Event>, Error> {
        events(
            body,
            encoding,
            named,
            "2026-11-21T09:15:03Z".parse().unwrap(),
            || "made".to_owned(),
        )
    }

    #[test]
    fn both_encodings_say_the_same() {
        let export: Export = serde_json::from_value(sample()).unwrap();
        let json = sample().to_string().into_bytes();
        let protobuf = export.encode_to_vec();
        let events = read(&json, Encoding::Json, None).unwrap();
        assert_eq!(read(&protobuf, Encoding::Protobuf, None).unwrap(), events);
        let line = &events[0];
        assert_eq!(
            (line.source, line.timestamp, line.severity.as_str()),
            (Source::Storage, 1_795_252_500_000_000, "ERROR")
        );
        let all: Vec<_> = line
            .attributes
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        let expected = [
            "req.method=GET",
            "res.statusCode=500",
            "resource.service.name=storage_logs",
            "scope.name=lib",
            "severity_text=ERROR",
            "tags=[true,1.5]",
            "trace_id=5b8efff798038103d269b633813fc60c",
        ];
        assert_eq!(
            (line.message.as_str(), all),
            ("m", expected.map(str::to_owned).to_vec())
        );
        assert_eq!(
            read(&json, Encoding::Json, Some(Source::Auth)).unwrap()[0].source,
            Source::Auth
        );
    }

    #[test]
    fn the_wire_form_is_that_of_the_protocol() {
        // resource_logs { scope_logs { log_records { time 1e9, severity 9, body "hi" } } }
        let record =
            [b"\x09\x00\xca\x9a\x3b\x00\x00\x00\x00\x10\x09\x2a\x04\x0a\x02hi".as_slice()].concat();
        let wrap = |inner: &[u8]| [&[0x12, u8::try_from(inner.len()).unwrap()], inner].concat();
        let scope = wrap(&wrap(&record)[..]);
        let body = [&[0x0a, u8::try_from(scope.len()).unwrap()], &scope[..]].concat();
        let line = read(&body, Encoding::Protobuf, Some(Source::Auth))
            .unwrap()
            .remove(0);
        assert_eq!(
            (
                line.message.as_str(),
                line.timestamp,
                line.severity.as_str()
            ),
            ("hi", 1_000_000, "INFO")
        );
    }

    #[test]
    fn unknown_service_and_given_id_are_kept() {
        let mut sample = sample();
        let resource = &mut sample["resourceLogs"][0];
        resource["resource"]["attributes"][0]["value"]["stringValue"] = "checkout".into();
        let attributes = &mut resource["scopeLogs"][0]["logRecords"][0]["attributes"];
        let id = json!({ "key": "log.record.uid", "value": { "stringValue": "01J" } });
        attributes.as_array_mut().unwrap().push(id);
        let body = sample.to_string();
        let event = read(body.as_bytes(), Encoding::Json, None)
            .unwrap()
            .remove(0);
        assert_eq!(
            (event.source_name(), event.id.as_str()),
            ("checkout", "01J")
        );
        let reserved = body.replace("checkout", "management_logs");
        assert!(read(reserved.as_bytes(), Encoding::Json, None).is_err());
    }

    #[test]
    fn what_is_no_export_is_refused() {
        assert!(
            read(b"{", Encoding::Json, None).is_err()
                && read(&[0xff], Encoding::Protobuf, None).is_err()
        );
        let nobody = json!({ "resourceLogs": [{ "scopeLogs": [] }] }).to_string();
        assert!(read(nobody.as_bytes(), Encoding::Json, None).is_err());
        assert_eq!(read(b"{}", Encoding::Json, None).unwrap(), []);
    }
}
