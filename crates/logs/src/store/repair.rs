//! Check and repair of a store that no process has open.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path as FilePath, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use datafusion::object_store::{
    self, ObjectStore, ObjectStoreExt as _, local::LocalFileSystem, path::Path,
};

use super::{
    checksums::Damage,
    codec::{self, LineSpan, Record},
    damage::{read_file, remove_markers},
    disk::{Disk as _, DiskDirectory, in_background, lock_folder},
    error::StoreError,
    files,
    known_files::KnownFiles,
    listing::{self, DamagedFiles},
    log,
    names::{self, StoredFile, project_of},
    objects::LocalObjects,
    recovery::{self, LogDamage},
};
use crate::event::Event;

/// Maximum number of segments that are read to rebuild one file.
const SEGMENTS_MAX: u64 = 4096;

/// Locations of a store.
#[derive(Debug, Clone)]
pub struct StoreFolders {
    /// The data directories of the processes, see [`super::Options::folder`].
    pub folders: Vec<PathBuf>,
    /// The directory of files on the local disk.
    pub files: PathBuf,
    /// The object store of files, used instead of `files`.
    pub objects: Option<Arc<dyn ObjectStore>>,
}

/// A damaged file of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileDamage {
    /// The path of the file.
    pub path: Path,
    /// Number of lines of the file.
    pub rows: u64,
    /// A description of the damage.
    pub cause: String,
}

/// The result of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreReport {
    /// Number of verified files.
    pub files: u64,
    /// Number of lines in these files.
    pub rows: u64,
    /// Damaged files.
    pub damaged_files: Vec<FileDamage>,
    /// Damage of the logs.
    pub log_damage: Vec<LogDamage>,
    /// Damaged segments of the logs that were set aside.
    pub set_aside: Vec<PathBuf>,
}

impl StoreReport {
    /// Whether nothing is damaged.
    pub fn is_sound(&self) -> bool {
        self.damaged_files.is_empty() && self.log_damage.is_empty() && self.set_aside.is_empty()
    }
}

/// The source of the lines of a repaired file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RepairSource {
    /// The log still had all lines.
    Log,
    /// The readable row groups of the file.
    File,
    /// No line was readable.
    Nothing,
}

/// A file that was repaired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepairedFile {
    /// The damaged file.
    pub damage: FileDamage,
    /// The source of the new content.
    pub source: RepairSource,
    /// Number of lines in the new content.
    pub rows: u64,
}

impl StoreFolders {
    /// Verifies all files and logs without changing them. A running server does not disturb it.
    pub async fn verify(&self) -> Result<StoreReport, StoreError> {
        let mut report = StoreReport::default();
        for folder in &self.folders {
            let folder = folder.join("log");
            if !folder.is_dir() {
                continue;
            }
            let check = move || {
                let disk = DiskDirectory::open(&folder)?;
                let names = disk.list()?.into_iter();
                let set_aside = names.filter(|name| log::is_set_aside(name));
                let set_aside: Vec<_> = set_aside.map(|name| folder.join(name)).collect();
                Ok::<_, StoreError>((recovery::read(&disk)?.damage, set_aside))
            };
            let (damage, set_aside) = in_background(check).await??;
            report.log_damage.extend(damage);
            report.set_aside.extend(set_aside);
        }
        let Some(objects) = self.readable_objects()? else {
            return Ok(report);
        };
        for file in list(&*objects).await? {
            match read_file(&*objects, &file.path).await {
                Ok(Ok(_)) => {
                    report.files += 1;
                    report.rows += file.name.rows;
                }
                Ok(Err(damage)) => report.damaged_files.push(FileDamage {
                    path: file.path,
                    rows: file.name.rows,
                    cause: damage.to_string(),
                }),
                // Only the marker of a missing file is listed.
                Err(StoreError::Objects(object_store::Error::NotFound { .. }))
                    if file.size == 0 =>
                {
                    report.damaged_files.push(FileDamage {
                        path: file.path,
                        rows: file.name.rows,
                        cause: Damage::Missing.to_string(),
                    });
                }
                // A merge or the retention removed it meanwhile.
                Err(StoreError::Objects(object_store::Error::NotFound { .. })) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(report)
    }

    /// Rebuilds damaged files from the logs, or else from their readable row groups. Moves the
    /// damaged content and the set-aside segments to the folder `damaged` of the first data
    /// directory. No process may have the store open.
    pub async fn repair(&self) -> Result<Vec<RepairedFile>, StoreError> {
        let Some(own) = self.folders.first() else {
            return Ok(Vec::new());
        };
        let _locks = self.lock()?;
        let objects: Arc<dyn ObjectStore> = match &self.objects {
            Some(objects) => Arc::clone(objects),
            None => Arc::new(LocalObjects::open(&self.files, own.join("staging"))?),
        };
        let kept = own.join("damaged");
        fs::create_dir_all(&kept)?;
        let mut repaired = Vec::new();
        for damage in self.verify().await?.damaged_files {
            let Some(file) = StoredFile::parse(&damage.path, 0) else {
                continue;
            };
            repaired.push(self.repair_file(&*objects, &file, damage, &kept).await?);
        }
        for segment in self.verify().await?.set_aside {
            if let Some(name) = segment.file_name() {
                move_file(&segment, &kept.join(name))?;
            }
        }
        // Files were deleted or have another name. The next start lists the files anew.
        for folder in &self.folders {
            KnownFiles::remove_journal(folder)?;
        }
        Ok(repaired)
    }

    async fn repair_file(
        &self,
        objects: &dyn ObjectStore,
        file: &StoredFile,
        damage: FileDamage,
        kept: &FilePath,
    ) -> Result<RepairedFile, StoreError> {
        // Empty if the disk cannot read it.
        let content = match objects.get(&file.path).await {
            Ok(object) => object.bytes().await.unwrap_or_default(),
            Err(_) => Bytes::new(),
        };
        if !content.is_empty() {
            let flat_name = file.path.as_ref().replace('/', "_");
            fs::write(kept.join(flat_name), &content)?;
        }
        let (source, rows) = if let Some(content) = self.content_from_logs(file).await? {
            objects.put(&file.path, content.into()).await?;
            (RepairSource::Log, file.name.rows)
        } else {
            let name = file.name.clone();
            let salvaged = in_background(move || files::salvage(&content, &name)).await;
            let rows = if let Some((name, content)) = salvaged.ok().flatten() {
                let path = name.path(project_of(&file.path).as_ref());
                objects.put(&path, content.into()).await?;
                if path != file.path {
                    objects.delete(&file.path).await?;
                }
                name.rows
            } else {
                match objects.delete(&file.path).await {
                    Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
                0
            };
            let source = match rows {
                0 => RepairSource::Nothing,
                _ => RepairSource::File,
            };
            (source, rows)
        };
        remove_markers(objects, &file.path).await?;
        Ok(RepairedFile {
            damage,
            source,
            rows,
        })
    }

    /// Returns the content of a file if a log still has all of its lines.
    async fn content_from_logs(&self, file: &StoredFile) -> Result<Option<Bytes>, StoreError> {
        let name = file.name.clone();
        if name.last - name.first >= SEGMENTS_MAX {
            return Ok(None);
        }
        let folders = self.folders.clone();
        let project = project_of(&file.path);
        let rebuild = move || {
            for folder in folders {
                let mut events = lines_of(&folder.join("log"), name.first..=name.last, &project);
                events.retain(|event| names::day(event.timestamp) == names::day(name.latest));
                let expected = LineSpan {
                    rows: name.rows,
                    earliest: name.earliest,
                    latest: name.latest,
                };
                if LineSpan::of(&events) == expected {
                    return Ok(Some(files::write_sorted(&mut events, name.volume())?));
                }
            }
            Ok(None)
        };
        in_background(rebuild).await?
    }

    /// Locks all data directories.
    fn lock(&self) -> Result<Vec<fs::File>, StoreError> {
        let folders = self.folders.iter();
        folders.map(|folder| lock_folder(folder)).collect()
    }

    /// Returns the object store for reading, or `None` if there are no files yet.
    fn readable_objects(&self) -> Result<Option<Arc<dyn ObjectStore>>, StoreError> {
        if let Some(objects) = &self.objects {
            return Ok(Some(Arc::clone(objects)));
        }
        if !self.files.is_dir() {
            return Ok(None);
        }
        Ok(Some(Arc::new(LocalFileSystem::new_with_prefix(
            &self.files,
        )?)))
    }
}

/// Returns all files, damaged ones included, sorted by path.
async fn list(objects: &dyn ObjectStore) -> Result<Vec<StoredFile>, StoreError> {
    let split = listing::list(objects, None, &DamagedFiles::default()).await?;
    let all = split.files.into_iter().chain(split.damaged);
    let sorted: BTreeMap<_, _> = all.map(|file| (file.path.clone(), file)).collect();
    Ok(sorted.into_values().collect())
}

/// Returns the readable lines of a project in the segments of a log, also of those set aside.
fn lines_of(
    folder: &FilePath,
    numbers: std::ops::RangeInclusive<u64>,
    project: &str,
) -> Vec<Event> {
    let mut events = Vec::new();
    for number in numbers {
        for name in [log::file_name(number), log::set_aside_name(number)] {
            let Ok(bytes) = fs::read(folder.join(name)) else {
                continue;
            };
            for payload in recovery::readable_frames(&bytes) {
                match codec::record(payload) {
                    Some(Record::Lines { project: of, .. }) if of == project => {
                        let before = events.len();
                        if codec::events(payload, &mut events).is_none() {
                            events.truncate(before);
                        }
                    }
                    _ => {}
                }
            }
        }
    }
    events
}

/// Moves a file, also to another file system.
fn move_file(from: &FilePath, to: &FilePath) -> io::Result<()> {
    if fs::rename(from, to).is_err() {
        fs::copy(from, to)?;
        fs::remove_file(from)?;
    }
    Ok(())
}
