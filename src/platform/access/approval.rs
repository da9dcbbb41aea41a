//! Approvals: permissions that a member gives to an OAuth application.

use std::fmt;

use gantry_base::ids::{ApplicationId, ApprovalId};
use uuid::Uuid;

use super::{
    audience::Audience,
    grant::Reach,
    permission::{OauthScope, Permission},
    role::{EffectiveRoles, Role},
    subject::Subject,
};

/// The approval behind an OAuth access token. All of it can be revoked, so it is read and
/// invalidated as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OauthApproval {
    /// Row of `oauth_grants`.
    pub id: ApprovalId,
    /// The application. Rate limits count its requests under this id.
    pub application: ApplicationId,
    /// The client id of the application.
    pub client_id: Uuid,
    /// Scopes that were requested, were approved, and still belong to the application.
    pub scopes: Scopes,
    /// One organization, or some of its projects.
    pub reach: Reach,
    /// The role of the application on everything it reaches. `None`: the current role of the
    /// member.
    pub acts_as: Option<Role>,
    /// The resource that the token was issued for.
    pub audience: Audience,
}

impl OauthApproval {
    /// Returns whether the approval reaches the subject.
    pub fn sees(&self, subject: &Subject) -> bool {
        self.reach.sees(subject)
    }

    /// Returns whether the subject of the permission lies within the reach. Scopes are checked
    /// apart.
    pub fn holds(&self, permission: Permission) -> bool {
        self.reach.covers(permission)
    }

    /// Returns the roles of the application on a subject where its member has `roles`.
    pub fn effective_roles(&self, roles: EffectiveRoles) -> EffectiveRoles {
        self.acts_as.map_or(roles, EffectiveRoles::from)
    }
}

/// A set of scopes, one bit each.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Scopes(u32);

const _: () = assert!(OauthScope::ALL.len() <= u32::BITS as usize, "one bit each");

impl Scopes {
    /// Returns whether `scope` is in the set.
    pub const fn contains(self, scope: OauthScope) -> bool {
        self.0 & (1 << scope as u32) != 0
    }

    /// Returns the intersection of two sets.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Returns whether the set is a subset of `other`.
    pub const fn within(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    /// Returns whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the scopes in the order of the catalogue.
    pub fn iter(self) -> impl Iterator<Item = OauthScope> {
        OauthScope::ALL
            .iter()
            .copied()
            .filter(move |scope| self.contains(*scope))
    }

    /// Returns the names of the scopes in the order of the catalogue.
    pub fn names(self) -> Vec<&'static str> {
        self.iter().map(OauthScope::name).collect()
    }

    /// Returns the scopes with these names. Unknown names are ignored.
    pub fn named<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        names
            .into_iter()
            .filter_map(OauthScope::from_name)
            .collect()
    }

    /// Returns the set of all scopes.
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
    /// Writes the names separated by spaces, as on the wire.
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
    fn scopes_contain_and_name_their_elements() {
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
