//! The life cycle of signing keys: a key is created in standby, rotation puts it in use, and the
//! previous one stays trusted until it is revoked.
//!
//! Changes of one project's keys are serialized by the lock of its key ring. Every node has dropped
//! its copy of the keys before a change is answered.

use chrono::{DateTime, Utc};
use gantry_base::ids::ProjectId;
use schemars::JsonSchema;
use secrecy::SecretString;
use serde::Serialize;
use serde_json::{Value, json};
use tokio_postgres::{Row, Transaction};
use uuid::Uuid;

pub use super::private_jwk::SigningAlgorithm;
use super::{
    lock,
    private_jwk::{PrivateKey, generate, import, unavailable},
    ring,
    signing::{self, KEYS_MAX},
};
use crate::{
    control::context::ControlContext,
    platform::{
        access::Project,
        audit::Recorder,
        db,
        error::{Context, Error},
        notifications,
        tables::Table,
    },
    proxy::accepted_keys::{SigningKey, SigningKeyState, VerificationKey},
};

/// A signing key on the wire: without its private part.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "SigningKeyResponse")]
pub struct SigningKeyView {
    /// The `kid` of its tokens.
    id: Uuid,
    algorithm: SigningAlgorithm,
    status: SigningKeyState,
    /// The public key (RFC 7517). `null` for HS256.
    public_jwk: Option<Value>,
    created_at: DateTime<Utc>,
    updated_at: DateTime<Utc>,
    #[serde(skip)]
    is_legacy: bool,
}

impl SigningKeyView {
    fn audit_entry(&self) -> Value {
        json!({"id": self.id, "algorithm": self.algorithm, "status": self.status})
    }
}

/// A signing key to create. No `Debug`, because it may contain a private key.
pub struct NewSigningKey {
    /// Its algorithm.
    pub algorithm: SigningAlgorithm,
    /// Whether the key is used at once, which requires that no other one is in use.
    pub is_in_use: bool,
    /// An imported key (RFC 7517) with its id, or none to generate one.
    pub imported: Option<(Option<Uuid>, Value)>,
}

macro_rules! signing_keys {
    ($rest:literal) => {
        concat!("select id, algorithm, state, public_jwk, created_at, updated_at, is_legacy from signing_keys where project_id = $1 ", $rest)
    };
}

fn view(row: &Row) -> Result<SigningKeyView, Error> {
    let algorithm = SigningAlgorithm::parse(row.get(1));
    let status = SigningKeyState::parse(row.get(2));
    let (algorithm, status) = algorithm
        .zip(status)
        .ok_or("unknown algorithm or state")
        .context("reading a signing key")?;
    let id = row.get(0);
    let jwk: Option<Value> = row.get(3);
    let key = jwk.as_ref().and_then(VerificationKey::of_public_jwk);
    let public_jwk = key.map(|key| {
        let state = status;
        SigningKey { id, state, key }.to_json()
    });
    Ok(SigningKeyView {
        id,
        algorithm,
        status,
        public_jwk,
        created_at: row.get(4),
        updated_at: row.get(5),
        is_legacy: row.get(6),
    })
}

/// Lists the signing keys of a project, newest first.
pub async fn signing_keys(
    context: &ControlContext,
    project: &Project,
) -> Result<Vec<SigningKeyView>, Error> {
    ring(context, project).await?;
    let sql = signing_keys!("order by created_at desc, id limit $2");
    let rows = context.db.query(sql, &[&project.id.0, &KEYS_MAX]).await;
    rows.context("listing signing keys")?
        .iter()
        .map(view)
        .collect()
}

/// Returns one signing key.
pub async fn signing_key(
    context: &ControlContext,
    project: &Project,
    id: Uuid,
) -> Result<SigningKeyView, Error> {
    ring(context, project).await?;
    let sql = signing_keys!("and id = $2");
    let rows = context.db.query(sql, &[&project.id.0, &id]).await;
    let rows = rows.context("reading a signing key")?;
    view(rows.first().ok_or(Error::NotFound)?)
}

/// Returns the signing key with the secret of legacy API keys.
pub async fn legacy_signing_key(
    context: &ControlContext,
    project: &Project,
) -> Result<SigningKeyView, Error> {
    ring(context, project).await?;
    let sql = signing_keys!("and is_legacy");
    let rows = context.db.query(sql, &[&project.id.0]).await;
    let rows = rows.context("reading a legacy signing key")?;
    view(rows.first().ok_or(Error::NotFound)?)
}

/// Creates or imports a signing key.
///
/// Errors: [`Error::Invalid`] for a key that is not valid, [`Error::Rejected`] if another key has
/// the state already.
pub async fn create_signing_key(
    context: &ControlContext,
    project: &Project,
    new: NewSigningKey,
    audit: &Recorder,
) -> Result<SigningKeyView, Error> {
    let doing = "creating a signing key";
    let NewSigningKey {
        algorithm,
        is_in_use,
        imported,
    } = new;
    ring(context, project).await?;
    let (id, key) = match imported {
        Some((id, jwk)) => (id, import(algorithm, &jwk)?),
        None => (None, generate_apart(context, algorithm).await?),
    };
    let id = id.unwrap_or_else(|| context.entropy.uuid());
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    lock(&transaction, project).await?;
    let sql = signing_keys!("and id = $2");
    let same = transaction.query_opt(sql, &[&project.id.0, &id]).await;
    if same.context(doing)?.is_some() {
        return Err(Error::Rejected(
            format!("A signing key with the id {id} already exists").into(),
        ));
    }
    let state = if is_in_use {
        SigningKeyState::InUse
    } else {
        SigningKeyState::Standby
    };
    check_free(&transaction, project.id, state).await?;
    check_count(&transaction, project.id, 1).await?;
    let inserted = StoredKind {
        id,
        algorithm,
        state,
        is_legacy: false,
    };
    let made = insert(context, &transaction, project.id, &inserted, &key).await?;
    finish(context, transaction, audit, 201, (None, &made)).await?;
    Ok(made)
}

/// Generates a key in a thread for blocking work: the numbers of RSA take long to find.
async fn generate_apart(
    context: &ControlContext,
    algorithm: SigningAlgorithm,
) -> Result<PrivateKey, Error> {
    if algorithm == SigningAlgorithm::EdDsa {
        return Err(unavailable());
    }
    let entropy = context.entropy.clone();
    tokio::task::spawn_blocking(move || generate(&entropy, algorithm))
        .await
        .context("generating a signing key")?
}

/// Inserts the signing keys of a new project: one that signs tokens of its users, and the secret of
/// the legacy API keys as a previously used key.
pub(super) async fn insert_initial(
    context: &ControlContext,
    transaction: &Transaction<'_>,
    project: ProjectId,
    jwt_secret: &SecretString,
) -> Result<(), Error> {
    let in_use = StoredKind {
        id: context.entropy.uuid(),
        algorithm: SigningAlgorithm::Es256,
        state: SigningKeyState::InUse,
        is_legacy: false,
    };
    let key = generate(&context.entropy, in_use.algorithm)?;
    insert(context, transaction, project, &in_use, &key).await?;
    let legacy = StoredKind {
        id: context.entropy.uuid(),
        algorithm: SigningAlgorithm::Hs256,
        state: SigningKeyState::PreviouslyUsed,
        is_legacy: true,
    };
    let key = PrivateKey::of_secret(jwt_secret)?;
    insert(context, transaction, project, &legacy, &key).await?;
    Ok(())
}

/// Of a project that was created before projects had signing keys: makes the secret of the legacy
/// API keys the signing key in use, and creates a key in standby to rotate to. Returns the former.
pub async fn create_legacy_signing_key(
    context: &ControlContext,
    project: &Project,
    audit: &Recorder,
) -> Result<SigningKeyView, Error> {
    let doing = "creating a legacy signing key";
    let ring = ring(context, project).await?;
    let next = generate_apart(context, SigningAlgorithm::Es256).await?;
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    lock(&transaction, project).await?;
    let sql = signing_keys!("order by state");
    let rows = transaction.query(sql, &[&project.id.0]).await;
    let existing: Vec<SigningKeyView> = rows
        .context(doing)?
        .iter()
        .map(view)
        .collect::<Result<_, _>>()?;
    if existing.iter().any(|key| key.is_legacy) {
        return Err(Error::Rejected(
            "The legacy JWT secret of this project is a signing key already".into(),
        ));
    }
    check_count(&transaction, project.id, 2).await?;
    let has = |state| existing.iter().any(|key| key.status == state);
    // A project that imported a key in use already has rotated from the secret to it.
    let state = if has(SigningKeyState::InUse) {
        SigningKeyState::PreviouslyUsed
    } else {
        SigningKeyState::InUse
    };
    let mut kind = StoredKind {
        id: context.entropy.uuid(),
        algorithm: SigningAlgorithm::Hs256,
        state,
        is_legacy: true,
    };
    let key = PrivateKey::of_secret(&ring.jwt_secret)?;
    let made = insert(context, &transaction, project.id, &kind, &key).await?;
    if !has(SigningKeyState::Standby) {
        kind = StoredKind {
            id: context.entropy.uuid(),
            algorithm: SigningAlgorithm::Es256,
            state: SigningKeyState::Standby,
            is_legacy: false,
        };
        insert(context, &transaction, project.id, &kind, &next).await?;
    }
    finish(context, transaction, audit, 201, (None, &made)).await?;
    Ok(made)
}

/// Changes the state of a signing key. A key that comes in use takes the place of the previous one
/// in the same transaction.
///
/// Errors: [`Error::Rejected`] for a change that the life cycle does not have.
pub async fn update_signing_key(
    context: &ControlContext,
    project: &Project,
    id: Uuid,
    state: SigningKeyState,
    audit: &Recorder,
) -> Result<SigningKeyView, Error> {
    let doing = "changing a signing key";
    ring(context, project).await?;
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let is_legacy_enabled = lock(&transaction, project).await?;
    let sql = signing_keys!("and id = $2");
    let row = transaction.query_opt(sql, &[&project.id.0, &id]).await;
    let before = view(&row.context(doing)?.ok_or(Error::NotFound)?)?;
    if before.status == state {
        return Ok(before);
    }
    if !before.status.can_become(state) {
        let (from, to) = (before.status.name(), state.name());
        return Err(Error::Rejected(
            format!("A signing key cannot change from {from} to {to}").into(),
        ));
    }
    let now = context.clock.now();
    match state {
        SigningKeyState::Revoked if before.is_legacy && is_legacy_enabled => {
            return Err(Error::Rejected(
                "Disable the legacy API keys before revoking the legacy JWT secret".into(),
            ));
        }
        SigningKeyState::InUse => {
            let sql = "update signing_keys set state = 'previously_used', updated_at = $2 \
                       where project_id = $1 and state = 'in_use'";
            let replaced = transaction.execute(sql, &[&project.id.0, &now]).await;
            replaced.context(doing)?;
        }
        _ => check_free(&transaction, project.id, state).await?,
    }
    let sql =
        "update signing_keys set state = $3, updated_at = $4 where project_id = $1 and id = $2";
    transaction
        .execute(sql, &[&project.id.0, &id, &state.name(), &now])
        .await
        .context(doing)?;
    let mut after = before.clone();
    after.status = state;
    after.updated_at = now;
    finish(context, transaction, audit, 200, (Some(&before), &after)).await?;
    Ok(after)
}

/// Deletes a revoked signing key, and returns it.
pub async fn remove_signing_key(
    context: &ControlContext,
    project: &Project,
    id: Uuid,
    audit: &Recorder,
) -> Result<SigningKeyView, Error> {
    let doing = "removing a signing key";
    ring(context, project).await?;
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    lock(&transaction, project).await?;
    let sql = signing_keys!("and id = $2");
    let row = transaction.query_opt(sql, &[&project.id.0, &id]).await;
    let key = view(&row.context(doing)?.ok_or(Error::NotFound)?)?;
    if key.is_legacy {
        return Err(Error::Rejected(
            "The legacy JWT secret cannot be deleted".into(),
        ));
    }
    if key.status != SigningKeyState::Revoked {
        return Err(Error::Rejected(
            "Only revoked signing keys can be deleted".into(),
        ));
    }
    let sql = "delete from signing_keys where project_id = $1 and id = $2";
    let deleted = transaction.execute(sql, &[&project.id.0, &id]).await;
    deleted.context(doing)?;
    let now = context.clock.now();
    let change = (Some(key.audit_entry()), None);
    audit.result(&key);
    audit.commit(transaction, doing, 200, change, now).await?;
    context.table_changed(Table::SigningKeys);
    notifications::settle(&context.db).await?;
    Ok(key)
}

/// Rejects the enabling of legacy API keys after their secret was revoked.
pub(super) async fn check_legacy_switch(
    transaction: &Transaction<'_>,
    project: ProjectId,
    enabled: bool,
) -> Result<(), Error> {
    if !enabled {
        return Ok(());
    }
    let sql = "select from signing_keys where project_id = $1 and is_legacy and state = 'revoked'";
    let revoked = transaction.query_opt(sql, &[&project.0]).await;
    match revoked.context("switching legacy keys")? {
        None => Ok(()),
        Some(_) => Err(Error::Rejected(
            "The legacy JWT secret is revoked; move its signing key to standby first".into(),
        )),
    }
}

/// Checks that no key has a state of which a project has one.
async fn check_free(
    transaction: &Transaction<'_>,
    project: ProjectId,
    state: SigningKeyState,
) -> Result<(), Error> {
    if !matches!(state, SigningKeyState::Standby | SigningKeyState::InUse) {
        return Ok(());
    }
    let sql = "select from signing_keys where project_id = $1 and state = $2";
    let other = transaction
        .query_opt(sql, &[&project.0, &state.name()])
        .await;
    match other.context("checking the states of signing keys")? {
        None => Ok(()),
        Some(_) => Err(Error::Rejected(
            format!(
                "The project has a signing key in state {} already",
                state.name()
            )
            .into(),
        )),
    }
}

async fn check_count(
    transaction: &Transaction<'_>,
    project: ProjectId,
    added: i64,
) -> Result<(), Error> {
    let sql = "select count(*) from signing_keys where project_id = $1";
    let count = db::count(transaction, sql, project.0, "counting signing keys").await?;
    if count + added > KEYS_MAX {
        return Err(Error::Rejected(
            format!("A project can have {KEYS_MAX} signing keys; delete revoked ones").into(),
        ));
    }
    Ok(())
}

/// Columns of a new row, besides the key.
struct StoredKind {
    id: Uuid,
    algorithm: SigningAlgorithm,
    state: SigningKeyState,
    is_legacy: bool,
}

async fn insert(
    context: &ControlContext,
    transaction: &Transaction<'_>,
    project: ProjectId,
    kind: &StoredKind,
    key: &PrivateKey,
) -> Result<SigningKeyView, Error> {
    let now = context.clock.now();
    let place = signing::seal_context(project, kind.id);
    let sealing = &context.settings.sealing;
    let sealed = sealing.seal(&context.entropy, &place, &key.jwk)?;
    let public = SigningKey {
        id: kind.id,
        state: SigningKeyState::Standby,
        key: key.verification.clone(),
    };
    let sql = "insert into signing_keys (id, project_id, algorithm, state, public_jwk, sealed, is_legacy, created_at, updated_at) \
               values ($1, $2, $3, $4, $5, $6, $7, $8, $8) \
               returning id, algorithm, state, public_jwk, created_at, updated_at, is_legacy";
    let row = transaction
        .query_one(
            sql,
            &[
                &kind.id,
                &project.0,
                &kind.algorithm.name(),
                &kind.state.name(),
                &public.public_jwk(),
                &sealed,
                &kind.is_legacy,
                &now,
            ],
        )
        .await;
    view(&row.context("storing a signing key")?)
}

/// Commits a change, and waits until no node uses the previous keys.
async fn finish(
    context: &ControlContext,
    transaction: deadpool_postgres::Transaction<'_>,
    audit: &Recorder,
    status: i16,
    (before, after): (Option<&SigningKeyView>, &SigningKeyView),
) -> Result<(), Error> {
    let change = (
        before.map(SigningKeyView::audit_entry),
        Some(after.audit_entry()),
    );
    let now = context.clock.now();
    audit.result(after);
    audit
        .commit(transaction, "changing signing keys", status, change, now)
        .await?;
    context.table_changed(Table::SigningKeys);
    notifications::settle(&context.db).await
}
