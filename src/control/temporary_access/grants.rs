//! Grants of temporary access: role of the database, expiry, permitted networks.

use std::{collections::BTreeMap, net::IpAddr};

use chrono::{DateTime, Utc};
use gantry_base::ids::{ProjectId, UserId};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio_postgres::{Row, Transaction};
use uuid::Uuid;

use super::lock;
use crate::{
    control::context::ControlContext,
    platform::{
        access::Project,
        audit::Recorder,
        db::Param,
        error::{Context, Error},
    },
    proxy::postgres_proxy::TEMPORARY_LOGIN_PREFIX,
};

/// Maximum number of roles granted to one member on a project.
pub const ROLES_MAX: usize = 32;
/// Maximum number of networks of a grant.
pub const NETWORKS_MAX: usize = 50;
/// Maximum number of grants in a list.
const LIST_MAX: i64 = 10_000;

/// A grant of a database role to a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessGrant {
    /// Role of the database.
    pub role: String,
    /// Expiry.
    pub expires_at: Option<DateTime<Utc>>,
    /// Permitted networks. Empty permits all.
    pub networks: Vec<IpNet>,
    /// Whether the grant applies only to branches of the project.
    pub branches_only: bool,
}

/// A member with grants.
#[derive(Debug)]
pub struct MemberGrants {
    /// User id.
    pub user: Uuid,
    /// E-mail address.
    pub email: String,
    /// At least one grant.
    pub grants: Vec<AccessGrant>,
}

impl AccessGrant {
    /// Returns whether the grant permits this client address.
    pub fn permits_address(&self, address: IpAddr) -> bool {
        self.networks.is_empty()
            || self
                .networks
                .iter()
                .any(|network| network.contains(&address.to_canonical()))
    }

    fn read(row: &Row) -> Result<Self, Error> {
        let networks = row
            .get::<_, Vec<&str>>(2)
            .into_iter()
            .map(str::parse)
            .collect::<Result<_, _>>()
            .context("reading a grant")?;
        Ok(Self {
            role: row.get(0),
            expires_at: row.get(1),
            networks,
            branches_only: row.get(3),
        })
    }

    fn networks_text(&self) -> Vec<String> {
        self.networks.iter().map(ToString::to_string).collect()
    }

    /// Stores the grant of a member or of an invitation. Replaces the same user's grant of the
    /// role.
    pub(crate) async fn insert(
        &self,
        transaction: &Transaction<'_>,
        project: &Project,
        user: UserId,
        invitation: Option<Uuid>,
        now: DateTime<Utc>,
    ) -> Result<(), Error> {
        let sql = "insert into jit_grants \
                   (organization_id, project_id, user_id, role, expires_at, networks, branches_only, created_at, invitation_id) \
                   values ($1, $2, $3, $4, $5, $6::text[]::cidr[], $7, $8, $9) on conflict (project_id, user_id, role) do update set \
                   organization_id = excluded.organization_id, invitation_id = excluded.invitation_id, expires_at = excluded.expires_at, \
                   networks = excluded.networks, branches_only = excluded.branches_only";
        let organization = invitation.is_none().then_some(project.organization.0);
        let networks = self.networks_text();
        let params: [Param<'_>; 9] = [
            &organization,
            &project.id.0,
            &user.0,
            &self.role,
            &self.expires_at,
            &networks,
            &self.branches_only,
            &now,
            &invitation,
        ];
        transaction
            .execute(sql, &params)
            .await
            .context("granting access to a database")
            .map(drop)
    }
}

/// Counts the grants and open invitations of these projects.
pub(crate) async fn count_on_projects(
    transaction: &Transaction<'_>,
    projects: &[i64],
) -> Result<i64, Error> {
    let sql = "select (select count(*) from jit_grants where project_id = any($1)) \
               + (select count(*) from jit_invitations where project_id = any($1) and user_id is null)";
    let row = transaction.query_one(sql, &[&projects]).await;
    row.context("counting grants").map(|row| row.get(0))
}

/// Deletes all grants and invitations of these projects, with which their logins end.
pub(crate) async fn end_on_projects(
    transaction: &Transaction<'_>,
    projects: &[i64],
) -> Result<(), Error> {
    for sql in [
        "delete from jit_invitations where project_id = any($1)",
        "delete from jit_grants where project_id = any($1)",
    ] {
        let deleted = transaction.execute(sql, &[&projects]).await;
        deleted.context("ending access to databases")?;
    }
    Ok(())
}

/// Returns the unexpired grants of a member on a project.
pub async fn of_member(
    context: &ControlContext,
    project: &Project,
    user: UserId,
) -> Result<Vec<AccessGrant>, Error> {
    let sql = "select role, expires_at, networks::text[], branches_only from jit_grants \
               where project_id = $1 and user_id = $2 and coalesce(expires_at > $3, true) order by role collate \"C\"";
    let rows = context
        .db
        .query(sql, &[&project.id.0, &user.0, &context.clock.now()])
        .await
        .context("reading grants")?;
    rows.iter().map(AccessGrant::read).collect()
}

/// Returns whether `role` may log in from this address. Only temporary logins are restricted, by
/// the networks of their grant.
pub async fn permits_address(
    context: &ControlContext,
    project: ProjectId,
    role: &str,
    address: IpAddr,
) -> Result<bool, Error> {
    if !role.starts_with(TEMPORARY_LOGIN_PREFIX) {
        return Ok(true);
    }
    let sql = "select g.role, g.expires_at, g.networks::text[], g.branches_only from jit_grants g \
               join jit_logins l on (l.project_id, l.user_id, l.role) = (g.project_id, g.user_id, g.role) \
               where l.project_id = $1 and l.name = $2";
    let rows = context
        .db
        .query(sql, &[&project.0, &role])
        .await
        .context("reading a login's grant")?;
    // Without a grant the login has expired.
    rows.first().map_or(Ok(false), |row| {
        AccessGrant::read(row).map(|grant| grant.permits_address(address))
    })
}

/// Lists the members with unexpired grants on a project.
pub async fn list(context: &ControlContext, project: &Project) -> Result<Vec<MemberGrants>, Error> {
    let sql = "select g.role, g.expires_at, g.networks::text[], g.branches_only, u.gotrue_id, u.email from jit_grants g \
               join users u on u.id = g.user_id where g.project_id = $1 and coalesce(g.expires_at > $2, true) \
               order by u.id, g.role collate \"C\" limit $3";
    let rows = context
        .db
        .query(sql, &[&project.id.0, &context.clock.now(), &LIST_MAX])
        .await
        .context("listing grants")?;
    let mut members: BTreeMap<Uuid, MemberGrants> = BTreeMap::new();
    for row in &rows {
        let granted = members.entry(row.get(4)).or_insert_with(|| MemberGrants {
            user: row.get(4),
            email: row.get(5),
            grants: Vec::new(),
        });
        granted.grants.push(AccessGrant::read(row)?);
    }
    Ok(members.into_values().collect())
}

/// Replaces a member's grants on a project. Logins without a grant in `grants` are
/// revoked.
pub async fn set(
    context: &ControlContext,
    project: &Project,
    user: UserId,
    grants: &[AccessGrant],
    audit: &Recorder,
) -> Result<(), Error> {
    let doing = "granting access to a database";
    let now = context.clock.now();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    lock(&transaction, project).await?;
    let before = take(&transaction, project, user).await?;
    for grant in grants {
        grant.insert(&transaction, project, user, None, now).await?;
    }
    // The server must store the earlier expiry, so that it rejects the login even while Gantry is
    // down.
    let sql = "update jit_logins l set until = g.expires_at, stale = true, generation = l.generation + 1, attempts = 0, not_before = $3 \
               from jit_grants g where (g.project_id, g.user_id, g.role) = (l.project_id, l.user_id, l.role) \
               and l.project_id = $1 and l.user_id = $2 and g.expires_at < l.until";
    transaction
        .execute(sql, &[&project.id.0, &user.0, &now])
        .await
        .context(doing)?;
    let member = member(&transaction, user).await?;
    let before = json!({"member": member, "roles": before});
    let after = json!({"member": member, "roles": grants});
    let change = (Some(before), Some(after));
    audit.commit(transaction, doing, 200, change, now).await?;
    context.temporary_access.wake();
    Ok(())
}

/// Removes all grants of a user on a project.
pub async fn remove(
    context: &ControlContext,
    project: &Project,
    user: Uuid,
    audit: &Recorder,
) -> Result<(), Error> {
    let doing = "revoking access to a database";
    let now = context.clock.now();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    lock(&transaction, project).await?;
    let sql = "select id from users where gotrue_id = $1";
    let id = transaction
        .query_opt(sql, &[&user])
        .await
        .context(doing)?
        .map(|row| UserId(row.get(0)))
        .ok_or(Error::NotFound)?;
    let before = take(&transaction, project, id).await?;
    if before.is_empty() {
        return Err(Error::NotFound);
    }
    let change = (Some(json!({"member": user, "roles": before})), None);
    audit.commit(transaction, doing, 200, change, now).await?;
    context.temporary_access.wake();
    Ok(())
}

/// Deletes a user's grants with their invitation, and returns the grants.
async fn take(
    transaction: &Transaction<'_>,
    project: &Project,
    user: UserId,
) -> Result<Vec<AccessGrant>, Error> {
    let sql = "delete from jit_grants where project_id = $1 and user_id = $2 returning role, expires_at, networks::text[], branches_only";
    let rows = transaction
        .query(sql, &[&project.id.0, &user.0])
        .await
        .context("deleting grants")?;
    let mut grants = rows
        .iter()
        .map(AccessGrant::read)
        .collect::<Result<Vec<_>, _>>()?;
    grants.sort_by(|a, b| a.role.cmp(&b.role));
    let sql = "delete from jit_invitations where project_id = $1 and user_id = $2";
    transaction
        .execute(sql, &[&project.id.0, &user.0])
        .await
        .context("deleting grants")?;
    Ok(grants)
}

async fn member(transaction: &Transaction<'_>, user: UserId) -> Result<Uuid, Error> {
    let row = transaction
        .query_opt("select gotrue_id from users where id = $1", &[&user.0])
        .await
        .context("reading a member")?;
    Ok(row.ok_or(Error::NotFound)?.get(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grant_permits_only_its_networks() {
        let grant = |networks: &[&str]| AccessGrant {
            role: "postgres".to_owned(),
            expires_at: None,
            networks: networks
                .iter()
                .map(|network| network.parse().unwrap())
                .collect(),
            branches_only: false,
        };
        let permits = |networks: &[&str], address: &str| {
            grant(networks).permits_address(address.parse().unwrap())
        };
        assert!(permits(&[], "203.0.113.7"));
        assert!(
            permits(&["10.0.0.0/8", "203.0.113.0/24"], "203.0.113.7")
                && !permits(&["10.0.0.0/8"], "203.0.113.7")
        );
        assert!(
            permits(&["203.0.113.0/24"], "::ffff:203.0.113.7"),
            "the same address"
        );
        assert!(
            permits(&["2001:db8::/32"], "2001:db8::1") && !permits(&["0.0.0.0/0"], "2001:db8::1")
        );
    }
}
