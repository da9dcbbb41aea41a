//! Operations on an organization's applications. Who may let others in, may let applications ask.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Application, Change, Draft, Selection, secrets, secrets::Secret};
use crate::{
    api::{
        context::ApiContext,
        oauth::{Minted, applications, authorizations::Ended, grants},
    },
    base::error::Error,
    platform::{
        access::{Access, Organization, Permission as P, User, pat_only},
        audit::Recorder,
        http::{
            Call, Endpoint, Input, Json, PathId, Tag, Verb, mount,
            openapi::OperationDoc,
            output::{Created, NoStore, OkEmpty},
        },
        rate_limits::STANDARD,
    },
};

/// Every member sees what is registered; administrators change it.
const SEES: Access = pat_only(&[&[P::OrganizationAdminRead]]);
const CHANGES: Access = pat_only(&[&[P::MembersWrite]]);

/// An application, as its organization sees it.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "OauthApplication")]
pub struct Shown {
    /// Its client id.
    pub id: Uuid,
    /// What it is called.
    pub name: String,
    /// Its own page.
    pub website: String,
    /// A picture.
    pub icon: Option<String>,
    /// Where it can be answered.
    pub redirect_uris: Vec<String>,
    /// What it may ask for.
    pub scopes: Vec<String>,
    /// It can keep no secret.
    pub public: bool,
    /// It may do no more than who approves it may at the time.
    pub bind_to_authorizing_user: bool,
    /// Whether projects are chosen.
    pub project_selection: Selection,
    /// Whether the operator vouches for it.
    pub verified: bool,
    /// When it was registered.
    pub created_at: DateTime<Utc>,
}

impl From<Application> for Shown {
    fn from(application: Application) -> Self {
        Self {
            id: application.client_id,
            name: application.name,
            website: application.website,
            icon: application.icon,
            redirect_uris: application.redirect_uris,
            scopes: application
                .scopes
                .names()
                .into_iter()
                .map(str::to_owned)
                .collect(),
            public: application.public,
            bind_to_authorizing_user: application.bound,
            project_selection: application.selection,
            verified: application.verified,
            created_at: application.created_at,
        }
    }
}

/// The same with what belongs to it.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "OauthApplicationDetail")]
pub struct Detail {
    /// The application.
    #[serde(flatten)]
    pub application: Shown,
    /// Its live secrets.
    pub secrets: Vec<Secret>,
    /// How many approvals of members it has.
    pub authorizations: i64,
}

/// The organization's application that the path names.
struct Named(Application);

impl Input for Named {
    fn describe(described: &mut OperationDoc) {
        Organization::describe(described);
    }

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        let (organization, context) = (
            Organization::take(call).await?,
            ApiContext::take(call).await?,
        );
        let PathId(id) = PathId::take(call).await.map_err(|_| Error::NotFound)?;
        applications::of_organization(&context.db, organization.id, id)
            .await
            .map(Self)
    }
}

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

pub(in crate::api::oauth) static LIST: Endpoint = Endpoint {
    handler: || mount(list),
    ..endpoint(
        "gantry-list-oauth-applications",
        "List an organization's OAuth applications",
        Verb::Get,
        "/v1/organizations/{slug}/oauth/apps",
        SEES,
    )
};

async fn list(organization: Organization, context: ApiContext) -> Result<Json<Vec<Shown>>, Error> {
    let found = applications::list(&context.db, organization.id).await?;
    Ok(Json(found.into_iter().map(Shown::from).collect()))
}

pub(in crate::api::oauth) static CREATE: Endpoint = Endpoint {
    handler: || {
        mount(create).sample(r#"{"name": "Example", "redirect_uris": ["https://app.example/callback"], "scopes": ["projects:read"]}"#)
    },
    ..endpoint(
        "gantry-create-oauth-application",
        "Register an OAuth application",
        Verb::Post,
        "/v1/organizations/{slug}/oauth/apps",
        CHANGES,
    )
};

async fn create(
    organization: Organization,
    user: User,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(draft): Json<Draft>,
) -> Result<Created<Shown>, Error> {
    let made = applications::create(
        &context.db,
        &context.entropy,
        (organization.id, user.id),
        &draft,
        context.clock.now(),
        &audit,
    )
    .await?;
    Ok(Created(made.into()))
}

pub(in crate::api::oauth) static GET: Endpoint = Endpoint {
    handler: || mount(get),
    ..endpoint(
        "gantry-get-oauth-application",
        "Get an OAuth application",
        Verb::Get,
        "/v1/organizations/{slug}/oauth/apps/{id}",
        SEES,
    )
};

async fn get(Named(application): Named, context: ApiContext) -> Result<Json<Detail>, Error> {
    let secrets = secrets::list(&context.db, application.id).await?;
    let authorizations = grants::count(&context.db, application.id).await?;
    Ok(Json(Detail {
        application: application.into(),
        secrets,
        authorizations,
    }))
}

pub(in crate::api::oauth) static CHANGE: Endpoint = Endpoint {
    handler: || mount(change).sample(r#"{"name": "Example", "bind_to_authorizing_user": true}"#),
    ..endpoint(
        "gantry-update-oauth-application",
        "Change an OAuth application",
        Verb::Patch,
        "/v1/organizations/{slug}/oauth/apps/{id}",
        CHANGES,
    )
};

async fn change(
    Named(application): Named,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(change): Json<Change>,
) -> Result<Json<Shown>, Error> {
    let changed = applications::change(
        &context.db,
        application.id,
        change,
        context.clock.now(),
        &audit,
    )
    .await?;
    grants::settle(&context).await?;
    Ok(Json(changed.into()))
}

pub(in crate::api::oauth) static DELETE: Endpoint = Endpoint {
    handler: || mount(delete),
    ..endpoint(
        "gantry-delete-oauth-application",
        "Delete an OAuth application, and end what members approved for it",
        Verb::Delete,
        "/v1/organizations/{slug}/oauth/apps/{id}",
        CHANGES,
    )
};

async fn delete(
    Named(application): Named,
    context: ApiContext,
    audit: Arc<Recorder>,
) -> Result<Json<Ended>, Error> {
    let authorizations_revoked =
        applications::delete(&context.db, &application, context.clock.now(), &audit).await?;
    grants::settle(&context).await?;
    Ok(Json(Ended {
        authorizations_revoked,
    }))
}

pub(in crate::api::oauth) static ADD_SECRET: Endpoint = Endpoint {
    handler: || mount(add_secret),
    ..endpoint(
        "gantry-create-oauth-secret",
        "Make a secret of an OAuth application, shown once",
        Verb::Post,
        "/v1/organizations/{slug}/oauth/apps/{id}/secrets",
        CHANGES,
    )
};

/// A secret that was made just now.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "CreatedOauthSecret")]
pub struct CreatedSecret {
    /// What is told about it afterwards.
    #[serde(flatten)]
    pub about: Secret,
    /// The secret itself. It is not shown again.
    pub secret: String,
}

async fn add_secret(
    Named(application): Named,
    context: ApiContext,
    audit: Arc<Recorder>,
) -> Result<NoStore<Created<CreatedSecret>>, Error> {
    let secret = Minted::secret(&context.entropy);
    let about = secrets::add(
        &context.db,
        &application,
        &secret,
        context.clock.now(),
        &audit,
    )
    .await?;
    Ok(NoStore(Created(CreatedSecret {
        about,
        secret: secret.expose().to_owned(),
    })))
}

pub(in crate::api::oauth) static REVOKE_SECRET: Endpoint = Endpoint {
    handler: || mount(revoke_secret),
    ..endpoint(
        "gantry-revoke-oauth-secret",
        "Revoke a secret of an OAuth application",
        Verb::Delete,
        "/v1/organizations/{slug}/oauth/apps/{id}/secrets/{secret_id}",
        CHANGES,
    )
};

/// The secret that the path names. Whether it is the application's is looked up with it.
struct SecretId(i64);

impl Input for SecretId {
    fn describe(_: &mut OperationDoc) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        call.placeholder("secret_id")
            .and_then(|id| id.parse().ok())
            .map(Self)
            .ok_or(Error::NotFound)
    }
}

async fn revoke_secret(
    Named(application): Named,
    SecretId(id): SecretId,
    context: ApiContext,
    audit: Arc<Recorder>,
) -> Result<OkEmpty, Error> {
    secrets::revoke(&context.db, &application, id, context.clock.now(), &audit)
        .await
        .map(|()| OkEmpty)
}
