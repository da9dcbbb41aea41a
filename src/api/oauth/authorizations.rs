//! Operations on authorizations: granted access of applications. The member who granted one can
//! revoke it, and so can the members who manage the organization.

use std::sync::Arc;

use gantry_base::ids::ApprovalId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    endpoint, grants,
    grants::{Authorization, MemberAuthorization, Revoker},
};
use crate::{
    api::{context::ApiContext, path::path_parameters},
    platform::{
        access::{Access, Organization, Permission as P, User, pat_only},
        audit::Recorder,
        error::Error,
        http::{Endpoint, Json, Output, PathId, Verb, mount, output::OkEmpty},
    },
};

/// The permission to invite members also covers revoking the access that members granted.
const MANAGE: Access = pat_only(&[&[P::MembersWrite]]);

pub(super) static LIST: Endpoint = endpoint(
    "gantry-list-oauth-authorizations",
    "List the caller's authorizations of applications",
    Verb::Get,
    "/v1/oauth/authorizations",
    Access::Unscoped,
    || mount(list),
);

async fn list(user: User, context: ApiContext) -> Result<Json<Vec<Authorization>>, Error> {
    Ok(Json(grants::list(&context.db, user.id).await?))
}

pub(super) static REVOKE: Endpoint = endpoint(
    "gantry-revoke-oauth-authorization",
    "Revoke one of the caller's authorizations, on every node",
    Verb::Delete,
    "/v1/oauth/authorizations/{id}",
    Access::Unscoped,
    || mount(revoke),
);

path_parameters! {
    /// An authorization id from the path. The handlers check that it belongs to the caller.
    struct AuthorizationId(i64) from "id", else Error::NotFound;
}

async fn revoke(
    AuthorizationId(id): AuthorizationId,
    user: User,
    context: ApiContext,
    audit: Arc<Recorder>,
) -> Result<OkEmpty, Error> {
    grants::revoke(&context, Revoker::Member(user.id), ApprovalId(id), &audit)
        .await
        .map(|()| OkEmpty)
}

pub(super) static LIST_FOR_ORGANIZATION: Endpoint = endpoint(
    "gantry-list-organization-oauth-authorizations",
    "List the authorizations that members granted in an organization",
    Verb::Get,
    "/v1/organizations/{slug}/oauth/authorizations",
    MANAGE,
    || mount(list_for_organization),
);

async fn list_for_organization(
    organization: Organization,
    context: ApiContext,
) -> Result<Json<Vec<MemberAuthorization>>, Error> {
    Ok(Json(
        grants::list_for_organization(&context.db, organization.id).await?,
    ))
}

pub(super) static REVOKE_IN_ORGANIZATION: Endpoint = endpoint(
    "gantry-revoke-organization-oauth-authorization",
    "Revoke an authorization that a member granted in an organization, on every node",
    Verb::Delete,
    "/v1/organizations/{slug}/oauth/authorizations/{id}",
    MANAGE,
    || mount(revoke_in_organization),
);

async fn revoke_in_organization(
    organization: Organization,
    AuthorizationId(id): AuthorizationId,
    context: ApiContext,
    audit: Arc<Recorder>,
) -> Result<OkEmpty, Error> {
    let revoker = Revoker::Organization(organization.id);
    grants::revoke(&context, revoker, ApprovalId(id), &audit)
        .await
        .map(|()| OkEmpty)
}

pub(super) static REVOKE_ALL: Endpoint = endpoint(
    "gantry-revoke-organization-oauth-authorizations",
    "Revoke all authorizations of an application in an organization",
    Verb::Delete,
    "/v1/organizations/{slug}/oauth/apps/{id}/authorizations",
    MANAGE,
    || mount(revoke_all),
);

/// The number of authorizations that the request revoked.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "EndedOauthAuthorizations")]
pub struct RevokedAuthorizations {
    /// Revoked authorizations of members.
    pub authorizations_revoked: u64,
}

impl RevokedAuthorizations {
    /// The response with this number.
    pub(super) fn view(authorizations_revoked: u64) -> Json<Self> {
        Json(Self {
            authorizations_revoked,
        })
    }
}

/// Accepts applications of other organizations too: most applications that members use are
/// registered elsewhere.
async fn revoke_all(
    organization: Organization,
    PathId(id): PathId,
    context: ApiContext,
    audit: Arc<Recorder>,
) -> Result<Json<RevokedAuthorizations>, Error> {
    audit.answer_with(|count: &u64| RevokedAuthorizations::view(*count).respond());
    let count = grants::revoke_all(&context, organization.id, id, &audit).await?;
    Ok(RevokedAuthorizations::view(count))
}
