//! Operations on vanity subdomains.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    api::context::ApiContext,
    control::domains::vanity::{self, DomainUse, VanitySubdomain},
    platform::{
        access::{OauthScope as S, Permission as P, Project, needs},
        audit::Recorder,
        error::Error,
        http::{
            Endpoint, Json, Output, Tag, Verb, mount,
            output::{Created, OkEmpty},
        },
        rate_limits::DOMAINS,
    },
};

/// Endpoints of this module.
pub static ENDPOINTS: &[&Endpoint] = &[
    &GET_VANITY,
    &CHECK_VANITY,
    &ACTIVATE_VANITY,
    &DEACTIVATE_VANITY,
];

static GET_VANITY: Endpoint = Endpoint {
    id: "v1-get-vanity-subdomain-config",
    summary: "Get the vanity subdomain",
    tag: Tag::Domains,
    method: Verb::Get,
    path: "/v1/projects/{ref}/config/vanity-subdomain",
    aliases: &["/v1/projects/{ref}/vanity-subdomain"],
    access: needs(&[&[P::VanitySubdomainRead]], S::DomainsRead),
    limit: &DOMAINS,
    handler: || mount(get_vanity),
};

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(inline)]
enum VanityStatus {
    NotUsed,
    CustomDomainUsed,
    Active,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "VanitySubdomainConfigResponse")]
struct VanityResponse {
    status: VanityStatus,
    /// Name that routes to the project, besides its reference.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    custom_domain: Option<String>,
}

async fn get_vanity(project: Project, context: ApiContext) -> Result<Json<VanityResponse>, Error> {
    let (status, custom_domain) = match vanity::get(&context, &project).await? {
        DomainUse::Nothing => (VanityStatus::NotUsed, None),
        DomainUse::Custom(host) => (VanityStatus::CustomDomainUsed, Some(host)),
        DomainUse::Vanity(name) => (VanityStatus::Active, Some(name)),
    };
    Ok(Json(VanityResponse {
        status,
        custom_domain,
    }))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "VanitySubdomainBody")]
struct VanityRequest {
    /// One label, without the domain.
    #[schemars(length(max = 63))]
    vanity_subdomain: String,
}

impl VanityRequest {
    fn name(&self) -> Result<VanitySubdomain, Error> {
        self.vanity_subdomain
            .parse()
            .map_err(|malformed: gantry_base::ids::Malformed| {
                Error::invalid("vanity_subdomain", malformed.to_string())
            })
    }
}

static CHECK_VANITY: Endpoint = Endpoint {
    id: "v1-check-vanity-subdomain-availability",
    summary: "Check whether a vanity subdomain is available",
    tag: Tag::Domains,
    method: Verb::Post,
    path: "/v1/projects/{ref}/config/vanity-subdomain/check-availability",
    aliases: &["/v1/projects/{ref}/vanity-subdomain/check-availability"],
    access: needs(&[&[P::VanitySubdomainWrite]], S::DomainsWrite),
    limit: &DOMAINS,
    handler: || {
        mount(check_vanity)
            .read_only()
            .sample(r#"{"vanity_subdomain": "my-shop"}"#)
    },
};

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "SubdomainAvailabilityResponse")]
struct Availability {
    available: bool,
}

async fn check_vanity(
    project: Project,
    context: ApiContext,
    Json(request): Json<VanityRequest>,
) -> Result<Created<Availability>, Error> {
    Ok(Created(Availability {
        available: vanity::is_available(&context, &project, &request.name()?).await?,
    }))
}

static ACTIVATE_VANITY: Endpoint = Endpoint {
    id: "v1-activate-vanity-subdomain-config",
    summary: "Activate a vanity subdomain",
    tag: Tag::Domains,
    method: Verb::Post,
    path: "/v1/projects/{ref}/config/vanity-subdomain/activate",
    aliases: &["/v1/projects/{ref}/vanity-subdomain/activate"],
    access: needs(&[&[P::VanitySubdomainWrite]], S::DomainsWrite),
    limit: &DOMAINS,
    handler: || mount(activate_vanity).sample(r#"{"vanity_subdomain": "my-shop"}"#),
};

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ActivateVanitySubdomainResponse")]
struct VanityActivated {
    /// Vanity subdomain with its domain.
    custom_domain: String,
}

async fn activate_vanity(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(request): Json<VanityRequest>,
) -> Result<Created<VanityActivated>, Error> {
    let view = |custom_domain| Created(VanityActivated { custom_domain });
    audit.answer_with(move |host: &String| view(host.clone()).respond());
    let host = vanity::activate(&context, &project, &request.name()?, &audit).await?;
    Ok(view(host))
}

static DEACTIVATE_VANITY: Endpoint = Endpoint {
    id: "v1-deactivate-vanity-subdomain-config",
    summary: "Deactivate the vanity subdomain",
    tag: Tag::Domains,
    method: Verb::Delete,
    path: "/v1/projects/{ref}/config/vanity-subdomain",
    aliases: &["/v1/projects/{ref}/vanity-subdomain"],
    access: needs(&[&[P::VanitySubdomainWrite]], S::DomainsWrite),
    limit: &DOMAINS,
    handler: || mount(deactivate_vanity),
};

async fn deactivate_vanity(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
) -> Result<OkEmpty, Error> {
    vanity::deactivate(&context, &project, &audit).await?;
    Ok(OkEmpty)
}
