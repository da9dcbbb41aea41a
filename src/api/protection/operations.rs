//! Operations on protected projects. Specific to Gantry.

use std::sync::Arc;

use schemars::JsonSchema;
use secrecy::ExposeSecret;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    api::context::ApiContext,
    platform::{
        access::{
            CallerRelation, OauthScope as S, Permission as P, Project, User, needs, pat_only,
        },
        approvals::{self, Approval, ApprovalDecision},
        audit::Recorder,
        error::Error,
        http::{Endpoint, Json, Output, PathId, Tag, Verb, mount},
        rate_limits::STANDARD,
    },
};

/// Endpoints of this module.
pub static ENDPOINTS: &[&Endpoint] = &[
    &GET_PROTECTION,
    &PUT_PROTECTION,
    &LIST_APPROVALS,
    &GET_APPROVAL,
    &APPROVE,
    &DENY,
];

static GET_PROTECTION: Endpoint = Endpoint {
    id: "gantry-get-project-protection",
    summary: "Get whether a project is protected",
    tag: Tag::Gantry,
    method: Verb::Get,
    path: "/v1/projects/{ref}/protection",
    aliases: &[],
    access: needs(&[&[P::ProjectAdminRead]], S::ProjectsRead),
    limit: &STANDARD,
    handler: || mount(get_protection),
};

/// The protection of a project.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Protection {
    /// Whether destructive requests need an approval.
    pub protected: bool,
}

async fn get_protection(project: Project, context: ApiContext) -> Result<Json<Protection>, Error> {
    let protected = approvals::is_protected(&context.db, project.id).await?;
    Ok(Json(Protection { protected }))
}

static PUT_PROTECTION: Endpoint = Endpoint {
    id: "gantry-put-project-protection",
    summary: "Protect a project, or end its protection",
    tag: Tag::Gantry,
    method: Verb::Put,
    path: "/v1/projects/{ref}/protection",
    aliases: &[],
    access: pat_only(&[&[P::ProjectAdminWrite]]),
    limit: &STANDARD,
    handler: || {
        mount(put_protection)
            .destructive_if(|asked| {
                let ends = asked.body::<Protection>().is_some_and(|it| !it.protected);
                ends.then(|| "ends the protection of the project".into())
            })
            .sample(r#"{"protected": true}"#)
    },
};

async fn put_protection(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(request): Json<Protection>,
) -> Result<Json<Protection>, Error> {
    let protected = request.protected;
    audit.answer(|| Json(Protection { protected }));
    super::set(&context, &project, protected, &audit).await?;
    Ok(Json(Protection { protected }))
}

static LIST_APPROVALS: Endpoint = Endpoint {
    id: "gantry-list-approvals",
    summary: "List the newest 100 approvals of a project",
    tag: Tag::Gantry,
    method: Verb::Get,
    path: "/v1/projects/{ref}/approvals",
    aliases: &[],
    access: needs(&[&[P::ProjectAdminRead]], S::ProjectsRead),
    limit: &STANDARD,
    handler: || mount(list_approvals),
};

async fn list_approvals(
    project: Project,
    context: ApiContext,
) -> Result<Json<Vec<Approval>>, Error> {
    let now = context.clock.now();
    Ok(Json(approvals::list(&context.db, project.id, now).await?))
}

static GET_APPROVAL: Endpoint = Endpoint {
    id: "gantry-get-approval",
    summary: "Get an approval with the request that waits for it",
    tag: Tag::Gantry,
    method: Verb::Get,
    path: "/v1/projects/{ref}/approvals/{id}",
    aliases: &[],
    access: needs(&[&[P::ProjectAdminRead]], S::ProjectsRead),
    limit: &STANDARD,
    handler: || mount(get_approval),
};

/// An approval and the request that waits for it.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct ApprovalDetails {
    /// The approval.
    #[serde(flatten)]
    pub approval: Approval,
    /// The first 64 KiB of the body of the request; null if it has none.
    pub request_body: Option<String>,
}

async fn get_approval(
    project: Project,
    context: ApiContext,
    PathId(id): PathId,
) -> Result<Json<ApprovalDetails>, Error> {
    let now = context.clock.now();
    let sealing = &context.settings.sealing;
    let (approval, body) = approvals::find(&context.db, project.id, id, sealing, now).await?;
    let request_body = body.map(|body| body.expose_secret().to_owned());
    Ok(Json(ApprovalDetails {
        approval,
        request_body,
    }))
}

static APPROVE: Endpoint = Endpoint {
    id: "gantry-approve-a-request",
    summary: "Approve a destructive request of a protected project",
    tag: Tag::Gantry,
    method: Verb::Post,
    path: "/v1/projects/{ref}/approvals/{id}/approve",
    aliases: &[],
    access: pat_only(&[&[P::ProjectAdminWrite]]),
    limit: &STANDARD,
    handler: || mount(approve),
};

async fn approve(
    project: Project,
    user: User,
    relation: CallerRelation,
    context: ApiContext,
    PathId(id): PathId,
    audit: Arc<Recorder>,
) -> Result<Json<Approval>, Error> {
    decide(&context, (&project, id), (&user, relation), true, &audit).await
}

static DENY: Endpoint = Endpoint {
    id: "gantry-deny-a-request",
    summary: "Deny a destructive request of a protected project",
    tag: Tag::Gantry,
    method: Verb::Post,
    path: "/v1/projects/{ref}/approvals/{id}/deny",
    aliases: &[],
    access: pat_only(&[&[P::ProjectAdminWrite]]),
    limit: &STANDARD,
    handler: || mount(deny),
};

async fn deny(
    project: Project,
    user: User,
    relation: CallerRelation,
    context: ApiContext,
    PathId(id): PathId,
    audit: Arc<Recorder>,
) -> Result<Json<Approval>, Error> {
    decide(&context, (&project, id), (&user, relation), false, &audit).await
}

async fn decide(
    context: &ApiContext,
    (project, id): (&Project, Uuid),
    (user, relation): (&User, CallerRelation),
    approved: bool,
    audit: &Recorder,
) -> Result<Json<Approval>, Error> {
    super::require_session(user)?;
    audit.answer_with(|approval: &Approval| Json(approval.clone()).respond());
    let decision = ApprovalDecision {
        project,
        id,
        approved,
        decided_by: user.id,
        may_approve_own: &|requested_at| super::may_approve_own(user, relation, requested_at),
    };
    let now = context.clock.now();
    let decided = approvals::decide(&context.db, &decision, audit, now).await?;
    Ok(Json(decided))
}
