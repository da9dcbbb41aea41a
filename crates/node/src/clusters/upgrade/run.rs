//! The renames of an upgrade, and of its reversal.

use std::path::{Path, PathBuf};

use gantry_base::ids::ProjectRef;
use tokio::sync::watch;

use crate::{
    background::blocking,
    clusters::{local_driver::LocalDriver, spec::ClusterSpec},
    error::Result,
    files,
};

/// An upgrade to make.
#[derive(Debug)]
pub struct UpgradeSpec {
    /// The cluster, with the major version after the upgrade.
    pub cluster: ClusterSpec,
    /// Number of the upgrade among those of the project.
    pub number: i32,
}

/// A step of an upgrade that has been completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpgradeStep {
    /// The server was stopped.
    Started,
    /// The empty cluster of the new version was made.
    NewClusterMade,
    /// The original was copied, and the copy can be upgraded.
    Copied,
    /// `pg_upgrade` was started.
    UpgradeBegun,
    /// The upgraded cluster was checked in quarantine.
    Upgraded,
    /// The original was moved aside.
    OriginalMoved,
    /// The upgraded cluster is in its place.
    InPlace,
}

/// The folders of an upgrade within that of the project.
#[derive(Debug, Clone)]
pub(super) struct UpgradeFolders {
    data: PathBuf,
    ready: PathBuf,
    before: PathBuf,
}

impl UpgradeFolders {
    fn of(driver: &LocalDriver, project: &ProjectRef, number: i32) -> Self {
        let place = driver.home().project(project);
        Self {
            data: place.join("data"),
            ready: place.join(format!("upgrade-{number}")),
            before: place.join(format!("before-{number}")),
        }
    }

    /// Performs the renames that are left. Blocks.
    fn swap(&self, progress: &watch::Sender<UpgradeStep>) -> Result<()> {
        let (ready, before) = (self.ready.join("data"), self.before.join("data"));
        if ready.exists() {
            if self.data.exists() {
                files::make_dir(&self.before, 0o711)?;
                files::commit(&self.data, &before)?;
            }
            progress.send_replace(UpgradeStep::OriginalMoved);
            files::commit(&ready, &self.data)?;
        }
        files::remove_tree(&self.ready)?;
        progress.send_replace(UpgradeStep::InPlace);
        Ok(())
    }

    /// Puts the original back in its place, if it was moved, and removes the upgraded cluster.
    /// Blocks.
    fn swap_back(&self) -> Result<()> {
        let before = self.before.join("data");
        if before.exists() {
            if self.data.exists() {
                // Not yet complete, or discarded: its name is that of a cluster to swap in.
                files::remove_tree(&self.ready)?;
                files::make_dir(&self.ready, 0o711)?;
                files::commit(&self.data, &self.ready.join("discarded"))?;
            }
            files::commit(&before, &self.data)?;
        }
        files::remove_tree(&self.ready)?;
        files::remove_tree(&self.before)
    }
}

impl LocalDriver {
    /// Stops a cluster and replaces it by an upgraded copy. Continues an interrupted upgrade of the
    /// same number, and leaves an upgraded cluster as it is.
    ///
    /// After an error, [`Self::revert_upgrade`] restores the original.
    pub async fn upgrade(
        &self,
        spec: &UpgradeSpec,
        progress: &watch::Sender<UpgradeStep>,
    ) -> Result<()> {
        let project = &spec.cluster.project;
        let folders = UpgradeFolders::of(self, project, spec.number);
        // Made while the server still runs, because the first one takes seconds.
        self.template_of(spec.cluster.major).await?;
        self.stop(project).await?;
        let (ready, before) = (folders.ready.join("data"), folders.before.join("data"));
        if !ready.exists() && !before.exists() {
            progress.send_replace(UpgradeStep::Started);
            let source = self.existing(project)?;
            let built = self.build_upgraded(spec, &source, progress).await?;
            let target = folders.ready.clone();
            let committed = {
                let built = built.clone();
                blocking(move || files::commit(&built.join("new"), &target)).await
            };
            blocking(move || files::remove_tree(&built)).await?;
            committed?;
        }
        let swap = {
            let progress = progress.clone();
            blocking(move || folders.swap(&progress))
        };
        swap.await
    }

    /// Stops a cluster, and puts the original of an upgrade back in its place. Succeeds if it is
    /// there.
    pub async fn revert_upgrade(&self, project: &ProjectRef, number: i32) -> Result<()> {
        self.stop(project).await?;
        let folders = UpgradeFolders::of(self, project, number);
        blocking(move || folders.swap_back()).await
    }

    /// Deletes the original of a completed upgrade. Succeeds if there is none.
    pub async fn discard_original(&self, project: &ProjectRef, number: i32) -> Result<()> {
        let before = UpgradeFolders::of(self, project, number).before;
        crate::background::idle(move || files::remove_tree(&before)).await
    }

    /// Ends all processes of an attempt.
    pub(super) async fn end_processes(&self, place: &Path, name: &str) {
        // Tried again at the next start.
        if let Err(error) = self.stop_servers(place, name).await {
            tracing::warn!(cluster = name, %error, "processes of an upgrade did not end");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn folders(place: &std::path::Path) -> UpgradeFolders {
        UpgradeFolders {
            data: place.join("data"),
            ready: place.join("upgrade-1"),
            before: place.join("before-1"),
        }
    }

    fn write(folder: &std::path::Path, text: &str) {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join("PG_VERSION"), text).unwrap();
    }

    /// Every state that an interruption leaves leads to the upgraded cluster, and from there and
    /// from each of them back to the original.
    #[test]
    fn swap_and_swap_back_complete_from_every_interruption() {
        let steps: [fn(&UpgradeFolders); 3] = [
            |_| (),
            |at| {
                fs::create_dir(&at.before).unwrap();
            },
            |at| {
                fs::create_dir(&at.before).unwrap();
                fs::rename(&at.data, at.before.join("data")).unwrap();
            },
        ];
        for step in steps {
            for back in [false, true] {
                let dir = tempfile::tempdir().unwrap();
                let at = folders(dir.path());
                write(&at.data, "15");
                write(&at.ready.join("data"), "17");
                step(&at);
                let read = || fs::read_to_string(at.data.join("PG_VERSION")).unwrap();
                if !back {
                    let progress = watch::Sender::new(UpgradeStep::Upgraded);
                    at.swap(&progress).unwrap();
                    at.swap(&progress).unwrap();
                    assert_eq!((read().as_str(), at.ready.exists()), ("17", false));
                    assert_eq!(*progress.borrow(), UpgradeStep::InPlace);
                }
                at.swap_back().unwrap();
                at.swap_back().unwrap();
                assert_eq!(read(), "15");
                assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
            }
        }
    }
}
