//! Events of changes of members: the difference of their roles before and after.

use std::collections::BTreeMap;

use gantry_base::ids::{OrganizationId, UserId};
use tokio_postgres::Transaction;
use uuid::Uuid;

use crate::platform::{
    access::Role,
    error::{Context, Error},
    events::{
        EventPayload, NewEvent,
        payloads::{
            Member, MemberAdded, MemberRemoved, MemberRole, RoleAssigned, RoleRemoved, RoleUpdated,
        },
    },
};

/// The roles of a user in an organization at one moment.
#[derive(Debug)]
pub(in crate::api) struct MemberRoles {
    organization: OrganizationId,
    row: UserId,
    user: Uuid,
    email: String,
    /// The role in the organization. `None` if the user is not a member.
    role: Option<Role>,
    /// Roles on single projects, by ref.
    on_projects: BTreeMap<String, Role>,
}

impl MemberRoles {
    /// Returns the roles of a user that is not a member.
    pub(in crate::api) const fn absent(organization: OrganizationId, user: UserId) -> Self {
        Self {
            organization,
            row: user,
            user: Uuid::nil(),
            email: String::new(),
            role: None,
            on_projects: BTreeMap::new(),
        }
    }

    /// Reads the roles in a transaction that changes them.
    pub(in crate::api) async fn read(
        transaction: &Transaction<'_>,
        organization: OrganizationId,
        user: UserId,
    ) -> Result<Self, Error> {
        let doing = "reading a member's roles";
        let sql = "select u.gotrue_id, u.email, m.role,
                       array(select p.ref from project_roles r
                             join projects p on p.id = r.project_id
                             where r.user_id = u.id and r.organization_id = $1 order by p.id),
                       array(select r.role from project_roles r
                             join projects p on p.id = r.project_id
                             where r.user_id = u.id and r.organization_id = $1 order by p.id)
                   from users u left join members m on m.user_id = u.id and m.organization_id = $1
                   where u.id = $2";
        let row = transaction
            .query_one(sql, &[&organization.0, &user.0])
            .await;
        let row = row.context(doing)?;
        let read = |name: &str| name.parse::<Role>().context(doing);
        let refs: Vec<String> = row.get(3);
        let roles: Vec<&str> = row.get(4);
        let on_projects = refs.into_iter().zip(roles);
        Ok(Self {
            organization,
            row: user,
            user: row.get(0),
            email: row.get(1),
            role: row.get::<_, Option<&str>>(2).map(read).transpose()?,
            on_projects: on_projects
                .map(|(reference, role)| Ok((reference, read(role)?)))
                .collect::<Result<_, Error>>()?,
        })
    }

    /// Returns the events that lead from these roles to the present ones.
    pub(in crate::api) async fn changes(
        &self,
        transaction: &Transaction<'_>,
    ) -> Result<Vec<NewEvent>, Error> {
        let after = Self::read(transaction, self.organization, self.row).await?;
        Ok(self.changes_to(&after))
    }

    fn changes_to(&self, after: &Self) -> Vec<NewEvent> {
        let mut events = Vec::new();
        let own = after.role.unwrap_or(Role::Member);
        match self.role {
            None => {
                let member = after.member(Some(MemberRole::new::<String>(own, [])));
                events.push(MemberAdded { member }.about_organization(self.organization));
            }
            Some(before) => events.extend(after.change(before, own, Vec::new())),
        }
        // One event for all projects with the same change.
        let mut changes: BTreeMap<(Role, Role), Vec<String>> = BTreeMap::new();
        let refs = self.on_projects.keys().chain(after.on_projects.keys());
        let mut seen = std::collections::BTreeSet::new();
        for reference in refs.filter(|reference| seen.insert((*reference).clone())) {
            let role = |of: &Self| of.on_projects.get(reference).copied();
            let before = role(self).unwrap_or(Role::Member);
            let now = role(after).unwrap_or(Role::Member);
            changes
                .entry((before, now))
                .or_default()
                .push(reference.clone());
        }
        for ((before, now), projects) in changes {
            events.extend(after.change(before, now, projects));
        }
        events
    }

    /// Returns the event of another role, in the organization or on these projects.
    fn change(&self, before: Role, now: Role, projects: Vec<String>) -> Option<NewEvent> {
        if before == now {
            return None;
        }
        let is_removed = now == Role::Member;
        let role = if is_removed { before } else { now };
        let member = self.member(Some(MemberRole::new(role, projects)));
        let organization = self.organization;
        Some(if is_removed {
            RoleRemoved { member }.about_organization(organization)
        } else if before == Role::Member {
            RoleAssigned { member }.about_organization(organization)
        } else {
            RoleUpdated { member }.about_organization(organization)
        })
    }

    /// Returns the event of the removal of the member.
    pub(in crate::api) fn removed(&self) -> Option<NewEvent> {
        let member = self.member(None);
        self.role
            .map(|_| MemberRemoved { member }.about_organization(self.organization))
    }

    fn member(&self, role: Option<MemberRole>) -> Member {
        Member {
            user_id: self.user,
            primary_email: self.email.clone(),
            role,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roles(role: Option<Role>, on_projects: &[(&str, Role)]) -> MemberRoles {
        let on_projects = on_projects.iter();
        MemberRoles {
            role,
            on_projects: on_projects
                .map(|(reference, role)| ((*reference).to_owned(), *role))
                .collect(),
            ..MemberRoles::absent(OrganizationId(1), UserId(1))
        }
    }

    #[test]
    fn difference_of_roles_has_one_event_per_kind_of_change() {
        let (owner, developer) = (Some(Role::Owner), Some(Role::Developer));
        let (none, reader) = (Some(Role::Member), Role::ReadOnly);
        for (before, after, expected) in [
            (roles(None, &[]), roles(owner, &[]), &["added"][..]),
            (roles(owner, &[]), roles(owner, &[]), &[]),
            (roles(owner, &[]), roles(developer, &[]), &["role.updated"]),
            (roles(none, &[]), roles(developer, &[]), &["role.assigned"]),
            (roles(owner, &[]), roles(none, &[]), &["role.removed"]),
            (
                roles(None, &[]),
                roles(none, &[("a", reader), ("b", reader)]),
                &["added", "role.assigned"],
            ),
            (
                roles(none, &[("a", reader), ("b", Role::Owner), ("c", reader)]),
                roles(none, &[("b", reader), ("c", reader)]),
                &["role.removed", "role.updated"],
            ),
        ] {
            let events = before.changes_to(&after);
            let names: Vec<&str> = events.iter().map(NewEvent::name).collect();
            let expected: Vec<String> = expected
                .iter()
                .map(|name| format!("v1.organization.member.{name}"))
                .collect();
            assert_eq!(names, expected, "{before:?} to {after:?}");
        }
    }
}
