//! Operations on invitations to a database.

use std::sync::Arc;

use gantry_base::ids::ProjectRef;
use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{LoginResponse, RoleGrant, role_grants, validate_roles};
use crate::{
    api::{accounts, context::ApiContext, path::path_parameters, projects::timestamp},
    control::temporary_access::{
        self,
        invitations::{self, DatabaseInvitation},
    },
    platform::{
        access::{Access, Permission as P, Project, User, pat_only},
        audit::Recorder,
        error::Error,
        http::{
            Endpoint, Json, Output, Tag, Verb, mount,
            output::{Created, OkEmpty},
        },
        rate_limits::{STANDARD, STANDARD_BY_CALLER},
    },
};

pub(super) static INVITE: Endpoint = Endpoint {
    id: "v1-invite-external-jit-access",
    summary: "Invite a person outside the organization to the database",
    tag: Tag::Database,
    method: Verb::Post,
    path: "/v1/projects/{ref}/database/jit/invite",
    aliases: &[],
    access: pat_only(&[&[P::DatabaseJitWrite]]),
    limit: &STANDARD,
    handler: || {
        mount(invite)
            .destructive("invites a person to the database")
            .sample(
                r#"{"email": "ada@example.com", "roles": [{"role": "supabase_read_only_user"}]}"#,
            )
    },
};

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "InviteExternalJitAccessBody")]
struct InviteToDatabaseRequest {
    /// E-mail address of the account that can accept the invitation.
    email: String,
    /// Granted roles, for one day if they have no expiry.
    #[schemars(length(min = 1))]
    roles: Vec<RoleGrant>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "InviteExternalJitAccessResponse")]
struct InviteToDatabaseResponse {
    email: String,
    invite_id: Uuid,
    user_roles: Vec<RoleGrant>,
    /// Secret of the invitation, an extension of the contract. Returned once.
    token: String,
    /// Expiry of the invitation, an extension of the contract.
    expires_at: String,
}

async fn invite(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(request): Json<InviteToDatabaseRequest>,
) -> Result<Created<InviteToDatabaseResponse>, Error> {
    accounts::local_part(&request.email)?;
    let grants = validate_roles(&context, request.roles)?;
    if grants.is_empty() {
        return Err(Error::invalid(
            "roles",
            "Invalid input: expected at least one",
        ));
    }
    let view = |(made, secret): &(DatabaseInvitation, SecretString)| {
        Created(InviteToDatabaseResponse {
            email: made.email.clone(),
            invite_id: made.id,
            user_roles: role_grants(made.grants.clone()),
            token: secret.expose_secret().to_owned(),
            expires_at: timestamp(made.expires_at),
        })
    };
    audit.answer_with(move |made| view(made).respond());
    let made = invitations::invite(&context, &project, request.email, grants, &audit).await?;
    // An accepted invitation may have been replaced.
    temporary_access::wait_until_revoked(&context, &project).await?;
    Ok(view(&made))
}

pub(super) static ACCEPT: Endpoint = Endpoint {
    id: "v1-accept-invite-external-jit-access",
    summary: "Accept an invitation to a database and create its logins",
    tag: Tag::Database,
    method: Verb::Post,
    path: "/v1/projects/{ref}/database/jit/invite/accept",
    aliases: &[],
    access: Access::Unscoped,
    limit: &STANDARD_BY_CALLER,
    handler: || {
        mount(accept)
            .answers_after_change()
            .sample(r#"{"email": "ada@example.com", "token": "gantry_jit_invite_…"}"#)
    },
};

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "AcceptInviteExternalJitAccessBody")]
struct AcceptRequest {
    /// E-mail address of the caller.
    email: String,
    /// Secret of the invitation.
    #[schemars(length(min = 1))]
    token: String,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "AcceptInviteExternalJitAccessResponse")]
struct AcceptResponse {
    user_id: Uuid,
    user_roles: Vec<RoleGrant>,
    /// Credentials in the order of the roles, an extension of the contract. Accepting again renews
    /// them.
    logins: Vec<LoginResponse>,
}

async fn accept(
    ProjectRefPath(project): ProjectRefPath,
    user: User,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(request): Json<AcceptRequest>,
) -> Result<Json<AcceptResponse>, Error> {
    let credentials = (request.email.as_str(), &SecretString::from(request.token));
    let opened = invitations::accept(&context, &project, &user, credentials, &audit).await?;
    let logins = opened
        .iter()
        .map(|opened| LoginResponse::new(&context, opened))
        .collect();
    let user_roles = opened
        .into_iter()
        .map(|opened| opened.grant.into())
        .collect();
    Ok(Json(AcceptResponse {
        user_id: user.gotrue_id,
        user_roles,
        logins,
    }))
}

path_parameters! {
    /// `{ref}` of the path, of a project that the caller may be unrelated to.
    struct ProjectRefPath(ProjectRef) from "ref", else Error::NotFound;
}

pub(super) static REVOKE: Endpoint = Endpoint {
    id: "v1-delete-invite-external-jit-access",
    summary: "Revoke an invitation to the database",
    tag: Tag::Database,
    method: Verb::Delete,
    path: "/v1/projects/{ref}/database/jit/invite/{invite_id}",
    aliases: &[],
    access: pat_only(&[&[P::DatabaseJitWrite]]),
    limit: &STANDARD,
    handler: || mount(revoke),
};

path_parameters! {
    /// `{invite_id}` of the path.
    struct InvitePath(Uuid) from "invite_id", else Error::invalid("invite_id", "Invalid input: expected a UUID");
}

async fn revoke(
    project: Project,
    InvitePath(id): InvitePath,
    context: ApiContext,
    audit: Arc<Recorder>,
) -> Result<OkEmpty, Error> {
    invitations::revoke(&context, &project, id, &audit).await?;
    temporary_access::wait_until_revoked(&context, &project).await?;
    Ok(OkEmpty)
}
