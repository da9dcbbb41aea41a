//! Gantry's own operations on invitations: which are open, what one offers, and its acceptance.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};

use super::{invitations, invitations::Open, members::NamedProject};
use crate::{
    api::context::ApiContext,
    base::{error::Error, ids::OrgSlug},
    platform::{
        access::{Access, Organization, Permission as P, User, pat_only},
        audit::Recorder,
        http::{Endpoint, Json, Tag, Verb, mount},
        rate_limits::STANDARD,
        tables::Table,
    },
};

/// Endpoints of this part of the slice.
pub static ENDPOINTS: &[&Endpoint] = &[&LIST, &LOOK, &ACCEPT];

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
struct Listed {
    email: String,
    role: &'static str,
    /// Projects on which the role is given; in the whole organization, if empty.
    projects: Vec<Project>,
    /// Address of the member who invited.
    invited_by: String,
    created_at: DateTime<Utc>,
    expires_at: DateTime<Utc>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Project {
    r#ref: String,
    name: String,
}

impl From<NamedProject> for Project {
    fn from(project: NamedProject) -> Self {
        Self {
            r#ref: project.reference,
            name: project.name,
        }
    }
}

impl From<Open> for Listed {
    fn from(open: Open) -> Self {
        Self {
            email: open.email,
            role: open.role.name(),
            projects: open.projects.into_iter().map(Project::from).collect(),
            invited_by: open.invited_by,
            created_at: open.created_at,
            expires_at: open.expires_at,
        }
    }
}

async fn list(organization: Organization, context: ApiContext) -> Result<Json<Vec<Listed>>, Error> {
    let open = invitations::open(&context.db, organization.id, context.clock.now()).await?;
    Ok(Json(open.into_iter().map(Listed::from).collect()))
}

/// An invitation, by what it is accepted with.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Shown {
    /// What the invitation showed.
    token: String,
}

static LOOK: Endpoint = Endpoint {
    id: "gantry-look-at-invitation",
    summary: "Tell what an invitation offers, before it is accepted",
    tag: Tag::Gantry,
    method: Verb::Post,
    path: "/v1/invitations/look",
    aliases: &[],
    access: Access::Unscoped,
    limit: &STANDARD,
    handler: || {
        mount(look)
            .read_only()
            .sample(r#"{"token": "gantry_invite_…"}"#)
    },
};

#[derive(Debug, Serialize, JsonSchema)]
struct Offered {
    organization_slug: OrgSlug,
    organization_name: String,
    role: &'static str,
    /// Projects on which the role is given; in the whole organization, if empty.
    projects: Vec<Project>,
    /// Address of the member who invited.
    invited_by: String,
    expires_at: DateTime<Utc>,
}

async fn look(
    user: User,
    context: ApiContext,
    Json(request): Json<Shown>,
) -> Result<Json<Offered>, Error> {
    let open = invitations::look(
        &context.db,
        user.id,
        &SecretString::from(request.token),
        context.clock.now(),
    )
    .await?;
    Ok(Json(Offered {
        organization_slug: open.slug,
        organization_name: open.organization,
        role: open.role.name(),
        projects: open.projects.into_iter().map(Project::from).collect(),
        invited_by: open.invited_by,
        expires_at: open.expires_at,
    }))
}

static ACCEPT: Endpoint = Endpoint {
    id: "gantry-accept-invitation",
    summary: "Become a member by an invitation",
    tag: Tag::Gantry,
    method: Verb::Post,
    path: "/v1/invitations/accept",
    aliases: &[],
    access: Access::Unscoped,
    limit: &STANDARD,
    handler: || mount(accept).sample(r#"{"token": "gantry_invite_…"}"#),
};

#[derive(Debug, Serialize, JsonSchema)]
struct Accepted {
    organization_slug: OrgSlug,
}

async fn accept(
    user: User,
    audit: Arc<Recorder>,
    context: ApiContext,
    Json(request): Json<Shown>,
) -> Result<Json<Accepted>, Error> {
    let organization_slug = invitations::accept(
        &context.db,
        user.id,
        &SecretString::from(request.token),
        context.clock.now(),
        &audit,
    )
    .await?;
    // The answer may be read before the notification of the change is: this node must not believe that the organization is hidden.
    context.table_changed(Table::Members);
    context.table_changed(Table::Members);
    Ok(Json(Accepted { organization_slug }))
}
