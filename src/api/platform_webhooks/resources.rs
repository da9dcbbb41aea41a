//! Requests and responses.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::control::platform_webhooks::{endpoint::WebhookEndpoint, history::WebhookDelivery};

/// Replaces values of header fields in responses. In an update it stands for the stored value.
pub(super) const REDACTED: &str = "[redacted]";

/// The only value of `type` of endpoints.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "WebhookEndpointType")]
pub(super) enum EndpointType {
    Endpoint,
}

/// An event type that an endpoint receives.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "WebhookEventType")]
pub(super) struct SubscribedType {
    /// Name of an event type, or `*` for all, also future ones.
    pub(super) r#type: String,
}

/// An endpoint.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "WebhookEndpoint")]
pub(super) struct EndpointResource {
    r#type: EndpointType,
    id: Uuid,
    attributes: EndpointAttributes,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "WebhookEndpointAttributes")]
struct EndpointAttributes {
    id: Uuid,
    url: String,
    enabled: bool,
    description: Option<String>,
    event_types: Vec<SubscribedType>,
    /// Header fields of requests. Values are replaced by `[redacted]`.
    custom_headers: BTreeMap<String, &'static str>,
    /// The user that created it.
    created_by: Uuid,
    created_at: DateTime<Utc>,
    /// Time until which requests are also signed with the secret before the last rotation.
    #[serde(skip_serializing_if = "Option::is_none")]
    previous_secret_expires_at: Option<DateTime<Utc>>,
}

impl EndpointResource {
    /// Returns the resource without secrets.
    pub(super) fn new(endpoint: WebhookEndpoint, now: DateTime<Utc>) -> Self {
        let types = endpoint.event_types.into_iter();
        let headers = endpoint.secrets.headers.into_keys();
        let previous = endpoint.secrets.previous.filter(|it| now < it.until);
        Self {
            r#type: EndpointType::Endpoint,
            id: endpoint.id,
            attributes: EndpointAttributes {
                id: endpoint.id,
                url: endpoint.url,
                enabled: endpoint.enabled,
                description: endpoint.description,
                event_types: types.map(|r#type| SubscribedType { r#type }).collect(),
                custom_headers: headers.map(|name| (name, REDACTED)).collect(),
                created_by: endpoint.created_by,
                created_at: endpoint.created_at,
                previous_secret_expires_at: previous.map(|it| it.until),
            },
        }
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "CreateWebhookEndpoint")]
pub(super) struct CreateEndpointRequest {
    pub(super) data: CreateEndpointData,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "CreateWebhookEndpointData")]
pub(super) struct CreateEndpointData {
    #[expect(dead_code, reason = "there is one kind")]
    r#type: EndpointType,
    pub(super) attributes: CreateEndpointAttributes,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "CreateWebhookEndpointAttributes")]
pub(super) struct CreateEndpointAttributes {
    /// An `https://` or `http://` URL with a domain name that resolves to a public address.
    #[schemars(url)]
    pub(super) url: String,
    #[schemars(length(min = 1))]
    pub(super) event_types: Vec<SubscribedType>,
    /// `whsec_` and base64, or the bytes themselves. Never returned.
    #[schemars(length(min = 8, max = 64))]
    pub(super) signing_secret: String,
    /// Header fields of requests.
    #[serde(default)]
    pub(super) custom_headers: BTreeMap<String, String>,
    #[schemars(length(max = 512))]
    pub(super) description: Option<String>,
    #[serde(default = "enabled_default")]
    pub(super) enabled: bool,
}

fn enabled_default() -> bool {
    true
}

impl std::fmt::Debug for CreateEndpointAttributes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CreateEndpointAttributes")
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "UpdateWebhookEndpoint")]
pub(super) struct UpdateEndpointRequest {
    pub(super) data: UpdateEndpointData,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "UpdateWebhookEndpointData")]
pub(super) struct UpdateEndpointData {
    #[expect(dead_code, reason = "there is one kind")]
    r#type: EndpointType,
    pub(super) attributes: UpdateEndpointAttributes,
}

/// Absent attributes stay.
#[derive(Default, Deserialize, JsonSchema)]
#[schemars(rename = "UpdateWebhookEndpointAttributes")]
#[expect(
    clippy::option_option,
    reason = "an absent attribute and null are different"
)]
pub(super) struct UpdateEndpointAttributes {
    /// An `https://` or `http://` URL with a domain name that resolves to a public address.
    #[schemars(url)]
    pub(super) url: Option<String>,
    #[schemars(length(min = 1))]
    pub(super) event_types: Option<Vec<SubscribedType>>,
    /// `whsec_` and base64, or the bytes themselves. Never returned.
    #[schemars(length(min = 8, max = 64))]
    pub(super) signing_secret: Option<String>,
    /// Time for which requests are also signed with the former secret, in seconds. Only with
    /// `signing_secret`.
    #[schemars(range(max = 86_400))]
    pub(super) signing_secret_overlap_secs: Option<u32>,
    /// Header fields of requests; they replace the earlier ones. `[redacted]` keeps a stored value,
    /// as long as scheme, host and port of the URL stay.
    pub(super) custom_headers: Option<BTreeMap<String, String>>,
    /// Null removes it.
    #[serde(default, deserialize_with = "crate::api::keys::present")]
    #[schemars(with = "Option<String>", length(max = 512))]
    pub(super) description: Option<Option<String>>,
    pub(super) enabled: Option<bool>,
}

impl std::fmt::Debug for UpdateEndpointAttributes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UpdateEndpointAttributes")
    }
}

/// A delivery: one attempt to deliver an event.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "WebhookDelivery")]
pub(super) struct DeliveryResource {
    r#type: DeliveryType,
    id: Uuid,
    attributes: DeliveryAttributes,
}

/// The only value of `type` of deliveries.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "WebhookDeliveryType")]
enum DeliveryType {
    Delivery,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "WebhookDeliveryAttributes")]
struct DeliveryAttributes {
    id: Uuid,
    /// Equal for all attempts.
    event_id: Uuid,
    /// `pending`, `success`, `failure` or `skipped`.
    status: String,
    /// Status of the response; 0 without one.
    response_code: i32,
    /// Header fields of the response, up to 8 KiB.
    response_headers: Map<String, Value>,
    /// Body of the response, up to 16 KiB; null without one, or if it has more than 64 KiB.
    response_body: Option<String>,
    /// `unexpected_status`, `timeout`, `address_refused`, `connection_failed` or
    /// `endpoint_disabled`.
    error_code: Option<String>,
    error_message: Option<String>,
    /// Time of the attempt; of a pending one the earliest time.
    attempt_timestamp: DateTime<Utc>,
    event: DeliveredEvent,
}

/// The event of a delivery.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "WebhookDeliveryEvent")]
struct DeliveredEvent {
    r#type: Value,
    payload: Value,
    timestamp: Value,
}

impl From<WebhookDelivery> for DeliveryResource {
    fn from(delivery: WebhookDelivery) -> Self {
        let mut event = delivery.event;
        Self {
            r#type: DeliveryType::Delivery,
            id: delivery.id,
            attributes: DeliveryAttributes {
                id: delivery.id,
                event_id: delivery.event_id,
                status: delivery.status,
                response_code: delivery.response_code,
                response_headers: delivery.response_headers,
                response_body: delivery.response_body,
                error_code: delivery.error_code,
                error_message: delivery.error_message,
                attempt_timestamp: delivery.attempted_at,
                event: DeliveredEvent {
                    r#type: event["type"].take(),
                    payload: event["payload"].take(),
                    timestamp: event["timestamp"].take(),
                },
            },
        }
    }
}

/// A test of an endpoint. Without a type, one that it is subscribed to is sent.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(rename = "TestWebhookEndpoint")]
pub(super) struct TestRequest {
    pub(super) data: Option<TestData>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "TestWebhookEndpointData")]
pub(super) struct TestData {
    #[expect(dead_code, reason = "there is one kind")]
    r#type: TestEventType,
    pub(super) attributes: SubscribedType,
}

/// The only value of `type` of a test.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "TestWebhookEventType")]
enum TestEventType {
    Event,
}

/// An accepted test or retry.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "WebhookIngress")]
pub(super) struct IngressResource {
    r#type: IngressType,
    /// Id of the delivery, which shows the result.
    id: Uuid,
}

/// The only value of `type` of an accepted test or retry.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "WebhookIngressType")]
enum IngressType {
    Ingress,
}

impl IngressResource {
    pub(super) const fn new(delivery: Uuid) -> Self {
        Self {
            r#type: IngressType::Ingress,
            id: delivery,
        }
    }
}
