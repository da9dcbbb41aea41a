//! Roles of members. They are ordered: each includes the permissions of the lower ones.

use std::{fmt, str::FromStr};

use super::permission::{Permission, PermissionLevel};

/// A role in an organization or on a project, lowest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// A member without a role on the subject.
    Member,
    /// Reads everything; writes nothing but saved queries.
    ReadOnly,
    /// Writes data and code.
    Developer,
    /// Creates, configures and deletes projects; manages members.
    Administrator,
    /// Manages the organization itself.
    Owner,
}

impl Role {
    /// The roles that can be assigned to a member.
    pub const ASSIGNABLE: [Self; 4] = [
        Self::Owner,
        Self::Administrator,
        Self::Developer,
        Self::ReadOnly,
    ];

    /// Returns whether the role includes `permission`.
    pub const fn holds(self, permission: Permission) -> bool {
        self as u8 >= permission.minimum_role() as u8
    }

    /// Returns the name shown in `role_name` of v1 responses.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Member => "Member",
            Self::ReadOnly => "Read-only",
            Self::Developer => "Developer",
            Self::Administrator => "Administrator",
            Self::Owner => "Owner",
        }
    }

    /// Returns the name in the database, on the command line and in v2 bodies.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Member => "no-access",
            Self::ReadOnly => "read-only",
            Self::Developer => "developer",
            Self::Administrator => "administrator",
            Self::Owner => "owner",
        }
    }
}

/// The roles of a user on one subject. A role on a project adds to the role in its organization,
/// except for permissions at the level of the organization.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EffectiveRoles {
    /// The role in the organization.
    pub organization: Role,
    /// The higher one of the roles on the project and in the organization.
    pub subject: Role,
}

impl EffectiveRoles {
    /// Returns whether the roles include `permission`.
    pub const fn holds(self, permission: Permission) -> bool {
        match permission.level() {
            PermissionLevel::Organization => self.organization.holds(permission),
            PermissionLevel::Project | PermissionLevel::Account => self.subject.holds(permission),
        }
    }
}

impl From<Role> for EffectiveRoles {
    /// Returns one role for the organization and everything in it.
    fn from(role: Role) -> Self {
        Self {
            organization: role,
            subject: role,
        }
    }
}

/// A text that is not the name of a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected owner, administrator, developer or read-only")]
pub struct UnknownRole;

impl FromStr for Role {
    type Err = UnknownRole;

    fn from_str(text: &str) -> Result<Self, UnknownRole> {
        Self::ASSIGNABLE
            .into_iter()
            .chain([Self::Member])
            .find(|role| role.name() == text)
            .ok_or(UnknownRole)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn higher_role_has_all_permissions_of_lower_role() {
        let ladder = [
            Role::Member,
            Role::ReadOnly,
            Role::Developer,
            Role::Administrator,
            Role::Owner,
        ];
        for pair in ladder.windows(2) {
            for permission in Permission::ALL {
                assert!(
                    !pair[0].holds(*permission) || pair[1].holds(*permission),
                    "{permission} is lost by {}",
                    pair[1]
                );
            }
        }
        assert!(Permission::ALL.iter().all(|p| Role::Owner.holds(*p)));
    }

    #[test]
    fn project_role_does_not_apply_to_the_organization() {
        let roles = EffectiveRoles {
            organization: Role::ReadOnly,
            subject: Role::Owner,
        };
        for permission in Permission::ALL {
            let role = if permission.level() == PermissionLevel::Organization {
                Role::ReadOnly
            } else {
                Role::Owner
            };
            assert_eq!(
                roles.holds(*permission),
                role.holds(*permission),
                "{permission}"
            );
        }
    }

    #[test]
    fn role_names_parse() {
        for role in Role::ASSIGNABLE {
            assert_eq!(role.name().parse(), Ok(role));
        }
        assert_eq!("root".parse::<Role>(), Err(UnknownRole));
    }
}
