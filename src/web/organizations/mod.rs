//! Organizations: members and roles, invitations, and the audit log.

mod accept_invitation;
mod audit_log;
mod invitations;
mod member;
mod members;

use gantry_base::ids::OrgSlug;
use serde::Deserialize;

pub(super) use self::{
    accept_invitation::{ACCEPT_INVITATION, INVITATION},
    audit_log::{AUDIT_LOG, EXPORT_AUDIT_LOG},
    invitations::{INVITATIONS, INVITE, REVOKE_INVITATION},
    member::{ASSIGN_ROLE, CONFIRM_REMOVE, MEMBER, REMOVE},
    members::MEMBERS,
};
use crate::{
    platform::{access::Role, error::Error},
    web::{Visitor, labels},
};

/// The header of every page of an organization.
pub(super) struct OrganizationHeader {
    pub(super) slug: OrgSlug,
    pub(super) name: String,
}

impl OrganizationHeader {
    /// Returns the path of a page of the organization.
    pub(super) fn path(&self, rest: &str) -> String {
        format!("/organizations/{}{rest}", self.slug)
    }

    /// Loads the header. Returns 404 if the visitor is not a member.
    pub(super) async fn load(visitor: &Visitor, slug: OrgSlug) -> Result<Self, Error> {
        #[derive(Deserialize)]
        struct OrganizationName {
            name: String,
        }
        let OrganizationName { name } = visitor.get(&format!("/v1/organizations/{slug}")).await?;
        Ok(Self { slug, name })
    }
}

/// The response of the operation that lists members.
#[derive(Deserialize)]
pub(super) struct MemberList {
    pub(super) data: Vec<MemberEntry>,
    links: MemberPageLinks,
}

#[derive(Deserialize)]
struct MemberPageLinks {
    prev: Option<String>,
    next: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct MemberEntry {
    id: uuid::Uuid,
    pub(super) attributes: MemberProfile,
}

#[derive(Deserialize)]
pub(super) struct MemberProfile {
    username: String,
    primary_email: String,
    pub(super) roles: Vec<AssignedRole>,
}

/// A role of a member, in the organization or on projects.
#[derive(Deserialize)]
pub(super) struct AssignedRole {
    pub(super) name: String,
    scope: String,
    projects: Vec<RoleProject>,
}

#[derive(Deserialize)]
struct RoleProject {
    #[serde(rename = "ref")]
    reference: String,
    name: String,
}

impl AssignedRole {
    fn is_on_projects(&self) -> bool {
        self.scope == "project"
    }

    fn label(&self) -> &'static str {
        role_label(&self.name)
    }

    /// Returns the label with the number of projects, such as `Owner on 1 project`.
    fn summary(&self) -> String {
        match (self.is_on_projects(), self.name.as_str()) {
            (true, _) => format!(
                "{} on {}",
                self.label(),
                labels::pluralize(self.projects.len(), "project")
            ),
            (false, "no-access") => "No role".to_owned(),
            (false, _) => self.label().to_owned(),
        }
    }
}

/// Returns the display name of a role.
fn role_label(name: &str) -> &'static str {
    name.parse().map_or("Unknown", Role::label)
}

/// An option of a role selector.
struct RoleOption {
    name: &'static str,
    label: &'static str,
    /// Whether the role is above the visitor's own, which cannot be assigned.
    above: bool,
}

/// Returns the assignable roles.
fn role_options(own: Role) -> Vec<RoleOption> {
    Role::ASSIGNABLE
        .iter()
        .map(|role| RoleOption {
            name: role.name(),
            label: role.label(),
            above: *role > own,
        })
        .collect()
}
