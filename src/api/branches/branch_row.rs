//! Branches as stored, with the names of their states.

use chrono::{DateTime, Utc};
use gantry_base::ids::{OrganizationId, ProjectId, ProjectRef};
use gantry_node::clusters::{CopyPhase, CopyReport};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio_postgres::{Row, Transaction};
use uuid::Uuid;

use super::target::BranchTarget;
use crate::{
    api::context::ApiContext,
    control::projects::Status,
    platform::{
        access::Project,
        db,
        error::{Context, Error},
        tables::Table,
    },
};

/// Message of a project without branches. Clients recognise its text.
pub(super) const DISABLED: &str = "Preview branching is not enabled for this project.";

/// Progress of a branch on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[expect(missing_docs, reason = "the names of the contract")]
pub enum BranchStatus {
    CreatingProject,
    RunningMigrations,
    MigrationsPassed,
    MigrationsFailed,
    FunctionsDeployed,
    FunctionsFailed,
}

impl BranchStatus {
    const ALL: [Self; 6] = [
        Self::CreatingProject,
        Self::RunningMigrations,
        Self::MigrationsPassed,
        Self::MigrationsFailed,
        Self::FunctionsDeployed,
        Self::FunctionsFailed,
    ];

    /// Name on the wire and in the control database.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CreatingProject => "CREATING_PROJECT",
            Self::RunningMigrations => "RUNNING_MIGRATIONS",
            Self::MigrationsPassed => "MIGRATIONS_PASSED",
            Self::MigrationsFailed => "MIGRATIONS_FAILED",
            Self::FunctionsDeployed => "FUNCTIONS_DEPLOYED",
            Self::FunctionsFailed => "FUNCTIONS_FAILED",
        }
    }

    pub(super) fn read(name: &str) -> Result<Self, Error> {
        let found = Self::ALL.into_iter().find(|status| status.name() == name);
        found
            .ok_or(name.to_owned())
            .context("reading a branch's status")
    }
}

/// Where a branch without data has its schema from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SchemaSource {
    /// The migrations of the parent, applied to an empty database.
    #[default]
    Migrations,
    /// The parent itself: a copy with emptied tables.
    Parent,
}

impl SchemaSource {
    /// Name on the wire and in the control database.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Migrations => "migrations",
            Self::Parent => "parent",
        }
    }

    /// Whether the cluster of a branch is a copy of another one.
    pub(super) fn is_copy(self, with_data: bool) -> bool {
        with_data || self == Self::Parent
    }

    pub(super) fn read(name: &str) -> Result<Self, Error> {
        let found = [Self::Migrations, Self::Parent];
        let found = found.into_iter().find(|source| source.name() == name);
        found
            .ok_or(name.to_owned())
            .context("reading the source of a branch's schema")
    }
}

/// Objects of the original's schema that are not in its migrations, and that the branch lacks or
/// has otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "BranchUnappliedDrift")]
pub(super) struct UnappliedDrift {
    /// The first 20 objects, for instance `table public.notes`.
    pub(super) objects: Vec<String>,
    /// Number of all objects.
    pub(super) count: usize,
    /// Why they could not be applied, and how the branch gets them.
    pub(super) message: String,
}

/// A branch as stored, with the refs of its project and its parent.
#[derive(Debug)]
pub(super) struct BranchRow {
    pub(super) id: Uuid,
    pub(super) project: Project,
    pub(super) parent: Project,
    /// The project that it is made of: the parent, or another branch while that exists.
    pub(super) origin: Project,
    pub(super) name: String,
    pub(super) git_branch: Option<String>,
    pub(super) is_default: bool,
    pub(super) persistent: bool,
    pub(super) with_data: bool,
    pub(super) schema_source: SchemaSource,
    pub(super) status: BranchStatus,
    pub(super) notify_url: Option<String>,
    pub(super) fork: Vec<String>,
    /// Versions that were computed from the parent's schema.
    pub(super) drift: Vec<String>,
    pub(super) unapplied_drift: Option<UnappliedDrift>,
    pub(super) copy_phase: Option<CopyPhase>,
    pub(super) copy_report: Option<CopyReport>,
    pub(super) review_requested_at: Option<DateTime<Utc>>,
    pub(super) deletion_scheduled_at: Option<DateTime<Utc>>,
    pub(super) expires_at: Option<DateTime<Utc>>,
    pub(super) created_at: DateTime<Utc>,
    pub(super) updated_at: DateTime<Utc>,
    /// Last use of its database.
    pub(super) used_at: DateTime<Utc>,
    pub(super) project_status: Status,
}

macro_rules! select_branches {
    ($rest:literal) => {
        concat!(
            "select b.id, b.project_id, c.ref, c.organization_id, b.parent_id, p.ref, p.organization_id, b.name, b.git_branch, \
             b.is_default, b.persistent, b.with_data, b.status, b.notify_url, b.fork, \
             b.review_requested_at, b.deletion_scheduled_at, \
             b.created_at, b.updated_at, c.status, b.expires_at, \
             coalesce(o.id, p.id), coalesce(o.ref, p.ref), p.organization_id, \
             b.schema_source, b.drift, b.copy_phase, b.copy_report, \
             greatest(c.used_at, c.settled_at, c.created_at), b.unapplied_drift \
             from branches b join projects c on c.id = \
             b.project_id \
             join projects p on p.id = b.parent_id \
             left join projects o on o.id = b.source_id and o.desired <> 'removed' ",
            $rest
        )
    };
}
pub(super) use select_branches;

impl BranchRow {
    pub(super) fn read(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            id: row.get(0),
            project: project(row, 1)?,
            parent: project(row, 4)?,
            name: row.get(7),
            git_branch: row.get(8),
            is_default: row.get(9),
            persistent: row.get(10),
            with_data: row.get(11),
            status: BranchStatus::read(row.get(12))?,
            notify_url: row.get(13),
            fork: row.get(14),
            review_requested_at: row.get(15),
            deletion_scheduled_at: row.get(16),
            created_at: row.get(17),
            updated_at: row.get(18),
            project_status: Status::read(row, 19)?,
            expires_at: row.get(20),
            origin: project(row, 21)?,
            schema_source: SchemaSource::read(row.get(24))?,
            drift: row.get(25),
            copy_phase: row
                .get::<_, Option<&str>>(26)
                .and_then(CopyPhase::from_name),
            copy_report: document(row, 27),
            used_at: row.get(28),
            unapplied_drift: document(row, 29),
        })
    }

    /// Whether its cluster is a copy of another one.
    pub(super) fn is_copy(&self) -> bool {
        self.schema_source.is_copy(self.with_data)
    }
}

/// Reads a document from a column. `None` if it was written by a version with other fields.
fn document<T: DeserializeOwned>(row: &Row, at: usize) -> Option<T> {
    let document: Option<serde_json::Value> = row.get(at);
    document.and_then(|document| serde_json::from_value(document).ok())
}

/// Returns the error of a name or a Git branch that another branch has.
pub(super) fn duplicate(error: tokio_postgres::Error, name: &str) -> Error {
    match db::violated(&error) {
        Some("branches_name_key") => {
            Error::Conflict(format!("A branch with the name {name} exists already").into())
        }
        Some("branches_git_branch_key") => {
            Error::Conflict("Another branch belongs to this Git branch".into())
        }
        _ => Error::internal("writing a branch", error),
    }
}

/// Reads id, ref and organization of a project from three columns.
pub(super) fn project(row: &Row, at: usize) -> Result<Project, Error> {
    let reference = row.get::<_, &str>(at + 1).parse();
    Ok(Project {
        id: ProjectId(row.get(at)),
        reference: reference.context("reading a project's ref")?,
        organization: OrganizationId(row.get(at + 2)),
    })
}

/// Returns the branch that a request names. The guard has checked the caller's rights on `parent`.
pub(super) async fn find(
    context: &ApiContext,
    parent: &Project,
    target: &BranchTarget,
) -> Result<BranchRow, Error> {
    let sql = select_branches!("where b.parent_id = $1 and (b.id = $2 or c.ref = $3)");
    let (id, reference) = target.0.parts();
    let reference = reference.map(ProjectRef::as_str);
    let rows = context
        .db
        .query(sql, &[&parent.id.0, &id, &reference])
        .await
        .context("reading a branch")?;
    match rows.first() {
        Some(row) => BranchRow::read(row),
        None if reference == Some(parent.reference.as_str()) => Err(absent(context, parent).await?),
        None => Err(Error::NotFound),
    }
}

/// Returns the error of a project without a default branch, or of a removed branch.
async fn absent(context: &ApiContext, project: &Project) -> Result<Error, Error> {
    let sql = "select from projects where id = $1 and desired <> 'removed'";
    let rows = context.db.query(sql, &[&project.id.0]).await;
    Ok(if rows.context("reading a project")?.is_empty() {
        Error::NotFound
    } else {
        Error::Unprocessable(DISABLED.into())
    })
}

/// Returns a branch in a transaction.
pub(super) async fn read_in(transaction: &Transaction<'_>, id: Uuid) -> Result<BranchRow, Error> {
    let sql = select_branches!("where b.id = $1");
    let row = transaction.query_one(sql, &[&id]).await;
    BranchRow::read(&row.context("reading a branch")?)
}

/// Announces a change of a branch and of its project.
pub(super) fn changed(context: &ApiContext) {
    context.table_changed(Table::Branches);
    context.table_changed(Table::Projects);
    context.reconciler.wake();
    context.branch_runner.wake();
}
