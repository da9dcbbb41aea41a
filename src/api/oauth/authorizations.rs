//! Operations on what was approved. Who approved it takes it back, and so do those who decide over the members of the organization.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    grants,
    grants::{Authorization, By, MemberAuthorization},
};
use crate::{
    api::context::ApiContext,
    base::{error::Error, ids::ApprovalId},
    platform::{
        access::{Access, Organization, Permission as P, User, pat_only},
        audit::Recorder,
        http::{
            Call, Endpoint, Input, Json, PathId, Tag, Verb, mount, openapi::OperationDoc,
            output::OkEmpty,
        },
        rate_limits::STANDARD,
    },
};

const fn endpoint(
    id: &'static str,
    summary: &'static str,
    method: Verb,
    path: &'static str,
    access: Access,
) -> Endpoint {
    Endpoint {
        id,
        summary,
        tag: Tag::Gantry,
        method,
        path,
        aliases: &[],
        access,
        limit: &STANDARD,
        handler: || mount(list),
    }
}

/// Who may show members the door may end what they let in.
const MANAGES: Access = pat_only(&[&[P::MembersWrite]]);

pub(super) static LIST: Endpoint = Endpoint {
    handler: || mount(list),
    ..endpoint(
        "gantry-list-oauth-authorizations",
        "List what one let applications do",
        Verb::Get,
        "/v1/oauth/authorizations",
        Access::Unscoped,
    )
};

async fn list(user: User, context: ApiContext) -> Result<Json<Vec<Authorization>>, Error> {
    Ok(Json(grants::list(&context.db, user.id).await?))
}

pub(super) static TAKE_BACK: Endpoint = Endpoint {
    handler: || mount(take_back),
    ..endpoint(
        "gantry-revoke-oauth-authorization",
        "Take back what one let an application do: its next request is refused, on every node",
        Verb::Delete,
        "/v1/oauth/authorizations/{id}",
        Access::Unscoped,
    )
};

/// The authorization the path names. Whose it is, is looked up with it.
struct Which(ApprovalId);

impl Input for Which {
    fn describe(_: &mut OperationDoc) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        call.placeholder("id")
            .and_then(|id| id.parse().ok())
            .map(|id| Self(ApprovalId(id)))
            .ok_or(Error::NotFound)
    }
}

async fn take_back(
    Which(id): Which,
    user: User,
    context: ApiContext,
    audit: Arc<Recorder>,
) -> Result<OkEmpty, Error> {
    grants::take_back(&context, By::Member(user.id), id, &audit)
        .await
        .map(|()| OkEmpty)
}

pub(super) static LIST_ALL: Endpoint = Endpoint {
    handler: || mount(list_all),
    ..endpoint(
        "gantry-list-organization-oauth-authorizations",
        "List what members let applications do in an organization",
        Verb::Get,
        "/v1/organizations/{slug}/oauth/authorizations",
        MANAGES,
    )
};

async fn list_all(
    organization: Organization,
    context: ApiContext,
) -> Result<Json<Vec<MemberAuthorization>>, Error> {
    Ok(Json(
        grants::of_organization(&context.db, organization.id).await?,
    ))
}

pub(super) static END: Endpoint = Endpoint {
    handler: || mount(end),
    ..endpoint(
        "gantry-revoke-organization-oauth-authorization",
        "Take back what a member let an application do in an organization: its next request is refused, on every node",
        Verb::Delete,
        "/v1/organizations/{slug}/oauth/authorizations/{id}",
        MANAGES,
    )
};

async fn end(
    organization: Organization,
    Which(id): Which,
    context: ApiContext,
    audit: Arc<Recorder>,
) -> Result<OkEmpty, Error> {
    grants::take_back(&context, By::Organization(organization.id), id, &audit)
        .await
        .map(|()| OkEmpty)
}

pub(super) static END_ALL: Endpoint = Endpoint {
    handler: || mount(end_all),
    ..endpoint(
        "gantry-revoke-organization-oauth-authorizations",
        "Take back everything that members let an application do in an organization, whoever registered it",
        Verb::Delete,
        "/v1/organizations/{slug}/oauth/apps/{id}/authorizations",
        MANAGES,
    )
};

/// What ended with it.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "EndedOauthAuthorizations")]
pub struct Ended {
    /// Approvals of members.
    pub authorizations_revoked: u64,
}

/// The application is not looked for among the organization's own: most that its members use are of others.
async fn end_all(
    organization: Organization,
    PathId(id): PathId,
    context: ApiContext,
    audit: Arc<Recorder>,
) -> Result<Json<Ended>, Error> {
    let authorizations_revoked =
        grants::take_back_all(&context, organization.id, id, &audit).await?;
    Ok(Json(Ended {
        authorizations_revoked,
    }))
}
