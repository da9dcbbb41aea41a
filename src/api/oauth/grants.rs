//! Grants: the access that members gave to applications, and its revocation on all nodes.

use chrono::{DateTime, Utc};
use gantry_base::ids::{ApplicationId, ApprovalId, OrganizationId, UserId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio_postgres::{Row, Transaction};
use uuid::Uuid;

use crate::{
    api::context::ApiContext,
    platform::{
        access::{Role, Scopes},
        audit::Recorder,
        db::Db,
        error::{Context, Error},
        notifications,
        tables::Table,
    },
};

/// Live grants of one member to one application, for example one per computer. The least recently
/// used ones are revoked first.
const GRANTS_PER_MEMBER_MAX: i64 = 20;
/// Maximum number of grants in a list.
pub const LIST_MAX: i64 = 1_000;

/// Reason for the revocation of a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RevocationReason {
    /// The member revoked it.
    User,
    /// The application revoked it (RFC 7009).
    Application,
    /// A code or refresh token was used twice.
    Replay,
    /// The application was deleted.
    Deleted,
    /// A manager of the organization revoked it.
    Organization,
}

impl RevocationReason {
    const fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Application => "application",
            Self::Replay => "replay",
            Self::Deleted => "deleted",
            Self::Organization => "organization",
        }
    }
}

/// A grant to be stored.
#[derive(Debug)]
pub struct NewGrant {
    /// The application that receives access.
    pub application: ApplicationId,
    /// The granting member.
    pub user: UserId,
    /// The organization.
    pub organization: OrganizationId,
    /// Row ids of the projects; `None` means all projects of the organization.
    pub projects: Option<Vec<i64>>,
    /// The granted scopes.
    pub scopes: Scopes,
    /// The requested audience (RFC 8707).
    pub resource: Option<String>,
    /// The role of the member at the time of the grant.
    pub acts_as: Role,
}

/// Stores a grant. Revokes the least recently used ones above `GRANTS_PER_MEMBER_MAX`.
pub async fn insert(
    transaction: &Transaction<'_>,
    new: &NewGrant,
    now: DateTime<Utc>,
) -> Result<ApprovalId, Error> {
    let doing = "storing a grant";
    let sql = "insert into oauth_grants (application_id, user_id, organization_id, projects, scopes, resource, acts_as, created_at) \
               values ($1, $2, $3, $4, $5, $6, $7, $8) returning id";
    let values: [crate::platform::db::Param<'_>; 8] = [
        &new.application.0,
        &new.user.0,
        &new.organization.0,
        &new.projects,
        &new.scopes.names(),
        &new.resource,
        &new.acts_as.name(),
        &now,
    ];
    let id: i64 = transaction
        .query_one(sql, &values)
        .await
        .context(doing)?
        .get(0);
    let sql = "update oauth_grants set revoked_at = $3, reason = 'superseded' where application_id = $1 and user_id = $2 and revoked_at is null \
               and id not in (select id from oauth_grants where application_id = $1 and user_id = $2 and revoked_at is null \
                              order by coalesce(last_used_at, created_at) desc, id desc limit $4)";
    transaction
        .execute(
            sql,
            &[
                &new.application.0,
                &new.user.0,
                &now,
                &GRANTS_PER_MEMBER_MAX,
            ],
        )
        .await
        .context(doing)?;
    Ok(ApprovalId(id))
}

/// A grant, read under a row lock.
#[derive(Debug)]
pub struct LockedGrant {
    /// Row of `oauth_grants`.
    pub id: ApprovalId,
    /// The application with access.
    pub application: ApplicationId,
    /// The organization.
    pub organization: OrganizationId,
    /// The `gotrue_id` of the granting member.
    pub actor: Uuid,
    /// The granted scopes that the application still has.
    pub scopes: Scopes,
    /// Refs of the projects; `None` means all projects of the organization.
    pub project_refs: Option<Vec<String>>,
    /// The requested audience (RFC 8707).
    pub resource: Option<String>,
    /// Time of the grant.
    pub created_at: DateTime<Utc>,
    /// Whether the grant is not revoked.
    pub live: bool,
}

/// Locks the row of a grant. Exchanges and revocations of one grant are serialized by this lock.
pub async fn lock(
    transaction: &Transaction<'_>,
    id: ApprovalId,
) -> Result<Option<LockedGrant>, Error> {
    let sql = "select g.application_id, g.organization_id, u.gotrue_id, g.scopes, \
               case when g.projects is not null then array(select ref from projects p where p.id = any(g.projects) order by ref) end, \
               g.resource, g.created_at, g.revoked_at is null, a.scopes \
               from oauth_grants g join users u on u.id = g.user_id join oauth_applications a on a.id = g.application_id \
               where g.id = $1 for update of g";
    let row = transaction
        .query_opt(sql, &[&id.0])
        .await
        .context("locking a grant")?;
    Ok(row.map(|row| LockedGrant {
        id,
        application: ApplicationId(row.get(0)),
        organization: OrganizationId(row.get(1)),
        actor: row.get(2),
        scopes: Scopes::named(row.get::<_, Vec<&str>>(3))
            .and(Scopes::named(row.get::<_, Vec<&str>>(8))),
        project_refs: row.get(4),
        resource: row.get(5),
        created_at: row.get(6),
        live: row.get(7),
    }))
}

/// Marks a grant as revoked, within the caller's transaction. Returns whether it was live before.
pub async fn mark_revoked(
    transaction: &Transaction<'_>,
    id: ApprovalId,
    reason: RevocationReason,
    now: DateTime<Utc>,
) -> Result<bool, Error> {
    let sql =
        "update oauth_grants set revoked_at = $2, reason = $3 where id = $1 and revoked_at is null";
    Ok(transaction
        .execute(sql, &[&id.0, &now, &reason.name()])
        .await
        .context("revoking a grant")?
        > 0)
}

/// Marks all grants of an application as revoked. Returns their number.
pub async fn mark_all_revoked(
    transaction: &Transaction<'_>,
    application: ApplicationId,
    now: DateTime<Utc>,
) -> Result<u64, Error> {
    let sql = "update oauth_grants set revoked_at = $2, reason = $3 where application_id = $1 and revoked_at is null";
    transaction
        .execute(
            sql,
            &[&application.0, &now, &RevocationReason::Deleted.name()],
        )
        .await
        .context("revoking a grant")
}

/// Invalidates cached grants on this node and waits for the confirmation of the others.
pub async fn publish_revocation(context: &ApiContext) -> Result<(), Error> {
    context.table_changed(Table::OauthGrants);
    notifications::settle(&context.db).await
}

/// A grant as its member sees it.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "OauthAuthorization")]
pub struct Authorization {
    /// Row of `oauth_grants`.
    pub id: i64,
    /// Client id of the application.
    pub client_id: Uuid,
    /// Name of the application.
    pub name: String,
    /// Website of the application.
    pub website: String,
    /// Whether the operator verified the application.
    pub verified: bool,
    /// Slug of the organization.
    pub organization_slug: String,
    /// Refs of the projects that it can access; null means all projects of the organization.
    pub project_refs: Option<Vec<String>>,
    /// Granted scopes.
    pub scopes: Vec<String>,
    /// Time of the grant.
    pub created_at: DateTime<Utc>,
    /// Time of the last use, rounded to minutes.
    pub last_used_at: Option<DateTime<Utc>>,
}

/// A grant as managers of the organization see it.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "OauthMemberAuthorization")]
pub struct MemberAuthorization {
    /// The grant.
    #[serde(flatten)]
    pub authorization: Authorization,
    /// The granting member.
    pub approved_by: Approver,
}

/// The granting member, as shown to managers of the organization.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "OauthApprover")]
pub struct Approver {
    /// The id in the list of members.
    pub id: Uuid,
    /// Username.
    pub username: String,
    /// Email address.
    pub primary_email: String,
}

macro_rules! authorizations {
    ($of:literal) => {
        concat!(
            "select g.id, a.client_id, a.name, a.website, a.verified, o.slug, \
             case when g.projects is not null then array(select ref from projects p where p.id = any(g.projects) order by ref) end, \
             (select coalesce(array_agg(scope), '{}') from unnest(g.scopes) scope where scope = any(a.scopes)), \
             g.created_at, g.last_used_at, u.gotrue_id, u.username, u.email \
             from oauth_grants g join oauth_applications a on a.id = g.application_id join organizations o on o.id = g.organization_id \
             join users u on u.id = g.user_id where g.revoked_at is null and ",
            $of,
            " order by g.created_at desc, g.id desc limit $2"
        )
    };
}

fn read(row: &Row) -> Authorization {
    Authorization {
        id: row.get(0),
        client_id: row.get(1),
        name: row.get(2),
        website: row.get(3),
        verified: row.get(4),
        organization_slug: row.get(5),
        project_refs: row.get(6),
        scopes: row.get(7),
        created_at: row.get(8),
        last_used_at: row.get(9),
    }
}

/// Lists the live grants of a member, newest first.
pub async fn list(db: &Db, user: UserId) -> Result<Vec<Authorization>, Error> {
    let rows = db
        .query(authorizations!("g.user_id = $1"), &[&user.0, &LIST_MAX])
        .await
        .context("listing grants")?;
    Ok(rows.iter().map(read).collect())
}

/// Lists the live grants in an organization, newest first.
pub async fn list_for_organization(
    db: &Db,
    organization: OrganizationId,
) -> Result<Vec<MemberAuthorization>, Error> {
    let rows = db
        .query(
            authorizations!("g.organization_id = $1"),
            &[&organization.0, &LIST_MAX],
        )
        .await;
    Ok(rows
        .context("listing grants")?
        .iter()
        .map(|row: &Row| MemberAuthorization {
            authorization: read(row),
            approved_by: Approver {
                id: row.get(10),
                username: row.get(11),
                primary_email: row.get(12),
            },
        })
        .collect())
}

/// Counts the live grants of an application.
pub async fn count(db: &Db, application: ApplicationId) -> Result<i64, Error> {
    let sql = "select count(*) from oauth_grants where application_id = $1 and revoked_at is null";
    let rows = db
        .query(sql, &[&application.0])
        .await
        .context("counting grants")?;
    Ok(rows.first().map_or(0, |row| row.get(0)))
}

/// The party that revokes a grant.
#[derive(Debug, Clone, Copy)]
pub enum Revoker {
    /// The granting member.
    Member(UserId),
    /// A manager of the organization.
    Organization(OrganizationId),
}

/// Revokes a grant: the next request with any of its tokens is rejected, on every node.
pub async fn revoke(
    context: &ApiContext,
    by: Revoker,
    id: ApprovalId,
    audit: &Recorder,
) -> Result<(), Error> {
    let doing = "revoking grants";
    let now = context.clock.now();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let (user, organization, reason) = match by {
        Revoker::Member(user) => (Some(user.0), None, RevocationReason::User),
        Revoker::Organization(organization) => {
            (None, Some(organization.0), RevocationReason::Organization)
        }
    };
    let sql = "select a.client_id, a.name, u.gotrue_id from oauth_grants g join oauth_applications a on a.id = g.application_id \
               join users u on u.id = g.user_id where g.id = $1 and g.user_id = coalesce($2, g.user_id) \
               and g.organization_id = coalesce($3, g.organization_id) and g.revoked_at is null for update of g";
    let row = transaction
        .query_opt(sql, &[&id.0, &user, &organization])
        .await
        .context(doing)?
        .ok_or(Error::NotFound)?;
    let before = json!({
        "approval": id.0, "application": row.get::<_, Uuid>(0), "name": row.get::<_, &str>(1), "approved_by": row.get::<_, Uuid>(2),
    });
    mark_revoked(&transaction, id, reason, now).await?;
    let change = (Some(before), None);
    audit.commit(transaction, doing, 200, change, now).await?;
    publish_revocation(context).await
}

/// Revokes all grants of an application in an organization. Returns their number.
pub async fn revoke_all(
    context: &ApiContext,
    organization: OrganizationId,
    client_id: Uuid,
    audit: &Recorder,
) -> Result<u64, Error> {
    let doing = "revoking grants";
    let now = context.clock.now();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    // The lock serializes this with approvals: a concurrent grant is revoked here or created after.
    let sql = "select id, name from oauth_applications where client_id = $1 for no key update";
    let row = transaction
        .query_opt(sql, &[&client_id])
        .await
        .context(doing)?
        .ok_or(Error::NotFound)?;
    let sql = "update oauth_grants set revoked_at = $3, reason = $4 where application_id = $1 and organization_id = $2 and revoked_at is null";
    let values: [crate::platform::db::Param<'_>; 4] = [
        &row.get::<_, i64>(0),
        &organization.0,
        &now,
        &RevocationReason::Organization.name(),
    ];
    let ended = transaction.execute(sql, &values).await.context(doing)?;
    if ended == 0 {
        return Err(Error::NotFound);
    }
    let before = json!({"application": client_id, "name": row.get::<_, &str>(1), "authorizations_revoked": ended});
    let change = (Some(before), None);
    audit.result(&ended);
    audit.commit(transaction, doing, 200, change, now).await?;
    publish_revocation(context).await?;
    Ok(ended)
}
