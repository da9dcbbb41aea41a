//! The protection of a project, and the approvals of its destructive requests.

use askama::Template;
use gantry_base::ids::ProjectRef;
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::project::ProjectResponse;
use crate::{
    api::protection::operations::{ApprovalDetails, Protection},
    platform::{
        approvals::{Approval, ApprovalStatus},
        error::{Denial, Error},
        http::{Endpoint, Verb, mount},
    },
    web::{
        form::{self, NoFields},
        labels::Timestamp,
        page::{Layout, PageResponse, SessionForm, Visitor, page},
        path::{PathApproval, PathProject},
        permissions::PermissionCheck,
    },
};

pub(in crate::web) static APPROVALS: Endpoint = page(
    "page-approvals",
    "Protection and approvals of a project",
    Verb::Get,
    "/projects/{project}/approvals",
    || mount(list),
);
pub(in crate::web) static APPROVAL: Endpoint = page(
    "page-approval",
    "Approval of a request",
    Verb::Get,
    "/projects/{project}/approvals/{approval}",
    || mount(show),
);
pub(in crate::web) static APPROVE: Endpoint = page(
    "page-approve-request",
    "Approve a request",
    Verb::Post,
    "/projects/{project}/approvals/{approval}/approve",
    || mount(approve),
);
pub(in crate::web) static DENY: Endpoint = page(
    "page-deny-request",
    "Deny a request",
    Verb::Post,
    "/projects/{project}/approvals/{approval}/deny",
    || mount(deny),
);
pub(in crate::web) static PROTECT: Endpoint = page(
    "page-protect-project",
    "Protect a project, or end its protection",
    Verb::Post,
    "/projects/{project}/protection",
    || mount(protect),
);

/// An approval in the list.
struct Row {
    approval: Approval,
    requested: Timestamp,
}

impl Row {
    fn state(&self) -> (&'static str, &'static str) {
        status_label(self.approval.status)
    }
}

#[derive(Template)]
#[template(path = "project_approvals.html")]
struct ListPage {
    layout: Layout,
    project: ProjectResponse,
    can_change: PermissionCheck,
    protection: Protection,
    rows: Vec<Row>,
}

#[derive(Template)]
#[template(path = "project_approval.html")]
struct ApprovalPage {
    layout: Layout,
    project: ProjectResponse,
    can_decide: PermissionCheck,
    details: ApprovalDetails,
    /// The SQL in the body, if it has any.
    sql: Option<String>,
    requested: Timestamp,
    expires: Timestamp,
    usable: Option<Timestamp>,
    /// Whether the visitor has sent the request.
    is_own: bool,
    /// Whether the visitor has to sign in again before approving.
    sign_in_again: bool,
    problem: Option<String>,
}

impl ApprovalPage {
    fn state(&self) -> (&'static str, &'static str) {
        status_label(self.details.approval.status)
    }

    fn is_pending(&self) -> bool {
        self.details.approval.status == ApprovalStatus::Pending
    }
}

/// Returns the label and style class of a state.
const fn status_label(status: ApprovalStatus) -> (&'static str, &'static str) {
    match status {
        ApprovalStatus::Pending => ("Waiting", "busy"),
        ApprovalStatus::Approved => ("Approved", "good"),
        ApprovalStatus::Denied => ("Denied", "bad"),
        ApprovalStatus::Used => ("Done", "good"),
        ApprovalStatus::Expired => ("Expired", "idle"),
    }
}

async fn list(
    visitor: Visitor,
    PathProject(reference): PathProject,
) -> Result<PageResponse, Error> {
    let project = ProjectResponse::load(&visitor, &reference).await?;
    let path = format!("/v1/projects/{reference}/protection");
    let can_change = visitor.check("PUT", &path).await?;
    let protection = visitor.get(&path).await?;
    let approvals: Vec<Approval> = visitor.get(&operation(&reference)).await?;
    let now = visitor.context.clock.now();
    PageResponse::page(&ListPage {
        layout: visitor.layout(),
        project,
        can_change,
        protection,
        rows: approvals
            .into_iter()
            .map(|approval| Row {
                requested: Timestamp::new(approval.requested_at, now),
                approval,
            })
            .collect(),
    })
}

fn operation(reference: &ProjectRef) -> String {
    format!("/v1/projects/{reference}/approvals")
}

async fn load(
    visitor: &Visitor,
    reference: &ProjectRef,
    id: Uuid,
    problem: Option<String>,
) -> Result<ApprovalPage, Error> {
    let project = ProjectResponse::load(visitor, reference).await?;
    let path = format!("{}/{id}", operation(reference));
    let can_decide = visitor.check("POST", &format!("{path}/approve")).await?;
    let details: ApprovalDetails = visitor.get(&path).await?;
    let now = visitor.context.clock.now();
    let approval = &details.approval;
    let is_own = approval.requested_by.user_id == visitor.user.gotrue_id;
    let is_new_session = visitor
        .user
        .signed_in_at
        .is_some_and(|at| at > approval.requested_at);
    let page_path = format!("/projects/{reference}/approvals/{id}");
    Ok(ApprovalPage {
        layout: visitor.layout().at_path(&page_path),
        project,
        can_decide,
        sql: details.request_body.as_deref().and_then(sql_of),
        requested: Timestamp::new(approval.requested_at, now),
        expires: Timestamp::new(approval.expires_at, now),
        usable: approval
            .usable_until
            .map(|until| Timestamp::new(until, now)),
        is_own,
        sign_in_again: is_own && !is_new_session,
        problem,
        details,
    })
}

/// Returns the SQL in the body of a query or a migration.
fn sql_of(body: &str) -> Option<String> {
    let body: Value = serde_json::from_str(body).ok()?;
    body["query"].as_str().map(str::to_owned)
}

async fn show(
    visitor: Visitor,
    PathProject(reference): PathProject,
    PathApproval(id): PathApproval,
) -> Result<PageResponse, Error> {
    PageResponse::page(&load(&visitor, &reference, id, None).await?)
}

async fn approve(
    visitor: Visitor,
    _: SessionForm<NoFields>,
    PathProject(reference): PathProject,
    PathApproval(id): PathApproval,
) -> Result<PageResponse, Error> {
    decide(&visitor, &reference, id, "approve").await
}

async fn deny(
    visitor: Visitor,
    _: SessionForm<NoFields>,
    PathProject(reference): PathProject,
    PathApproval(id): PathApproval,
) -> Result<PageResponse, Error> {
    decide(&visitor, &reference, id, "deny").await
}

async fn decide(
    visitor: &Visitor,
    reference: &ProjectRef,
    id: Uuid,
    action: &str,
) -> Result<PageResponse, Error> {
    let path = format!("{}/{id}/{action}", operation(reference));
    let problem = match visitor.post::<Value>(&path, &Value::Null).await {
        Ok(_) => {
            let page = format!("/projects/{reference}/approvals/{id}?done={action}");
            return PageResponse::redirect(&page);
        }
        Err(error @ Error::Forbidden(Denial::OwnRequest)) => error.message().into_owned(),
        Err(error) => form::problem(error)?,
    };
    let page = load(visitor, reference, id, Some(problem)).await?;
    Ok(PageResponse::page(&page)?.status(StatusCode::CONFLICT))
}

#[derive(Deserialize)]
struct ProtectForm {
    protected: bool,
}

async fn protect(
    visitor: Visitor,
    SessionForm(form): SessionForm<ProtectForm>,
    PathProject(reference): PathProject,
) -> Result<PageResponse, Error> {
    let path = format!("/v1/projects/{reference}/protection");
    let body = json!({ "protected": form.protected });
    let done = if form.protected { "protected" } else { "ended" };
    visitor
        .call::<Protection>(Method::PUT, &path, Some(&body))
        .await?;
    PageResponse::redirect(&format!("/projects/{reference}/approvals?done={done}"))
}
