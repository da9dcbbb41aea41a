//! Organizations and their members.

pub mod entitlements;
pub mod invitation_operations;
pub mod invitations;
pub(in crate::api) mod member_events;
pub mod members;
pub mod operations;
pub mod v2;

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use gantry_base::{
    clock::Entropy,
    ids::{OrgSlug, OrganizationId, UserId},
};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use tokio_postgres::Row;

use self::member_events::MemberRoles;
use crate::platform::{
    access::{Reach, Role},
    audit::{Chain, Change, Recorder},
    db::{self, Db},
    error::{Context, Error},
    http::output::Created,
    names,
};

/// An organization in a list.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OrganizationResponseV1")]
pub struct OrganizationSummary {
    /// Deprecated alias of `slug`.
    #[schemars(extend("deprecated" = true))]
    id: OrgSlug,
    /// Identifier in paths.
    slug: OrgSlug,
    /// Display name.
    name: String,
}

/// A member as other members see them.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "V1OrganizationMemberResponse")]
pub struct OrganizationMember {
    user_id: String,
    user_name: String,
    email: String,
    role_name: &'static str,
    mfa_enabled: bool,
    avatar_url: Option<String>,
}

/// Maximum length of a list of organizations or members, above what occurs in practice.
const LIST_MAX: i64 = 10_000;

/// Lists the organizations of a user that the token can access, by name.
pub async fn list(
    db: &Db,
    user: UserId,
    reach: Option<&Reach>,
) -> Result<Vec<OrganizationSummary>, Error> {
    let only = reach.and_then(Reach::listed_organizations);
    let rows = db
        .query(
            "select o.slug, o.name from organizations o join members m on m.organization_id = o.id \
             where m.user_id = $1 and ($2::bigint[] is null or o.id = any($2)) order by lower(o.name), o.id limit $3",
            &[&user.0, &only, &LIST_MAX],
        )
        .await
        .context("listing organizations")?;
    rows.iter()
        .map(|row| Ok(summary(slug(row, 0)?, row.get(1))))
        .collect()
}

/// Returns those of the organizations that the user is a member of.
pub async fn of_member(
    db: &Db,
    user: UserId,
    slugs: &BTreeSet<OrgSlug>,
) -> Result<Vec<(OrganizationId, OrgSlug)>, Error> {
    let slugs: Vec<&str> = slugs.iter().map(OrgSlug::as_str).collect();
    let sql = "select o.id, o.slug from organizations o join members m on m.organization_id = o.id \
               where m.user_id = $1 and o.slug = any($2) order by o.id";
    let rows = db
        .query(sql, &[&user.0, &slugs])
        .await
        .context("looking up organizations")?;
    rows.iter()
        .map(|row| Ok((OrganizationId(row.get(0)), slug(row, 1)?)))
        .collect()
}

/// Returns the name of an organization.
pub async fn name(db: &Db, id: OrganizationId) -> Result<String, Error> {
    let rows = db
        .query("select name from organizations where id = $1", &[&id.0])
        .await
        .context("reading an organization")?;
    rows.first().map(|row| row.get(0)).ok_or(Error::NotFound)
}

/// Lists the members of an organization, by username.
pub async fn members(db: &Db, id: OrganizationId) -> Result<Vec<OrganizationMember>, Error> {
    let rows = db
        .query(
            "select u.gotrue_id::text, u.username, u.email, m.role from members m join users u on u.id = m.user_id \
             where m.organization_id = $1 order by lower(u.username), u.id limit $2",
            &[&id.0, &LIST_MAX],
        )
        .await
        .context("listing members")?;
    rows.iter()
        .map(|row: &Row| {
            let role: Role = row
                .get::<_, &str>(3)
                .parse()
                .context("reading a member's role")?;
            Ok(OrganizationMember {
                user_id: row.get(0),
                user_name: row.get(1),
                email: row.get(2),
                role_name: role.label(),
                mfa_enabled: false,
                avatar_url: None,
            })
        })
        .collect()
}

/// Creates an organization with `owner` as its owner. The slug defaults to a random one.
pub async fn create(
    db: &Db,
    entropy: &Entropy,
    name: &str,
    slug: Option<OrgSlug>,
    owner: UserId,
    now: DateTime<Utc>,
    audit: Option<&Recorder>,
) -> Result<OrganizationSummary, Error> {
    names::check("name", name, 256)?;
    let slug = slug.unwrap_or_else(|| OrgSlug::generate(entropy));
    let mut client = db.client().await?;
    let transaction = client
        .transaction()
        .await
        .context("creating an organization")?;
    let sql = "insert into organizations (slug, name, created_at) values ($1, $2, $3) returning id";
    let row = transaction
        .query_one(sql, &[&slug.as_str(), &name, &now])
        .await
        .map_err(|error| match db::violated(&error) {
            Some("organizations_slug_key") => {
                Error::Conflict(format!("An organization with the slug {slug} exists").into())
            }
            _ => Error::internal("creating an organization", error),
        })?;
    let sql = "insert into members (organization_id, user_id, role, created_at) values ($1, $2, 'owner', $3)";
    transaction
        .execute(sql, &[&row.get::<_, i64>(0), &owner.0, &now])
        .await
        .context("making the creator an owner")?;
    let summary = summary(slug.clone(), name.to_owned());
    if let Some(audit) = audit {
        audit.answer(|| Created(&summary));
        let member = members::audit_value(&transaction, OrganizationId(row.get(0)), owner).await?;
        let created = json!({"slug": slug, "name": name, "owner": member});
        let chain = Chain::Organization(OrganizationId(row.get(0)));
        audit
            .write_elsewhere(&transaction, chain, created.clone(), now)
            .await?;
        let organization = OrganizationId(row.get(0));
        let roles = MemberRoles::absent(organization, owner);
        let events = roles.changes(&transaction).await?;
        let change = Change::new((None, Some(created)), events);
        audit.write_in(&transaction, 201, change, now).await?;
    }
    transaction
        .commit()
        .await
        .context("creating an organization")?;
    Ok(summary)
}

fn summary(slug: OrgSlug, name: String) -> OrganizationSummary {
    OrganizationSummary {
        id: slug.clone(),
        slug,
        name,
    }
}

/// Parses a slug from the database, where a check constraint ensures its form.
pub(crate) fn slug(row: &Row, column: usize) -> Result<OrgSlug, Error> {
    row.get::<_, &str>(column).parse().context("reading a slug")
}

impl OrganizationSummary {
    /// Returns the identifier in paths.
    pub fn slug(&self) -> &OrgSlug {
        &self.slug
    }
}
