//! A durable object store on the local disk. The implementation of the `object_store` crate does
//! not flush to disk.

use std::{
    fmt, fs,
    io::{self, ErrorKind, Write},
    path::{Path as FilePath, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use datafusion::object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
    local::LocalFileSystem, path::Path,
};
use futures_util::{StreamExt, stream::BoxStream};

use super::disk::sync_folder;

/// The store name in error messages.
const STORE: &str = "local files";

/// A directory of files. A file becomes visible only after its content is durable.
#[derive(Debug, Clone)]
pub(super) struct LocalObjects {
    files: Arc<LocalFileSystem>,
    root: PathBuf,
    /// The directory for files in progress, on the same file system as `root`.
    staging: PathBuf,
    staged: Arc<AtomicU64>,
}

impl LocalObjects {
    /// Opens the directories and creates them if necessary. Removes unfinished files of earlier
    /// processes.
    pub(super) fn open(root: &FilePath, staging: PathBuf) -> io::Result<Self> {
        match fs::remove_dir_all(&staging) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        for folder in [root, &staging] {
            fs::create_dir_all(folder)?;
            folder.parent().map_or(Ok(()), sync_folder)?;
        }
        let files = LocalFileSystem::new_with_prefix(root).map_err(io::Error::other)?;
        // Paths are compared below, so the root must have the canonical form that the library uses.
        let root = root.canonicalize()?;
        Ok(Self {
            files: Arc::new(files),
            root,
            staging,
            staged: Arc::default(),
        })
    }

    fn put(&self, to: &FilePath, payload: &PutPayload) -> io::Result<()> {
        let staged = self
            .staging
            .join(self.staged.fetch_add(1, Ordering::Relaxed).to_string());
        Self::stage(&staged, to, payload).inspect_err(|_| drop(fs::remove_file(&staged)))?;
        self.folders(to).try_for_each(sync_folder)
    }

    fn stage(staged: &FilePath, to: &FilePath, payload: &PutPayload) -> io::Result<()> {
        let mut file = fs::File::create(staged)?;
        payload.iter().try_for_each(|part| file.write_all(part))?;
        file.sync_all()?;
        // A concurrent deletion can remove the empty directory between its creation and the rename.
        let mut attempts = 0;
        loop {
            to.parent().map_or(Ok(()), fs::create_dir_all)?;
            match fs::rename(staged, to) {
                Err(error) if error.kind() == ErrorKind::NotFound && attempts < 10 => attempts += 1,
                done => return done,
            }
        }
    }

    fn delete(&self, path: &FilePath) -> io::Result<()> {
        fs::remove_file(path)?;
        for folder in self.folders(path) {
            if folder == self.root || fs::remove_dir(folder).is_err() {
                return match sync_folder(folder) {
                    // A concurrent deletion removed the directory and flushes its parent.
                    Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
                    done => done,
                };
            }
        }
        Ok(())
    }

    /// Returns the directories of a file, innermost first, up to the root.
    fn folders<'a>(&'a self, path: &'a FilePath) -> impl Iterator<Item = &'a FilePath> {
        path.ancestors()
            .skip(1)
            .take_while(|folder| folder.starts_with(&self.root))
    }
}

impl fmt::Display for LocalObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "files in {}", self.root.display())
    }
}

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Generic {
        store: STORE,
        source: Box::new(error),
    }
}

fn not_needed(operation: &str) -> Error {
    Error::NotImplemented {
        operation: operation.to_owned(),
        implementer: STORE.to_owned(),
    }
}

#[async_trait]
impl ObjectStore for LocalObjects {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        if !matches!(options.mode, PutMode::Overwrite) {
            return Err(not_needed("putting on a condition"));
        }
        let (this, to) = (self.clone(), self.files.path_to_filesystem(location)?);
        tokio::task::spawn_blocking(move || this.put(&to, &payload))
            .await
            .map_err(failed)?
            .map_err(failed)?;
        Ok(PutResult {
            e_tag: None,
            version: None,
        })
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Err(not_needed("putting in parts"))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.files.get_opts(location, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let this = self.clone();
        let delete = move |location: Result<Path>| {
            let this = this.clone();
            async move {
                let location = location?;
                let path = this.files.path_to_filesystem(&location)?;
                let done = tokio::task::spawn_blocking(move || this.delete(&path))
                    .await
                    .map_err(failed)?;
                match done {
                    Err(error) if error.kind() == ErrorKind::NotFound => Err(Error::NotFound {
                        path: location.to_string(),
                        source: Box::new(error),
                    }),
                    done => done.map(|()| location).map_err(failed),
                }
            }
        };
        locations.then(delete).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.files.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.files.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(not_needed("copying"))
    }
}
