//! One branch: its end, its isolation, its runs with their logs, and its merge.

use askama::Template;
use chrono::{DateTime, Utc};
use gantry_base::ids::ProjectRef;
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    branches::{BranchEntry, RunEntry},
    live::{self, Followed},
    project::ProjectResponse,
};
use crate::{
    control::projects::Status,
    platform::{
        error::Error,
        http::{Endpoint, Verb, mount},
    },
    web::{
        form::{self, NoFields},
        labels::Timestamp,
        page::{Layout, PageResponse, SessionForm, Visitor, page},
        path::{PathBranch, PathProject},
        permissions::PermissionCheck,
    },
};

pub(in crate::web) static BRANCH: Endpoint = page(
    "page-branch",
    "A branch of a project",
    Verb::Get,
    "/projects/{project}/branches/{branch}",
    || mount(show),
);
pub(in crate::web) static CONFIRM_MERGE: Endpoint = page(
    "page-ask-merge-branch",
    "Confirm a merge",
    Verb::Get,
    "/projects/{project}/branches/{branch}/merge",
    || mount(confirm_merge),
);
pub(in crate::web) static MERGE: Endpoint = page(
    "page-merge-branch",
    "Merge a branch",
    Verb::Post,
    "/projects/{project}/branches/{branch}/merge",
    || mount(merge),
);

/// Number of runs on the page: the smallest page of the operation.
const RUNS: usize = 10;
/// Maximum number of runs with a shown log.
const LOGS: usize = 3;

/// A branch with its id, by which its runs of the parent are found.
#[derive(Deserialize)]
struct IdentifiedBranch {
    id: String,
    #[serde(flatten)]
    branch: BranchEntry,
}

struct LoggedRun {
    run: RunEntry,
    /// Whether it changed the parent.
    is_merge: bool,
    created: Timestamp,
    log: Option<String>,
}

#[derive(Template)]
#[template(path = "project_branch.html")]
struct Page {
    layout: Layout,
    /// Address of the stream of changes.
    changes: String,
    project: ProjectResponse,
    branch: BranchEntry,
    created: Timestamp,
    removed: Option<Timestamp>,
    expires: Option<Timestamp>,
    unused: Option<Timestamp>,
    can_merge: PermissionCheck,
    runs: Vec<LoggedRun>,
}

impl Page {
    /// Returns whether a state is changing, so that the page reloads.
    fn is_changing(&self) -> bool {
        self.branch.state().1 == "busy" || self.runs.iter().any(|line| line.run.is_open())
    }
}

async fn find(
    visitor: &Visitor,
    project: &ProjectRef,
    branch: &ProjectRef,
) -> Result<IdentifiedBranch, Error> {
    let path = format!("/v1/projects/{project}/branches");
    let branches: Vec<IdentifiedBranch> = match visitor.get(&path).await {
        // The project has no branches.
        Err(Error::Unprocessable(_)) => Vec::new(),
        branches => branches?,
    };
    let is_wanted =
        |found: &IdentifiedBranch| found.branch.project_ref == *branch && !found.branch.is_default;
    let found = branches.into_iter().find(is_wanted);
    found.ok_or(Error::NotFound)
}

async fn show(
    visitor: Visitor,
    PathProject(reference): PathProject,
    PathBranch(branch): PathBranch,
) -> Result<PageResponse, Error> {
    let changes = live::address(&visitor, &reference, Followed::Branches).await?;
    let project = ProjectResponse::load(&visitor, &reference).await?;
    let IdentifiedBranch { id, branch } = find(&visitor, &reference, &branch).await?;
    let now = visitor.context.clock.now();
    let at = |at: DateTime<Utc>| Timestamp::new(at, now);
    let merge = format!("/v1/branches/{}/merge", branch.project_ref);
    let page = Page {
        layout: visitor.layout(),
        changes,
        can_merge: visitor.check_body("POST", &merge, "{}").await?,
        runs: runs(&visitor, &reference, &id, &branch.project_ref, now).await?,
        project,
        created: at(branch.created_at),
        removed: branch.deletion_scheduled_at.map(at),
        expires: branch.expires_at.map(at),
        unused: branch.unused_expires_at.map(at),
        branch,
    };
    PageResponse::page(&page)
}

/// Returns the last runs of a branch, newest first: those that changed it, and its merges, which
/// changed the parent.
async fn runs(
    visitor: &Visitor,
    parent: &ProjectRef,
    id: &str,
    branch: &ProjectRef,
    now: DateTime<Utc>,
) -> Result<Vec<LoggedRun>, Error> {
    let mut lines = Vec::new();
    for (project, is_merge) in [(parent, true), (branch, false)] {
        let operation = format!("/v1/projects/{project}/actions");
        if !visitor.check("GET", &operation).await?.is_allowed() {
            continue;
        }
        let found: Vec<RunEntry> = visitor.get(&format!("{operation}?limit={RUNS}")).await?;
        let own = found.into_iter().filter(|run| run.branch_id == id);
        lines.extend(own.map(|run| LoggedRun {
            created: Timestamp::new(run.created_at, now),
            is_merge,
            log: None,
            run,
        }));
    }
    lines.sort_by_key(|line| std::cmp::Reverse(line.run.created_at));
    lines.truncate(RUNS);
    for line in lines.iter_mut().take(LOGS) {
        let project = if line.is_merge { parent } else { branch };
        let path = format!("/v1/projects/{project}/actions/{}/logs", line.run.id);
        let log = visitor.call_raw(Method::GET, &path, None).await?;
        line.log = Some(String::from_utf8_lossy(&log).into_owned());
    }
    Ok(lines)
}

#[derive(Deserialize, PartialEq, Eq)]
struct MigrationEntry {
    version: String,
    name: Option<String>,
}

#[derive(Template)]
#[template(path = "project_branch_merge.html")]
struct MergePage {
    layout: Layout,
    project: ProjectResponse,
    branch: BranchEntry,
    permission: PermissionCheck,
    /// Migrations that only the branch has.
    pending: Vec<MigrationEntry>,
    problem: Option<String>,
}

async fn load_merge(
    visitor: &Visitor,
    reference: &ProjectRef,
    branch: &ProjectRef,
) -> Result<MergePage, Error> {
    let project = ProjectResponse::load(visitor, reference).await?;
    let IdentifiedBranch { branch, .. } = find(visitor, reference, branch).await?;
    let merge = format!("/v1/branches/{}/merge", branch.project_ref);
    let permission = visitor.check_body("POST", &merge, "{}").await?;
    let mut pending = Vec::new();
    // A database that is not ready would be waited for.
    if permission.is_allowed() && branch.is_healthy() && project.status == Status::ActiveHealthy {
        pending = migrations(visitor, &branch.project_ref).await?;
        let present = migrations(visitor, reference).await?;
        pending.retain(|own| present.iter().all(|theirs| theirs.version != own.version));
    }
    Ok(MergePage {
        layout: visitor.layout(),
        project,
        branch,
        permission,
        pending,
        problem: None,
    })
}

/// Lists the migrations of a project, or none if the visitor may not or its database is stopped.
async fn migrations(visitor: &Visitor, project: &ProjectRef) -> Result<Vec<MigrationEntry>, Error> {
    let path = format!("/v1/projects/{project}/database/migrations");
    match visitor.get(&path).await {
        Err(Error::DatabaseUnreachable | Error::Forbidden(_)) => Ok(Vec::new()),
        found => found,
    }
}

async fn confirm_merge(
    visitor: Visitor,
    PathProject(reference): PathProject,
    PathBranch(branch): PathBranch,
) -> Result<PageResponse, Error> {
    PageResponse::page(&load_merge(&visitor, &reference, &branch).await?)
}

async fn merge(
    visitor: Visitor,
    _: SessionForm<NoFields>,
    PathProject(reference): PathProject,
    PathBranch(branch): PathBranch,
) -> Result<PageResponse, Error> {
    let path = format!("/v1/branches/{branch}/merge");
    let begun = visitor.post::<Value>(&path, &json!({})).await;
    match begun {
        Ok(_) => PageResponse::redirect(&format!(
            "/projects/{reference}/branches/{branch}?done=merge"
        )),
        Err(error) => {
            let page = MergePage {
                problem: Some(form::problem(error)?),
                ..load_merge(&visitor, &reference, &branch).await?
            };
            Ok(PageResponse::page(&page)?.status(StatusCode::CONFLICT))
        }
    }
}
