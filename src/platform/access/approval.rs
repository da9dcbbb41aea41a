//! What a member let an application do.

use std::fmt;

use uuid::Uuid;

use super::{
    directory::Subject,
    grant::Reach,
    permission::{OauthScope, Permission},
    role::{Held, Role},
};
use crate::base::ids::{ApplicationId, ApprovalId};

/// What stands behind an OAuth access token. Everything in it can be taken away, so it is read together, and forgotten together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Approval {
    /// Row of `oauth_grants`.
    pub id: ApprovalId,
    /// Who calls: requests are counted under it.
    pub application: ApplicationId,
    /// The same as operators name it.
    pub client_id: Uuid,
    /// What was approved, asked for, and is still the application's.
    pub scopes: Scopes,
    /// One organization, or projects of it.
    pub reach: Reach,
    /// The role it acts with wherever it reaches. None: with what the member may do at the time.
    pub acts_as: Option<Role>,
}

impl Approval {
    /// Whether the token may be used on the subject at all.
    pub fn sees(&self, subject: &Subject) -> bool {
        self.reach.sees(subject)
    }

    /// Whether what the permission is about lies within the reach. Which permissions count, scopes say.
    pub fn holds(&self, permission: Permission) -> bool {
        self.reach.covers(permission)
    }

    /// The roles it has where its member has `held`.
    pub fn held(&self, held: Held) -> Held {
        self.acts_as.map_or(held, Held::from)
    }
}

/// A set of scopes: a bit each.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Scopes(u32);

const _: () = assert!(OauthScope::ALL.len() <= u32::BITS as usize, "one bit each");

impl Scopes {
    /// Whether `scope` is in the set.
    pub const fn contains(self, scope: OauthScope) -> bool {
        self.0 & (1 << scope as u32) != 0
    }

    /// What is in both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether all of these are in `other`.
    pub const fn within(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    /// Whether there are none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// What is in the set, in the order of the catalogue.
    pub fn iter(self) -> impl Iterator<Item = OauthScope> {
        OauthScope::ALL
            .iter()
            .copied()
            .filter(move |scope| self.contains(*scope))
    }

    /// Their names, in the order of the catalogue.
    pub fn names(self) -> Vec<&'static str> {
        self.iter().map(OauthScope::name).collect()
    }

    /// Those that these names name. A name that is in no catalogue names none.
    pub fn named<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        names
            .into_iter()
            .filter_map(OauthScope::from_name)
            .collect()
    }

    /// All there are.
    pub fn all() -> Self {
        OauthScope::ALL.iter().copied().collect()
    }
}

impl FromIterator<OauthScope> for Scopes {
    fn from_iter<I: IntoIterator<Item = OauthScope>>(scopes: I) -> Self {
        Self(
            scopes
                .into_iter()
                .fold(0, |set, scope| set | 1 << scope as u32),
        )
    }
}

impl fmt::Display for Scopes {
    /// As the wire has it: names between spaces.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().join(" "))
    }
}

impl fmt::Debug for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_what_was_put_in_and_names_it() {
        for scope in OauthScope::ALL {
            let one = Scopes::named([scope.name(), "nonsense:read"]);
            assert_eq!(one.iter().collect::<Vec<_>>(), [*scope]);
            assert!(one.within(Scopes::all()) && one.and(Scopes::default()).is_empty());
        }
        assert_eq!(Scopes::all().iter().count(), 24);
        assert_eq!(
            Scopes::named(["projects:read", "database:write"]).to_string(),
            "database:write projects:read"
        );
    }
}
