//! The sealing key for safekeeping outside the server: sealed under a passphrase of the operator.
//!
//! A JSON document that can be printed. The passphrase is turned into a key by Argon2id, with the
//! parameters in the document, and encrypts the sealing key with AES-256-GCM. All other fields are
//! authenticated as associated data.

use std::fmt;

use argon2::{Algorithm, Argon2, Params, Version};
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use chrono::{DateTime, Utc};
use gantry_base::clock::Entropy;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};

use crate::platform::{
    error::{Context, Error},
    sealing::SealingKey,
};

/// Name and version of the format.
const FORMAT: &str = "gantry-sealing-key-1";
/// Memory, in KiB, and passes of Argon2id: about a second on a small machine.
const MEMORY_KIB: u32 = 256 << 10;
const PASSES: u32 = 3;
/// The largest parameters that are accepted from a file.
const MEMORY_KIB_MAX: u32 = 1 << 20;
const PASSES_MAX: u32 = 20;
const SALT: usize = 16;
/// Shortest passphrase, in characters. The file may be copied and tried against for years.
pub const PASSPHRASE_CHARS_MIN: usize = 12;
/// Largest document, in bytes.
pub const DOCUMENT_BYTES_MAX: u64 = 4096;
/// A sealing key under a passphrase.
#[derive(Clone, Serialize, Deserialize)]
pub struct ExportedKey {
    format: String,
    /// Digest that identifies the key.
    pub fingerprint: String,
    /// The installation with secrets under this key.
    pub installation: String,
    /// Time of the export.
    pub exported_at: DateTime<Utc>,
    memory_kib: u32,
    passes: u32,
    salt: String,
    sealed: String,
}

impl fmt::Debug for ExportedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExportedKey({})", self.fingerprint)
    }
}

/// Error of opening an exported key.
#[derive(Debug, thiserror::Error)]
pub enum ExportedKeyError {
    /// The document is not an exported key.
    #[error("it is not a key that `gantry key export` wrote: {0}")]
    Format(String),
    /// The passphrase does not open it.
    #[error("the passphrase is wrong, or the file was changed")]
    Passphrase,
}

impl ExportedKey {
    /// Seals the key with this text under a passphrase.
    pub fn seal(
        key: &SecretString,
        passphrase: &SecretString,
        installation: String,
        entropy: &Entropy,
        now: DateTime<Utc>,
    ) -> Result<Self, Error> {
        let doing = "sealing the key";
        let mut exported = Self {
            format: FORMAT.to_owned(),
            fingerprint: SealingKey::from_hex(key)?.fingerprint().to_owned(),
            installation,
            exported_at: now,
            memory_kib: MEMORY_KIB,
            passes: PASSES,
            salt: hex::encode(entropy.bytes::<SALT>()),
            sealed: String::new(),
        };
        let cipher = exported.cipher(passphrase).context(doing)?;
        let nonce = entropy.bytes::<NONCE_LEN>();
        let mut text = key.expose_secret().as_bytes().to_vec();
        cipher
            .seal_in_place_append_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(exported.associated()),
                &mut text,
            )
            .context(doing)?;
        exported.sealed = hex::encode([&nonce[..], &text].concat());
        Ok(exported)
    }

    /// Reads a document.
    pub fn parse(text: &str) -> Result<Self, ExportedKeyError> {
        let malformed = |problem: String| ExportedKeyError::Format(problem);
        let exported: Self =
            serde_json::from_str(text).map_err(|error| malformed(error.to_string()))?;
        if exported.format != FORMAT {
            return Err(malformed(format!("its format is {:?}", exported.format)));
        }
        if exported.memory_kib > MEMORY_KIB_MAX || exported.passes > PASSES_MAX {
            return Err(malformed("its parameters are too large".to_owned()));
        }
        Ok(exported)
    }

    /// Returns the text of the key: 64 hex digits.
    pub fn open(&self, passphrase: &SecretString) -> Result<SecretString, ExportedKeyError> {
        let malformed = |problem: &str| ExportedKeyError::Format(problem.to_owned());
        let sealed = hex::decode(&self.sealed).map_err(|_| malformed("it is not complete"))?;
        let (nonce, text) = sealed
            .split_at_checked(NONCE_LEN)
            .ok_or_else(|| malformed("it is not complete"))?;
        let nonce =
            Nonce::try_assume_unique_for_key(nonce).map_err(|_| malformed("it is not complete"))?;
        let cipher = self
            .cipher(passphrase)
            .map_err(|problem| malformed(&problem))?;
        let mut text = text.to_vec();
        let opened = cipher
            .open_in_place(nonce, Aad::from(self.associated()), &mut text)
            .map_err(|_| ExportedKeyError::Passphrase)?;
        let text = std::str::from_utf8(opened).map_err(|_| ExportedKeyError::Passphrase)?;
        Ok(SecretString::from(text))
    }

    /// The fields that are not encrypted.
    fn associated(&self) -> Vec<u8> {
        let Self {
            format,
            fingerprint,
            installation,
            exported_at,
            memory_kib,
            passes,
            salt,
            sealed: _,
        } = self;
        let at = exported_at.timestamp_micros();
        format!("{format}\n{fingerprint}\n{installation}\n{at}\n{memory_kib}\n{passes}\n{salt}")
            .into_bytes()
    }

    fn cipher(&self, passphrase: &SecretString) -> Result<LessSafeKey, String> {
        let salt = hex::decode(&self.salt).map_err(|error| error.to_string())?;
        let params = Params::new(self.memory_kib, self.passes, 1, Some(32));
        let params = params.map_err(|error| error.to_string())?;
        let mut key = [0; 32];
        Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
            .hash_password_into(passphrase.expose_secret().as_bytes(), &salt, &mut key)
            .map_err(|error| error.to_string())?;
        let key = UnboundKey::new(&AES_256_GCM, &key).map_err(|error| error.to_string())?;
        Ok(LessSafeKey::new(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exported() -> (SecretString, ExportedKey) {
        let key = SecretString::from("ab".repeat(32));
        let passphrase = SecretString::from("correct horse battery");
        let entropy = Entropy::seeded(1);
        let at = DateTime::UNIX_EPOCH;
        let exported =
            ExportedKey::seal(&key, &passphrase, "one".to_owned(), &entropy, at).unwrap();
        (key, exported)
    }

    #[test]
    fn exported_key_opens_with_its_passphrase_only() {
        let (key, exported) = exported();
        let text = serde_json::to_string_pretty(&exported).unwrap();
        assert!(text.len() as u64 <= DOCUMENT_BYTES_MAX && !text.contains(key.expose_secret()));
        let read = ExportedKey::parse(&text).unwrap();
        let opened = read.open(&"correct horse battery".into()).unwrap();
        assert_eq!(opened.expose_secret(), key.expose_secret());
        assert!(matches!(
            read.open(&"another passphrase".into()),
            Err(ExportedKeyError::Passphrase)
        ));
    }

    #[test]
    fn changed_document_is_rejected() {
        let (_, exported) = exported();
        let passphrase = SecretString::from("correct horse battery");
        for change in [
            |key: &mut ExportedKey| key.installation = "two".to_owned(),
            |key: &mut ExportedKey| key.fingerprint = "00".to_owned(),
            |key: &mut ExportedKey| key.passes += 1,
            |key: &mut ExportedKey| key.sealed.replace_range(40..42, "00"),
            |key: &mut ExportedKey| key.sealed.truncate(10),
        ] {
            let mut changed = exported.clone();
            change(&mut changed);
            assert!(changed.open(&passphrase).is_err(), "{changed:?}");
        }
        let large = ExportedKey {
            memory_kib: u32::MAX,
            ..exported
        };
        let text = serde_json::to_string(&large).unwrap();
        assert!(ExportedKey::parse(&text).is_err());
        assert!(ExportedKey::parse(&"ab".repeat(32)).is_err());
    }
}
