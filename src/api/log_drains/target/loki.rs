//! Delivery to Grafana Loki: `POST /loki/api/v1/push` in JSON, with a stream for each source.

use std::collections::BTreeMap;

use base64::{Engine, prelude::BASE64_STANDARD};
use gantry_logs::event::Event;
use http::{HeaderMap, HeaderValue, header};
use serde_json::{Map, Value, json};

use super::{
    delivery::{DeliveryError, OutgoingBatch},
    drain_client::DrainClient,
    http::HttpSender,
};
use crate::{
    api::log_drains::settings::{Settings, headers, invalid, text, url},
    platform::{error::Error, outbound::uses::LOG_DRAIN},
};

/// Path of the push API, used if the URL has none.
const PUSH: &str = "/loki/api/v1/push";
/// Maximum number of entries of a line's structured metadata. Loki's default is 128.
const METADATA_MAX: usize = 100;
/// Maximum size of a line's structured metadata. Loki's default is 64 KiB.
const METADATA_BYTES_MAX: usize = 48 * 1024;

pub(in crate::api::log_drains) struct LokiTarget {
    sender: HttpSender,
    headers: HeaderMap,
}

impl LokiTarget {
    pub(super) fn new(settings: &Settings, client: &DrainClient) -> Result<Self, Error> {
        let mut url = url(settings, "url")?;
        if url.path() == "/" {
            url.set_path(PUSH);
        }
        let mut headers = headers(settings);
        if let Some(username) = text(settings, "username") {
            let password = text(settings, "password").unwrap_or_default();
            let credentials = BASE64_STANDARD.encode(format!("{username}:{password}"));
            let mut value = HeaderValue::try_from(format!("Basic {credentials}"))
                .map_err(|_| invalid("username", "cannot be sent"))?;
            value.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, value);
        }
        Ok(Self {
            sender: HttpSender::new(client, &LOG_DRAIN, url, true),
            headers,
        })
    }

    pub(super) async fn send(&self, batch: &OutgoingBatch<'_>) -> Result<(), DeliveryError> {
        let body = self.sender.encode(push(batch).to_string().into())?;
        let headers = self.headers.clone();
        self.sender.post(headers, "application/json", body).await
    }
}

/// Returns the body of a push.
fn push(batch: &OutgoingBatch<'_>) -> Value {
    let mut streams: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for event in batch.events {
        let nanos = i128::from(event.timestamp) * 1000;
        streams.entry(event.source_name()).or_default().push(json!([
            nanos.to_string(),
            event.message,
            structured_metadata(event)
        ]));
    }
    let streams: Vec<Value> = streams
        .into_iter()
        .map(|(source, values)| {
            json!({
                "stream": { "source": source, "project": batch.project.as_str() },
                "values": values,
            })
        })
        .collect();
    json!({ "streams": streams })
}

/// Returns the id, the severity and the attributes of a line as texts. Attributes beyond the limits
/// are left out, and `attributes_cut` says so.
fn structured_metadata(event: &Event) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("id".into(), event.id.as_str().into());
    object.insert("severity".into(), event.severity.as_str().into());
    let mut bytes = 0;
    for (key, value) in event.attributes.iter() {
        let value = value.to_string();
        bytes += key.len() + value.len();
        if object.len() >= METADATA_MAX || bytes > METADATA_BYTES_MAX {
            object.insert("attributes_cut".into(), "true".into());
            break;
        }
        object.insert(label_name(key), value.into());
    }
    object
}

/// Replaces characters that Loki does not allow in names.
fn label_name(key: &str) -> String {
    let mut name = String::with_capacity(key.len());
    if key.starts_with(|first: char| first.is_ascii_digit()) {
        name.push('_');
    }
    for character in key.chars() {
        let allowed = character.is_ascii_alphanumeric() || character == '_';
        name.push(if allowed { character } else { '_' });
    }
    name
}

#[cfg(test)]
mod tests {
    use gantry_logs::event::{Attributes, Source, Value as AttributeValue};

    use super::*;

    #[test]
    fn push_has_a_stream_for_each_source() {
        let project = "abcdefghijklmnopqrst".parse().unwrap();
        let event = |id: &str, source| {
            let mut attributes = Attributes::default();
            attributes.add("request.path", AttributeValue::Text("/x".into()));
            attributes.add("9", AttributeValue::Integer(1));
            Event::new(id.into(), 1_500_000, source, format!("m{id}"), attributes)
        };
        let events = [
            event("1", Source::Edge),
            event("2", Source::Auth),
            event("3", Source::Edge),
        ];
        let batch = OutgoingBatch {
            project: &project,
            id: String::new(),
            events: &events,
        };
        let value = |id: &str| json!(["1500000000", format!("m{id}"), { "id": id, "severity": "INFO", "request_path": "/x", "_9": "1" }]);
        let labels = |source: &str| json!({ "source": source, "project": project.as_str() });
        assert_eq!(
            push(&batch),
            json!({ "streams": [
                { "stream": labels("auth_logs"), "values": [value("2")] },
                { "stream": labels("edge_logs"), "values": [value("1"), value("3")] },
            ] })
        );
    }

    #[test]
    fn structured_metadata_is_bounded() {
        let mut attributes = Attributes::default();
        for n in 0..200 {
            attributes.add(format!("k{n}"), AttributeValue::Integer(n));
        }
        let event = Event::new("i".into(), 0, Source::Edge, String::new(), attributes);
        let metadata = structured_metadata(&event);
        assert_eq!(metadata.len(), METADATA_MAX + 1);
        assert_eq!(metadata["attributes_cut"], "true");
    }
}
