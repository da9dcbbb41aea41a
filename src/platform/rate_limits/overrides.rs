//! Overrides of limits by the operator: stored in the control database, cached by every node,
//! updated by notifications.

use std::time::Duration;

use chrono::{DateTime, Utc};
use gantry_base::ids::{OrgSlug, OrganizationId};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_postgres::Row;
use uuid::Uuid;

use super::policy::{OverrideKey, Policies};
use crate::platform::{
    access::organization_by_slug,
    audit::Recorder,
    context::PlatformContext,
    db::Db,
    error::{Context, Error},
};

/// Interval of reloads, in case a notification is lost.
const LIFETIME: Duration = Duration::from_secs(30);
/// Pause before a failed reload is retried.
const PAUSE: Duration = Duration::from_secs(1);
/// Bound of the number of overrides, because every node has all of them in memory.
const OVERRIDES_MAX: i64 = 10_000;

/// The target of an override. At least one field is given.
#[derive(Debug, Clone, Default)]
pub struct OverrideTarget {
    /// Id of an operation. `None` for all.
    pub operation: Option<String>,
    /// Client id of an OAuth application. `None` for all callers.
    pub application: Option<Uuid>,
    /// Slug of an organization, projects included. `None` for all scopes.
    pub organization: Option<OrgSlug>,
}

impl OverrideTarget {
    /// Returns the entry for the audit log.
    fn to_json(&self, requests: Option<i32>) -> Value {
        json!({"operation": self.operation, "application": self.application, "organization": self.organization, "requests": requests})
    }
}

/// An override, for the output of the command line.
#[derive(Debug, Serialize)]
pub struct LimitOverride {
    operation: Option<String>,
    application: Option<Uuid>,
    organization: Option<String>,
    /// Requests per window of the longest window.
    pub requests: i32,
    created_by: String,
    created_at: DateTime<Utc>,
}

impl std::fmt::Display for LimitOverride {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:>7}  {}",
            self.requests,
            self.operation.as_deref().unwrap_or("every operation")
        )?;
        if let Some(application) = self.application {
            write!(f, "  application {application}")?;
        }
        if let Some(organization) = &self.organization {
            write!(f, "  in {organization}")?;
        }
        write!(
            f,
            "  by {}, {}",
            self.created_by,
            self.created_at.format("%Y-%m-%d %H:%M UTC")
        )
    }
}

/// Creates or replaces the override of this target. Returns the previous number of requests. The
/// change is recorded under `actor`.
pub async fn set(
    db: &Db,
    target: &OverrideTarget,
    requests: u32,
    actor: &str,
    now: DateTime<Utc>,
    audit: Option<&Recorder>,
) -> Result<Option<i32>, Error> {
    let organization = organization(db, target).await?;
    let requests =
        i32::try_from(requests).map_err(|_| Error::invalid("requests", "is too large"))?;
    let mut client = db.client().await?;
    let transaction = client.transaction().await.context("changing a limit")?;
    // The lock serialises writers, so that the recorded old value is the one that is replaced.
    transaction
        .batch_execute("lock table limit_overrides in share row exclusive mode")
        .await
        .context("changing a limit")?;
    transaction
        .execute("select set_config('gantry.actor', $1, true)", &[&actor])
        .await
        .context("setting the actor of a change")?;
    let count: i64 = transaction
        .query_one("select count(*) from limit_overrides", &[])
        .await
        .context("counting overrides")?
        .get(0);
    let key = "operation is not distinct from $1 and application is not distinct from $2 and organization_id is not distinct from $3";
    let old = transaction
        .query_opt(
            &format!("select requests from limit_overrides where {key}"),
            &[&target.operation, &target.application, &organization],
        )
        .await
        .context("reading an override")?
        .map(|row| row.get::<_, i32>(0));
    if old.is_none() && count >= OVERRIDES_MAX {
        return Err(Error::Rejected(
            format!("there are {OVERRIDES_MAX} overrides already").into(),
        ));
    }
    let sql = "insert into limit_overrides (operation, application, organization_id, requests, created_by, created_at) \
               values ($1, $2, $3, $4, $5, $6) on conflict on constraint limit_overrides_key \
               do update set requests = excluded.requests, created_by = excluded.created_by, created_at = excluded.created_at";
    transaction
        .execute(
            sql,
            &[
                &target.operation,
                &target.application,
                &organization,
                &requests,
                &actor,
                &now,
            ],
        )
        .await
        .context("setting a limit")?;
    if let Some(audit) = audit {
        audit
            .write_in(
                &transaction,
                200,
                (
                    Some(target.to_json(old)),
                    Some(target.to_json(Some(requests))),
                ),
                now,
            )
            .await?;
    }
    transaction.commit().await.context("setting a limit")?;
    Ok(old)
}

/// Deletes the override of this target. Returns its number of requests.
pub async fn unset(
    db: &Db,
    target: &OverrideTarget,
    actor: &str,
    now: DateTime<Utc>,
    audit: Option<&Recorder>,
) -> Result<i32, Error> {
    let organization = organization(db, target).await?;
    let mut client = db.client().await?;
    let transaction = client.transaction().await.context("changing a limit")?;
    transaction
        .execute("select set_config('gantry.actor', $1, true)", &[&actor])
        .await
        .context("setting the actor of a change")?;
    let sql = "delete from limit_overrides where operation is not distinct from $1 and application is not distinct from $2 \
               and organization_id is not distinct from $3 returning requests";
    let requests = transaction
        .query_opt(
            sql,
            &[&target.operation, &target.application, &organization],
        )
        .await
        .context("deleting an override")?;
    let requests: i32 = requests.ok_or(Error::NotFound)?.get(0);
    if let Some(audit) = audit {
        audit
            .write_in(
                &transaction,
                200,
                (
                    Some(target.to_json(Some(requests))),
                    Some(target.to_json(None)),
                ),
                now,
            )
            .await?;
    }
    transaction.commit().await.context("deleting an override")?;
    Ok(requests)
}

/// Returns all overrides.
pub async fn list(db: &Db) -> Result<Vec<LimitOverride>, Error> {
    let sql = "select l.operation, l.application, o.slug, l.requests, l.created_by, l.created_at \
               from limit_overrides l left join organizations o on o.id = l.organization_id \
               order by l.operation nulls first, o.slug nulls first, l.application nulls first limit $1";
    let rows = db
        .query(sql, &[&OVERRIDES_MAX])
        .await
        .context("listing overrides")?;
    Ok(rows
        .iter()
        .map(|row: &Row| LimitOverride {
            operation: row.get(0),
            application: row.get(1),
            organization: row.get(2),
            requests: row.get(3),
            created_by: row.get(4),
            created_at: row.get(5),
        })
        .collect())
}

async fn organization(db: &Db, target: &OverrideTarget) -> Result<Option<i64>, Error> {
    match &target.organization {
        Some(slug) => Ok(Some(organization_by_slug(db, slug).await?.0)),
        None => Ok(None),
    }
}

/// Keeps the overrides in memory up to date until the process ends.
pub async fn run(context: PlatformContext) {
    loop {
        if let Err(error) = load(&context.db, context.limits.policies()).await {
            tracing::warn!(%error, "cannot read overrides of rate limits; keeping the previous ones");
            tokio::time::sleep(PAUSE).await;
            continue;
        }
        // A timeout leads to a reload as well.
        let _ = timeout(LIFETIME, context.limits.override_changes().0.notified()).await;
    }
}

async fn load(db: &Db, policies: &Policies) -> Result<(), Error> {
    let sql =
        "select operation, application, organization_id, requests from limit_overrides limit $1";
    let rows = db
        .query(sql, &[&OVERRIDES_MAX])
        .await
        .context("reading overrides of limits")?;
    let overrides = rows.iter().filter_map(|row| {
        let operation = match row.get::<_, Option<&str>>(0) {
            // An operation of another version of Gantry is ignored.
            Some(id) => Some(policies.operation(id)?),
            None => None,
        };
        let subject = OverrideKey {
            operation,
            application: row.get(1),
            organization: row.get::<_, Option<i64>>(2).map(OrganizationId),
        };
        Some((subject, u32::try_from(row.get::<_, i32>(3)).unwrap_or(1)))
    });
    policies.replace(overrides);
    Ok(())
}
