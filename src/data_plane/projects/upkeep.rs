//! Work on projects that has a time but no hurry: what is left after upgrades, and the end of the
//! hold of removed projects.

use std::time::Duration;

use super::{held, upgrades};
use crate::data_plane::context::DataPlaneContext;

/// The interval between passes.
const INTERVAL: Duration = Duration::from_secs(30);

/// Runs until it is aborted.
pub async fn run(context: DataPlaneContext) {
    let mut tick = tokio::time::interval(INTERVAL);
    loop {
        tick.tick().await;
        pass(&context).await;
    }
}

/// Does the work that is due, if this process holds the lease.
pub async fn pass(context: &DataPlaneContext) {
    if !context.lease.leads() {
        return;
    }
    if let Err(error) = held::purge_expired(context).await {
        tracing::warn!(%error, "cannot end the hold of removed projects");
    }
    if let Err(error) = upgrades::finish(context).await {
        tracing::warn!(%error, "cannot read upgrades");
    }
}
