//! API keys of projects. Keys are stored encrypted, because permitted callers can read them again,
//! and are looked up by digest.

mod accepted;
mod format;
pub(crate) mod issuer;
mod private_jwk;
mod replacements;
pub mod rotation;
mod signing;

use chrono::{DateTime, Utc};
use gantry_base::ids::ProjectId;
use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;
use serde_json::{Value, json};
use tokio_postgres::{Row, Transaction};
use uuid::Uuid;

pub(crate) use self::accepted::key_values;
use self::format::LegacyKey;
pub use self::{
    accepted::{accepted_keys, jwt_secret},
    format::Kind,
    replacements::replacements,
};
use crate::{
    control::{context::ControlContext, projects},
    platform::{
        access::{Project, credential::SecretDigest},
        audit::Recorder,
        db,
        error::{Context, Error},
        notifications,
        tables::Table,
    },
    proxy::accepted_keys::ClaimsTemplate,
};

/// Maximum number of API keys of a project, besides the legacy keys.
const KEYS_MAX: i64 = 100;
/// Name of a project's initial keys.
const INITIAL_NAME: &str = "default";

/// Type of a key on the wire.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum ApiKeyType {
    Legacy,
    Publishable,
    Secret,
}

/// An API key on the wire. No `Debug`, because the key may be in clear text.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ApiKeyResponse")]
pub struct ApiKey {
    /// The key. A secret key is masked unless the caller requested `reveal`.
    #[serde(rename = "api_key")]
    key: String,
    /// A UUID, or the role of a legacy key.
    id: String,
    #[serde(rename = "type")]
    kind: ApiKeyType,
    /// Beginning of the key.
    prefix: Option<String>,
    name: String,
    description: Option<String>,
    /// SHA-256 of the key, in hex.
    hash: String,
    secret_jwt_template: Option<ClaimsTemplate>,
    inserted_at: DateTime<Utc>,
    updated_at: DateTime<Utc>,
}

/// Properties of a key to create.
#[derive(Debug)]
pub struct NewApiKey {
    /// Kind of the key. Immutable.
    pub kind: Kind,
    /// Unique among the project's keys of this kind.
    pub name: String,
    /// Free text.
    pub description: Option<String>,
    /// Claims. Only secret keys have claims.
    pub template: Option<ClaimsTemplate>,
}

/// Properties to change. `Some(None)` clears a property.
#[derive(Debug, Default)]
pub struct ApiKeyUpdate {
    /// New name.
    pub name: Option<String>,
    /// New description.
    pub description: Option<Option<String>>,
    /// New claims.
    pub template: Option<Option<ClaimsTemplate>>,
}

/// Reasons for deleting a key, recorded in the audit log.
#[derive(Debug, Default)]
pub struct KeyRemoval {
    /// Whether the key may be known to a third party.
    pub was_compromised: Option<bool>,
    /// Reason in the caller's words.
    pub reason: Option<String>,
}

/// A row of `key_rings`: secrets and settings that a project has once.
struct KeyRing {
    jwt_secret: SecretString,
    legacy_enabled: bool,
    created_at: DateTime<Utc>,
}

/// A row of `api_keys` with the decrypted key.
struct StoredKey {
    id: Uuid,
    kind: Kind,
    name: String,
    description: Option<String>,
    template: Option<ClaimsTemplate>,
    secret: SecretString,
    inserted_at: DateTime<Utc>,
    updated_at: DateTime<Utc>,
}

macro_rules! keys {
    ($rest:literal) => {
        concat!("select id, kind, name, description, template, sealed, inserted_at, updated_at from api_keys where project_id = $1 ", $rest)
    };
}

/// Lists the keys of a project: the legacy keys, then the others by creation time.
pub async fn list(
    context: &ControlContext,
    project: &Project,
    reveal: bool,
) -> Result<Vec<ApiKey>, Error> {
    let ring = ring(context, project).await?;
    let rows = context
        .db
        .query(
            keys!("order by inserted_at, kind, id limit $2"),
            &[&project.id.0, &KEYS_MAX],
        )
        .await
        .context("listing keys")?;
    let made = rows
        .iter()
        .map(|row| Ok(StoredKey::read(context, project.id, row)?.into_response(reveal)));
    LegacyKey::ALL
        .into_iter()
        .map(|legacy| Ok(ring.legacy(project, legacy, reveal)))
        .chain(made)
        .collect()
}

/// Returns one key.
pub async fn get(
    context: &ControlContext,
    project: &Project,
    id: Uuid,
    reveal: bool,
) -> Result<ApiKey, Error> {
    ring(context, project).await?;
    let rows = context
        .db
        .query(keys!("and id = $2"), &[&project.id.0, &id])
        .await
        .context("reading a key")?;
    Ok(
        StoredKey::read(context, project.id, rows.first().ok_or(Error::NotFound)?)?
            .into_response(reveal),
    )
}

/// Creates a key.
pub async fn create(
    context: &ControlContext,
    project: &Project,
    new: NewApiKey,
    reveal: bool,
    audit: &Recorder,
) -> Result<ApiKey, Error> {
    let doing = "making a key";
    let now = context.clock.now();
    ring(context, project).await?;
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    lock(&transaction, project).await?;
    let sql = "select count(*) from api_keys where project_id = $1";
    if db::count(&transaction, sql, project.id.0, doing).await? >= KEYS_MAX {
        return Err(Error::Rejected(
            format!("A project can have {KEYS_MAX} API keys").into(),
        ));
    }
    let key = insert(context, &transaction, project.id, new, now).await?;
    let change = (None, Some(key.audit_entry()));
    let key = key.into_response(reveal);
    audit.result(&key);
    audit.commit(transaction, doing, 201, change, now).await?;
    context.table_changed(Table::ApiKeys);
    Ok(key)
}

/// Changes properties of a key. The key itself stays unchanged.
pub async fn update(
    context: &ControlContext,
    project: &Project,
    id: Uuid,
    change: ApiKeyUpdate,
    reveal: bool,
    audit: &Recorder,
) -> Result<ApiKey, Error> {
    let doing = "changing a key";
    let now = context.clock.now();
    ring(context, project).await?;
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    lock(&transaction, project).await?;
    let row = transaction
        .query_opt(keys!("and id = $2"), &[&project.id.0, &id])
        .await
        .context(doing)?;
    let mut key = StoredKey::read(context, project.id, &row.ok_or(Error::NotFound)?)?;
    let before = key.audit_entry();
    key.name = change.name.unwrap_or(key.name);
    key.description = change.description.unwrap_or(key.description);
    key.template = change.template.unwrap_or(key.template);
    key.updated_at = now;
    check_template(key.kind, key.template.as_ref())?;
    let sql = "update api_keys set name = $2, description = $3, template = $4, updated_at = $5 where id = $1";
    let template = key.template.clone().map(Value::Object);
    let updated = transaction
        .execute(sql, &[&id, &key.name, &key.description, &template, &now])
        .await;
    updated.map_err(|error| duplicate_name(error, &key.name))?;
    let change = (Some(before), Some(key.audit_entry()));
    let key = key.into_response(reveal);
    audit.result(&key);
    audit.commit(transaction, doing, 200, change, now).await?;
    Ok(key)
}

/// Deletes a key and returns it.
pub async fn remove(
    context: &ControlContext,
    project: &Project,
    id: Uuid,
    removal: KeyRemoval,
    reveal: bool,
    audit: &Recorder,
) -> Result<ApiKey, Error> {
    let doing = "removing a key";
    let now = context.clock.now();
    ring(context, project).await?;
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    lock(&transaction, project).await?;
    let row = transaction
        .query_opt(keys!("and id = $2"), &[&project.id.0, &id])
        .await
        .context(doing)?;
    let key = StoredKey::read(context, project.id, &row.ok_or(Error::NotFound)?)?;
    transaction
        .execute("delete from api_keys where id = $1", &[&id])
        .await
        .context(doing)?;
    // The reason must not put the secret into the audit log.
    let reason = removal
        .reason
        .filter(|reason| !reason.contains(key.secret.expose_secret()));
    let after = json!({"was_compromised": removal.was_compromised, "reason": reason});
    let change = (Some(key.audit_entry()), Some(after));
    let key = key.into_response(reveal);
    audit.result(&key);
    audit.commit(transaction, doing, 200, change, now).await?;
    context.table_changed(Table::ApiKeys);
    // All nodes must have invalidated the key before the request is answered.
    notifications::settle(&context.db).await?;
    Ok(key)
}

/// Returns whether the project's services accept the legacy keys.
pub async fn legacy_enabled(context: &ControlContext, project: &Project) -> Result<bool, Error> {
    Ok(ring(context, project).await?.legacy_enabled)
}

/// Enables or disables the legacy keys.
pub async fn enable_legacy(
    context: &ControlContext,
    project: &Project,
    enabled: bool,
    audit: &Recorder,
) -> Result<(), Error> {
    let doing = "switching legacy keys";
    let now = context.clock.now();
    ring(context, project).await?;
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let before = lock(&transaction, project).await?;
    rotation::check_legacy_switch(&transaction, project.id, enabled).await?;
    let sql = "update key_rings set legacy_enabled = $2 where project_id = $1";
    transaction
        .execute(sql, &[&project.id.0, &enabled])
        .await
        .context(doing)?;
    let entry = |enabled: bool| Some(json!({"legacy_enabled": enabled}));
    let change = (entry(before), entry(enabled));
    audit.commit(transaction, doing, 200, change, now).await?;
    context.table_changed(Table::KeyRings);
    notifications::settle(&context.db).await
}

/// Creates a project's key ring, and its initial API keys and signing keys, unless they exist.
pub async fn create_initial(
    context: &ControlContext,
    transaction: &Transaction<'_>,
    project: ProjectId,
    now: DateTime<Utc>,
) -> Result<(), Error> {
    let jwt_secret = format::mint_jwt_secret(&context.entropy);
    let place = jwt_secret_seal_context(project);
    let sealing = &context.settings.sealing;
    let sealed = sealing.seal(&context.entropy, &place, &jwt_secret)?;
    let sql = "insert into key_rings (project_id, jwt_secret, created_at) values ($1, $2, $3) on conflict do nothing";
    if transaction
        .execute(sql, &[&project.0, &sealed, &now])
        .await
        .context("making a project's first keys")?
        == 0
    {
        return Ok(());
    }
    let service_role = accepted::claims_of_role("service_role");
    for (kind, template) in [
        (Kind::Publishable, None),
        (Kind::Secret, Some(service_role)),
    ] {
        insert(
            context,
            transaction,
            project,
            NewApiKey {
                kind,
                name: INITIAL_NAME.to_owned(),
                description: None,
                template,
            },
            now,
        )
        .await?;
    }
    rotation::insert_initial(context, transaction, project, &jwt_secret).await
}

/// Reads the project's key ring. Creates one for a project that predates API keys.
async fn ring(context: &ControlContext, project: &Project) -> Result<KeyRing, Error> {
    let sql = "select p.desired, r.jwt_secret, r.legacy_enabled, r.created_at \
               from projects p left join key_rings r on r.project_id = p.id where p.id = $1";
    let mut rows = context
        .db
        .query(sql, &[&project.id.0])
        .await
        .context("reading a project's keys")?;
    if rows
        .first()
        .is_some_and(|row| row.get::<_, Option<&[u8]>>(1).is_none())
    {
        create_missing(context, project).await?;
        rows = context
            .db
            .query(sql, &[&project.id.0])
            .await
            .context("reading a project's keys")?;
    }
    let row = rows
        .first()
        .filter(|row| row.get::<_, &str>(0) == "active")
        .ok_or_else(projects::removed)?;
    let sealed = row
        .get::<_, Option<&[u8]>>(1)
        .ok_or_else(projects::removed)?;
    let jwt_secret = context
        .settings
        .sealing
        .open(&jwt_secret_seal_context(project.id), sealed)?;
    Ok(KeyRing {
        jwt_secret,
        legacy_enabled: row.get(2),
        created_at: row.get(3),
    })
}

async fn create_missing(context: &ControlContext, project: &Project) -> Result<(), Error> {
    let mut client = context.db.client().await?;
    let transaction = client
        .transaction()
        .await
        .context("making a project's first keys")?;
    // The shared lock permits concurrent creation. Removal of the project waits for it and then
    // deletes the new rows.
    projects::lock_shared(&transaction, project, "making a project's first keys").await?;
    create_initial(context, &transaction, project.id, context.clock.now()).await?;
    transaction
        .commit()
        .await
        .context("making a project's first keys")
}

/// Locks the project's key ring, so that changes are serialised, and keeps the project in its
/// organization. Returns whether the legacy keys are enabled.
async fn lock(transaction: &Transaction<'_>, project: &Project) -> Result<bool, Error> {
    let doing = "locking a project's keys";
    projects::lock_shared(transaction, project, doing).await?;
    let sql = "select legacy_enabled from key_rings where project_id = $1 for update";
    let row = transaction
        .query_opt(sql, &[&project.id.0])
        .await
        .context(doing)?;
    Ok(row.ok_or_else(projects::removed)?.get(0))
}

async fn insert(
    context: &ControlContext,
    transaction: &Transaction<'_>,
    project: ProjectId,
    new: NewApiKey,
    now: DateTime<Utc>,
) -> Result<StoredKey, Error> {
    let NewApiKey {
        kind,
        name,
        description,
        template,
    } = new;
    check_template(kind, template.as_ref())?;
    let id = context.entropy.uuid();
    let key = kind.mint(&context.entropy);
    let sealed = context.settings.sealing.seal(
        &context.entropy,
        &key_seal_context(project, kind, id),
        &key,
    )?;
    let claims = template.clone().map(Value::Object);
    let digest = SecretDigest::of(key.expose_secret());
    let sql = "insert into api_keys (id, project_id, kind, name, description, template, sealed, digest, inserted_at, updated_at) \
               values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $9)";
    let inserted = transaction
        .execute(
            sql,
            &[
                &id,
                &project.0,
                &kind.name(),
                &name,
                &description,
                &claims,
                &sealed,
                &digest.as_bytes(),
                &now,
            ],
        )
        .await;
    inserted.map_err(|error| duplicate_name(error, &name))?;
    Ok(StoredKey {
        id,
        kind,
        name,
        description,
        template,
        secret: key,
        inserted_at: now,
        updated_at: now,
    })
}

/// Authenticated context of the encrypted JWT secret. Binding a ciphertext to project, kind and id
/// prevents that a writer of rows swaps secrets, for instance displays a secret key as publishable.
fn jwt_secret_seal_context(project: ProjectId) -> String {
    format!("project {project} jwt secret")
}

fn key_seal_context(project: ProjectId, kind: Kind, id: Uuid) -> String {
    format!("project {project} {} key {id}", kind.name())
}

fn check_template(kind: Kind, template: Option<&ClaimsTemplate>) -> Result<(), Error> {
    match (kind, template) {
        (Kind::Publishable, Some(_)) => Err(Error::invalid(
            "secret_jwt_template",
            "only secret keys have one",
        )),
        _ => Ok(()),
    }
}

fn duplicate_name(error: tokio_postgres::Error, name: &str) -> Error {
    match db::violated(&error) {
        Some("api_keys_name_key") => Error::Rejected(
            format!("An API key with name {name} already exists in this project").into(),
        ),
        _ => Error::internal("writing a key", error),
    }
}

impl KeyRing {
    fn legacy(&self, project: &Project, legacy: LegacyKey, reveal: bool) -> ApiKey {
        let key = legacy.sign(&project.reference, &self.jwt_secret, self.created_at);
        let role = legacy.role();
        ApiKey {
            key: legacy.display(&key, reveal),
            id: role.to_owned(),
            kind: ApiKeyType::Legacy,
            prefix: None,
            name: role.to_owned(),
            description: Some(format!("Legacy {role} API key")),
            hash: hash(&key),
            secret_jwt_template: None,
            inserted_at: self.created_at,
            updated_at: self.created_at,
        }
    }
}

impl StoredKey {
    fn read(context: &ControlContext, project: ProjectId, row: &Row) -> Result<Self, Error> {
        let kind = match row.get(1) {
            "publishable" => Kind::Publishable,
            _ => Kind::Secret,
        };
        let template = match row.get(4) {
            Some(Value::Object(claims)) => Some(claims),
            _ => None,
        };
        let id = row.get(0);
        Ok(Self {
            id,
            kind,
            name: row.get(2),
            description: row.get(3),
            template,
            secret: context
                .settings
                .sealing
                .open(&key_seal_context(project, kind, id), row.get(5))?,
            inserted_at: row.get(6),
            updated_at: row.get(7),
        })
    }

    fn into_response(self, reveal: bool) -> ApiKey {
        let kind = match self.kind {
            Kind::Publishable => ApiKeyType::Publishable,
            Kind::Secret => ApiKeyType::Secret,
        };
        ApiKey {
            key: self.kind.display(&self.secret, reveal),
            id: self.id.to_string(),
            kind,
            prefix: Some(self.kind.prefix(&self.secret)),
            name: self.name,
            description: self.description,
            hash: hash(&self.secret),
            secret_jwt_template: self.template,
            inserted_at: self.inserted_at,
            updated_at: self.updated_at,
        }
    }

    /// Returns the key's properties for the audit log, without the secret.
    fn audit_entry(&self) -> Value {
        json!({"id": self.id, "type": self.kind.name(), "name": self.name, "description": self.description, "claims": self.template})
    }
}

fn hash(key: &SecretString) -> String {
    hex::encode(SecretDigest::of(key.expose_secret()).as_bytes())
}
