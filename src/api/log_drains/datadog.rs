//! Delivery to Datadog: `POST /api/v2/logs`.

/// Regions, as in the settings.
pub(super) const REGIONS: &[&str] = &["US1", "US3", "US5", "EU", "AP1", "AP2", "US1-FED"];
