//! Files of single projects that a lost node held.

use std::{collections::BTreeMap, fs, io};

use gantry_base::ids::{ProjectId, ProjectRef};
use uuid::Uuid;

use super::{
    content::{FolderContent, Node},
    error::{InstallationError, Result},
    files,
    objects::InstallationStore,
};
use crate::{control::context::ControlContext, platform::error::Context};

/// Restores the sources of the functions of a project that was rebuilt on this node, from the store
/// of backups. Those of an interrupted attempt are replaced. Does nothing for other projects.
pub(in crate::control) async fn restore_sources(
    context: &ControlContext,
    (id, project): (ProjectId, &ProjectRef),
) -> Result<()> {
    let sql =
        "select node from superseded_clusters where project_id = $1 order by since desc limit 1";
    let rows = context.db.query(sql, &[&id.0]).await;
    let rows = rows.context("finding the earlier node of a project")?;
    let Some(lost) = rows.first().map(|row| row.get::<_, Uuid>(0)) else {
        return Ok(());
    };
    let store = context.backups.store()?;
    let store = InstallationStore::new(store.clone(), &context.settings.sealing)?;
    let Some(node) = Node::get(&store, lost).await? else {
        return Ok(());
    };
    let below = format!("{}/{project}/", files::FUNCTIONS);
    let sources: BTreeMap<String, FolderContent> = node
        .folders
        .into_iter()
        .filter(|(path, _)| path.starts_with(&below))
        .collect();
    let home = context.home.dir();
    for path in sources.keys() {
        let folder = home.join(path);
        match fs::remove_dir_all(&folder) {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
                return Err(InstallationError::File {
                    path: folder,
                    cause,
                });
            }
            _ => {}
        }
    }
    files::restore(home, &store, &sources).await
}
