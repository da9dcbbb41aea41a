//! Recovery after an interrupted process, and removal of garbage.

use std::collections::HashSet;

use gantry_base::ids::ProjectRef;

use super::crashed::mark_all_crashed;
use crate::{
    control::{context::ControlContext, projects::warm_pool},
    platform::error::{Context, Error},
};

/// Deletes the contents of the trash in small batches whenever it is filled.
pub async fn empty_trash(context: ControlContext) {
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
pub async fn recover_on_startup(context: &ControlContext) -> Result<(), Error> {
    collect_garbage(context).await?;
    mark_outdated(context).await?;
    mark_all_crashed(context, None).await
}

/// Marks projects with the schemas and grants of another version of Gantry, and those with
/// conflicts, which may be resolved.
async fn mark_outdated(context: &ControlContext) -> Result<(), Error> {
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

/// Stops the servers of clusters that were rebuilt on other nodes. Returns their
/// projects: the clusters are kept.
async fn stop_superseded(context: &ControlContext) -> Result<Vec<ProjectRef>, Error> {
    let doing = "stopping clusters that were rebuilt elsewhere";
    let sql = "select p.ref from superseded_clusters s join projects p on p.id = s.project_id where s.node = $1";
    let rows = context.db.query(sql, &[&context.settings.node]).await;
    let mut kept = Vec::new();
    for row in rows.context(doing)? {
        let project: ProjectRef = row.get::<_, &str>(0).parse().context(doing)?;
        if context.driver.exists(&project).await.context(doing)? {
            context.driver.stop_at_once(&project).await.context(doing)?;
            tracing::warn!(%project, "the project was rebuilt on another node; its cluster here is kept, and stays stopped");
        }
        kept.push(project);
    }
    Ok(kept)
}

/// Removes unfinished copies and clusters without a row.
async fn collect_garbage(context: &ControlContext) -> Result<(), Error> {
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
    known.extend(stop_superseded(context).await?);
    context
        .driver
        .collect_garbage(&known)
        .await
        .context("clearing the data folder")?;
    context.reconciler.trash_filled();
    Ok(())
}
