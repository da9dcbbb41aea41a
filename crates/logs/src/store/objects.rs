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

use super::disk::sync_directory;

/// The store name in error messages.
const STORE: &str = "local files";
/// Maximum number of renames that are repeated because the directory disappeared.
const RENAME_RETRIES_MAX: usize = 10;

/// A directory of files. A file becomes visible only after its content is durable.
#[derive(Debug, Clone)]
pub struct LocalObjects {
    files: Arc<LocalFileSystem>,
    root: PathBuf,
    /// The directory for files in progress, on the same file system as `root`.
    staging: PathBuf,
    /// Number of files written, which names the next file in progress.
    written: Arc<AtomicU64>,
}

impl LocalObjects {
    /// Opens the directories and creates them if necessary. Removes unfinished files of earlier
    /// processes.
    pub fn open(root: &FilePath, staging: PathBuf) -> io::Result<Self> {
        match fs::remove_dir_all(&staging) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        for directory in [root, &staging] {
            fs::create_dir_all(directory)?;
            if let Some(parent) = directory.parent() {
                sync_directory(parent)?;
            }
        }
        let files = LocalFileSystem::new_with_prefix(root).map_err(io::Error::other)?;
        // Paths are compared below, so the root must have the canonical form that the library uses.
        let root = root.canonicalize()?;
        Ok(Self {
            files: Arc::new(files),
            root,
            staging,
            written: Arc::default(),
        })
    }

    fn put(&self, to: &FilePath, payload: &PutPayload) -> io::Result<()> {
        let number = self.written.fetch_add(1, Ordering::Relaxed);
        let in_progress = self.staging.join(number.to_string());
        if let Err(error) = Self::write_and_rename(&in_progress, to, payload) {
            let _ = fs::remove_file(&in_progress);
            return Err(error);
        }
        self.directories(to).try_for_each(sync_directory)
    }

    fn write_and_rename(
        in_progress: &FilePath,
        to: &FilePath,
        payload: &PutPayload,
    ) -> io::Result<()> {
        let mut file = fs::File::create(in_progress)?;
        for part in payload {
            file.write_all(part)?;
        }
        file.sync_all()?;
        // A concurrent deletion can remove the empty directory between its creation and the rename.
        let mut attempts = 0;
        loop {
            if let Some(parent) = to.parent() {
                fs::create_dir_all(parent)?;
            }
            match fs::rename(in_progress, to) {
                Err(error)
                    if error.kind() == ErrorKind::NotFound && attempts < RENAME_RETRIES_MAX =>
                {
                    attempts += 1;
                }
                result => return result,
            }
        }
    }

    fn delete(&self, path: &FilePath) -> io::Result<()> {
        fs::remove_file(path)?;
        for directory in self.directories(path) {
            if directory == self.root || fs::remove_dir(directory).is_err() {
                return match sync_directory(directory) {
                    // A concurrent deletion removed the directory and flushes its parent.
                    Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
                    result => result,
                };
            }
        }
        Ok(())
    }

    async fn delete_object(self, location: Path) -> Result<Path> {
        let path = self.files.path_to_filesystem(&location)?;
        let result = tokio::task::spawn_blocking(move || self.delete(&path))
            .await
            .map_err(generic_error)?;
        match result {
            Ok(()) => Ok(location),
            Err(error) if error.kind() == ErrorKind::NotFound => Err(Error::NotFound {
                path: location.to_string(),
                source: Box::new(error),
            }),
            Err(error) => Err(generic_error(error)),
        }
    }

    /// Returns the directories of a file, innermost first, up to the root.
    fn directories<'a>(&'a self, path: &'a FilePath) -> impl Iterator<Item = &'a FilePath> {
        path.ancestors()
            .skip(1)
            .take_while(|directory| directory.starts_with(&self.root))
    }
}

impl fmt::Display for LocalObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "files in {}", self.root.display())
    }
}

fn generic_error(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Generic {
        store: STORE,
        source: Box::new(error),
    }
}

fn unsupported(operation: &str) -> Error {
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
            return Err(unsupported("conditional put"));
        }
        let this = self.clone();
        let to = self.files.path_to_filesystem(location)?;
        tokio::task::spawn_blocking(move || this.put(&to, &payload))
            .await
            .map_err(generic_error)?
            .map_err(generic_error)?;
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
        Err(unsupported("multipart upload"))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.files.get_opts(location, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let this = self.clone();
        locations
            .then(move |location| {
                let this = this.clone();
                async move { this.delete_object(location?).await }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.files.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.files.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(unsupported("copy"))
    }
}
