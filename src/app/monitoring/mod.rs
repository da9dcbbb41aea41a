//! Monitoring: the metrics of `/metrics`, alerts about them with their runbook, and a dashboard.

pub mod alerts;
pub mod dashboard;
pub mod metrics;
#[cfg(test)]
mod tests;
