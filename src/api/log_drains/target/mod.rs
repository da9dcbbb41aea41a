//! Targets of drains: each turns a batch of lines into requests of its protocol.

pub(in crate::api::log_drains) mod datadog;
pub(in crate::api::log_drains) mod delivery;
pub(in crate::api::log_drains) mod drain_client;
mod http;
mod loki;
mod otlp;
mod s3;
mod syslog;
mod webhook;

use std::time::Duration;

use gantry_base::clock::{Clock, Entropy};
use gantry_logs::store::TailLimit;

use self::{
    datadog::DatadogTarget,
    delivery::{DeliveryError, OutgoingBatch},
    drain_client::DrainClient,
    loki::LokiTarget,
    otlp::OtlpTarget,
    s3::S3Target,
    syslog::SyslogTarget,
    webhook::WebhookTarget,
};
use super::{
    settings::{BackendType, Settings},
    state::Options,
};
use crate::platform::error::Error;

/// Maximum number of lines of a batch.
const BATCH_LINES_MAX: usize = 250;
/// Approximate maximum size of a batch in memory, in bytes.
const BATCH_BYTES_MAX: usize = 1 << 20;
/// Time for which lines are collected.
const BATCH_WAIT: Duration = Duration::from_secs(1);

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
        client: &DrainClient,
        (clock, entropy): (&Clock, &Entropy),
    ) -> Result<Self, Error> {
        Ok(match backend {
            BackendType::Webhook => {
                let target = WebhookTarget::new(settings, client, clock.clone())?;
                Self::Webhook(Box::new(target))
            }
            BackendType::Datadog => Self::Datadog(DatadogTarget::new(settings, options, client)?),
            BackendType::Loki => Self::Loki(LokiTarget::new(settings, client)?),
            BackendType::Otlp => Self::Otlp(OtlpTarget::new(settings, client)?),
            BackendType::S3 => {
                let random = entropy.clone();
                Self::S3(S3Target::new(settings, client, clock.clone(), random)?)
            }
            BackendType::Syslog => Self::Syslog(SyslogTarget::new(settings, client)?),
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
