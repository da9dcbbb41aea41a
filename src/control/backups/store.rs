//! Sealed objects of one project in the store of backups.
//!
//! An object is compressed, then encrypted with AES-256-GCM under the project's key, with its name
//! as associated data: an object that was changed, cut off or renamed does not open. The key itself
//! is stored beside the objects, sealed with the platform's key, so that the store and that key
//! are enough to recover (decision 0128).

use std::{fmt, sync::Arc};

use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    hmac,
};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use gantry_base::{clock::Entropy, ids::ProjectRef};
use gantry_logs::object_store::{
    Error as ObjectError, ObjectStore, ObjectStoreExt as _, path::Path as ObjectPath,
};
use secrecy::{ExposeSecret, SecretString};

use super::error::BackupError;
use crate::platform::{error::Error, sealing::SealingKey};

/// First bytes of every object: format and version.
const MAGIC: &[u8; 4] = b"GBK1";
/// Level of compression: a segment of 1 MB takes about 4 ms.
const COMPRESSION: i32 = 1;
/// Size of an authentication tag, in bytes.
const TAG: usize = 16;
/// Maximum size of an object's content, in bytes.
pub const CONTENT_BYTES_MAX: usize = 256 << 20;
/// Maximum number of objects in a listing.
const LISTED_MAX: usize = 1_000_000;
/// Name of the object with the sealed key of a project.
const KEY: &str = "key";

/// The key of a project's objects.
#[derive(Clone)]
pub struct ProjectKey {
    cipher: Arc<LessSafeKey>,
    names: Arc<hmac::Key>,
    text: Arc<SecretString>,
}

impl fmt::Debug for ProjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProjectKey")
    }
}

impl ProjectKey {
    /// Returns a new random key.
    pub fn generate(entropy: &Entropy) -> Result<Self, BackupError> {
        Self::of(&SecretString::from(hex::encode(entropy.bytes::<32>())))
    }

    /// Returns the key with these bytes.
    pub fn new(bytes: &[u8; 32]) -> Result<Self, BackupError> {
        Self::of(&SecretString::from(hex::encode(bytes)))
    }

    fn of(text: &SecretString) -> Result<Self, BackupError> {
        let mut bytes = [0; 32];
        let unusable = || BackupError::Key("it is not a key".to_owned());
        hex::decode_to_slice(text.expose_secret(), &mut bytes).map_err(|_| unusable())?;
        let cipher = UnboundKey::new(&AES_256_GCM, &bytes).map_err(|_| unusable())?;
        let derived = hmac::sign(
            &hmac::Key::new(hmac::HMAC_SHA256, &bytes),
            b"names of chunks",
        );
        Ok(Self {
            cipher: Arc::new(LessSafeKey::new(cipher)),
            names: Arc::new(hmac::Key::new(hmac::HMAC_SHA256, derived.as_ref())),
            text: Arc::new(SecretString::from(text.expose_secret())),
        })
    }

    /// Seals the key with the platform's key.
    pub fn seal(
        &self,
        sealing: &SealingKey,
        entropy: &Entropy,
        project: &ProjectRef,
    ) -> Result<Vec<u8>, Error> {
        sealing.seal(entropy, &key_place(project), &self.text)
    }

    /// Opens a sealed key.
    ///
    /// Errors: [`BackupError::Key`] if it was sealed with another key of the platform.
    pub fn open(
        sealing: &SealingKey,
        project: &ProjectRef,
        sealed: &[u8],
    ) -> Result<Self, BackupError> {
        let text = sealing.open(&key_place(project), sealed).map_err(|_| {
            let why = "it was sealed with another sealing key; use the key file of the server that made the backups";
            BackupError::Key(why.to_owned())
        })?;
        Self::of(&text)
    }

    /// Returns the digest of a piece of data. It depends on the key, so that it reveals nothing
    /// about known data.
    pub fn digest(&self, data: &[u8]) -> Digest {
        let mut digest = [0; 16];
        digest.copy_from_slice(&hmac::sign(&self.names, data).as_ref()[..16]);
        Digest(digest)
    }
}

fn key_place(project: &ProjectRef) -> String {
    format!("backup key of {project}")
}

/// Keyed digest of a piece of data: 128 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 16]);

/// The store of backups of all projects.
#[derive(Clone)]
pub struct BackupStore {
    objects: Arc<dyn ObjectStore>,
    entropy: Entropy,
}

impl fmt::Debug for BackupStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BackupStore")
            .field(&self.objects.to_string())
            .finish()
    }
}

impl BackupStore {
    /// Wraps a store of objects.
    pub fn new(objects: Arc<dyn ObjectStore>, entropy: Entropy) -> Self {
        Self { objects, entropy }
    }

    /// The objects of a project.
    pub fn project(&self, project: &ProjectRef, key: ProjectKey) -> ProjectStore {
        self.folder(project.as_str(), key)
    }

    /// The objects of a folder. Its name must not be that of a project.
    pub fn folder(&self, folder: &str, key: ProjectKey) -> ProjectStore {
        ProjectStore {
            store: self.clone(),
            folder: folder.to_owned(),
            key,
        }
    }

    /// Writes an object without encryption.
    pub async fn put_plain(&self, name: &str, content: Bytes) -> Result<(), BackupError> {
        self.write(&ObjectPath::from(name), content).await
    }

    /// Reads an object that is not encrypted.
    pub async fn plain(&self, name: &str) -> Result<Bytes, BackupError> {
        self.read(&ObjectPath::from(name)).await
    }

    /// Stores the sealed key of a project.
    pub async fn put_key(&self, project: &ProjectRef, sealed: &[u8]) -> Result<(), BackupError> {
        let sealed = Bytes::copy_from_slice(sealed);
        self.put_plain(&format!("{project}/{KEY}"), sealed).await
    }

    /// Returns the sealed key of a project.
    pub async fn key(&self, project: &ProjectRef) -> Result<Bytes, BackupError> {
        self.plain(&format!("{project}/{KEY}")).await
    }

    /// Returns all projects with objects.
    pub async fn projects(&self) -> Result<Vec<ProjectRef>, BackupError> {
        let listed = self.objects.list_with_delimiter(None).await;
        let listed = listed.map_err(|cause| failed("listing", "projects", cause))?;
        let names = listed.common_prefixes.iter();
        Ok(names
            .filter_map(|path| path.as_ref().parse().ok())
            .collect())
    }

    /// Deletes all objects of a project: its key first, without which the others are unreadable.
    pub async fn delete_project(&self, project: &ProjectRef) -> Result<(), BackupError> {
        self.delete(&ObjectPath::from(format!("{project}/{KEY}")))
            .await?;
        let root = ObjectPath::from(project.as_str());
        let listed: Vec<_> = self
            .objects
            .list(Some(&root))
            .try_collect()
            .await
            .map_err(|cause| failed("listing", root.as_ref(), cause))?;
        for object in listed {
            self.delete(&object.location).await?;
        }
        Ok(())
    }

    async fn delete(&self, path: &ObjectPath) -> Result<(), BackupError> {
        match self.objects.delete(path).await {
            Ok(()) | Err(ObjectError::NotFound { .. }) => Ok(()),
            Err(cause) => Err(failed("deleting", path.as_ref(), cause)),
        }
    }

    async fn write(&self, path: &ObjectPath, content: Bytes) -> Result<(), BackupError> {
        let size = content.len() as u64;
        let put = self.objects.put(path, content.into()).await;
        put.map_err(|cause| failed("writing", path.as_ref(), cause))?;
        // A store that acknowledges what it does not have is found here, not at a restore.
        match self.size(path).await? {
            Some(stored) if stored == size => Ok(()),
            _ => Err(BackupError::Damaged {
                object: path.to_string(),
                problem: "the store has not kept what it acknowledged".to_owned(),
            }),
        }
    }

    async fn size(&self, path: &ObjectPath) -> Result<Option<u64>, BackupError> {
        match self.objects.head(path).await {
            Ok(found) => Ok(Some(found.size)),
            Err(ObjectError::NotFound { .. }) => Ok(None),
            Err(cause) => Err(failed("reading", path.as_ref(), cause)),
        }
    }

    async fn read(&self, path: &ObjectPath) -> Result<Bytes, BackupError> {
        let read = async { self.objects.get(path).await?.bytes().await };
        match read.await {
            Err(ObjectError::NotFound { .. }) => Err(BackupError::Missing(path.to_string())),
            read => read.map_err(|cause| failed("reading", path.as_ref(), cause)),
        }
    }
}

/// The objects of one project, or of another folder.
#[derive(Debug, Clone)]
pub struct ProjectStore {
    store: BackupStore,
    folder: String,
    /// Key of the objects.
    pub key: ProjectKey,
}

impl ProjectStore {
    fn path(&self, name: &str) -> ObjectPath {
        ObjectPath::from(format!("{}/{name}", self.folder))
    }

    /// Writes an object, and returns the stored bytes. Replaces an earlier one.
    pub async fn put(&self, name: &str, content: Vec<u8>) -> Result<u64, BackupError> {
        let path = self.path(name);
        let (key, aad) = (self.key.clone(), path.to_string());
        let nonce = self.store.entropy.bytes::<NONCE_LEN>();
        let sealed = blocking(move || seal(&key, nonce, &aad, &content)).await?;
        let size = sealed.len() as u64;
        self.store.write(&path, sealed.into()).await?;
        Ok(size)
    }

    /// Reads an object.
    ///
    /// Errors: [`BackupError::Missing`]; [`BackupError::Damaged`] if it is not what was written.
    pub async fn get(&self, name: &str) -> Result<Vec<u8>, BackupError> {
        let path = self.path(name);
        let sealed = self.store.read(&path).await?;
        let (key, aad) = (self.key.clone(), path.to_string());
        blocking(move || open(&key, &aad, &sealed)).await
    }

    /// Returns the names of the objects in a folder, with their stored sizes, in order.
    pub async fn list(&self, folder: &str) -> Result<Vec<(String, u64)>, BackupError> {
        let path = self.path(folder);
        let prefix = format!("{path}/");
        let listed = self.store.objects.list(Some(&path)).take(LISTED_MAX + 1);
        let listed: Vec<_> = listed
            .try_collect()
            .await
            .map_err(|cause| failed("listing", path.as_ref(), cause))?;
        if listed.len() > LISTED_MAX {
            return Err(BackupError::Damaged {
                object: path.to_string(),
                problem: format!("it has more than {LISTED_MAX} objects"),
            });
        }
        let name = |path: &ObjectPath| path.as_ref().strip_prefix(&prefix).map(str::to_owned);
        let mut names: Vec<(String, u64)> = listed
            .iter()
            .filter_map(|object| Some((name(&object.location)?, object.size)))
            .collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Deletes an object, if it exists.
    pub async fn delete(&self, name: &str) -> Result<(), BackupError> {
        self.store.delete(&self.path(name)).await
    }
}

fn failed(doing: &'static str, object: &str, cause: ObjectError) -> BackupError {
    BackupError::Store {
        doing,
        object: object.to_owned(),
        cause: Box::new(cause),
    }
}

/// Runs work of the processor outside the async threads.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, BackupError> + Send + 'static,
) -> Result<T, BackupError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Err(BackupError::ShuttingDown),
    }
}

fn seal(
    key: &ProjectKey,
    nonce: [u8; NONCE_LEN],
    name: &str,
    content: &[u8],
) -> Result<Vec<u8>, BackupError> {
    let damaged = |problem: &str| BackupError::Damaged {
        object: name.to_owned(),
        problem: problem.to_owned(),
    };
    if content.len() > CONTENT_BYTES_MAX {
        return Err(damaged("it is too large"));
    }
    let mut text =
        zstd::bulk::compress(content, COMPRESSION).map_err(|error| damaged(&error.to_string()))?;
    key.cipher
        .seal_in_place_append_tag(
            Nonce::assume_unique_for_key(nonce),
            Aad::from(name.as_bytes()),
            &mut text,
        )
        .map_err(|_| damaged("it cannot be encrypted"))?;
    Ok([&MAGIC[..], &nonce, &text].concat())
}

fn open(key: &ProjectKey, name: &str, sealed: &[u8]) -> Result<Vec<u8>, BackupError> {
    let damaged = |problem: &str| BackupError::Damaged {
        object: name.to_owned(),
        problem: problem.to_owned(),
    };
    let rest = sealed
        .strip_prefix(MAGIC)
        .ok_or_else(|| damaged("it has another format"))?;
    let (nonce, text) = rest
        .split_at_checked(NONCE_LEN)
        .filter(|(_, text)| text.len() >= TAG)
        .ok_or_else(|| damaged("it is too short"))?;
    let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| damaged("it is too short"))?;
    let mut text = text.to_vec();
    let opened = key
        .cipher
        .open_in_place(nonce, Aad::from(name.as_bytes()), &mut text)
        .map_err(|_| damaged("its checksum is wrong, or it was made with another key"))?;
    let size = zstd::zstd_safe::get_frame_content_size(opened)
        .ok()
        .flatten();
    let size = size.and_then(|size| usize::try_from(size).ok());
    let size = size
        .filter(|size| *size <= CONTENT_BYTES_MAX)
        .ok_or_else(|| damaged("it is too large"))?;
    zstd::bulk::decompress(opened, size).map_err(|error| damaged(&error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_opens_only_unchanged_under_its_name_with_its_key() {
        let entropy = Entropy::seeded(1);
        let (key, other) = (
            ProjectKey::generate(&entropy).unwrap(),
            ProjectKey::generate(&entropy).unwrap(),
        );
        let content = b"hush ".repeat(100);
        let sealed = seal(&key, entropy.bytes(), "a/b", &content).unwrap();
        assert_eq!(open(&key, "a/b", &sealed).unwrap(), content);
        assert!(sealed.len() < content.len(), "it is compressed");
        assert!(!sealed.windows(4).any(|part| part == b"hush"));
        assert!(open(&key, "a/c", &sealed).is_err());
        assert!(open(&other, "a/b", &sealed).is_err());
        for at in 0..sealed.len() {
            let mut altered = sealed.clone();
            altered[at] ^= 1;
            assert!(open(&key, "a/b", &altered).is_err(), "{at}");
            assert!(open(&key, "a/b", &sealed[..at]).is_err(), "{at}");
        }
    }

    #[test]
    fn key_opens_with_the_platforms_key_and_its_project_only() {
        let entropy = Entropy::seeded(1);
        let (sealing, other) = (
            SealingKey::new(&[1; 32]).unwrap(),
            SealingKey::new(&[2; 32]).unwrap(),
        );
        let [project, foreign] = [0; 2].map(|_| ProjectRef::generate(&entropy));
        let key = ProjectKey::generate(&entropy).unwrap();
        let sealed = key.seal(&sealing, &entropy, &project).unwrap();
        let opened = ProjectKey::open(&sealing, &project, &sealed).unwrap();
        assert_eq!(opened.digest(b"x"), key.digest(b"x"));
        assert_ne!(key.digest(b"x"), key.digest(b"y"));
        let refused = ProjectKey::open(&other, &project, &sealed).unwrap_err();
        assert!(refused.to_string().contains("another sealing key"));
        assert!(ProjectKey::open(&sealing, &foreign, &sealed).is_err());
    }
}
