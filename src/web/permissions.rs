//! Access decisions for pages: a page offers a button only if the operation behind it would permit
//! the request. The decision is the guard's own, computed for a simulated request.

use serde::de::DeserializeOwned;

use crate::{
    api::endpoints,
    platform::{
        access::{AnyOf, CallerRelation, PermissionLevel, Role},
        error::Error,
        http::simulate::{SimulatedRequest, simulate},
    },
    web::visitor::Visitor,
};

/// The result of an access check.
pub(super) struct PermissionCheck {
    /// The visitor's role on the resource.
    pub(super) role: Role,
    refusal: Option<String>,
}

impl PermissionCheck {
    pub(super) fn is_allowed(&self) -> bool {
        self.refusal.is_none()
    }

    /// Returns the sentence that is shown instead of the button; empty if permitted.
    pub(super) fn reason(&self) -> &str {
        self.refusal.as_deref().unwrap_or_default()
    }

    /// Returns the sentence that is shown instead of a list; `None` if permitted.
    pub(super) fn refusal(&self) -> Option<String> {
        self.refusal.clone()
    }
}

impl Visitor {
    /// Checks whether the visitor may call an operation. Returns 404 for an invisible resource.
    pub(super) async fn check(&self, method: &str, path: &str) -> Result<PermissionCheck, Error> {
        self.check_query(method, path, "").await
    }

    /// Calls a GET operation and returns its response; an empty one if the check does not permit
    /// it.
    pub(super) async fn get_if<T: DeserializeOwned + Default>(
        &self,
        check: &PermissionCheck,
        path: &str,
    ) -> Result<T, Error> {
        if check.is_allowed() {
            self.get(path).await
        } else {
            Ok(T::default())
        }
    }

    /// Checks a request with required permissions that depend on its query.
    pub(super) async fn check_query(
        &self,
        method: &str,
        path: &str,
        query: &str,
    ) -> Result<PermissionCheck, Error> {
        self.check_request(SimulatedRequest {
            method,
            path,
            query,
            body: &[],
        })
        .await
    }

    /// Checks a request that names the resource in its body.
    pub(super) async fn check_body(
        &self,
        method: &str,
        path: &str,
        body: &str,
    ) -> Result<PermissionCheck, Error> {
        self.check_request(SimulatedRequest {
            method,
            path,
            query: "",
            body: body.as_bytes(),
        })
        .await
    }

    async fn check_request(&self, request: SimulatedRequest<'_>) -> Result<PermissionCheck, Error> {
        let rehearsal = simulate(
            &self.context,
            endpoints::all(),
            self.user.clone().into(),
            request,
        )
        .await?;
        let rehearsal = rehearsal
            .ok_or_else(|| Error::internal("checking a permission", "unknown operation"))?;
        let role = match rehearsal.standing {
            CallerRelation::Member(held) if is_organization_level(rehearsal.required) => {
                held.organization
            }
            CallerRelation::Member(held) => held.subject,
            CallerRelation::Account | CallerRelation::NotMember => Role::Member,
        };
        let refusal = match rehearsal.outcome {
            Ok(()) => None,
            Err(Error::Forbidden(_)) => {
                let required = lowest_role(rehearsal.required);
                Some(missing_role_message(required, role))
            }
            Err(error) => return Err(error),
        };
        Ok(PermissionCheck { role, refusal })
    }
}

fn is_organization_level(required: AnyOf) -> bool {
    required
        .0
        .iter()
        .flat_map(|group| group.iter())
        .any(|permission| permission.level() == PermissionLevel::Organization)
}

/// Returns the lowest role that has one of the permission groups.
fn lowest_role(required: AnyOf) -> Role {
    let groups = required.0.iter().map(|group| {
        group
            .iter()
            .map(|permission| permission.minimum_role())
            .max()
            .unwrap_or(Role::Member)
    });
    groups.min().unwrap_or(Role::Member)
}

/// Returns the sentence that explains a missing role.
pub(super) fn missing_role_message(required: Role, current: Role) -> String {
    let required = required.label();
    if current == Role::Member {
        format!("Requires the {required} role. You have no role here.")
    } else {
        format!(
            "Requires the {required} role. Your role is {}.",
            current.label()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::access::Permission::{
        MembersRead, MembersWrite, OrganizationAdminWrite, ProjectAdminWrite,
    };

    #[test]
    fn message_names_the_lowest_sufficient_role() {
        assert_eq!(
            lowest_role(AnyOf(&[&[MembersRead, MembersWrite]])),
            Role::Administrator
        );
        assert_eq!(
            lowest_role(AnyOf(&[&[OrganizationAdminWrite], &[MembersRead]])),
            Role::ReadOnly
        );
        assert_eq!(lowest_role(AnyOf(&[])), Role::Member);
        assert!(
            is_organization_level(AnyOf(&[&[MembersRead]]))
                && !is_organization_level(AnyOf(&[&[ProjectAdminWrite]]))
        );
        assert_eq!(
            missing_role_message(Role::Owner, Role::Developer),
            "Requires the Owner role. Your role is Developer."
        );
        assert_eq!(
            missing_role_message(Role::ReadOnly, Role::Member),
            "Requires the Read-only role. You have no role here."
        );
    }
}
