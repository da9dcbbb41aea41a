//! Logs and usage of projects: collection, storage and SQL queries.
//!
//! Sources push to bounded queues and never block. Collectors drain the queues in batches, also
//! before the server stops. [`gantry_logs`] stores and queries the lines.

pub(super) mod analytics;
mod database_calls;
mod edge;
mod functions;
mod health;
pub mod ingest;
pub mod keys;
pub mod management;
mod metrics;
mod objects;
pub mod operations;
mod postgres;
mod query;
mod queue;
mod requests;
mod services;
pub mod usage;
pub mod window;

use std::time::Duration;

use gantry_base::repeat;
use tokio::task::JoinSet;

pub use self::analytics::{Analytics, Options};
pub(crate) use self::health::METRICS;
use crate::api::context::ApiContext;

/// Interval between maintenance runs of log files.
const UPKEEP: Duration = Duration::from_secs(1);

/// Starts the collectors and the readers of PostgreSQL server logs.
pub fn spawn(context: &ApiContext, tasks: &mut JoinSet<()>) {
    let shutdown = || context.analytics.shutdown();
    tasks.spawn(edge::run(context.clone(), shutdown()));
    tasks.spawn(services::run(context.clone(), shutdown()));
    tasks.spawn(management::run(context.clone(), shutdown()));
    tasks.spawn(database_calls::run(context.clone(), shutdown()));
    tasks.spawn(functions::run(context.clone(), shutdown()));
    tasks.spawn(postgres::run(context.clone(), shutdown()));
    tasks.spawn(upkeep(context.clone()));
}

/// Writes appended lines to files and removes expired files, periodically.
async fn upkeep(context: ApiContext) {
    let gauges = health::LogGauges::new(&context.metrics);
    repeat::every(UPKEEP, || async {
        context.analytics.upkeep(context.clock.now()).await;
        gauges.set(&context.analytics).await;
    })
    .await;
}
