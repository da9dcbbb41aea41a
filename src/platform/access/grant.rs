//! Grants of scoped tokens: permissions, reach, networks and start.

use std::{fmt, net::IpAddr};

use chrono::{DateTime, Utc};
use gantry_base::ids::{OrganizationId, ProjectId};
use ipnet::IpNet;
use tokio_postgres::Row;

use super::{
    permission::{Permission, PermissionLevel},
    subject::Subject,
};
use crate::platform::error::{Context, Error};

/// The immutable limits of a scoped token. The owner's roles are checked in addition with every
/// request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenGrant {
    /// The permissions of the token.
    pub permissions: Permissions,
    /// The resources that the token reaches.
    pub reach: Reach,
    /// The networks that the token is accepted from; empty for all.
    pub networks: Vec<IpNet>,
    /// The time before which the token is not valid.
    pub not_before: Option<DateTime<Utc>>,
}

/// The resources that a token or an approval reaches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reach {
    /// The owner's account and everything the owner belongs to.
    Account,
    /// These organizations with all of their present and future projects.
    Organizations(Vec<OrganizationId>),
    /// These projects.
    Projects {
        /// The organization of all the projects.
        organization: OrganizationId,
        /// The projects, at least one.
        projects: Vec<ProjectId>,
    },
}

impl Reach {
    /// Returns the name in the database and on the wire.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Account => "account",
            Self::Organizations(_) => "organizations",
            Self::Projects { .. } => "projects",
        }
    }

    /// Returns whether a token with this reach can have `permission`: the subject of the permission
    /// must lie within the reach.
    pub fn covers(&self, permission: Permission) -> bool {
        match permission.level() {
            PermissionLevel::Project => true,
            PermissionLevel::Organization => !matches!(self, Self::Projects { .. }),
            PermissionLevel::Account => *self == Self::Account || permission.lists(),
        }
    }

    /// Returns whether the subject lies within the reach. The organization of a reached project
    /// does.
    pub(super) fn sees(&self, subject: &Subject) -> bool {
        match (self, subject) {
            (Self::Account, _) | (_, Subject::Account) => true,
            (Self::Organizations(reached), Subject::Organization(organization)) => {
                reached.contains(&organization.id)
            }
            (Self::Organizations(reached), Subject::Project(project)) => {
                reached.contains(&project.organization)
            }
            (Self::Projects { organization, .. }, Subject::Organization(named)) => {
                *organization == named.id
            }
            // A project that moved to another organization is no longer reached.
            (
                Self::Projects {
                    organization,
                    projects,
                },
                Subject::Project(project),
            ) => *organization == project.organization && projects.contains(&project.id),
        }
    }

    /// Returns whether everything within the other reach lies within this one.
    pub fn includes(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Account, _) => true,
            (Self::Organizations(outer), Self::Organizations(inner)) => inner
                .iter()
                .all(|organization| outer.contains(organization)),
            (Self::Organizations(outer), Self::Projects { organization, .. }) => {
                outer.contains(organization)
            }
            (
                Self::Projects {
                    organization: outer,
                    projects: all,
                },
                Self::Projects {
                    organization,
                    projects,
                },
            ) => outer == organization && projects.iter().all(|project| all.contains(project)),
            (_, Self::Account) | (Self::Projects { .. }, Self::Organizations(_)) => false,
        }
    }

    /// Returns the organizations that lists are restricted to. `None` for no restriction.
    pub fn listed_organizations(&self) -> Option<Vec<i64>> {
        match self {
            Self::Account => None,
            Self::Organizations(reached) => Some(reached.iter().map(|id| id.0).collect()),
            Self::Projects { organization, .. } => Some(vec![organization.0]),
        }
    }

    /// Returns the projects that lists are restricted to. `None` for all projects of
    /// [`Self::listed_organizations`].
    pub fn listed_projects(&self) -> Option<Vec<i64>> {
        match self {
            Self::Account | Self::Organizations(_) => None,
            Self::Projects { projects, .. } => Some(projects.iter().map(|id| id.0).collect()),
        }
    }
}

impl TokenGrant {
    /// Returns whether the token has the permission and reaches its subject.
    pub fn holds(&self, permission: Permission) -> bool {
        self.permissions.contains(permission) && self.reach.covers(permission)
    }

    /// Returns whether the token reaches the subject. A subject out of reach is answered as if it
    /// did not exist.
    pub fn sees(&self, subject: &Subject) -> bool {
        self.reach.sees(subject)
    }

    /// Returns whether the token is valid already at `now`.
    pub fn has_begun(&self, now: DateTime<Utc>) -> bool {
        self.not_before.is_none_or(|moment| moment <= now)
    }

    /// Returns whether the token is accepted from `address`.
    pub fn admits(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.networks.is_empty()
            || self
                .networks
                .iter()
                .any(|network| network.contains(&address))
    }
}

/// A set of permissions, one bit each.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Permissions(u128);

const _: () = assert!(Permission::ALL.len() <= u128::BITS as usize, "one bit each");

impl Permissions {
    /// Returns whether `permission` is in the set.
    pub const fn contains(self, permission: Permission) -> bool {
        self.0 & (1 << permission as u32) != 0
    }

    /// Returns whether the set is a subset of `other`.
    pub const fn within(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    /// Returns the number of permissions.
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Returns whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the permissions in the order of the catalogue.
    pub fn iter(self) -> impl Iterator<Item = Permission> {
        Permission::ALL
            .iter()
            .copied()
            .filter(move |permission| self.contains(*permission))
    }

    /// Returns the names of the permissions in the order of the catalogue.
    pub fn names(self) -> Vec<&'static str> {
        self.iter().map(Permission::name).collect()
    }
}

impl FromIterator<Permission> for Permissions {
    fn from_iter<I: IntoIterator<Item = Permission>>(permissions: I) -> Self {
        Self(
            permissions
                .into_iter()
                .fold(0, |set, permission| set | 1 << permission as u32),
        )
    }
}

impl fmt::Debug for Permissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// Reads a grant from a row's columns `reach`, `permissions`, `organizations`, `projects`,
/// `networks`, `not_before`, the first of which is `column`. `None` for a classic token.
pub(crate) fn read(row: &Row, column: usize) -> Result<Option<TokenGrant>, Error> {
    let Some(reach) = row.get::<_, Option<&str>>(column) else {
        return Ok(None);
    };
    let ids = |column| row.get::<_, Option<Vec<i64>>>(column).unwrap_or_default();
    let mut organizations = ids(column + 2).into_iter().map(OrganizationId);
    let reach = match reach {
        "account" => Reach::Account,
        "organizations" => Reach::Organizations(organizations.collect()),
        "projects" => Reach::Projects {
            organization: organizations
                .next()
                .ok_or("no organization")
                .context("reading a scoped token")?,
            projects: ids(column + 3).into_iter().map(ProjectId).collect(),
        },
        unknown => {
            return Err(Error::internal(
                "reading a scoped token",
                format!("unknown reach {unknown}"),
            ));
        }
    };
    // Names of permissions that this version does not know are ignored.
    let permissions = row
        .get::<_, Vec<&str>>(column + 1)
        .into_iter()
        .filter_map(Permission::from_name)
        .collect();
    let networks = row
        .get::<_, Vec<&str>>(column + 4)
        .into_iter()
        .map(str::parse)
        .collect::<Result<_, _>>();
    Ok(Some(TokenGrant {
        permissions,
        reach,
        networks: networks.context("reading a scoped token")?,
        not_before: row.get(column + 5),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::access::{Organization, Project};

    fn organization(id: i64) -> Subject {
        Subject::Organization(Organization {
            id: OrganizationId(id),
            slug: "acme".parse().unwrap(),
        })
    }

    fn project(id: i64, organization: i64) -> Subject {
        let reference = "abcdefghijklmnopqrst".parse().unwrap();
        Subject::Project(Project {
            id: ProjectId(id),
            reference,
            organization: OrganizationId(organization),
        })
    }

    #[test]
    fn permissions_contain_their_elements() {
        for permission in Permission::ALL {
            let one: Permissions = [*permission].into_iter().collect();
            assert_eq!(one.iter().collect::<Vec<_>>(), [*permission]);
        }
        let all: Permissions = Permission::ALL.iter().copied().collect();
        assert_eq!(all.iter().count(), Permission::ALL.len());
        assert_eq!(Permissions::default().iter().count(), 0);
    }

    #[test]
    fn reach_sees_its_subjects_only() {
        let organizations = Reach::Organizations(vec![OrganizationId(1), OrganizationId(2)]);
        let projects = Reach::Projects {
            organization: OrganizationId(1),
            projects: vec![ProjectId(10), ProjectId(11)],
        };
        let cases = [
            (organization(1), true, true),
            (organization(2), true, false),
            (organization(3), false, false),
            (project(10, 1), true, true),
            (project(12, 1), true, false),
            (project(20, 2), true, false),
            // The project moved to another organization after the token was created.
            (project(11, 2), true, false),
            (project(11, 3), false, false),
            (Subject::Account, true, true),
        ];
        for (subject, by_organization, by_project) in cases {
            assert!(Reach::Account.sees(&subject));
            assert_eq!(
                (organizations.sees(&subject), projects.sees(&subject)),
                (by_organization, by_project),
                "{subject:?}"
            );
        }
    }

    #[test]
    fn reach_covers_permissions_by_level() {
        let organizations = Reach::Organizations(vec![OrganizationId(1)]);
        let projects = Reach::Projects {
            organization: OrganizationId(1),
            projects: vec![ProjectId(1)],
        };
        for permission in Permission::ALL {
            let (by_organization, by_project) = match (permission.level(), permission.name()) {
                (PermissionLevel::Project, _)
                | (
                    PermissionLevel::Account,
                    "organizations_read" | "projects_read" | "snippets_read",
                ) => (true, true),
                (PermissionLevel::Organization, _) => (true, false),
                (PermissionLevel::Account, _) => (false, false),
            };
            assert!(Reach::Account.covers(*permission));
            assert_eq!(
                (
                    organizations.covers(*permission),
                    projects.covers(*permission)
                ),
                (by_organization, by_project),
                "{permission}"
            );
        }
    }

    #[test]
    fn grant_checks_networks_and_start() {
        let dawn: DateTime<Utc> = "2026-11-21T09:15:03Z".parse().unwrap();
        let networks = vec![
            "192.0.2.0/24".parse().unwrap(),
            "2001:db8::/32".parse().unwrap(),
        ];
        let grant = TokenGrant {
            permissions: Permissions::default(),
            reach: Reach::Account,
            networks,
            not_before: Some(dawn),
        };
        for (address, admitted) in [
            ("192.0.2.7", true),
            ("::ffff:192.0.2.7", true),
            ("192.0.3.7", false),
            ("2001:db8::1", true),
            ("2001:db9::1", false),
        ] {
            let address = address.parse().unwrap();
            assert_eq!(grant.admits(address), admitted, "{address}");
        }
        let anywhere = TokenGrant {
            networks: Vec::new(),
            not_before: None,
            ..grant.clone()
        };
        assert!(anywhere.admits("203.0.113.9".parse().unwrap()));
        assert!(
            grant.has_begun(dawn) && !grant.has_begun(dawn - chrono::TimeDelta::milliseconds(1))
        );
        assert!(anywhere.has_begun(DateTime::UNIX_EPOCH));
    }
}
