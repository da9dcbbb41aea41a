//! Operations of API v2 on invitations.

use std::sync::Arc;

use schemars::JsonSchema;
use secrecy::ExposeSecret;
use serde::{Deserialize, Serialize};

use super::{Envelope, ProjectParameter, RoleParameter, project_refs};
use crate::{
    api::{
        accounts,
        context::ApiContext,
        organizations::invitations::{self, InvitationDraft},
    },
    platform::{
        access::{
            CallerRelation, OauthScope as S, Organization, Permission as P, Role, User, needs,
        },
        audit::Recorder,
        error::{Denial, Error},
        http::{Endpoint, Json, Output, Tag, Verb, mount, output::Created},
        rate_limits::STANDARD,
    },
};

pub(super) static CREATE: Endpoint = Endpoint {
    id: "v2-create-organization-invitations",
    summary: "Create invitations, valid for one day",
    tag: Tag::Organizations,
    method: Verb::Post,
    path: "/v2/organizations/{slug}/members/invitations",
    aliases: &[],
    access: needs(&[&[P::MembersWrite]], S::OrganizationsWrite),
    limit: &STANDARD,
    handler: || {
        mount(create)
            .sample(r#"{"data": [{"type": "organization_invitation", "attributes": {"email": "ada@example.com", "role": "developer"}}]}"#)
    },
};

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "InviteRequest")]
struct CreateInvitationsRequest {
    #[schemars(length(min = 1, max = 50))]
    data: Vec<InviteResource>,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct InviteResource {
    #[expect(dead_code, reason = "there is one kind")]
    r#type: InvitationType,
    attributes: InviteAttributes,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum InvitationType {
    OrganizationInvitation,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct InviteAttributes {
    email: String,
    role: RoleParameter,
    /// Projects on which the role applies; the whole organization, if absent.
    #[schemars(length(min = 1, max = 100))]
    projects: Option<Vec<ProjectParameter>>,
    /// Not supported: there is no single sign-on per organization.
    #[serde(default)]
    require_sso: bool,
}

/// An open invitation.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OrganizationInvitation")]
struct InvitationResource {
    r#type: &'static str,
    attributes: InvitationAttributes,
}

#[derive(Debug, Serialize, JsonSchema)]
struct InvitationAttributes {
    email: String,
    /// The secret to accept the invitation with. It is returned only once, and no email is sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    /// Expiry time.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<chrono::DateTime<chrono::Utc>>,
}

/// Maximum number of invitations per request.
const INVITATIONS_MAX: usize = 50;

async fn create(
    organization: Organization,
    standing: CallerRelation,
    audit: Arc<Recorder>,
    user: User,
    context: ApiContext,
    Json(request): Json<CreateInvitationsRequest>,
) -> Result<Created<Envelope<Vec<InvitationResource>>>, Error> {
    if !(1..=INVITATIONS_MAX).contains(&request.data.len()) {
        return Err(Error::invalid(
            "data",
            format!("expected 1 to {INVITATIONS_MAX}"),
        ));
    }
    let invites = request
        .data
        .into_iter()
        .map(|resource| invitation(resource.attributes, standing))
        .collect::<Result<_, _>>()?;
    let view = |created: &Vec<invitations::CreatedInvitation>| {
        let resource = |created: &invitations::CreatedInvitation| InvitationResource {
            r#type: "organization_invitation",
            attributes: InvitationAttributes {
                email: created.email.clone(),
                token: Some(created.secret.expose_secret().to_owned()),
                expires_at: Some(created.expires_at),
            },
        };
        Created(Envelope {
            data: created.iter().map(resource).collect(),
        })
    };
    audit.answer_with(move |created| view(created).respond());
    let created = invitations::invite(
        &context.db,
        &context.entropy,
        organization.id,
        user.id,
        invites,
        (context.clock.now(), &audit),
    )
    .await?;
    Ok(view(&created))
}

/// Builds an invitation. The role must not exceed the inviting member's role.
fn invitation(
    attributes: InviteAttributes,
    standing: CallerRelation,
) -> Result<InvitationDraft, Error> {
    let role = Role::from(attributes.role);
    if !matches!(standing, CallerRelation::Member(roles) if roles.organization >= role) {
        return Err(Error::Forbidden(Denial::Role));
    }
    if attributes.require_sso {
        return Err(Error::invalid("require_sso", "is not supported"));
    }
    accounts::local_part(&attributes.email)?;
    Ok(InvitationDraft {
        email: attributes.email,
        role,
        projects: project_refs(attributes.projects)?.unwrap_or_default(),
    })
}

pub(super) static REVOKE: Endpoint = Endpoint {
    id: "v2-delete-organization-invitations",
    summary: "Revoke invitations",
    tag: Tag::Organizations,
    method: Verb::Delete,
    path: "/v2/organizations/{slug}/members/invitations",
    aliases: &[],
    access: needs(&[&[P::MembersWrite]], S::OrganizationsWrite),
    limit: &STANDARD,
    handler: || {
        mount(revoke).sample(r#"{"data": [{"type": "organization_invitation", "attributes": {"email": "ada@example.com"}}]}"#)
    },
};

#[derive(Debug, Deserialize, JsonSchema)]
struct RevokeRequest {
    #[schemars(length(min = 1, max = 100))]
    data: Vec<RevokeResource>,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct RevokeResource {
    #[expect(dead_code, reason = "there is one kind")]
    r#type: InvitationType,
    attributes: RevokeAttributes,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct RevokeAttributes {
    email: String,
}

async fn revoke(
    organization: Organization,
    audit: Arc<Recorder>,
    context: ApiContext,
    Json(request): Json<RevokeRequest>,
) -> Result<Json<Envelope<Vec<InvitationResource>>>, Error> {
    if !(1..=100).contains(&request.data.len()) {
        return Err(Error::invalid("data", "expected 1 to 100"));
    }
    let emails: Vec<_> = request
        .data
        .into_iter()
        .map(|resource| resource.attributes.email)
        .collect();
    let view = |emails: Vec<String>| {
        let attributes = |email| InvitationAttributes {
            email,
            token: None,
            expires_at: None,
        };
        let resource = |email| InvitationResource {
            r#type: "organization_invitation",
            attributes: attributes(email),
        };
        Json(Envelope {
            data: emails.into_iter().map(resource).collect(),
        })
    };
    audit.answer_with(move |revoked: &Vec<String>| view(revoked.clone()).respond());
    let revoked = invitations::revoke(
        &context.db,
        organization.id,
        &emails,
        context.clock.now(),
        &audit,
    )
    .await?;
    Ok(view(revoked))
}
