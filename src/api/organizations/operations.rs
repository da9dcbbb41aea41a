//! Operations on organizations.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{OrganizationMember, OrganizationSummary};
use crate::{
    api::{context::ApiContext, organizations},
    platform::{
        access::{OauthScope as S, Organization, Permission as P, User, needs, pat_only},
        audit::Recorder,
        error::Error,
        http::{Endpoint, Json, Tag, Verb, mount, output::Created},
        rate_limits::STANDARD,
        tables::Table,
    },
};

/// Endpoints of this slice.
pub static ENDPOINTS: &[&Endpoint] = &[&LIST, &CREATE, &GET, &LIST_MEMBERS];

static LIST: Endpoint = Endpoint {
    id: "v1-list-all-organizations",
    summary: "List all organizations",
    tag: Tag::Organizations,
    method: Verb::Get,
    path: "/v1/organizations",
    aliases: &[],
    access: needs(&[&[P::OrganizationsRead]], S::OrganizationsRead),
    limit: &STANDARD,
    handler: || mount(list),
};

async fn list(user: User, context: ApiContext) -> Result<Json<Vec<OrganizationSummary>>, Error> {
    Ok(Json(
        organizations::list(&context.db, user.id, user.reach()).await?,
    ))
}

static CREATE: Endpoint = Endpoint {
    id: "v1-create-an-organization",
    summary: "Create an organization",
    tag: Tag::Organizations,
    method: Verb::Post,
    path: "/v1/organizations",
    aliases: &[],
    access: pat_only(&[&[P::OrganizationsCreate]]),
    limit: &STANDARD,
    handler: || mount(create).sample(r#"{"name": "Acme"}"#),
};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "CreateOrganizationV1")]
struct CreateOrganization {
    #[schemars(length(min = 1, max = 256))]
    name: String,
}

async fn create(
    user: User,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(request): Json<CreateOrganization>,
) -> Result<Created<OrganizationSummary>, Error> {
    let created = organizations::create(
        &context.db,
        &context.entropy,
        &request.name,
        None,
        user.id,
        context.clock.now(),
        Some(&audit),
    )
    .await?;
    context.table_changed(Table::Members);
    Ok(Created(created))
}

static GET: Endpoint = Endpoint {
    id: "v1-get-an-organization",
    summary: "Get an organization",
    tag: Tag::Organizations,
    method: Verb::Get,
    path: "/v1/organizations/{slug}",
    aliases: &[],
    access: needs(&[&[P::OrganizationAdminRead]], S::OrganizationsRead),
    limit: &STANDARD,
    handler: || mount(get),
};

/// A single organization.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "V1OrganizationSlugResponse")]
struct OrganizationDetail {
    id: String,
    name: String,
    plan: &'static str,
    opt_in_tags: [&'static str; 0],
    allowed_release_channels: [&'static str; 1],
}

async fn get(
    organization: Organization,
    context: ApiContext,
) -> Result<Json<OrganizationDetail>, Error> {
    let name = organizations::name(&context.db, organization.id).await?;
    let id = organization.slug.as_str().to_owned();
    // There is no billing: clients derive the cost of a project from the plan.
    Ok(Json(OrganizationDetail {
        id,
        name,
        plan: "free",
        opt_in_tags: [],
        allowed_release_channels: ["ga"],
    }))
}

static LIST_MEMBERS: Endpoint = Endpoint {
    id: "v1-list-organization-members",
    summary: "List members of an organization",
    tag: Tag::Organizations,
    method: Verb::Get,
    path: "/v1/organizations/{slug}/members",
    aliases: &[],
    access: needs(&[&[P::MembersRead]], S::OrganizationsRead),
    limit: &STANDARD,
    handler: || mount(list_members),
};

async fn list_members(
    organization: Organization,
    context: ApiContext,
) -> Result<Json<Vec<OrganizationMember>>, Error> {
    Ok(Json(
        organizations::members(&context.db, organization.id).await?,
    ))
}
