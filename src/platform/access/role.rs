//! Roles of a member, as a ladder: each holds what the ones below it hold.

use std::{fmt, str::FromStr};

use super::permission::{Level, Permission};

/// What a member may do, lowest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Belongs to the organization, with no role on the subject.
    Member,
    /// Sees everything, changes nothing but saved queries.
    ReadOnly,
    /// Writes data and code.
    Developer,
    /// Creates, configures and removes projects; manages members.
    Administrator,
    /// Owns the organization itself.
    Owner,
}

impl Role {
    /// Roles that can be given to a member.
    pub const ASSIGNABLE: [Self; 4] = [
        Self::Owner,
        Self::Administrator,
        Self::Developer,
        Self::ReadOnly,
    ];

    /// Whether the role includes `permission`.
    pub const fn holds(self, permission: Permission) -> bool {
        self as u8 >= permission.minimum_role() as u8
    }

    /// Name shown in `role_name` of v1 answers.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Member => "Member",
            Self::ReadOnly => "Read-only",
            Self::Developer => "Developer",
            Self::Administrator => "Administrator",
            Self::Owner => "Owner",
        }
    }

    /// Name in the database, on the command line and in v2 bodies.
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

/// The roles somebody has towards one subject. A role on a project comes on top of the one in its organization, for
/// everything but what is about the organization itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// In the organization.
    pub organization: Role,
    /// On the subject: the higher of the two.
    pub subject: Role,
}

impl Held {
    /// Whether the roles include `permission`.
    pub const fn holds(self, permission: Permission) -> bool {
        match permission.level() {
            Level::Organization => self.organization.holds(permission),
            Level::Project | Level::Account => self.subject.holds(permission),
        }
    }
}

impl From<Role> for Held {
    /// The same role in the organization and on all that is in it.
    fn from(role: Role) -> Self {
        Self {
            organization: role,
            subject: role,
        }
    }
}

/// The text names no role.
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
    fn the_ladder_only_adds() {
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
    fn a_role_on_a_project_is_none_in_its_organization() {
        let held = Held {
            organization: Role::ReadOnly,
            subject: Role::Owner,
        };
        for permission in Permission::ALL {
            let role = if permission.level() == Level::Organization {
                Role::ReadOnly
            } else {
                Role::Owner
            };
            assert_eq!(
                held.holds(*permission),
                role.holds(*permission),
                "{permission}"
            );
        }
    }

    #[test]
    fn names_parse_back() {
        for role in Role::ASSIGNABLE {
            assert_eq!(role.name().parse(), Ok(role));
        }
        assert_eq!("root".parse::<Role>(), Err(UnknownRole));
    }
}
