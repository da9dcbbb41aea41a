//! The page of a member: roles, role changes, removal.

use askama::Template;
use gantry_base::ids::OrgSlug;
use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    header::OrganizationHeader,
    roles::{MemberEntry, MemberList, RoleOption, role_options},
};
use crate::{
    platform::{
        access::Role,
        error::Error,
        http::{Endpoint, Verb, mount},
    },
    web::{
        form::NoFields,
        page::{Layout, PageResponse, SessionForm, Visitor, page},
        path::{PathMember, PathOrganization},
        permissions::PermissionCheck,
        resources::{self, ProjectEntry},
    },
};

pub(in crate::web) static MEMBER: Endpoint = page(
    "page-member",
    "Member",
    Verb::Get,
    "/organizations/{organization}/members/{member}",
    || mount(show),
);
pub(in crate::web) static ASSIGN_ROLE: Endpoint = page(
    "page-give-role",
    "Change the role of a member",
    Verb::Post,
    "/organizations/{organization}/members/{member}/role",
    || mount(assign_role),
);
pub(in crate::web) static CONFIRM_REMOVE: Endpoint = page(
    "page-ask-remove-member",
    "Remove a member?",
    Verb::Get,
    "/organizations/{organization}/members/{member}/remove",
    || mount(confirm_remove),
);
pub(in crate::web) static REMOVE: Endpoint = page(
    "page-remove-member",
    "Remove a member",
    Verb::Post,
    "/organizations/{organization}/members/{member}/remove",
    || mount(remove),
);

#[derive(Template)]
#[template(path = "member.html")]
struct Page {
    layout: Layout,
    head: OrganizationHeader,
    member: MemberEntry,
    /// Whether the member is the visitor.
    own: bool,
    roles: Vec<RoleOption>,
    projects: Vec<ProjectEntry>,
    permission: PermissionCheck,
    problem: Option<String>,
}

impl Page {
    fn organization_role(&self) -> &str {
        self.member
            .attributes
            .roles
            .iter()
            .find(|role| !role.is_on_projects())
            .map_or(Role::Member.name(), |role| &role.name)
    }
}

#[derive(Template)]
#[template(path = "member_remove.html")]
struct RemovePage {
    layout: Layout,
    head: OrganizationHeader,
    member: MemberEntry,
    /// Whether the member is the visitor.
    own: bool,
    permission: PermissionCheck,
    problem: Option<String>,
}

/// Loads one member. The list is sorted by id, so the member is the first entry after `id - 1`.
async fn find_member(visitor: &Visitor, slug: &OrgSlug, id: Uuid) -> Result<MemberEntry, Error> {
    let before = Uuid::from_u128(id.as_u128().wrapping_sub(1));
    let path =
        format!("/v2/organizations/{slug}/members?page%5Bsize%5D=1&page%5Bafter%5D={before}");
    let listed: MemberList = visitor.get(&path).await?;
    listed
        .data
        .into_iter()
        .find(|member| member.id == id)
        .ok_or(Error::NotFound)
}

fn operation(slug: &OrgSlug, id: Uuid) -> String {
    format!("/v2/organizations/{slug}/members/{id}")
}

async fn show(
    visitor: Visitor,
    PathOrganization(slug): PathOrganization,
    PathMember(id): PathMember,
) -> Result<PageResponse, Error> {
    PageResponse::page(&load_page(&visitor, slug, id, None).await?)
}

async fn load_page(
    visitor: &Visitor,
    slug: OrgSlug,
    id: Uuid,
    problem: Option<String>,
) -> Result<Page, Error> {
    let head = OrganizationHeader::load(visitor, slug).await?;
    let member = find_member(visitor, &head.slug, id).await?;
    let permission = visitor
        .check("PATCH", &format!("{}/roles", operation(&head.slug, id)))
        .await?;
    let projects = resources::organization_projects(visitor, &head.slug).await?;
    let layout = visitor.layout().at_path(&head.path("/members"));
    Ok(Page {
        layout,
        head,
        own: id == visitor.account.gotrue_id,
        member,
        roles: role_options(permission.role),
        projects,
        permission,
        problem,
    })
}

#[derive(Deserialize)]
struct RoleForm {
    role: String,
    /// The ref of a project; empty for a role in the organization.
    #[serde(default)]
    project: String,
}

async fn assign_role(
    visitor: Visitor,
    SessionForm(form): SessionForm<RoleForm>,
    PathOrganization(slug): PathOrganization,
    PathMember(id): PathMember,
) -> Result<PageResponse, Error> {
    let mut attributes = json!({"role": form.role});
    if !form.project.is_empty() {
        attributes["projects"] = json!([{"ref": form.project}]);
    }
    let body = json!({"data": {"type": "organization_member_role", "attributes": attributes}});
    let path = format!("{}/roles", operation(&slug, id));
    match visitor
        .call::<Value>(Method::PATCH, &path, Some(&body))
        .await
    {
        // The visitor may no longer see members after a change of their own role.
        Ok(_) if id == visitor.account.gotrue_id => {
            PageResponse::redirect(&format!("/organizations/{slug}?done=role"))
        }
        Ok(_) => PageResponse::redirect(&format!("/organizations/{slug}/members/{id}?done=role")),
        Err(error) => {
            let problem = Some(rejection_message(error)?);
            PageResponse::form(&load_page(&visitor, slug, id, problem).await?, true)
        }
    }
}

/// Returns the message for a rejected change.
fn rejection_message(error: Error) -> Result<String, Error> {
    match error {
        Error::Rejected(text) => Ok(format!("{text}. Make another member an owner first.")),
        Error::Invalid { problem, .. } => Ok(format!("The role could not be changed: {problem}.")),
        error => Err(error),
    }
}

async fn confirm_remove(
    visitor: Visitor,
    PathOrganization(slug): PathOrganization,
    PathMember(id): PathMember,
) -> Result<PageResponse, Error> {
    PageResponse::page(&load_remove_page(&visitor, slug, id, None).await?)
}

async fn load_remove_page(
    visitor: &Visitor,
    slug: OrgSlug,
    id: Uuid,
    problem: Option<String>,
) -> Result<RemovePage, Error> {
    let head = OrganizationHeader::load(visitor, slug).await?;
    let member = find_member(visitor, &head.slug, id).await?;
    let permission = visitor.check("DELETE", &operation(&head.slug, id)).await?;
    let layout = visitor.layout().at_path(&head.path("/members"));
    Ok(RemovePage {
        layout,
        head,
        own: id == visitor.account.gotrue_id,
        member,
        permission,
        problem,
    })
}

async fn remove(
    visitor: Visitor,
    _: SessionForm<NoFields>,
    PathOrganization(slug): PathOrganization,
    PathMember(id): PathMember,
) -> Result<PageResponse, Error> {
    match visitor.delete(&operation(&slug, id)).await {
        Ok(()) if id == visitor.account.gotrue_id => PageResponse::redirect("/projects?done=left"),
        Ok(()) => PageResponse::redirect(&format!("/organizations/{slug}?done=removed")),
        Err(error) => {
            let problem = Some(rejection_message(error)?);
            PageResponse::form(&load_remove_page(&visitor, slug, id, problem).await?, true)
        }
    }
}
