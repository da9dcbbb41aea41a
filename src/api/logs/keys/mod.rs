//! Ingest keys: credentials that permit adding log lines to one project.

pub mod operations;

use chrono::{DateTime, TimeDelta, Utc};
use gantry_base::{
    clock::Entropy,
    ids::{ProjectId, ProjectRef},
};
use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio_postgres::Row;

use crate::{
    control::projects,
    platform::{
        access::{Project, credential::SecretDigest},
        audit::Recorder,
        db::{self, Db},
        error::{Context, Error},
        names,
    },
};

/// Maximum number of keys of a project.
const KEYS_MAX: i64 = 10;
/// Minimum interval between updates of `last_used_at`.
const USED_EVERY: TimeDelta = TimeDelta::minutes(1);
const PREFIX: &str = "gik_";

/// An ingest key without its secret.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "IngestKey")]
pub struct Key {
    /// Id in `ingest_keys`.
    pub id: i64,
    /// Name.
    pub name: String,
    /// Last characters of the key.
    pub hint: String,
    /// Creation time.
    pub created_at: DateTime<Utc>,
    /// Time of last use, to the minute.
    pub last_used_at: Option<DateTime<Utc>>,
}

fn read(row: &Row) -> Key {
    Key {
        id: row.get(0),
        name: row.get(1),
        hint: row.get(2),
        created_at: row.get(3),
        last_used_at: row.get(4),
    }
}

/// Lists the keys of a project, newest first.
pub async fn list(db: &Db, project: ProjectId) -> Result<Vec<Key>, Error> {
    let sql = "select id, name, hint, created_at, last_used_at from ingest_keys where project_id = $1 order by id desc limit $2";
    let rows = db
        .query(sql, &[&project.0, &KEYS_MAX])
        .await
        .context("listing ingest keys")?;
    Ok(rows.iter().map(read).collect())
}

/// Creates a key. Only the returned value contains the secret.
pub async fn create(
    db: &Db,
    entropy: &Entropy,
    project: &Project,
    name: &str,
    now: DateTime<Utc>,
    audit: &Recorder,
) -> Result<(Key, SecretString), Error> {
    let doing = "making an ingest key";
    names::check("name", name, 100)?;
    let secret = SecretString::from(format!("{PREFIX}{}", hex::encode(entropy.bytes::<20>())));
    let hint = format!(
        "…{}",
        &secret.expose_secret()[secret.expose_secret().len() - 4..]
    );
    let mut client = db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    // The row lock serializes concurrent creations, and excludes projects that are being removed.
    projects::lock(&transaction, project, doing).await?;
    let sql = "select count(*) from ingest_keys where project_id = $1";
    if db::count(&transaction, sql, project.id.0, doing).await? >= KEYS_MAX {
        return Err(Error::Rejected(
            format!("A project can have {KEYS_MAX} ingest keys; delete one first").into(),
        ));
    }
    let sql = "insert into ingest_keys (project_id, name, digest, hint, created_at) values ($1, $2, $3, $4, $5) \
               returning id, name, hint, created_at, last_used_at";
    let digest = SecretDigest::of(secret.expose_secret());
    let row = transaction
        .query_one(
            sql,
            &[&project.id.0, &name, &digest.as_bytes(), &hint, &now],
        )
        .await
        .context(doing)?;
    let key = read(&row);
    let change = (
        None,
        Some(json!({"id": key.id, "name": name, "hint": hint})),
    );
    let created = (key, secret);
    audit.result(&created);
    audit.commit(transaction, doing, 201, change, now).await?;
    Ok(created)
}

/// Deletes a key. Requests with it are rejected from now on.
pub async fn delete(
    db: &Db,
    project: &Project,
    id: i64,
    now: DateTime<Utc>,
    audit: &Recorder,
) -> Result<(), Error> {
    let doing = "deleting an ingest key";
    let mut client = db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let sql = "delete from ingest_keys where id = $1 and project_id = $2 returning name, hint";
    let row = transaction
        .query_opt(sql, &[&id, &project.id.0])
        .await
        .context(doing)?
        .ok_or(Error::NotFound)?;
    let before = json!({"id": id, "name": row.get::<_, &str>(0), "hint": row.get::<_, &str>(1)});
    let change = (Some(before), None);
    audit.commit(transaction, doing, 200, change, now).await
}

/// Returns the project of a key, or `None` for an unknown key.
pub(super) async fn project(
    db: &Db,
    key: &str,
    now: DateTime<Utc>,
) -> Result<Option<ProjectRef>, Error> {
    if !key.starts_with(PREFIX) || key.len() != PREFIX.len() + 40 {
        return Ok(None);
    }
    let sql = "select k.id, p.ref, k.last_used_at from ingest_keys k join projects p on p.id = k.project_id \
               where k.digest = $1 and p.desired <> 'removed'";
    let rows = db
        .query(sql, &[&SecretDigest::of(key).as_bytes()])
        .await
        .context("looking up an ingest key")?;
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    if row
        .get::<_, Option<DateTime<Utc>>>(2)
        .is_none_or(|used| now - used >= USED_EVERY)
    {
        let sql = "update ingest_keys set last_used_at = $2 where id = $1";
        db.query(sql, &[&row.get::<_, i64>(0), &now])
            .await
            .context("updating the last use of an ingest key")?;
    }
    row.get::<_, &str>(1)
        .parse()
        .map(Some)
        .context("reading a project's ref")
}
