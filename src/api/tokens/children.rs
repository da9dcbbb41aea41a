//! Child tokens: narrower and shorter-lived tokens that a token creates of itself, or its owner of
//! it. They are revoked with it.

use chrono::{DateTime, Utc};
use gantry_base::ids::{TokenId, UserId};
use serde_json::json;
use tokio_postgres::Transaction;

use super::{
    AccessToken, GeneratedToken, read,
    scoped::{self, NewScopedToken, ParentToken},
    token_columns,
};
use crate::platform::{
    access::{TokenGrant, read_grant},
    audit::Recorder,
    db::Db,
    error::{Context, Error},
};

/// Largest number of ancestors of a token. Matches the check constraint of the table.
pub const DEPTH_MAX: i16 = 3;
/// Largest number of live children of a token.
pub const CHILDREN_MAX: i64 = 100;
/// Largest number of descendants in a list.
const LIST_MAX: i64 = 1_000;

/// A child to be created.
pub(super) struct NewChild<'a> {
    pub(super) owner: UserId,
    pub(super) parent: TokenId,
    pub(super) name: &'a str,
    pub(super) created_at: DateTime<Utc>,
    /// The expiry; that of the parent if it is earlier and no other was asked for.
    pub(super) expires_at: ChildExpiry,
    /// The limits that were asked for.
    pub(super) grant: TokenGrant,
}

/// The expiry of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChildExpiry {
    /// This time.
    At(DateTime<Utc>),
    /// This time, or that of the parent if it is earlier.
    AtMost(DateTime<Utc>),
}

/// Stores a child and returns its metadata.
///
/// Errors: [`Error::NotFound`] if the parent is not live; [`Error::Invalid`] for limits that the
/// parent does not have; [`Error::Rejected`] if it has as many children or ancestors as permitted.
pub(super) async fn create(
    db: &Db,
    new: NewChild<'_>,
    minted: &GeneratedToken,
    audit: &Recorder,
) -> Result<AccessToken, Error> {
    let doing = "storing a child token";
    let mut client = db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let parent = lock_parent(&transaction, &new).await?;
    let expires_at = expiry(new.expires_at, parent.expires_at)?;
    let grant = match &parent.grant {
        Some(limits) => narrowed(limits, new.grant)?,
        None => new.grant,
    };
    let child = NewScopedToken {
        owner: new.owner,
        name: new.name,
        minted,
        created_at: new.created_at,
        expires_at,
        grant: &grant,
        parent: Some(ParentToken {
            id: new.parent,
            depth: parent.depth,
        }),
        trust: None,
    };
    let created = scoped::store(&transaction, child, Some(audit)).await?;
    transaction.commit().await.context(doing)?;
    Ok(created)
}

/// A live token that is locked against its revocation.
struct LockedParent {
    expires_at: Option<DateTime<Utc>>,
    depth: i16,
    /// The limits of a scoped token.
    grant: Option<TokenGrant>,
}

/// Locks a token with its ancestors until the end of the transaction. A revocation of one of them
/// waits, and then finds the child.
async fn lock_parent(
    transaction: &Transaction<'_>,
    new: &NewChild<'_>,
) -> Result<LockedParent, Error> {
    let doing = "locking a token";
    let sql = "with recursive up as (
                   select id, parent_id from tokens where id = $1 and user_id = $2
                   union all select t.id, t.parent_id from tokens t join up on t.id = up.parent_id
               ) select id from up order by id";
    let rows = transaction.query(sql, &[&new.parent.0, &new.owner.0]).await;
    let line: Vec<i64> = rows.context(doing)?.iter().map(|row| row.get(0)).collect();
    let sql = "select id, revoked_at is null and (expires_at is null or expires_at > $2), \
               expires_at, depth, reach, permissions, organizations, projects, networks::text[], \
               not_before from tokens where id = any($1) order by id for share";
    let rows = transaction.query(sql, &[&line, &new.created_at]).await;
    let rows = rows.context(doing)?;
    if rows.iter().any(|row| !row.get::<_, bool>(1)) {
        return Err(Error::NotFound);
    }
    let parent = rows.iter().find(|row| row.get::<_, i64>(0) == new.parent.0);
    let parent = parent.ok_or(Error::NotFound)?;
    let locked = LockedParent {
        expires_at: parent.get(2),
        depth: parent.get(3),
        grant: read_grant(parent, 4)?,
    };
    if locked.depth >= DEPTH_MAX {
        let text = format!("A token can have {DEPTH_MAX} ancestors; create it of an earlier one");
        return Err(Error::Rejected(text.into()));
    }
    let sql = "select count(*) from tokens where parent_id = $1 and revoked_at is null \
               and expires_at > $2";
    let row = transaction
        .query_one(sql, &[&new.parent.0, &new.created_at])
        .await;
    if row.context(doing)?.get::<_, i64>(0) >= CHILDREN_MAX {
        let text = format!("A token can have {CHILDREN_MAX} live children; revoke one first");
        return Err(Error::Rejected(text.into()));
    }
    Ok(locked)
}

fn expiry(asked: ChildExpiry, parent: Option<DateTime<Utc>>) -> Result<DateTime<Utc>, Error> {
    match asked {
        ChildExpiry::AtMost(moment) => Ok(parent.map_or(moment, |parent| parent.min(moment))),
        ChildExpiry::At(moment) if parent.is_some_and(|parent| moment > parent) => Err(
            Error::invalid("expires_at", "expected at most the expiry of the parent"),
        ),
        ChildExpiry::At(moment) => Ok(moment),
    }
}

/// Returns the limits of a child: those that were asked for, which must not exceed those of the
/// parent. Networks and the begin of the parent apply where none were asked for.
pub(super) fn narrowed(parent: &TokenGrant, asked: TokenGrant) -> Result<TokenGrant, Error> {
    let excess = asked
        .permissions
        .iter()
        .find(|it| !parent.permissions.contains(*it));
    if let Some(permission) = excess {
        let text = format!("{} is no permission of the parent", permission.name());
        return Err(Error::invalid("permissions", text));
    }
    if !parent.reach.includes(&asked.reach) {
        let text = "expected organizations and projects that the parent reaches";
        return Err(Error::invalid("project_refs", text));
    }
    let is_within = |network: &ipnet::IpNet| {
        parent.networks.is_empty() || parent.networks.iter().any(|outer| outer.contains(network))
    };
    if let Some(network) = asked.networks.iter().find(|network| !is_within(network)) {
        let text = format!("{network} is in no network of the parent");
        return Err(Error::invalid("networks", text));
    }
    Ok(TokenGrant {
        networks: if asked.networks.is_empty() {
            parent.networks.clone()
        } else {
            asked.networks
        },
        not_before: asked.not_before.max(parent.not_before),
        ..asked
    })
}

/// Lists the live descendants of a token, parents before their children.
pub(super) async fn list(
    db: &Db,
    owner: UserId,
    token: TokenId,
) -> Result<Vec<AccessToken>, Error> {
    let sql = concat!(
        "with recursive tree as (
             select id from tokens where parent_id = $2
             union all select c.id from tokens c join tree on c.parent_id = tree.id
         ) select ",
        token_columns!(),
        " from tokens t where user_id = $1 and revoked_at is null
             and id in (select id from tree) order by depth, id limit $3"
    );
    let rows = db.query(sql, &[&owner.0, &token.0, &LIST_MAX]).await;
    Ok(rows.context("listing tokens")?.iter().map(read).collect())
}

/// Revokes the descendants of a token that is revoked by this transaction: no other can be created
/// any more. Returns the facts for the audit log.
pub(super) async fn revoke_all(
    transaction: &Transaction<'_>,
    token: TokenId,
    now: DateTime<Utc>,
) -> Result<Vec<serde_json::Value>, Error> {
    let sql = "with recursive tree as (
                   select id from tokens where parent_id = $1
                   union all select c.id from tokens c join tree on c.parent_id = tree.id
               ) update tokens set revoked_at = $2
                 where id in (select id from tree) and revoked_at is null
                 returning id, name, alias";
    let rows = transaction.query(sql, &[&token.0, &now]).await;
    let rows = rows.context("revoking the children of a token")?;
    let fact = |row: &tokio_postgres::Row| {
        json!({
            "id": row.get::<_, i64>(0),
            "name": row.get::<_, &str>(1),
            "alias": row.get::<_, &str>(2),
        })
    };
    Ok(rows.iter().map(fact).collect())
}

#[cfg(test)]
mod tests {
    use gantry_base::ids::{OrganizationId, ProjectId};

    use super::*;
    use crate::platform::access::{Permission, Reach};

    fn grant(permissions: &[Permission], reach: Reach, networks: &[&str]) -> TokenGrant {
        TokenGrant {
            permissions: permissions.iter().copied().collect(),
            reach,
            networks: networks.iter().map(|it| it.parse().unwrap()).collect(),
            not_before: None,
        }
    }

    fn projects(ids: &[i64]) -> Reach {
        Reach::Projects {
            organization: OrganizationId(1),
            projects: ids.iter().map(|id| ProjectId(*id)).collect(),
        }
    }

    #[test]
    fn child_has_at_most_the_limits_of_its_parent() {
        use Permission::{DatabaseRead, DatabaseWrite};
        let parent = grant(&[DatabaseRead], projects(&[1, 2]), &["192.0.2.0/24"]);
        let child = |permissions: &[_], reach, networks: &[_]| {
            narrowed(&parent, grant(permissions, reach, networks))
        };
        let same = child(&[DatabaseRead], projects(&[1, 2]), &[]).unwrap();
        assert_eq!(same, parent);
        let narrow = child(&[DatabaseRead], projects(&[2]), &["192.0.2.128/25"]).unwrap();
        assert_eq!(narrow.reach, projects(&[2]));
        for (permissions, reach, networks) in [
            (&[DatabaseRead, DatabaseWrite][..], projects(&[1]), &[][..]),
            (&[DatabaseRead], projects(&[3]), &[]),
            (&[DatabaseRead], Reach::Account, &[]),
            (
                &[DatabaseRead],
                Reach::Organizations(vec![OrganizationId(1)]),
                &[],
            ),
            (&[DatabaseRead], projects(&[1]), &["192.0.0.0/16"]),
            (&[DatabaseRead], projects(&[1]), &["198.51.100.0/24"]),
        ] {
            let refused = child(permissions, reach.clone(), networks);
            assert!(refused.is_err(), "{permissions:?} {reach:?} {networks:?}");
        }
    }

    #[test]
    fn child_does_not_live_longer_than_its_parent() {
        let parent: DateTime<Utc> = "2026-11-21T10:00:00Z".parse().unwrap();
        let later = parent + chrono::TimeDelta::seconds(1);
        assert_eq!(
            expiry(ChildExpiry::AtMost(later), Some(parent)).unwrap(),
            parent
        );
        assert_eq!(expiry(ChildExpiry::AtMost(later), None).unwrap(), later);
        assert_eq!(
            expiry(ChildExpiry::At(parent), Some(parent)).unwrap(),
            parent
        );
        assert!(expiry(ChildExpiry::At(later), Some(parent)).is_err());
    }
}
