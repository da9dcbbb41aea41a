//! The writer thread of the log with group commit: appends that arrive during a disk flush share
//! the next one.

use std::{io, sync::Arc};

use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use super::{
    Shared, StoreError,
    codec::Record,
    disk::{Disk, LogFile},
    index::Segment,
    log::{self, Before},
};

/// Approximate maximum size of a group commit in bytes.
const GROUP_BYTES: usize = 4 * 1024 * 1024;
/// Maximum number of frames of one segment.
const FRAMES_MAX: usize = 64 * 1024;
/// Maximum number of frames with lines in the whole log. Each takes about a hundred bytes of
/// memory.
const LOG_FRAMES_MAX: usize = 1024 * 1024;
/// Approximate maximum number of files that one segment is flushed to.
const FILES_MAX: u64 = 4096;

/// A request to the writer thread.
pub(super) enum Job {
    /// Makes a record durable.
    Append {
        record: Record,
        payload: Vec<u8>,
        room: OwnedSemaphorePermit,
        done: oneshot::Sender<Result<(), StoreError>>,
    },
    /// Seals the active segment, so that it can be flushed to files.
    Seal {
        done: oneshot::Sender<Result<(), StoreError>>,
    },
}

/// The segment that receives appends.
struct Active {
    file: Arc<dyn LogFile>,
    /// Its length before the first append.
    empty: u64,
}

pub(super) struct Writer {
    shared: Arc<Shared>,
    disk: Arc<dyn Disk>,
    /// `None` after a disk failure: the next append starts a new segment.
    active: Option<Active>,
    /// The number and the durable length of the last segment.
    before: Before,
    failing: bool,
}

impl Writer {
    /// Starts a new segment after the existing ones.
    pub(super) fn begin(
        shared: Arc<Shared>,
        disk: Arc<dyn Disk>,
        before: Before,
    ) -> Result<Self, StoreError> {
        let mut writer = Self {
            shared,
            disk,
            active: None,
            before,
            failing: false,
        };
        writer.roll()?;
        Ok(writer)
    }

    /// Processes jobs until the channel is closed.
    pub(super) fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        while let Some(first) = jobs.blocking_recv() {
            let mut group = vec![first];
            let mut bytes = 0;
            while bytes < GROUP_BYTES
                && let Ok(job) = jobs.try_recv()
            {
                bytes += if let Job::Append { payload, .. } = &job {
                    payload.len()
                } else {
                    0
                };
                group.push(job);
            }
            self.work(group);
        }
    }

    fn work(&mut self, group: Vec<Job>) {
        let (mut appends, mut seals) = (Vec::new(), Vec::new());
        for job in group {
            match job {
                Job::Append {
                    record,
                    payload,
                    room,
                    done,
                } => match self.refusal(&record) {
                    Some(refusal) => drop(done.send(Err(refusal))),
                    None => appends.push((record, payload, room, done)),
                },
                Job::Seal { done } => seals.push(done),
            }
        }
        if !appends.is_empty() {
            let bytes = appends.iter().map(|(_, payload, ..)| payload.len()).sum();
            let mut result = self.room(bytes);
            let mut records = Vec::with_capacity(appends.len());
            let mut answers = Vec::with_capacity(appends.len());
            for (record, payload, room, done) in appends {
                records.push((record, payload));
                answers.push((room, done));
            }
            result = result.and_then(|()| self.write(records));
            self.tell(&result);
            for (_, done) in answers {
                let _ = done.send(again(&result).map_err(StoreError::Io));
            }
        }
        if !seals.is_empty() {
            let result = if self.holds_lines() {
                self.roll()
            } else {
                Ok(())
            };
            self.tell(&result);
            for done in seals {
                let _ = done.send(again(&result).map_err(StoreError::Io));
            }
        }
    }

    /// Logs the first failure of the disk and its recovery.
    fn tell(&mut self, result: &io::Result<()>) {
        match result {
            Err(error) if !self.failing => {
                tracing::error!(%error, "the log of lines cannot be written: appends are refused")
            }
            Ok(()) if self.failing => tracing::info!("the log of lines can be written again"),
            _ => {}
        }
        self.failing = result.is_err();
        if result.is_err() {
            self.shared.counters.failures.add(1);
        }
    }

    /// Returns the error for a record that exceeds the limits of the log. Deletions always succeed.
    fn refusal(&self, record: &Record) -> Option<StoreError> {
        let Record::Lines { .. } = record else {
            return None;
        };
        let index = self.shared.index();
        let full =
            index.bytes() >= self.shared.options.log_bytes || index.frames() >= LOG_FRAMES_MAX;
        full.then_some(StoreError::Full {
            bytes: self.shared.options.log_bytes,
        })
    }

    fn holds_lines(&self) -> bool {
        self.shared
            .index()
            .segments
            .back()
            .is_some_and(|segment| segment.frames > 0)
    }

    /// Starts a new segment if the active one has no room for `bytes`. An empty segment always has
    /// room.
    fn room(&mut self, bytes: usize) -> io::Result<()> {
        let Some(active) = &self.active else {
            return self.roll();
        };
        let length = self.before.length;
        let fits = length + bytes as u64 <= self.shared.options.seal_bytes && {
            let index = self.shared.index();
            index
                .segments
                .back()
                .is_some_and(|segment| segment.frames < FRAMES_MAX && segment.files < FILES_MAX)
        };
        if fits || length == active.empty {
            Ok(())
        } else {
            self.roll()
        }
    }

    /// Starts the next segment. Its header fixes the valid length of the previous one, which is
    /// never written to again.
    fn roll(&mut self) -> io::Result<()> {
        self.active = None;
        let marks = self.shared.index().marks.clone();
        let (file, empty) = log::create(&*self.disk, self.before, &marks)?;
        self.before = Before {
            number: self.before.number + 1,
            length: empty,
        };
        self.shared.index().segments.push_back(Segment::new(
            self.before.number,
            Arc::clone(&file),
            empty,
        ));
        self.active = Some(Active { file, empty });
        Ok(())
    }

    /// Writes records, flushes the disk and updates the index. After a failure nothing written
    /// counts, because the header of the next segment records the previous valid length.
    fn write(&mut self, records: Vec<(Record, Vec<u8>)>) -> io::Result<()> {
        let Some(Active { file, .. }) = &self.active else {
            return Err(io::Error::other("no segment"));
        };
        let at = self.before.length;
        let durable = u32::try_from(at).map_err(io::Error::other)?;
        let mut bytes =
            Vec::with_capacity(records.iter().map(|(_, payload)| payload.len() + 32).sum());
        let places: Vec<usize> = records
            .iter()
            .map(|(_, payload)| log::frame(&mut bytes, payload, durable))
            .collect();
        if let Err(error) = file.write(at, &bytes).and_then(|()| file.sync()) {
            self.active = None;
            return Err(error);
        }
        self.before.length += bytes.len() as u64;
        let counters = &self.shared.counters;
        counters.syncs.add(1);
        let mut index = self.shared.index();
        if let Some(segment) = index.segments.back_mut() {
            segment.length = self.before.length;
        }
        for ((record, payload), place) in records.into_iter().zip(places) {
            if let Record::Lines { span, .. } = &record {
                counters.rows.add(span.rows);
                counters.bytes.add(payload.len() as u64);
            }
            index.apply(record, at + place as u64, payload.len());
        }
        Ok(())
    }
}

/// Copies a result for several waiting callers.
fn again(result: &io::Result<()>) -> io::Result<()> {
    result
        .as_ref()
        .copied()
        .map_err(|error| io::Error::new(error.kind(), error.to_string()))
}
