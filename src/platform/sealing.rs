//! Encryption of secrets that must be shown again. They are stored in the control database, the key
//! is not.
//!
//! AES-256-GCM. A sealed secret is a nonce of 12 random bytes, the ciphertext and the tag. The
//! context of the secret is authenticated as associated data, so that an attacker with write access
//! to the database cannot substitute one secret for another.

use std::{
    fmt, fs, io,
    io::Write,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    hmac,
};
use gantry_base::clock::Entropy;
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};

use crate::platform::{
    db::Db,
    error::{Context, Error},
};

/// Longest key file, in bytes: 64 hex digits and a line break, with one byte for a carriage return.
const FILE_BYTES_MAX: u64 = 66;

/// The key that secrets are sealed with.
#[derive(Clone)]
pub struct SealingKey {
    key: Arc<LessSafeKey>,
    /// Derived key for [`Self::mark`]: its results are public.
    mark_key: Arc<hmac::Key>,
    /// Root of [`Self::derive`].
    derivation: Arc<hmac::Key>,
    fingerprint: String,
}

impl fmt::Debug for SealingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SealingKey({})", self.fingerprint)
    }
}

/// Error of reading or creating a key file.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// The file cannot be read or created.
    #[error("cannot use the sealing key {}: {cause}", file.display())]
    File {
        /// Path of the file.
        file: PathBuf,
        /// Error of the operating system.
        cause: io::Error,
    },
    /// The file does not hold a key.
    #[error("{} does not hold a sealing key: expected 64 hex digits (`openssl rand -hex 32`)", .0.display())]
    Content(PathBuf),
    /// The file is readable by other users.
    #[error("{} is readable by other users: run chmod 600 on it", .0.display())]
    Open(PathBuf),
}

impl SealingKey {
    /// Returns the key with these bytes.
    pub fn new(bytes: &[u8; 32]) -> Result<Self, Error> {
        let key = UnboundKey::new(&AES_256_GCM, bytes).context("making a sealing key")?;
        // The key is random, so its digest reveals nothing about it.
        let digest = Sha256::new()
            .chain_update(b"gantry sealing key")
            .chain_update(bytes)
            .finalize();
        let mark_key = hmac::sign(
            &hmac::Key::new(hmac::HMAC_SHA256, bytes),
            b"gantry mark_key",
        );
        let mark_key = Arc::new(hmac::Key::new(hmac::HMAC_SHA256, mark_key.as_ref()));
        let derivation = hmac::sign(
            &hmac::Key::new(hmac::HMAC_SHA256, bytes),
            b"gantry derived keys",
        );
        let derivation = Arc::new(hmac::Key::new(hmac::HMAC_SHA256, derivation.as_ref()));
        Ok(Self {
            key: Arc::new(LessSafeKey::new(key)),
            mark_key,
            derivation,
            fingerprint: hex::encode(&digest[..8]),
        })
    }

    /// Reads the key from a file of the operator.
    pub fn read(file: &Path) -> Result<Self, KeyFileError> {
        Self::from_hex(&read_text(file)?).map_err(|_| KeyFileError::Content(file.to_owned()))
    }

    /// Returns the key that 64 hex digits stand for.
    pub fn from_hex(text: &SecretString) -> Result<Self, Error> {
        let mut bytes = [0; 32];
        // The error of the library contains a digit of the key.
        hex::decode_to_slice(text.expose_secret(), &mut bytes)
            .map_err(|_| "it is not 64 hex digits")
            .context("reading a sealing key")?;
        Self::new(&bytes)
    }

    /// Reads the key from a file, and creates the file if it is missing.
    pub fn read_or_make(file: &Path, entropy: &Entropy) -> Result<Self, KeyFileError> {
        match Self::read(file) {
            Err(KeyFileError::File { cause, .. }) if cause.kind() == io::ErrorKind::NotFound => {
                let new = SecretString::from(hex::encode(entropy.bytes::<32>()));
                write_text(file, &new).map_err(|cause| KeyFileError::File {
                    file: file.to_owned(),
                    cause,
                })?;
                Self::read(file)
            }
            read => read,
        }
    }

    /// Returns whether the secrets of a control database are sealed with this key. The first key is
    /// registered.
    pub async fn fits(&self, db: &Db) -> Result<bool, Error> {
        let action = "comparing the sealing key";
        let sql = "insert into sealing (fingerprint) values ($1) on conflict do nothing";
        db.query(sql, &[&self.fingerprint]).await.context(action)?;
        let rows = db
            .query("select fingerprint from sealing", &[])
            .await
            .context(action)?;
        Ok(rows
            .first()
            .is_some_and(|row| row.get::<_, &str>(0) == self.fingerprint))
    }

    /// Digest that identifies the key and reveals nothing about it: 16 hex digits.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Returns a key for another cipher. Keys of different purposes are independent.
    pub fn derive(&self, purpose: &str) -> [u8; 32] {
        let mut derived = [0; 32];
        derived.copy_from_slice(hmac::sign(&self.derivation, purpose.as_bytes()).as_ref());
        derived
    }

    /// Returns a stable mark for `what` that only a holder of the key can compute: 40 hex digits.
    pub fn mark(&self, what: &str) -> String {
        hex::encode(&hmac::sign(&self.mark_key, what.as_bytes()).as_ref()[..20])
    }

    /// Encrypts a secret. `place` is authenticated as its context: [`Self::open`] needs the same
    /// one.
    pub fn seal(
        &self,
        entropy: &Entropy,
        place: &str,
        secret: &SecretString,
    ) -> Result<Vec<u8>, Error> {
        let nonce = entropy.bytes::<NONCE_LEN>();
        let mut text = secret.expose_secret().as_bytes().to_vec();
        let aad = Aad::from(place.as_bytes());
        self.key
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut text)
            .context("sealing a secret")?;
        Ok([&nonce[..], &text].concat())
    }

    /// Decrypts a secret that was sealed with this `place`.
    pub fn open(&self, place: &str, sealed: &[u8]) -> Result<SecretString, Error> {
        let action = "opening a sealed secret";
        let (nonce, text) = sealed
            .split_at_checked(NONCE_LEN)
            .ok_or("it is too short")
            .context(action)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).context(action)?;
        let mut text = text.to_vec();
        let opened = self
            .key
            .open_in_place(nonce, Aad::from(place.as_bytes()), &mut text)
            .context(action)?;
        Ok(SecretString::from(
            std::str::from_utf8(opened).context(action)?,
        ))
    }
}

/// Reads the text of a key file, without surrounding white space.
pub fn read_text(file: &Path) -> Result<SecretString, KeyFileError> {
    let unusable = |cause| KeyFileError::File {
        file: file.to_owned(),
        cause,
    };
    let about = fs::metadata(file).map_err(unusable)?;
    if about.mode() & 0o007 != 0 {
        return Err(KeyFileError::Open(file.to_owned()));
    }
    if about.len() > FILE_BYTES_MAX {
        return Err(KeyFileError::Content(file.to_owned()));
    }
    let text = SecretString::from(fs::read_to_string(file).map_err(unusable)?);
    Ok(SecretString::from(text.expose_secret().trim()))
}

/// Writes a key file. It is flushed and then renamed, so that a crash leaves no partial key.
pub fn write_text(file: &Path, key: &SecretString) -> io::Result<()> {
    let unfinished = file.with_extension("tmp");
    // A crash may have left a temporary file.
    match fs::remove_file(&unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut new = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&unfinished)?;
    writeln!(new, "{}", key.expose_secret())?;
    new.sync_all()?;
    fs::rename(&unfinished, file)?;
    file.parent()
        .map_or(Ok(()), |folder| fs::File::open(folder)?.sync_all())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn sealed_secret_opens_with_its_key_and_place_only() {
        let (entropy, secret) = (Entropy::seeded(1), SecretString::from("hush"));
        let (key, other) = (
            SealingKey::new(&[1; 32]).unwrap(),
            SealingKey::new(&[2; 32]).unwrap(),
        );
        let sealed = key.seal(&entropy, "project 1", &secret).unwrap();
        assert_eq!(
            key.open("project 1", &sealed).unwrap().expose_secret(),
            "hush"
        );
        assert!(!sealed.windows(4).any(|part| part == b"hush"));
        assert_ne!(
            key.seal(&entropy, "project 1", &secret).unwrap(),
            sealed,
            "equal secrets do not look equal"
        );
        assert!(
            key.open("project 2", &sealed).is_err() && other.open("project 1", &sealed).is_err()
        );
        for n in 0..sealed.len() {
            let mut altered = sealed.clone();
            altered[n] ^= 1;
            assert!(
                key.open("project 1", &altered).is_err()
                    && key.open("project 1", &sealed[..n]).is_err(),
                "{n}"
            );
        }
    }

    #[test]
    fn key_file_is_created_once_with_private_mode() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("key");
        fs::write(dir.path().join("key.tmp"), "half").unwrap();
        let key = SealingKey::read_or_make(&file, &Entropy::seeded(1)).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        assert_eq!(
            SealingKey::read_or_make(&file, &Entropy::seeded(2))
                .unwrap()
                .fingerprint,
            key.fingerprint
        );
        let text = fs::read_to_string(&file).unwrap();
        assert!(!format!("{key:?}").contains(text.trim()));

        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(
            SealingKey::read_or_make(&file, &Entropy::seeded(2)),
            Err(KeyFileError::Open(_))
        ));
    }

    #[test]
    fn invalid_key_file_is_rejected_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("key");
        assert!(matches!(
            SealingKey::read(&file),
            Err(KeyFileError::File { .. })
        ));
        for text in [
            String::new(),
            "ab".repeat(31),
            "zz".repeat(32),
            "ab".repeat(33),
            "ab".repeat(1000),
        ] {
            fs::write(&file, &text).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
            assert!(
                matches!(
                    SealingKey::read_or_make(&file, &Entropy::seeded(1)),
                    Err(KeyFileError::Content(_))
                ),
                "{text}"
            );
            assert_eq!(fs::read_to_string(&file).unwrap(), text);
        }
        fs::write(&file, "ab".repeat(32)).unwrap();
        SealingKey::read(&file).unwrap();
    }
}
