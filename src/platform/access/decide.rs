//! The access decision: a pure function of the caller, the requirement of the operation, and the
//! caller's relation to the subject.

use super::{
    audience::Audience,
    caller::{Caller, User},
    grant::Reach,
    role::EffectiveRoles,
};
use crate::platform::{
    access::{
        permission::Permission,
        requirement::{Access, RequestView},
    },
    error::{CredentialProblem, Denial, Error},
};

/// The relation of the caller to the subject of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallerRelation {
    /// The subject is the caller's own account: the request names neither an organization nor a
    /// project.
    Account,
    /// The caller is a member of the named organization, or of the one that owns the named project,
    /// and the token reaches the subject.
    Member(EffectiveRoles),
    /// The subject does not exist, the caller is not a member, or the token does not reach it. The
    /// three cases are answered alike.
    NotMember,
}

/// Decides whether the caller may proceed.
///
/// Checks run in an order that keeps callers from probing: authentication (401), then visibility of
/// the subject (404), then permission (403). A request is permitted if the owner's role includes
/// every permission of one group, and a scoped token has them too. An application needs the scope
/// of the operation in addition; an operation without a scope rejects applications.
///
/// Errors: [`Denial::Role`] if no token of this owner could be permitted, else
/// [`Denial::Permissions`] with the permissions that the token lacks.
pub fn decide(
    caller: &Caller,
    access: &Access,
    request: &RequestView<'_>,
    relation: CallerRelation,
) -> Result<(), Error> {
    if *access == Access::Public {
        return Ok(());
    }
    let user = match caller {
        Caller::User(user) => user,
        Caller::Anonymous { credential, .. } => return Err(Error::Unauthenticated(*credential)),
    };
    let roles = match relation {
        CallerRelation::NotMember => return Err(Error::NotFound),
        CallerRelation::Account => None,
        CallerRelation::Member(roles) => Some(roles),
    };
    let grant = user.grant.as_deref();
    let approval = user.approval.as_deref();
    let is_for_credentials = *access == Access::Credential;
    if let Some(approval) = approval.filter(|_| !is_for_credentials) {
        if approval.audience != Audience::Api {
            return Err(Error::Unauthenticated(CredentialProblem::Unknown));
        }
        match access.oauth() {
            None => return Err(Error::Forbidden(Denial::NotByApplications)),
            Some(scope) if !approval.scopes.contains(scope) => {
                return Err(Error::Forbidden(Denial::Scope(scope.name())));
            }
            Some(_) => {}
        }
    }
    let roles = approval.map_or(roles, |approval| {
        roles.map(|roles| approval.effective_roles(roles))
    });
    if *access == Access::User && grant.is_some_and(|grant| grant.reach != Reach::Account) {
        return Err(Error::Forbidden(Denial::UserScopeOnly));
    }
    if *access == Access::Unscoped && grant.is_some() {
        return Err(Error::Forbidden(Denial::UnscopedOnly));
    }
    let required = access.required(request);
    // Users have all permissions on their own account.
    let by_role = |permission| roles.is_none_or(|roles| roles.holds(permission));
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

/// Returns whether the credential of a user may meet the requirement on some subject, in one of its
/// cases. The roles of the user are not considered.
pub fn may_use(user: &User, access: &Access) -> bool {
    let by_token = |permission| {
        let granted = user
            .grant
            .as_ref()
            .is_none_or(|grant| grant.holds(permission));
        let approved = user.approval.as_ref().is_none_or(|it| it.holds(permission));
        granted && approved
    };
    if let Some(approval) = &user.approval
        && access
            .oauth()
            .is_none_or(|scope| !approval.scopes.contains(scope))
    {
        return *access == Access::Credential;
    }
    match access {
        Access::Public | Access::Caller | Access::Credential => true,
        Access::User => {
            let grant = user.grant.as_ref();
            grant.is_none_or(|grant| grant.reach == Reach::Account)
        }
        Access::Unscoped => user.grant.is_none(),
        Access::Needs {
            permissions, cases, ..
        } => {
            let cases = cases.iter().map(|case| case.permissions);
            [*permissions]
                .into_iter()
                .chain(cases)
                .any(|needed| needed.met(by_token))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use uuid::Uuid;

    use super::*;
    use crate::platform::{
        access::{OauthScope, Permission, Role, caller::User, needs, pat_only},
        error::CredentialProblem,
    };
    use gantry_base::ids::{TokenId, UserId};

    const WRITE: Access = needs(&[&[Permission::DatabaseWrite]], OauthScope::DatabaseWrite);

    fn user() -> Caller {
        let user = User {
            id: UserId(1),
            gotrue_id: Uuid::nil(),
            token: Some(TokenId(1)),
            grant: None,
            approval: None,
            activity: None,
            signed_in_at: None,
        };
        Caller::User(user.into())
    }

    fn anonymous() -> Caller {
        Caller::Anonymous {
            address: Ipv4Addr::LOCALHOST.into(),
            credential: CredentialProblem::Missing,
        }
    }

    #[test]
    fn public_operation_admits_anonymous_callers() {
        assert!(
            decide(
                &anonymous(),
                &Access::Public,
                &RequestView::default(),
                CallerRelation::Account
            )
            .is_ok()
        );
    }

    #[test]
    fn anonymous_caller_is_rejected_with_401() {
        for relation in [
            CallerRelation::Account,
            CallerRelation::NotMember,
            CallerRelation::Member(Role::Owner.into()),
        ] {
            assert!(matches!(
                decide(&anonymous(), &WRITE, &RequestView::default(), relation),
                Err(Error::Unauthenticated(CredentialProblem::Missing))
            ));
        }
    }

    #[test]
    fn stranger_is_rejected_with_404() {
        assert!(matches!(
            decide(
                &user(),
                &WRITE,
                &RequestView::default(),
                CallerRelation::NotMember
            ),
            Err(Error::NotFound)
        ));
    }

    /// Compares the decision for every role and permission with the minimum role.
    #[test]
    fn member_is_admitted_by_role() {
        for permission in Permission::ALL {
            let group: &'static [Permission] = std::slice::from_ref(permission);
            let groups: &'static [&'static [Permission]] = Box::leak(Box::new([group]));
            let access = pat_only(groups);
            for role in Role::ASSIGNABLE {
                let decision = decide(
                    &user(),
                    &access,
                    &RequestView::default(),
                    CallerRelation::Member(role.into()),
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
