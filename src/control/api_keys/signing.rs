//! Keys that sign the tokens of a project's users: typed, so that a key set is never written from
//! text that came in.

use gantry_base::ids::ProjectId;
use secrecy::ExposeSecret;
use serde_json::Value;
use uuid::Uuid;

use crate::{
    control::context::ControlContext,
    platform::error::{Context, Error},
    proxy::accepted_keys::{SigningKey, SigningKeyState, VerificationKey},
};

/// Largest number of keys of a project, in all states.
pub(super) const KEYS_MAX: i64 = 50;
/// Returns the place of a signing key's secret part, to which it is sealed.
pub(super) fn seal_context(project: ProjectId, id: Uuid) -> String {
    format!("project {project} signing key {id}")
}

/// The signing keys of a project.
#[derive(Debug, Default)]
pub(super) struct SigningKeys {
    /// Keys in all states but revoked.
    pub(super) trusted: Vec<SigningKey>,
    /// State of the key with the secret of legacy API keys, if the project has such a key.
    pub(super) legacy: Option<SigningKeyState>,
}

/// Reads the trusted signing keys of a project, oldest first, and the state of the legacy key if
/// there is one. Rows that are no valid key are left out.
pub(super) async fn read(
    context: &ControlContext,
    project: ProjectId,
) -> Result<SigningKeys, Error> {
    let sql = "select id, state, public_jwk, sealed, is_legacy from signing_keys \
               where project_id = $1 and (state <> 'revoked' or is_legacy) \
               order by created_at, id limit $2";
    let rows = context.db.query(sql, &[&project.0, &KEYS_MAX]).await;
    let rows = rows.context("reading a project's signing keys")?;
    let mut found = SigningKeys::default();
    for row in &rows {
        let id: Uuid = row.get(0);
        let key = if let Some(jwk) = row.get::<_, Option<Value>>(2) {
            VerificationKey::of_public_jwk(&jwk)
        } else {
            let place = seal_context(project, id);
            let jwk = context.settings.sealing.open(&place, row.get(3))?;
            let jwk = serde_json::from_str(jwk.expose_secret()).ok();
            jwk.as_ref().and_then(VerificationKey::of_jwk)
        };
        let state = SigningKeyState::parse(row.get(1));
        if row.get(4) {
            found.legacy = state;
        }
        let Some((state, key)) = state.zip(key) else {
            tracing::warn!(%project, %id, "signing key is invalid and not used");
            continue;
        };
        if state.is_trusted() {
            found.trusted.push(SigningKey { id, state, key });
        }
    }
    Ok(found)
}

/// Returns the private part of the key that signs new tokens, if there is one.
pub(super) async fn private_jwk_in_use(
    context: &ControlContext,
    project: ProjectId,
) -> Result<Option<Value>, Error> {
    let doing = "reading a project's signing key";
    let sql = "select id, sealed from signing_keys where project_id = $1 and state = 'in_use'";
    let rows = context.db.query(sql, &[&project.0]).await.context(doing)?;
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    let place = seal_context(project, row.get(0));
    let jwk = context.settings.sealing.open(&place, row.get(1))?;
    Ok(Some(
        serde_json::from_str(jwk.expose_secret()).context(doing)?,
    ))
}
