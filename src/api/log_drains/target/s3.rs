//! Delivery to a bucket: each batch is an object of gzip-compressed NDJSON.
//!
//! The name of an object is derived from the first line of the batch. A batch that is sent again
//! replaces the object, and contains at least its lines.

use std::time::Duration;

use chrono::{DateTime, Utc};
use gantry_base::clock::{Clock, Entropy};
use gantry_logs::object_store::path::Path;
use serde_json::Value;
use url::Url;

use super::{
    delivery::{DeliveryError, OutgoingBatch, line},
    drain_client::DrainClient,
    http::{connection_problem, gzip},
};
use crate::{
    api::log_drains::settings::{Settings, invalid, text},
    platform::{
        error::{Context, Error},
        object_store::{Credentials, Place, RequestTimeouts, S3, Style},
        outbound::{OutboundError, uses::LOG_DRAIN},
    },
};

/// Maximum number of lines of an object.
pub(super) const OBJECT_LINES_MAX: usize = 5000;
/// Approximate maximum size of its lines in memory, in bytes.
pub(super) const OBJECT_BYTES_MAX: usize = 4 << 20;
/// Time for which lines are collected, unless the settings have another.
const WAIT_DEFAULT: u64 = 5000;

pub(in crate::api::log_drains) struct S3Target {
    store: S3,
    wait: Duration,
    endpoint: Url,
    client: DrainClient,
}

/// Checks what becomes part of a host name or path.
pub(super) fn check(settings: &Settings) -> Result<(), Error> {
    let bucket = text(settings, "s3_bucket").unwrap_or_default();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    let ends = |at: Option<u8>| at.is_some_and(|byte| byte.is_ascii_alphanumeric());
    let is_bucket = bucket.len() <= 63
        && bucket.bytes().all(plain)
        && ends(bucket.bytes().next())
        && ends(bucket.bytes().last());
    if !is_bucket {
        return Err(invalid(
            "s3_bucket",
            "expected letters, digits, `.`, `-` and `_`, 63 at most",
        ));
    }
    let region = text(settings, "storage_region").unwrap_or_default();
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if !region.bytes().all(word) {
        return Err(invalid(
            "storage_region",
            "expected letters, digits and `-`",
        ));
    }
    let id = text(settings, "access_key_id").unwrap_or_default();
    if !id.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(invalid("access_key_id", "expected ASCII characters"));
    }
    endpoint(settings, bucket, region).map(drop)
}

/// Returns the endpoint and the addressing style of the bucket.
fn endpoint(settings: &Settings, bucket: &str, region: &str) -> Result<(Url, Style), Error> {
    if let Some(endpoint) = text(settings, "endpoint") {
        let url = Url::parse(endpoint).map_err(|_| invalid("endpoint", "expected a URL"))?;
        if url.query().is_some() {
            return Err(invalid("endpoint", "contains a query"));
        }
        return Ok((url, Style::Path));
    }
    let url = Url::parse(&format!("https://s3.{region}.amazonaws.com"))
        .map_err(|_| invalid("storage_region", "is not a region"))?;
    // The wildcard certificate of Amazon does not cover bucket names with dots.
    let style = if bucket.contains('.') {
        Style::Path
    } else {
        Style::Host
    };
    Ok((url, style))
}

impl S3Target {
    pub(super) fn new(
        settings: &Settings,
        client: &DrainClient,
        clock: Clock,
        entropy: Entropy,
    ) -> Result<Self, Error> {
        let field = |name: &str| text(settings, name).unwrap_or_default().to_owned();
        let (bucket, region) = (field("s3_bucket"), field("storage_region"));
        let (endpoint, style) = endpoint(settings, &bucket, &region)?;
        let place = Place {
            endpoint: endpoint.clone(),
            region,
            style,
            bucket,
            prefix: String::new(),
            credentials: Credentials {
                access_key_id: field("access_key_id"),
                secret_access_key: field("secret_access_key").into(),
                session_token: None,
            },
            root: None,
        };
        let wait = settings
            .get("batch_timeout")
            .and_then(Value::as_u64)
            .unwrap_or(WAIT_DEFAULT);
        let timeouts = RequestTimeouts::default();
        let store = S3::restricted(place, clock, entropy, timeouts, client.client.policy())
            .context("making the client of a bucket")?;
        Ok(Self {
            store,
            wait: Duration::from_millis(wait),
            endpoint,
            client: client.clone(),
        })
    }

    pub(super) fn wait(&self) -> Duration {
        self.wait
    }

    pub(super) async fn send(&self, batch: &OutgoingBatch<'_>) -> Result<(), DeliveryError> {
        self.check_endpoint()
            .await
            .map_err(|error| connection_problem(&error))?;
        let mut lines = Vec::new();
        for event in batch.events {
            lines.extend(line(batch.project, event).to_string().into_bytes());
            lines.push(b'\n');
        }
        let path = object_name(batch);
        let replaced = self.store.replace(&path, gzip(&lines)?).await;
        let problem = replaced.err().map(|failure| failure.summary());
        let failure = problem.map(|text| OutboundError::Unreachable(text.to_owned()));
        let client = &self.client.client;
        client.count_exchange(&LOG_DRAIN, failure.as_ref());
        problem.map_or(Ok(()), |text| Err(DeliveryError::retry(text)))
    }

    /// Rejects an endpoint that the policy refuses: the failure of the store would not give the
    /// reason.
    async fn check_endpoint(&self) -> Result<(), OutboundError> {
        let DrainClient { client, owner } = &self.client;
        let host = self.endpoint.host_str().unwrap_or_default();
        let checked = match client.policy().check_literal(&self.endpoint) {
            Ok(()) => client.check_host(*owner, host).await,
            Err(refused) => Err(OutboundError::Refused(refused.to_string())),
        };
        if let Err(error) = &checked {
            client.count_exchange(&LOG_DRAIN, Some(error));
        }
        checked
    }
}

/// Returns the name of the object: project, day and hour of the first line, and the batch.
fn object_name(batch: &OutgoingBatch<'_>) -> Path {
    let first = batch.events.first().map_or(0, |event| event.timestamp);
    let at = DateTime::<Utc>::from_timestamp_micros(first).unwrap_or_default();
    Path::from(format!(
        "{}/{}/{}.ndjson.gz",
        batch.project,
        at.format("%Y-%m-%d/%H"),
        batch.id
    ))
}
