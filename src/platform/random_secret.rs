//! Random secrets.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use gantry_base::clock::Entropy;
use secrecy::SecretString;

/// Generates a secret of 43 characters with 256 random bits.
pub(crate) fn random_secret(entropy: &Entropy) -> SecretString {
    SecretString::from(URL_SAFE_NO_PAD.encode(entropy.bytes::<32>()))
}
