//! Reads everything that a recovery needs, without writing anything.

use std::collections::HashSet;

use uuid::Uuid;

use super::{
    content::{self, ControlSnapshot, Node},
    error::Result,
    objects::InstallationStore,
};
use crate::{
    control::backups::{
        BackupStore,
        error::BackupError,
        manifest::Manifest,
        store::{ProjectKey, ProjectStore},
    },
    platform::{error::Context, sealing::SealingKey},
};

/// Returns what is missing or damaged of a snapshot.
pub async fn snapshot(
    store: &InstallationStore,
    snapshot: &ControlSnapshot,
) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    let chunks: HashSet<&String> = snapshot.chunks().collect();
    chunks_of(store, chunks, &mut problems).await?;
    Ok(problems)
}

/// Reads the files of all nodes.
pub async fn nodes(store: &InstallationStore, problems: &mut Vec<String>) -> Result<Vec<Node>> {
    let mut found = Vec::new();
    for node in store.list(content::NODES).await? {
        let node = node
            .parse::<Uuid>()
            .context("reading the nodes of a store")?;
        match Node::get(store, node).await {
            Ok(node) => found.extend(node),
            Err(error) if error.is_damage() => problems.push(error.to_string()),
            Err(error) => return Err(error),
        }
    }
    let chunks = found.iter().flat_map(Node::chunks).collect();
    chunks_of(store, chunks, problems).await?;
    Ok(found)
}

async fn chunks_of(
    store: &InstallationStore,
    chunks: HashSet<&String>,
    problems: &mut Vec<String>,
) -> Result<()> {
    for chunk in chunks {
        match content::read_chunk(store, chunk).await {
            Ok(_) => {}
            Err(error) if error.is_damage() => problems.push(error.to_string()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Opens the key of every project and reads the newest base backup. Returns the number of projects.
/// Whether the data can be recovered is found by the server, which restores backups for a test.
pub async fn projects(
    store: &BackupStore,
    sealing: &SealingKey,
    problems: &mut Vec<String>,
) -> std::result::Result<usize, BackupError> {
    let projects = store.projects().await?;
    for project in &projects {
        let read = async {
            let key = ProjectKey::open(sealing, project, &store.key(project).await?)?;
            newest_base(&store.project(project, key)).await
        };
        match read.await {
            Ok(()) => {}
            Err(error @ (BackupError::Store { .. } | BackupError::Platform(_))) => {
                return Err(error);
            }
            Err(error) => problems.push(format!("project {project}: {error}")),
        }
    }
    Ok(projects.len())
}

async fn newest_base(store: &ProjectStore) -> std::result::Result<(), BackupError> {
    let listed = store.list("bases").await?;
    let newest = listed
        .iter()
        .rev()
        .find_map(|(name, _)| name.strip_suffix(".manifest")?.parse().ok());
    let Some(newest) = newest else {
        return Err(BackupError::Refused("it has no base backup yet".to_owned()));
    };
    let manifest = Manifest::get(store, newest).await?;
    for pack in &manifest.packs {
        store.get(pack).await?;
    }
    Ok(())
}
