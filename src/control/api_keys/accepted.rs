//! Reads the keys that a project's services accept.

use gantry_base::ids::{ProjectId, ProjectRef};
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;

use super::{
    KEYS_MAX, Kind, format::LegacyKey, jwt_secret_seal_context, key_seal_context, ring, signing,
};
use crate::{
    control::{context::ControlContext, third_party_auth},
    platform::{
        access::{Project, credential::SecretDigest},
        error::{Context, Error},
    },
    proxy::accepted_keys::{
        AcceptedKey, AcceptedKeys, ClaimsTemplate, KeyGrant, SigningKeyState, TokenKey,
    },
};

/// The keys of a project in clear text, for the environment of its functions.
pub(crate) struct KeyValues {
    /// Publishable keys by name.
    pub(crate) publishable: Vec<(String, SecretString)>,
    /// Secret keys by name.
    pub(crate) secret: Vec<(String, SecretString)>,
    /// The legacy keys `anon` and `service_role`, while they are accepted.
    pub(crate) legacy: Option<[SecretString; 2]>,
}

/// Reads the keys of a project in clear text.
pub(crate) async fn key_values(
    context: &ControlContext,
    project: ProjectId,
    reference: &ProjectRef,
) -> Result<KeyValues, Error> {
    let doing = "reading a project's keys";
    let sql =
        "select jwt_secret, created_at from key_rings where project_id = $1 and legacy_enabled";
    let rows = context.db.query(sql, &[&project.0]).await.context(doing)?;
    let sealing = &context.settings.sealing;
    let legacy = match rows.first() {
        Some(ring) => {
            let secret = sealing.open(&jwt_secret_seal_context(project), ring.get(0))?;
            let sign = |legacy: LegacyKey| legacy.sign(reference, &secret, ring.get(1));
            Some(LegacyKey::ALL.map(sign))
        }
        None => None,
    };
    let sql =
        "select id, kind, name, sealed from api_keys where project_id = $1 order by id limit $2";
    let rows = context.db.query(sql, &[&project.0, &KEYS_MAX]).await;
    let (mut publishable, mut secret) = (Vec::new(), Vec::new());
    for row in &rows.context(doing)? {
        let is_secret = row.get::<_, &str>(1) == Kind::Secret.name();
        let kind = if is_secret {
            Kind::Secret
        } else {
            Kind::Publishable
        };
        let key = sealing.open(&key_seal_context(project, kind, row.get(0)), row.get(3))?;
        let keys = if is_secret {
            &mut secret
        } else {
            &mut publishable
        };
        keys.push((row.get(2), key));
    }
    Ok(KeyValues {
        publishable,
        secret,
        legacy,
    })
}

/// Reads the keys that a project's services currently accept.
pub async fn accepted_keys(
    context: &ControlContext,
    project: ProjectId,
    reference: &ProjectRef,
) -> Result<AcceptedKeys, Error> {
    let doing = "reading a project's keys";
    let sql = "select jwt_secret, legacy_enabled, created_at, service_key from key_rings where project_id = $1";
    let rows = context.db.query(sql, &[&project.0]).await.context(doing)?;
    let Some(ring) = rows.first() else {
        return Ok(AcceptedKeys::default());
    };
    let service = service_key(context, project, ring.get(3)).await?;
    let mut accepted = AcceptedKeys::signed_with(TokenKey::new("gantry", service));
    let signing = signing::read(context, project).await?;
    let is_enabled: bool = ring.get(1);
    // Of a project that moved to signing keys, the key's state rules and not the switch.
    let is_trusted = signing
        .legacy
        .map_or(is_enabled, SigningKeyState::is_trusted);
    if is_trusted {
        let sealing = &context.settings.sealing;
        let secret = sealing.open(&jwt_secret_seal_context(project), ring.get(0))?;
        for legacy in LegacyKey::ALL {
            let key = legacy.sign(reference, &secret, ring.get(2));
            let key = key.expose_secret();
            if is_enabled {
                let digest = SecretDigest::of(key);
                accepted
                    .keys
                    .push(AcceptedKey::new(digest, KeyGrant::Legacy));
            } else if let Some((signed, _)) = key.rsplit_once('.') {
                accepted.disabled.push(SecretDigest::of(signed));
            }
        }
        accepted.legacy = Some(TokenKey::new("legacy", secret));
    }
    accepted.signing = signing.trusted;
    accepted.third_party = third_party_auth::accepted(context, project).await?;
    let sql = "select digest, kind, template from api_keys where project_id = $1 limit $2";
    let made = context
        .db
        .query(sql, &[&project.0, &KEYS_MAX])
        .await
        .context(doing)?;
    for row in &made {
        let Some(digest) = SecretDigest::stored(row.get(0)) else {
            continue;
        };
        let claims = match (row.get::<_, &str>(1) == Kind::Secret.name(), row.get(2)) {
            (true, Some(Value::Object(claims))) => claims,
            (true, _) => claims_of_role("service_role"),
            (false, _) => claims_of_role("anon"),
        };
        accepted
            .keys
            .push(AcceptedKey::new(digest, KeyGrant::Claims(claims)));
    }
    Ok(accepted.identified())
}

/// Returns the secret that signs legacy keys.
pub async fn jwt_secret(
    context: &ControlContext,
    project: &Project,
) -> Result<SecretString, Error> {
    Ok(ring(context, project).await?.jwt_secret)
}

/// Claims of a key without claims of its own.
pub(super) fn claims_of_role(role: &str) -> ClaimsTemplate {
    [("role".to_owned(), role.into())].into_iter().collect()
}

/// Opens the key that signs exchanged tokens. Creates it for a project that has none.
async fn service_key(
    context: &ControlContext,
    project: ProjectId,
    sealed: Option<&[u8]>,
) -> Result<SecretString, Error> {
    let place = format!("project {project} service key");
    let open = |sealed: &[u8]| context.settings.sealing.open(&place, sealed);
    if let Some(sealed) = sealed {
        return open(sealed);
    }
    let made = crate::platform::random_secret::random_secret(&context.entropy);
    let sealed = context
        .settings
        .sealing
        .seal(&context.entropy, &place, &made)?;
    // Another process may have stored one meanwhile, which is then used.
    let sql = "update key_rings set service_key = coalesce(service_key, $2) where project_id = $1 returning service_key";
    let rows = context.db.query(sql, &[&project.0, &sealed]).await;
    let rows = rows.context("making a project's service key")?;
    rows.first().map_or(Ok(made), |row| open(row.get(0)))
}
