//! What a visitor may do: asked of what decides on the operation, so that a page offers nothing that would be refused.

use crate::{
    api::endpoints,
    base::error::Error,
    platform::{
        access::{AnyOf, Level, Role, Standing},
        http::simulate::{SimulatedRequest, simulate},
    },
    web::Visitor,
};

/// Whether the visitor may do something, and if not, why.
pub(super) struct May {
    /// The visitor's role on what it is about.
    pub(super) role: Role,
    refusal: Option<String>,
}

impl May {
    pub(super) fn yes(&self) -> bool {
        self.refusal.is_none()
    }

    /// What stands in the place of a button.
    pub(super) fn why(&self) -> &str {
        self.refusal.as_deref().unwrap_or_default()
    }
}

impl Visitor {
    /// Whether an operation would let them in. What they do not see is not there.
    pub(super) async fn may(&self, method: &str, path: &str) -> Result<May, Error> {
        self.may_request(SimulatedRequest {
            method,
            path,
            query: "",
            body: &[],
        })
        .await
    }

    /// The same for an operation that needs more if its query asks for more.
    pub(super) async fn may_query(
        &self,
        method: &str,
        path: &str,
        query: &str,
    ) -> Result<May, Error> {
        self.may_request(SimulatedRequest {
            method,
            path,
            query,
            body: &[],
        })
        .await
    }

    /// The same for an operation whose body names what it is about.
    pub(super) async fn may_send(
        &self,
        method: &str,
        path: &str,
        body: &str,
    ) -> Result<May, Error> {
        self.may_request(SimulatedRequest {
            method,
            path,
            query: "",
            body: body.as_bytes(),
        })
        .await
    }

    async fn may_request(&self, request: SimulatedRequest<'_>) -> Result<May, Error> {
        let rehearsal = simulate(
            &self.context,
            endpoints::all(),
            self.user.clone().into(),
            request,
        )
        .await?;
        let rehearsal = rehearsal
            .ok_or_else(|| Error::internal("asking what may be done", "no operation is there"))?;
        let role = match rehearsal.standing {
            Standing::Member(held) if about_organization(rehearsal.required) => held.organization,
            Standing::Member(held) => held.subject,
            Standing::Account | Standing::Stranger => Role::Member,
        };
        let refusal = match rehearsal.outcome {
            Ok(()) => None,
            Err(Error::Forbidden(_)) => Some(sentence(lowest(rehearsal.required), role)),
            Err(error) => return Err(error),
        };
        Ok(May { role, refusal })
    }
}

fn about_organization(required: AnyOf) -> bool {
    required
        .0
        .iter()
        .flat_map(|group| group.iter())
        .any(|permission| permission.level() == Level::Organization)
}

/// The lowest role that would do.
fn lowest(required: AnyOf) -> Role {
    let groups = required.0.iter().map(|group| {
        group
            .iter()
            .map(|permission| permission.minimum_role())
            .max()
            .unwrap_or(Role::Member)
    });
    groups.min().unwrap_or(Role::Member)
}

/// Why something is not offered.
pub(super) fn sentence(needed: Role, held: Role) -> String {
    let held = if held == Role::Member {
        "you have none here".to_owned()
    } else {
        format!("yours is {}", held.label())
    };
    format!("Needs the role {}; {held}.", needed.label())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::access::Permission::{
        MembersRead, MembersWrite, OrganizationAdminWrite, ProjectAdminWrite,
    };

    #[test]
    fn the_lowest_role_that_would_do_is_named() {
        assert_eq!(
            lowest(AnyOf(&[&[MembersRead, MembersWrite]])),
            Role::Administrator
        );
        assert_eq!(
            lowest(AnyOf(&[&[OrganizationAdminWrite], &[MembersRead]])),
            Role::ReadOnly
        );
        assert_eq!(lowest(AnyOf(&[])), Role::Member);
        assert!(
            about_organization(AnyOf(&[&[MembersRead]]))
                && !about_organization(AnyOf(&[&[ProjectAdminWrite]]))
        );
        assert_eq!(
            sentence(Role::Owner, Role::Developer),
            "Needs the role Owner; yours is Developer."
        );
        assert_eq!(
            sentence(Role::ReadOnly, Role::Member),
            "Needs the role Read-only; you have none here."
        );
    }
}
