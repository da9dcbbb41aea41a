//! The writer thread of the log with group commit: appends that arrive during a disk flush share
//! the next one.

use std::{io, sync::Arc};

use tokio::sync::mpsc;

use super::{
    codec::Record,
    disk::{Disk, LogFile},
    error::StoreError,
    index::Segment,
    log::{self, EndRecord, FrameSalt, SegmentEnd, SegmentHeader},
    state::{StoreState, WriteJob},
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

/// The segment that receives appends.
struct ActiveSegment {
    file: Arc<dyn LogFile>,
    salt: FrameSalt,
    /// Its length before the first append.
    initial_length: u64,
}

pub(super) struct LogWriter {
    shared: Arc<StoreState>,
    disk: Arc<dyn Disk>,
    /// `None` after a disk failure: the next append starts a new segment.
    active: Option<ActiveSegment>,
    /// The number and the durable length of the last segment.
    last: SegmentEnd,
    /// The highest number that a segment has had, also one that was lost.
    highest: u64,
    end: EndRecord,
    failing: bool,
}

impl LogWriter {
    /// Starts a new segment after the existing ones.
    pub(super) fn start(
        shared: Arc<StoreState>,
        disk: Arc<dyn Disk>,
        last: SegmentEnd,
        highest: u64,
    ) -> Result<Self, StoreError> {
        let mut writer = Self {
            end: EndRecord::create(&*disk),
            shared,
            disk,
            active: None,
            last,
            highest,
            failing: false,
        };
        writer.start_segment()?;
        Ok(writer)
    }

    /// Processes jobs until the channel is closed.
    pub(super) fn run(mut self, mut jobs: mpsc::Receiver<WriteJob>) {
        while let Some(first) = jobs.blocking_recv() {
            let mut group = vec![first];
            let mut bytes = 0;
            while bytes < GROUP_BYTES
                && let Ok(job) = jobs.try_recv()
            {
                if let WriteJob::Append { payload, .. } = &job {
                    bytes += payload.len();
                }
                group.push(job);
            }
            self.process(group);
        }
    }

    fn process(&mut self, group: Vec<WriteJob>) {
        let mut records = Vec::new();
        let mut appenders = Vec::new();
        let mut sealers = Vec::new();
        for job in group {
            match job {
                WriteJob::Append {
                    record,
                    payload,
                    queued,
                    reply,
                } => {
                    if let Some(error) = self.capacity_error(&record) {
                        let _ = reply.send(Err(error));
                        continue;
                    }
                    records.push((record, payload));
                    appenders.push((queued, reply));
                }
                WriteJob::Seal { reply } => sealers.push(reply),
            }
        }
        if !records.is_empty() {
            let result = self.append(records);
            self.log_transition(&result);
            for (_, reply) in appenders {
                let _ = reply.send(copy_result(&result).map_err(StoreError::Io));
            }
        }
        if !sealers.is_empty() {
            let result = self.seal();
            self.log_transition(&result);
            for reply in sealers {
                let _ = reply.send(copy_result(&result).map_err(StoreError::Io));
            }
        }
    }

    fn append(&mut self, records: Vec<(Record, Vec<u8>)>) -> io::Result<()> {
        let bytes = records.iter().map(|(_, payload)| payload.len()).sum();
        self.ensure_capacity(bytes)?;
        self.write(records)
    }

    /// Starts a new segment unless the active one is empty.
    fn seal(&mut self) -> io::Result<()> {
        if self.has_lines() {
            self.start_segment()?;
        }
        Ok(())
    }

    /// Logs the first failure of the disk and its recovery.
    fn log_transition(&mut self, result: &io::Result<()>) {
        match result {
            Err(error) if !self.failing => {
                tracing::error!(%error, "log cannot be written, appends are rejected");
            }
            Ok(()) if self.failing => tracing::info!("log can be written again"),
            _ => {}
        }
        self.failing = result.is_err();
        if result.is_err() {
            self.shared.counters.failures.add(1);
        }
    }

    /// Returns the error for a record that exceeds the limits of the log. Deletions always succeed.
    fn capacity_error(&self, record: &Record) -> Option<StoreError> {
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

    fn has_lines(&self) -> bool {
        self.shared
            .index()
            .segments
            .back()
            .is_some_and(|segment| segment.frames > 0)
    }

    /// Starts a new segment if the active one has no room for `bytes`. An empty segment always has
    /// room.
    fn ensure_capacity(&mut self, bytes: usize) -> io::Result<()> {
        let Some(active) = &self.active else {
            return self.start_segment();
        };
        let length = self.last.length;
        let fits = length + bytes as u64 <= self.shared.options.seal_bytes && {
            let index = self.shared.index();
            index
                .segments
                .back()
                .is_some_and(|segment| segment.frames < FRAMES_MAX && segment.files < FILES_MAX)
        };
        if fits || length == active.initial_length {
            Ok(())
        } else {
            self.start_segment()
        }
    }

    /// Starts the next segment. Its header fixes the valid length of the previous one, which is
    /// never written to again.
    fn start_segment(&mut self) -> io::Result<()> {
        self.active = None;
        let reader_offsets = self.shared.index().carried_offsets();
        let number = self.highest.max(self.last.number) + 1;
        let salt = FrameSalt::derive(self.shared.options.seed, number);
        let header = SegmentHeader {
            number,
            previous: self.last,
            salt,
        };
        let (file, initial_length) = log::create(&*self.disk, &header, &reader_offsets)?;
        self.last = SegmentEnd {
            number,
            length: initial_length,
        };
        self.end.store(self.last);
        self.shared.index().segments.push_back(Segment::new(
            number,
            Arc::clone(&file),
            initial_length,
        ));
        self.active = Some(ActiveSegment {
            file,
            salt,
            initial_length,
        });
        Ok(())
    }

    /// Writes records, flushes the disk and updates the index. After a failure nothing written
    /// counts, because the header of the next segment records the previous valid length.
    fn write(&mut self, records: Vec<(Record, Vec<u8>)>) -> io::Result<()> {
        let Some(ActiveSegment { file, salt, .. }) = &self.active else {
            return Err(io::Error::other("no segment"));
        };
        let at = self.last.length;
        let durable = u32::try_from(at).map_err(io::Error::other)?;
        let mut bytes =
            Vec::with_capacity(records.iter().map(|(_, payload)| payload.len() + 32).sum());
        let places: Vec<usize> = records
            .iter()
            .map(|(_, payload)| salt.append_frame(&mut bytes, payload, durable))
            .collect();
        if let Err(error) = file.write(at, &bytes).and_then(|()| file.sync()) {
            self.active = None;
            return Err(error);
        }
        self.last.length += bytes.len() as u64;
        self.end.store(self.last);
        let counters = &self.shared.counters;
        counters.syncs.add(1);
        let mut index = self.shared.index();
        if let Some(segment) = index.segments.back_mut() {
            segment.length = self.last.length;
        }
        for ((record, payload), place) in records.into_iter().zip(places) {
            if let Record::Lines { span, .. } = &record {
                counters.rows.add(span.rows);
                counters.bytes.add(payload.len() as u64);
            }
            index.apply(record, at + place as u64, &payload);
        }
        Ok(())
    }
}

/// Copies a result for several waiting callers.
fn copy_result(result: &io::Result<()>) -> io::Result<()> {
    result
        .as_ref()
        .copied()
        .map_err(|error| io::Error::new(error.kind(), error.to_string()))
}
