//! The objects of the installation: a folder of the store of backups, sealed with a key that is
//! derived from the sealing key.

use std::fmt;

use serde::{Serialize, de::DeserializeOwned};

use super::{
    content::About,
    error::{Result, damaged},
};
use crate::{
    control::backups::{
        error::BackupError,
        store::{BackupStore, ProjectKey, ProjectStore},
    },
    platform::{error::Context, sealing::SealingKey},
};

/// Folder of all objects.
const FOLDER: &str = "installation";
/// Name of the object that is not sealed.
const ABOUT: &str = "installation/about";

/// The objects of an installation. Cheap to clone.
#[derive(Clone)]
pub struct InstallationStore {
    store: BackupStore,
    objects: ProjectStore,
    fingerprint: String,
}

impl fmt::Debug for InstallationStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}

impl InstallationStore {
    /// The objects in `store`, sealed with a key derived from `sealing`.
    pub fn new(store: BackupStore, sealing: &SealingKey) -> Result<Self> {
        let key = ProjectKey::new(&sealing.derive("backups of the installation"))?;
        Ok(Self {
            objects: store.folder(FOLDER, key),
            store,
            fingerprint: sealing.fingerprint().to_owned(),
        })
    }

    /// Fingerprint of the sealing key.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Returns the digest of a content: 32 hex digits. It depends on the key, so that it reveals
    /// nothing about known data.
    pub fn digest(&self, content: &[u8]) -> String {
        hex::encode(self.objects.key.digest(content).0)
    }

    /// Returns the description of the installation. It is not sealed, so that a wrong key is told
    /// from a damaged store. `None` in a store without an installation.
    pub async fn about(&self) -> Result<Option<About>> {
        match self.store.plain(ABOUT).await {
            Err(BackupError::Missing(_)) => Ok(None),
            read => serde_json::from_slice(&read?)
                .map(Some)
                .map_err(|error| damaged(ABOUT, error.to_string())),
        }
    }

    /// Writes the description of the installation.
    pub async fn put_about(&self, about: &About) -> Result<()> {
        let text = serde_json::to_vec_pretty(about).context("describing the installation")?;
        Ok(self.store.put_plain(ABOUT, text.into()).await?)
    }

    /// Writes an object, replacing an earlier one. Returns the stored bytes.
    pub async fn put(&self, name: &str, content: Vec<u8>) -> Result<u64> {
        Ok(self.objects.put(name, content).await?)
    }

    /// Reads an object.
    ///
    /// Errors: [`BackupError::Missing`]; [`BackupError::Damaged`] if it is not what was written.
    pub async fn get(&self, name: &str) -> Result<Vec<u8>> {
        Ok(self.objects.get(name).await?)
    }

    /// Writes a JSON document.
    pub async fn put_json(&self, name: &str, value: &impl Serialize) -> Result<u64> {
        let text = serde_json::to_vec(value).context("describing a backup")?;
        self.put(name, text).await
    }

    /// Reads a JSON document. `None` if it does not exist.
    pub async fn get_json<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        match self.objects.get(name).await {
            Err(BackupError::Missing(_)) => Ok(None),
            read => serde_json::from_slice(&read?)
                .map(Some)
                .map_err(|error| damaged(name, error.to_string())),
        }
    }

    /// Returns the names of the objects in a folder, in order, without that of the folder.
    pub async fn list(&self, folder: &str) -> Result<Vec<String>> {
        let listed = self.objects.list(folder).await?;
        Ok(listed.into_iter().map(|(name, _)| name).collect())
    }

    /// Deletes an object, if it exists.
    pub async fn delete(&self, name: &str) -> Result<()> {
        Ok(self.objects.delete(name).await?)
    }
}

/// Runs work of the processor outside the async threads.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Err(BackupError::ShuttingDown.into()),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use gantry_logs::object_store::memory::InMemory;

    use super::*;
    use gantry_base::clock::Entropy;

    /// Returns an empty store under a key of these bytes.
    pub(in super::super) fn store(key: u8) -> InstallationStore {
        let objects = BackupStore::new(Arc::new(InMemory::new()), Entropy::seeded(1));
        InstallationStore::new(objects, &SealingKey::new(&[key; 32]).unwrap()).unwrap()
    }

    #[tokio::test]
    async fn objects_are_readable_with_their_key_only() {
        let ours = store(1);
        let other = InstallationStore::new(ours.store.clone(), &SealingKey::new(&[2; 32]).unwrap());
        let other = other.unwrap();
        ours.put("chunks/a", b"hush".to_vec()).await.unwrap();
        assert_eq!(ours.get("chunks/a").await.unwrap(), b"hush");
        assert_eq!(ours.list("chunks").await.unwrap(), ["a"]);
        assert!(other.get("chunks/a").await.unwrap_err().is_damage());
        assert_ne!(ours.digest(b"a"), other.digest(b"a"));
        ours.delete("chunks/a").await.unwrap();
        assert!(ours.get("chunks/a").await.unwrap_err().is_damage());
        assert_eq!(ours.about().await.unwrap(), None);
    }
}
