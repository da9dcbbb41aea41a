//! Operations of API v2 on members and their roles; `invitations`: on invitations; `empty_lists`:
//! on things that no organization has.

mod empty_lists;
mod invitations;

use std::sync::Arc;

use gantry_base::ids::ProjectRef;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{
    members,
    members::{MemberQuery, Membership, ProjectName},
};
use crate::{
    api::{context::ApiContext, path::path_parameters},
    platform::{
        access::{OauthScope as S, Organization, Permission as P, Role, needs},
        audit::Recorder,
        error::Error,
        http::{Endpoint, Json, Output, Query, Tag, Verb, mount, output::OkEmpty},
        notifications,
        rate_limits::STANDARD,
        tables::Table,
    },
};

/// Endpoints of this part of the slice.
pub static ENDPOINTS: &[&Endpoint] = &[
    &MEMBERS,
    &ROLES,
    &ASSIGN,
    &REMOVE,
    &invitations::CREATE,
    &invitations::REVOKE,
    &empty_lists::GITHUB_CONNECTIONS,
    &empty_lists::MAINTENANCE_WINDOWS,
];

static MEMBERS: Endpoint = Endpoint {
    id: "v2-list-organization-members",
    summary: "List members of an organization with all roles",
    tag: Tag::Organizations,
    method: Verb::Get,
    path: "/v2/organizations/{slug}/members",
    aliases: &[],
    access: needs(&[&[P::MembersRead]], S::OrganizationsRead),
    limit: &STANDARD,
    handler: || mount(list),
};

#[derive(Debug, Deserialize, JsonSchema)]
struct MemberPageQuery {
    /// Members to return, 1 to 100.
    #[serde(rename = "page[size]", default = "page_size_default")]
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

fn page_size_default() -> i64 {
    100
}

/// Envelope of v2 responses.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Data")]
pub(in crate::api) struct Envelope<T> {
    pub(in crate::api) data: T,
}

/// A page of resources with links.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::api) struct Paged<T> {
    pub(in crate::api) data: Vec<T>,
    pub(in crate::api) links: PageLinks,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Links")]
pub(in crate::api) struct PageLinks {
    pub(in crate::api) prev: Option<String>,
    pub(in crate::api) next: Option<String>,
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

    fn on_projects(role: Role, projects: Vec<ProjectName>) -> Self {
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
    Query(query): Query<MemberPageQuery>,
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
    let MemberPageQuery {
        size,
        after,
        before,
        username,
        email,
    } = query;
    let (page, earlier, later) = members::list_page(
        &context.db,
        organization.id,
        &MemberQuery {
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
    let links = PageLinks {
        prev: link("before", page.first().filter(|_| earlier)),
        next: link("after", page.last().filter(|_| later)),
    };
    Ok(Json(Paged {
        data: page.into_iter().map(MemberResource::from).collect(),
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

async fn roles(_: Organization) -> Result<Json<Envelope<Vec<RoleResource>>>, Error> {
    Ok(Json(Envelope {
        data: Role::ASSIGNABLE
            .into_iter()
            .map(|role: Role| RoleResource {
                r#type: "organization_role",
                attributes: RoleName { name: role.name() },
            })
            .collect(),
    }))
}

path_parameters! {
    /// A member id from the path.
    struct MemberId(Uuid) from "user_id", else Error::invalid("user_id", "expected a UUID");
}

static ASSIGN: Endpoint = Endpoint {
    id: "v2-assign-organization-member-role",
    summary: "Set a member's role in the organization or on some of its projects",
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
    role: RoleParameter,
    /// Projects on which the role applies; the whole organization, if absent.
    #[schemars(length(min = 1, max = 100))]
    projects: Option<Vec<ProjectParameter>>,
}

/// A role to assign; `no-access` removes it.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "GivenRole")]
enum RoleParameter {
    Owner,
    Administrator,
    Developer,
    ReadOnly,
    NoAccess,
}

impl From<RoleParameter> for Role {
    fn from(role: RoleParameter) -> Self {
        match role {
            RoleParameter::Owner => Self::Owner,
            RoleParameter::Administrator => Self::Administrator,
            RoleParameter::Developer => Self::Developer,
            RoleParameter::ReadOnly => Self::ReadOnly,
            RoleParameter::NoAccess => Self::Member,
        }
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "GivenProject")]
struct ProjectParameter {
    r#ref: ProjectRef,
}

/// Maximum number of projects per request.
const PROJECTS_MAX: usize = 100;

fn project_refs(
    projects: Option<Vec<ProjectParameter>>,
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
) -> Result<Json<Envelope<AssignedResource>>, Error> {
    let AssignAttributes { role, projects } = request.data.attributes;
    let role = Role::from(role);
    let now = context.clock.now();
    let projects = project_refs(projects)?;
    let user = members::by_id(&context.db, organization.id, member).await?;
    let view = |attributes| {
        Json(Envelope {
            data: AssignedResource {
                r#type: "organization_member_role",
                attributes,
            },
        })
    };
    let attributes = if let Some(projects) = projects {
        audit.answer_with(move |projects: &Vec<ProjectName>| {
            view(RoleAttributes::on_projects(role, projects.clone())).respond()
        });
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
        audit.answer(|| view(RoleAttributes::in_organization(role)));
        members::set(&context.db, organization.id, user, role, now, Some(&audit)).await?;
        RoleAttributes::in_organization(role)
    };
    publish_members(&context).await?;
    Ok(view(attributes))
}

/// Invalidates cached members on this node and waits for the confirmation of the others.
async fn publish_members(context: &ApiContext) -> Result<(), Error> {
    context.table_changed(Table::Members);
    notifications::settle(&context.db).await
}

static REMOVE: Endpoint = Endpoint {
    id: "v2-remove-organization-members",
    summary: "Remove a member. Tokens of the member lose access at once",
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
    publish_members(&context).await?;
    Ok(OkEmpty)
}
