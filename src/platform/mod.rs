//! How any operation is served: HTTP, access decisions, rate limits, audit log, notifications and
//! telemetry. Knows no resource.

pub mod access;
pub mod audit;
pub mod context;
pub mod http;
pub mod notifications;
pub mod rate_limits;
pub mod tables;
pub mod telemetry;
