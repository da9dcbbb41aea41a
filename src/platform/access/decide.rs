//! The decision: a pure function of the caller, what the operation needs, and where the caller stands.

use super::{caller::Caller, grant::Reach, role::Held};
use crate::{
    base::error::{Denial, Error},
    platform::access::{Access, Asked, Permission},
};

/// Where the caller stands towards what the request names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// The request names neither an organization nor a project: it is about the caller's own account.
    Account,
    /// Member of the organization named, or that owns the project named, with a token that reaches it.
    Member(Held),
    /// No such organization or project, or the caller does not belong to it, or the token does not reach it. They look
    /// the same from outside.
    Stranger,
}

/// Whether the caller may proceed, and if not, why.
///
/// The order is the rule that keeps callers from probing: who you are (401), whether you and your token may see the
/// subject (404), and only then whether you may do this to it (403). A request is permitted by one group of permissions
/// of which the owner's role holds every one, and so does the token if it is scoped. An application needs the operation's
/// scope besides, and where an operation has none it is refused. What no token of this owner could do
/// is the role's refusal; what another token could is the token's.
pub fn decide(
    caller: &Caller,
    access: &Access,
    asked: &Asked<'_>,
    standing: Standing,
) -> Result<(), Error> {
    if *access == Access::Public {
        return Ok(());
    }
    let user = match caller {
        Caller::User(user) => user,
        Caller::Nobody { credential, .. } => return Err(Error::Unauthenticated(*credential)),
    };
    let held = match standing {
        Standing::Stranger => return Err(Error::NotFound),
        Standing::Account => None,
        Standing::Member(held) => Some(held),
    };
    let (grant, approval) = (user.grant.as_deref(), user.approval.as_deref());
    if let Some(approval) = approval {
        match access.oauth() {
            None => return Err(Error::Forbidden(Denial::NotByApplications)),
            Some(scope) if !approval.scopes.contains(scope) => {
                return Err(Error::Forbidden(Denial::Scope(scope.name())));
            }
            Some(_) => {}
        }
    }
    let held = approval.map_or(held, |approval| held.map(|held| approval.held(held)));
    if *access == Access::User && grant.is_some_and(|grant| grant.reach != Reach::Account) {
        return Err(Error::Forbidden(Denial::UserScopeOnly));
    }
    if *access == Access::Unscoped && grant.is_some() {
        return Err(Error::Forbidden(Denial::UnscopedOnly));
    }
    let required = access.required(asked);
    // On one's own account one may do everything.
    let by_role = |permission| held.is_none_or(|held| held.holds(permission));
    let by_token = |permission| {
        grant.is_none_or(|grant| grant.holds(permission))
            && approval.is_none_or(|approval| approval.holds(permission))
    };
    if required.met(|permission| by_role(permission) && by_token(permission)) {
        Ok(())
    } else if required.met(by_role) {
        Err(Error::Forbidden(Denial::Permissions(
            required
                .missing(by_role, by_token)
                .into_iter()
                .map(Permission::name)
                .collect(),
        )))
    } else {
        Err(Error::Forbidden(Denial::Role))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use uuid::Uuid;

    use super::*;
    use crate::{
        base::{
            error::Credential,
            ids::{TokenId, UserId},
        },
        platform::{
            access::{OauthScope, Permission, Role, caller::User},
            access::{needs, pat_only},
        },
    };

    const WRITE: Access = needs(&[&[Permission::DatabaseWrite]], OauthScope::DatabaseWrite);

    fn user() -> Caller {
        let user = User {
            id: UserId(1),
            gotrue_id: Uuid::nil(),
            token: Some(TokenId(1)),
            grant: None,
            approval: None,
            lately: None,
        };
        Caller::User(user.into())
    }

    fn nobody() -> Caller {
        Caller::Nobody {
            address: Ipv4Addr::LOCALHOST.into(),
            credential: Credential::Missing,
        }
    }

    #[test]
    fn a_public_operation_is_open_to_all() {
        assert!(
            decide(
                &nobody(),
                &Access::Public,
                &Asked::default(),
                Standing::Account
            )
            .is_ok()
        );
    }

    #[test]
    fn nobody_learns_nothing_but_that_a_token_is_needed() {
        for standing in [
            Standing::Account,
            Standing::Stranger,
            Standing::Member(Role::Owner.into()),
        ] {
            assert!(matches!(
                decide(&nobody(), &WRITE, &Asked::default(), standing),
                Err(Error::Unauthenticated(Credential::Missing))
            ));
        }
    }

    #[test]
    fn a_stranger_sees_nothing() {
        assert!(matches!(
            decide(&user(), &WRITE, &Asked::default(), Standing::Stranger),
            Err(Error::NotFound)
        ));
    }

    /// Every role against every permission, decided and compared with the ladder.
    #[test]
    fn a_member_may_do_exactly_what_the_role_holds() {
        for permission in Permission::ALL {
            let group: &'static [Permission] = std::slice::from_ref(permission);
            let groups: &'static [&'static [Permission]] = Box::leak(Box::new([group]));
            let access = pat_only(groups);
            for role in Role::ASSIGNABLE {
                let decision = decide(
                    &user(),
                    &access,
                    &Asked::default(),
                    Standing::Member(role.into()),
                );
                if role >= permission.minimum_role() {
                    assert!(decision.is_ok(), "{role} {permission}");
                } else {
                    assert!(
                        matches!(decision, Err(Error::Forbidden(Denial::Role))),
                        "{role} {permission}"
                    );
                }
            }
        }
    }
}
