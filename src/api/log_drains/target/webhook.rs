//! Delivery to a webhook: a JSON array of lines in a `POST` request.
//!
//! A header field `webhook-secret` of the settings is not sent. With it, requests are signed as the
//! Standard Webhooks specification 1.0.0 defines: `webhook-id`, `webhook-timestamp` and
//! `webhook-signature: v1,<base64>`, an HMAC-SHA256 of id, timestamp and body as sent.

use aws_lc_rs::hmac;
use base64::{Engine, prelude::BASE64_STANDARD};
use gantry_base::clock::Clock;
use http::{HeaderMap, HeaderName, HeaderValue};
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
    },
};

const SECRET: HeaderName = HeaderName::from_static("webhook-secret");
const ID: HeaderName = HeaderName::from_static("webhook-id");
const TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

pub(in crate::api::log_drains) struct WebhookTarget {
    sender: HttpSender,
    headers: HeaderMap,
    key: Option<hmac::Key>,
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
            key: secret.map(|secret| signing_key(secret.as_bytes())),
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
        let timestamp = self.clock.now().timestamp().to_string();
        if let Some(key) = &self.key {
            let signature = sign(key, &batch.id, &timestamp, &body);
            headers.extend(HeaderValue::try_from(signature).map(|value| (SIGNATURE, value)));
        }
        headers.extend(HeaderValue::try_from(&batch.id).map(|value| (ID, value)));
        headers.extend(HeaderValue::try_from(timestamp).map(|value| (TIMESTAMP, value)));
        self.sender.post(headers, "application/json", body).await
    }
}

/// Returns the key of a secret: base64 after `whsec_`, otherwise the bytes themselves.
fn signing_key(secret: &[u8]) -> hmac::Key {
    let decoded = secret
        .strip_prefix(b"whsec_")
        .and_then(|encoded| BASE64_STANDARD.decode(encoded).ok());
    hmac::Key::new(hmac::HMAC_SHA256, decoded.as_deref().unwrap_or(secret))
}

fn sign(key: &hmac::Key, id: &str, timestamp: &str, body: &[u8]) -> String {
    let mut context = hmac::Context::with_key(key);
    for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
        context.update(part);
    }
    format!("v1,{}", BASE64_STANDARD.encode(context.sign()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signature_matches_the_example_of_the_specification() {
        let key = signing_key(b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
        let signature = sign(
            &key,
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            "1614265330",
            br#"{"test": 2432232314}"#,
        );
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }
}
