//! Delivery by OTLP/HTTP: an `ExportLogsServiceRequest` in protobuf or JSON.

use gantry_base::ids::ProjectRef;
use gantry_logs::event::{Event, Severity, Value as AttributeValue};
use http::HeaderMap;
use prost::{Message, Oneof};
use serde::{Serialize, Serializer};

use super::{
    delivery::{DeliveryError, OutgoingBatch},
    drain_client::DrainClient,
    http::HttpSender,
};
use crate::{
    api::log_drains::settings::{Settings, flag, headers, invalid, text, url},
    platform::{error::Error, outbound::uses::LOG_DRAIN},
};

/// Path of log exports, used if the endpoint has none.
const LOGS: &str = "/v1/logs";

#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
struct OtlpExport {
    #[prost(message, repeated, tag = "1")]
    resource_logs: Vec<OtlpResourceLogs>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
struct OtlpResourceLogs {
    #[prost(message, optional, tag = "1")]
    resource: Option<OtlpResource>,
    #[prost(message, repeated, tag = "2")]
    scope_logs: Vec<OtlpScopeLogs>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
struct OtlpResource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<OtlpAttribute>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
struct OtlpScopeLogs {
    #[prost(message, optional, tag = "1")]
    scope: Option<OtlpScope>,
    #[prost(message, repeated, tag = "2")]
    log_records: Vec<OtlpRecord>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
struct OtlpScope {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
struct OtlpRecord {
    #[prost(fixed64, tag = "1")]
    #[serde(serialize_with = "as_text")]
    time_unix_nano: u64,
    #[prost(int32, tag = "2")]
    severity_number: i32,
    #[prost(string, tag = "3")]
    severity_text: String,
    #[prost(message, optional, tag = "5")]
    body: Option<OtlpValue>,
    #[prost(message, repeated, tag = "6")]
    attributes: Vec<OtlpAttribute>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
struct OtlpAttribute {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<OtlpValue>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
struct OtlpValue {
    #[prost(oneof = "OtlpKind", tags = "1, 2, 3, 4")]
    #[serde(flatten)]
    kind: Option<OtlpKind>,
}

#[derive(Clone, PartialEq, Oneof, Serialize)]
enum OtlpKind {
    #[prost(string, tag = "1")]
    #[serde(rename = "stringValue")]
    Text(String),
    #[prost(bool, tag = "2")]
    #[serde(rename = "boolValue")]
    Boolean(bool),
    #[prost(int64, tag = "3")]
    #[serde(rename = "intValue", serialize_with = "as_text")]
    Integer(i64),
    #[prost(double, tag = "4")]
    #[serde(rename = "doubleValue")]
    Float(f64),
}

/// Writes a 64-bit number as text, as OTLP JSON requires.
fn as_text<S: Serializer>(number: &impl ToString, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&number.to_string())
}

fn string_attribute(key: &str, value: &str) -> OtlpAttribute {
    OtlpAttribute {
        key: key.to_owned(),
        value: Some(string_value(value)),
    }
}

fn string_value(value: &str) -> OtlpValue {
    OtlpValue {
        kind: Some(OtlpKind::Text(value.to_owned())),
    }
}

pub(in crate::api::log_drains) struct OtlpTarget {
    sender: HttpSender,
    headers: HeaderMap,
    json: bool,
}

impl OtlpTarget {
    pub(super) fn new(settings: &Settings, client: &DrainClient) -> Result<Self, Error> {
        let mut endpoint = url(settings, "endpoint")?;
        if endpoint.path() == "/" {
            endpoint.set_path(LOGS);
        }
        if endpoint.host_str().is_none() {
            return Err(invalid("endpoint", "expected a URL"));
        }
        let gzip = flag(settings, "gzip").unwrap_or(true);
        Ok(Self {
            sender: HttpSender::new(client, &LOG_DRAIN, endpoint, gzip),
            headers: headers(settings),
            json: text(settings, "protocol") == Some("http/json"),
        })
    }

    pub(super) async fn send(&self, batch: &OutgoingBatch<'_>) -> Result<(), DeliveryError> {
        let export = export(batch.project, batch.events);
        let (content_type, body) = if self.json {
            let body = serde_json::to_vec(&export)
                .map_err(|_| DeliveryError::retry("the lines cannot be serialized"))?;
            ("application/json", body)
        } else {
            ("application/x-protobuf", export.encode_to_vec())
        };
        let body = self.sender.encode(body)?;
        let headers = self.headers.clone();
        self.sender.post(headers, content_type, body).await
    }
}

/// Returns an export with a resource for each source, in the order of their first lines.
fn export(project: &ProjectRef, events: &[Event]) -> OtlpExport {
    let mut sources: Vec<(&str, Vec<OtlpRecord>)> = Vec::new();
    for event in events {
        let record = record(event);
        let name = event.source_name();
        match sources.iter_mut().find(|(source, _)| *source == name) {
            Some((_, records)) => records.push(record),
            None => sources.push((name, vec![record])),
        }
    }
    let resource_logs = sources
        .into_iter()
        .map(|(source, log_records)| OtlpResourceLogs {
            resource: Some(OtlpResource {
                attributes: vec![
                    string_attribute("service.name", source),
                    string_attribute("service.namespace", project.as_str()),
                ],
            }),
            scope_logs: vec![OtlpScopeLogs {
                scope: Some(OtlpScope {
                    name: "gantry".to_owned(),
                }),
                log_records,
            }],
        })
        .collect();
    OtlpExport { resource_logs }
}

fn record(event: &Event) -> OtlpRecord {
    let mut attributes = vec![string_attribute("log.record.uid", &event.id)];
    for (key, value) in event.attributes.iter() {
        let kind = match value {
            AttributeValue::Boolean(value) => OtlpKind::Boolean(*value),
            AttributeValue::Integer(value) => OtlpKind::Integer(*value),
            AttributeValue::Float(value) => OtlpKind::Float(*value),
            AttributeValue::Text(value) => OtlpKind::Text(value.clone()),
        };
        attributes.push(OtlpAttribute {
            key: key.to_owned(),
            value: Some(OtlpValue { kind: Some(kind) }),
        });
    }
    let micros = u64::try_from(event.timestamp).unwrap_or(0);
    OtlpRecord {
        time_unix_nano: micros.saturating_mul(1000),
        severity_number: severity_number(event.severity),
        severity_text: event.severity.as_str().to_owned(),
        body: Some(string_value(&event.message)),
        attributes,
    }
}

/// Returns the severity number of the OpenTelemetry log data model.
fn severity_number(severity: Severity) -> i32 {
    match severity {
        Severity::Trace => 1,
        Severity::Debug => 5,
        Severity::Info | Severity::Log => 9,
        Severity::Notice => 10,
        Severity::Warn | Severity::Warning => 13,
        Severity::Error => 17,
        Severity::Critical => 18,
        Severity::Alert => 19,
        Severity::Fatal | Severity::Panic => 21,
        Severity::Emergency => 22,
    }
}

#[cfg(test)]
mod tests {
    use gantry_logs::event::{Attributes, Source};
    use serde_json::json;

    use super::*;

    #[test]
    fn export_has_a_resource_for_each_source_in_both_encodings() {
        let project: ProjectRef = "abcdefghijklmnopqrst".parse().unwrap();
        let mut attributes = Attributes::default();
        attributes.add("status", AttributeValue::Integer(500));
        let event = Event::new("i".into(), 1_500_000, Source::Auth, "m".into(), attributes);
        let export = export(&project, &[event]);
        let expected = json!({ "resourceLogs": [{
            "resource": { "attributes": [
                { "key": "service.name", "value": { "stringValue": "auth_logs" } },
                { "key": "service.namespace", "value": { "stringValue": project.as_str() } },
            ] },
            "scopeLogs": [{ "scope": { "name": "gantry" }, "logRecords": [{
                "timeUnixNano": "1500000000", "severityNumber": 9, "severityText": "INFO",
                "body": { "stringValue": "m" },
                "attributes": [
                    { "key": "log.record.uid", "value": { "stringValue": "i" } },
                    { "key": "status", "value": { "intValue": "500" } },
                ],
            }] }],
        }] });
        assert_eq!(serde_json::to_value(&export).unwrap(), expected);
        let decoded = OtlpExport::decode(export.encode_to_vec().as_slice()).unwrap();
        assert_eq!(decoded, export);
    }
}
