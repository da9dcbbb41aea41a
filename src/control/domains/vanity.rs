//! Vanity subdomains: a project's own label below the projects' domain.

use std::{fmt, str::FromStr};

use chrono::{DateTime, TimeDelta, Utc};
use gantry_base::ids::{Malformed, OrganizationId, ProjectId, ProjectRef};
use serde_json::json;
use tokio_postgres::Transaction;

use super::{current_names, lock_project_names, reserved};
use crate::{
    control::{context::ControlContext, projects},
    platform::{
        access::Project,
        audit::Recorder,
        db,
        error::{Context, Error},
        notifications,
        tables::Table,
    },
};

/// Time for which a released name remains reserved for its organization, because links to it still
/// exist.
const KEPT: TimeDelta = TimeDelta::days(90);

/// Released names reserved per organization. The oldest beyond that become available.
const KEPT_MAX: i64 = 20;

/// Shortest name. Shorter names are too scarce.
const LETTERS_MIN: usize = 3;
/// Longest DNS label.
const LETTERS_MAX: usize = 63;

/// A syntactically valid name. It may be reserved or in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VanitySubdomain(String);

impl FromStr for VanitySubdomain {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        // DNS names are case-insensitive.
        let name = text.to_ascii_lowercase();
        let letters = name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
        let edges = !name.starts_with('-') && !name.ends_with('-');
        // `xn--` marks an internationalized label, which can imitate another name; other labels of
        // that form are reserved by IDNA.
        let plain = name.get(2..4) != Some("--");
        if (LETTERS_MIN..=LETTERS_MAX).contains(&name.len()) && letters && edges && plain {
            Ok(Self(name))
        } else {
            Err(Malformed(
                "3 to 63 letters, digits or hyphens, without a hyphen at either end, without hyphens as third and fourth character, and without the domain",
            ))
        }
    }
}

impl fmt::Display for VanitySubdomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl VanitySubdomain {
    /// Returns whether the name is reserved or has the form of a project's reference.
    pub fn is_reserved(&self) -> bool {
        reserved::reason(&self.0).is_some() || self.0.parse::<ProjectRef>().is_ok()
    }

    /// Returns the DNS name.
    pub fn within(&self, domain: &str) -> String {
        format!("{}.{domain}", self.0)
    }
}

/// The name of a project besides its reference.
#[derive(Debug, PartialEq, Eq)]
pub enum DomainUse {
    /// None is set.
    Nothing,
    /// Vanity subdomain, with its domain.
    Vanity(String),
    /// Custom hostname, which excludes a vanity subdomain.
    Custom(String),
}

/// Returns the name of a project.
pub async fn get(context: &ControlContext, project: &Project) -> Result<DomainUse, Error> {
    let sql = "select p.desired, v.name, c.host from projects p left join vanity_subdomains v on v.project_id = p.id \
               left join custom_hostnames c on c.project_id = p.id where p.id = $1";
    let rows = context
        .db
        .query(sql, &[&project.id.0])
        .await
        .context("reading a vanity subdomain")?;
    let row = rows.first().ok_or(Error::NotFound)?;
    if row.get::<_, &str>(0) == "removed" {
        return Err(projects::removed());
    }
    let name: Option<String> = row.get(1);
    let host: Option<String> = row.get(2);
    let vanity = || {
        name.map(|name| DomainUse::Vanity(format!("{name}.{}", context.settings.project_domain)))
    };
    Ok(host
        .map(DomainUse::Custom)
        .or_else(vanity)
        .unwrap_or(DomainUse::Nothing))
}

/// Returns whether a project can activate this name. True for its current name.
pub async fn is_available(
    context: &ControlContext,
    project: &Project,
    name: &VanitySubdomain,
) -> Result<bool, Error> {
    let sql = "select p.desired = 'removed', \
               not exists (select from vanity_subdomains v where v.name = $2 and v.project_id <> p.id) \
               and not exists (select from vanity_releases r where r.name = $2 and r.organization_id <> p.organization_id and r.until > $3), \
               exists (select from vanity_subdomains v where v.name = $2 and v.project_id = p.id) from projects p where p.id = $1";
    let rows = context
        .db
        .query(sql, &[&project.id.0, &name.0, &context.clock.now()])
        .await
        .context("looking for a vanity subdomain")?;
    let row = rows.first().ok_or(Error::NotFound)?;
    if row.get(0) {
        return Err(projects::removed());
    }
    let free: bool = row.get(1);
    let own: bool = row.get(2);
    Ok(own || free && !name.is_reserved())
}

/// Activates a vanity subdomain, replacing any other. Returns it with its domain.
pub async fn activate(
    context: &ControlContext,
    project: &Project,
    name: &VanitySubdomain,
    audit: &Recorder,
) -> Result<String, Error> {
    let doing = "activating a vanity subdomain";
    let now = context.clock.now();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    lock_project_names(&transaction, project).await?;
    let (host, before) = current_names(&transaction, project.id).await?;
    if let Some(host) = host {
        let why = format!(
            "The project uses the custom hostname {host}. Delete it before activating a vanity subdomain."
        );
        return Err(Error::Rejected(why.into()));
    }
    if before.as_ref() != Some(&name.0) {
        // A project keeps a name that was reserved after its activation.
        if name.is_reserved() {
            return Err(unavailable(name));
        }
        release(&transaction, project.id, project.organization, now).await?;
        let sql =
            "insert into vanity_subdomains (project_id, name, created_at) values ($1, $2, $3)";
        transaction
            .execute(sql, &[&project.id.0, &name.0, &now])
            .await
            .map_err(|error| match db::violated(&error) {
                Some("vanity_subdomains_name_key") => unavailable(name),
                _ => Error::internal(doing, error),
            })?;
        take_back(&transaction, project, name, now).await?;
    }
    let before = before.map(|name| json!({"vanity_subdomain": name}));
    let after = json!({"vanity_subdomain": name.0});
    let change = (before, Some(after));
    let host = name.within(&context.settings.project_domain);
    audit.result(&host);
    audit.commit(transaction, doing, 201, change, now).await?;
    context.table_changed(Table::VanitySubdomains);
    Ok(host)
}

/// Deletes the reservation of a name that the project has just taken, or fails if the name is
/// reserved for another organization. Runs after the insert, so that a concurrent release is
/// visible.
async fn take_back(
    transaction: &Transaction<'_>,
    project: &Project,
    name: &VanitySubdomain,
    now: DateTime<Utc>,
) -> Result<(), Error> {
    let sql = "delete from vanity_releases where name = $1 returning organization_id, until";
    let kept = transaction
        .query_opt(sql, &[&name.0])
        .await
        .context("taking back a vanity subdomain")?;
    match kept {
        Some(row)
            if row.get::<_, i64>(0) != project.organization.0
                && row.get::<_, DateTime<Utc>>(1) > now =>
        {
            Err(unavailable(name))
        }
        _ => Ok(()),
    }
}

/// Removes a project's vanity subdomain. Succeeds if there is none.
pub async fn deactivate(
    context: &ControlContext,
    project: &Project,
    audit: &Recorder,
) -> Result<(), Error> {
    let doing = "deactivating a vanity subdomain";
    let now = context.clock.now();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    lock_project_names(&transaction, project).await?;
    let before = release(&transaction, project.id, project.organization, now).await?;
    let change = (before.map(|name| json!({"vanity_subdomain": name})), None);
    audit.commit(transaction, doing, 200, change, now).await?;
    context.table_changed(Table::VanitySubdomains);
    // When this returns, no node serves the name.
    notifications::settle(&context.db).await
}

/// Removes a project's vanity subdomain and reserves it for the organization.
pub(crate) async fn release(
    transaction: &Transaction<'_>,
    project: ProjectId,
    organization: OrganizationId,
    now: DateTime<Utc>,
) -> Result<Option<String>, Error> {
    let doing = "releasing a vanity subdomain";
    let sql = "delete from vanity_subdomains where project_id = $1 returning name";
    let name = transaction
        .query_opt(sql, &[&project.0])
        .await
        .context(doing)?
        .map(|row| row.get::<_, String>(0));
    // Expired reservations are deleted here.
    transaction
        .execute("delete from vanity_releases where until <= $1", &[&now])
        .await
        .context(doing)?;
    if let Some(name) = &name {
        let sql = "insert into vanity_releases (name, organization_id, until) values ($1, $2, $3) on conflict (name) do update \
                   set organization_id = excluded.organization_id, until = excluded.until";
        transaction
            .execute(sql, &[name, &organization.0, &(now + KEPT)])
            .await
            .context(doing)?;
        let sql = "delete from vanity_releases where name in \
                   (select name from vanity_releases where organization_id = $1 order by until desc, name offset $2)";
        transaction
            .execute(sql, &[&organization.0, &KEPT_MAX])
            .await
            .context(doing)?;
    }
    Ok(name)
}

/// Activates the vanity subdomain that a restored project had before its removal. Returns `false`
/// if another project or organization has it now.
pub(crate) async fn return_to(
    transaction: &Transaction<'_>,
    project: &Project,
    name: &str,
    now: DateTime<Utc>,
) -> Result<bool, Error> {
    let doing = "restoring a vanity subdomain";
    let sql = "insert into vanity_subdomains (project_id, name, created_at) select $1, $2, $3 \
               where not exists (select from vanity_releases \
                                 where name = $2 and organization_id <> $4 and until > $3) \
               on conflict do nothing returning name";
    let params: [db::Param<'_>; 4] = [&project.id.0, &name, &now, &project.organization.0];
    let row = transaction.query_opt(sql, &params).await;
    if row.context(doing)?.is_none() {
        return Ok(false);
    }
    let sql = "delete from vanity_releases where name = $1";
    let deleted = transaction.execute(sql, &[&name]).await;
    deleted.context(doing).map(|_| true)
}

fn unavailable(name: &VanitySubdomain) -> Error {
    Error::Rejected(
        format!("The vanity subdomain {name} is not available. Choose another one.").into(),
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn vanity_subdomain_is_one_plain_label() {
        for (text, name) in [
            ("abc", "abc"),
            ("My-Shop", "my-shop"),
            ("a-1", "a-1"),
            ("123", "123"),
            (&"a".repeat(63), &"a".repeat(63)),
        ] {
            assert_eq!(text.parse::<VanitySubdomain>().unwrap().0, *name);
        }
        let long = "a".repeat(64);
        let bad = [
            "",
            "ab",
            &long,
            "-abc",
            "abc-",
            "a.b",
            "shop.example.test",
            "a_b",
            "a b",
            "xn--80ak6aa92e",
            "ab--c",
            "pаypal",
            "a/b",
            "a\0b",
        ];
        for text in bad {
            assert!(text.parse::<VanitySubdomain>().is_err(), "{text}");
        }
    }

    #[test]
    fn reserved_names_are_detected() {
        for text in ["www", "API", "pooler", "abcdefghijklmnopqrst"] {
            assert!(
                text.parse::<VanitySubdomain>().unwrap().is_reserved(),
                "{text}"
            );
        }
        for text in ["my-api", "abcdefghijklmnopqrs1", "abcdefghijklmnopqrstu"] {
            assert!(
                !text.parse::<VanitySubdomain>().unwrap().is_reserved(),
                "{text}"
            );
        }
    }

    proptest! {
        #[test]
        fn accepted_names_are_valid_labels(text in ".{0,70}") {
            if let Ok(name) = text.parse::<VanitySubdomain>() {
                prop_assert!(name.0.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-'));
                prop_assert!((3..=63).contains(&name.0.len()) && !name.0.starts_with('-') && !name.0.ends_with('-'));
            }
        }
    }
}
