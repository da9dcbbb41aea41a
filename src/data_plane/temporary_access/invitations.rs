//! Invitations of people from outside: a secret that lets the person with one address into one database, and nothing else.
//!
//! Whoever accepts becomes no member and sees nothing of the organization. To accept again renews the logins, until the
//! invitation is over or taken back.

use chrono::{DateTime, TimeDelta, Utc};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Opened, grants::Grant, is_enabled, let_in, lock};
use crate::{
    base::{
        error::{Context, Error},
        ids::{OrganizationId, ProjectId, ProjectRef},
    },
    data_plane::{context::DataPlaneContext, projects},
    platform::{
        access::{Project, User, credential::SecretDigest},
        audit::{Chain, Recorder},
    },
};

/// How long a role is granted that says no end.
const LIFE: TimeDelta = TimeDelta::hours(24);
/// Invitations that a project can have at a time.
const OPEN_MAX: i64 = 100;

/// An invitation that somebody may accept.
#[derive(Debug)]
pub struct Invitation {
    /// What it is taken back by.
    pub id: Uuid,
    /// Whom it is for.
    pub email: String,
    /// What is granted.
    pub grants: Vec<Grant>,
    /// When all of that is over.
    pub expires_at: DateTime<Utc>,
}

/// Invites the person with this address, in place of any invitation before, and returns what to show to accept. It is kept
/// nowhere.
pub async fn invite(
    context: &DataPlaneContext,
    project: &Project,
    email: String,
    mut grants: Vec<Grant>,
    audit: &Recorder,
) -> Result<(Invitation, SecretString), Error> {
    let (doing, now) = ("inviting to a database", context.clock.now());
    for grant in &mut grants {
        grant.expires_at.get_or_insert(now + LIFE);
    }
    let expires_at = grants
        .iter()
        .filter_map(|grant| grant.expires_at)
        .max()
        .unwrap_or(now + LIFE);
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
    let (digest, written) = (
        SecretDigest::of(&secret),
        serde_json::to_value(&grants).context(doing)?,
    );
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
                &OPEN_MAX,
            ],
        )
        .await
        .context(doing)?;
    if made == 0 {
        return Err(Error::Rejected(
            format!("A project can have {OPEN_MAX} open invitations to its database").into(),
        ));
    }
    audit
        .write_in(
            &transaction,
            201,
            (
                None,
                Some(json!({"invitation": id, "email": email, "roles": grants})),
            ),
            now,
        )
        .await?;
    transaction.commit().await.context(doing)?;
    context.jit.wake();
    Ok((
        Invitation {
            id,
            email,
            grants,
            expires_at,
        },
        SecretString::from(secret),
    ))
}

/// Takes an invitation back, with every login that came of it.
pub async fn revoke(
    context: &DataPlaneContext,
    project: &Project,
    id: Uuid,
    audit: &Recorder,
) -> Result<(), Error> {
    let (doing, now) = ("taking back an invitation", context.clock.now());
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
    audit
        .write_in(&transaction, 200, (Some(before), None), now)
        .await?;
    transaction.commit().await.context(doing)?;
    context.jit.wake();
    Ok(())
}

/// Those that nobody accepted yet.
pub async fn open(context: &DataPlaneContext, project: &Project) -> Result<Vec<Invitation>, Error> {
    let doing = "listing invitations";
    let sql = "select id, email, grants, expires_at from jit_invitations \
               where project_id = $1 and user_id is null and expires_at > $2 order by created_at, id limit $3";
    let rows = context
        .db
        .query(sql, &[&project.id.0, &context.clock.now(), &OPEN_MAX])
        .await
        .context(doing)?;
    let read = |row: &tokio_postgres::Row| {
        let grants = serde_json::from_value(row.get(2)).context(doing)?;
        Ok(Invitation {
            id: row.get(0),
            email: row.get(1),
            grants,
            expires_at: row.get(3),
        })
    };
    rows.iter().map(read).collect()
}

/// Lets the caller in by the secret of an invitation for the caller's address, and returns a login for each role that is
/// granted now. An invitation that is unknown, over, or another person's does not exist.
///
/// Errors: [`Error::NotFound`]; [`Error::Rejected`] if temporary access is switched off, or a role cannot be given;
/// [`Error::DatabaseUnreachable`].
pub async fn accept(
    context: &DataPlaneContext,
    reference: &ProjectRef,
    user: &User,
    (email, secret): (&str, &SecretString),
    audit: &Recorder,
) -> Result<Vec<Opened>, Error> {
    let (doing, now) = ("accepting an invitation", context.clock.now());
    let digest = SecretDigest::of(secret.expose_secret());
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    // The project is locked before its invitation, as by whoever takes it back.
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
    let (id, grants): (Uuid, Vec<Grant>) = (
        row.get(0),
        serde_json::from_value(row.get(1)).context(doing)?,
    );
    let live: Vec<Grant> = grants
        .into_iter()
        .filter(|grant| grant.expires_at.is_some_and(|expiry| expiry > now))
        .collect();
    for grant in &live {
        grant
            .insert(&transaction, &project, user.id, Some(id), now)
            .await?;
    }
    let told = json!({"project": reference, "invitation": id, "roles": live});
    audit
        .write_elsewhere(
            &transaction,
            Chain::Organization(project.organization),
            told,
            now,
        )
        .await?;
    transaction.commit().await.context(doing)?;
    drop(client);
    projects::target(context, &project).await?;
    if !is_enabled(context, &project).await? {
        return Err(super::switched_off());
    }
    let mut opened = Vec::with_capacity(live.len());
    for grant in live.into_iter().filter(|grant| !grant.branches_only) {
        opened.push(let_in(context, &project, user, grant, audit).await?);
    }
    Ok(opened)
}
