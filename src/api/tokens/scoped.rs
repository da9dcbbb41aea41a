//! Scoped tokens: validation of a draft, resolution to a grant, and storage.

use std::collections::BTreeSet;

use chrono::{DateTime, TimeDelta, Utc};
use gantry_base::{
    clock::Entropy,
    ids::{OrgSlug, OrganizationId, ProjectRef, TokenId, UserId},
};
use ipnet::IpNet;
use serde_json::json;
use tokio_postgres::Transaction;
use uuid::Uuid;

use super::{AccessToken, GeneratedToken, LIFE_DAYS_MAX, token_events};
use crate::{
    api::{organizations, projects},
    platform::{
        access::{Permission, PermissionLevel, Permissions, Reach, TokenGrant},
        audit::{Change, Recorder},
        db::Db,
        error::{Context, Error},
        events::payloads::TokenFacts,
    },
};

/// Default lifetime of a scoped token in days.
pub const LIFE_DAYS_DEFAULT: i64 = 7;
/// Maximum number of organizations or projects per token. Matches the check constraint of the
/// table.
const RESOURCES_MAX: usize = 100;
/// Maximum number of live scoped tokens per user. Concurrent requests may exceed it slightly.
const LIVE_MAX: i64 = 1_000;
/// Maximum number of source networks per token.
const NETWORKS_MAX: usize = 32;

/// The properties of a token to be created.
#[derive(Debug, Clone)]
pub struct TokenDraft {
    /// Accessible resources.
    pub resources: TokenResources,
    /// Names of permissions.
    pub permissions: Vec<String>,
    /// Networks that it can be used from; any, if empty.
    pub networks: Vec<IpNet>,
    /// Time from which it is valid.
    pub not_before: Option<DateTime<Utc>>,
}

/// The resources that a token can access.
#[derive(Debug, Clone)]
pub enum TokenResources {
    /// The whole account.
    Account,
    /// Organizations with all their current and future projects.
    Organizations(BTreeSet<OrgSlug>),
    /// Projects of one organization.
    Projects(BTreeSet<ProjectRef>),
}

impl TokenResources {
    /// Returns the resources with these names; the whole account if there are none. Organizations
    /// and projects cannot be combined.
    pub fn from_names(
        organizations: Vec<OrgSlug>,
        projects: Vec<ProjectRef>,
    ) -> Result<Self, Error> {
        match (organizations.is_empty(), projects.is_empty()) {
            (true, true) => Ok(Self::Account),
            (false, true) => Ok(Self::Organizations(organizations.into_iter().collect())),
            (true, false) => Ok(Self::Projects(projects.into_iter().collect())),
            (false, false) => Err(Error::invalid(
                "project_refs",
                "cannot be given together with organization_slugs",
            )),
        }
    }
}

/// Parses networks such as `192.0.2.0/24`.
pub(in crate::api) fn parse_networks(texts: &[String]) -> Result<Vec<IpNet>, Error> {
    let network = |text: &String| {
        text.parse::<IpNet>().map_err(|_| {
            let problem = format!("{text} is not a network such as 192.0.2.0/24");
            Error::invalid("networks", problem)
        })
    };
    texts.iter().map(network).collect()
}

impl TokenDraft {
    /// Resolves names to ids. Reports resources that the owner has no access to as not found.
    pub async fn resolve(self, db: &Db, owner: UserId) -> Result<TokenGrant, Error> {
        if self.networks.len() > NETWORKS_MAX {
            return Err(Error::invalid(
                "networks",
                format!("expected at most {NETWORKS_MAX}"),
            ));
        }
        let reach = match self.resources {
            TokenResources::Account => Reach::Account,
            TokenResources::Organizations(slugs) => {
                Reach::Organizations(reached_organizations(db, owner, slugs).await?)
            }
            TokenResources::Projects(references) => reached_projects(db, owner, references).await?,
        };
        let permissions = permitted(&self.permissions, &reach)?;
        Ok(TokenGrant {
            permissions,
            reach,
            networks: self.networks,
            not_before: self.not_before,
        })
    }
}

async fn reached_organizations(
    db: &Db,
    owner: UserId,
    slugs: BTreeSet<OrgSlug>,
) -> Result<Vec<OrganizationId>, Error> {
    bounded("organization_slugs", slugs.len())?;
    let found = organizations::of_member(db, owner, &slugs).await?;
    match slugs
        .iter()
        .find(|slug| !found.iter().any(|(_, known)| known == *slug))
    {
        Some(unknown) => Err(Error::invalid(
            "organization_slugs",
            format!("there is no organization {unknown}"),
        )),
        None => Ok(found.into_iter().map(|(id, _)| id).collect()),
    }
}

async fn reached_projects(
    db: &Db,
    owner: UserId,
    references: BTreeSet<ProjectRef>,
) -> Result<Reach, Error> {
    bounded("project_refs", references.len())?;
    let found = projects::of_member(db, owner, &references).await?;
    if let Some(unknown) = references
        .iter()
        .find(|reference| !found.iter().any(|known| known.reference == **reference))
    {
        return Err(Error::invalid(
            "project_refs",
            format!("there is no project {unknown}"),
        ));
    }
    let organizations: BTreeSet<_> = found.iter().map(|project| project.organization).collect();
    match organizations.first() {
        Some(organization) if organizations.len() == 1 => Ok(Reach::Projects {
            organization: *organization,
            projects: found.into_iter().map(|project| project.id).collect(),
        }),
        _ => Err(Error::invalid(
            "project_refs",
            "expected projects of one organization",
        )),
    }
}

fn bounded(field: &'static str, count: usize) -> Result<(), Error> {
    if (1..=RESOURCES_MAX).contains(&count) {
        Ok(())
    } else {
        Err(Error::invalid(
            field,
            format!("expected 1 to {RESOURCES_MAX}"),
        ))
    }
}

/// Parses permissions and checks that each applies to the reach of the token.
fn permitted(names: &[String], reach: &Reach) -> Result<Permissions, Error> {
    if names.is_empty() {
        return Err(Error::invalid("permissions", "expected at least one"));
    }
    let permission = |name: &String| {
        let known = Permission::from_name(name).ok_or_else(|| {
            Error::invalid(
                "permissions",
                format!("{name} is not in the catalogue of permissions"),
            )
        })?;
        if reach.covers(known) {
            return Ok(known);
        }
        let subject = if known.level() == PermissionLevel::Account {
            "the whole account"
        } else {
            "organizations"
        };
        Err(Error::invalid(
            "permissions",
            format!(
                "{name} is about {subject}, which a token for {} does not reach",
                reach.name()
            ),
        ))
    };
    names.iter().map(permission).collect()
}

/// Rejects an expiry in the past, before `not_before`, or more than a year ahead.
pub fn check_life(
    now: DateTime<Utc>,
    not_before: Option<DateTime<Utc>>,
    expires_at: DateTime<Utc>,
) -> Result<(), Error> {
    if expires_at <= not_before.map_or(now, |moment| moment.max(now)) {
        return Err(Error::invalid(
            "expires_at",
            "expected a moment after now and after not_before",
        ));
    }
    if expires_at > now + TimeDelta::days(LIFE_DAYS_MAX) {
        return Err(Error::invalid(
            "expires_at",
            "expected at most a year from now",
        ));
    }
    Ok(())
}

/// Generates a scoped token, marked by `fc`.
pub fn mint(entropy: &Entropy) -> GeneratedToken {
    GeneratedToken::of(format!("sbp_fc{}", hex::encode(entropy.bytes::<19>())))
}

/// Stores a scoped token and returns its metadata.
pub async fn create(
    db: &Db,
    owner: UserId,
    name: &str,
    minted: &GeneratedToken,
    (created_at, expires_at): (DateTime<Utc>, DateTime<Utc>),
    grant: &TokenGrant,
    audit: Option<&Recorder>,
) -> Result<AccessToken, Error> {
    let mut client = db.client().await?;
    let transaction = client
        .transaction()
        .await
        .context("storing a scoped token")?;
    let new = NewScopedToken {
        owner,
        name,
        minted,
        created_at,
        expires_at,
        grant,
        parent: None,
        trust: None,
    };
    let created = store(&transaction, new, audit).await?;
    transaction
        .commit()
        .await
        .context("storing a scoped token")?;
    Ok(created)
}

/// A scoped token to be stored.
pub(in crate::api) struct NewScopedToken<'a> {
    pub(in crate::api) owner: UserId,
    pub(in crate::api) name: &'a str,
    pub(in crate::api) minted: &'a GeneratedToken,
    pub(in crate::api) created_at: DateTime<Utc>,
    pub(in crate::api) expires_at: DateTime<Utc>,
    pub(in crate::api) grant: &'a TokenGrant,
    /// The token that creates it.
    pub(in crate::api) parent: Option<ParentToken>,
    /// The trust of a service identity by which it is issued.
    pub(in crate::api) trust: Option<Uuid>,
}

/// The parent of a token.
#[derive(Debug, Clone, Copy)]
pub(in crate::api) struct ParentToken {
    pub(in crate::api) id: TokenId,
    /// Number of its ancestors.
    pub(in crate::api) depth: i16,
}

/// Stores a scoped token in a transaction and returns its metadata.
pub(in crate::api) async fn store(
    transaction: &Transaction<'_>,
    new: NewScopedToken<'_>,
    audit: Option<&Recorder>,
) -> Result<AccessToken, Error> {
    let NewScopedToken {
        owner,
        name,
        minted,
        created_at,
        expires_at,
        grant,
        parent,
        trust,
    } = new;
    check_life(created_at, grant.not_before, expires_at)?;
    super::check_name(name)?;
    let sql = "select count(*) from tokens where user_id = $1 and reach is not null and revoked_at is null and expires_at > $2";
    let live = transaction
        .query(sql, &[&owner.0, &created_at])
        .await
        .context("counting tokens")?;
    if live
        .first()
        .is_none_or(|row| row.get::<_, i64>(0) >= LIVE_MAX)
    {
        return Err(Error::Rejected(
            format!("A user can have {LIVE_MAX} live scoped tokens; revoke one first").into(),
        ));
    }
    let networks: Vec<String> = grant
        .networks
        .iter()
        .map(|network| network.trunc().to_string())
        .collect();
    let row = transaction
        .query_one(
            "insert into tokens (user_id, name, digest, alias, created_at, expires_at, reach, permissions, organizations, projects, \
             networks, not_before, parent_id, depth, trust_id) \
             values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11::text[]::cidr[], $12, $13, $14, $15) returning id",
            &[
                &owner.0,
                &name,
                &minted.digest.as_bytes(),
                &minted.alias,
                &created_at,
                &expires_at,
                &grant.reach.name(),
                &grant.permissions.names(),
                &grant.reach.listed_organizations(),
                &grant.reach.listed_projects(),
                &networks,
                &grant.not_before,
                &parent.map(|parent| parent.id.0),
                &parent.map_or(0, |parent| parent.depth + 1),
                &trust,
            ],
        )
        .await
        .context("storing a scoped token")?;
    let id: i64 = row.get(0);
    let created = super::created(transaction, owner, id).await?;
    if let Some(audit) = audit {
        audit.result(&created);
        let mut after = json!({
            "id": id, "name": name, "alias": minted.alias, "expires_at": expires_at, "reach": grant.reach.name(),
            "permissions": grant.permissions.names(), "networks": networks,
            "parent_id": parent.map(|parent| parent.id.0),
        });
        if let Some(trust) = trust {
            after["trust_id"] = json!(trust);
        }
        let token = TokenFacts {
            id,
            name: name.to_owned(),
            is_scoped: true,
            expires_at: Some(expires_at),
        };
        let reach = Some(&grant.reach);
        let events = token_events::created(transaction, owner, reach, token).await?;
        let change = Change::new((None, Some(after)), events);
        audit.write_in(transaction, 201, change, created_at).await?;
    }
    Ok(created)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_base::ids::ProjectId;

    #[test]
    fn mint_scoped_has_prefix() {
        for seed in 0..100 {
            let minted = mint(&Entropy::seeded(seed));
            assert!(
                minted.expose().starts_with("sbp_fc")
                    && crate::platform::access::credential::well_formed(minted.expose()),
                "{}",
                minted.expose()
            );
        }
    }

    #[test]
    fn check_life_rejects_past_and_long_lifetimes() {
        let now: DateTime<Utc> = "2026-11-21T09:15:03Z".parse().unwrap();
        let days = |days| now + TimeDelta::days(days);
        let cases = [
            (None, days(7), true),
            (None, days(366), true),
            (None, days(367), false),
            (None, now, false),
            (None, days(-1), false),
            (Some(days(2)), days(7), true),
            (Some(days(7)), days(7), false),
            (Some(days(-5)), days(-1), false),
        ];
        for (not_before, expires_at, fine) in cases {
            assert_eq!(
                check_life(now, not_before, expires_at).is_ok(),
                fine,
                "{not_before:?} {expires_at}"
            );
        }
    }

    #[test]
    fn permission_outside_reach_is_rejected() {
        let projects = Reach::Projects {
            organization: OrganizationId(1),
            projects: vec![ProjectId(1)],
        };
        let ask = |names: &[&str], reach: &Reach| {
            permitted(
                &names.iter().map(ToString::to_string).collect::<Vec<_>>(),
                reach,
            )
        };
        assert_eq!(
            ask(&["database_read", "projects_read"], &projects)
                .unwrap()
                .names(),
            ["projects_read", "database_read"]
        );
        for (names, problem) in [
            (
                &["members_read"][..],
                "permissions: members_read is about organizations, which a token for projects does not reach",
            ),
            (
                &["organizations_create"],
                "permissions: organizations_create is about the whole account, which a token for projects does not reach",
            ),
            (
                &["database_drop"],
                "permissions: database_drop is not in the catalogue of permissions",
            ),
            (&[], "permissions: expected at least one"),
        ] {
            assert_eq!(ask(names, &projects).unwrap_err().message(), problem);
        }
    }
}
