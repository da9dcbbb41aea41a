//! The write-ahead log: appended lines that are not in files yet.
//!
//! One log serves all projects of a node, in segments of bounded size. A segment starts with a
//! header, which records the valid length of the previous segment, followed by the current reader
//! offsets and then by frames. Each frame records the durable length of its segment at the time of
//! writing. Damage beyond that length is a torn write that was never acknowledged; damage before it
//! is corruption.

use std::{collections::HashMap, io, sync::Arc};

use super::{
    StoreError, codec,
    disk::{Disk, LogFile},
    index::{Index, Segment},
};

const MAGIC: &[u8; 8] = b"gantry\x01\n";
const FRAME_MAGIC: u32 = 0x6c6f_6766;
/// Magic, own number, previous number, valid length of the previous segment, checksum.
const HEADER_BYTES: usize = 8 + 8 + 8 + 8 + 4;
/// Magic, payload length, durable length, checksum.
pub(super) const FRAME_HEADER_BYTES: usize = 16;
/// Maximum number of reader offsets of one frame.
const READER_OFFSETS_PER_FRAME: usize = 4096;

/// Returns the file name of a segment.
pub(super) fn file_name(number: u64) -> String {
    format!("{number:016x}.log")
}

/// The number and the valid length of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SegmentEnd {
    pub(super) number: u64,
    /// Valid length in bytes.
    pub(super) length: u64,
}

/// Creates the next segment durably, with the current reader offsets. Returns its file and its
/// length.
pub(super) fn create(
    disk: &dyn Disk,
    previous: SegmentEnd,
    reader_offsets: &HashMap<String, String>,
) -> io::Result<(Arc<dyn LogFile>, u64)> {
    let number = previous.number + 1;
    let mut bytes = header(number, previous);
    let reader_offsets: Vec<_> = reader_offsets.iter().collect();
    for chunk in reader_offsets.chunks(READER_OFFSETS_PER_FRAME) {
        let payload = codec::reader_offsets(chunk.iter().copied());
        append_frame(&mut bytes, &payload, 0);
    }
    let file = disk.create(&file_name(number))?;
    file.write(0, &bytes)?;
    file.sync()?;
    disk.sync()?;
    Ok((file, bytes.len() as u64))
}

fn header(number: u64, previous: SegmentEnd) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(number.to_le_bytes());
    bytes.extend(previous.number.to_le_bytes());
    bytes.extend(previous.length.to_le_bytes());
    bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
    bytes
}

/// Decodes a header. Returns the number of the segment and the end of the previous one, or `None`
/// if the header is damaged.
fn read_header(bytes: &[u8]) -> Option<(u64, SegmentEnd)> {
    let bytes: &[u8; HEADER_BYTES] = bytes.first_chunk()?;
    let (body, checksum) = bytes.split_at(HEADER_BYTES - 4);
    if !body.starts_with(MAGIC) || crc32c::crc32c(body).to_le_bytes() != checksum {
        return None;
    }
    let previous = SegmentEnd {
        number: u64_at(body, 16)?,
        length: u64_at(body, 24)?,
    };
    Some((u64_at(body, 8)?, previous))
}

/// Appends a frame. Returns the position of its payload in `to`.
pub(super) fn append_frame(to: &mut Vec<u8>, payload: &[u8], durable: u32) -> usize {
    // Payloads are limited to far less. An oversized one would be rejected as damaged on recovery.
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    to.extend(FRAME_MAGIC.to_le_bytes());
    to.extend(length.to_le_bytes());
    to.extend(durable.to_le_bytes());
    to.extend(checksum(length, durable, payload).to_le_bytes());
    to.extend(payload);
    to.len() - payload.len()
}

fn checksum(length: u32, durable: u32, payload: &[u8]) -> u32 {
    let checksum = crc32c::crc32c(&length.to_le_bytes());
    let checksum = crc32c::crc32c_append(checksum, &durable.to_le_bytes());
    crc32c::crc32c_append(checksum, payload)
}

/// Decodes the frame at the start of `bytes`. Returns its payload and the recorded durable length,
/// or `None` if it is damaged.
pub(super) fn read_frame(bytes: &[u8]) -> Option<(&[u8], u32)> {
    let (head, rest) = bytes.split_first_chunk::<FRAME_HEADER_BYTES>()?;
    let length = u32_at(head, 4)?;
    let durable = u32_at(head, 8)?;
    let payload = rest.get(..length as usize)?;
    if u32_at(head, 0)? != FRAME_MAGIC || u32_at(head, 12)? != checksum(length, durable, payload) {
        return None;
    }
    Some((payload, durable))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + 8)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// Reads the log after a start. Returns its index and the end of its last segment, or `None` for an
/// empty log.
pub(super) fn recover(disk: &dyn Disk) -> Result<(Index, Option<SegmentEnd>), StoreError> {
    let segments = open_segments(disk)?;
    let mut index = Index::default();
    let mut last = None;
    for (at, segment) in segments.iter().enumerate() {
        let valid_length = match segments.get(at + 1) {
            None => None,
            Some(next) if next.previous.number == segment.number => Some(next.previous.length),
            Some(next) => return Err(corrupt(&file_name(next.number), 0)),
        };
        let length = read_segment(&mut index, segment.number, &segment.file, valid_length)?;
        if valid_length.is_none() {
            // The end of the segment may only be in the page cache. The header of the next segment
            // relies on it.
            segment.file.sync()?;
        }
        last = Some(SegmentEnd {
            number: segment.number,
            length,
        });
    }
    Ok((index, last))
}

/// A segment with a valid header.
struct OpenSegment {
    number: u64,
    /// The end of the previous segment.
    previous: SegmentEnd,
    file: Arc<dyn LogFile>,
}

/// Opens all segments in ascending order. Removes a last one that was never used.
fn open_segments(disk: &dyn Disk) -> Result<Vec<OpenSegment>, StoreError> {
    let mut numbers = Vec::new();
    for name in disk.list()? {
        let number = name.strip_suffix(".log");
        if let Some(Ok(number)) = number.map(|number| u64::from_str_radix(number, 16)) {
            numbers.push(number);
        }
    }
    numbers.sort_unstable();
    let mut segments = Vec::with_capacity(numbers.len());
    for number in &numbers {
        let name = file_name(*number);
        let file = disk.open(&name)?;
        let length = usize::try_from(file.length()?).unwrap_or(HEADER_BYTES);
        let head = file.read(0, length.min(HEADER_BYTES))?;
        match read_header(&head) {
            Some((recorded, previous)) if recorded == *number => segments.push(OpenSegment {
                number: *number,
                previous,
                file,
            }),
            // The creation of the last segment was interrupted before any append.
            _ if numbers.last() == Some(number) && !contains_frames(&file)? => {
                disk.remove(&name)?;
            }
            _ => return Err(corrupt(&name, 0)),
        }
    }
    Ok(segments)
}

/// Reads the valid part of one segment into the index. Without a known length, reads up to the
/// first torn frame.
fn read_segment(
    index: &mut Index,
    number: u64,
    file: &Arc<dyn LogFile>,
    valid_length: Option<u64>,
) -> Result<u64, StoreError> {
    let damaged = |at: usize| corrupt(&file_name(number), at as u64);
    let length = usize::try_from(file.length()?).map_err(|_| damaged(0))?;
    let bytes = file.read(0, length)?;
    let end = match valid_length {
        Some(valid) => usize::try_from(valid).unwrap_or(usize::MAX),
        None => length,
    };
    let bytes = bytes.get(..end).ok_or_else(|| damaged(length))?;
    index
        .segments
        .push_back(Segment::new(number, Arc::clone(file), 0));
    let mut at = HEADER_BYTES;
    while at < bytes.len() {
        let Some((payload, _)) = read_frame(&bytes[at..]) else {
            if valid_length.is_some() || was_durable(&bytes[at..], at) {
                return Err(damaged(at));
            }
            break;
        };
        let record = codec::record(payload).ok_or_else(|| damaged(at))?;
        index.apply(record, (at + FRAME_HEADER_BYTES) as u64, payload.len());
        at += FRAME_HEADER_BYTES + payload.len();
    }
    if let Some(segment) = index.segments.back_mut() {
        segment.length = at as u64;
    }
    Ok(at as u64)
}

/// Whether a segment with a damaged header contains frames, which proves that its header was once
/// durable.
fn contains_frames(file: &Arc<dyn LogFile>) -> io::Result<bool> {
    let length = usize::try_from(file.length()?).map_err(io::Error::other)?;
    let bytes = file.read(0, length)?;
    Ok(was_durable(&bytes, 0))
}

/// Whether a frame after the damage recorded the damaged position as durable.
fn was_durable(bytes: &[u8], at: usize) -> bool {
    let magic = FRAME_MAGIC.to_le_bytes();
    (1..bytes.len()).any(|skip| {
        let rest = &bytes[skip..];
        rest.starts_with(&magic)
            && read_frame(rest).is_some_and(|(_, durable)| durable as usize > at)
    })
}

fn corrupt(name: &str, offset: u64) -> StoreError {
    StoreError::Corrupt {
        file: name.to_owned(),
        offset,
    }
}
