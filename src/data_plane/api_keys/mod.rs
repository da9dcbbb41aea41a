//! API keys of projects: with what clients of a project's services authenticate. Shown again to those who may see them, so they
//! are kept sealed; found by their digest.

mod form;

use aws_lc_rs::constant_time;
use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio_postgres::{Row, Transaction};
use uuid::Uuid;

pub use form::Kind;

use self::form::Legacy;
use crate::{
    base::{
        db,
        error::{Context, Error},
        ids::{ProjectId, ProjectRef},
    },
    data_plane::{context::DataPlaneContext, projects},
    platform::{
        access::{Project, credential::SecretDigest},
        audit::Recorder,
        notifications,
        tables::Table,
    },
};

/// Keys a project can have, besides the legacy ones.
const KEYS_MAX: i64 = 100;
/// What the first keys are called.
const FIRST: &str = "default";

/// Claims of the token that a secret key stands for.
pub type Template = Map<String, Value>;

/// Kind of a key, as it is shown.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum Shown {
    Legacy,
    Publishable,
    Secret,
}

/// A key. It has no `Debug`: it may be in clear.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ApiKeyResponse")]
pub struct ApiKey {
    /// The key; of a secret one only the beginning, unless all of it was asked for.
    #[serde(rename = "api_key")]
    key: String,
    /// A UUID, or the role of a legacy key.
    id: String,
    #[serde(rename = "type")]
    kind: Shown,
    /// How the key begins.
    prefix: Option<String>,
    name: String,
    description: Option<String>,
    /// SHA-256 of the key, in hex.
    hash: String,
    secret_jwt_template: Option<Template>,
    inserted_at: DateTime<Utc>,
    updated_at: DateTime<Utc>,
}

/// What a new key is to be.
#[derive(Debug)]
pub struct NewKey {
    /// Fixed for its life.
    pub kind: Kind,
    /// Unique among the project's keys of this kind.
    pub name: String,
    /// For people.
    pub description: Option<String>,
    /// Only of a secret key.
    pub template: Option<Template>,
}

/// What is to be different; `Some(None)` takes it away.
#[derive(Debug, Default)]
pub struct Change {
    /// Another name.
    pub name: Option<String>,
    /// Another description.
    pub description: Option<Option<String>>,
    /// Other claims.
    pub template: Option<Option<Template>>,
}

/// Why a key is removed.
#[derive(Debug, Default)]
pub struct Removal {
    /// Whether somebody else may have it.
    pub was_compromised: Option<bool>,
    /// In the person's words.
    pub reason: Option<String>,
}

/// What a project has once: see the table `key_rings`.
struct Ring {
    jwt_secret: SecretString,
    legacy_enabled: bool,
    created_at: DateTime<Utc>,
}

/// A row of `api_keys`, opened.
struct Held {
    id: Uuid,
    kind: Kind,
    name: String,
    description: Option<String>,
    template: Option<Template>,
    key: SecretString,
    inserted_at: DateTime<Utc>,
    updated_at: DateTime<Utc>,
}

macro_rules! keys {
    ($rest:literal) => {
        concat!("select id, kind, name, description, template, sealed, inserted_at, updated_at from api_keys where project_id = $1 ", $rest)
    };
}

/// The keys of a project: the legacy ones, then the others in the order they were made.
pub async fn list(
    context: &DataPlaneContext,
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
        .map(|row| Ok(Held::read(context, project.id, row)?.shown(reveal)));
    Legacy::ALL
        .into_iter()
        .map(|legacy| Ok(ring.legacy(project, legacy, reveal)))
        .chain(made)
        .collect()
}

/// One key.
pub async fn get(
    context: &DataPlaneContext,
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
    Ok(Held::read(context, project.id, rows.first().ok_or(Error::NotFound)?)?.shown(reveal))
}

/// Makes a key. Who makes one may see it.
pub async fn create(
    context: &DataPlaneContext,
    project: &Project,
    new: NewKey,
    reveal: bool,
    audit: &Recorder,
) -> Result<ApiKey, Error> {
    let now = context.clock.now();
    ring(context, project).await?;
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context("making a key")?;
    lock(&transaction, project.id).await?;
    let sql = "select count(*) from api_keys where project_id = $1";
    let count: i64 = transaction
        .query_one(sql, &[&project.id.0])
        .await
        .context("making a key")?
        .get(0);
    if count >= KEYS_MAX {
        return Err(Error::Rejected(
            format!("A project can have {KEYS_MAX} API keys").into(),
        ));
    }
    let held = insert(context, &transaction, project.id, new, now).await?;
    audit
        .write_in(&transaction, 201, (None, Some(held.told())), now)
        .await?;
    transaction.commit().await.context("making a key")?;
    context.table_changed(Table::ApiKeys);
    Ok(held.shown(reveal))
}

/// Changes what is said about a key. The key itself stays as it is.
pub async fn update(
    context: &DataPlaneContext,
    project: &Project,
    id: Uuid,
    change: Change,
    reveal: bool,
    audit: &Recorder,
) -> Result<ApiKey, Error> {
    let now = context.clock.now();
    ring(context, project).await?;
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context("changing a key")?;
    lock(&transaction, project.id).await?;
    let row = transaction
        .query_opt(keys!("and id = $2"), &[&project.id.0, &id])
        .await
        .context("changing a key")?;
    let mut held = Held::read(context, project.id, &row.ok_or(Error::NotFound)?)?;
    let before = held.told();
    held.name = change.name.unwrap_or(held.name);
    held.description = change.description.unwrap_or(held.description);
    held.template = change.template.unwrap_or(held.template);
    held.updated_at = now;
    check_template(held.kind, held.template.as_ref())?;
    let sql = "update api_keys set name = $2, description = $3, template = $4, updated_at = $5 where id = $1";
    let template = held.template.clone().map(Value::Object);
    let updated = transaction
        .execute(sql, &[&id, &held.name, &held.description, &template, &now])
        .await;
    updated.map_err(|error| duplicate_name(error, &held.name))?;
    audit
        .write_in(&transaction, 200, (Some(before), Some(held.told())), now)
        .await?;
    transaction.commit().await.context("changing a key")?;
    Ok(held.shown(reveal))
}

/// Removes a key, and tells which it was.
pub async fn remove(
    context: &DataPlaneContext,
    project: &Project,
    id: Uuid,
    why: Removal,
    reveal: bool,
    audit: &Recorder,
) -> Result<ApiKey, Error> {
    let now = context.clock.now();
    ring(context, project).await?;
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context("removing a key")?;
    lock(&transaction, project.id).await?;
    let row = transaction
        .query_opt(keys!("and id = $2"), &[&project.id.0, &id])
        .await
        .context("removing a key")?;
    let held = Held::read(context, project.id, &row.ok_or(Error::NotFound)?)?;
    transaction
        .execute("delete from api_keys where id = $1", &[&id])
        .await
        .context("removing a key")?;
    // Somebody may tell in it which key it was.
    let reason = why
        .reason
        .filter(|reason| !reason.contains(held.key.expose_secret()));
    let after = json!({"was_compromised": why.was_compromised, "reason": reason});
    audit
        .write_in(&transaction, 200, (Some(held.told()), Some(after)), now)
        .await?;
    transaction.commit().await.context("removing a key")?;
    context.table_changed(Table::ApiKeys);
    // No node lets anybody in with it any more when this is answered.
    notifications::settle(&context.db).await?;
    Ok(held.shown(reveal))
}

/// The keys that a project's services accept.
#[derive(Debug, Default)]
pub struct Accepted(Vec<SecretDigest>);

impl Accepted {
    /// Whether this is one of them. Takes the same time whichever it is, and whether it is one.
    pub fn has(&self, key: &str) -> bool {
        let sent = SecretDigest::of(key);
        let same = |digest: &SecretDigest| {
            constant_time::verify_slices_are_equal(digest.as_bytes(), sent.as_bytes()).is_ok()
        };
        self.0
            .iter()
            .fold(false, |found, digest| same(digest) | found)
    }
}

/// The keys that a project's services accept at the moment.
pub async fn accepted(
    context: &DataPlaneContext,
    project: ProjectId,
    reference: &ProjectRef,
) -> Result<Accepted, Error> {
    let doing = "reading a project's keys";
    let sql = "select jwt_secret, legacy_enabled, created_at from key_rings where project_id = $1";
    let rows = context.db.query(sql, &[&project.0]).await.context(doing)?;
    let Some(ring) = rows.first() else {
        return Ok(Accepted::default());
    };
    let mut all = Vec::new();
    if ring.get(1) {
        let secret = context
            .settings
            .sealing
            .open(&jwt_secret_of(project), ring.get(0))?;
        let digest = |legacy: Legacy| {
            SecretDigest::of(legacy.sign(reference, &secret, ring.get(2)).expose_secret())
        };
        all.extend(Legacy::ALL.map(digest));
    }
    let sql = "select digest from api_keys where project_id = $1 limit $2";
    let made = context
        .db
        .query(sql, &[&project.0, &KEYS_MAX])
        .await
        .context(doing)?;
    all.extend(
        made.iter()
            .filter_map(|row| SecretDigest::stored(row.get(0))),
    );
    Ok(Accepted(all))
}

/// Whether the project's services accept the legacy keys.
pub async fn legacy_enabled(context: &DataPlaneContext, project: &Project) -> Result<bool, Error> {
    Ok(ring(context, project).await?.legacy_enabled)
}

/// Says whether they do.
pub async fn enable_legacy(
    context: &DataPlaneContext,
    project: &Project,
    enabled: bool,
    audit: &Recorder,
) -> Result<(), Error> {
    let doing = "switching legacy keys";
    let now = context.clock.now();
    ring(context, project).await?;
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let before = lock(&transaction, project.id).await?;
    transaction
        .execute(
            "update key_rings set legacy_enabled = $2 where project_id = $1",
            &[&project.id.0, &enabled],
        )
        .await
        .context(doing)?;
    let told = |enabled: bool| Some(json!({"legacy_enabled": enabled}));
    audit
        .write_in(&transaction, 200, (told(before), told(enabled)), now)
        .await?;
    transaction.commit().await.context(doing)?;
    context.table_changed(Table::KeyRings);
    notifications::settle(&context.db).await
}

/// Gives a project what it has once, and its first keys, unless it has them.
pub async fn make_first(
    context: &DataPlaneContext,
    transaction: &Transaction<'_>,
    project: ProjectId,
    now: DateTime<Utc>,
) -> Result<(), Error> {
    let sealed = context.settings.sealing.seal(
        &context.entropy,
        &jwt_secret_of(project),
        &form::mint_jwt_secret(&context.entropy),
    )?;
    let sql = "insert into key_rings (project_id, jwt_secret, created_at) values ($1, $2, $3) on conflict do nothing";
    if transaction
        .execute(sql, &[&project.0, &sealed, &now])
        .await
        .context("making a project's first keys")?
        == 0
    {
        return Ok(());
    }
    let service_role: Template = [("role".to_owned(), "service_role".into())]
        .into_iter()
        .collect();
    for (kind, template) in [
        (Kind::Publishable, None),
        (Kind::Secret, Some(service_role)),
    ] {
        insert(
            context,
            transaction,
            project,
            NewKey {
                kind,
                name: FIRST.to_owned(),
                description: None,
                template,
            },
            now,
        )
        .await?;
    }
    Ok(())
}

/// What the project has once. One from before there were keys gets it now.
async fn ring(context: &DataPlaneContext, project: &Project) -> Result<Ring, Error> {
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
        make_late(context, project).await?;
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
        .open(&jwt_secret_of(project.id), sealed)?;
    Ok(Ring {
        jwt_secret,
        legacy_enabled: row.get(2),
        created_at: row.get(3),
    })
}

async fn make_late(context: &DataPlaneContext, project: &Project) -> Result<(), Error> {
    let mut client = context.db.client().await?;
    let transaction = client
        .transaction()
        .await
        .context("making a project's first keys")?;
    // Shared with others who do the same; whoever removes the project waits, and finds what to forget.
    let sql = "select from projects where id = $1 and desired <> 'removed' for share";
    transaction
        .query_opt(sql, &[&project.id.0])
        .await
        .context("making a project's first keys")?
        .ok_or_else(projects::removed)?;
    make_first(context, &transaction, project.id, context.clock.now()).await?;
    transaction
        .commit()
        .await
        .context("making a project's first keys")
}

/// One change of a project's keys at a time. Tells whether the legacy ones are enabled.
async fn lock(transaction: &Transaction<'_>, project: ProjectId) -> Result<bool, Error> {
    let sql = "select legacy_enabled from key_rings where project_id = $1 for update";
    let row = transaction
        .query_opt(sql, &[&project.0])
        .await
        .context("locking a project's keys")?;
    Ok(row.ok_or_else(projects::removed)?.get(0))
}

async fn insert(
    context: &DataPlaneContext,
    transaction: &Transaction<'_>,
    project: ProjectId,
    new: NewKey,
    now: DateTime<Utc>,
) -> Result<Held, Error> {
    let NewKey {
        kind,
        name,
        description,
        template,
    } = new;
    check_template(kind, template.as_ref())?;
    let (id, key) = (context.entropy.uuid(), kind.mint(&context.entropy));
    let sealed =
        context
            .settings
            .sealing
            .seal(&context.entropy, &place(project, kind, id), &key)?;
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
    Ok(Held {
        id,
        kind,
        name,
        description,
        template,
        key,
        inserted_at: now,
        updated_at: now,
    })
}

/// What a sealed secret is. Whoever can write rows cannot make one another's: nor a secret key publishable, which all may see.
fn jwt_secret_of(project: ProjectId) -> String {
    format!("project {project} jwt secret")
}

fn place(project: ProjectId, kind: Kind, id: Uuid) -> String {
    format!("project {project} {} key {id}", kind.name())
}

fn check_template(kind: Kind, template: Option<&Template>) -> Result<(), Error> {
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

impl Ring {
    fn legacy(&self, project: &Project, legacy: Legacy, reveal: bool) -> ApiKey {
        let key = legacy.sign(&project.reference, &self.jwt_secret, self.created_at);
        let role = legacy.role();
        ApiKey {
            key: legacy.shown(&key, reveal),
            id: role.to_owned(),
            kind: Shown::Legacy,
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

impl Held {
    fn read(context: &DataPlaneContext, project: ProjectId, row: &Row) -> Result<Self, Error> {
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
            key: context
                .settings
                .sealing
                .open(&place(project, kind, id), row.get(5))?,
            inserted_at: row.get(6),
            updated_at: row.get(7),
        })
    }

    fn shown(self, reveal: bool) -> ApiKey {
        let kind = match self.kind {
            Kind::Publishable => Shown::Publishable,
            Kind::Secret => Shown::Secret,
        };
        ApiKey {
            key: self.kind.shown(&self.key, reveal),
            id: self.id.to_string(),
            kind,
            prefix: Some(self.kind.prefix(&self.key)),
            name: self.name,
            description: self.description,
            hash: hash(&self.key),
            secret_jwt_template: self.template,
            inserted_at: self.inserted_at,
            updated_at: self.updated_at,
        }
    }

    /// As the audit log has it: which key it is, and not what it is.
    fn told(&self) -> Value {
        json!({"id": self.id, "type": self.kind.name(), "name": self.name, "description": self.description, "claims": self.template})
    }
}

fn hash(key: &SecretString) -> String {
    hex::encode(SecretDigest::of(key.expose_secret()).as_bytes())
}
