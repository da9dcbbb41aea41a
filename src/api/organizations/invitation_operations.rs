//! Gantry operations on invitations: list, inspect and accept.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use gantry_base::ids::OrgSlug;
use schemars::JsonSchema;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};

use super::{invitations, invitations::OpenInvitation, members::ProjectName};
use crate::{
    api::context::ApiContext,
    platform::{
        access::{Access, Organization, Permission as P, User, pat_only},
        audit::Recorder,
        error::Error,
        http::{Endpoint, Json, Output, Tag, Verb, mount},
        rate_limits::STANDARD,
        tables::Table,
    },
};

/// Endpoints of this part of the slice.
pub static ENDPOINTS: &[&Endpoint] = &[&LIST, &FIND, &ACCEPT];

static LIST: Endpoint = Endpoint {
    id: "gantry-list-invitations",
    summary: "List the open invitations of an organization",
    tag: Tag::Gantry,
    method: Verb::Get,
    path: "/v1/organizations/{slug}/invitations",
    aliases: &[],
    access: pat_only(&[&[P::MembersRead]]),
    limit: &STANDARD,
    handler: || mount(list),
};

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OpenInvitation")]
struct InvitationSummary {
    email: String,
    role: &'static str,
    /// Projects on which the role applies; the whole organization, if empty.
    projects: Vec<InvitationProject>,
    /// Email address of the inviting member.
    invited_by: String,
    created_at: DateTime<Utc>,
    expires_at: DateTime<Utc>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct InvitationProject {
    r#ref: String,
    name: String,
}

impl From<ProjectName> for InvitationProject {
    fn from(project: ProjectName) -> Self {
        Self {
            r#ref: project.reference,
            name: project.name,
        }
    }
}

impl From<OpenInvitation> for InvitationSummary {
    fn from(open: OpenInvitation) -> Self {
        Self {
            email: open.email,
            role: open.role.name(),
            projects: open
                .projects
                .into_iter()
                .map(InvitationProject::from)
                .collect(),
            invited_by: open.invited_by,
            created_at: open.created_at,
            expires_at: open.expires_at,
        }
    }
}

async fn list(
    organization: Organization,
    context: ApiContext,
) -> Result<Json<Vec<InvitationSummary>>, Error> {
    let open = invitations::list_open(&context.db, organization.id, context.clock.now()).await?;
    Ok(Json(
        open.into_iter().map(InvitationSummary::from).collect(),
    ))
}

/// The secret of an invitation.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Shown")]
struct InvitationToken {
    /// The secret from the invitation.
    token: String,
}

static FIND: Endpoint = Endpoint {
    id: "gantry-look-at-invitation",
    summary: "Get an invitation before accepting it",
    tag: Tag::Gantry,
    method: Verb::Post,
    path: "/v1/invitations/look",
    aliases: &[],
    access: Access::Unscoped,
    limit: &STANDARD,
    handler: || {
        mount(find)
            .read_only()
            .sample(r#"{"token": "gantry_invite_…"}"#)
    },
};

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Offered")]
struct InvitationOffer {
    organization_slug: OrgSlug,
    organization_name: String,
    role: &'static str,
    /// Projects on which the role applies; the whole organization, if empty.
    projects: Vec<InvitationProject>,
    /// Email address of the inviting member.
    invited_by: String,
    expires_at: DateTime<Utc>,
}

async fn find(
    user: User,
    context: ApiContext,
    Json(request): Json<InvitationToken>,
) -> Result<Json<InvitationOffer>, Error> {
    let open = invitations::find(
        &context.db,
        user.id,
        &SecretString::from(request.token),
        context.clock.now(),
    )
    .await?;
    Ok(Json(InvitationOffer {
        organization_slug: open.slug,
        organization_name: open.organization,
        role: open.role.name(),
        projects: open
            .projects
            .into_iter()
            .map(InvitationProject::from)
            .collect(),
        invited_by: open.invited_by,
        expires_at: open.expires_at,
    }))
}

static ACCEPT: Endpoint = Endpoint {
    id: "gantry-accept-invitation",
    summary: "Accept an invitation",
    tag: Tag::Gantry,
    method: Verb::Post,
    path: "/v1/invitations/accept",
    aliases: &[],
    access: Access::Unscoped,
    limit: &STANDARD,
    handler: || mount(accept).sample(r#"{"token": "gantry_invite_…"}"#),
};

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Accepted")]
struct InvitationAccepted {
    organization_slug: OrgSlug,
}

async fn accept(
    user: User,
    audit: Arc<Recorder>,
    context: ApiContext,
    Json(request): Json<InvitationToken>,
) -> Result<Json<InvitationAccepted>, Error> {
    let view = |organization_slug| Json(InvitationAccepted { organization_slug });
    audit.answer_with(move |slug: &OrgSlug| view(slug.clone()).respond());
    let slug = invitations::accept(
        &context.db,
        user.id,
        &SecretString::from(request.token),
        context.clock.now(),
        &audit,
    )
    .await?;
    // Invalidate now: the client may send its next request before the change notification arrives.
    context.table_changed(Table::Members);
    Ok(view(slug))
}
