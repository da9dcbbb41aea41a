//! Recovery after an interrupted process, and removal of garbage.

use std::collections::HashSet;

use gantry_base::ids::ProjectRef;

use super::mark_all_crashed;
use crate::{
    data_plane::{context::DataPlaneContext, projects::warm_pool},
    platform::error::{Context, Error},
};

/// Deletes the contents of the trash in small batches whenever it is filled.
pub async fn empty_trash(context: DataPlaneContext) {
    loop {
        context.reconciler.trash.notified().await;
        loop {
            match context.driver.empty_trash().await {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(%error, "trash could not be emptied; retrying after the next removal");
                    break;
                }
            }
        }
    }
}

/// Repairs the state that an interrupted process left, before requests are served: removes garbage,
/// and marks outdated grants and crashed servers.
pub async fn recover_on_startup(context: &DataPlaneContext) -> Result<(), Error> {
    collect_garbage(context).await?;
    mark_outdated(context).await?;
    mark_all_crashed(context, None).await
}

/// Marks projects with the schemas and grants of another version of Gantry, and those with
/// conflicts, which may be resolved.
async fn mark_outdated(context: &DataPlaneContext) -> Result<(), Error> {
    let sql = "update projects set outdated = true \
               where node = $1 and desired <> 'removed' and not outdated and (grants is distinct from $2 or platform_conflicts is not null)";
    context
        .db
        .query(
            sql,
            &[&context.settings.node, &context.driver.platform_version()],
        )
        .await
        .context("looking for older projects")
        .map(drop)
}

/// Removes unfinished copies and clusters without a row.
async fn collect_garbage(context: &DataPlaneContext) -> Result<(), Error> {
    let sql = "select ref from projects where node = $1 and (status <> 'REMOVED' or held_until is not null)";
    let rows = context
        .db
        .query(sql, &[&context.settings.node])
        .await
        .context("reading the projects of this node")?;
    let mut known = rows
        .iter()
        .map(|row| row.get::<_, &str>(0).parse())
        .collect::<Result<HashSet<ProjectRef>, _>>()
        .context("reading a ref")?;
    known.extend(warm_pool::review(context).await?);
    context
        .driver
        .collect_garbage(&known)
        .await
        .context("clearing the data folder")?;
    context.reconciler.trash_filled();
    Ok(())
}
