//! Operations that answer authorization requests, used by the consent page.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use gantry_base::ids::ProjectRef;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{AuthorizationRequest, ConsentChoice, Respondent, approve, deny, find};
use crate::{
    api::{
        context::ApiContext,
        oauth::{applications::ProjectSelection, redirect},
    },
    platform::{
        access::{Access, CallerRelation, Organization, User},
        audit::Recorder,
        error::Error,
        http::{
            Call, Endpoint, Input, Json, Output, PathId, Tag, Verb, mount,
            operation_doc::OperationDoc, output::Created,
        },
        rate_limits::STANDARD,
    },
};

/// An authorization request, for display.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "OauthRequest")]
pub struct AuthorizationRequestView {
    /// Name of the application.
    pub name: String,
    /// Website of the application.
    pub website: String,
    /// URL of an icon.
    pub icon: Option<String>,
    /// Display name of the redirect target.
    pub domain: String,
    /// Requested scopes.
    pub scopes: Vec<String>,
    /// Whether the operator verified the application.
    pub verified: bool,
    /// Whether the application registered itself.
    pub registered_itself: bool,
    /// Whether its tokens are limited to the role of the granting member.
    pub bind_to_authorizing_user: bool,
    /// The choice of projects at consent.
    pub project_selection: ProjectSelection,
    /// Slug of the suggested organization.
    pub organization_slug: Option<String>,
    /// Ref of the suggested project.
    pub project_ref: Option<String>,
    /// Expiry time.
    pub expires_at: DateTime<Utc>,
    /// Time of approval.
    pub approved_at: Option<DateTime<Utc>>,
}

impl AuthorizationRequestView {
    fn new(request: AuthorizationRequest) -> Self {
        let application = request.application;
        Self {
            domain: redirect::display_name(&request.redirect_uri),
            name: application.name,
            website: application.website,
            icon: application.icon,
            scopes: request
                .scopes
                .names()
                .into_iter()
                .map(str::to_owned)
                .collect(),
            verified: application.verified,
            registered_itself: application.organization.is_none(),
            bind_to_authorizing_user: application.bound_to_user,
            project_selection: application.selection,
            organization_slug: request.organization,
            project_ref: request.project,
            expires_at: request.expires_at,
            approved_at: request.approved_at,
        }
    }
}

/// The redirect target of an answered request.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "OauthAnswer")]
pub struct RedirectResponse {
    /// The redirect URI with the response parameters.
    pub url: String,
}

pub(in crate::api::oauth) static GET: Endpoint = Endpoint {
    id: "gantry-get-oauth-request",
    summary: "Get a pending authorization request",
    tag: Tag::Gantry,
    method: Verb::Get,
    path: "/platform/oauth/authorizations/{id}",
    aliases: &[],
    access: Access::Unscoped,
    limit: &STANDARD,
    handler: || mount(show),
};

async fn show(
    PathId(id): PathId,
    context: ApiContext,
) -> Result<Json<AuthorizationRequestView>, Error> {
    Ok(Json(AuthorizationRequestView::new(
        find(&context.db, id, context.clock.now()).await?,
    )))
}

pub(in crate::api::oauth) static APPROVE: Endpoint = Endpoint {
    id: "gantry-approve-oauth-request",
    summary: "Approve an authorization request for this organization",
    tag: Tag::Gantry,
    method: Verb::Post,
    path: "/platform/organizations/{slug}/oauth/authorizations/{id}",
    aliases: &[],
    access: Access::Unscoped,
    limit: &STANDARD,
    handler: || mount(approve_request).sample(r#"{"project_refs": null}"#),
};

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "ApproveOauthRequest")]
#[serde(deny_unknown_fields)]
struct ApprovalBody {
    /// Refs of the organization's projects; null means all current and future projects.
    project_refs: Option<Vec<ProjectRef>>,
}

async fn approve_request(
    PathId(id): PathId,
    user: User,
    OrganizationStanding {
        organization,
        standing,
    }: OrganizationStanding,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(approval): Json<ApprovalBody>,
) -> Result<Created<RedirectResponse>, Error> {
    let CallerRelation::Member(roles) = standing else {
        return Err(Error::NotFound);
    };
    let request = find(&context.db, id, context.clock.now()).await?;
    let choice = ConsentChoice {
        organization: &organization,
        roles,
        projects: approval.project_refs,
    };
    let view = |url| Created(RedirectResponse { url });
    audit.answer_with(move |url: &String| view(url.clone()).respond());
    let url = approve(&context, &request, respondent(&user), choice, &audit).await?;
    Ok(view(url))
}

/// The organization in the path with the caller's standing there.
struct OrganizationStanding {
    organization: Organization,
    standing: CallerRelation,
}

impl Input for OrganizationStanding {
    fn describe(described: &mut OperationDoc) {
        Organization::describe(described);
    }

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        Ok(Self {
            organization: Organization::take(call).await?,
            standing: CallerRelation::take(call).await?,
        })
    }
}

fn respondent(user: &User) -> Respondent {
    Respondent {
        user: user.id,
        from_browser: user.token.is_none(),
    }
}

pub(in crate::api::oauth) static DENY: Endpoint = Endpoint {
    id: "gantry-deny-oauth-request",
    summary: "Deny an authorization request",
    tag: Tag::Gantry,
    method: Verb::Delete,
    path: "/platform/oauth/authorizations/{id}",
    aliases: &[],
    access: Access::Unscoped,
    limit: &STANDARD,
    handler: || mount(deny_request),
};

async fn deny_request(
    PathId(id): PathId,
    user: User,
    context: ApiContext,
    audit: Arc<Recorder>,
) -> Result<Json<RedirectResponse>, Error> {
    let request = find(&context.db, id, context.clock.now()).await?;
    let view = |url| Json(RedirectResponse { url });
    audit.answer_with(move |url: &String| view(url.clone()).respond());
    let url = deny(&context, &request, respondent(&user), &audit).await?;
    Ok(view(url))
}

/// The query of pages that show a request.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct AuthId {
    /// Id of the request.
    pub auth_id: Uuid,
}
