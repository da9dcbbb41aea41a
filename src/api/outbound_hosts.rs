//! Operations on the hosts that requests of an organization or a project may go to. Specific to
//! Gantry.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    api::context::ApiContext,
    platform::{
        access::{Organization, Permission as P, Project, pat_only},
        audit::Recorder,
        error::Error,
        http::{Endpoint, Json, Tag, Verb, mount, output::Output},
        outbound::{UrlOwner, hosts},
        rate_limits::STANDARD,
    },
};

/// Endpoints of this module.
pub(super) static ENDPOINTS: &[&Endpoint] = &[
    &GET_OF_PROJECT,
    &PUT_OF_PROJECT,
    &GET_OF_ORGANIZATION,
    &PUT_OF_ORGANIZATION,
];

static GET_OF_PROJECT: Endpoint = Endpoint {
    id: "gantry-get-project-outbound-hosts",
    summary: "Get the hosts that requests of a project may go to",
    tag: Tag::Gantry,
    method: Verb::Get,
    path: "/v1/projects/{ref}/outbound-hosts",
    aliases: &[],
    access: pat_only(&[&[P::ProjectAdminRead]]),
    limit: &STANDARD,
    handler: || mount(get_of_project),
};

static PUT_OF_PROJECT: Endpoint = Endpoint {
    id: "gantry-put-project-outbound-hosts",
    summary: "Set the hosts that requests of a project may go to",
    tag: Tag::Gantry,
    method: Verb::Put,
    path: "/v1/projects/{ref}/outbound-hosts",
    aliases: &[],
    access: pat_only(&[&[P::ProjectAdminWrite]]),
    limit: &STANDARD,
    handler: || mount(put_of_project).sample(SAMPLE),
};

static GET_OF_ORGANIZATION: Endpoint = Endpoint {
    id: "gantry-get-organization-outbound-hosts",
    summary: "Get the hosts that requests of an organization may go to",
    tag: Tag::Gantry,
    method: Verb::Get,
    path: "/v1/organizations/{slug}/outbound-hosts",
    aliases: &[],
    access: pat_only(&[&[P::OrganizationAdminRead]]),
    limit: &STANDARD,
    handler: || mount(get_of_organization),
};

static PUT_OF_ORGANIZATION: Endpoint = Endpoint {
    id: "gantry-put-organization-outbound-hosts",
    summary: "Set the hosts that requests of an organization may go to",
    tag: Tag::Gantry,
    method: Verb::Put,
    path: "/v1/organizations/{slug}/outbound-hosts",
    aliases: &[],
    access: pat_only(&[&[P::OrganizationAdminWrite]]),
    limit: &STANDARD,
    handler: || mount(put_of_organization).sample(SAMPLE),
};

/// A body for the document.
const SAMPLE: &str = r#"{"allowed_hosts": ["api.example.com", "*.example.org"]}"#;

/// The hosts that requests may go to. Those of a project must be in the list of its organization as
/// well.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OutboundHosts {
    /// Names of hosts, `*.` and a domain for all names below it, and IP addresses. `null` permits
    /// all public hosts, an empty list none.
    allowed_hosts: Option<Vec<String>>,
}

async fn get(context: &ApiContext, owner: UrlOwner) -> Result<Json<OutboundHosts>, Error> {
    let allowed_hosts = hosts::list(context, owner).await?;
    Ok(Json(OutboundHosts { allowed_hosts }))
}

async fn put(
    context: &ApiContext,
    owner: UrlOwner,
    audit: &Recorder,
    request: OutboundHosts,
) -> Result<Json<OutboundHosts>, Error> {
    let view = |allowed_hosts| Json(OutboundHosts { allowed_hosts });
    audit.answer_with(move |hosts: &Option<Vec<String>>| view(hosts.clone()).respond());
    let hosts = hosts::replace(context, owner, request.allowed_hosts, audit).await?;
    Ok(view(hosts))
}

async fn get_of_project(
    project: Project,
    context: ApiContext,
) -> Result<Json<OutboundHosts>, Error> {
    get(&context, UrlOwner::Project(project.id)).await
}

async fn put_of_project(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(request): Json<OutboundHosts>,
) -> Result<Json<OutboundHosts>, Error> {
    put(&context, UrlOwner::Project(project.id), &audit, request).await
}

async fn get_of_organization(
    organization: Organization,
    context: ApiContext,
) -> Result<Json<OutboundHosts>, Error> {
    get(&context, UrlOwner::Organization(organization.id)).await
}

async fn put_of_organization(
    organization: Organization,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(request): Json<OutboundHosts>,
) -> Result<Json<OutboundHosts>, Error> {
    let owner = UrlOwner::Organization(organization.id);
    put(&context, owner, &audit, request).await
}
