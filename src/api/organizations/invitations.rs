//! Invitations: single-use secrets, valid for a day, that make the owner of an email address a
//! member.

use std::collections::BTreeSet;

use chrono::{DateTime, TimeDelta, Utc};
use gantry_base::{
    clock::Entropy,
    ids::{OrgSlug, OrganizationId, ProjectRef, UserId},
};
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;
use tokio_postgres::Row;

use super::{member_events::MemberRoles, members, members::ProjectName};
use crate::platform::{
    access::{Role, credential::SecretDigest},
    audit::{Chain, Change, Recorder},
    db::{self, Db},
    error::{Context, Error},
    events::{
        EventPayload, NewEvent,
        payloads::{InvitationCanceled, InvitationCreated, InvitedMember, MemberRole},
    },
};

/// Lifetime of an invitation.
const LIFETIME: TimeDelta = TimeDelta::hours(24);
/// Maximum number of open invitations per organization.
const INVITATIONS_OPEN_MAX: i64 = 1_000;

/// An invitation to be created.
#[derive(Debug)]
pub struct InvitationDraft {
    /// Email address of the account that can accept.
    pub email: String,
    /// The role, in the organization or on the projects.
    pub role: Role,
    /// Projects on which the role applies; the whole organization, if empty.
    pub projects: BTreeSet<ProjectRef>,
}

/// A created invitation with its secret.
#[derive(Debug)]
pub struct CreatedInvitation {
    /// Email address of the recipient.
    pub email: String,
    /// The secret in plain text. Only its digest is stored.
    pub secret: SecretString,
    /// Expiry time.
    pub expires_at: DateTime<Utc>,
}

/// An open invitation.
#[derive(Debug)]
pub struct OpenInvitation {
    /// Email address of the recipient.
    pub email: String,
    /// The role, in the organization or on the projects.
    pub role: Role,
    /// Projects on which the role applies; the whole organization, if empty.
    pub projects: Vec<ProjectName>,
    /// Email address of the inviting member.
    pub invited_by: String,
    /// Time of creation.
    pub created_at: DateTime<Utc>,
    /// Expiry time.
    pub expires_at: DateTime<Utc>,
    /// Slug of the organization.
    pub slug: OrgSlug,
    /// Name of the organization.
    pub organization: String,
}

macro_rules! invitations {
    ($rest:literal) => {
        concat!(
            "select i.email, i.role, \
             array(select p.ref from projects p where p.id = any(i.projects) and p.desired <> 'removed' order by p.id), \
             array(select p.name from projects p where p.id = any(i.projects) and p.desired <> 'removed' order by p.id), \
             b.email, i.created_at, i.expires_at, o.name, o.slug \
             from invitations i join users b on b.id = i.invited_by join organizations o on o.id = i.organization_id ",
            $rest
        )
    };
}

/// Lists the open invitations of an organization, newest first.
pub async fn list_open(
    db: &Db,
    organization: OrganizationId,
    now: DateTime<Utc>,
) -> Result<Vec<OpenInvitation>, Error> {
    let sql = invitations!(
        "where i.organization_id = $1 and i.expires_at > $2 order by i.created_at desc, i.id desc limit $3"
    );
    let rows = db
        .query(sql, &[&organization.0, &now, &INVITATIONS_OPEN_MAX])
        .await
        .context("listing invitations")?;
    rows.iter().map(read).collect()
}

/// Returns the invitation with this secret. Reports not found to users with another email address.
pub async fn find(
    db: &Db,
    user: UserId,
    secret: &SecretString,
    now: DateTime<Utc>,
) -> Result<OpenInvitation, Error> {
    let sql = invitations!(
        "join users u on lower(u.email) = lower(i.email) where i.digest = $1 and i.expires_at > $2 and u.id = $3"
    );
    let digest = SecretDigest::of(secret.expose_secret());
    let rows = db
        .query(sql, &[&digest.as_bytes(), &now, &user.0])
        .await
        .context("reading an invitation")?;
    read(rows.first().ok_or(Error::NotFound)?)
}

fn read(row: &Row) -> Result<OpenInvitation, Error> {
    let references: Vec<String> = row.get(2);
    let names: Vec<String> = row.get(3);
    let projects = references
        .into_iter()
        .zip(names)
        .map(|(reference, name)| ProjectName { reference, name });
    Ok(OpenInvitation {
        email: row.get(0),
        role: row
            .get::<_, &str>(1)
            .parse()
            .context("reading an invitation")?,
        projects: projects.collect(),
        invited_by: row.get(4),
        created_at: row.get(5),
        expires_at: row.get(6),
        organization: row.get(7),
        slug: super::slug(row, 8)?,
    })
}

/// Creates all invitations or none. Replaces open invitations of the same addresses.
pub async fn invite(
    db: &Db,
    entropy: &Entropy,
    organization: OrganizationId,
    by: UserId,
    invites: Vec<InvitationDraft>,
    (now, audit): (DateTime<Utc>, &Recorder),
) -> Result<Vec<CreatedInvitation>, Error> {
    let doing = "creating invitations";
    let mut client = db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    members::lock(&transaction, organization).await?;
    transaction
        .execute(
            "delete from invitations where organization_id = $1 and expires_at <= $2",
            &[&organization.0, &now],
        )
        .await
        .context(doing)?;
    let expires_at = now + LIFETIME;
    let mut created = Vec::new();
    let mut audit_values = Vec::new();
    let mut events = Vec::new();
    for InvitationDraft {
        email,
        role,
        projects,
    } in invites
    {
        let sql = "select from members m join users u on u.id = m.user_id where m.organization_id = $1 and lower(u.email) = lower($2)";
        if projects.is_empty()
            && transaction
                .query_opt(sql, &[&organization.0, &email])
                .await
                .context(doing)?
                .is_some()
        {
            return Err(Error::invalid(
                "email",
                format!("{email} is a member already"),
            ));
        }
        audit_values.push(json!({"email": email, "role": role.name(), "projects": projects}));
        let offered = MemberRole::new(role, &projects);
        let member = InvitedMember::new(email.clone(), Some(offered));
        events.push(InvitationCreated { member }.about_organization(organization));
        let (projects, _) = members::projects_in(&transaction, organization, &projects).await?;
        let secret = format!("gantry_invite_{}", hex::encode(entropy.bytes::<20>()));
        let sql = "insert into invitations (organization_id, email, role, projects, digest, invited_by, created_at, expires_at) \
                   values ($1, $2, $3, $4, $5, $6, $7, $8) on conflict (organization_id, lower(email)) do update set \
                   role = excluded.role, projects = excluded.projects, digest = excluded.digest, invited_by = excluded.invited_by, \
                   created_at = excluded.created_at, expires_at = excluded.expires_at";
        let digest = SecretDigest::of(&secret);
        transaction
            .execute(
                sql,
                &[
                    &organization.0,
                    &email,
                    &role.name(),
                    &projects,
                    &digest.as_bytes(),
                    &by.0,
                    &now,
                    &expires_at,
                ],
            )
            .await
            .context(doing)?;
        created.push(CreatedInvitation {
            email,
            secret: SecretString::from(secret),
            expires_at,
        });
    }
    let sql = "select count(*) from invitations where organization_id = $1";
    if db::count(&transaction, sql, organization.0, doing).await? > INVITATIONS_OPEN_MAX {
        return Err(Error::Rejected(
            format!("An organization can have {INVITATIONS_OPEN_MAX} open invitations").into(),
        ));
    }
    let change = Change::new((None, Some(audit_values.into())), events);
    audit.result(&created);
    audit.commit(transaction, doing, 201, change, now).await?;
    Ok(created)
}

/// Revokes the invitations of these addresses. Returns the addresses that had an open one.
pub async fn revoke(
    db: &Db,
    organization: OrganizationId,
    emails: &[String],
    now: DateTime<Utc>,
    audit: &Recorder,
) -> Result<Vec<String>, Error> {
    let doing = "revoking invitations";
    let mut client = db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let emails: Vec<String> = emails.iter().map(|email| email.to_lowercase()).collect();
    let sql = "with gone as (delete from invitations where organization_id = $1 and lower(email) = any($2) returning email, expires_at) \
               select email from gone where expires_at > $3 order by email";
    let rows = transaction
        .query(sql, &[&organization.0, &emails, &now])
        .await
        .context(doing)?;
    let revoked: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    let canceled = |email: &String| {
        let member = InvitedMember::new(email.clone(), None);
        InvitationCanceled { member }.about_organization(organization)
    };
    let events: Vec<NewEvent> = revoked.iter().map(canceled).collect();
    let change = Change::new((Some(json!({"emails": revoked})), None), events);
    audit.result(&revoked);
    audit.commit(transaction, doing, 200, change, now).await?;
    Ok(revoked)
}

/// Consumes an invitation and makes `user` a member. Returns not found if the secret is unknown,
/// expired, used, or sent to another address. An existing member keeps a higher role.
pub async fn accept(
    db: &Db,
    user: UserId,
    secret: &SecretString,
    now: DateTime<Utc>,
    audit: &Recorder,
) -> Result<OrgSlug, Error> {
    let mut client = db.client().await?;
    let transaction = client
        .transaction()
        .await
        .context("accepting an invitation")?;
    let digest = SecretDigest::of(secret.expose_secret());
    // Locks the organization before the invitation, in the same order as `invite`, to avoid
    // deadlocks.
    let sql = "select organization_id from invitations where digest = $1";
    let organization = transaction
        .query_opt(sql, &[&digest.as_bytes()])
        .await
        .context("accepting an invitation")?;
    let organization = OrganizationId(organization.ok_or(Error::NotFound)?.get(0));
    members::lock(&transaction, organization).await?;
    let sql = "delete from invitations i using users u, organizations o \
               where i.digest = $1 and i.expires_at > $2 and u.id = $3 and lower(u.email) = lower(i.email) and o.id = i.organization_id \
               returning i.role, i.projects, o.slug";
    let row = transaction
        .query_opt(sql, &[&digest.as_bytes(), &now, &user.0])
        .await
        .context("accepting an invitation")?;
    let row = row.ok_or(Error::NotFound)?;
    let projects = row.get::<_, Vec<i64>>(1);
    let role: Role = row
        .get::<_, &str>(0)
        .parse()
        .context("reading an invitation")?;
    let roles = MemberRoles::read(&transaction, organization, user).await?;
    let sql = "select role from members where organization_id = $1 and user_id = $2";
    let before = transaction
        .query_opt(sql, &[&organization.0, &user.0])
        .await
        .context("accepting an invitation")?;
    let before = before
        .map(|row| {
            row.get::<_, &str>(0)
                .parse::<Role>()
                .context("reading a member's role")
        })
        .transpose()?;
    let in_organization = if projects.is_empty() {
        role
    } else {
        Role::Member
    };
    members::set_in(
        &transaction,
        organization,
        user,
        before.unwrap_or(in_organization).max(in_organization),
        now,
    )
    .await?;
    if !projects.is_empty() {
        members::set_on_projects_in(&transaction, organization, user, role, &projects, now).await?;
    }
    let joined = members::audit_value(&transaction, organization, user)
        .await?
        .unwrap_or_default();
    audit
        .write_elsewhere(&transaction, Chain::Organization(organization), joined, now)
        .await?;
    let events = roles.changes(&transaction).await?;
    audit.append_events(&transaction, &events, now).await?;
    let slug = super::slug(&row, 2)?;
    audit.result(&slug);
    audit.record_key(&transaction).await?;
    transaction
        .commit()
        .await
        .context("accepting an invitation")?;
    Ok(slug)
}
