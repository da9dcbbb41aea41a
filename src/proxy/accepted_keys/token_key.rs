//! Symmetric keys that sign JSON web tokens.

use aws_lc_rs::hmac;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};

/// Shortest secret of a symmetric key, in bytes.
pub(crate) const SECRET_BYTES_MIN: usize = 32;

/// A symmetric key that signs JSON web tokens.
#[derive(Debug, Clone)]
pub struct TokenKey {
    id: &'static str,
    pub(crate) secret: SecretString,
}

impl TokenKey {
    /// The key with this id (`kid`). The bytes of the text are the secret.
    pub(crate) fn new(id: &'static str, secret: SecretString) -> Self {
        Self { id, secret }
    }

    /// Signs claims, which are a JSON object.
    pub(crate) fn sign(&self, claims: &str) -> SecretString {
        let header = json!({"alg": "HS256", "typ": "JWT", "kid": self.id});
        sign_hs256(&header.to_string(), claims, &self.secret)
    }

    /// Returns the key as JSON (RFC 7517 and 7518 §6.4). Contains the secret.
    pub(crate) fn to_json(&self) -> Value {
        let secret = URL_SAFE_NO_PAD.encode(self.secret.expose_secret());
        json!({"kty": "oct", "kid": self.id, "alg": "HS256", "k": secret})
    }

    pub(super) fn has_signed(&self, message: &[u8], signature: &[u8]) -> bool {
        let key = hmac::Key::new(hmac::HMAC_SHA256, self.secret.expose_secret().as_bytes());
        hmac::verify(&key, message, signature).is_ok()
    }

    pub(crate) fn is_long_enough(&self) -> bool {
        self.secret.expose_secret().len() >= SECRET_BYTES_MIN
    }
}

/// Signs a JSON web token with HMAC-SHA256 (RFC 7515). Header and claims are JSON.
pub(crate) fn sign_hs256(header: &str, claims: &str, secret: &SecretString) -> SecretString {
    let signed = [header, claims]
        .map(|part| URL_SAFE_NO_PAD.encode(part))
        .join(".");
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.expose_secret().as_bytes());
    let signature = URL_SAFE_NO_PAD.encode(hmac::sign(&key, signed.as_bytes()));
    SecretString::from(format!("{signed}.{signature}"))
}
