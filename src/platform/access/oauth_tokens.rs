//! OAuth access tokens: everything that can revoke one is read in a single query.

use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use gantry_base::ids::{ApplicationId, ApprovalId, OrganizationId, ProjectId, UserId};
use tokio_postgres::Row;

use super::audience::Audience;
use crate::platform::{
    access::{
        approval::{OauthApproval, Scopes},
        caller::{CachedCredential, User},
        credential::SecretDigest,
        grant::Reach,
        role::Role,
    },
    db::Db,
    error::{Context, Error},
};

/// Shortest time between two writes of an approval's last use.
const USE_RESOLUTION: TimeDelta = TimeDelta::minutes(1);

/// Returns the credential of the live access token with this digest. The first use is written
/// before the first request is answered, so that an unused pair of tokens is known not to have
/// reached the client.
pub async fn find(
    db: &Db,
    digest: &SecretDigest,
    now: DateTime<Utc>,
) -> Result<Option<CachedCredential>, Error> {
    let doing = "looking up an OAuth access token";
    let sql = "select a.id, a.expires_at, a.scopes, g.scopes, p.scopes, g.id, p.id, p.client_id, g.organization_id, g.projects, \
               case when p.bind_to_authorizing_user then null else g.acts_as end, u.id, u.gotrue_id, a.first_used_at, g.last_used_at, \
               g.resource \
               from oauth_access_tokens a join oauth_grants g on g.id = a.grant_id join oauth_applications p on p.id = g.application_id \
               join users u on u.id = g.user_id join members m on (m.organization_id, m.user_id) = (g.organization_id, g.user_id) \
               where a.digest = $1 and a.revoked_at is null and g.revoked_at is null and p.deleted_at is null and a.expires_at > $2";
    let rows = db
        .query(sql, &[&digest.as_bytes(), &now])
        .await
        .context(doing)?;
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    // A token for another resource is rejected (RFC 8707 §2) and does not count as used.
    if Audience::stored(row.get(15)) == Audience::Other {
        return Ok(None);
    }
    if row.get::<_, Option<DateTime<Utc>>>(13).is_none() {
        let sql = "update oauth_access_tokens set first_used_at = coalesce(first_used_at, $2) where id = $1 and revoked_at is null returning id";
        if db
            .query(sql, &[&row.get::<_, i64>(0), &now])
            .await
            .context(doing)?
            .is_empty()
        {
            return Ok(None);
        }
    }
    if row
        .get::<_, Option<DateTime<Utc>>>(14)
        .is_none_or(|used| now - used >= USE_RESOLUTION)
    {
        let sql = "update oauth_grants set last_used_at = greatest(last_used_at, $2) where id = $1";
        db.query(sql, &[&row.get::<_, i64>(5), &now])
            .await
            .context(doing)?;
    }
    read(row).map(Some)
}

fn read(row: &Row) -> Result<CachedCredential, Error> {
    let scopes = |column| Scopes::named(row.get::<_, Vec<&str>>(column));
    let acts_as = row
        .get::<_, Option<&str>>(10)
        .map(str::parse::<Role>)
        .transpose()
        .context("reading an approval's role")?;
    let approval = OauthApproval {
        id: ApprovalId(row.get(5)),
        application: ApplicationId(row.get(6)),
        client_id: row.get(7),
        // Scopes that were removed from the application are lost at once.
        scopes: scopes(2).and(scopes(3)).and(scopes(4)),
        reach: reach(OrganizationId(row.get(8)), row.get(9)),
        acts_as,
        audience: Audience::stored(row.get(15)),
    };
    let user = User {
        id: UserId(row.get(11)),
        gotrue_id: row.get(12),
        token: None,
        grant: None,
        approval: Some(Arc::new(approval)),
        activity: None,
        signed_in_at: None,
    };
    Ok(CachedCredential {
        user: Arc::new(user),
        expires_at: row.get(1),
    })
}

fn reach(organization: OrganizationId, projects: Option<Vec<i64>>) -> Reach {
    match projects {
        None => Reach::Organizations(vec![organization]),
        Some(projects) => Reach::Projects {
            organization,
            projects: projects.into_iter().map(ProjectId).collect(),
        },
    }
}
