//! Rate limits (specification §8).
//!
//! - [`RateLimiter`]: the entry point for requests
//! - [`Memory`]: counters of one process
//! - [`Shared`]: counters shared by several processes, in the control database or in Valkey, and
//!   the rules for an outage of the store
//! - [`Policies`], [`overrides`]: the limits of operations, and their overrides by the operator

mod breaker;
pub(super) mod counter;
mod journal;
mod limits;
mod memory;
pub mod overrides;
mod policy;
mod postgres;
mod redis;
mod refusal_cache;
mod shared;
pub mod snapshot;
mod store;
mod store_health;
mod window;

pub use counter::{CounterKey, CounterScope, Identifier, LimitDecision, Quota, Quotas};
pub use journal::Journal;
pub use limits::{DecisionFuture, RateLimiter};
pub use memory::{CounterCapacity, CounterRecord, Kind, Memory};
pub use policy::{Policies, Policy, PolicyContext};
pub use postgres::{DECISION, reclaim};
pub use shared::{Shared, StoreMetrics};
pub use store::{Options, Store, StoreError};
pub use window::{
    ANALYTICS, CONTEXT, DOMAINS, LOOK_UPS, Limit, LimitKey, MIGRATIONS, REGISTRATIONS, STANDARD,
    STANDARD_BY_BODY, STANDARD_BY_CALLER, UNCOUNTED, WEBHOOK_TESTS, WINDOWS_MAX, Window, per,
};
