//! Delivery to a webhook: a JSON array of lines in a `POST` request.
//!
//! A header field `webhook-secret` of the settings is not sent. With it, requests are signed as the
//! Standard Webhooks specification 1.0.0 defines: `webhook-id`, `webhook-timestamp` and
//! `webhook-signature: v1,<base64>`, an HMAC-SHA256 of id, timestamp and body as sent.

use gantry_base::clock::Clock;
use http::{HeaderMap, HeaderName};
use serde_json::Value;

use super::{
    delivery::{DeliveryError, OutgoingBatch, line},
    drain_client::DrainClient,
    http::HttpSender,
};
use crate::{
    api::log_drains::settings::{Settings, flag, headers, text, url},
    platform::{
        error::Error,
        outbound::uses::{HTTP2_LOG_DRAIN, LOG_DRAIN},
        webhook_signature::{self, WebhookKey},
    },
};

const SECRET: HeaderName = HeaderName::from_static("webhook-secret");

pub(in crate::api::log_drains) struct WebhookTarget {
    sender: HttpSender,
    headers: HeaderMap,
    key: Option<WebhookKey>,
    clock: Clock,
}

impl WebhookTarget {
    pub(super) fn new(
        settings: &Settings,
        client: &DrainClient,
        clock: Clock,
    ) -> Result<Self, Error> {
        let usage = match text(settings, "http") {
            Some("http2") => &HTTP2_LOG_DRAIN,
            _ => &LOG_DRAIN,
        };
        let gzip = flag(settings, "gzip").unwrap_or(false);
        let mut headers = headers(settings);
        let secret = headers.remove(SECRET);
        Ok(Self {
            sender: HttpSender::new(client, usage, url(settings, "url")?, gzip),
            key: secret.map(|secret| WebhookKey::new(secret.as_bytes())),
            headers,
            clock,
        })
    }

    pub(super) async fn send(&self, batch: &OutgoingBatch<'_>) -> Result<(), DeliveryError> {
        let lines: Vec<Value> = batch
            .events
            .iter()
            .map(|event| line(batch.project, event))
            .collect();
        let body = self.sender.encode(Value::from(lines).to_string().into())?;
        let mut headers = self.headers.clone();
        let request = (batch.id.as_str(), self.clock.now().timestamp());
        webhook_signature::add_headers(&mut headers, self.key.as_slice(), request, &body);
        self.sender.post(headers, "application/json", body).await
    }
}
