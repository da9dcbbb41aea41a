//! Operations on an organization's applications. Managing them requires the permission to invite
//! members.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{
    Application, ApplicationDraft, ApplicationPatch, ProjectSelection, secrets,
    secrets::ApplicationSecret,
};
use crate::{
    api::{
        context::ApiContext,
        oauth::{
            GeneratedSecret, applications, authorizations::RevokedAuthorizations, endpoint, grants,
        },
        path::path_parameters,
    },
    platform::{
        access::{Access, Organization, Permission as P, User, pat_only},
        audit::Recorder,
        error::Error,
        http::{
            Call, Endpoint, Input, Json, Output, PathId, Verb, mount,
            operation_doc::OperationDoc,
            output::{Created, NoStore, OkEmpty},
        },
    },
};

/// Every member can read applications; administrators manage them.
const READ: Access = pat_only(&[&[P::OrganizationAdminRead]]);
const WRITE: Access = pat_only(&[&[P::MembersWrite]]);

/// An application as its organization sees it.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "OauthApplication")]
pub struct ApplicationView {
    /// Client id.
    pub id: Uuid,
    /// Display name.
    pub name: String,
    /// Website.
    pub website: String,
    /// URL of an icon.
    pub icon: Option<String>,
    /// Redirect URIs.
    pub redirect_uris: Vec<String>,
    /// Scopes that it may request.
    pub scopes: Vec<String>,
    /// Whether it is a public client, which cannot keep a secret.
    pub public: bool,
    /// Whether its tokens are limited to the role of the granting member.
    pub bind_to_authorizing_user: bool,
    /// The choice of projects at consent.
    pub project_selection: ProjectSelection,
    /// Whether the operator verified it.
    pub verified: bool,
    /// Time of registration.
    pub created_at: DateTime<Utc>,
}

impl From<Application> for ApplicationView {
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
            bind_to_authorizing_user: application.bound_to_user,
            project_selection: application.selection,
            verified: application.verified,
            created_at: application.created_at,
        }
    }
}

/// An application with its secrets.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "OauthApplicationDetail")]
pub struct ApplicationDetail {
    /// The application.
    #[serde(flatten)]
    pub application: ApplicationView,
    /// Live secrets.
    pub secrets: Vec<ApplicationSecret>,
    /// Number of live grants of members.
    pub authorizations: i64,
}

/// The organization's application with the id in the path.
struct PathApplication(Application);

impl Input for PathApplication {
    fn describe(audit_value: &mut OperationDoc) {
        Organization::describe(audit_value);
    }

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        let organization = Organization::take(call).await?;
        let context = ApiContext::take(call).await?;
        let PathId(id) = PathId::take(call).await.map_err(|_| Error::NotFound)?;
        applications::by_organization(&context.db, organization.id, id)
            .await
            .map(Self)
    }
}

pub(in crate::api::oauth) static LIST: Endpoint = endpoint(
    "gantry-list-oauth-applications",
    "List an organization's OAuth applications",
    Verb::Get,
    "/v1/organizations/{slug}/oauth/apps",
    READ,
    || mount(list),
);

async fn list(
    organization: Organization,
    context: ApiContext,
) -> Result<Json<Vec<ApplicationView>>, Error> {
    let found = applications::list(&context.db, organization.id).await?;
    Ok(Json(found.into_iter().map(ApplicationView::from).collect()))
}

pub(in crate::api::oauth) static CREATE: Endpoint = endpoint(
    "gantry-create-oauth-application",
    "Register an OAuth application",
    Verb::Post,
    "/v1/organizations/{slug}/oauth/apps",
    WRITE,
    || {
        mount(create).sample(r#"{"name": "Example", "redirect_uris": ["https://app.example/callback"], "scopes": ["projects:read"]}"#)
    },
);

async fn create(
    organization: Organization,
    user: User,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(draft): Json<ApplicationDraft>,
) -> Result<Created<ApplicationView>, Error> {
    audit.answer_with(|created: &Application| {
        Created(ApplicationView::from(created.clone())).respond()
    });
    let created = applications::create(
        &context.db,
        &context.entropy,
        (organization.id, user.id),
        &draft,
        context.clock.now(),
        &audit,
    )
    .await?;
    Ok(Created(created.into()))
}

pub(in crate::api::oauth) static GET: Endpoint = endpoint(
    "gantry-get-oauth-application",
    "Get an OAuth application",
    Verb::Get,
    "/v1/organizations/{slug}/oauth/apps/{id}",
    READ,
    || mount(get),
);

async fn get(
    PathApplication(application): PathApplication,
    context: ApiContext,
) -> Result<Json<ApplicationDetail>, Error> {
    let secrets = secrets::list(&context.db, application.id).await?;
    let authorizations = grants::count(&context.db, application.id).await?;
    Ok(Json(ApplicationDetail {
        application: application.into(),
        secrets,
        authorizations,
    }))
}

pub(in crate::api::oauth) static UPDATE: Endpoint = endpoint(
    "gantry-update-oauth-application",
    "Update an OAuth application",
    Verb::Patch,
    "/v1/organizations/{slug}/oauth/apps/{id}",
    WRITE,
    || mount(change).sample(r#"{"name": "Example", "bind_to_authorizing_user": true}"#),
);

async fn change(
    PathApplication(application): PathApplication,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(change): Json<ApplicationPatch>,
) -> Result<Json<ApplicationView>, Error> {
    audit.answer_with(|changed: &Application| {
        Json(ApplicationView::from(changed.clone())).respond()
    });
    let changed = applications::change(
        &context.db,
        application.id,
        change,
        context.clock.now(),
        &audit,
    )
    .await?;
    grants::publish_revocation(&context).await?;
    Ok(Json(changed.into()))
}

pub(in crate::api::oauth) static DELETE: Endpoint = endpoint(
    "gantry-delete-oauth-application",
    "Delete an OAuth application and revoke its authorizations",
    Verb::Delete,
    "/v1/organizations/{slug}/oauth/apps/{id}",
    WRITE,
    || mount(delete),
);

async fn delete(
    PathApplication(application): PathApplication,
    context: ApiContext,
    audit: Arc<Recorder>,
) -> Result<Json<RevokedAuthorizations>, Error> {
    audit.answer_with(|count: &u64| RevokedAuthorizations::view(*count).respond());
    let authorizations_revoked =
        applications::delete(&context.db, &application, context.clock.now(), &audit).await?;
    grants::publish_revocation(&context).await?;
    Ok(RevokedAuthorizations::view(authorizations_revoked))
}

pub(in crate::api::oauth) static ADD_SECRET: Endpoint = endpoint(
    "gantry-create-oauth-secret",
    "Create a secret of an OAuth application. It is returned only once",
    Verb::Post,
    "/v1/organizations/{slug}/oauth/apps/{id}/secrets",
    WRITE,
    || mount(add_secret),
);

/// A new secret.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "CreatedOauthSecret")]
pub struct CreatedApplicationSecret {
    /// The metadata of the secret.
    #[serde(flatten)]
    pub about: ApplicationSecret,
    /// The secret in plain text. It is returned only once.
    pub secret: String,
}

async fn add_secret(
    PathApplication(application): PathApplication,
    context: ApiContext,
    audit: Arc<Recorder>,
) -> Result<NoStore<Created<CreatedApplicationSecret>>, Error> {
    let secret = GeneratedSecret::secret(&context.entropy);
    let view = |about, secret| NoStore(Created(CreatedApplicationSecret { about, secret }));
    let text = SecretString::from(secret.expose());
    audit.answer_with(move |about: &ApplicationSecret| {
        view(about.clone(), text.expose_secret().to_owned()).respond()
    });
    let about = secrets::add(
        &context.db,
        &application,
        &secret,
        context.clock.now(),
        &audit,
    )
    .await?;
    Ok(view(about, secret.expose().to_owned()))
}

pub(in crate::api::oauth) static REVOKE_SECRET: Endpoint = endpoint(
    "gantry-revoke-oauth-secret",
    "Revoke a secret of an OAuth application",
    Verb::Delete,
    "/v1/organizations/{slug}/oauth/apps/{id}/secrets/{secret_id}",
    WRITE,
    || mount(revoke_secret),
);

path_parameters! {
    /// A secret id from the path. The handlers check that it belongs to the application.
    struct ApplicationSecretId(i64) from "secret_id", else Error::NotFound;
}

async fn revoke_secret(
    PathApplication(application): PathApplication,
    ApplicationSecretId(id): ApplicationSecretId,
    context: ApiContext,
    audit: Arc<Recorder>,
) -> Result<OkEmpty, Error> {
    secrets::revoke(&context.db, &application, id, context.clock.now(), &audit)
        .await
        .map(|()| OkEmpty)
}
