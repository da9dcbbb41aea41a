//! Delivery to Datadog: `POST /api/v2/logs`.

use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};
use url::Url;

use super::{
    delivery::{DeliveryError, OutgoingBatch, metadata},
    drain_client::DrainClient,
    http::HttpSender,
};
use crate::{
    api::log_drains::{
        settings::{Settings, invalid, text},
        state::Options,
    },
    platform::{error::Error, outbound::uses::LOG_DRAIN},
};

/// Regions, as in the settings.
pub(in crate::api::log_drains) const REGIONS: &[&str] =
    &["US1", "US3", "US5", "EU", "AP1", "AP2", "US1-FED"];

const API_KEY: HeaderName = HeaderName::from_static("dd-api-key");

pub(in crate::api::log_drains) struct DatadogTarget {
    sender: HttpSender,
    api_key: HeaderValue,
}

/// Returns the URL that receives the logs of a region.
fn intake(region: &str) -> &'static str {
    match region {
        "US3" => "https://http-intake.logs.us3.datadoghq.com/api/v2/logs",
        "US5" => "https://http-intake.logs.us5.datadoghq.com/api/v2/logs",
        "EU" => "https://http-intake.logs.datadoghq.eu/api/v2/logs",
        "AP1" => "https://http-intake.logs.ap1.datadoghq.com/api/v2/logs",
        "AP2" => "https://http-intake.logs.ap2.datadoghq.com/api/v2/logs",
        "US1-FED" => "https://http-intake.logs.ddog-gov.com/api/v2/logs",
        _ => "https://http-intake.logs.datadoghq.com/api/v2/logs",
    }
}

impl DatadogTarget {
    pub(super) fn new(
        settings: &Settings,
        options: &Options,
        client: &DrainClient,
    ) -> Result<Self, Error> {
        let region = text(settings, "region").unwrap_or_default();
        let url = match &options.datadog_url {
            Some(template) => template.replace("{region}", region),
            None => intake(region).to_owned(),
        };
        let url = Url::parse(&url).map_err(|_| invalid("region", "has no URL"))?;
        let mut api_key = text(settings, "api_key")
            .and_then(|key| HeaderValue::from_str(key).ok())
            .ok_or_else(|| invalid("api_key", "is not a value of an HTTP header field"))?;
        api_key.set_sensitive(true);
        Ok(Self {
            sender: HttpSender::new(client, &LOG_DRAIN, url, true),
            api_key,
        })
    }

    pub(super) async fn send(&self, batch: &OutgoingBatch<'_>) -> Result<(), DeliveryError> {
        let mut lines = Vec::with_capacity(batch.events.len());
        for event in batch.events {
            lines.push(json!({
                "ddsource": "Supabase",
                "ddtags": format!("project:{}", batch.project),
                "hostname": batch.project.as_str(),
                "service": event.source_name(),
                "status": event.severity.as_str().to_ascii_lowercase(),
                "timestamp": event.timestamp.div_euclid(1000),
                "message": event.message,
                "id": event.id,
                "metadata": metadata(event),
            }));
        }
        let body = self.sender.encode(Value::from(lines).to_string().into())?;
        let headers = HeaderMap::from_iter([(API_KEY, self.api_key.clone())]);
        self.sender.post(headers, "application/json", body).await
    }
}
