//! Other sign-in services. A project's Data API accepts their tokens.

mod discovery;

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use gantry_base::{ids::ProjectId, repeat};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};
use tokio_postgres::Row;
use uuid::Uuid;

pub use self::discovery::keys_of_exact_issuer;
use crate::{
    control::{context::ControlContext, projects},
    platform::{
        access::Project,
        audit::Recorder,
        db,
        error::{Context, Error},
        notifications,
        outbound::UrlOwner,
        tables::Table,
    },
};

/// Maximum number of integrations of a project.
const INTEGRATIONS_MAX: i64 = 20;
/// Age at which keys are read again.
const REFRESH_AFTER: TimeDelta = TimeDelta::minutes(10);
/// Pause between looks for integrations that are due.
const PAUSE: Duration = Duration::from_mins(1);
/// Maximum number of integrations that are read in one round.
const ROUND_MAX: i64 = 20;

/// A sign-in service on the wire.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "ThirdPartyAuth")]
pub struct ThirdPartyAuth {
    id: Uuid,
    #[serde(rename = "type")]
    kind: &'static str,
    oidc_issuer_url: Option<String>,
    jwks_url: Option<String>,
    custom_jwks: Option<Value>,
    /// The public keys in use (RFC 7517 §5).
    resolved_jwks: Option<Value>,
    inserted_at: DateTime<Utc>,
    updated_at: DateTime<Utc>,
    resolved_at: Option<DateTime<Utc>>,
}

impl ThirdPartyAuth {
    fn read(row: &Row) -> Self {
        Self {
            id: row.get(0),
            kind: "custom",
            oidc_issuer_url: row.get(1),
            jwks_url: row.get(2),
            custom_jwks: row.get(3),
            resolved_jwks: row.get(4),
            inserted_at: row.get(5),
            updated_at: row.get(6),
            resolved_at: row.get(7),
        }
    }

    fn audit_entry(&self) -> Value {
        json!({
            "id": self.id, "oidc_issuer_url": self.oidc_issuer_url, "jwks_url": self.jwks_url,
            "custom_jwks": self.custom_jwks,
        })
    }
}

/// The place of a sign-in service's keys.
#[derive(Debug, Clone)]
pub enum KeySource {
    /// An issuer with metadata (OpenID Connect Discovery).
    Issuer(String),
    /// The URL of a key set.
    Url(String),
    /// A key set.
    Keys(Value),
}

impl KeySource {
    /// Returns the name of the field in requests.
    const fn field(&self) -> &'static str {
        match self {
            Self::Issuer(_) => "oidc_issuer_url",
            Self::Url(_) => "jwks_url",
            Self::Keys(_) => "custom_jwks",
        }
    }

    async fn resolve(&self, context: &ControlContext, project: ProjectId) -> Result<Value, Error> {
        let (client, owner) = (&context.outbound, UrlOwner::Project(project));
        let resolved = match self {
            Self::Issuer(issuer) => discovery::keys_of_issuer(client, owner, issuer).await,
            Self::Url(url) => discovery::keys_of_url(client, owner, url).await,
            Self::Keys(keys) => discovery::key_set(keys),
        };
        resolved.map_err(|problem| Error::invalid(self.field(), problem))
    }
}

macro_rules! integrations {
    ($rest:literal) => {
        concat!("select id, oidc_issuer_url, jwks_url, custom_jwks, resolved_jwks, inserted_at, updated_at, resolved_at \
                 from third_party_auth ", $rest)
    };
}

/// Lists the sign-in services of a project, oldest first.
pub async fn list(
    context: &ControlContext,
    project: &Project,
) -> Result<Vec<ThirdPartyAuth>, Error> {
    let sql = integrations!("where project_id = $1 order by inserted_at, id limit $2");
    let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 2] =
        [&project.id.0, &INTEGRATIONS_MAX];
    let rows = context.db.query(sql, &parameters).await;
    let rows = rows.context("listing third-party auth")?;
    Ok(rows.iter().map(ThirdPartyAuth::read).collect())
}

/// Returns one sign-in service.
pub async fn get(
    context: &ControlContext,
    project: &Project,
    id: Uuid,
) -> Result<ThirdPartyAuth, Error> {
    let sql = integrations!("where project_id = $1 and id = $2");
    let rows = context.db.query(sql, &[&project.id.0, &id]).await;
    let rows = rows.context("reading third-party auth")?;
    rows.first()
        .map(ThirdPartyAuth::read)
        .ok_or(Error::NotFound)
}

/// Adds a sign-in service. Its keys are read first, and accepted when this returns.
///
/// Errors: [`Error::Invalid`] if its keys cannot be read.
pub async fn create(
    context: &ControlContext,
    project: &Project,
    source: &KeySource,
    audit: &Recorder,
) -> Result<ThirdPartyAuth, Error> {
    let doing = "adding third-party auth";
    let resolved = source.resolve(context, project.id).await?;
    let (mut issuer, mut url, mut keys) = (None, None, None);
    match source {
        KeySource::Issuer(text) => issuer = Some(text),
        KeySource::Url(text) => url = Some(text),
        // The members of keys that are not known are not stored.
        KeySource::Keys(_) => keys = Some(&resolved),
    }
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    projects::lock_no_key(&transaction, project, doing).await?;
    let sql = "select count(*) from third_party_auth where project_id = $1";
    if db::count(&transaction, sql, project.id.0, doing).await? >= INTEGRATIONS_MAX {
        return Err(Error::Rejected(
            format!("A project can have {INTEGRATIONS_MAX} third-party auth integrations").into(),
        ));
    }
    let now = context.clock.now();
    let id = context.entropy.uuid();
    let sql = "insert into third_party_auth (id, project_id, oidc_issuer_url, jwks_url, custom_jwks, \
                   resolved_jwks, inserted_at, updated_at, resolved_at, checked_at) \
               values ($1, $2, $3, $4, $5, $6, $7, $7, $7, $7) \
               returning id, oidc_issuer_url, jwks_url, custom_jwks, resolved_jwks, inserted_at, \
                   updated_at, resolved_at";
    let row = transaction
        .query_one(
            sql,
            &[&id, &project.id.0, &issuer, &url, &keys, &resolved, &now],
        )
        .await;
    let made = ThirdPartyAuth::read(&row.context(doing)?);
    let change = (None, Some(made.audit_entry()));
    audit.result(&made);
    audit.commit(transaction, doing, 201, change, now).await?;
    context.table_changed(Table::ThirdPartyAuth);
    notifications::settle(&context.db).await?;
    Ok(made)
}

/// Removes a sign-in service, and returns it. Its tokens are refused when this returns.
pub async fn remove(
    context: &ControlContext,
    project: &Project,
    id: Uuid,
    audit: &Recorder,
) -> Result<ThirdPartyAuth, Error> {
    let doing = "removing third-party auth";
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let sql = "delete from third_party_auth where project_id = $1 and id = $2 \
               returning id, oidc_issuer_url, jwks_url, custom_jwks, resolved_jwks, inserted_at, \
                   updated_at, resolved_at";
    let row = transaction.query_opt(sql, &[&project.id.0, &id]).await;
    let removed = row.context(doing)?.ok_or(Error::NotFound)?;
    let removed = ThirdPartyAuth::read(&removed);
    let change = (Some(removed.audit_entry()), None);
    let now = context.clock.now();
    audit.result(&removed);
    audit.commit(transaction, doing, 200, change, now).await?;
    context.table_changed(Table::ThirdPartyAuth);
    notifications::settle(&context.db).await?;
    Ok(removed)
}

/// Returns the public keys of a project's sign-in services.
pub(in crate::control) async fn accepted(
    context: &ControlContext,
    project: ProjectId,
) -> Result<Vec<Value>, Error> {
    let sql = "select resolved_jwks from third_party_auth where project_id = $1 \
               order by inserted_at, id limit $2";
    let rows = context
        .db
        .query(sql, &[&project.0, &INTEGRATIONS_MAX])
        .await;
    let mut keys = Vec::new();
    for row in &rows.context("reading the keys of third-party auth")? {
        let mut set: Value = row.get(0);
        if let Some(set) = set["keys"].as_array_mut() {
            keys.append(set);
        }
    }
    Ok(keys)
}

/// Reads changed keys of sign-in services, until the process ends. Several nodes share the work.
pub async fn run(context: ControlContext) {
    repeat::every(PAUSE, || async {
        if let Err(error) = refresh(&context).await {
            tracing::warn!(%error, "keys of third-party auth could not be refreshed; retrying in the next round");
        }
    })
    .await;
}

/// Reads the keys of the sign-in services that are due. Previous keys stay if that fails.
pub async fn refresh(context: &ControlContext) -> Result<(), Error> {
    let doing = "refreshing third-party auth";
    let now = context.clock.now();
    // Claimed by the time of the check, so that two nodes do not read the same.
    let sql = "update third_party_auth set checked_at = $1 where id in \
                   (select id from third_party_auth where checked_at <= $2 and custom_jwks is null \
                    order by checked_at limit $3 for update skip locked) \
               returning id, oidc_issuer_url, jwks_url, project_id";
    let due = now - REFRESH_AFTER;
    let rows = context.db.query(sql, &[&now, &due, &ROUND_MAX]).await;
    for row in &rows.context(doing)? {
        let id: Uuid = row.get(0);
        let source = match (row.get(1), row.get(2)) {
            (Some(issuer), _) => KeySource::Issuer(issuer),
            (None, Some(url)) => KeySource::Url(url),
            (None, None) => continue,
        };
        let resolved = match source.resolve(context, ProjectId(row.get(3))).await {
            Ok(resolved) => resolved,
            Err(error) => {
                tracing::debug!(%id, problem = %error.message(), "keys of third-party auth not read");
                continue;
            }
        };
        let sql = "update third_party_auth set resolved_at = $2 where id = $1 and resolved_jwks = $3 \
                   returning 1";
        let same = context.db.query(sql, &[&id, &now, &resolved]).await;
        if !same.context(doing)?.is_empty() {
            continue;
        }
        let sql = "update third_party_auth set resolved_jwks = $3, resolved_at = $2, updated_at = $2 \
                   where id = $1 returning 1";
        let changed = context.db.query(sql, &[&id, &now, &resolved]).await;
        if !changed.context(doing)?.is_empty() {
            context.table_changed(Table::ThirdPartyAuth);
        }
    }
    Ok(())
}
