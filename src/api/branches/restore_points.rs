//! Points before a merge to which the parent can be restored.

use std::sync::Arc;

use async_trait::async_trait;

use crate::{
    api::context::ApiContext,
    platform::{access::Project, error::Error},
};

/// Makes restore points. Backups register one at start-up; without it, merges make none.
#[async_trait]
pub trait RestorePointHook: Send + Sync {
    /// Makes a point with this name, unless the project has it already, so that an interrupted
    /// merge can be repeated. Returns `false` if the project keeps no backups.
    ///
    /// An error ends the merge before it changes the parent.
    async fn make(&self, project: &Project, name: &str) -> Result<bool, Error>;
}

impl ApiContext {
    /// Registers the maker of restore points, once.
    pub fn set_restore_points(&self, hook: Arc<dyn RestorePointHook>) {
        // A second one is ignored.
        let _ = self.restore_points.set(hook);
    }
}

/// Makes the point of a merge. Returns its name, or `None` without backups.
pub(super) async fn make(
    context: &ApiContext,
    project: &Project,
    run: &str,
) -> Result<Option<String>, Error> {
    let Some(hook) = context.restore_points.get() else {
        return Ok(None);
    };
    let name = format!("merge-{run}");
    Ok(hook.make(project, &name).await?.then_some(name))
}
