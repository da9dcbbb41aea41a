//! Branches on the wire.

use chrono::{DateTime, TimeDelta, Utc};
use gantry_base::ids::ProjectRef;
use gantry_node::clusters::{CopyReport, IsolationStep};
use schemars::JsonSchema;
use serde::Serialize;
use uuid::Uuid;

use super::branch_row::{
    BranchRow, BranchStatus, DISABLED, SchemaSource, UnappliedDrift, select_branches,
};
use crate::{
    api::{context::ApiContext, projects::timestamp},
    control::projects::Status,
    platform::{
        access::Project,
        error::{Context, Error},
    },
};

/// A branch on the wire. Absent values are left out, because clients reject `null`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "BranchResponse")]
pub(super) struct BranchView {
    pub(super) id: Uuid,
    pub(super) name: String,
    pub(super) project_ref: ProjectRef,
    pub(super) parent_project_ref: ProjectRef,
    pub(super) is_default: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) git_branch: Option<String>,
    pub(super) persistent: bool,
    /// Progress of the last run.
    #[schemars(extend("deprecated" = true))]
    status: BranchStatus,
    pub(super) created_at: String,
    pub(super) updated_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    review_requested_at: Option<String>,
    pub(super) with_data: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) notify_url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deletion_scheduled_at: Option<String>,
    /// Time at which a branch that is not persistent is deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-gantry" = true))]
    expires_at: Option<String>,
    /// Time at which a branch that is not persistent is deleted if it is not used until then.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-gantry" = true))]
    unused_expires_at: Option<String>,
    /// The branch that this one was made of, if it was not made of the parent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-gantry" = true))]
    source_project_ref: Option<ProjectRef>,
    /// Where a branch without data has its schema from.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-gantry" = true))]
    schema_source: Option<SchemaSource>,
    /// Whether the database of the branch can connect to the outside.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-gantry" = true))]
    egress: Option<EgressState>,
    /// The copy of the original's files, if the branch is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-gantry" = true))]
    copy: Option<CopyView>,
    /// Objects of the original that are not in its migrations, and that the branch lacks.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-gantry" = true))]
    unapplied_drift: Option<UnappliedDrift>,
    /// Status of the project that the branch is.
    #[serde(skip_serializing_if = "Option::is_none")]
    preview_project_status: Option<Status>,
}

/// Whether a database can connect to the outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum EgressState {
    /// The sandbox denies all connections.
    Denied,
    /// This machine has no sandbox.
    Unenforced,
}

/// A copy of a cluster on the wire.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "BranchCopy")]
struct CopyView {
    /// Position in the WAL of the original: the copy has all commits before it.
    branch_point: String,
    /// Size of the original, in bytes.
    bytes: u64,
    /// Whether all of its files shared their blocks with the original at first.
    shares_blocks: bool,
    /// Whether rules of the operator masked the data.
    masked: bool,
    /// Changes that isolated the copy from its original.
    isolation: Vec<IsolationView>,
}

/// One kind of change of a copy.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "BranchIsolation")]
struct IsolationView {
    /// The things, in words of PostgreSQL.
    name: String,
    /// Their number.
    count: u64,
}

/// Name of the isolation step that counts masking rules.
const MASKING: &str = "masking rules applied";

impl From<CopyReport> for CopyView {
    fn from(report: CopyReport) -> Self {
        let steps = report.isolation.into_iter();
        let isolation: Vec<IsolationView> = steps
            .filter(|step| step.count > 0)
            .map(|IsolationStep { name, count }| IsolationView { name, count })
            .collect();
        Self {
            branch_point: report.lsn,
            bytes: report.bytes,
            shares_blocks: report.shared_files == report.files,
            masked: isolation.iter().any(|step| step.name == MASKING),
            isolation,
        }
    }
}

impl BranchRow {
    /// Returns the branch on the wire.
    pub(super) fn view(self, context: &ApiContext) -> BranchView {
        let is_branch = !self.is_default;
        let egress = if context.driver.denies_network() {
            EgressState::Denied
        } else {
            EgressState::Unenforced
        };
        BranchView {
            unused_expires_at: self.unused_end(context).map(timestamp),
            source_project_ref: (self.origin.id != self.parent.id)
                .then(|| self.origin.reference.clone()),
            schema_source: (is_branch && !self.with_data).then_some(self.schema_source),
            egress: is_branch.then_some(egress),
            copy: self.copy_report.map(CopyView::from),
            unapplied_drift: self.unapplied_drift,
            id: self.id,
            name: self.name,
            project_ref: self.project.reference,
            parent_project_ref: self.parent.reference,
            is_default: self.is_default,
            git_branch: self.git_branch,
            persistent: self.persistent,
            status: self.status,
            created_at: timestamp(self.created_at),
            updated_at: timestamp(self.updated_at),
            review_requested_at: self.review_requested_at.map(timestamp),
            with_data: self.with_data,
            notify_url: self.notify_url,
            deletion_scheduled_at: self.deletion_scheduled_at.map(timestamp),
            expires_at: self.expires_at.map(timestamp),
            preview_project_status: Some(self.project_status),
        }
    }

    /// Returns when it is deleted if it is not used until then.
    fn unused_end(&self, context: &ApiContext) -> Option<DateTime<Utc>> {
        let life: TimeDelta = context.api_settings.branches.unused_life?;
        (!self.persistent).then(|| self.used_at + life)
    }
}

/// Returns the branch of this name. Fails as [`list`] if the project has no branches.
pub(super) async fn by_name(
    context: &ApiContext,
    parent: &Project,
    name: &str,
) -> Result<BranchView, Error> {
    let branches = list(context, parent).await?;
    let found = branches.into_iter().find(|branch| branch.name == name);
    found.ok_or(Error::NotFound)
}

/// Lists the branches of a project: the default branch, then the others, oldest first.
///
/// Errors: 422 if the project has none, also for a branch; clients take it for an empty list.
pub(super) async fn list(
    context: &ApiContext,
    project: &Project,
) -> Result<Vec<BranchView>, Error> {
    let sql =
        select_branches!("where b.parent_id = $1 order by b.is_default desc, b.created_at, b.id");
    let rows = context
        .db
        .query(sql, &[&project.id.0])
        .await
        .context("listing branches")?;
    if rows.is_empty() {
        return Err(Error::Unprocessable(DISABLED.into()));
    }
    rows.iter()
        .map(|row| Ok(BranchRow::read(row)?.view(context)))
        .collect()
}
