//! Operations that answer requests of applications: what the pages ask.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Answering, Choice, Request, approve, deny, look};
use crate::{
    api::{
        context::ApiContext,
        oauth::{applications::Selection, redirect},
    },
    base::{error::Error, ids::ProjectRef},
    platform::{
        access::{Access, Organization, Standing, User},
        audit::Recorder,
        http::{
            Call, Endpoint, Input, Json, PathId, Tag, Verb, mount, openapi::OperationDoc,
            output::Created,
        },
        rate_limits::STANDARD,
    },
};

/// A request, as a page shows it.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "OauthRequest")]
pub struct Shown {
    /// What the application is called.
    pub name: String,
    /// Its own page.
    pub website: String,
    /// A picture.
    pub icon: Option<String>,
    /// Where the answer goes, in a few words.
    pub domain: String,
    /// What it asks for.
    pub scopes: Vec<String>,
    /// Whether the operator vouches for it.
    pub verified: bool,
    /// Whether it registered itself.
    pub registered_itself: bool,
    /// Whether it may do no more than who approves it may at the time.
    pub bind_to_authorizing_user: bool,
    /// Whether projects are chosen.
    pub project_selection: Selection,
    /// The organization it would like.
    pub organization_slug: Option<String>,
    /// The project it would like.
    pub project_ref: Option<String>,
    /// When it is over.
    pub expires_at: DateTime<Utc>,
    /// When it was approved.
    pub approved_at: Option<DateTime<Utc>>,
}

impl Shown {
    fn new(request: Request) -> Self {
        let application = request.application;
        Self {
            domain: redirect::shown(&request.redirect_uri),
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
            bind_to_authorizing_user: application.bound,
            project_selection: application.selection,
            organization_slug: request.organization,
            project_ref: request.project,
            expires_at: request.expires_at,
            approved_at: request.approved_at,
        }
    }
}

/// Where the browser goes on.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "OauthAnswer")]
pub struct Answer {
    /// The application's address, with the answer.
    pub url: String,
}

pub(in crate::api::oauth) static LOOK: Endpoint = Endpoint {
    id: "gantry-get-oauth-request",
    summary: "Get what an application asks for",
    tag: Tag::Gantry,
    method: Verb::Get,
    path: "/platform/oauth/authorizations/{id}",
    aliases: &[],
    access: Access::Unscoped,
    limit: &STANDARD,
    handler: || mount(show),
};

async fn show(PathId(id): PathId, context: ApiContext) -> Result<Json<Shown>, Error> {
    Ok(Json(Shown::new(
        look(&context.db, id, context.clock.now()).await?,
    )))
}

pub(in crate::api::oauth) static APPROVE: Endpoint = Endpoint {
    id: "gantry-approve-oauth-request",
    summary: "Let an application do what it asks for, in this organization",
    tag: Tag::Gantry,
    method: Verb::Post,
    path: "/platform/organizations/{slug}/oauth/authorizations/{id}",
    aliases: &[],
    access: Access::Unscoped,
    limit: &STANDARD,
    handler: || mount(approved).sample(r#"{"project_refs": null}"#),
};

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "ApproveOauthRequest")]
#[serde(deny_unknown_fields)]
struct Approval {
    /// Refs of projects of the organization; all there are and will be, if null.
    project_refs: Option<Vec<ProjectRef>>,
}

async fn approved(
    PathId(id): PathId,
    user: User,
    Named {
        organization,
        standing,
    }: Named,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(approval): Json<Approval>,
) -> Result<Created<Answer>, Error> {
    let Standing::Member(held) = standing else {
        return Err(Error::NotFound);
    };
    let request = look(&context.db, id, context.clock.now()).await?;
    let choice = Choice {
        organization: &organization,
        held,
        projects: approval.project_refs,
    };
    Ok(Created(Answer {
        url: approve(&context, &request, answering(&user), choice, &audit).await?,
    }))
}

/// The organization that is chosen, with what the caller is there.
struct Named {
    organization: Organization,
    standing: Standing,
}

impl Input for Named {
    fn describe(described: &mut OperationDoc) {
        Organization::describe(described);
    }

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        Ok(Self {
            organization: Organization::take(call).await?,
            standing: Standing::take(call).await?,
        })
    }
}

fn answering(user: &User) -> Answering {
    Answering {
        user: user.id,
        on_pages: user.token.is_none(),
    }
}

pub(in crate::api::oauth) static DENY: Endpoint = Endpoint {
    id: "gantry-deny-oauth-request",
    summary: "Refuse what an application asks for",
    tag: Tag::Gantry,
    method: Verb::Delete,
    path: "/platform/oauth/authorizations/{id}",
    aliases: &[],
    access: Access::Unscoped,
    limit: &STANDARD,
    handler: || mount(denied),
};

async fn denied(
    PathId(id): PathId,
    user: User,
    context: ApiContext,
) -> Result<Json<Answer>, Error> {
    let request = look(&context.db, id, context.clock.now()).await?;
    Ok(Json(Answer {
        url: deny(&context, &request, answering(&user)).await?,
    }))
}

/// The number of a request, as the page's address has it.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct AuthId {
    /// `auth_id`.
    pub auth_id: Uuid,
}
