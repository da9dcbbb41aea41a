//! Work on projects that has a time but no hurry: what is left after upgrades, and the end of the
//! hold of removed projects.

use std::time::Duration;

use gantry_base::repeat;

use super::{held, upgrades};
use crate::control::context::ControlContext;

/// The interval between passes.
const INTERVAL: Duration = Duration::from_secs(30);

/// Runs until it is aborted.
pub async fn run(context: ControlContext) {
    repeat::every(INTERVAL, || pass(&context)).await;
}

/// Does the work that is due, if this process holds the lease.
pub async fn pass(context: &ControlContext) {
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
