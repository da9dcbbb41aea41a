//! Branches of a project, and their last action runs.

use askama::Template;
use chrono::{DateTime, Utc};
use gantry_base::ids::ProjectRef;
use serde::Deserialize;

use super::{
    live::{self, Followed},
    project::ProjectResponse,
};
use crate::{
    api::branches::{BranchStatus, runs::StepStatus},
    control::projects::Status,
    platform::{
        error::Error,
        http::{Endpoint, Verb, mount},
    },
    web::{
        labels::{self, Timestamp},
        page::{Layout, PageResponse, Visitor, page},
        path::PathProject,
        permissions::PermissionCheck,
    },
};

pub(in crate::web) static BRANCHES: Endpoint = page(
    "page-branches",
    "Branches of a project",
    Verb::Get,
    "/projects/{project}/branches",
    || mount(list),
);

/// Number of runs on the page: the smallest page of the operation.
const RUNS: usize = 10;

/// A branch, as the operations return it.
#[derive(Deserialize)]
pub(super) struct BranchEntry {
    pub(super) name: String,
    pub(super) project_ref: ProjectRef,
    pub(super) is_default: bool,
    pub(super) persistent: bool,
    pub(super) with_data: bool,
    status: BranchStatus,
    pub(super) created_at: DateTime<Utc>,
    pub(super) deletion_scheduled_at: Option<DateTime<Utc>>,
    pub(super) expires_at: Option<DateTime<Utc>>,
    pub(super) unused_expires_at: Option<DateTime<Utc>>,
    pub(super) source_project_ref: Option<ProjectRef>,
    pub(super) egress: Option<String>,
    pub(super) copy: Option<CopyEntry>,
    preview_project_status: Option<Status>,
}

/// The copy that a branch is.
#[derive(Deserialize)]
pub(super) struct CopyEntry {
    pub(super) masked: bool,
    pub(super) isolation: Vec<IsolationEntry>,
}

/// Things that were changed in a copy.
#[derive(Deserialize)]
pub(super) struct IsolationEntry {
    pub(super) name: String,
    pub(super) count: u64,
}

/// An action run, as the operations return it.
#[derive(Deserialize)]
pub(super) struct RunEntry {
    pub(super) id: String,
    pub(super) branch_id: String,
    pub(super) run_steps: Vec<StepEntry>,
    pub(super) created_at: DateTime<Utc>,
}

/// A step of an action run.
#[derive(Deserialize)]
pub(super) struct StepEntry {
    pub(super) name: String,
    status: StepStatus,
}

impl RunEntry {
    /// Returns whether the run has not ended: no step has failed, and one is waiting or running.
    pub(super) fn is_open(&self) -> bool {
        let is_over =
            |step: &StepEntry| matches!(step.status, StepStatus::Exited | StepStatus::Paused);
        let has_failed = self
            .run_steps
            .iter()
            .any(|step| step.status == StepStatus::Dead);
        !has_failed && !self.run_steps.iter().all(is_over)
    }
}

impl StepEntry {
    /// Returns the label and style class of the status.
    pub(super) fn state(&self) -> (&'static str, &'static str) {
        match self.status {
            StepStatus::Created => ("Waiting", "idle"),
            StepStatus::Exited => ("Done", "good"),
            StepStatus::Dead => ("Failed", "bad"),
            StepStatus::Paused => ("Paused", "idle"),
            StepStatus::Running | StepStatus::Restarting | StepStatus::Removing => {
                ("Running", "busy")
            }
        }
    }
}

struct BranchLine {
    branch: BranchEntry,
    created: Timestamp,
    removed: Option<Timestamp>,
}

/// Returns the branches of a project; none if it has no branches.
pub(super) async fn entries(
    visitor: &Visitor,
    project: &ProjectRef,
) -> Result<Vec<BranchEntry>, Error> {
    match visitor
        .get(&format!("/v1/projects/{project}/branches"))
        .await
    {
        Err(Error::Unprocessable(_)) => Ok(Vec::new()),
        branches => branches,
    }
}

impl BranchEntry {
    /// Returns whether its database answers.
    pub(super) fn is_healthy(&self) -> bool {
        self.preview_project_status == Some(Status::ActiveHealthy)
    }

    /// Returns the label and style class of the state: of the project unless it is healthy.
    pub(super) fn state(&self) -> (&'static str, &'static str) {
        match (self.preview_project_status, self.status) {
            (Some(Status::ActiveHealthy) | None, BranchStatus::CreatingProject) => {
                ("Creating", "busy")
            }
            (Some(Status::ActiveHealthy) | None, BranchStatus::RunningMigrations) => {
                ("Running migrations", "busy")
            }
            (Some(Status::ActiveHealthy) | None, BranchStatus::MigrationsFailed) => {
                ("Migrations failed", "bad")
            }
            (Some(Status::ActiveHealthy) | None, BranchStatus::FunctionsFailed) => {
                ("Functions failed", "bad")
            }
            (
                Some(Status::ActiveHealthy) | None,
                BranchStatus::MigrationsPassed | BranchStatus::FunctionsDeployed,
            ) => ("Healthy", "good"),
            (Some(status), _) => labels::status_label(status),
        }
    }
}

struct RunLine {
    run: RunEntry,
    /// Name of the branch.
    branch: String,
    created: Timestamp,
}

#[derive(Template)]
#[template(path = "project_branches.html")]
struct Page {
    layout: Layout,
    /// Address of the stream of changes.
    changes: String,
    project: ProjectResponse,
    can_list: PermissionCheck,
    branches: Vec<BranchLine>,
    runs: Vec<RunLine>,
}

impl Page {
    /// Returns whether a state is changing, so that the page reloads.
    fn is_changing(&self) -> bool {
        let is_busy = |line: &BranchLine| line.branch.state().1 == "busy";
        self.branches.iter().any(is_busy) || self.runs.iter().any(|line| line.run.is_open())
    }
}

async fn list(
    visitor: Visitor,
    PathProject(reference): PathProject,
) -> Result<PageResponse, Error> {
    let changes = live::address(&visitor, &reference, Followed::Branches).await?;
    let project = ProjectResponse::load(&visitor, &reference).await?;
    let operation = format!("/v1/projects/{reference}/branches");
    let can_list = visitor.check("GET", &operation).await?;
    let now = visitor.context.clock.now();
    let mut page = Page {
        layout: visitor.layout(),
        changes,
        project,
        can_list,
        branches: Vec::new(),
        runs: Vec::new(),
    };
    if !page.can_list.is_allowed() {
        return PageResponse::page(&page);
    }
    page.branches = entries(&visitor, &reference)
        .await?
        .into_iter()
        .map(|branch| line(branch, now))
        .collect();
    page.runs = runs(&visitor, &page.branches, now).await?;
    PageResponse::page(&page)
}

/// Returns the last runs of all branches, newest first. A run is listed by the project that it
/// changes.
async fn runs(
    visitor: &Visitor,
    branches: &[BranchLine],
    now: DateTime<Utc>,
) -> Result<Vec<RunLine>, Error> {
    let mut lines = Vec::new();
    for BranchLine { branch, .. } in branches {
        let operation = format!("/v1/projects/{}/actions", branch.project_ref);
        if !visitor.check("GET", &operation).await?.is_allowed() {
            continue;
        }
        let path = format!("{operation}?limit={RUNS}");
        let runs: Vec<RunEntry> = visitor.get(&path).await?;
        lines.extend(runs.into_iter().map(|run| RunLine {
            branch: branch.name.clone(),
            created: Timestamp::new(run.created_at, now),
            run,
        }));
    }
    lines.sort_by_key(|line| std::cmp::Reverse(line.run.created_at));
    lines.truncate(RUNS);
    Ok(lines)
}

fn line(branch: BranchEntry, now: DateTime<Utc>) -> BranchLine {
    let at = |at| Timestamp::new(at, now);
    BranchLine {
        created: at(branch.created_at),
        removed: branch.deletion_scheduled_at.map(at),
        branch,
    }
}
