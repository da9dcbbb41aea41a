//! State of projects in the control context, between calls. Nothing here uses the context.

pub mod lease;
pub mod reconciler;
pub mod uses;
pub mod warm_pool;
pub(in crate::control) mod watch;
pub mod watchdog;
