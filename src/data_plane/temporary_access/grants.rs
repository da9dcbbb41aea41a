//! What members are granted: which role of the database, until when, from which networks.

use std::{collections::BTreeMap, net::IpAddr};

use chrono::{DateTime, Utc};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio_postgres::{Row, Transaction};
use uuid::Uuid;

use super::{LOGIN_PREFIX, lock};
use crate::{
    base::{
        db::Param,
        error::{Context, Error},
        ids::{ProjectId, UserId},
    },
    data_plane::context::DataPlaneContext,
    platform::{access::Project, audit::Recorder},
};

/// Roles that one member can be granted on a project.
pub const ROLES_MAX: usize = 32;
/// Networks that a grant can name.
pub const NETWORKS_MAX: usize = 50;
/// Grants that are listed.
const LIST_MAX: i64 = 10_000;

/// A role that a member may be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Role of the database.
    pub role: String,
    /// When it is over.
    pub expires_at: Option<DateTime<Utc>>,
    /// Where from; from anywhere, if empty.
    pub networks: Vec<IpNet>,
    /// Whether it is for branches of the project and not for the project itself.
    pub branches_only: bool,
}

/// A member with what is granted.
#[derive(Debug)]
pub struct Granted {
    /// The member.
    pub user: Uuid,
    /// Where to write to.
    pub email: String,
    /// At least one.
    pub grants: Vec<Grant>,
}

impl Grant {
    /// Whether it is for somebody at this address.
    pub fn admits(&self, address: IpAddr) -> bool {
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

    /// Writes it down: a member's, or what an invitation grants, which takes the place of what the same person had for the role.
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
        let (organization, networks) = (
            invitation.is_none().then_some(project.organization.0),
            self.networks_text(),
        );
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

/// What a member is granted on a project that is not over.
pub async fn of_member(
    context: &DataPlaneContext,
    project: &Project,
    user: UserId,
) -> Result<Vec<Grant>, Error> {
    let sql = "select role, expires_at, networks::text[], branches_only from jit_grants \
               where project_id = $1 and user_id = $2 and coalesce(expires_at > $3, true) order by role collate \"C\"";
    let rows = context
        .db
        .query(sql, &[&project.id.0, &user.0, &context.clock.now()])
        .await
        .context("reading grants")?;
    rows.iter().map(Grant::read).collect()
}

/// Whether who logs in to the project as `role` may come from there: anywhere, unless it is a login that a grant with networks
/// gave.
pub async fn admits(
    context: &DataPlaneContext,
    project: ProjectId,
    role: &str,
    address: IpAddr,
) -> Result<bool, Error> {
    if !role.starts_with(LOGIN_PREFIX) {
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
    // Without one it is over.
    rows.first().map_or(Ok(false), |row| {
        Grant::read(row).map(|grant| grant.admits(address))
    })
}

/// Everybody who is granted something on a project that is not over.
pub async fn list(context: &DataPlaneContext, project: &Project) -> Result<Vec<Granted>, Error> {
    let sql = "select g.role, g.expires_at, g.networks::text[], g.branches_only, u.gotrue_id, u.email from jit_grants g \
               join users u on u.id = g.user_id where g.project_id = $1 and coalesce(g.expires_at > $2, true) \
               order by u.id, g.role collate \"C\" limit $3";
    let rows = context
        .db
        .query(sql, &[&project.id.0, &context.clock.now(), &LIST_MAX])
        .await
        .context("listing grants")?;
    let mut members: BTreeMap<Uuid, Granted> = BTreeMap::new();
    for row in &rows {
        let granted = members.entry(row.get(4)).or_insert_with(|| Granted {
            user: row.get(4),
            email: row.get(5),
            grants: Vec::new(),
        });
        granted.grants.push(Grant::read(row)?);
    }
    Ok(members.into_values().collect())
}

/// Grants a member these roles on the project, and no other. What is no longer granted is over at once.
pub async fn set(
    context: &DataPlaneContext,
    project: &Project,
    user: UserId,
    grants: &[Grant],
    audit: &Recorder,
) -> Result<(), Error> {
    let (doing, now) = ("granting access to a database", context.clock.now());
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    lock(&transaction, project).await?;
    let before = take(&transaction, project, user).await?;
    for grant in grants {
        grant.insert(&transaction, project, user, None, now).await?;
    }
    // The server itself has to know when a login ends, should nobody be there to end it.
    let sql = "update jit_logins l set until = g.expires_at, stale = true, generation = l.generation + 1, attempts = 0, not_before = $3 \
               from jit_grants g where (g.project_id, g.user_id, g.role) = (l.project_id, l.user_id, l.role) \
               and l.project_id = $1 and l.user_id = $2 and g.expires_at < l.until";
    transaction
        .execute(sql, &[&project.id.0, &user.0, &now])
        .await
        .context(doing)?;
    let member = member(&transaction, user).await?;
    let (before, after) = (
        json!({"member": member, "roles": before}),
        json!({"member": member, "roles": grants}),
    );
    audit
        .write_in(&transaction, 200, (Some(before), Some(after)), now)
        .await?;
    transaction.commit().await.context(doing)?;
    context.jit.wake();
    Ok(())
}

/// Takes everything from somebody that is granted on the project.
pub async fn remove(
    context: &DataPlaneContext,
    project: &Project,
    user: Uuid,
    audit: &Recorder,
) -> Result<(), Error> {
    let (doing, now) = ("taking access to a database", context.clock.now());
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
    audit
        .write_in(
            &transaction,
            200,
            (Some(json!({"member": user, "roles": before})), None),
            now,
        )
        .await?;
    transaction.commit().await.context(doing)?;
    context.jit.wake();
    Ok(())
}

/// Removes somebody's grants, with the invitation that gave them, and tells what they were.
async fn take(
    transaction: &Transaction<'_>,
    project: &Project,
    user: UserId,
) -> Result<Vec<Grant>, Error> {
    let sql = "delete from jit_grants where project_id = $1 and user_id = $2 returning role, expires_at, networks::text[], branches_only";
    let rows = transaction
        .query(sql, &[&project.id.0, &user.0])
        .await
        .context("taking grants")?;
    let mut grants = rows
        .iter()
        .map(Grant::read)
        .collect::<Result<Vec<_>, _>>()?;
    grants.sort_by(|a, b| a.role.cmp(&b.role));
    let sql = "delete from jit_invitations where project_id = $1 and user_id = $2";
    transaction
        .execute(sql, &[&project.id.0, &user.0])
        .await
        .context("taking grants")?;
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
    fn a_grant_is_for_its_networks() {
        let grant = |networks: &[&str]| Grant {
            role: "postgres".to_owned(),
            expires_at: None,
            networks: networks
                .iter()
                .map(|network| network.parse().unwrap())
                .collect(),
            branches_only: false,
        };
        let admits =
            |networks: &[&str], address: &str| grant(networks).admits(address.parse().unwrap());
        assert!(admits(&[], "203.0.113.7"));
        assert!(
            admits(&["10.0.0.0/8", "203.0.113.0/24"], "203.0.113.7")
                && !admits(&["10.0.0.0/8"], "203.0.113.7")
        );
        assert!(
            admits(&["203.0.113.0/24"], "::ffff:203.0.113.7"),
            "the same address"
        );
        assert!(
            admits(&["2001:db8::/32"], "2001:db8::1") && !admits(&["0.0.0.0/0"], "2001:db8::1")
        );
    }
}
