//! An object store for readers that verifies checksums.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    ops::Range,
    sync::Arc,
};

use async_trait::async_trait;
use bytes::Bytes;
use datafusion::object_store::{
    Attributes, CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt as _, PutMultipartOptions, PutOptions,
    PutPayload, PutResult, Result, path::Path,
};
use futures_util::{StreamExt as _, future, stream, stream::BoxStream};
use parking_lot::Mutex;

use super::{
    checksums::{BLOCK_BYTES, Damage, FileChecksums, TailContent},
    error::is_disk_failure,
};

/// The store name in error messages.
const STORE: &str = "log files";
/// Size of the first read from the end of a file in bytes. Contains the footer and the checksums of
/// most files.
pub(crate) const TAIL_BYTES: u64 = 64 * 1024;
/// Maximum number of reads until the checksums of a file are complete.
const TAIL_READS_MAX: usize = 4;
/// Maximum size of the cached checksums in bytes.
const CACHE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Checksums of files, shared by all readers.
#[derive(Debug, Default)]
pub(super) struct ChecksumCache(Mutex<CachedChecksums>);

#[derive(Debug, Default)]
struct CachedChecksums {
    bytes: usize,
    files: HashMap<Path, Arc<FileChecksums>>,
}

impl ChecksumCache {
    fn get(&self, path: &Path) -> Option<Arc<FileChecksums>> {
        self.0.lock().files.get(path).cloned()
    }

    fn insert(&self, path: &Path, checksums: Arc<FileChecksums>) {
        let bytes = checksums.memory() + path.as_ref().len();
        let mut cache = self.0.lock();
        if cache.bytes + bytes > CACHE_BYTES_MAX {
            *cache = CachedChecksums::default();
        }
        cache.bytes += bytes;
        cache.files.insert(path.clone(), checksums);
    }

    /// Removes the checksums of a file. The accounted size stays an upper bound.
    pub(super) fn remove(&self, path: &Path) {
        self.0.lock().files.remove(path);
    }
}

/// The files that a reader could not verify.
#[derive(Debug, Default)]
pub(crate) struct ReadFailures {
    /// Files that did not match their checksums, or that the disk could not read.
    damaged: Mutex<BTreeSet<Path>>,
    /// Files of earlier versions, which have no checksums.
    unchecked: Mutex<BTreeSet<Path>>,
}

impl ReadFailures {
    pub(super) fn add_damaged(&self, path: &Path) {
        self.damaged.lock().insert(path.clone());
    }

    /// Removes and returns the damaged files.
    pub(crate) fn take_damaged(&self) -> BTreeSet<Path> {
        std::mem::take(&mut *self.damaged.lock())
    }

    /// Removes and returns the files without checksums.
    pub(crate) fn take_unchecked(&self) -> BTreeSet<Path> {
        std::mem::take(&mut *self.unchecked.lock())
    }
}

/// The files of one view. Reads are extended to whole blocks and verified.
#[derive(Debug)]
pub(super) struct VerifiedObjects {
    pub(super) inner: Arc<dyn ObjectStore>,
    /// Sizes of the files in bytes. Other files cannot be read.
    pub(super) sizes: HashMap<Path, u64>,
    pub(super) cache: Arc<ChecksumCache>,
    pub(super) failures: Arc<ReadFailures>,
}

/// A file with its checksums, and the verified end of the file if it was read.
struct OpenFile {
    /// `None` for a file of an earlier version.
    checksums: Option<Arc<FileChecksums>>,
    tail: Option<(Range<u64>, Bytes)>,
}

impl VerifiedObjects {
    fn size(&self, path: &Path) -> Result<u64> {
        self.sizes
            .get(path)
            .copied()
            .ok_or_else(|| Error::NotFound {
                path: path.to_string(),
                source: "not a file of the view".into(),
            })
    }

    /// Remembers the damage and converts it to an error.
    fn damaged(&self, path: &Path, damage: Damage) -> Error {
        self.failures.add_damaged(path);
        Error::Generic {
            store: STORE,
            source: Box::new(damage),
        }
    }

    async fn read(&self, path: &Path, range: Range<u64>) -> Result<Bytes> {
        let read = self.inner.get_range(path, range).await;
        read.map_err(|error| self.disk_failure(path, error))
    }

    /// Remembers a file that the disk cannot read. Other errors are passed on.
    fn disk_failure(&self, path: &Path, error: Error) -> Error {
        if is_disk_failure(&error) {
            return self.damaged(path, Damage::Unreadable);
        }
        error
    }

    async fn open(&self, path: &Path) -> Result<OpenFile> {
        let size = self.size(path)?;
        if let Some(checksums) = self.cache.get(path) {
            return Ok(OpenFile {
                checksums: Some(checksums),
                tail: None,
            });
        }
        if self.failures.unchecked.lock().contains(path) {
            return Ok(OpenFile {
                checksums: None,
                tail: None,
            });
        }
        let mut length = TAIL_BYTES;
        for _ in 0..TAIL_READS_MAX {
            // Starts at a block, so that all of it can be verified.
            let range = size.saturating_sub(length) / BLOCK_BYTES * BLOCK_BYTES..size;
            if range.is_empty() {
                break;
            }
            let tail = self.read(path, range.clone()).await?;
            match FileChecksums::of_tail(&tail, size) {
                Ok(TailContent::Checksums(checksums)) => {
                    checksums
                        .verify_tail(&range, &tail)
                        .map_err(|damage| self.damaged(path, damage))?;
                    let checksums = Arc::new(checksums);
                    self.cache.insert(path, Arc::clone(&checksums));
                    return Ok(OpenFile {
                        checksums: Some(checksums),
                        tail: Some((range, tail)),
                    });
                }
                Ok(TailContent::Unchecked) => {
                    self.failures.unchecked.lock().insert(path.clone());
                    return Ok(OpenFile {
                        checksums: None,
                        tail: Some((range, tail)),
                    });
                }
                Ok(TailContent::Incomplete(longer)) => length = longer,
                Err(damage) => return Err(self.damaged(path, damage)),
            }
        }
        Err(self.damaged(path, Damage::End))
    }

    /// Reads ranges of one file.
    async fn read_ranges(&self, path: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let file = self.open(path).await?;
        if let Some((tail_range, tail)) = &file.tail
            && ranges.iter().all(|range| contains(tail_range, range))
        {
            let parts = ranges.iter().map(|range| part(tail, tail_range, range));
            return Ok(parts.collect());
        }
        let read = |ranges: Vec<Range<u64>>| async move {
            let read = self.inner.get_ranges(path, &ranges).await;
            read.map_err(|error| self.disk_failure(path, error))
        };
        let Some(checksums) = file.checksums else {
            return read(ranges.to_vec()).await;
        };
        let extended: Vec<_> = ranges.iter().map(|range| checksums.extend(range)).collect();
        let contents = read(extended.clone()).await?;
        let mut parts = Vec::with_capacity(ranges.len());
        for ((range, extended), content) in ranges.iter().zip(&extended).zip(&contents) {
            checksums
                .verify(extended, content)
                .map_err(|damage| self.damaged(path, damage))?;
            parts.push(part(content, extended, range));
        }
        Ok(parts)
    }
}

fn contains(outer: &Range<u64>, inner: &Range<u64>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

/// Returns the part of the content of an outer range. A part beyond its end is cut.
fn part(content: &Bytes, outer: &Range<u64>, range: &Range<u64>) -> Bytes {
    let offset = |at: u64| {
        let offset = usize::try_from(at.saturating_sub(outer.start)).unwrap_or(usize::MAX);
        offset.min(content.len())
    };
    content.slice(offset(range.start)..offset(range.end).max(offset(range.start)))
}

impl fmt::Display for VerifiedObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "verified {}", self.inner)
    }
}

fn read_only(operation: &str) -> Error {
    Error::NotImplemented {
        operation: operation.to_owned(),
        implementer: STORE.to_owned(),
    }
}

#[async_trait]
impl ObjectStore for VerifiedObjects {
    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let size = self.size(location)?;
        let range = match options.range {
            None => 0..size,
            Some(GetRange::Bounded(range)) => range.start..range.end.min(size),
            Some(GetRange::Offset(start)) => start..size,
            Some(GetRange::Suffix(length)) => size.saturating_sub(length)..size,
        };
        let parts = self
            .read_ranges(location, std::slice::from_ref(&range))
            .await?;
        let content = stream::iter(parts.into_iter().map(Ok)).boxed();
        Ok(GetResult {
            payload: GetResultPayload::Stream(content),
            meta: ObjectMeta {
                location: location.clone(),
                last_modified: chrono::DateTime::UNIX_EPOCH,
                size,
                e_tag: None,
                version: None,
            },
            range,
            attributes: Attributes::default(),
        })
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.read_ranges(location, ranges).await
    }

    async fn put_opts(&self, _: &Path, _: PutPayload, _: PutOptions) -> Result<PutResult> {
        Err(read_only("put"))
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Err(read_only("multipart upload"))
    }

    fn delete_stream(
        &self,
        _: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        stream::once(future::ready(Err(read_only("deletion")))).boxed()
    }

    fn list(&self, _: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        stream::once(future::ready(Err(read_only("listing")))).boxed()
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> Result<ListResult> {
        Err(read_only("listing"))
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(read_only("copy"))
    }
}
