//! The steps of a copy, and its report.

use std::{fs, path::Path, time::Duration};

use gantry_base::ids::ProjectRef;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};

use super::{backup::Backup, isolation};
use crate::{
    background::blocking,
    clusters::{
        home,
        identity::{self, SystemId},
        local_driver::LocalDriver,
        online_copy::{
            isolation::{Isolation, IsolationStep},
            progress::{CopyPhase, CopyProgress},
        },
        server::process::Server,
        shutdown::ShutdownMode,
        spec::ClusterSpec,
    },
    error::{At, ClusterError, Result},
    files,
    supervisor::ProcessOwner,
};

/// File beside the data directory with the [`CopyReport`].
pub(super) const REPORT: &str = "copy.json";
/// Maximum size of the report, in bytes.
pub(super) const REPORT_BYTES_MAX: u64 = 64 << 10;
/// Time limit of the first start, including recovery.
pub(super) const READY_PATIENCE: Duration = Duration::from_mins(5);
pub(super) const STOP_PATIENCE: Duration = Duration::from_mins(1);

/// A copy to make.
#[derive(Debug)]
pub struct CopySpec {
    /// The new cluster.
    pub cluster: ClusterSpec,
    /// The original, which must be running.
    pub source: ProjectRef,
    /// Identifier of the copy that its SQL can read. Empty: the copy keeps that of the original.
    pub marker: String,
    /// Secrets of the original that are replaced in settings, each with its replacement.
    pub secrets: Vec<(SecretString, SecretString)>,
    /// SQL that masks data of the copy, in order.
    pub masking: Vec<String>,
    /// Whether the tables of the copy are emptied, so that only the schema remains.
    pub schema_only: bool,
    /// Number of the attempt to replace an existing cluster, which stays until the copy is
    /// complete. `None`: an existing cluster stays as it is.
    pub rebuild: Option<i64>,
    /// Maximum size in bytes.
    pub bytes_max: u64,
    /// Phase of the copy, for observers.
    pub progress: CopyProgress,
}

/// The result of a copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyReport {
    /// Identifier of the copy.
    pub marker: String,
    /// End of the WAL of the copy: it contains all commits before this position.
    pub lsn: String,
    /// Copied files.
    pub files: u64,
    /// Allocated bytes of the original.
    pub bytes: u64,
    /// Files that share blocks with the original.
    pub shared_files: u64,
    /// Changes that isolate the copy.
    pub isolation: Vec<IsolationStep>,
    /// Number of the attempt, if it replaced another cluster.
    #[serde(default)]
    pub rebuild: Option<i64>,
}

impl LocalDriver {
    /// Copies a running cluster, isolated from the original. An existing cluster stays as it is,
    /// unless it is to be replaced.
    ///
    /// The original is never paused: its clients notice one checkpoint and the disk's bandwidth.
    /// All commits that were acknowledged before the call are in the copy.
    ///
    /// Errors: [`ClusterError::Copy`] if the original has files that PostgreSQL does not make, or
    /// does not fit; [`ClusterError::Isolation`]; [`ClusterError::CopiesBusy`].
    pub async fn create_copy(&self, spec: &CopySpec) -> Result<CopyReport> {
        let place = self.home().project(&spec.cluster.project);
        if place.join("data").exists() {
            let (path, rebuild) = (place.clone(), spec.rebuild);
            let found = blocking(move || Ok(find_complete(&path, rebuild))).await?;
            if let Some(report) = found {
                return report;
            }
        }
        let _permit = self.copy_permit()?;
        let name = self.copy_name();
        let unfinished = self.home().tmp().join(&name);
        let made = self.make_copy(spec, &name, &unfinished).await;
        let committed = match made {
            Ok(report) => self.give_place(spec, &unfinished).await.map(|()| report),
            Err(error) => Err(error),
        };
        let failed = committed.is_err().then_some(unfinished);
        self.remove_leftovers(&name, failed).await?;
        committed
    }

    /// Moves a complete copy to its place. The cluster that it replaces goes to the trash.
    async fn give_place(&self, spec: &CopySpec, unfinished: &Path) -> Result<()> {
        if spec.rebuild.is_some() {
            self.remove(&spec.cluster.project).await?;
        }
        let place = self.home().project(&spec.cluster.project);
        let from = unfinished.to_owned();
        blocking(move || files::commit(&from, &place)).await
    }

    async fn make_copy(&self, spec: &CopySpec, name: &str, place: &Path) -> Result<CopyReport> {
        let report = self.isolated_copy(spec, name, place).await?;
        spec.progress.enter(CopyPhase::Identity);
        let id = SystemId::generate(self.entropy());
        let (place, kept) = (place.to_owned(), report.clone());
        blocking(move || complete(&place, id, &kept)).await?;
        Ok(report)
    }

    /// Copies the files of a cluster, and isolates the copy in quarantine. Its server is stopped
    /// afterwards.
    pub(super) async fn isolated_copy(
        &self,
        spec: &CopySpec,
        name: &str,
        place: &Path,
    ) -> Result<CopyReport> {
        let owner = ProcessOwner::new(spec.cluster.uid, spec.cluster.uid);
        let source = self.existing(&spec.source)?;
        let folder = place.to_owned();
        blocking(move || files::make_dir(&folder, 0o711)).await?;
        let template = self.template_of(spec.cluster.major).await?;
        let backup = Backup::begin(&source, &spec.progress).await?;
        spec.progress.enter(CopyPhase::Files);
        let (lsn, counts) = backup.copy(spec, &template, place, owner).await?;
        spec.progress.enter(CopyPhase::Isolation);
        let server = self.quarantined(spec.cluster.major, name, place, owner)?;
        let isolated = self.run_in_quarantine(&server, spec).await;
        if isolated.is_err() {
            // Errors are ignored: the next start ends remaining processes.
            let _ = server.stop(ShutdownMode::Immediate, STOP_PATIENCE).await;
        }
        Ok(CopyReport {
            marker: spec.marker.clone(),
            lsn,
            files: counts.files,
            bytes: counts.bytes,
            shared_files: counts.shared,
            isolation: isolated?,
            rebuild: spec.rebuild,
        })
    }

    async fn run_in_quarantine(
        &self,
        server: &Server,
        spec: &CopySpec,
    ) -> Result<Vec<IsolationStep>> {
        server.start_ready(READY_PATIENCE).await?;
        let isolation = Isolation {
            marker: (!spec.marker.is_empty()).then_some(&*spec.marker),
            secrets: &spec.secrets,
            masking: &spec.masking,
            schema_only: spec.schema_only,
            progress: &spec.progress,
        };
        let steps = isolation::isolate(server, &isolation).await?;
        server.stop(ShutdownMode::Fast, STOP_PATIENCE).await?;
        Ok(steps)
    }
}

/// Gives a stopped and isolated copy its identity, and makes it durable.
pub(super) fn complete(place: &Path, id: SystemId, report: &CopyReport) -> Result<()> {
    let data = place.join("data");
    files::remove_file(&data.join(home::OVERRIDES))?;
    files::remove_tree(&data.join("log"))?;
    files::remove_file(&place.join("start.log"))?;
    identity::forget_wal(&data)?;
    identity::assign(&data, id)?;
    let path = place.join(REPORT);
    let text = serde_json::to_vec(report).map_err(|error| ClusterError::Copy(error.to_string()))?;
    fs::write(&path, text).at("writing", &path)?;
    files::sync_fs(place)
}

/// Returns the report of a cluster that needs no further copy.
pub(super) fn find_complete(place: &Path, rebuild: Option<i64>) -> Option<Result<CopyReport>> {
    let report = read_report(place);
    let is_complete = match (rebuild, &report) {
        (None, _) => true,
        (Some(_), Ok(report)) => report.rebuild == rebuild,
        (Some(_), Err(_)) => false,
    };
    is_complete.then_some(report)
}

pub(super) fn read_report(place: &Path) -> Result<CopyReport> {
    let path = place.join(REPORT);
    let text = files::read_bounded(&path, REPORT_BYTES_MAX).at("reading", &path)?;
    serde_json::from_str(&text).map_err(|error| ClusterError::Copy(error.to_string()))
}
