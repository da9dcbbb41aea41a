//! Privileges that only the platform has: found in the catalogs of a cluster, and revoked. Finding
//! and revoking are two steps, so that a finding is recorded before its evidence is gone.

use crate::{
    clusters::superuser::{self, SqlArgument, SqlError, SuperuserSession},
    error::{ClusterError, Result},
};

/// The first version that records the grantor of a membership, as `granted by` names it.
const GRANTORS_SINCE: u16 = 16;

/// A privilege that a role of a tenant must not have, or an object that a tenant cannot have made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PrivilegeFinding {
    /// A role with an attribute.
    Attribute {
        /// Name of the role.
        role: String,
        /// The attribute.
        attribute: RoleAttribute,
    },
    /// A role with a membership.
    Membership {
        /// Name of the role.
        role: String,
        /// Name of the role that it is a member of.
        group: String,
        /// Name of the role that granted it. Empty if it is unknown.
        grantor: String,
    },
    /// An object of the superuser that is not the platform's. It stays: the operator decides.
    Object {
        /// Kind of the object, such as `function`.
        kind: String,
        /// Qualified name.
        name: String,
    },
}

/// An attribute of a role that only the platform grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoleAttribute {
    /// `superuser`
    Superuser,
    /// `createrole`
    CreateRole,
    /// `replication`
    Replication,
    /// `bypassrls`
    BypassRls,
}

impl RoleAttribute {
    /// All attributes: their names in [`superuser::PRIVILEGE_FINDINGS`], the option of `alter role`
    /// that revokes them, and the text of a finding.
    const ALL: [(Self, &str, &'static str, &'static str); 4] = [
        (
            Self::Superuser,
            "superuser",
            "nosuperuser",
            "was a superuser",
        ),
        (
            Self::CreateRole,
            "createrole",
            "nocreaterole",
            "could create roles",
        ),
        (
            Self::Replication,
            "replication",
            "noreplication",
            "could replicate",
        ),
        (
            Self::BypassRls,
            "bypassrls",
            "nobypassrls",
            "bypassed row-level security",
        ),
    ];

    fn named(name: &str) -> Option<Self> {
        let found = Self::ALL.iter().find(|(_, known, ..)| *known == name);
        found.map(|(attribute, ..)| *attribute)
    }

    /// The option of `alter role` that revokes it, and the text of a finding.
    fn texts(self) -> (&'static str, &'static str) {
        let (_, _, option, text) = Self::ALL[self as usize];
        (option, text)
    }
}

impl PrivilegeFinding {
    /// Returns whether versions of Gantry before November 2026 granted it: owners could create
    /// roles on PostgreSQL 15.
    pub fn is_former_grant(&self, major: u16) -> bool {
        let attribute = RoleAttribute::CreateRole;
        major < GRANTORS_SINCE
            && matches!(self, Self::Attribute { attribute: found, .. } if *found == attribute)
    }
}

impl std::fmt::Display for PrivilegeFinding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Attribute { role, attribute } => {
                write!(f, "role {role} {}", attribute.texts().1)
            }
            Self::Membership { role, group, .. } => {
                write!(f, "role {role} was a member of {group}")
            }
            Self::Object { kind, name } => {
                write!(
                    f,
                    "{kind} {name} belongs to the superuser and is not the platform's"
                )
            }
        }
    }
}

/// Returns privileges of roles that only the platform has.
pub(super) async fn find(session: &SuperuserSession) -> Result<Vec<PrivilegeFinding>> {
    let rows = session.query(&superuser::PRIVILEGE_FINDINGS, &[]).await;
    let rows = rows.map_err(sql_error)?;
    rows.iter()
        .map(|row| {
            let text = |column| row.try_get::<_, String>(column).map_err(sql_error);
            let (kind, role) = (text(0)?, text(1)?);
            Ok(match RoleAttribute::named(&kind) {
                Some(attribute) => PrivilegeFinding::Attribute { role, attribute },
                None => PrivilegeFinding::Membership {
                    role,
                    group: text(2)?,
                    grantor: text(3)?,
                },
            })
        })
        .collect()
}

/// Revokes privileges that were found. Idempotent.
pub(super) async fn revoke(
    session: &SuperuserSession,
    major: u16,
    found: &[PrivilegeFinding],
) -> Result<()> {
    for finding in found {
        let revoked = match finding {
            PrivilegeFinding::Attribute { role, attribute } => {
                let option = SqlArgument::Keyword(attribute.texts().0);
                let arguments = [SqlArgument::Identifier(role), option];
                let statement = &superuser::REVOKE_ATTRIBUTE;
                session.run_with(statement, &arguments).await
            }
            PrivilegeFinding::Membership {
                role,
                group,
                grantor,
            } => {
                let arguments = [group, role, grantor].map(|name| SqlArgument::Identifier(name));
                if major < GRANTORS_SINCE || grantor.is_empty() {
                    let statement = &superuser::REVOKE_MEMBERSHIP_15;
                    session.run_with(statement, &arguments[..2]).await
                } else {
                    let statement = &superuser::REVOKE_MEMBERSHIP;
                    session.run_with(statement, &arguments).await
                }
            }
            PrivilegeFinding::Object { .. } => Ok(()),
        };
        revoked.map_err(sql_error)?;
    }
    Ok(())
}

/// Returns the objects of a database that only a superuser can have made, and that are not the
/// platform's.
pub(super) async fn foreign_objects(session: &SuperuserSession) -> Result<Vec<PrivilegeFinding>> {
    let rows = session.query(&superuser::FOREIGN_OBJECTS, &[]).await;
    let rows = rows.map_err(sql_error)?;
    rows.iter()
        .map(|row| {
            let text = |column| row.try_get::<_, String>(column).map_err(sql_error);
            Ok(PrivilegeFinding::Object {
                kind: text(0)?,
                name: text(1)?,
            })
        })
        .collect()
}

fn sql_error(cause: SqlError) -> ClusterError {
    ClusterError::Sql {
        doing: "comparing the privileges of roles",
        cause,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_listed_in_their_order() {
        for (position, (attribute, name, ..)) in RoleAttribute::ALL.into_iter().enumerate() {
            assert_eq!(attribute as usize, position);
            assert_eq!(RoleAttribute::named(name), Some(attribute));
        }
        assert_eq!(RoleAttribute::named("member"), None);
    }

    #[test]
    fn only_createrole_before_16_is_a_former_grant() {
        let of = |attribute| PrivilegeFinding::Attribute {
            role: "postgres".to_owned(),
            attribute,
        };
        assert!(of(RoleAttribute::CreateRole).is_former_grant(15));
        assert!(!of(RoleAttribute::CreateRole).is_former_grant(16));
        assert!(!of(RoleAttribute::Superuser).is_former_grant(15));
    }
}
