//! Recovery of the log after a start.
//!
//! Damage never prevents the start: readable frames are kept, the rest is reported with its size,
//! and a damaged segment is set aside when its lines are in files.

use std::{io, sync::Arc};

use super::{
    codec,
    disk::{Disk, LogFile},
    error::StoreError,
    index::{Index, Segment},
    log::{self, EndRecord, FRAME_HEADER_BYTES, FrameSalt, SegmentEnd, SegmentHeader},
};

/// Size of the parts in which a segment is read if the disk cannot read it at once.
const SECTOR_BYTES: usize = 4096;

/// Lines that were acknowledged and are no longer readable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogDamage {
    /// The file name of the segment.
    pub file: String,
    /// The offset of the damage in bytes.
    pub offset: u64,
    /// Number of unreadable bytes.
    pub bytes: u64,
}

/// The state of the log after a start.
#[derive(Debug, Default)]
pub(super) struct RecoveredLog {
    pub(super) index: Index,
    /// The end of the last segment; `None` for an empty log.
    pub(super) last: Option<SegmentEnd>,
    /// The highest number that a segment has had.
    pub(super) highest: u64,
    pub(super) damage: Vec<LogDamage>,
    /// Bytes after the end of the log that were never acknowledged.
    pub(super) torn_bytes: u64,
    /// A last segment without a valid header and without acknowledged lines.
    pub(super) unused: Option<String>,
}

/// Reads the log without changing it.
pub(super) fn read(disk: &dyn Disk) -> Result<RecoveredLog, StoreError> {
    let recorded = EndRecord::load(disk)?;
    let mut log = RecoveredLog {
        highest: recorded.map_or(0, |end| end.number),
        ..RecoveredLog::default()
    };
    let segments = open_segments(disk)?;
    for (at, segment) in segments.iter().enumerate() {
        log.highest = log.highest.max(segment.number);
        let later = segments[at + 1..].iter().find_map(|later| later.header);
        let is_last = at + 1 == segments.len();
        let extent = KnownExtent {
            valid: later
                .map(|later| later.previous)
                .filter(|previous| previous.number == segment.number)
                .map(|previous| previous.length),
            durable: match recorded {
                Some(end) if end.number == segment.number => end.length,
                _ => 0,
            },
            is_last,
        };
        log.read_segment(segment, extent);
        log.report_missing(segment, segments.get(at + 1));
    }
    if let Some(end) = recorded {
        let is_missing = segments.last().is_none_or(|last| last.number < end.number);
        if is_missing && end.length > log::HEADER_BYTES as u64 {
            log.report(end.number, 0, end.length);
        }
    }
    Ok(log)
}

/// Reads the log after a start, reports damage and makes the end of the log durable.
pub(super) fn recover(disk: &dyn Disk) -> Result<RecoveredLog, StoreError> {
    let log = read(disk)?;
    for LogDamage {
        file,
        offset,
        bytes,
    } in &log.damage
    {
        tracing::error!(
            file,
            offset,
            bytes,
            "log segment is damaged; its readable lines are kept and the rest is dropped"
        );
    }
    if log.torn_bytes > 0 {
        let bytes = log.torn_bytes;
        tracing::warn!(bytes, "log ends with an incomplete write, which is dropped");
    }
    if let Some(name) = &log.unused {
        disk.remove(name)?;
    }
    if let Some(last) = log.index.segments.back() {
        // The end of the segment may only be in the page cache. The header of the next segment
        // relies on it.
        last.file.sync()?;
    }
    Ok(log)
}

/// A segment of the log.
struct OpenSegment {
    number: u64,
    /// `None` if the header is damaged.
    header: Option<SegmentHeader>,
    file: Arc<dyn LogFile>,
    bytes: Vec<u8>,
}

/// The part of a segment that is known to have been written.
#[derive(Debug, Clone, Copy)]
struct KnownExtent {
    /// The valid length in the header of the next segment.
    valid: Option<u64>,
    /// A lower bound of the durable length.
    durable: u64,
    is_last: bool,
}

/// Opens all segments in ascending order.
fn open_segments(disk: &dyn Disk) -> Result<Vec<OpenSegment>, StoreError> {
    let mut numbers: Vec<u64> = (disk.list()?.iter())
        .filter_map(|name| log::segment_number(name))
        .collect();
    numbers.sort_unstable();
    let mut segments = Vec::with_capacity(numbers.len());
    for number in numbers {
        let file = disk.open(&log::file_name(number))?;
        let bytes = read_all(&*file)?;
        let header = SegmentHeader::decode(&bytes).filter(|header| header.number == number);
        segments.push(OpenSegment {
            number,
            header,
            file,
            bytes,
        });
    }
    Ok(segments)
}

/// Reads a file. Parts that the disk cannot read are zero, so that they count as damaged.
fn read_all(file: &dyn LogFile) -> io::Result<Vec<u8>> {
    let length = usize::try_from(file.length()?).map_err(io::Error::other)?;
    if let Ok(bytes) = file.read(0, length) {
        return Ok(bytes);
    }
    let mut bytes = vec![0; length];
    for (number, part) in bytes.chunks_mut(SECTOR_BYTES).enumerate() {
        if let Ok(content) = file.read((number * SECTOR_BYTES) as u64, part.len()) {
            part.copy_from_slice(&content);
        }
    }
    Ok(bytes)
}

/// Returns the payloads of the readable frames of a segment.
pub(super) fn readable_frames(segment: &[u8]) -> Vec<&[u8]> {
    let mut payloads = Vec::new();
    let Some(header) = SegmentHeader::decode(segment) else {
        return payloads;
    };
    let mut at = header.length();
    while at < segment.len() {
        match header.salt.read_frame(&segment[at..]) {
            Some((payload, _)) => {
                payloads.push(payload);
                at += FRAME_HEADER_BYTES + payload.len();
            }
            None if header.salt.0.is_some() => at += 1,
            None => break,
        }
    }
    payloads
}

impl RecoveredLog {
    fn report(&mut self, number: u64, offset: u64, bytes: u64) {
        self.damage.push(LogDamage {
            file: log::file_name(number),
            offset,
            bytes,
        });
        if let Some(segment) = self.index.segments.back_mut()
            && segment.number == number
        {
            segment.is_damaged = true;
        }
    }

    /// Reports segments that are missing between two existing ones.
    fn report_missing(&mut self, segment: &OpenSegment, next: Option<&OpenSegment>) {
        let Some(header) = next.and_then(|next| next.header) else {
            return;
        };
        if header.previous.number > segment.number {
            self.report(header.previous.number, 0, header.previous.length);
        }
    }

    /// Reads the valid frames of a segment into the index.
    fn read_segment(&mut self, segment: &OpenSegment, extent: KnownExtent) {
        let number = segment.number;
        let Some(header) = segment.header else {
            let lost = extent.valid.unwrap_or(extent.durable).max(extent.durable);
            if extent.is_last && lost == 0 {
                // The creation of the last segment was interrupted before any append.
                self.unused = Some(log::file_name(number));
                self.torn_bytes += segment.bytes.len() as u64;
                return;
            }
            self.add_segment(segment);
            self.report(number, 0, lost.max(segment.bytes.len() as u64));
            self.end_segment(number, segment.bytes.len());
            return;
        };
        self.add_segment(segment);
        let end = match extent.valid {
            Some(valid) => usize::try_from(valid).unwrap_or(usize::MAX),
            None => segment.bytes.len(),
        };
        let bytes = &segment.bytes[..end.min(segment.bytes.len())];
        let at = self.read_frames(header, bytes, extent);
        let known = extent.valid.unwrap_or(0).max(extent.durable);
        if known > bytes.len() as u64 {
            self.report(number, bytes.len() as u64, known - bytes.len() as u64);
        }
        self.end_segment(number, at);
    }

    fn add_segment(&mut self, segment: &OpenSegment) {
        let file = Arc::clone(&segment.file);
        let segment = Segment::new(segment.number, file, 0);
        self.index.segments.push_back(segment);
    }

    fn end_segment(&mut self, number: u64, length: usize) {
        let length = length as u64;
        if let Some(segment) = self.index.segments.back_mut() {
            segment.length = length;
        }
        self.last = Some(SegmentEnd { number, length });
    }

    /// Applies the frames of a segment. Returns the end of the last one.
    fn read_frames(&mut self, header: SegmentHeader, bytes: &[u8], extent: KnownExtent) -> usize {
        let salt = header.salt;
        let mut at = header.length();
        let mut valid_end = at;
        while at < bytes.len() {
            let record = salt.read_frame(&bytes[at..]).and_then(|(payload, _)| {
                let record = codec::record(payload)?;
                Some((record, payload))
            });
            if let Some((record, payload)) = record {
                self.index
                    .apply(record, (at + FRAME_HEADER_BYTES) as u64, payload);
                at += FRAME_HEADER_BYTES + payload.len();
                valid_end = at;
                continue;
            }
            let later = LaterFrames::of(salt, bytes, at);
            let was_durable = extent.valid.is_some()
                || !extent.is_last
                || (at as u64) < extent.durable
                || later.prove_durable;
            let dropped_to = match later.first {
                // Frames without a salt could be forged by a log line.
                Some(next) if was_durable && salt.0.is_some() => next,
                _ => bytes.len(),
            };
            if was_durable {
                self.report(header.number, at as u64, (dropped_to - at) as u64);
            } else {
                self.torn_bytes += (dropped_to - at) as u64;
            }
            at = dropped_to;
        }
        valid_end
    }
}

/// The valid frames after a damaged one.
struct LaterFrames {
    /// The position of the first one.
    first: Option<usize>,
    /// Whether one of them recorded the damaged position as durable.
    prove_durable: bool,
}

impl LaterFrames {
    fn of(salt: FrameSalt, bytes: &[u8], damaged: usize) -> Self {
        let mut later = Self {
            first: None,
            prove_durable: false,
        };
        let mut at = damaged + 1;
        while at < bytes.len() && !later.prove_durable {
            match salt.read_frame(&bytes[at..]) {
                Some((payload, durable)) => {
                    later.first.get_or_insert(at);
                    later.prove_durable = durable as usize > damaged;
                    at += FRAME_HEADER_BYTES + payload.len();
                }
                None => at += 1,
            }
        }
        later
    }
}
