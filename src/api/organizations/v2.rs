//! Operations on members, their roles and invitations, in the shapes of v2.

use std::sync::Arc;

use schemars::JsonSchema;
use secrecy::ExposeSecret;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{
    invitations,
    invitations::Invite,
    members,
    members::{Membership, NamedProject, Page},
};
use crate::{
    api::{accounts, context::ApiContext},
    base::{
        error::{Denial, Error},
        ids::ProjectRef,
    },
    platform::{
        access::{OauthScope as S, Organization, Permission as P, Role, Standing, User, needs},
        audit::Recorder,
        http::{
            Call, Endpoint, Input, Json, Query, Tag, Verb, mount,
            openapi::OperationDoc,
            output::{Created, OkEmpty},
        },
        notifications,
        rate_limits::STANDARD,
        tables::Table,
    },
};

/// Endpoints of this part of the slice.
pub static ENDPOINTS: &[&Endpoint] = &[&MEMBERS, &ROLES, &ASSIGN, &REMOVE, &INVITE, &REVOKE];

static MEMBERS: Endpoint = Endpoint {
    id: "v2-list-organization-members",
    summary: "List members of an organization, with every role",
    tag: Tag::Organizations,
    method: Verb::Get,
    path: "/v2/organizations/{slug}/members",
    aliases: &[],
    access: needs(&[&[P::MembersRead]], S::OrganizationsRead),
    limit: &STANDARD,
    handler: || mount(list),
};

#[derive(Debug, Deserialize, JsonSchema)]
struct PageQuery {
    /// Members to return, 1 to 100.
    #[serde(rename = "page[size]", default = "whole_page")]
    #[schemars(range(min = 1, max = 100))]
    size: i64,
    #[serde(rename = "page[after]")]
    after: Option<Uuid>,
    #[serde(rename = "page[before]")]
    before: Option<Uuid>,
    #[serde(rename = "filter[username]")]
    username: Option<String>,
    #[serde(rename = "filter[primary_email]")]
    email: Option<String>,
}

fn whole_page() -> i64 {
    100
}

/// What v2 answers with are wrapped in.
#[derive(Debug, Serialize, JsonSchema)]
struct Data<T> {
    data: T,
}

/// A page of things.
#[derive(Debug, Serialize, JsonSchema)]
struct Paged<T> {
    data: Vec<T>,
    links: Links,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Links {
    prev: Option<String>,
    next: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OrganizationMember")]
struct MemberResource {
    r#type: &'static str,
    id: Uuid,
    attributes: MemberAttributes,
}

#[derive(Debug, Serialize, JsonSchema)]
struct MemberAttributes {
    username: String,
    primary_email: String,
    mfa_enabled: bool,
    is_sso_user: bool,
    avatar_url: Option<String>,
    roles: Vec<RoleAttributes>,
}

/// A role, in the organization or on projects.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OrganizationMemberRole")]
struct RoleAttributes {
    name: &'static str,
    scope: &'static str,
    projects: Vec<ProjectAttributes>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ProjectAttributes {
    r#ref: String,
    name: String,
}

impl RoleAttributes {
    fn in_organization(role: Role) -> Self {
        Self {
            name: role.name(),
            scope: "organization",
            projects: Vec::new(),
        }
    }

    fn on_projects(role: Role, projects: Vec<NamedProject>) -> Self {
        let projects = projects.into_iter().map(|project| ProjectAttributes {
            r#ref: project.reference,
            name: project.name,
        });
        Self {
            name: role.name(),
            scope: "project",
            projects: projects.collect(),
        }
    }
}

impl From<Membership> for MemberResource {
    fn from(member: Membership) -> Self {
        let mut roles = vec![RoleAttributes::in_organization(member.role)];
        roles.extend(
            member
                .on_projects
                .into_iter()
                .map(|(role, projects)| RoleAttributes::on_projects(role, projects)),
        );
        let attributes = MemberAttributes {
            username: member.username,
            primary_email: member.email,
            mfa_enabled: false,
            is_sso_user: false,
            avatar_url: None,
            roles,
        };
        Self {
            r#type: "organization_member",
            id: member.user,
            attributes,
        }
    }
}

async fn list(
    organization: Organization,
    context: ApiContext,
    Query(query): Query<PageQuery>,
) -> Result<Json<Paged<MemberResource>>, Error> {
    if !(1..=100).contains(&query.size) {
        return Err(Error::invalid("page[size]", "expected 1 to 100"));
    }
    if query.after.is_some() && query.before.is_some() {
        return Err(Error::invalid(
            "page[before]",
            "cannot be given together with page[after]",
        ));
    }
    let PageQuery {
        size,
        after,
        before,
        username,
        email,
    } = query;
    let (found, earlier, later) = members::page(
        &context.db,
        organization.id,
        &Page {
            size,
            after,
            before,
            username,
            email,
        },
    )
    .await?;
    let link = |way: &str, member: Option<&Membership>| {
        member.map(|member| {
            format!(
                "/v2/organizations/{}/members?page[size]={size}&page[{way}]={}",
                organization.slug, member.user
            )
        })
    };
    let links = Links {
        prev: link("before", found.first().filter(|_| earlier)),
        next: link("after", found.last().filter(|_| later)),
    };
    Ok(Json(Paged {
        data: found.into_iter().map(MemberResource::from).collect(),
        links,
    }))
}

static ROLES: Endpoint = Endpoint {
    id: "v2-list-organization-roles",
    summary: "List the roles a member can have",
    tag: Tag::Organizations,
    method: Verb::Get,
    path: "/v2/organizations/{slug}/roles",
    aliases: &[],
    access: needs(&[&[P::MembersRead]], S::OrganizationsRead),
    limit: &STANDARD,
    handler: || mount(roles),
};

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OrganizationRole")]
struct RoleResource {
    r#type: &'static str,
    attributes: RoleName,
}

#[derive(Debug, Serialize, JsonSchema)]
struct RoleName {
    name: &'static str,
}

async fn roles(_: Organization) -> Result<Json<Data<Vec<RoleResource>>>, Error> {
    let resource = |role: Role| RoleResource {
        r#type: "organization_role",
        attributes: RoleName { name: role.name() },
    };
    Ok(Json(Data {
        data: Role::ASSIGNABLE.into_iter().map(resource).collect(),
    }))
}

/// The member the path names.
struct MemberId(Uuid);

impl Input for MemberId {
    fn describe(_: &mut OperationDoc) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        let id = call.placeholder("user_id").and_then(|id| id.parse().ok());
        id.map(Self)
            .ok_or_else(|| Error::invalid("user_id", "expected a UUID"))
    }
}

static ASSIGN: Endpoint = Endpoint {
    id: "v2-assign-organization-member-role",
    summary: "Give a member a role in the organization, or on some of its projects",
    tag: Tag::Organizations,
    method: Verb::Patch,
    path: "/v2/organizations/{slug}/members/{user_id}/roles",
    aliases: &[],
    access: needs(&[&[P::OrganizationAdminWrite]], S::OrganizationsWrite),
    limit: &STANDARD,
    handler: || {
        mount(assign).sample(r#"{"data": {"type": "organization_member_role", "attributes": {"role": "developer"}}}"#)
    },
};

#[derive(Debug, Deserialize, JsonSchema)]
struct AssignRequest {
    data: AssignResource,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct AssignResource {
    #[expect(dead_code, reason = "there is one kind")]
    r#type: AssignType,
    attributes: AssignAttributes,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum AssignType {
    OrganizationMemberRole,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct AssignAttributes {
    role: GivenRole,
    /// Projects on which the role is given; in the whole organization, if absent.
    #[schemars(length(min = 1, max = 100))]
    projects: Option<Vec<GivenProject>>,
}

/// `no-access` takes a role away, and leaves a member without one.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum GivenRole {
    Owner,
    Administrator,
    Developer,
    ReadOnly,
    NoAccess,
}

impl From<GivenRole> for Role {
    fn from(role: GivenRole) -> Self {
        match role {
            GivenRole::Owner => Self::Owner,
            GivenRole::Administrator => Self::Administrator,
            GivenRole::Developer => Self::Developer,
            GivenRole::ReadOnly => Self::ReadOnly,
            GivenRole::NoAccess => Self::Member,
        }
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
struct GivenProject {
    r#ref: ProjectRef,
}

/// Projects named in one request.
const PROJECTS_MAX: usize = 100;

fn named(
    projects: Option<Vec<GivenProject>>,
) -> Result<Option<std::collections::BTreeSet<ProjectRef>>, Error> {
    let Some(projects) = projects else {
        return Ok(None);
    };
    if !(1..=PROJECTS_MAX).contains(&projects.len()) {
        return Err(Error::invalid(
            "projects",
            format!("expected 1 to {PROJECTS_MAX}"),
        ));
    }
    Ok(Some(
        projects.into_iter().map(|project| project.r#ref).collect(),
    ))
}

#[derive(Debug, Serialize, JsonSchema)]
struct AssignedResource {
    r#type: &'static str,
    attributes: RoleAttributes,
}

async fn assign(
    organization: Organization,
    MemberId(member): MemberId,
    audit: Arc<Recorder>,
    context: ApiContext,
    Json(request): Json<AssignRequest>,
) -> Result<Json<Data<AssignedResource>>, Error> {
    let AssignAttributes { role, projects } = request.data.attributes;
    let (role, now) = (Role::from(role), context.clock.now());
    let projects = named(projects)?;
    let user = members::by_id(&context.db, organization.id, member).await?;
    let attributes = if let Some(projects) = projects {
        RoleAttributes::on_projects(
            role,
            members::set_on_projects(
                &context.db,
                organization.id,
                user,
                role,
                &projects,
                (now, Some(&audit)),
            )
            .await?,
        )
    } else {
        members::set(&context.db, organization.id, user, role, now, Some(&audit)).await?;
        RoleAttributes::in_organization(role)
    };
    settle(&context).await?;
    Ok(Json(Data {
        data: AssignedResource {
            r#type: "organization_member_role",
            attributes,
        },
    }))
}

/// The next request on every node is decided by what was changed.
async fn settle(context: &ApiContext) -> Result<(), Error> {
    context.table_changed(Table::Members);
    notifications::settle(&context.db).await
}

static REMOVE: Endpoint = Endpoint {
    id: "v2-remove-organization-members",
    summary: "Remove a member: the next request with any of the member's tokens is refused",
    tag: Tag::Organizations,
    method: Verb::Delete,
    path: "/v2/organizations/{slug}/members/{user_id}",
    aliases: &[],
    access: needs(&[&[P::OrganizationAdminWrite]], S::OrganizationsWrite),
    limit: &STANDARD,
    handler: || mount(remove),
};

async fn remove(
    organization: Organization,
    MemberId(member): MemberId,
    audit: Arc<Recorder>,
    context: ApiContext,
) -> Result<OkEmpty, Error> {
    let user = members::by_id(&context.db, organization.id, member).await?;
    members::remove(
        &context.db,
        organization.id,
        user,
        context.clock.now(),
        Some(&audit),
    )
    .await?;
    settle(&context).await?;
    Ok(OkEmpty)
}

static INVITE: Endpoint = Endpoint {
    id: "v2-create-organization-invitations",
    summary: "Invite people. Each has a day to accept",
    tag: Tag::Organizations,
    method: Verb::Post,
    path: "/v2/organizations/{slug}/members/invitations",
    aliases: &[],
    access: needs(&[&[P::MembersWrite]], S::OrganizationsWrite),
    limit: &STANDARD,
    handler: || {
        mount(invite)
            .sample(r#"{"data": [{"type": "organization_invitation", "attributes": {"email": "ada@example.com", "role": "developer"}}]}"#)
    },
};

#[derive(Debug, Deserialize, JsonSchema)]
struct InviteRequest {
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
    role: GivenRole,
    /// Projects on which the role is given; in the whole organization, if absent.
    #[schemars(length(min = 1, max = 100))]
    projects: Option<Vec<GivenProject>>,
    /// Not supported: nobody signs in through an organization's own provider here.
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
    /// What the person accepts with: hand it over, it is not shown again. This server sends no mail.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    /// When the invitation is over.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<chrono::DateTime<chrono::Utc>>,
}

/// Invitations in one request.
const INVITATIONS_MAX: usize = 50;

async fn invite(
    organization: Organization,
    standing: Standing,
    audit: Arc<Recorder>,
    user: User,
    context: ApiContext,
    Json(request): Json<InviteRequest>,
) -> Result<Created<Data<Vec<InvitationResource>>>, Error> {
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
    let made = invitations::invite(
        &context.db,
        &context.entropy,
        organization.id,
        user.id,
        invites,
        (context.clock.now(), &audit),
    )
    .await?;
    let resource = |made: invitations::Invited| InvitationResource {
        r#type: "organization_invitation",
        attributes: InvitationAttributes {
            email: made.email,
            token: Some(made.secret.expose_secret().to_owned()),
            expires_at: Some(made.expires_at),
        },
    };
    Ok(Created(Data {
        data: made.into_iter().map(resource).collect(),
    }))
}

/// Nobody gives what is above the own role.
fn invitation(attributes: InviteAttributes, standing: Standing) -> Result<Invite, Error> {
    let role = Role::from(attributes.role);
    if !matches!(standing, Standing::Member(held) if held.organization >= role) {
        return Err(Error::Forbidden(Denial::Role));
    }
    if attributes.require_sso {
        return Err(Error::invalid("require_sso", "is not supported"));
    }
    accounts::local_part(&attributes.email)?;
    Ok(Invite {
        email: attributes.email,
        role,
        projects: named(attributes.projects)?.unwrap_or_default(),
    })
}

static REVOKE: Endpoint = Endpoint {
    id: "v2-delete-organization-invitations",
    summary: "Take back invitations",
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
) -> Result<Json<Data<Vec<InvitationResource>>>, Error> {
    if !(1..=100).contains(&request.data.len()) {
        return Err(Error::invalid("data", "expected 1 to 100"));
    }
    let emails: Vec<_> = request
        .data
        .into_iter()
        .map(|resource| resource.attributes.email)
        .collect();
    let gone = invitations::revoke(
        &context.db,
        organization.id,
        &emails,
        context.clock.now(),
        &audit,
    )
    .await?;
    let attributes = |email| InvitationAttributes {
        email,
        token: None,
        expires_at: None,
    };
    let resource = |email| InvitationResource {
        r#type: "organization_invitation",
        attributes: attributes(email),
    };
    Ok(Json(Data {
        data: gone.into_iter().map(resource).collect(),
    }))
}
