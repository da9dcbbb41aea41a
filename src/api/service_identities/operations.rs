//! Operations on service identities of an organization and on their trusts. Specific to Gantry.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use gantry_base::ids::ProjectRef;
use schemars::JsonSchema;
use serde::Deserialize;
use uuid::Uuid;

use super::{
    ServiceIdentity,
    rules::{ClaimPattern, PATTERN_BYTES_MAX, TrustRule},
    trusts::{self, NewTrust, TrustView},
};
use crate::{
    api::{
        context::ApiContext,
        path::path_parameters,
        service_identities,
        tokens::scoped::{self, TokenDraft, TokenResources},
    },
    platform::{
        access::{Organization, Permission as P, Role, pat_only},
        audit::Recorder,
        error::Error,
        http::{
            Endpoint, Json, Output, PathId, Tag, Verb, mount,
            output::{Created, OkEmpty},
        },
        outbound::document,
        rate_limits::STANDARD,
    },
};

/// Endpoints of this module.
pub static ENDPOINTS: &[&Endpoint] = &[
    &LIST,
    &CREATE,
    &DELETE,
    &LIST_TRUSTS,
    &CREATE_TRUST,
    &DELETE_TRUST,
];

/// Maximum number of claims of a trust.
const CLAIMS_MAX: usize = 20;
/// Longest name of a claim, in bytes.
const CLAIM_NAME_BYTES_MAX: usize = 128;
/// Longest issuer and audience, in bytes.
const TEXT_BYTES_MAX: usize = 512;
/// Bounds of the life of issued tokens, in minutes.
const LIFE_MINUTES: std::ops::RangeInclusive<i16> = 1..=60;

path_parameters! {
    /// The id of a trust from the path.
    struct TrustPath(Uuid) from "trust_id", else Error::invalid("trust_id", "expected a UUID");
}

static LIST: Endpoint = Endpoint {
    id: "gantry-list-service-identities",
    summary: "List the service identities of an organization",
    tag: Tag::Gantry,
    method: Verb::Get,
    path: "/v1/organizations/{slug}/service-identities",
    aliases: &[],
    access: pat_only(&[&[P::OrganizationAdminRead]]),
    limit: &STANDARD,
    handler: || mount(list),
};

async fn list(
    organization: Organization,
    context: ApiContext,
) -> Result<Json<Vec<ServiceIdentity>>, Error> {
    let listed = service_identities::list(&context.db, organization.id).await?;
    Ok(Json(listed))
}

static CREATE: Endpoint = Endpoint {
    id: "gantry-create-service-identity",
    summary: "Create a service identity: a member that cannot sign in, for a CI",
    tag: Tag::Gantry,
    method: Verb::Post,
    path: "/v1/organizations/{slug}/service-identities",
    aliases: &[],
    access: pat_only(&[&[P::OrganizationAdminWrite]]),
    limit: &STANDARD,
    handler: || mount(create).sample(r#"{"name": "deployment", "role": "developer"}"#),
};

/// A service identity to create.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "CreateServiceIdentity")]
#[serde(deny_unknown_fields)]
struct CreateIdentityRequest {
    #[schemars(length(min = 1, max = 100))]
    name: String,
    role: IdentityRole,
}

/// The role of a service identity, which is never that of an owner.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[schemars(rename = "ServiceIdentityRole")]
#[serde(rename_all = "kebab-case")]
enum IdentityRole {
    Administrator,
    Developer,
    ReadOnly,
}

impl From<IdentityRole> for Role {
    fn from(role: IdentityRole) -> Self {
        match role {
            IdentityRole::Administrator => Self::Administrator,
            IdentityRole::Developer => Self::Developer,
            IdentityRole::ReadOnly => Self::ReadOnly,
        }
    }
}

async fn create(
    organization: Organization,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(request): Json<CreateIdentityRequest>,
) -> Result<Created<ServiceIdentity>, Error> {
    audit.answer_with(|made: &ServiceIdentity| Created(made.clone()).respond());
    let new = (request.name.as_str(), request.role.into());
    let made = service_identities::create(&context, &organization, new, &audit).await?;
    Ok(Created(made))
}

static DELETE: Endpoint = Endpoint {
    id: "gantry-delete-service-identity",
    summary: "Delete a service identity with its trusts, and revoke its tokens",
    tag: Tag::Gantry,
    method: Verb::Delete,
    path: "/v1/organizations/{slug}/service-identities/{id}",
    aliases: &[],
    access: pat_only(&[&[P::OrganizationAdminWrite]]),
    limit: &STANDARD,
    handler: || mount(delete),
};

async fn delete(
    organization: Organization,
    PathId(id): PathId,
    context: ApiContext,
    audit: Arc<Recorder>,
) -> Result<OkEmpty, Error> {
    audit.answer(|| OkEmpty);
    service_identities::delete(&context, &organization, id, &audit).await?;
    Ok(OkEmpty)
}

static LIST_TRUSTS: Endpoint = Endpoint {
    id: "gantry-list-service-identity-trusts",
    summary: "List the trusts of a service identity",
    tag: Tag::Gantry,
    method: Verb::Get,
    path: "/v1/organizations/{slug}/service-identities/{id}/trusts",
    aliases: &[],
    access: pat_only(&[&[P::OrganizationAdminRead]]),
    limit: &STANDARD,
    handler: || mount(list_trusts),
};

async fn list_trusts(
    organization: Organization,
    PathId(id): PathId,
    context: ApiContext,
) -> Result<Json<Vec<TrustView>>, Error> {
    let identity = service_identities::user_of(&context.db, organization.id, id).await?;
    Ok(Json(trusts::list(&context.db, identity).await?))
}

static CREATE_TRUST: Endpoint = Endpoint {
    id: "gantry-create-service-identity-trust",
    summary: "Trust tokens of an issuer: they are exchanged for tokens of a service identity",
    tag: Tag::Gantry,
    method: Verb::Post,
    path: "/v1/organizations/{slug}/service-identities/{id}/trusts",
    aliases: &[],
    access: pat_only(&[&[P::OrganizationAdminWrite]]),
    limit: &STANDARD,
    handler: || {
        mount(create_trust).sample(r#"{"issuer": "https://token.actions.githubusercontent.com", "audience": "gantry", "subject": "repo:acme/app:ref:refs/heads/main", "permissions": ["database_migrations_write"]}"#)
    },
};

/// A trust to create: the tokens that it accepts, and the limits of the tokens that are issued.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "CreateServiceIdentityTrust")]
#[serde(deny_unknown_fields)]
struct CreateTrustRequest {
    /// The claim `iss`: an https URL, below which `/.well-known/openid-configuration` is.
    #[schemars(length(min = 1, max = 512))]
    issuer: String,
    /// An audience that the claim `aud` must have.
    #[schemars(length(min = 1, max = 512))]
    audience: String,
    /// The claim `sub`. `*` matches any run of characters.
    #[schemars(length(min = 1, max = 512))]
    subject: String,
    /// Other claims, each with its value. `*` matches any run of characters.
    #[serde(default)]
    claims: BTreeMap<String, String>,
    /// Names of permissions of the tokens.
    permissions: Vec<String>,
    /// Refs of projects of the organization. Defaults to all current and future projects.
    #[serde(default)]
    project_refs: Vec<ProjectRef>,
    /// Networks that the tokens can be used from, such as `192.0.2.0/24`; any, if empty.
    #[serde(default)]
    networks: Vec<String>,
    /// Longest life of the tokens in minutes. They end with the exchanged token at the latest.
    #[serde(default = "life_minutes_default")]
    #[schemars(range(min = 1, max = 60))]
    life_minutes: i16,
}

fn life_minutes_default() -> i16 {
    15
}

impl CreateTrustRequest {
    fn rule(&self, context: &ApiContext) -> Result<TrustRule, Error> {
        let issuer = document::parse_url(context.outbound.policy(), &self.issuer)
            .map_err(|problem| Error::invalid("issuer", problem))?;
        if self.issuer.len() > TEXT_BYTES_MAX || issuer.query().is_some() {
            let problem = format!("expected at most {TEXT_BYTES_MAX} bytes, without a query");
            return Err(Error::invalid("issuer", problem));
        }
        if !(1..=TEXT_BYTES_MAX).contains(&self.audience.len()) {
            let problem = format!("expected 1 to {TEXT_BYTES_MAX} bytes");
            return Err(Error::invalid("audience", problem));
        }
        let pattern = |field: &'static str, text: &str| {
            ClaimPattern::parse(text).map_err(|problem| Error::invalid(field, problem))
        };
        if self.claims.len() > CLAIMS_MAX {
            let problem = format!("expected at most {CLAIMS_MAX}");
            return Err(Error::invalid("claims", problem));
        }
        let mut claims = BTreeMap::new();
        for (name, text) in &self.claims {
            if !(1..=CLAIM_NAME_BYTES_MAX).contains(&name.len()) {
                let problem = format!("expected names of 1 to {CLAIM_NAME_BYTES_MAX} bytes");
                return Err(Error::invalid("claims", problem));
            }
            claims.insert(name.clone(), pattern("claims", text)?);
        }
        Ok(TrustRule {
            issuer: self.issuer.clone(),
            audience: self.audience.clone(),
            subject: pattern("subject", &self.subject)?,
            claims,
        })
    }

    fn draft(self, organization: &Organization) -> Result<TokenDraft, Error> {
        let resources = if self.project_refs.is_empty() {
            TokenResources::Organizations(BTreeSet::from([organization.slug.clone()]))
        } else {
            TokenResources::Projects(self.project_refs.into_iter().collect())
        };
        Ok(TokenDraft {
            resources,
            networks: scoped::parse_networks(&self.networks)?,
            permissions: self.permissions,
            not_before: None,
        })
    }
}

async fn create_trust(
    organization: Organization,
    PathId(id): PathId,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(request): Json<CreateTrustRequest>,
) -> Result<Created<TrustView>, Error> {
    let identity = service_identities::user_of(&context.db, organization.id, id).await?;
    let life_minutes = request.life_minutes;
    if !LIFE_MINUTES.contains(&life_minutes) {
        return Err(Error::invalid("life_minutes", "expected 1 to 60"));
    }
    let rule = request.rule(&context)?;
    let draft = request.draft(&organization)?;
    let new = NewTrust {
        rule,
        grant: draft.resolve(&context.db, identity).await?,
        life_minutes,
    };
    audit.answer_with(|made: &TrustView| Created(made.clone()).respond());
    let made = trusts::create(&context, identity, &new, &audit).await?;
    Ok(Created(made))
}

static DELETE_TRUST: Endpoint = Endpoint {
    id: "gantry-delete-service-identity-trust",
    summary: "Delete a trust of a service identity, and revoke the tokens that it issued",
    tag: Tag::Gantry,
    method: Verb::Delete,
    path: "/v1/organizations/{slug}/service-identities/{id}/trusts/{trust_id}",
    aliases: &[],
    access: pat_only(&[&[P::OrganizationAdminWrite]]),
    limit: &STANDARD,
    handler: || mount(delete_trust),
};

async fn delete_trust(
    organization: Organization,
    PathId(id): PathId,
    TrustPath(trust): TrustPath,
    context: ApiContext,
    audit: Arc<Recorder>,
) -> Result<OkEmpty, Error> {
    let identity = service_identities::user_of(&context.db, organization.id, id).await?;
    audit.answer(|| OkEmpty);
    trusts::delete(&context, identity, trust, &audit).await?;
    Ok(OkEmpty)
}

/// The bound in the schema is that of the rule.
const _: () = assert!(PATTERN_BYTES_MAX == TEXT_BYTES_MAX, "one bound");
