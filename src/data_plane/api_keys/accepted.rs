//! Keys that a project's services accept.

use aws_lc_rs::constant_time;
use secrecy::ExposeSecret;

use super::{KEYS_MAX, format::LegacyKey, jwt_secret_seal_context};
use crate::{
    base::{
        error::{Context, Error},
        ids::{ProjectId, ProjectRef},
    },
    data_plane::context::DataPlaneContext,
    platform::access::credential::SecretDigest,
};

/// Digests of the keys that a project's services accept.
#[derive(Debug, Default)]
pub struct AcceptedKeys(Vec<SecretDigest>);

impl AcceptedKeys {
    /// Returns whether `key` is accepted. Takes constant time.
    pub fn contains(&self, key: &str) -> bool {
        let sent = SecretDigest::of(key);
        let same = |digest: &SecretDigest| {
            constant_time::verify_slices_are_equal(digest.as_bytes(), sent.as_bytes()).is_ok()
        };
        self.0
            .iter()
            .fold(false, |found, digest| same(digest) | found)
    }
}

/// Reads the keys that a project's services currently accept.
pub async fn accepted_keys(
    context: &DataPlaneContext,
    project: ProjectId,
    reference: &ProjectRef,
) -> Result<AcceptedKeys, Error> {
    let doing = "reading a project's keys";
    let sql = "select jwt_secret, legacy_enabled, created_at from key_rings where project_id = $1";
    let rows = context.db.query(sql, &[&project.0]).await.context(doing)?;
    let Some(ring) = rows.first() else {
        return Ok(AcceptedKeys::default());
    };
    let mut all = Vec::new();
    if ring.get(1) {
        let secret = context
            .settings
            .sealing
            .open(&jwt_secret_seal_context(project), ring.get(0))?;
        all.extend(LegacyKey::ALL.map(|legacy: LegacyKey| {
            SecretDigest::of(legacy.sign(reference, &secret, ring.get(2)).expose_secret())
        }));
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
    Ok(AcceptedKeys(all))
}
