//! A simulated disk and object store with fault injection and power loss.

use std::{
    collections::BTreeMap,
    fmt, io,
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use datafusion::object_store::{
    self, CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, memory::InMemory, path::Path,
};
use futures_util::{StreamExt, stream::BoxStream};

use crate::store::disk::{Disk, LogFile};

/// The fault plan. Each write, flush, creation and removal is one step.
#[derive(Debug, Default)]
struct Fate {
    steps: u64,
    /// The step at which the power fails.
    cut: Option<u64>,
    /// The steps that fail.
    fail: Vec<u64>,
    /// Random state that decides the effect of a failed step.
    dice: u64,
}

/// Fault injection shared by the disk and the object store of one machine.
#[derive(Debug, Clone, Default)]
pub(super) struct Luck(Arc<Mutex<Fate>>);

enum Outcome {
    Works,
    /// Fails without any effect.
    Nothing,
    /// Fails after the full effect.
    All,
}

impl Luck {
    pub(super) fn plan(&self, cut: Option<u64>, fail: Vec<u64>, dice: u64) {
        *self.0.lock().unwrap() = Fate {
            steps: 0,
            cut,
            fail,
            dice,
        };
    }

    pub(super) fn is_cut(&self) -> bool {
        let fate = self.0.lock().unwrap();
        fate.cut.is_some_and(|cut| fate.steps > cut)
    }

    fn dice(&self, sides: u64) -> u64 {
        let mut fate = self.0.lock().unwrap();
        fate.dice = fate
            .dice
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (fate.dice >> 33) % sides
    }

    fn step(&self) -> Outcome {
        let (fails, dead) = {
            let mut fate = self.0.lock().unwrap();
            let at = fate.steps;
            fate.steps += 1;
            (
                fate.fail.contains(&at) || fate.cut == Some(at),
                fate.cut.is_some_and(|cut| at > cut),
            )
        };
        match (dead, fails) {
            (true, _) => Outcome::Nothing,
            (false, false) => Outcome::Works,
            (false, true) if self.dice(2) == 0 => Outcome::Nothing,
            (false, true) => Outcome::All,
        }
    }

    /// Performs a step, or fails before or after it.
    fn try_to<T>(&self, what: impl FnOnce() -> T) -> io::Result<T> {
        match self.step() {
            Outcome::Works => Ok(what()),
            Outcome::Nothing => Err(io::Error::other("no luck")),
            Outcome::All => {
                what();
                Err(io::Error::other("no luck"))
            }
        }
    }
}

#[derive(Debug, Default)]
struct Content {
    bytes: Vec<u8>,
    durable: usize,
}

type File = Arc<Mutex<Content>>;

#[derive(Debug, Default)]
struct Folder {
    now: BTreeMap<String, File>,
    durable: BTreeMap<String, File>,
}

/// A disk that loses unflushed data on power loss.
#[derive(Debug, Clone, Default)]
pub(super) struct SimDisk {
    folder: Arc<Mutex<Folder>>,
    pub(super) luck: Luck,
}

#[derive(Debug)]
struct SimFile {
    file: File,
    luck: Luck,
}

impl SimDisk {
    pub(super) fn new(luck: Luck) -> Self {
        Self {
            folder: Arc::default(),
            luck,
        }
    }

    /// Restores the power. Unflushed data survives in part or not at all.
    pub(super) fn restart(&self) {
        let mut folder = self.folder.lock().unwrap();
        let Folder { now, durable } = &mut *folder;
        let names: Vec<String> = now.keys().chain(durable.keys()).cloned().collect();
        for name in names {
            if self.luck.dice(2) == 0 {
                match durable.get(&name).cloned() {
                    Some(file) => now.insert(name, file),
                    None => now.remove(&name),
                };
            }
        }
        for file in now.values() {
            let mut file = file.lock().unwrap();
            let lost = file.bytes.len() - file.durable;
            let kept = usize::try_from(self.luck.dice(lost as u64 + 1)).unwrap();
            let length = file.durable + kept;
            file.bytes.truncate(length);
            // Pages reach the disk in any order.
            if kept > 0 && self.luck.dice(3) == 0 {
                let broken = file.durable + usize::try_from(self.luck.dice(kept as u64)).unwrap();
                file.bytes[broken] ^= 0x55;
            }
            file.durable = file.bytes.len();
        }
        *durable = now.clone();
    }

    /// Flips bits in one byte of a file.
    pub(super) fn damage(&self, name: &str, at: usize) {
        self.folder.lock().unwrap().now[name].lock().unwrap().bytes[at] ^= 0x55;
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.folder.lock().unwrap().now.keys().cloned().collect()
    }
}

impl Disk for SimDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.names())
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn LogFile>> {
        let file = File::default();
        self.luck.try_to(|| {
            self.folder
                .lock()
                .unwrap()
                .now
                .insert(name.to_owned(), Arc::clone(&file))
        })?;
        Ok(Arc::new(SimFile {
            file,
            luck: self.luck.clone(),
        }))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn LogFile>> {
        let file = Arc::clone(&self.folder.lock().unwrap().now[name]);
        Ok(Arc::new(SimFile {
            file,
            luck: self.luck.clone(),
        }))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.luck
            .try_to(|| drop(self.folder.lock().unwrap().now.remove(name)))
    }

    fn sync(&self) -> io::Result<()> {
        self.luck.try_to(|| {
            let mut folder = self.folder.lock().unwrap();
            folder.durable = folder.now.clone();
        })
    }
}

impl LogFile for SimFile {
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let put = |bytes: &[u8]| {
            let mut file = self.file.lock().unwrap();
            assert!(
                file.durable as u64 <= offset,
                "what is durable is never written again"
            );
            file.bytes.truncate(usize::try_from(offset).unwrap());
            file.bytes.extend(bytes);
        };
        match self.luck.step() {
            Outcome::Works => {
                put(bytes);
                Ok(())
            }
            Outcome::Nothing => Err(io::Error::other("no luck")),
            Outcome::All => {
                let some = self.luck.dice(bytes.len() as u64 + 1);
                put(&bytes[..usize::try_from(some).unwrap()]);
                Err(io::Error::other("no luck"))
            }
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.luck.try_to(|| {
            let mut file = self.file.lock().unwrap();
            file.durable = file.bytes.len();
        })
    }

    fn read(&self, offset: u64, count: usize) -> io::Result<Vec<u8>> {
        let file = self.file.lock().unwrap();
        let from = usize::try_from(offset).unwrap();
        file.bytes
            .get(from..from + count)
            .map(<[u8]>::to_vec)
            .ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.file.lock().unwrap().bytes.len() as u64)
    }
}

/// An object store with failing writes and deletions, before or after their effect.
#[derive(Debug, Clone)]
pub(super) struct SimObjects {
    pub(super) inner: Arc<InMemory>,
    pub(super) luck: Luck,
}

impl fmt::Display for SimObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("simulated")
    }
}

fn no_luck() -> object_store::Error {
    object_store::Error::Generic {
        store: "simulated",
        source: "no luck".into(),
    }
}

#[async_trait]
impl ObjectStore for SimObjects {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> object_store::Result<PutResult> {
        match self.luck.step() {
            Outcome::Works => self.inner.put_opts(location, payload, options).await,
            Outcome::Nothing => Err(no_luck()),
            Outcome::All => {
                self.inner.put_opts(location, payload, options).await?;
                Err(no_luck())
            }
        }
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, options).await
    }

    async fn get_opts(
        &self,
        location: &Path,
        options: GetOptions,
    ) -> object_store::Result<GetResult> {
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        let this = self.clone();
        let delete = move |location: object_store::Result<Path>| {
            let this = this.clone();
            async move {
                let location = location?;
                let one = || futures_util::stream::iter([Ok(location.clone())]).boxed();
                match this.luck.step() {
                    Outcome::Works => this
                        .inner
                        .delete_stream(one())
                        .next()
                        .await
                        .unwrap_or(Ok(location)),
                    Outcome::Nothing => Err(no_luck()),
                    Outcome::All => {
                        let _ = this.inner.delete_stream(one()).next().await;
                        Err(no_luck())
                    }
                }
            }
        };
        locations.then(delete).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> object_store::Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(
        &self,
        from: &Path,
        to: &Path,
        options: CopyOptions,
    ) -> object_store::Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
