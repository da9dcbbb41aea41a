//! Proxies through which clients reach projects.
//!
//! They ask the control plane for routes, keys and access, and the node for servers and services,
//! through traits of their own: `ProjectDirectory` and `ServiceRunner`, `SessionDirectory` and
//! `SessionServers`.

pub mod accepted_keys;
pub mod node_streams;
pub mod postgres_proxy;
pub mod service_caller;
pub mod service_proxy;
pub mod unavailable;
