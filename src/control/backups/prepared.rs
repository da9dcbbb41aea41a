//! Clusters that are prepared before the end of their log is known: a project that moves to this
//! node is stopped only for the rest.

use std::collections::HashMap;

use gantry_base::ids::ProjectId;
use gantry_node::clusters::{ClusterSpec, UnfinishedCluster};
use parking_lot::Mutex;

use super::{archive, error::BackupError, manifest::Manifest, restore};
use crate::control::context::ControlContext;

/// Clusters with the files of a base backup, by project. A restart discards them, and the restore
/// reads the files again.
#[derive(Debug, Default)]
pub(super) struct PreparedClusters(Mutex<HashMap<ProjectId, PreparedCluster>>);

#[derive(Debug)]
struct PreparedCluster {
    base: i64,
    unfinished: UnfinishedCluster,
}

impl PreparedClusters {
    /// Takes the cluster of a project out. `None` if there is none from this base backup.
    pub(super) fn take(&self, project: ProjectId, base: i64) -> Option<UnfinishedCluster> {
        let prepared = self.0.lock().remove(&project)?;
        (prepared.base == base).then_some(prepared.unfinished)
    }
}

/// Writes the files of a base backup for a cluster that a restore completes later. The caller
/// bounds the number of projects.
pub(in crate::control) async fn prepare(
    context: &ControlContext,
    project: ProjectId,
    cluster: &ClusterSpec,
    base: i64,
) -> Result<(), BackupError> {
    discard(context, project);
    let reference = &cluster.project;
    let store = archive::store_of(context, &context.backups, project, reference).await?;
    let manifest = Manifest::get(&store, base).await?;
    let cluster = ClusterSpec {
        major: manifest.major,
        ..cluster.clone()
    };
    let unfinished = restore::prepare(&context.driver, &store, &manifest, &cluster).await?;
    let prepared = PreparedCluster { base, unfinished };
    let mut clusters = context.backups.prepared.0.lock();
    clusters.insert(project, prepared);
    Ok(())
}

/// Discards the prepared clusters of all projects but these.
pub(in crate::control) fn retain(context: &ControlContext, projects: &[ProjectId]) {
    let mut clusters = context.backups.prepared.0.lock();
    let discarded: Vec<_> = clusters
        .extract_if(|project, _| !projects.contains(project))
        .collect();
    drop(clusters);
    drop(discarded);
}

/// Discards the prepared cluster of a project, if there is one.
fn discard(context: &ControlContext, project: ProjectId) {
    let discarded = context.backups.prepared.0.lock().remove(&project);
    // Its files are removed without the lock.
    drop(discarded);
}
