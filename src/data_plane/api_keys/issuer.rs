//! Keys for a program that issues the tokens of a project's users.

use secrecy::SecretString;
use serde_json::{Value, json};

use super::{accepted::accepted_keys, signing, signing::SigningKeyState};
use crate::{
    base::{
        error::Error,
        ids::{ProjectId, ProjectRef},
    },
    data_plane::context::DataPlaneContext,
};

/// The keys of a program that signs and verifies tokens of a project's users. No `Debug`, because
/// it contains secrets.
pub(crate) struct IssuerKeys {
    /// Identifies the keys: `AcceptedKeys::id`.
    pub(crate) id: u64,
    /// Private and public keys as JSON (RFC 7517). Exactly one has the operation `sign`.
    pub(crate) keys: SecretString,
    /// The secret of tokens without a key id, while they are accepted.
    pub(crate) legacy: Option<SecretString>,
}

/// Reads the keys of a project's authentication service. `None`: no key signs tokens that services
/// accept.
pub(crate) async fn issuer_keys(
    context: &DataPlaneContext,
    project: ProjectId,
    reference: &ProjectRef,
) -> Result<Option<IssuerKeys>, Error> {
    let accepted = accepted_keys(context, project, reference).await?;
    let mut signer = signing::private_jwk_in_use(context, project).await?;
    let mut keys = Vec::new();
    for key in accepted.signing.iter().filter(|key| key.is_accepted()) {
        let is_signer = key.state == SigningKeyState::InUse;
        let private = if is_signer { signer.take() } else { None };
        let mut jwk = private.unwrap_or_else(|| key.to_json());
        let operation = if jwk.get("d").or_else(|| jwk.get("k")).is_some() && is_signer {
            "sign"
        } else {
            "verify"
        };
        jwk["kid"] = json!(key.id);
        jwk["use"] = json!("sig");
        jwk["key_ops"] = json!([operation]);
        keys.push(jwk);
    }
    let has_signer = |keys: &[Value]| keys.iter().any(|key| key["key_ops"] == json!(["sign"]));
    let strong = accepted.legacy.iter().filter(|key| key.is_long_enough());
    for (key, may_sign) in strong
        .map(|key| (key, true))
        .chain(accepted.service.iter().map(|key| (key, false)))
    {
        let mut jwk = key.to_json();
        let signs = may_sign && !has_signer(&keys);
        jwk["key_ops"] = json!([if signs { "sign" } else { "verify" }]);
        keys.push(jwk);
    }
    let has_signer = has_signer(&keys);
    Ok(has_signer.then(|| IssuerKeys {
        id: accepted.id(),
        keys: Value::Array(keys).to_string().into(),
        legacy: accepted.legacy.map(|key| key.secret),
    }))
}
