//! A simulated disk and object store with fault injection and power loss.

use std::{
    collections::BTreeMap,
    fmt, io,
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use datafusion::object_store::{
    self, CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, memory::InMemory,
    path::Path,
};
use futures_util::{StreamExt, stream::BoxStream};

use crate::store::disk::{Disk, LogFile};

/// The fault plan. Each write, flush, creation and removal is one step.
#[derive(Debug, Default)]
struct FaultPlan {
    steps: u64,
    /// The step at which the power fails.
    power_loss: Option<u64>,
    /// The steps that fail.
    failing_steps: Vec<u64>,
    /// Random state that decides the effect of a failed step.
    random: u64,
}

/// Fault injection shared by the disk and the object store of one machine.
#[derive(Debug, Clone, Default)]
pub(super) struct Faults(Arc<Mutex<FaultPlan>>);

enum StepResult {
    Succeeds,
    /// Fails without any effect.
    FailsBefore,
    /// Fails after the full effect.
    FailsAfter,
}

impl Faults {
    pub(super) fn plan(&self, power_loss: Option<u64>, failing_steps: Vec<u64>, random: u64) {
        *self.0.lock().unwrap() = FaultPlan {
            steps: 0,
            power_loss,
            failing_steps,
            random,
        };
    }

    pub(super) fn has_lost_power(&self) -> bool {
        let plan = self.0.lock().unwrap();
        plan.power_loss
            .is_some_and(|power_loss| plan.steps > power_loss)
    }

    fn random(&self, bound: u64) -> u64 {
        let mut plan = self.0.lock().unwrap();
        plan.random = plan
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (plan.random >> 33) % bound
    }

    fn step(&self) -> StepResult {
        let mut plan = self.0.lock().unwrap();
        let at = plan.steps;
        plan.steps += 1;
        if plan.power_loss.is_some_and(|power_loss| at > power_loss) {
            return StepResult::FailsBefore;
        }
        let fails = plan.failing_steps.contains(&at) || plan.power_loss == Some(at);
        drop(plan);
        if !fails {
            StepResult::Succeeds
        } else if self.random(2) == 0 {
            StepResult::FailsBefore
        } else {
            StepResult::FailsAfter
        }
    }

    /// Performs a step, or fails before or after it.
    fn perform<T>(&self, action: impl FnOnce() -> T) -> io::Result<T> {
        match self.step() {
            StepResult::Succeeds => Ok(action()),
            StepResult::FailsBefore => Err(io::Error::other("injected fault")),
            StepResult::FailsAfter => {
                action();
                Err(io::Error::other("injected fault"))
            }
        }
    }
}

#[derive(Debug, Default)]
struct FileContent {
    bytes: Vec<u8>,
    durable: usize,
}

type SharedFile = Arc<Mutex<FileContent>>;

#[derive(Debug, Default)]
struct DirectoryState {
    current: BTreeMap<String, SharedFile>,
    durable: BTreeMap<String, SharedFile>,
}

/// A disk that loses unflushed data on power loss.
#[derive(Debug, Clone, Default)]
pub(super) struct SimDisk {
    directory: Arc<Mutex<DirectoryState>>,
    pub(super) faults: Faults,
}

#[derive(Debug)]
struct SimFile {
    file: SharedFile,
    faults: Faults,
}

impl SimDisk {
    pub(super) fn new(faults: Faults) -> Self {
        Self {
            directory: Arc::default(),
            faults,
        }
    }

    /// Restores the power. Unflushed data survives in part or not at all.
    pub(super) fn restart(&self) {
        let mut directory = self.directory.lock().unwrap();
        let DirectoryState { current, durable } = &mut *directory;
        let names: Vec<String> = current.keys().chain(durable.keys()).cloned().collect();
        for name in names {
            if self.faults.random(2) == 0 {
                match durable.get(&name).cloned() {
                    Some(file) => current.insert(name, file),
                    None => current.remove(&name),
                };
            }
        }
        for file in current.values() {
            let mut file = file.lock().unwrap();
            let lost = file.bytes.len() - file.durable;
            let kept = usize::try_from(self.faults.random(lost as u64 + 1)).unwrap();
            let length = file.durable + kept;
            file.bytes.truncate(length);
            // Pages reach the disk in any order.
            if kept > 0 && self.faults.random(3) == 0 {
                let broken =
                    file.durable + usize::try_from(self.faults.random(kept as u64)).unwrap();
                file.bytes[broken] ^= 0x55;
            }
            file.durable = file.bytes.len();
        }
        *durable = current.clone();
    }

    /// Changes the content of a file.
    pub(super) fn change(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let file = Arc::clone(&self.directory.lock().unwrap().current[name]);
        let mut file = file.lock().unwrap();
        change(&mut file.bytes);
        file.durable = file.bytes.len();
    }

    /// Removes a file without any trace.
    pub(super) fn lose(&self, name: &str) {
        let mut directory = self.directory.lock().unwrap();
        directory.current.remove(name);
        directory.durable.remove(name);
    }

    /// Flips bits in one byte of a file.
    pub(super) fn damage(&self, name: &str, at: usize) {
        self.directory.lock().unwrap().current[name]
            .lock()
            .unwrap()
            .bytes[at] ^= 0x55;
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.directory
            .lock()
            .unwrap()
            .current
            .keys()
            .cloned()
            .collect()
    }
}

impl Disk for SimDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.names())
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn LogFile>> {
        let file = SharedFile::default();
        self.faults.perform(|| {
            self.directory
                .lock()
                .unwrap()
                .current
                .insert(name.to_owned(), Arc::clone(&file))
        })?;
        Ok(Arc::new(SimFile {
            file,
            faults: self.faults.clone(),
        }))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn LogFile>> {
        let file = Arc::clone(&self.directory.lock().unwrap().current[name]);
        Ok(Arc::new(SimFile {
            file,
            faults: self.faults.clone(),
        }))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.faults
            .perform(|| drop(self.directory.lock().unwrap().current.remove(name)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.faults.perform(|| {
            let mut directory = self.directory.lock().unwrap();
            if let Some(file) = directory.current.remove(from) {
                directory.current.insert(to.to_owned(), file);
            }
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.faults.perform(|| {
            let mut directory = self.directory.lock().unwrap();
            directory.durable = directory.current.clone();
        })
    }
}

impl SimFile {
    fn overwrite_from(&self, offset: u64, bytes: &[u8]) {
        let mut file = self.file.lock().unwrap();
        let offset = usize::try_from(offset).unwrap();
        assert!(file.durable <= offset, "durable data is never overwritten");
        file.bytes.truncate(offset);
        file.bytes.extend(bytes);
    }
}

impl LogFile for SimFile {
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        match self.faults.step() {
            StepResult::Succeeds => {
                self.overwrite_from(offset, bytes);
                Ok(())
            }
            StepResult::FailsBefore => Err(io::Error::other("injected fault")),
            StepResult::FailsAfter => {
                let written = self.faults.random(bytes.len() as u64 + 1);
                let written = usize::try_from(written).unwrap();
                self.overwrite_from(offset, &bytes[..written]);
                Err(io::Error::other("injected fault"))
            }
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.faults.perform(|| {
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
    pub(super) faults: Faults,
}

impl fmt::Display for SimObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("simulated")
    }
}

impl SimObjects {
    async fn delete(&self, location: Path) -> object_store::Result<Path> {
        match self.faults.step() {
            StepResult::Succeeds => {
                self.inner.delete(&location).await?;
                Ok(location)
            }
            StepResult::FailsBefore => Err(injected_fault()),
            StepResult::FailsAfter => {
                let _ = self.inner.delete(&location).await;
                Err(injected_fault())
            }
        }
    }
}

fn injected_fault() -> object_store::Error {
    object_store::Error::Generic {
        store: "simulated",
        source: "injected fault".into(),
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
        match self.faults.step() {
            StepResult::Succeeds => self.inner.put_opts(location, payload, options).await,
            StepResult::FailsBefore => Err(injected_fault()),
            StepResult::FailsAfter => {
                self.inner.put_opts(location, payload, options).await?;
                Err(injected_fault())
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
        locations
            .then(move |location| {
                let this = this.clone();
                async move { this.delete(location?).await }
            })
            .boxed()
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
