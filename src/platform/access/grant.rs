//! What a scoped token may do, what it reaches, and where it may be sent from.

use std::{fmt, net::IpAddr};

use chrono::{DateTime, Utc};
use ipnet::IpNet;

use tokio_postgres::Row;

use super::{
    directory::Subject,
    permission::{Level, Permission},
};
use crate::base::{
    error::{Context, Error},
    ids::{OrganizationId, ProjectId},
};

/// What was given to a scoped token. It never changes; what its owner may do is looked up with every request besides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// What it may do.
    pub permissions: Permissions,
    /// To what.
    pub reach: Reach,
    /// Where it may be sent from; anywhere, if empty.
    pub networks: Vec<IpNet>,
    /// From when on it holds.
    pub not_before: Option<DateTime<Utc>>,
}

/// What a token can be used on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reach {
    /// Everything its owner belongs to, and the account itself.
    Account,
    /// These organizations, with the projects they have and will have.
    Organizations(Vec<OrganizationId>),
    /// These projects.
    Projects {
        /// The one organization they belong to.
        organization: OrganizationId,
        /// At least one.
        projects: Vec<ProjectId>,
    },
}

impl Reach {
    /// Name in the database and on the wire.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Account => "account",
            Self::Organizations(_) => "organizations",
            Self::Projects { .. } => "projects",
        }
    }

    /// Whether a token with this reach can hold `permission`: what a permission is about must lie within the reach.
    pub fn covers(&self, permission: Permission) -> bool {
        match permission.level() {
            Level::Project => true,
            Level::Organization => !matches!(self, Self::Projects { .. }),
            Level::Account => *self == Self::Account || permission.lists(),
        }
    }

    /// Whether the subject can be seen at all. The organization of a project that is reached can: the project names it.
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
            // One that was given to another organization since is no longer what the token was made for.
            (
                Self::Projects {
                    organization,
                    projects,
                },
                Subject::Project(project),
            ) => *organization == project.organization && projects.contains(&project.id),
        }
    }

    /// The organizations a list may show, if not all.
    pub fn listed_organizations(&self) -> Option<Vec<i64>> {
        match self {
            Self::Account => None,
            Self::Organizations(reached) => Some(reached.iter().map(|id| id.0).collect()),
            Self::Projects { organization, .. } => Some(vec![organization.0]),
        }
    }

    /// The projects a list may show, if not all of [`Self::listed_organizations`].
    pub fn listed_projects(&self) -> Option<Vec<i64>> {
        match self {
            Self::Account | Self::Organizations(_) => None,
            Self::Projects { projects, .. } => Some(projects.iter().map(|id| id.0).collect()),
        }
    }
}

impl Grant {
    /// Whether the token has the permission, and reaches what the permission is about.
    pub fn holds(&self, permission: Permission) -> bool {
        self.permissions.contains(permission) && self.reach.covers(permission)
    }

    /// Whether the token may be used on the subject at all. What it may not be used on looks as if it did not exist.
    pub fn sees(&self, subject: &Subject) -> bool {
        self.reach.sees(subject)
    }

    /// Whether the token's time has begun.
    pub fn has_begun(&self, now: DateTime<Utc>) -> bool {
        self.not_before.is_none_or(|moment| moment <= now)
    }

    /// Whether the token may be sent from there.
    pub fn admits(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.networks.is_empty()
            || self
                .networks
                .iter()
                .any(|network| network.contains(&address))
    }
}

/// A set of permissions: a bit each.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Permissions(u128);

const _: () = assert!(Permission::ALL.len() <= u128::BITS as usize, "one bit each");

impl Permissions {
    /// Whether `permission` is in the set.
    pub const fn contains(self, permission: Permission) -> bool {
        self.0 & (1 << permission as u32) != 0
    }

    /// Whether all of these are in `other`.
    pub const fn within(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    /// How many there are.
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether there are none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// What is in the set, in the order of the catalogue.
    pub fn iter(self) -> impl Iterator<Item = Permission> {
        Permission::ALL
            .iter()
            .copied()
            .filter(move |permission| self.contains(*permission))
    }

    /// Their names, in the order of the catalogue.
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

/// The grant in a row's columns `reach`, `permissions`, `organizations`, `projects`, `networks`, `not_before`, the first
/// of which is `column`. `None` for a classic token.
pub(crate) fn read(row: &Row, column: usize) -> Result<Option<Grant>, Error> {
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
    // A name that this version does not know permits nothing here.
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
    Ok(Some(Grant {
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
    fn a_set_has_what_was_put_in() {
        for permission in Permission::ALL {
            let one: Permissions = [*permission].into_iter().collect();
            assert_eq!(one.iter().collect::<Vec<_>>(), [*permission]);
        }
        let all: Permissions = Permission::ALL.iter().copied().collect();
        assert_eq!(all.iter().count(), Permission::ALL.len());
        assert_eq!(Permissions::default().iter().count(), 0);
    }

    #[test]
    fn what_is_reached_is_seen_and_nothing_else() {
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
            // Moved to another organization after the token was made.
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
    fn a_permission_counts_where_its_subject_is_reached() {
        let organizations = Reach::Organizations(vec![OrganizationId(1)]);
        let projects = Reach::Projects {
            organization: OrganizationId(1),
            projects: vec![ProjectId(1)],
        };
        for permission in Permission::ALL {
            let (by_organization, by_project) = match (permission.level(), permission.name()) {
                (Level::Project, _)
                | (Level::Account, "organizations_read" | "projects_read" | "snippets_read") => {
                    (true, true)
                }
                (Level::Organization, _) => (true, false),
                (Level::Account, _) => (false, false),
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
    fn a_token_holds_from_its_networks_and_from_its_first_moment_on() {
        let dawn: DateTime<Utc> = "2026-11-21T09:15:03Z".parse().unwrap();
        let networks = vec![
            "192.0.2.0/24".parse().unwrap(),
            "2001:db8::/32".parse().unwrap(),
        ];
        let grant = Grant {
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
        let anywhere = Grant {
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
