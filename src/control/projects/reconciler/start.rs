//! The start of a server with the limits and settings of its compute size, and those of its owner.

use serde_json::Value;

use super::plan::{ClusterPlan, READY_TIMEOUT, timed};
use crate::{
    control::{
        context::ControlContext,
        metrics::Step,
        projects::{InstanceSize, parameters},
    },
    platform::error::{Context, Error},
};

/// The compute size of a server, and its settings by PostgreSQL's names.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StartSettings {
    size: InstanceSize,
    pub(super) values: Vec<(String, String)>,
}

impl StartSettings {
    /// Returns the settings of a size with those that the owner chose instead. `size` is absent in
    /// rows of servers that an older version started without settings of a size.
    pub(super) fn new(context: &ControlContext, size: Option<&str>, chosen: &Value) -> Self {
        let size = size.and_then(InstanceSize::of_code);
        let size = size.filter(|size| !size.is_smallest());
        let size = size.unwrap_or(InstanceSize::Micro);
        let mut values = parameters::of_size(context, size);
        for (name, value) in chosen.as_object().into_iter().flatten() {
            values.insert(name.clone(), parameters::text(value));
        }
        let values = values.into_iter().collect();
        Self { size, values }
    }
}

/// Starts the server with these settings unless it runs, and waits until it accepts connections.
pub(super) async fn start(
    context: &ControlContext,
    project: &ClusterPlan,
    settings: &StartSettings,
) -> Result<(), Error> {
    let driver = &context.driver;
    let reference = &project.cluster.project;
    if let Some(smallest) = driver.resource_limits() {
        driver.bound(reference, settings.size.limits(smallest));
    }
    let is_plain = settings.values.is_empty() && project.started.values.is_empty();
    if !is_plain || project.changed {
        driver
            .configure(reference, &settings.values)
            .await
            .context("writing settings")?;
    }
    timed(context, Step::Start, driver.start(reference)).await?;
    timed(
        context,
        Step::Ready,
        driver.wait_ready(reference, READY_TIMEOUT),
    )
    .await
}
