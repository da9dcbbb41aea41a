//! The tails of a store and their spool files.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    sync::Arc,
};

use smol_str::SmolStr;
use tokio::sync::{Mutex, watch};

use super::{
    disk::Disk,
    index::Index,
    spool::{self, SpoolFile},
};

/// A tail as readers see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TailState {
    /// The name given by the call that opened the tail. Numbers of lines are valid in it only.
    pub epoch: String,
    /// The number of the first line that can be read.
    pub first: u64,
    /// The number of the next line that will be appended.
    pub end: u64,
    /// As [`Self::end`] when the store was opened. Positions of earlier processes are not beyond
    /// it, unless the log was damaged.
    pub recovered_end: u64,
}

/// The tails of a store.
#[derive(Debug)]
pub(super) struct Tails {
    pub(super) by_project: Arc<Mutex<TailMap>>,
    pub(super) changes: parking_lot::Mutex<HashMap<SmolStr, watch::Sender<u64>>>,
}

/// Tails by project.
pub(super) type TailMap = HashMap<SmolStr, ProjectTail>;

/// The open tail of a project.
#[derive(Debug)]
pub(super) struct ProjectTail {
    pub(super) epoch: String,
    /// The number of the first line that is in the log.
    pub(super) base: u64,
    /// Spool files by segment. The last one is kept, possibly without lines.
    pub(super) spool: BTreeMap<u64, SpoolFile>,
    pub(super) recovered_end: u64,
}

impl ProjectTail {
    pub(super) fn bytes(&self) -> u64 {
        self.spool.values().map(|file| file.bytes).sum()
    }

    pub(super) fn state(&self, index: &Index, project: &str) -> TailState {
        let spooled = self.spool.values().find(|file| file.rows > 0);
        TailState {
            epoch: self.epoch.clone(),
            first: spooled.map_or(self.base, |file| file.first),
            end: self.base + rows_in_log(index, project),
            recovered_end: self.recovered_end,
        }
    }

    /// Removes the oldest spool file with lines. The last file is replaced by an empty one, because
    /// its name records the number of the next line.
    pub(super) fn remove_oldest(&mut self, disk: &dyn Disk, project: &str) -> io::Result<()> {
        let Some((segment, file)) = self.spool.iter().find(|(_, file)| file.rows > 0) else {
            return Ok(());
        };
        let (segment, file) = (*segment, file.clone());
        let is_last = self.spool.last_key_value().map(|(last, _)| *last) == Some(segment);
        if is_last {
            let marker = SpoolFile::new(project, &self.epoch, segment, file.end(), 0);
            disk.create(&marker.name)?;
            disk.sync()?;
            self.spool.insert(segment, marker);
        } else {
            self.spool.remove(&segment);
        }
        disk.remove(&file.name)?;
        // Earlier files without lines are superseded.
        while let Some((first, file)) = self.spool.first_key_value()
            && file.rows == 0
            && self.spool.len() > 1
        {
            disk.remove(&file.name)?;
            let first = *first;
            self.spool.remove(&first);
        }
        Ok(())
    }
}

fn rows_in_log(index: &Index, project: &str) -> u64 {
    let mut rows = 0;
    for segment in &index.segments {
        if let Some(pending) = segment.projects.get(project) {
            rows += pending.extents.iter().map(|it| it.span.rows).sum::<u64>();
        }
    }
    rows
}

impl Tails {
    /// Reads the names of spool files after the log was recovered.
    pub(super) fn recover(index: &Index, disk: &dyn Disk) -> io::Result<Self> {
        let first_unflushed = index.first_unflushed();
        let mut tails = TailMap::new();
        let mut found = Vec::new();
        for name in disk.list()? {
            let Some((project, epoch, segment, mut file)) = spool::parse(&name) else {
                continue;
            };
            if segment >= first_unflushed {
                disk.remove(&name)?;
                continue;
            }
            if file.rows > 0 {
                file.bytes = disk.open(&name)?.length()?;
            }
            found.push((segment, SmolStr::from(project), epoch.to_owned(), file));
        }
        // Of files of one segment, the one with lines precedes the one that replaces it.
        found.sort_by_key(|(segment, _, _, file)| (*segment, file.first));
        for (segment, project, epoch, file) in found {
            let tail = tails.entry(project).or_insert_with(|| ProjectTail {
                epoch: epoch.clone(),
                base: 0,
                spool: BTreeMap::new(),
                recovered_end: 0,
            });
            if tail.epoch != epoch {
                // A later tail of the project. The removal of the earlier one was interrupted.
                for stale in std::mem::take(&mut tail.spool).into_values() {
                    disk.remove(&stale.name)?;
                }
                tail.epoch = epoch;
            }
            tail.base = file.end();
            if let Some(replaced) = tail.spool.insert(segment, file) {
                disk.remove(&replaced.name)?;
            }
        }
        for (project, tail) in &mut tails {
            tail.recovered_end = tail.base + rows_in_log(index, project);
        }
        Ok(Self {
            by_project: Arc::new(Mutex::new(tails)),
            changes: parking_lot::Mutex::default(),
        })
    }

    /// Notifies readers of a project after an append.
    pub(super) fn notify(&self, project: &str) {
        if let Some(changes) = self.changes.lock().get(project) {
            changes.send_modify(|count| *count += 1);
        }
    }
}
