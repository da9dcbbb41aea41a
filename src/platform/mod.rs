//! How any operation is served: HTTP, access decisions, approvals, rate limits, audit log,
//! notifications, telemetry, errors, the control database, object storage and
//! requests to other servers. Knows no resource.

pub mod access;
pub mod approvals;
pub mod audit;
pub mod batch_queue;
pub mod cache;
pub mod context;
pub mod db;
pub mod error;
pub mod events;
pub mod exported_key;
pub mod http;
pub mod idempotency;
pub mod names;
pub mod notifications;
pub mod object_store;
pub mod outbound;
pub mod random_secret;
pub mod rate_limits;
pub mod sealing;
pub mod tables;
pub mod telemetry;
pub mod webhook_signature;
