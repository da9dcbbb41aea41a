//! The members of an organization and their roles.

use serde::Deserialize;
use uuid::Uuid;

use crate::{platform::access::Role, web::labels};

/// The response of the operation that lists members.
#[derive(Deserialize)]
pub(in crate::web) struct MemberList {
    pub(in crate::web) data: Vec<MemberEntry>,
    pub(super) links: MemberPageLinks,
}

#[derive(Deserialize)]
pub(super) struct MemberPageLinks {
    pub(super) prev: Option<String>,
    pub(super) next: Option<String>,
}

#[derive(Deserialize)]
pub(in crate::web) struct MemberEntry {
    pub(super) id: Uuid,
    pub(in crate::web) attributes: MemberProfile,
}

#[derive(Deserialize)]
pub(in crate::web) struct MemberProfile {
    pub(super) username: String,
    pub(super) primary_email: String,
    pub(in crate::web) roles: Vec<AssignedRole>,
}

/// A role of a member, in the organization or on projects.
#[derive(Deserialize)]
pub(in crate::web) struct AssignedRole {
    pub(in crate::web) name: String,
    pub(super) scope: String,
    pub(super) projects: Vec<RoleProject>,
}

#[derive(Deserialize)]
pub(super) struct RoleProject {
    #[serde(rename = "ref")]
    pub(super) reference: String,
    pub(super) name: String,
}

impl AssignedRole {
    pub(super) fn is_on_projects(&self) -> bool {
        self.scope == "project"
    }

    pub(super) fn label(&self) -> &'static str {
        role_label(&self.name)
    }

    /// Returns the label with the number of projects, such as `Owner on 1 project`.
    pub(super) fn summary(&self) -> String {
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
pub(super) fn role_label(name: &str) -> &'static str {
    name.parse().map_or("Unknown", Role::label)
}

/// An option of a role selector.
pub(super) struct RoleOption {
    pub(super) name: &'static str,
    pub(super) label: &'static str,
    /// Whether the role is above the visitor's own, which cannot be assigned.
    pub(super) above: bool,
}

/// Returns the assignable roles.
pub(super) fn role_options(own: Role) -> Vec<RoleOption> {
    Role::ASSIGNABLE
        .iter()
        .map(|role| RoleOption {
            name: role.name(),
            label: role.label(),
            above: *role > own,
        })
        .collect()
}
