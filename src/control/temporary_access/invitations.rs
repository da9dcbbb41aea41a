//! Invitations of people outside the organization: a secret that gives the owner of one e-mail
//! address access to one database.
//!
//! Accepting an invitation does not create a membership. Accepting it again renews the logins until
//! the invitation expires or is revoked.

use chrono::{DateTime, TimeDelta, Utc};
use gantry_base::ids::{OrganizationId, ProjectId, ProjectRef};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{LoginCredentials, grants::AccessGrant, is_enabled, lock, open_login};
use crate::{
    control::{context::ControlContext, projects},
    platform::{
        access::{Project, User, credential::SecretDigest},
        audit::{Chain, Recorder},
        error::{Context, Error},
    },
};

/// Lifetime of a grant without an expiry.
const DEFAULT_TTL: TimeDelta = TimeDelta::hours(24);
/// Maximum number of open invitations of a project.
const OPEN_INVITATIONS_MAX: i64 = 100;

/// An open invitation.
#[derive(Debug)]
pub struct DatabaseInvitation {
    /// Id for revocation.
    pub id: Uuid,
    /// E-mail address of the invited person.
    pub email: String,
    /// Granted roles.
    pub grants: Vec<AccessGrant>,
    /// Latest expiry of the grants.
    pub expires_at: DateTime<Utc>,
}

/// Creates an invitation for an e-mail address, replacing an earlier one. Returns the secret, which
/// is not stored.
pub async fn invite(
    context: &ControlContext,
    project: &Project,
    email: String,
    mut grants: Vec<AccessGrant>,
    audit: &Recorder,
) -> Result<(DatabaseInvitation, SecretString), Error> {
    let doing = "inviting to a database";
    let now = context.clock.now();
    for grant in &mut grants {
        grant.expires_at.get_or_insert(now + DEFAULT_TTL);
    }
    let expires_at = grants
        .iter()
        .filter_map(|grant| grant.expires_at)
        .max()
        .unwrap_or(now + DEFAULT_TTL);
    let id = context.entropy.uuid();
    let secret = format!(
        "gantry_jit_invite_{}",
        hex::encode(context.entropy.bytes::<20>())
    );
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    lock(&transaction, project).await?;
    let sql = "delete from jit_invitations where project_id = $1 and (lower(email) = lower($2) or expires_at <= $3)";
    transaction
        .execute(sql, &[&project.id.0, &email, &now])
        .await
        .context(doing)?;
    let sql = "insert into jit_invitations (id, project_id, email, digest, grants, created_at, expires_at) \
               select $1, $2, $3, $4, $5, $6, $7 where (select count(*) from jit_invitations where project_id = $2) < $8";
    let digest = SecretDigest::of(&secret);
    let written = serde_json::to_value(&grants).context(doing)?;
    let made = transaction
        .execute(
            sql,
            &[
                &id,
                &project.id.0,
                &email,
                &digest.as_bytes(),
                &written,
                &now,
                &expires_at,
                &OPEN_INVITATIONS_MAX,
            ],
        )
        .await
        .context(doing)?;
    if made == 0 {
        return Err(Error::Rejected(
            format!("A project can have {OPEN_INVITATIONS_MAX} open invitations to its database")
                .into(),
        ));
    }
    let change = (
        None,
        Some(json!({"invitation": id, "email": email, "roles": grants})),
    );
    let made = (
        DatabaseInvitation {
            id,
            email,
            grants,
            expires_at,
        },
        SecretString::from(secret),
    );
    audit.result(&made);
    audit.commit(transaction, doing, 201, change, now).await?;
    context.temporary_access.wake();
    Ok(made)
}

/// Revokes an invitation with its logins.
pub async fn revoke(
    context: &ControlContext,
    project: &Project,
    id: Uuid,
    audit: &Recorder,
) -> Result<(), Error> {
    let doing = "revoking an invitation";
    let now = context.clock.now();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    lock(&transaction, project).await?;
    let sql =
        "delete from jit_invitations where project_id = $1 and id = $2 returning email, grants";
    let row = transaction
        .query_opt(sql, &[&project.id.0, &id])
        .await
        .context(doing)?
        .ok_or(Error::NotFound)?;
    let before =
        json!({"invitation": id, "email": row.get::<_, &str>(0), "roles": row.get::<_, Value>(1)});
    let change = (Some(before), None);
    audit.commit(transaction, doing, 200, change, now).await?;
    context.temporary_access.wake();
    Ok(())
}

/// Lists the invitations that were not accepted yet.
pub async fn open(
    context: &ControlContext,
    project: &Project,
) -> Result<Vec<DatabaseInvitation>, Error> {
    let doing = "listing invitations";
    let sql = "select id, email, grants, expires_at from jit_invitations \
               where project_id = $1 and user_id is null and expires_at > $2 order by created_at, id limit $3";
    let rows = context
        .db
        .query(
            sql,
            &[&project.id.0, &context.clock.now(), &OPEN_INVITATIONS_MAX],
        )
        .await
        .context(doing)?;
    rows.iter()
        .map(|row| {
            let grants = serde_json::from_value(row.get(2)).context(doing)?;
            Ok(DatabaseInvitation {
                id: row.get(0),
                email: row.get(1),
                grants,
                expires_at: row.get(3),
            })
        })
        .collect()
}

/// Accepts the invitation with this secret for the caller's address and returns a login for each
/// unexpired grant.
///
/// Errors: [`Error::NotFound`] if the invitation is unknown, expired or for another person;
/// [`Error::Rejected`] if temporary access is disabled or a role cannot be granted;
/// [`Error::DatabaseUnreachable`].
pub async fn accept(
    context: &ControlContext,
    reference: &ProjectRef,
    user: &User,
    (email, secret): (&str, &SecretString),
    audit: &Recorder,
) -> Result<Vec<LoginCredentials>, Error> {
    let doing = "accepting an invitation";
    let now = context.clock.now();
    let digest = SecretDigest::of(secret.expose_secret());
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    // The project is locked before its invitation, in the order of revocation, which prevents
    // deadlocks.
    let sql = "select p.id, p.organization_id from jit_invitations i join projects p on p.id = i.project_id where i.digest = $1 and p.ref = $2";
    let row = transaction
        .query_opt(sql, &[&digest.as_bytes(), &reference.as_str()])
        .await
        .context(doing)?
        .ok_or(Error::NotFound)?;
    let project = Project {
        id: ProjectId(row.get(0)),
        organization: OrganizationId(row.get(1)),
        reference: reference.clone(),
    };
    lock(&transaction, &project).await?;
    let sql = "update jit_invitations i set user_id = u.id from users u where i.digest = $1 and i.expires_at > $2 and u.id = $3 \
               and lower(i.email) = lower(u.email) and lower(i.email) = lower($4) and coalesce(i.user_id = u.id, true) \
               returning i.id, i.grants";
    let row = transaction
        .query_opt(sql, &[&digest.as_bytes(), &now, &user.id.0, &email])
        .await
        .context(doing)?;
    let row = row.ok_or(Error::NotFound)?;
    let id: Uuid = row.get(0);
    let grants: Vec<AccessGrant> = serde_json::from_value(row.get(1)).context(doing)?;
    let live: Vec<AccessGrant> = grants
        .into_iter()
        .filter(|grant| grant.expires_at.is_some_and(|expiry| expiry > now))
        .collect();
    for grant in &live {
        grant
            .insert(&transaction, &project, user.id, Some(id), now)
            .await?;
    }
    let entry = json!({"project": reference, "invitation": id, "roles": live});
    audit
        .write_elsewhere(
            &transaction,
            Chain::Organization(project.organization),
            entry,
            now,
        )
        .await?;
    transaction.commit().await.context(doing)?;
    drop(client);
    projects::target(context, &project).await?;
    if !is_enabled(context, &project).await? {
        return Err(super::disabled_error());
    }
    let mut opened = Vec::with_capacity(live.len());
    for grant in live.into_iter().filter(|grant| !grant.branches_only) {
        opened.push(open_login(context, &project, user, grant, audit).await?);
    }
    Ok(opened)
}
