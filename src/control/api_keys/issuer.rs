//! Keys for programs that issue or verify the tokens of a project's users.

use aws_lc_rs::hmac;
use gantry_base::ids::{ProjectId, ProjectRef};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};

use super::{accepted::accepted_keys, signing};
use crate::{
    control::context::ControlContext,
    platform::error::Error,
    proxy::accepted_keys::{SigningKeyState, TokenKey, sign_hs256},
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
    context: &ControlContext,
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

/// The keys of a program that verifies tokens of a project. No `Debug`, because it contains
/// secrets.
pub(crate) struct VerifierKeys {
    /// Identifies the keys: `AcceptedKeys::id`.
    pub(crate) id: u64,
    /// The key set as JSON (RFC 7517), with the internal key.
    pub(crate) key_set: SecretString,
    /// The secret of tokens without a key id, while they are accepted.
    pub(crate) legacy: Option<SecretString>,
    internal: SecretString,
}

impl VerifierKeys {
    /// Derives a secret of 64 hexadecimal digits from the internal key of the project. It is equal
    /// at each start.
    pub(crate) fn derive(&self, purpose: &str) -> SecretString {
        let key = hmac::Key::new(hmac::HMAC_SHA256, self.internal.expose_secret().as_bytes());
        hex::encode(hmac::sign(&key, purpose.as_bytes())).into()
    }

    /// Signs claims, which are a JSON object, with a derived secret (HS256).
    pub(crate) fn sign(&self, claims: &str, purpose: &str) -> SecretString {
        sign_hs256(
            r#"{"alg":"HS256","typ":"JWT"}"#,
            claims,
            &self.derive(purpose),
        )
    }

    #[cfg(test)]
    pub(crate) fn for_tests() -> Self {
        Self {
            id: 1,
            key_set: "{}".into(),
            legacy: None,
            internal: "internal".into(),
        }
    }
}

/// Reads the keys of a project by which services verify tokens. `None`: the project has no internal
/// key.
pub(crate) async fn verifier_keys(
    context: &ControlContext,
    project: ProjectId,
    reference: &ProjectRef,
) -> Result<Option<VerifierKeys>, Error> {
    let accepted = accepted_keys(context, project, reference).await?;
    let key_set = json!({ "keys": accepted.verification_keys() }).to_string();
    let id = accepted.id();
    let legacy = accepted.legacy.filter(TokenKey::is_long_enough);
    Ok(accepted.service.map(|internal| VerifierKeys {
        id,
        key_set: key_set.into(),
        legacy: legacy.map(|key| key.secret),
        internal: internal.secret,
    }))
}
