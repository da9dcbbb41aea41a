//! The decision: a pure function of the caller, what the operation needs, and where the caller stands.

use super::{caller::Caller, role::Role};
use crate::{
    error::{Denial, Error},
    http::Access,
};

/// Where the caller stands towards what the request names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// The request names neither an organization nor a project: it is about the caller's own account.
    Account,
    /// Member of the organization named, or that owns the project named.
    Member(Role),
    /// No such organization or project, or the caller does not belong to it. The two look the same from outside.
    Stranger,
}

/// Whether the caller may proceed, and if not, why.
///
/// The order is the rule that keeps strangers from probing: who you are (401), whether you may see the subject (404),
/// and only then whether you may do this to it (403).
pub fn decide(caller: &Caller, access: &Access, standing: Standing) -> Result<(), Error> {
    if *access == Access::Public {
        return Ok(());
    }
    if let Caller::Nobody { credential, .. } = caller {
        return Err(Error::Unauthenticated(*credential));
    }
    let role = match standing {
        Standing::Stranger => return Err(Error::NotFound),
        Standing::Account => return Ok(()),
        Standing::Member(role) => role,
    };
    if access.permissions().missing(|permission| role.holds(permission)).is_empty() { Ok(()) } else { Err(Error::Forbidden(Denial::Role)) }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use uuid::Uuid;

    use super::*;
    use crate::{
        access::{AnyOf, OauthScope, Permission, caller::User},
        error::Credential,
        http::needs,
        ids::{TokenId, UserId},
    };

    const WRITE: Access = needs(&[&[Permission::DatabaseWrite]], OauthScope::DatabaseWrite);

    fn user() -> Caller {
        Caller::User(User { id: UserId(1), gotrue_id: Uuid::nil(), token: TokenId(1) })
    }

    fn nobody() -> Caller {
        Caller::Nobody { address: Ipv4Addr::LOCALHOST.into(), credential: Credential::Missing }
    }

    #[test]
    fn a_public_operation_is_open_to_all() {
        assert!(decide(&nobody(), &Access::Public, Standing::Account).is_ok());
    }

    #[test]
    fn nobody_learns_nothing_but_that_a_token_is_needed() {
        for standing in [Standing::Account, Standing::Stranger, Standing::Member(Role::Owner)] {
            assert!(matches!(decide(&nobody(), &WRITE, standing), Err(Error::Unauthenticated(Credential::Missing))));
        }
    }

    #[test]
    fn a_stranger_sees_nothing() {
        assert!(matches!(decide(&user(), &WRITE, Standing::Stranger), Err(Error::NotFound)));
    }

    /// Every role against every permission, decided and compared with the ladder.
    #[test]
    fn a_member_may_do_exactly_what_the_role_holds() {
        for permission in Permission::ALL {
            let group: &'static [Permission] = std::slice::from_ref(permission);
            let groups: &'static [&'static [Permission]] = Box::leak(Box::new([group]));
            let access = Access::Needs { permissions: AnyOf(groups), oauth: None };
            for role in Role::ASSIGNABLE {
                let decision = decide(&user(), &access, Standing::Member(role));
                if role >= permission.minimum_role() {
                    assert!(decision.is_ok(), "{role} {permission}");
                } else {
                    assert!(matches!(decision, Err(Error::Forbidden(Denial::Role))), "{role} {permission}");
                }
            }
        }
    }
}
