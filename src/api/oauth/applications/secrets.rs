//! Application secrets. An application can have several, to rotate them without downtime.

use chrono::{DateTime, Utc};
use gantry_base::ids::ApplicationId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio_postgres::Transaction;

use super::Application;
use crate::{
    api::oauth::GeneratedSecret,
    platform::{
        audit::Recorder,
        db::{self, Db},
        error::{Context, Error},
    },
};

/// Maximum number of live secrets per application.
const SECRETS_MAX: i64 = 5;

/// Metadata of a live secret.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "OauthSecret")]
pub struct ApplicationSecret {
    /// Row of `oauth_secrets`.
    pub id: i64,
    /// The last characters of the secret.
    pub hint: String,
    /// Time of creation.
    pub created_at: DateTime<Utc>,
    /// Time of the last use.
    pub last_used_at: Option<DateTime<Utc>>,
}

/// Lists the live secrets of an application, newest first.
pub async fn list(db: &Db, application: ApplicationId) -> Result<Vec<ApplicationSecret>, Error> {
    let sql = "select id, hint, created_at, last_used_at from oauth_secrets where application_id = $1 and revoked_at is null \
               order by id desc limit $2";
    let rows = db
        .query(sql, &[&application.0, &SECRETS_MAX])
        .await
        .context("listing secrets of an application")?;
    Ok(rows
        .iter()
        .map(|row| ApplicationSecret {
            id: row.get(0),
            hint: row.get(1),
            created_at: row.get(2),
            last_used_at: row.get(3),
        })
        .collect())
}

/// Stores a new secret.
pub async fn add(
    db: &Db,
    application: &Application,
    secret: &GeneratedSecret,
    now: DateTime<Utc>,
    audit: &Recorder,
) -> Result<ApplicationSecret, Error> {
    let doing = "creating a secret of an application";
    if application.public {
        return Err(Error::Rejected(
            "A public application has no secrets".into(),
        ));
    }
    let mut client = db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    // The lock serializes concurrent requests, so that the count below is exact.
    let sql = "select 1 from oauth_applications where id = $1 and deleted_at is null for update";
    transaction
        .query_opt(sql, &[&application.id.0])
        .await
        .context(doing)?
        .ok_or(Error::NotFound)?;
    let sql = "select count(*) from oauth_secrets where application_id = $1 and revoked_at is null";
    if db::count(&transaction, sql, application.id.0, doing).await? >= SECRETS_MAX {
        return Err(Error::Rejected(
            format!("An application can have {SECRETS_MAX} secrets; revoke one first").into(),
        ));
    }
    let created = insert(&transaction, application.id, secret, now).await?;
    let after = json!({"id": application.client_id, "number": created.id, "hint": created.hint});
    let change = (None, Some(after));
    audit.result(&created);
    audit.commit(transaction, doing, 201, change, now).await?;
    Ok(created)
}

/// Inserts the row of a secret.
pub async fn insert(
    transaction: &Transaction<'_>,
    application: ApplicationId,
    secret: &GeneratedSecret,
    now: DateTime<Utc>,
) -> Result<ApplicationSecret, Error> {
    let sql = "insert into oauth_secrets (application_id, digest, hint, created_at) values ($1, $2, $3, $4) returning id";
    let text = secret.expose();
    let hint = format!("…{}", &text[text.len().saturating_sub(4)..]);
    let row = transaction
        .query_one(
            sql,
            &[&application.0, &secret.digest().as_bytes(), &hint, &now],
        )
        .await;
    Ok(ApplicationSecret {
        id: row.context("creating a secret of an application")?.get(0),
        hint,
        created_at: now,
        last_used_at: None,
    })
}

/// Revokes a secret. Tokens that were issued before stay valid.
pub async fn revoke(
    db: &Db,
    application: &Application,
    secret: i64,
    now: DateTime<Utc>,
    audit: &Recorder,
) -> Result<(), Error> {
    let doing = "revoking a secret of an application";
    let mut client = db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let sql = "update oauth_secrets set revoked_at = $3 where id = $1 and application_id = $2 and revoked_at is null returning hint";
    let row = transaction
        .query_opt(sql, &[&secret, &application.id.0, &now])
        .await
        .context(doing)?
        .ok_or(Error::NotFound)?;
    let before =
        json!({"id": application.client_id, "number": secret, "hint": row.get::<_, &str>(0)});
    let change = (Some(before), None);
    audit.commit(transaction, doing, 200, change, now).await
}
